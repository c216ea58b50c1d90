"""`Study`: an ensemble over a design, computed chunk by chunk into a store that survives
interruptions and can be continued."""

from __future__ import annotations

import os
import sys
import tomllib
import warnings
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self, Unpack

import jax
import numpy as np
from jax.typing import ArrayLike
from tqdm import tqdm

from ..analysis.options import MotionOptions, with_options
from ..jaxtools.argument_checks import check_counts, check_kind, is_number
from ..jaxtools.operating_system import core_count
from ..jaxtools.trace_context import platform
from ..jaxtools.warnings import JaximpactWarning
from ..mechanics.problem import Problem
from ..mechanics.status import FAILURES, Status
from ..mechanics.trials.stops import UntilLike
from ..results.provenance import CHECKS, now, provenance, settings_now, settings_of
from ..results.safe_reading import JsonObject
from ..results.save import SaveLike
from ..simulation.call import Arguments
from .design import Blocks, Design
from .fingerprint import fingerprint, sources
from .reading import Reading, as_store, renamed_argument
from .record import Record
from .report import Summary
from .schema import COMPUTED, DONE, REFUSED, Schema, Variable, check_names, results
from .spec import ENTRIES, Spec, check_entries
from .store import Store, helpful_error
from .system import StudySystem
from .task import BlockResult, Task
from .work import Interrupt, SchedulerLost, drive

CHUNK = 4096  # lanes of a chunk, where their results fit STUDY_CHUNK_BYTES
STUDY_CHUNK_BYTES = 256 * 2**20  # bytes of results in one automatic chunk
NEVER = 2  # of the shares of jax processes: process 0 could not begin


class Study(Reading):
    """An ensemble over a `Design`, in a store.

    On disk the store is a Zarr group that ``xarray.open_zarr`` reads at any time: variables over the dimensions of the
    design, NaN where not computed yet (``done`` says so). It holds everything that defines the study: `Study.open`
    continues it in another process. On processors of one kind the results do not depend, to the last bit, on how often
    it was interrupted, nor on how many processes computed it.

    Args:
        store: a directory, e.g. "study.zarr", or a `Store`. A study that exists in it is continued;
            it must be the same.
        problem: a catalogue name, "module:name", or a `Problem` that is an attribute of a module.
        design: the quantities that vary, and their values.
        q0, v0, t1, h, t0, args, e, scheme, projection, save, until: as in `ensemble`, shared by all lanes where the
            design does not replace them; h is needed for schemes with fixed steps, not for `EventDriven`, whose rows
            are chosen as in `solve`. Every parameter has a value in args, also one that the design replaces. A Save
            function must be defined at the top level of a module.
        case: case of a catalogue problem that supplies q0, v0, t1, args and e where they are not given; by default the
            first.
        chunk: number of lanes computed and written together; by default 4096,
            or fewer to keep their results under 256 MB.

    A lane whose start is not admissible is marked and left out, not an error. Memory: about four chunks of results
    beyond what `ensemble` needs for one, and with an executor one more for each task handed out.

    Raises:
        ValueError, TypeError: an argument is wrong, or the study on disk is another one; the message says what differs.
    """

    _computes: dict[str, str]  # hashes of the jaxprs of the problem's functions in this process
    _results: tuple[tuple[Variable, ...], np.ndarray | None] | None = None

    @renamed_argument("path", "store")
    @with_options(MotionOptions)
    def __init__(
        self,
        store: str | os.PathLike[str] | Store,
        problem: str | Problem,
        design: Design,
        *,
        q0: ArrayLike | None = None,
        v0: ArrayLike | None = None,
        t1: ArrayLike | None = None,
        h: ArrayLike | None = None,
        t0: ArrayLike = 0.0,
        case: str | None = None,
        save: SaveLike = "final",
        until: UntilLike = None,
        chunk: int | None = None,
        **options: Unpack[MotionOptions],
    ) -> None:
        given: Arguments = {"q0": q0, "v0": v0, "t0": t0, "t1": t1, "h": h, **options}
        spec = Spec.of(problem, design, case=case, save=save, until=until, **given)
        self._make(as_store(store), spec, chunk)

    @classmethod
    def from_table(cls, table: JsonObject, store: str | os.PathLike[str] | Store | None = None) -> Self:
        """Makes the study that a table describes, in the form of `from_file`; in ``store`` if given.

        Raises:
            ValueError, TypeError: an entry is unknown, missing or wrong; the message names it.
        """
        check_entries("entry", table, ("store", "chunk", *ENTRIES))
        place = table.get("store", store)
        if place is None:
            raise ValueError("store is missing: the path of a directory")
        if "store" in table:
            check_kind("store", place or None, str, "the path of a directory")
        spec = Spec.from_table({key: value for key, value in table.items() if key not in ("store", "chunk")})
        self = object.__new__(cls)
        self._make(as_store(place if store is None else store), spec, table.get("chunk"))
        return self

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Makes the study that a TOML file describes; ``jaximpact study --help`` shows its entries.

        Modules in the folder of the file can be imported.

        Raises:
            ValueError, TypeError: an entry is unknown, missing or wrong; the message names the file and the entry.
        """
        path = Path(path)
        try:
            table = {"store": f"out/{path.stem}.zarr"} | tomllib.loads(path.read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: not valid TOML: {error}") from None
        folder = str(path.resolve().parent)
        if folder not in sys.path:
            sys.path.append(folder)
        try:
            return cls.from_table(table)
        except TypeError as error:
            raise TypeError(f"{path}: {error}") from error
        except (ValueError, ImportError, OverflowError) as error:
            raise ValueError(f"{path}: {error}") from error

    def _make(self, store: Store, spec: Spec, chunk: int | None) -> None:
        if chunk is not None:
            check_counts(chunk=chunk)
        # from plain data, as another process makes it: what could not be reproduced there raises now
        system, design = StudySystem.of(spec), spec.design
        system.check(design)
        variables, times = results(system, design)
        check_names(design, variables)
        blocks = Blocks.of(design.shape, _automatic_chunk(variables) if chunk is None else int(chunk))
        if {"h", "t0", "t1"} & {key.root for key in design.keys}:
            for block in blocks.numbers():
                system.check_times(design.at(blocks.where(block)))
        self.store = store
        self._system, self._results = system, (variables, times)
        self._record = Record(
            spec=spec,
            chunk=blocks.shape,
            source=sources(system.problem),
            computes=fingerprint(system, design.values),
            settings=settings_now(),
            variables=tuple(x.name for x in variables),
            common_times=times is not None,
            batch=_batch(blocks),
            versions=provenance() | {"created": now()},
        )
        self._computes = self._record.computes or {}
        if self.store.exists:
            self._adopt(self._record)

    # computing

    def run(
        self,
        executor: Executor | None = None,
        *,
        progress: bool | None = None,
        outstanding: int | None = None,
        repair: bool = False,
        unlock: bool = False,
        patience: float = 40.0,
    ) -> Summary:
        """Computes all unfinished chunks.

        Args:
            executor: computes the chunks, e.g. `concurrent.futures.ProcessPoolExecutor` with the "spawn" context or
                ``client.get_executor()`` of a dask cluster; only this process writes. By default this process computes.
            progress: show a bar and a summary; by default on a terminal.
            outstanding: chunks handed to the executor at a time; by default two for each of its workers.
            repair: check all finished chunks first, and recompute damaged ones.
            unlock: take over the lock of a process on another host, known to have ended.
            patience: how long the scheduler of a dask executor may be gone [s].

        With several jax processes (`jax.distributed`), all of which make the same study and the same call, each
        computes and writes its share, to a file system that all of them see. Where one of them fails,
        jax ends the others.

        Returns:
            A `Summary` of the whole study.

        Raises:
            KeyboardInterrupt: after Ctrl-C, once the current chunk is finished; a second one stops at once.
            RuntimeError: a chunk is damaged or cannot be computed, another process computes this study,
                or a dask scheduler
            has been gone for longer than ``patience``. OSError: a chunk cannot be written.
            Finished chunks are never lost.
        """
        if executor is not None and (isinstance(executor, type) or not callable(getattr(executor, "submit", None))):
            raise TypeError(
                "executor must be a concurrent.futures executor, e.g. ProcessPoolExecutor(4), or the get_executor() of "
                "a dask "
                f"client, got {executor!r}"
            )
        if outstanding is not None:
            check_counts(outstanding=outstanding)
        if not is_number(patience) or not patience > 0:
            raise ValueError(f"patience must be a number of seconds > 0, got {patience!r}")
        show = sys.stderr.isatty() if progress is None else progress
        with ExitStack() as stack:
            pending = self._begin(stack, repair, unlock)
            interrupt = stack.enter_context(Interrupt())
            try:
                self._compute(pending, executor, outstanding, show, interrupt, patience)
            except SchedulerLost as error:
                raise SchedulerLost(f"{error}. On disk: {self!r}; continue with {self._continue()}") from None
            if interrupt.asked:
                print(f"jaximpact: {self!r}; continue with {self._continue()}", file=sys.stderr, flush=True)
                raise KeyboardInterrupt
            if jax.process_count() > 1:
                _from_first_process(np.zeros(1, np.uint8))  # all have finished
        summary = self.summary()
        if show:
            print(summary, file=sys.stderr)
        return summary

    def _begin(self, stack: ExitStack, repair: bool, unlock: bool) -> list[int]:
        """Takes the lock, creates the store if necessary, and returns the chunks that this process has to compute."""
        if jax.process_count() == 1:
            return self._prepare(stack, repair, unlock)
        share, error = np.full(len(self.blocks), NEVER, np.uint8), None
        if jax.process_index() == 0:
            try:
                share[:] = 0
                share[self._prepare(stack, repair, unlock)] = 1
            except Exception as problem:
                share[:], error = NEVER, problem
        share = _from_first_process(share)
        if share[0] == NEVER:
            raise error or RuntimeError(f"{self.path}: process 0 could not begin; it says why")
        self._adopt(self._now())
        return np.flatnonzero(share).tolist()[jax.process_index() :: jax.process_count()]

    def _prepare(self, stack: ExitStack, repair: bool, unlock: bool) -> list[int]:
        stack.enter_context(self.store.lock(unlock))
        if self.store.exists:
            remarks = self._adopt(self._now())
            if remarks:
                warnings.warn(f"{self.path} {'; it '.join(remarks)}", JaximpactWarning, stacklevel=4)
        else:
            self.store.create(self._record.plain(), self._schema())
        finished = self._finished_chunks()
        damaged = sorted({x.block for x in self.store.damaged(finished, contents=repair)})
        if damaged and not repair:
            raise RuntimeError(
                f"{self.path}: chunk {damaged[0]} ({self._where(damaged[0])}) is damaged, and {len(damaged) - 1} more; "
                "verify() "
                "lists them, run(repair=True) computes them again"
            )
        for block in damaged:
            self.store.forget(block)
        return sorted(set(self.blocks.numbers()) - finished | set(damaged))

    def _now(self) -> Record:
        """The `Record` of this study as this process would compute it, with the study's own jax settings."""
        with settings_of(self._record.settings):
            computes = fingerprint(self._system, self.design.values)
        versions = provenance() | {"created": now()}
        return replace(self._record, source=sources(self._system.problem), computes=computes, versions=versions)

    def _adopt(self, new: Record) -> list[str]:
        """Raises unless the stored study has the record ``new`` of this process; takes over its chunk and batch sizes,
        and returns remarks on other differences."""
        stored = self._stored_chunks()
        lines = stored.differences(new)
        if lines:
            raise ValueError(
                f"{self.path} holds another study: continue it as it is with Study.open, or choose another path. It "
                "differs "
                "in\n  " + "\n  ".join(lines)
            )
        self._record = stored
        self._computes = new.computes or {}
        return stored.remarks(new)

    def _schema(self) -> Schema:
        """Arrays and attributes with which the store is created."""
        if self._results is None:
            raise FileNotFoundError(f"{self.path} is gone since the study was opened")
        variables, times = self._results
        words = {key.replace(" ", "_"): text for key, text in self.describe().items()}
        title = {"title": f"jaximpact study of {self.spec.problem}"}
        return Schema(self.design, self.blocks, (*variables, DONE), times, title | words)

    def _compute(
        self,
        pending: list[int],
        executor: Executor | None,
        outstanding: int | None,
        show: bool,
        interrupt: Interrupt,
        patience: float,
    ) -> None:
        self.store.blank(0, self._record.variables)  # raises for a missing array before anything is computed
        lanes = self.blocks.lanes
        done = self.design.size - sum(map(lanes, pending))
        bar = tqdm(total=self.design.size, initial=done, unit="lane", unit_scale=True, disable=not show, desc=self.path)

        def keep(result: BlockResult) -> None:
            self._write(result)
            bar.update(lanes(result.number))

        with bar:
            drive((self._task(block) for block in pending), executor, outstanding, keep, interrupt, patience)

    def _task(self, block: int) -> Task:
        record = self._record
        spec = self.spec.for_lanes(self.blocks.where(block))
        settings = record.settings | settings_now(CHECKS)
        return Task(block, spec, record.batch, record.common_times, settings, (self._computes, provenance()))

    def _write(self, result: BlockResult) -> None:
        """Writes the results of a chunk, with facts that summaries need without reading the arrays."""
        blank = self.store.blank(result.number, self._record.variables)
        arrays = dict(blank if result.arrays is None else result.arrays)
        found, expected = ({name: (x.shape, x.dtype) for name, x in some.items()} for some in (arrays, blank))
        if found != expected:
            odd = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
            raise RuntimeError(
                f"chunk {result.number}: {odd[0]} came out as {found.get(odd[0])}, the store has "
                f"{expected.get(odd[0])}: does the "
                "worker have the same versions of jaximpact and of the problem?"
            )
        status = arrays["status"]
        # last: who reads meanwhile never sees it before the data
        arrays[DONE.name] = np.where(result.refused, REFUSED, COMPUTED).astype(DONE.dtype)
        bits = {bit.name: int(np.count_nonzero(status & int(bit))) for bit in Status if bit}
        facts = {
            "lanes": len(status),
            "failed": int(np.count_nonzero((status & int(FAILURES)) | result.refused)),
            "bits": {name: n for name, n in bits.items() if n},
            "refused": int(result.refused.sum()),
            "steps": result.steps,
            "seconds": round(result.seconds, 6),
            "finished": now(),
            "versions": result.origin,
            "reasons": result.reasons,
        }
        try:
            self.store.write(result.number, arrays, facts)
        except OSError as error:
            raise helpful_error(
                error,
                f"chunk {result.number} ({self._where(result.number)}) could not be written to {self.path}",
                "the finished chunks are safe; free space or permit writing, then run the study again to continue",
            ) from error

    def _continue(self) -> str:
        return f"jaximpact.Study.open({self.path!r}).run(), or `jaximpact resume {self.path}`"


def _automatic_chunk(variables: tuple[Variable, ...]) -> int:
    """Number of lanes whose results fit STUDY_CHUNK_BYTES."""
    lane = sum(np.prod(x.shape, dtype=float) * x.dtype.itemsize for x in variables)
    return int(np.clip(STUDY_CHUNK_BYTES // lane, 1, CHUNK))


def _batch(blocks: Blocks) -> int:
    """Number of lanes computed at once: on a CPU a chunk is divided into as many batches as there are cores, on an
    accelerator it is one batch."""
    lanes = int(np.prod(blocks.shape))
    return -(-lanes // core_count()) if platform() == "cpu" else lanes


def _from_first_process(value: np.ndarray) -> np.ndarray:
    """Returns the ``value`` of process 0 in every jax process; all processes wait for each other here."""
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.broadcast_one_to_all(value))
