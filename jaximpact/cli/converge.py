"""The command `converge`: errors and observed orders as h -> 0 or over tolerances,
compared with the orders that theory predicts."""

from __future__ import annotations

import argparse
import sys
import time

import jax
import numpy as np

from ..analysis.convergence import convergence
from ..mechanics.method_names import projection_from_name, scheme_from_name
from ..plots import ROUND_OFF, draw
from . import shared
from .output import align_columns, file_list, print_facts, write_csv, write_json

CONVERGE = f"""\
Compute one motion with several numbers of steps, measure its errors against the exact motion (the finest run where
none is known) in the norms in which the schemes converge - positions uniformly, velocities in L1, impulses in
total - and print observed orders beside those predicted. Writes convergence.csv, .json and .png.

example:
  jaximpact converge bouncing-ball --case e=1 --steps 101 307 1009
  jaximpact converge shaw-holmes --scheme event-driven --rtols 1e-5 1e-7 1e-9

Prefer prime step counts: steps aligned with impact times are more accurate than the theory allows in general.

{shared.CHOICES}"""


def add_command(commands: argparse._SubParsersAction) -> None:
    """Adds the parser of `converge`."""
    command = commands.add_parser("converge", help="errors and orders as h -> 0", **shared.text(CONVERGE))
    shared.add_shared(command)
    command.add_argument(
        "--steps", type=int, nargs="+", metavar="N", help="numbers of steps, increasing (default: primes)"
    )
    command.add_argument(
        "--rtols",
        type=float,
        nargs="+",
        metavar="R",
        help="tolerances of event-driven, in place of steps (default: decades)",
    )
    command.add_argument(
        "--graph",
        action="store_true",
        help="also the distance of the graphs of velocities, in seconds, in which a late impact is off by its delay",
    )
    command.set_defaults(command=_converge)


def _converge(options: argparse.Namespace) -> int:
    entry = shared.find(options.problem)
    name, case, t1, e, exact, impulse = shared.motion_of(entry, options)
    chosen = shared.scheme_of(entry, options)
    scheme, projection = scheme_from_name(chosen), projection_from_name(options.projection)
    out = shared.folder(options, entry)
    start = time.perf_counter()
    try:
        result = convergence(
            entry.problem, case.q0, case.v0, t1=t1, steps=options.steps, rtols=options.rtols, exact=exact,
            impulse=impulse, scheme=scheme, projection=projection, args=case.args, e=e, graph=options.graph,
            **shared.given_friction(options),
        )  # fmt: skip
    except RuntimeError as error:
        print(f"jaximpact: {error}", file=sys.stderr)
        return 1
    seconds = time.perf_counter() - start
    heading = f"{shared.motion_name(entry, name, e)}: {chosen}"
    observed = result.orders()
    unchanged = e == case.restitution and not shared.given_friction(options) and t1 <= case.t1
    expected = shared.expected_orders(case, chosen) if unchanged else dict.fromkeys(observed, "-")
    expected = dict.fromkeys(observed, "-") | expected
    of_tolerance = [name for name in ("rtols", "estimate") if getattr(result, name) is not None]
    measured = (*of_tolerance, "steps", "h", *observed, "penetration", "residual")
    columns = {label: np.asarray(getattr(result, label)) for label in measured}
    files = [write_csv(out / "convergence.csv", columns)]
    files += shared.picture(lambda: draw(result, out / "convergence.png", title=heading))
    files.append(out / "convergence.json")
    settings = {"problem": entry.name, "case": name, "t1": t1, "e": e, "scheme": chosen} | shared.given_friction(
        options
    )
    content = {
        "settings": settings | {"projection": options.projection, "backend": jax.default_backend()},
        "reference": result.reference,
        "error of the reference": dict(result.floor),
        "errors": columns,
        "orders": {"observed": observed, "expected": expected},
        "seconds": seconds,
        "files": files,
    }
    write_json(files[-1], options.line, content)
    print(heading)
    print(result.table())
    if exact is None:
        print(f"exact motion not known{shared.why_unknown(case, t1, e)}")
    print()
    rows = [("order", "observed", "expected")]
    for label, value in observed.items():
        rounding = np.max(columns[label]) < ROUND_OFF
        word = "exact" if rounding else f"{value:.2f}" if np.isfinite(value) else "-"
        rows.append((label, word, expected[label]))
    print(align_columns(rows))
    print()
    print_facts({"time": f"{seconds:.2f} s", "written": file_list(files)})
    return 0
