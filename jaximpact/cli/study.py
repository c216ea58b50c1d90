"""The commands `study` and `resume`: compute a study from a file, continue it, show it."""

from __future__ import annotations

import argparse
import shlex
import sys
import textwrap
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from ..jaxtools.optional_packages import import_optional
from ..study import Study, ZarrStore
from ..study.spec import EXAMPLE
from .output import align_columns, print_facts, shown

SHOWN = 10  # failed lanes listed
STUDY = f"""\
Compute the study that a TOML file describes, into a Zarr store that xarray reads; where it was begun before, continue
it. It may be stopped at any instant: finished chunks are kept, and the end result is the same to the last bit.

examples:
  jaximpact study experiments/gallery/studies/impact_oscillator.toml
  jaximpact study big.toml --dask tcp://10.0.0.5:8786       on the workers of a dask cluster

a file:
{textwrap.indent(EXAMPLE, "  ")}
"""
RESUME = """\
Continue a study from its store, which holds everything it needs.

examples:
  jaximpact resume out/impact_oscillator.zarr
  jaximpact resume out/impact_oscillator.zarr --repair      check all finished chunks, compute damaged ones again
"""


def add_commands(commands: argparse._SubParsersAction, text: Callable[[str], dict]) -> None:
    """Adds the parsers of `study` and `resume`."""
    command = commands.add_parser("study", help="compute a study from a file", **text(STUDY))
    command.add_argument("file", type=Path, help="TOML file")
    _options(command)
    command.set_defaults(command=lambda options: _compute(Study.from_file(options.file), options))

    command = commands.add_parser("resume", help="continue a study", **text(RESUME))
    command.add_argument("directory", type=Path, help="store of the study")
    _options(command)
    command.set_defaults(command=lambda options: _compute(Study.open(options.directory), options))


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dask", metavar="ADDRESS", help="scheduler of a dask cluster whose workers compute")
    command.add_argument("--repair", action="store_true", help="check finished chunks, compute damaged ones again")
    command.add_argument(
        "--unlock", action="store_true", help="take over from a process on another host that has ended"
    )


def _compute(study: Study, options: argparse.Namespace) -> int:
    """Runs a study to its end; returns 1 if lanes failed or it could not be finished, 130 after Ctrl-C."""
    try:
        with ExitStack() as stack:
            executor = None
            if options.dask:
                client = stack.enter_context(import_optional("distributed", "--dask").Client(options.dask))
                executor = client.get_executor()
            print(repr(study))
            summary = study.run(executor, repair=options.repair, unlock=options.unlock)
    except KeyboardInterrupt:
        return 130
    except (RuntimeError, ImportError) as error:
        print(f"jaximpact: error: {error}", file=sys.stderr)
        return 1
    print(summary)
    print(f"read it:  xarray.open_zarr({study.path!r}); jaximpact show {shlex.quote(study.path)}")
    return 1 if summary.failed else 0


def is_study(path: str) -> bool:
    return ZarrStore(path).exists


def show_study(path: str) -> int:
    """Shows progress, definition, provenance and failed lanes of a study."""
    study = Study.open(path)
    summary = study.summary()
    print(f"{study!r}\n")
    print_facts(study.describe())
    print(f"\n{summary}")
    failed = study.failed()
    if failed:
        rows = [("index", *study.design.values, "status", "failed at [s]")]
        for lane in failed[:SHOWN]:
            values = map(shown, lane.values.values())
            rows.append((", ".join(map(str, lane.index)), *values, lane.status, f"{lane.failed_at:.6g}"))
        more = f"\n... and {len(failed) - SHOWN} more: Study.open({path!r}).failed()" if len(failed) > SHOWN else ""
        print(f"\n{align_columns(rows)}{more}\n\nthe first alone:  {failed[0].rerun}")
        if failed[0].reason:
            print(failed[0].reason)
    if summary.computed < study.design.size:
        print(f"\ncontinue it:  jaximpact resume {shlex.quote(path)}")
    return 0
