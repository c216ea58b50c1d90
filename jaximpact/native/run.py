"""A function of one lane, executed for many: traced once for each shape of its arguments, compiled, called on numpy arrays."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import numpy as np

from ..progress import watched
from ..small import Unsupported, carried_axes
from ..small.cost import SMALL, cost
from ..small.program import inputs
from .compile import Code, compiled, host
from .emit import Text, emit

BYTES = 64  # of a register: the widest that there are, or two of the next
TOGETHER = 2  # registers of a vector where operations have to wait for each other:
WAITING = range(
    4_000, 8_000
)  # in programs of so many; shorter ones are all contact, longer ones fill the processor alone
LONG = 20_000  # operations of a program that is shorter with loops over arrays of more than FEW entries: it compiles twice as soon
FEW = 32
LARGEST = 100_000  # operations of a program: more take long to compile
_lock = Lock()
_known: WeakKeyDictionary[Any, dict] = WeakKeyDictionary()  # by jaxpr, which jax keeps for a function and its shapes


class Compiled(NamedTuple):
    """Machine code of a program of one lane, and what it closes over."""

    code: Code
    text: Text
    constants: list[np.ndarray]


class Prepared(NamedTuple):
    """A function of one lane, compiled: its program, its results as avals and whether they are rows of a `stream`, and their
    structure."""

    program: Compiled
    results: list[tuple[Any, bool]]
    structure: Any

    def launch(self, leaves: Sequence, carried: Sequence[bool], lanes: int, given: Sequence = ()) -> list[np.ndarray]:
        """The results for all lanes; ``given``: the sequences for a `stream`, one entry a row."""
        whole = self.whole(lanes)
        entries = [columns(x, whole) if c else np.ascontiguousarray(x) for x, c in zip(leaves, carried, strict=True)]
        found = self.run(entries, lanes, whole, given)
        return [as_lanes(x, lanes, a.shape, many) for x, (a, many) in zip(found, self.results, strict=True)]

    def whole(self, lanes: int) -> int:
        """Lanes of all vectors, of which the last one is filled up."""
        width = self.program.text.width
        return -(-lanes // width) * width

    def run(self, entries: Sequence[np.ndarray], lanes: int, whole: int, given: Sequence = ()) -> list[np.ndarray]:
        """The same of operands as the program reads them (`columns`), and results as it writes them (size, rows, whole)."""
        program = self.program
        given = [np.ascontiguousarray(x) for x in given]
        rows = len(given[0]) if given else 0
        found = [np.empty((math.prod(a.shape), rows if many else 1, whole), a.dtype) for a, many in self.results]
        work, first = _work(program)
        if (watch := watched()) is not None and program.text.width == 1:
            watch.count(work[first - work.ctypes.data :][:8].view(np.int64), rows)
        program.code.call(_table([*entries, *program.constants]), _table(found), _table(given), first, lanes, rows)
        return found


class Placed:
    """A program whose operands and results stay at their places, to be called for one of many: beside it such a call costs nothing.

    ``operands``: arrays as the program reads them, and which of the ``numbers`` of a call counts along their first axis, or None;
    ``results``: arrays (size, whole), which it writes.
    """

    def __init__(self, prepared: Prepared, operands: Sequence, results: Sequence[np.ndarray], whole: int, numbers: int):
        program = prepared.program
        every = [*operands, *((x, None) for x in program.constants)]
        self.first = np.array([x.ctypes.data for x, _ in every], np.int64)
        self.apart = np.zeros((numbers, len(every)), np.int64)
        for i, (x, which) in enumerate(every):
            if which is not None:
                self.apart[which, i] = math.prod(x.shape[1:]) * x.itemsize
        self.table = np.empty_like(self.first)
        self.work, work = _work(program)
        self.kept = program, every, results
        self.call, self.given = program.code.call, (self.table.ctypes.data, _table(results), None, work, whole, 0)

    def __call__(self, *numbers: int) -> None:
        np.add(self.first, numbers @ self.apart, out=self.table)
        self.call(*self.given)


def prepared(one: Any, members: Sequence, carried: Sequence[bool], **static: Any) -> Prepared:
    """A jitted function of operands of one lane, of which some are ``carried``: differ between lanes.

    Raises:
        Unsupported: a part of it has no rule here, or it is too large.
        ImportError: llvmlite is not installed.
    """
    host()
    with _lock:
        traced = one.trace(*members, **static)
        closed = traced.jaxpr
        program = _compiled(closed, carried, any(carried))
    results = list(zip((v.aval for v in closed.jaxpr.outvars), program.text.rows, strict=True))
    return Prepared(program, results, jax.tree.structure(traced.out_info))


def over_lanes(one: Any, axes: tuple, given: Sequence[np.ndarray] = (), **static: Any) -> Callable:
    """A jitted function for all lanes, as `jax.vmap` of it with ``in_axes=axes`` would be; its results are numpy arrays.

    ``given``: the sequences for a `stream` in it, one entry a row. Without a lane axis it is one lane.

    Raises:
        Unsupported, ImportError: as `prepared`, when it is called.
    """

    def call(*operands: Any) -> Any:
        carried = jax.tree.leaves(carried_axes(axes, operands))
        leaves, structure = jax.tree.flatten(operands)
        avals = [jax.typeof(x) for x in leaves]
        members = [
            jax.ShapeDtypeStruct(a.shape[1:] if c else a.shape, a.dtype, weak_type=a.weak_type)
            for a, c in zip(avals, carried, strict=True)
        ]
        found = prepared(one, jax.tree.unflatten(structure, members), carried, **static)
        lanes = next((x.shape[0] for x, c in zip(leaves, carried, strict=True) if c), 1)
        leaves = [np.asarray(x, a.dtype) for x, a in zip(leaves, avals, strict=True)]
        return jax.tree.unflatten(found.structure, found.launch(leaves, carried, lanes, given))

    return call


def _compiled(closed: Any, carried: Sequence[bool], many: bool) -> Compiled:
    """The program of a jaxpr, compiled now or before; what cannot be compiled is remembered too."""
    kept, key = _known.setdefault(closed, {}), tuple(carried)
    if key not in kept:
        try:
            kept[key] = _compile(closed, carried, many)
        except Unsupported as error:
            kept[key] = error
    found = kept[key]
    if isinstance(found, Unsupported):
        raise found
    return found


def _compile(closed: Any, carried: Sequence[bool], many: bool) -> Compiled:
    small = SMALL
    if (count := cost(closed)) > LONG:
        small, count = FEW, cost(closed, FEW)
    if count > LARGEST:
        raise Unsupported(f"a program of some {count} operations, more than {LARGEST}")
    variables, constants = inputs(closed)
    real = [v.aval.dtype.itemsize for v in variables if v.aval.dtype.kind == "f"]
    register = BYTES // max(real, default=8) if many else 1
    width = register * TOGETHER if many and count in WAITING else register
    text = emit(closed, variables, [*carried, *[False] * len(constants)], width, host().fused, register, small)
    return Compiled(compiled(text.ir), text, [np.array(x, order="C") for x in constants])


def columns(x: np.ndarray, whole: int, lead: int = 0) -> np.ndarray:
    """Numbers of lanes (lanes, ...) as a program reads them, the lanes of an entry side by side, filled up with the last one:
    (size, whole); ``lead`` axes behind that of the lanes come before."""
    lanes, rows, size = len(x), x.shape[1 : 1 + lead], math.prod(x.shape[1 + lead :])
    found = np.empty((*rows, size, whole), x.dtype)
    found[..., :lanes] = np.moveaxis(x.reshape(lanes, *rows, size), 0, -1)
    found[..., lanes:] = found[..., lanes - 1 : lanes]
    return found


def as_lanes(x: np.ndarray, lanes: int, shape: tuple, many: bool) -> np.ndarray:
    """What a program wrote (size, rows, whole), lane by lane; with an axis of rows, or none."""
    return x[:, :, :lanes].transpose(2, 1, 0).reshape(lanes, *x.shape[1:2] * many, *shape)


def _work(program: Compiled) -> tuple[np.ndarray, int]:
    """Memory of its own, and where it may begin."""
    work = np.empty(program.text.work + 64, np.uint8)
    return work, work.ctypes.data + -work.ctypes.data % 64


def _table(arrays: Sequence[np.ndarray]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(x.ctypes.data for x in arrays))
