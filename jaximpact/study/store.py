"""Stores of studies: the interface, and a store in memory."""

from __future__ import annotations

import abc
import copy
import errno
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..jaxtools.optional_packages import import_optional
from ..results.safe_reading import JsonObject
from .schema import Schema

if TYPE_CHECKING:
    import xarray


class Damage(NamedTuple):
    """A finished chunk whose data differ from what was written, found by `Store.damaged`."""

    block: int
    file: str
    problem: str


class Store(abc.ABC):
    """Interface of a store of one study.

    Chunks are numbered from 0. One process, which holds the lock, writes; any number of processes read.

    A store has to guarantee:

    1. `create` is atomic: the study `exists` only once it has returned, and `record` returns what it was given.
    2. `write` is atomic and durable: a chunk is in `finished` only once its arrays and facts would survive a crash.
    3. `lock` admits one writing process at a time.
    4. `read` and `dataset` return fill values for chunks that are not finished.
    5. `damaged`, if implemented, finds chunks changed since they were written.

    Errors are OSError if an operation fails, ValueError for data that belong to no study.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Name of the store in messages."""

    @property
    @abc.abstractmethod
    def exists(self) -> bool:
        """Whether the store holds a study."""

    @abc.abstractmethod
    def create(self, record: JsonObject, schema: Schema) -> None:
        """Creates an empty study, removing what an interrupted creation left. The caller holds the lock."""

    @abc.abstractmethod
    def record(self) -> tuple[JsonObject, dict[str, np.ndarray]]:
        """The record given to `create`, and the values of each quantity, as data; nothing is run or imported."""

    @abc.abstractmethod
    def lock(self, unlock: bool = False) -> AbstractContextManager[None]:
        """Context that holds the study for this process; RuntimeError if another holds it,
        unless ``unlock`` takes over its lock."""

    @abc.abstractmethod
    def finished(self) -> set[int]:
        """Numbers of the finished chunks."""

    @abc.abstractmethod
    def facts(self, chunk: int) -> JsonObject:
        """Facts that `write` stored with a finished chunk, such as counts of failures;
        ValueError if they are damaged."""

    @abc.abstractmethod
    def blank(self, chunk: int, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Read-only fill values for variables of a chunk, (B, ...), in the dtypes that `write` takes."""

    @abc.abstractmethod
    def write(self, chunk: int, arrays: Mapping[str, np.ndarray], facts: JsonObject) -> None:
        """Stores a chunk and declares it finished.

        ``arrays``: by name, with the shapes of `blank`, written in this order, of which ``done`` is the last;
        ``facts``: what `facts` returns, in terms of JSON, written after the arrays.
        """

    @abc.abstractmethod
    def forget(self, chunk: int) -> None:
        """Declares a chunk unfinished, so that it is computed again."""

    @abc.abstractmethod
    def read(self, chunk: int, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Reads the variables ``names`` of a chunk; their first axes are the dimensions of the design."""

    @abc.abstractmethod
    def dataset(self) -> xarray.Dataset:
        """The whole study as an `xarray.Dataset`."""

    def check(self) -> None:  # noqa: B027
        """Raises ValueError if the store contains anything that does not belong in a study; called before its data are
        used. By default no check."""

    def damaged(self, chunks: Collection[int], contents: bool) -> list[Damage]:
        """Finished chunks with missing or truncated files or, with ``contents``, changed ones. By default none."""
        return []


class MemoryStore(Store):
    """A store in the memory of this process, for tests and small studies."""

    def __init__(self, name: str = "memory") -> None:
        self._name, self._lock = name, threading.Lock()
        self._schema: Schema | None = None
        self._record: JsonObject = {}
        self._arrays: dict[str, np.ndarray] = {}
        self._facts: dict[int, JsonObject] = {}

    @property
    def name(self) -> str:
        return self._name

    @property
    def exists(self) -> bool:
        return self._schema is not None

    @property
    def _known_schema(self) -> Schema:
        if self._schema is None:
            raise FileNotFoundError(f"{self.name} is no study: nothing has been created in it")
        return self._schema

    def create(self, record: JsonObject, schema: Schema) -> None:
        self._record, self._facts = copy.deepcopy(record), {}
        self._arrays = {x.name: np.full(schema.blocks.whole + x.shape, x.fill, x.dtype) for x in schema.variables}
        self._schema = schema

    def record(self) -> tuple[JsonObject, dict[str, np.ndarray]]:
        return copy.deepcopy(self._record), dict(self._known_schema.design.values)

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

    def facts(self, chunk: int) -> JsonObject:
        return copy.deepcopy(self._facts[chunk])

    def blank(self, chunk: int, names: Iterable[str]) -> dict[str, np.ndarray]:
        lanes = self._known_schema.blocks.lanes(chunk)
        variables = {x.name: x for x in self._known_schema.variables}
        return {
            name: np.broadcast_to(np.array(x.fill, x.dtype), (lanes, *x.shape))
            for name, x in ((name, variables[name]) for name in names)
        }

    def write(self, chunk: int, arrays: Mapping[str, np.ndarray], facts: JsonObject) -> None:
        blocks = self._known_schema.blocks
        for name, values in arrays.items():
            self._arrays[name][blocks.where(chunk)] = values.reshape(blocks.sizes(chunk) + values.shape[1:])
        self._facts[chunk] = copy.deepcopy(dict(facts))

    def forget(self, chunk: int) -> None:
        self._facts.pop(chunk, None)

    def read(self, chunk: int, names: Iterable[str]) -> dict[str, np.ndarray]:
        where = self._known_schema.blocks.where(chunk)
        return {name: self._arrays[name][where].copy() for name in names}

    def dataset(self) -> xarray.Dataset:
        schema, xr = self._known_schema, import_optional("xarray", "a study")
        dims = schema.design.dims
        variables = {x.name: (dims + x.dims, self._arrays[x.name].copy(), dict(x.attributes)) for x in schema.variables}
        coordinates = {x.name: (x.dims, x.values, x.attributes) for x in schema.coordinates()}
        return xr.Dataset(variables, coordinates, dict(schema.attributes))


def helpful_error(error: OSError, what: str, advice: str) -> OSError:
    """An error of the same type with ``what`` failed and ``advice`` in its message."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    return OSError(error.errno or errno.EIO, f"{what}: {reason}; {advice}")
