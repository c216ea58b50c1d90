"""What keeps a study: the duties of a store, and one in memory."""

from __future__ import annotations

import abc
import copy
import errno
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .importing import require
from .schema import Schema

if TYPE_CHECKING:
    import xarray


class Damage(NamedTuple):
    """A finished chunk whose data are not what was written."""

    block: int
    file: str
    problem: str


class Store(abc.ABC):
    """Keeps one study. Chunks are numbered from 0; one process writes, holding the lock, and any number read.

    A new store has these duties:

    1. `create` makes place for a study, and `record` gives back what it was told; until it has ended nothing `exists`.
    2. `write` puts the arrays and facts of a chunk where they survive, all or nothing: only then is it in `finished`.
    3. `lock` lets one process at a time write.
    4. `read` and `dataset` show what is there, fill values where nothing is.
    5. Where it can, `damaged` finds what has changed since.

    Errors are OSError for what the store cannot do now, ValueError for what is there and no study's.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """How messages call it."""

    @property
    @abc.abstractmethod
    def exists(self) -> bool:
        """Whether there is a study."""

    @abc.abstractmethod
    def create(self, record: dict[str, Any], schema: Schema) -> None:
        """Make place for a study, without results; what an interrupted creation left is removed. For who holds the lock."""

    @abc.abstractmethod
    def record(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The record that `create` was given, and the values of each quantity: data of which nothing is run or imported."""

    @abc.abstractmethod
    def lock(self, unlock: bool = False) -> AbstractContextManager[None]:
        """Hold the study for this process, RuntimeError where another does; ``unlock`` takes over one that is lost."""

    @abc.abstractmethod
    def finished(self) -> set[int]:
        """Numbers of the finished chunks."""

    @abc.abstractmethod
    def facts(self, chunk: int) -> dict[str, Any]:
        """What was written with a finished chunk; ValueError where that is damaged."""

    @abc.abstractmethod
    def blank(self, chunk: int, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Read-only fill values for variables of a chunk, (B, ...), of the dtypes that `write` takes."""

    @abc.abstractmethod
    def write(self, chunk: int, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
        """Finish a chunk: arrays of `blank`'s shapes, in this order, last ``done``; then facts, in terms of JSON."""

    @abc.abstractmethod
    def forget(self, chunk: int) -> None:
        """Declare a chunk unfinished."""

    @abc.abstractmethod
    def read(self, chunk: int, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Variables of a chunk over its lanes along each dimension of the design."""

    @abc.abstractmethod
    def dataset(self) -> xarray.Dataset:
        """Everything, as an `xarray.Dataset`."""

    def check(self) -> None:  # noqa: B027
        """Refuse what no study contains, before anything of it is used: ValueError. By default all is trusted."""

    def damaged(self, chunks: Collection[int], contents: bool) -> list[Damage]:
        """Of finished chunks what is missing or of another size or, with ``contents``, changed. By default nothing is."""
        return []


class MemoryStore(Store):
    """A store in the memory of this process, gone with it: for tests and small studies."""

    def __init__(self, name: str = "memory") -> None:
        self._name, self._lock = name, threading.Lock()
        self._schema: Schema | None = None
        self._record: dict[str, Any] = {}
        self._arrays: dict[str, np.ndarray] = {}
        self._facts: dict[int, dict[str, Any]] = {}

    @property
    def name(self) -> str:
        return self._name

    @property
    def exists(self) -> bool:
        return self._schema is not None

    @property
    def _made(self) -> Schema:
        if self._schema is None:
            raise FileNotFoundError(f"{self.name} is no study: nothing has been created in it")
        return self._schema

    def create(self, record: dict[str, Any], schema: Schema) -> None:
        self._record, self._facts = copy.deepcopy(record), {}
        self._arrays = {x.name: np.full(schema.blocks.whole + x.shape, x.fill, x.dtype) for x in schema.variables}
        self._schema = schema

    def record(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return copy.deepcopy(self._record), dict(self._made.design.values)

    @contextmanager
    def lock(self, unlock: bool = False) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(f"{self.name} is being computed by another thread: wait for it, or stop it")
        try:
            yield
        finally:
            self._lock.release()

    def finished(self) -> set[int]:
        return set(self._facts)

    def facts(self, chunk: int) -> dict[str, Any]:
        return copy.deepcopy(self._facts[chunk])

    def blank(self, chunk: int, names: Iterable[str]) -> dict[str, np.ndarray]:
        lanes = self._made.blocks.lanes(chunk)
        variables = {x.name: x for x in self._made.variables}
        return {
            name: np.broadcast_to(np.array(x.fill, x.dtype), (lanes, *x.shape))
            for name, x in ((name, variables[name]) for name in names)
        }

    def write(self, chunk: int, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
        blocks = self._made.blocks
        for name, values in arrays.items():
            self._arrays[name][blocks.where(chunk)] = values.reshape(blocks.sizes(chunk) + values.shape[1:])
        self._facts[chunk] = copy.deepcopy(dict(facts))

    def forget(self, chunk: int) -> None:
        self._facts.pop(chunk, None)

    def read(self, chunk: int, names: Iterable[str]) -> dict[str, np.ndarray]:
        where = self._made.blocks.where(chunk)
        return {name: self._arrays[name][where].copy() for name in names}

    def dataset(self) -> xarray.Dataset:
        schema, xr = self._made, require("xarray")
        dims = schema.design.dims
        variables = {x.name: (dims + x.dims, self._arrays[x.name].copy(), dict(x.attributes)) for x in schema.variables}
        coordinates = {x.name: (x.dims, x.values, x.attributes) for x in schema.coordinates()}
        return xr.Dataset(variables, coordinates, dict(schema.attributes))


def helpful_error(error: OSError, what: str, advice: str) -> OSError:
    """The same error, in words that help."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    return OSError(error.errno or errno.EIO, f"{what}: {reason}; {advice}")
