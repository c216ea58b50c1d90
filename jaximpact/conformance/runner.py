"""Runner of the suite: each adapter in a process of its own, with a time limit for each case."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

import numpy as np

from ..results.safe_reading import JsonObject
from .cases import Case, get, relative_error
from .cases import cases as all_cases
from .report import COARSE, FINE, Cell, Column, Report

WORKER = Path(__file__).with_name("worker.py")
OWN = "jaximpact.conformance.own"


class Adapter(NamedTuple):
    """An adapter to run: heading, module (or file), variant, and the Python interpreter to run it in."""

    title: str
    module: str
    variant: str = ""
    python: str = sys.executable


def adapters_of_jaximpact() -> tuple[Adapter, ...]:
    """Adapters of this library's schemes, with corrected derivatives and with those of plain
    automatic differentiation."""
    corrected = [
        Adapter(f"jaximpact {name}", OWN, f"{name} corrected") for name in ("PaoliSchatzman", "MoreauJean", "Maury")
    ]
    plain = [
        Adapter(f"{name}, plain AD", OWN, f"{name} discrete") for name in ("PaoliSchatzman", "MoreauJean", "Maury")
    ]
    located = [Adapter(f"jaximpact {name}", OWN, f"{name} corrected") for name in ("EventCorrected", "EventDriven")]
    return (*corrected, *located, *plain)


def run(
    adapters: Iterable[Adapter | str | os.PathLike[str]],
    names: Sequence[str] | None = None,
    *,
    limit: float = 300.0,
    jobs: int = 1,
    progress: bool = False,
) -> Report:
    """Runs adapters through the cases.

    Args:
        adapters: `Adapter`, or paths of files.
        names: names of the cases, by default all without friction; those with friction are `frictional_cases`.
        limit: seconds that an adapter may take to load, and for one case at one step size. An adapter that takes longer
            is stopped, and restarted with the next case.
        jobs: number of adapters run at a time.
        progress: report when an adapter is done.

    Returns:
        `Report`. Errors, crashes and timeouts of an adapter are recorded in it; the other cases are not lost.

    Raises:
        KeyError: there is no such case. FileNotFoundError: there is no such file.
    """
    chosen = [get(name) for name in (names or all_cases())]
    made = [_adapter(x) for x in adapters]

    def one(adapter: Adapter) -> Column:
        column = measure(adapter, chosen, limit)
        if progress:
            print(f"{column.title}: {column.summary}", file=sys.stderr, flush=True)
        return column

    with ThreadPoolExecutor(jobs) as pool:
        columns = tuple(pool.map(one, made))
    return Report(tuple(case.name for case in chosen), columns)


def _adapter(given: Adapter | str | os.PathLike[str]) -> Adapter:
    if isinstance(given, Adapter):
        return given
    path = Path(given).resolve()
    if not path.is_file():
        raise FileNotFoundError(f"no adapter {path}: give the file that holds final_state and jacobian")
    return Adapter(path.stem, str(path))


def measure(adapter: Adapter, chosen: Sequence[Case], limit: float) -> Column:
    """Runs one adapter on the ``chosen`` cases at the fine step size, and on some at the coarse one too.

    These are the cases in which only two step sizes tell whether the Jacobian converges (`Cell.open`).
    """
    cells: dict[str, Cell] = {}
    about: JsonObject = {}
    wanted = list(chosen)
    for h in (FINE, COARSE):
        while wanted:
            at = None  # the case in work
            for line in launch(adapter, [_job(case, h) for case in wanted], limit):
                if "case" not in line:
                    about |= line
                elif line.get("begins"):
                    at = line["case"]
                else:
                    at = None
                    if not line.get("skipped"):
                        cells[line["case"]] = _cell(cells.get(line["case"], Cell()), line, h)
            if at is None:
                break
            # the process ended in this case: the others go on in a new one
            cells[at] = cells.get(at, Cell())._replace(message=about.pop("stopped", "no answer"))
            wanted = wanted[[case.name for case in wanted].index(at) + 1 :]
        wanted = [case for case in chosen if case.name in cells and cells[case.name].open]
    return Column(adapter.title, cells, about)


def _job(case: Case, h: float) -> JsonObject:
    names: tuple[str, ...] = (
        "name", "title", "tags", "mass", "force", "gaps", "parameters", "position", "velocity", "t1", "impacts"
    )  # fmt: skip
    names = (*names, "slip", "friction") if case.slip else names
    return {"case": {name: getattr(case, name) for name in names}, "h": h, "steps": case.steps(h)}


def _cell(cell: Cell, line: JsonObject, h: float) -> Cell:
    cell = cell._replace(seconds=cell.seconds + line["seconds"], message=line.get("error", ""))
    exact = get(line["case"]).exact
    try:
        state = [relative_error(x, exact.state) for x in line.get("states", ())]
        jacobian = [relative_error(x, exact.jacobian) for x in line.get("jacobians", ())]
    except (ValueError, TypeError) as error:
        return cell._replace(message=f"the answer has another shape: {error}")
    states = dict(cell.states) | ({h: float(np.median(state))} if state else {})
    return cell._replace(
        states=states, errors=dict(cell.errors) | ({h: float(np.median(jacobian))} if jacobian else {})
    )


def launch(adapter: Adapter, jobs: list[JsonObject], limit: float) -> Iterator[JsonObject]:
    """Runs ``jobs`` by an adapter in a worker process and yields the lines of JSON that it writes, decoded,
    as they come.

    A worker that takes longer than ``limit`` [s] for a line is stopped; if it is stopped or fails,
    the last line says why.
    """
    command = [adapter.python, str(WORKER), adapter.module, adapter.variant]
    package = str(Path(__file__).parents[2])
    # a module beside the package is found; an interpreter of its own keeps its own packages
    paths = [os.environ.get("PYTHONPATH", ""), *([package] if adapter.python == sys.executable else [])]
    environment = {"JAX_PLATFORMS": "cpu"} | os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+") as err:
        json.dump(jobs, given)
        given.seek(0)
        process = subprocess.Popen(
            command, stdin=given, stdout=subprocess.PIPE, stderr=err, text=True, env=environment, start_new_session=True
        )
        with process:
            try:
                for line in _lines_within(limit, process.stdout):
                    yield json.loads(line)
                if process.wait():
                    err.seek(0)
                    said = (err.read().strip().splitlines() or ["without a word"])[-1][:200]
                    yield {"stopped": f"exit code {process.returncode}: {said}"}
            except TimeoutError:
                yield {"stopped": f"time limit of {limit:g} s"}
            finally:
                _kill(process)


def _kill(process: subprocess.Popen) -> None:
    """Ends a process and, where process groups exist, its children, which would otherwise keep its stream open."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def _lines_within(limit: float, stream: Any) -> Iterator[str]:
    """Complete lines of a stream; TimeoutError if a line, or the end, takes longer than the limit."""
    lines: SimpleQueue[str] = SimpleQueue()

    def read() -> None:
        for line in stream:
            lines.put(line)
        lines.put("")

    Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=limit)
        except Empty:
            raise TimeoutError from None
        if not line.endswith("\n"):  # the end, or cut off
            return
        yield line
