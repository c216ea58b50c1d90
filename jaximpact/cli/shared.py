"""Shared by all commands: problem, case and methods that the user names, and where results go."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ..catalogue import Case, Entry, get
from ..mechanics.method_names import PROJECTIONS, SCHEMES, suggestion
from ..mechanics.motion import OF_FRICTION
from ..simulation.arguments import choose_methods

CHOICES = """\
what to choose:
  --scheme paoli-schatzman           position level, every e, order 1: the default, closest to the theory;
                                     with joints moreau-jean is
           paoli-schatzman-explicit  the same with gradients at the old position: better in lasting contact with
                                     curved walls
           maury                     velocity level, e = 0 only: positions stay admissible for convex constraints
           maury-half-kick           the same, second order in lasting contact
           moreau-jean               velocity level, every e: the scheme of most engineering codes
           event-corrected           impacts are located: second order, with derivatives
           event-driven              substeps of order 8 by a tolerance, impacts are located: the most digits
  --projection active-set            exact, for few constraints: the default
               projected-gradient    first order, for many constraints
               admm                  for ill-conditioned contacts
"""


class UsageError(Exception):
    """A request of the user that cannot be met; the message says why."""


def text(description: str) -> dict:
    """Keyword arguments that give a parser this description, with its line breaks."""
    return {"formatter_class": argparse.RawDescriptionHelpFormatter, "description": description}


def add_shared(command: argparse.ArgumentParser) -> None:
    command.add_argument("problem", help="name or id, e.g. bouncing-ball or B01; `jaximpact list` has them all")
    command.add_argument("--case", metavar="NAME", help="case of the problem (default: its first)")
    command.add_argument("--t1", type=float, metavar="T", help="final time [s] (default: that of the case)")
    command.add_argument("--e", type=float, metavar="E", help="restitution in [0, 1] (default: that of the case)")
    command.add_argument(
        "--friction", type=float, metavar="MU", help="coefficient of friction >= 0 (default: the problem's)"
    )
    command.add_argument(
        "--static-friction", type=float, metavar="MU", help="that of contacts at rest (default: the problem's)"
    )
    command.add_argument(
        "--scheme",
        metavar="NAME",
        help=f"{', '.join(SCHEMES)} (default: the first, with joints moreau-jean), or one of your own, module:Scheme",
    )
    command.add_argument(
        "--projection",
        default="active-set",
        metavar="NAME",
        help=f"{', '.join(PROJECTIONS)} (default: the first), or one of your own, module:Solver",
    )
    command.add_argument("--out", type=Path, metavar="DIR", help="folder to write to (default: out/<problem>)")


def find(name: str) -> Entry:
    try:
        return get(name)
    except KeyError as error:
        raise UsageError(error.args[0]) from None


class MotionChoice(NamedTuple):
    """Motion to compute: case name, case, final time, restitution, and exact motion and
    impulse if the case has them."""

    name: str
    case: Case
    t1: float
    e: float
    exact: Callable | None
    impulse: np.ndarray | None


def motion_of(entry: Entry, options: argparse.Namespace) -> MotionChoice:
    """The motion that the command line's options describe."""
    name = options.case or next(iter(entry.cases))
    if name not in entry.cases:
        raise UsageError(f"{entry.name} has no case {name!r}; {suggestion(name, entry.cases)}")
    case = entry.cases[name]
    t1 = case.t1 if options.t1 is None else options.t1
    e = case.restitution if options.e is None else options.e
    known = e == case.restitution and not given_friction(options) and t1 <= case.t1
    return MotionChoice(
        name, case, t1, e, case.exact if known else None, case.impulse if known and t1 == case.t1 else None
    )


def given_friction(options: argparse.Namespace) -> dict:
    """Coefficients of friction that the command line gives, by name."""
    return {name: x for name in OF_FRICTION if (x := getattr(options, name, None)) is not None}


def scheme_of(entry: Entry, options: argparse.Namespace) -> str:
    """Name of the scheme that the command line asks for, or of the one that `solve` takes for the problem."""
    if options.scheme is not None:
        return options.scheme
    usual = choose_methods(None, None, entry.problem)[0]
    return next(name for name, make in SCHEMES.items() if make() == usual)


def motion_name(entry: Entry, name: str, e: float) -> str:
    return f"{entry.title}, {name}" + ("" if e == entry.cases[name].restitution else f" with e = {e:g}")


def why_unknown(case: Case, t1: float, e: float) -> str:
    if case.exact is None:
        return ""
    if e != case.restitution:
        return f": it is for e = {case.restitution:g}"
    return f" beyond t = {case.t1:g} s" if t1 > case.t1 else ""


def count_constraints(entry: Entry, case: Case) -> int:
    return entry.problem.count(0.0, jnp.asarray(case.q0), case.args)


def expected_orders(case: Case, label: str) -> dict[str, str]:
    """Orders predicted by theory, in words."""
    orders = case.orders.get(label)
    if orders is None:
        return dict.fromkeys(("position", "velocity", "impulse"), "-")
    words = {name: "-" if x is None else f"{x:g}" for name, x in vars(orders).items() if name != "exact"}
    return words | ({"position": "exact"} if orders.exact else {})


def folder(options: argparse.Namespace, entry: Entry) -> Path:
    out = options.out or Path("out") / entry.name
    out.mkdir(parents=True, exist_ok=True)
    return out


def picture(draw: Callable[[], Path]) -> list[Path]:
    """The picture's path in a list; an empty list and a remark if matplotlib is missing."""
    try:
        return [draw()]
    except ImportError as error:
        print(f"jaximpact: no picture: {error}", file=sys.stderr)
        return []
