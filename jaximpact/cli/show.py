"""The commands `list` and `show`: contents of the catalogue, and what theory says of one problem."""

from __future__ import annotations

import argparse
import shlex
import textwrap
from collections.abc import Iterable
from pathlib import Path

from ..catalogue import Case, Entry, entries
from ..mechanics.method_names import SCHEMES
from .output import align_columns
from .shared import UsageError, count_constraints, expected_orders, find, text
from .study import is_study, show_study

WIDTH = 100
LIST = """\
List the problems: id, name, title, cases, and which schemes treat them. Maury's scheme is for inelastic impacts
(e = 0) only, the others for every e; with joints those of positions are too. Take a name or an id to `show`, `run` and `converge`.

example:
  jaximpact list --verbose                      one line a case: size, restitution, final time, impacts
"""  # noqa: E501
SHOW = """\
Show one problem: statement, hypotheses it satisfies, source, cases, and the orders of convergence that theory
predicts for each scheme. Of the store of a study: progress, definition, provenance, failed lanes.

examples:
  jaximpact show B16
  jaximpact show out/impact_oscillator.zarr
"""


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Adds the parsers of `list` and `show`."""
    command = commands.add_parser("list", help="list the problems", **text(LIST))
    command.add_argument("--verbose", action="store_true", help="one line for each case")
    command.set_defaults(command=_list)

    command = commands.add_parser("show", help="show one problem, or a study", **text(SHOW))
    command.add_argument("problem", help="name or id, e.g. bouncing-ball or B01; or the store of a study")
    command.set_defaults(command=_show)


def _list(options: argparse.Namespace) -> int:
    if not options.verbose:
        rows: list[tuple[str, ...]] = [("id", "name", "title", "cases", "schemes")]
        for entry in entries():
            rows.append(
                (entry.id, entry.name, entry.title, ", ".join(entry.cases), _covered(entry, entry.cases.values()))
            )
        print(align_columns(rows))
        return 0
    rows = [("id", "name", "case", "d", "m", "e", "t1 [s]", "exact", "impacts", "schemes")]
    for entry in entries():
        for name, case in entry.cases.items():
            size = f"{len(case.q0)}", f"{count_constraints(entry, case)}", f"{case.restitution:g}", f"{case.t1:g}"
            impacts = "" if case.impacts is None else f"{len(case.impacts)}"
            rows.append((entry.id, entry.name, name, *size, _yes(case.exact), impacts, _covered(entry, [case])))
    print(align_columns(rows))
    return 0


def _show(options: argparse.Namespace) -> int:
    if is_study(options.problem):
        return show_study(options.problem)
    try:
        entry = find(options.problem)
    except UsageError as error:
        if not Path(options.problem).exists():
            raise
        raise UsageError(
            f"{options.problem} holds no study, and is no problem: there is no .study/study.json in it"
        ) from error
    print(f"{entry.id}  {entry.name}: {entry.title}\n")
    for label, paragraph in (("", entry.statement), ("hypotheses", entry.hypotheses), ("source", entry.source)):
        if paragraph:
            lead = f"{label}: " if label else ""
            print(textwrap.fill(lead + paragraph, WIDTH, subsequent_indent="  " if label else "") + "\n")
    for name, case in entry.cases.items():
        size = f"d = {len(case.q0)}, m = {count_constraints(entry, case)}, e = {case.restitution:g}, t1 = {case.t1:g} s"
        impacts = "" if case.impacts is None else f", {len(case.impacts)} impacts"
        print(f"case {name}: {size}{impacts}; exact motion {'known' if case.exact else 'not known'}")
        if case.note:
            print(textwrap.indent(textwrap.fill(case.note, WIDTH - 2), "  "))
        rows: list[tuple[str, ...]] = [("scheme", "position", "velocity", "impulse")]
        for label in _applicable(entry, case):
            rows.append((label, *expected_orders(case, label).values()))
        print(textwrap.indent(align_columns(rows), "  ") + "\n")
    print("Orders predicted as h -> 0: position in the sup norm, velocity in L1, total impulse; '-' where none is.")
    print(f"\nrun it:  jaximpact run {entry.name} --case {shlex.quote(next(iter(entry.cases)))}")
    return 0


def _applicable(entry: Entry, case: Case) -> list[str]:
    """Names of the schemes that apply to the case."""
    fitting = []
    for label, make in SCHEMES.items():
        scheme = make()
        if entry.problem.rubs and not scheme.traits.friction:
            continue
        try:
            scheme.check(entry.problem, case.restitution, count_constraints(entry, case))
        except ValueError:
            continue
        fitting.append(label)
    return fitting


def _covered(entry: Entry, cases: Iterable[Case]) -> str:
    """Which schemes apply to the cases, in words."""
    covered = [_applicable(entry, case) for case in cases]
    all_but_maury = [name for name in SCHEMES if not name.startswith("maury")]
    if not all(set(all_but_maury) <= set(names) for names in covered):
        return ", ".join(sorted(covered, key=len)[-1])
    full = [len(names) == len(SCHEMES) for names in covered]
    return "all" if all(full) else "maury at e=0 only" if any(full) else "not maury"


def _yes(value: object) -> str:
    return "no" if value is None else "yes"
