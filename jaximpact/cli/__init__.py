"""The command line: lists, shows, runs and converges catalogue problems, and computes studies."""

from __future__ import annotations

import argparse
import io
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

from .. import __version__
from ..jaxtools.warnings import JaximpactWarning
from . import converge, run, show, study
from .shared import UsageError, text

MAIN = """\
Mechanical systems with impacts, in JAX: benchmark problems from the command line.

  jaximpact list                                what there is
  jaximpact show bouncing-ball                  one problem: statement, cases, what theory predicts
  jaximpact run bouncing-ball --h 1e-3          compute one motion, or an ensemble, and draw it
  jaximpact converge bouncing-ball              errors and observed orders as h -> 0
  jaximpact study FILE.toml                     an ensemble over a design, in a store that can be continued
  jaximpact resume out/study.zarr               continue it

Computations are in float64. Results go to out/<problem>; --out chooses another folder.
Exit status: 0 done, 1 a motion failed (the cause is printed), 2 wrong usage.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    if argv is None:
        # a process of our own: threads too compute in float64
        jax.config.update("jax_enable_x64", True)
        if isinstance(sys.stdout, io.TextIOWrapper):  # a character that the terminal does not know stops no computation
            sys.stdout.reconfigure(errors="replace")
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        options = _parser().parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    options.line = shlex.join(["jaximpact", *argv])
    with jax.enable_x64(True), _brief_warnings():
        try:
            status = options.command(options)
            sys.stdout.flush()
            return status
        except BrokenPipeError:  # the reader of a pipe has left
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except (UsageError, ValueError, TypeError, OSError) as error:
            print(f"jaximpact: error: {error}", file=sys.stderr)
            return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jaximpact", **text(MAIN))
    parser.add_argument("--version", action="version", version=f"jaximpact {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    show.add_commands(commands)
    run.add_command(commands)
    converge.add_command(commands)
    study.add_commands(commands, text)
    return parser


@contextmanager
def _brief_warnings() -> Iterator[None]:
    """Context in which the library's warnings appear as one line each on stderr."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", JaximpactWarning)
        usual = warnings.showwarning

        def tell(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, JaximpactWarning):
                print(f"jaximpact: warning: {message}", file=sys.stderr)
            else:
                usual(message, category, *where, **more)

        warnings.showwarning = tell
        yield
