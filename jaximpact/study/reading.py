"""`Reading`: a stored study, complete or not: its definition, results so far, summaries and single lanes."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import jax
import numpy as np

from ..analysis.checks import StudyLike
from ..jaxtools.argument_checks import as_tuple, check_kind, is_whole
from ..jaxtools.warnings import JaximpactWarning
from ..mechanics.method_names import suggestion
from ..mechanics.problem import Problem
from ..mechanics.status import FAILURES, Status
from ..results import Solution
from ..results.provenance import settings_of
from ..results.safe_reading import JsonObject, first_mismatch, printable
from ..results.save import SaveLike
from ..simulation.solve import solve
from .design import Blocks, Design
from .importing import origin
from .lanes import as_solution
from .record import Record
from .report import REFUSED_WORD, FailedLane, Summary
from .schema import DONE, REFUSED
from .spec import Spec
from .store import Damage, Store
from .system import StudySystem
from .zarr_store import ZarrStore

if TYPE_CHECKING:
    import xarray

    from ..simulation.call import Arguments

F = TypeVar("F", bound=Callable)
# facts stored with a finished chunk, which need no reading of its arrays
FACTS = {"lanes": int, "failed": int, "bits": {str: int}, "refused": int, "steps": int, "seconds": int | float}


def renamed_argument(old: str, new: str) -> Callable[[F], F]:
    """Decorator: the argument ``new`` is also accepted under its old name ``old``, with a warning."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            if old in kwargs:
                warnings.warn(f"{old} is called {new} now: write {new}=...", DeprecationWarning, stacklevel=2)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return cast(F, call)

    return decorate


def as_store(store: str | os.PathLike[str] | Store) -> Store:
    """A `ZarrStore` for a path; a `Store` is returned unchanged."""
    if isinstance(store, Store):
        return store
    check_kind("store", store, str | os.PathLike, "the path of a directory, or a Store")
    return ZarrStore(store)


class Reading(StudyLike):
    """A study in its store: its definition, its results so far, and single lanes.

    Attributes:
        store: the store that holds it.
        spec: definition of the study, as plain data.
        blocks: partition of its lanes into chunks.
    """

    store: Store
    _record: Record

    @classmethod
    @renamed_argument("path", "store")
    def open(cls, store: str | os.PathLike[str] | Store) -> Self:
        """Opens the study in a store, with everything that defines it.

        Safe with studies from others: opening, `summary`, `failed`, `verify`, `describe` and `dataset` run no code of
        the study and read nothing outside its directory. `run` and `lane` compute, and for that import the module of
        the problem that the study names, telling which module and from where:
        call them only on studies whose authors you trust to run code.

        Raises:
            FileNotFoundError: there is no study. ValueError: it is damaged, of another format, or contains something
                that no study contains (links, other kinds of arrays).
        """
        self = object.__new__(cls)
        self.store = as_store(store)
        self._record = self._stored_chunks()
        return self

    def _stored_chunks(self) -> Record:
        return Record.read(*self.store.record(), self.path)

    def __repr__(self) -> str:
        size = " × ".join(f"{name} {n}" for name, n in zip(self.dims, self.shape, strict=True))
        done = f"{len(self._finished_chunks())} of {len(self.blocks)} chunks finished"
        return f"{type(self).__name__}({self.path!r}, {self.spec.problem!r}, {size}; {done})"

    @property
    def path(self) -> str:
        """Name of the store: its path if it is on disk."""
        return self.store.name

    @property
    def spec(self) -> Spec:
        """Definition of the study, as plain data."""
        return self._record.spec

    @property
    def design(self) -> Design:
        """The quantities that vary, and their values."""
        return self.spec.design

    @property
    def blocks(self) -> Blocks:
        """Partition of the lanes into chunks."""
        return self._record.blocks

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions of the design."""
        return self.design.dims

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of lanes along each dimension of the design."""
        return self.design.shape

    def describe(self) -> dict[str, str]:
        """Description of the study in words."""
        return self._record.describe()

    # results

    def dataset(self) -> xarray.Dataset:
        """Results so far as an `xarray.Dataset`, read lazily from a store on disk.

        A file of results that is missing is NaN to xarray, which a warning says.
        """
        self._need_store()
        lost = self._lost()
        if lost:
            warnings.warn(lost, JaximpactWarning, stacklevel=2)
        found = self.store.dataset()
        named = {"coordinate": "q", "constraint": "impulse"}
        names = {
            dim: found[name].attrs.get("names") for dim, name in named.items() if name in found and dim in found.dims
        }
        return found.assign_coords({dim: list(given) for dim, given in names.items() if given})

    def summary(self) -> Summary:
        """Progress and statistics so far, from the records of the finished chunks."""
        self._need_store()
        facts = [self._facts(block) for block in sorted(self._finished_chunks())]
        return Summary.of(facts, self.design.size, len(self.blocks))

    def wall_time(self) -> np.ndarray:
        """Computing time of each chunk in seconds, in the order of the chunks; NaN for unfinished chunks."""
        self._need_store()
        seconds = np.full(len(self.blocks), np.nan)
        for block in self._finished_chunks():
            seconds[block] = self._facts(block)["seconds"]
        return seconds

    def verify(self) -> list[Damage]:
        """Files of finished chunks that are missing, truncated or changed; empty for an intact study."""
        self._need_store()
        return self.store.damaged(self._finished_chunks(), contents=True)

    def failed(self) -> list[FailedLane]:
        """Reports of the lanes that have failed so far, in the order of the design."""
        return sorted(self._iter_failed(), key=lambda lane: lane.index)

    def _iter_failed(self) -> Iterator[FailedLane]:
        self._need_store()
        self.store.check()
        for block in sorted(self._finished_chunks()):
            facts = self._facts(block)
            if not facts["failed"]:
                continue
            try:
                found = self.store.read(block, ("status", "failed_at", DONE.name))
            except FileNotFoundError:  # not of this chunk alone
                raise
            except (ValueError, RuntimeError, OSError) as error:
                raise RuntimeError(
                    f"{self.path}: chunk {block} ({self._where(block)}) is damaged ({error}); run(repair=True) "
                    "computes it again"
                ) from error
            status, failed_at, done = found.values()
            for inner in map(tuple, np.argwhere((status & int(FAILURES) != 0) | (done == REFUSED))):
                parts = zip(inner, self.blocks.where(block), strict=True)
                index = tuple(int(i) + part.start for i, part in parts)
                number = str(np.ravel_multi_index(inner, self.blocks.sizes(block)))
                reason = facts.get("reasons", {}).get(number, "see .lane() of it")
                yield self._failed_lane(index, int(status[inner]), float(failed_at[inner]), reason)

    def _failed_lane(self, index: tuple[int, ...], status: int, failed_at: float, reason: str) -> FailedLane:
        bits = [str(bit.name) for bit in Status if bit & status]
        if status & int(FAILURES):
            reason = ""
        else:
            bits.append(REFUSED_WORD)
        plain = {key: value.tolist() for key, value in self._values(index).items()}
        rerun = f"jaximpact.Study.open({self.path!r}).lane({index}, save='all')"
        return FailedLane(index, plain, " ".join(bits), failed_at, reason, rerun)

    # as other functions take it

    @property
    def problem(self) -> Problem:
        """The problem; imports the module that the study names, as `lane` does."""
        return self._system.problem

    def settings(self) -> AbstractContextManager[None]:
        """Context with the jax settings with which the study is computed."""
        return settings_of(self._record.settings)

    def arguments(self, which: Any = slice(None)) -> Arguments:
        """Arguments of `ensemble` and `sensitivities` for all or some lanes, in the order of the design.

        Use: ``ensemble(study.problem, **study.arguments())``. Imports the problem as `lane` does.

        Args:
            which: lanes by number, slice or mask, counted in the order of the design, its last dimension fastest.
        """
        every = self.design.at(tuple(slice(0, n) for n in self.shape))
        system = self._system
        columns, varies = system.columns({key: column[which] for key, column in every.items()})
        axes = jax.tree.map(lambda some: 0 if some else None, varies)
        methods = {"scheme": system.scheme, "projection": system.projection, "save": system.save}
        ends = {} if system.until is None else {"until": system.until}
        return columns | self.spec.keys(np.arange(self.design.size)[which]) | {"args_axes": axes} | methods | ends

    def number(self, index: int | tuple[int, ...] | Mapping[str, int]) -> int:
        """Number of a lane in the order of the design (last dimension fastest); ``index`` as in `lane`."""
        return int(np.ravel_multi_index(self._index(index), self.shape))

    def quantity(self, name: str) -> np.ndarray:
        """Values (B, ...) of one quantity over all lanes, by its key or its short name."""
        keys = {short: key for key, short in self.design.names.items()} | {key: key for key in self.design.values}
        if name not in keys:
            raise ValueError(f"the study does not vary {name!r}; {suggestion(name, keys)}")
        return self.design.at(tuple(slice(0, n) for n in self.shape))[keys[name]]

    def solution(self) -> Solution:
        """All lanes as one in-memory `Solution`, as `ensemble` would have returned it, in the order of the design.

        A lane that could not start has INPUT_INVALID in its status, and NaN. Imports the problem as `lane` does.

        Raises:
            RuntimeError: not all lanes have been computed, or files of them are missing or damaged.
        """
        self._need_store()
        missing = len(self.blocks) - len(self._finished_chunks())
        if missing:
            raise RuntimeError(f"{self.path}: {missing} of {len(self.blocks)} chunks are not computed yet; call run()")
        lost = self._lost()
        if lost:
            raise RuntimeError(lost)
        return as_solution(self._read_all(), self._record, self._system)

    def _read_all(self) -> xarray.Dataset:
        """The stored results, in memory."""
        found = self.store.dataset()
        try:
            return found.load()
        except (RuntimeError, OSError) as error:
            words = f"results are damaged ({error}): verify() lists the files, run(repair=True) computes them again"
            raise RuntimeError(f"{self.path}: {words}") from error

    def _lost(self) -> str:
        """What to say of files of finished chunks that are missing or truncated, which xarray reads as NaN;
        nothing for an intact study."""
        damaged = self.store.damaged(self._finished_chunks(), contents=False)
        if not damaged:
            return ""
        first, others = damaged[0], len({x.block for x in damaged}) - 1
        return (
            f"{self.path}: chunk {first.block} ({self._where(first.block)}) is damaged ({first.file}: "
            f"{first.problem}), and {others} more; "
            "verify() lists them, run(repair=True) computes them again"
        )

    # single lanes

    def lane(self, index: int | tuple[int, ...] | Mapping[str, int], save: SaveLike | None = None) -> Solution:
        """Computes a single lane by `solve`, with ``sensitivity="none"``.

        Args:
            index: position along each dimension, as a tuple or by name; one number if there is one dimension.
            save: as in `solve`; by default the study's own.
        """
        values = self._values(self._index(index))
        system = self._system
        one = system.lane(values) | {name: x[0] for name, x in self.spec.keys([self.number(index)]).items()}
        with settings_of(self._record.settings):
            return solve(system.call(one, save=system.save if save is None else save), "none")

    def _index(self, index: int | tuple[int, ...] | Mapping[str, int]) -> tuple[int, ...]:
        if isinstance(index, Mapping):
            if set(index) != set(self.dims):
                raise ValueError(
                    f"lane: give a place along each of {', '.join(self.dims)}, got {', '.join(map(str, index))}"
                )
            index = tuple(index[name] for name in self.dims)
        found = as_tuple(index)
        fits = len(found) == len(self.shape) and all(
            is_whole(i, 0) and i < n for i, n in zip(found, self.shape, strict=True)
        )
        if not fits:
            sizes = ", ".join(f"{name} 0..{n - 1}" for name, n in zip(self.dims, self.shape, strict=True))
            raise IndexError(f"lane {index!r} is not in the design: {sizes}")
        return tuple(int(i) for i in found)

    def _values(self, index: tuple[int, ...]) -> dict[str, np.ndarray]:
        chosen = self.design.at(tuple(slice(i, i + 1) for i in index))
        return {key: column[0] for key, column in chosen.items()}

    @cached_property
    def _system(self) -> StudySystem:
        """The system, made by importing the problem; prints a message for each module that this
        process has not imported before."""
        for name in self.spec.modules():
            if name not in sys.modules:
                where = printable(origin(name, self.spec.folder))
                print(f"jaximpact: {self.path} imports module {name} from {where}", file=sys.stderr, flush=True)
        return StudySystem.of(self.spec)

    # chunks

    def _finished_chunks(self) -> set[int]:
        return {block for block in self.store.finished() if block < len(self.blocks)}

    def _facts(self, block: int) -> JsonObject:
        problem: object = None
        try:
            found = self.store.facts(block)
            # which a store of format 1 has not all of
            more = {name: {str: str} for name in ("versions", "reasons") if name in found}
            problem = first_mismatch(found, FACTS | more, "it")
        except ValueError as error:
            problem = error
        if problem:
            advice = "run(repair=True) computes the chunk again"
            raise RuntimeError(f"{self.path}: chunk {block} ({self._where(block)}) is damaged: {problem}; {advice}")
        return found

    def _where(self, block: int) -> str:
        parts = zip(self.dims, self.blocks.where(block), strict=True)
        return ", ".join(f"{name} {part.start}:{part.stop}" for name, part in parts)

    def _need_store(self) -> None:
        if not self.store.exists:
            raise FileNotFoundError(f"{self.path}: nothing has been computed yet; call run()")
