"""Command line that checks a simulator against the conformance suite.

python -m jaximpact.conformance --adapter mine.py
python -m jaximpact.conformance --own --cases zeno corner
python -m jaximpact.conformance --own --friction
python -m jaximpact.conformance --list
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .cases import cases, frictional_cases, get
from .runner import Adapter, adapters_of_jaximpact, run


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m jaximpact.conformance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--adapter",
        nargs="+",
        default=[],
        metavar="FILE",
        help="files with final_state and jacobian; FILE:VARIANT for one of several",
    )
    made.add_argument("--own", action="store_true", help="the schemes of this library")
    made.add_argument("--cases", nargs="+", metavar="NAME", help="all without friction by default")
    made.add_argument("--friction", action="store_true", help="the cases with friction")
    made.add_argument(
        "--python", default=sys.executable, help="the interpreter that the adapters run in; it needs no jaximpact"
    )
    made.add_argument(
        "--out", type=Path, default=Path("out/conformance"), help="folder for table.md, table.csv, picture.png"
    )
    made.add_argument(
        "--limit",
        type=float,
        default=300.0,
        help="seconds a case may take at each step size, until the adapter is stopped, and begun anew behind it",
    )
    made.add_argument("--jobs", type=int, default=1, help="adapters at a time")
    made.add_argument("--list", action="store_true", help="the cases and what they test")
    made.add_argument("--show", metavar="NAME", help="a case in formulas and numbers")
    return made


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    known = cases() | frictional_cases()
    unknown = [
        name for name in [*(options.cases or ()), *([options.show] if options.show else [])] if name not in known
    ]
    if unknown:
        parser().error(f"no case {unknown[0]!r}; there are {', '.join(known)}")
    if options.list:
        print("\n".join(f"{case.name:15} {case.title}" for case in known.values()))
        return 0
    if options.show:
        print(describe(options.show))
        return 0
    adapters = [_adapter(text, options.python) for text in options.adapter]
    adapters += adapters_of_jaximpact() if options.own else []
    if not adapters:
        parser().error("give --adapter FILE, or --own for the schemes of this library")
    missing = [
        adapter.module for adapter in adapters if adapter.module.endswith(".py") and not Path(adapter.module).is_file()
    ]
    if missing:
        parser().error(f"there is no file {missing[0]}")
    names = options.cases or (list(frictional_cases()) if options.friction else None)
    report = run(adapters, names, limit=options.limit, jobs=options.jobs, progress=True)
    print(report.markdown())
    print(f"written: {report.save(options.out)}", file=sys.stderr)
    return 0 if any(column.cells for column in report.columns) else 1


def describe(name: str) -> str:
    """Text about the case ``name`` for the author of an adapter: its formulas and parameters,
    and the exact state and Jacobian."""
    case = get(name)
    lines = [f"{case.name}: {case.title}", *([f"from {case.source}"] if case.source else []), ""]
    lines += [
        f"mass M = {[list(row) for row in case.mass]}" if case.mass else "mass M = 1",
        f"force h = {list(case.force)}",
    ]
    lines += [
        f"gaps >= 0: {list(case.gaps)}",
        *([f"slip = {[list(x) for x in case.slip]}, friction mu = {list(case.friction)}"] if case.slip else []),
        f"q(0) = {list(case.position)}, v(0) = {list(case.velocity)}, t1 = {case.t1:g}",
    ]
    lines += ["parameters: " + ", ".join(f"{key} = {x:g}" for key, x in case.parameters.items()), ""]
    width = max(map(len, case.columns)) + 1
    lines.append("".join(f"{x:>22}" for x in ("", "value", *(f"d/d{column}" for column in case.columns)))[22 - width :])
    for row, value, slopes in zip(case.rows, *case.exact, strict=True):
        lines.append(f"{row:<{width}}" + "".join(f"{x:22.15g}" for x in (value, *slopes)))
    return "\n".join(lines)


def _adapter(text: str, python: str) -> Adapter:
    path, _, variant = text.partition(".py:")
    file = Path(f"{path}.py" if variant else path).resolve()
    return Adapter(f"{file.stem} {variant}".strip(), str(file), variant, python)


if __name__ == "__main__":
    sys.exit(main())
