"""Calls of native code: a jax function of one lane, traced and compiled once for each shape of its arguments,
run for many lanes."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

import jax
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr
from jax.tree_util import PyTreeDef

from ...jaxtools.argument_checks import is_random_key
from ...jaxtools.jaxpr_tools import contains_primitive
from ...jaxtools.jaxpr_types import AnyJaxpr
from ...jaxtools.progress import current_watch
from ...jaxtools.shapes import PyTree, operand_type
from ...jaxtools.spare_memory import new_array
from ...jaxtools.trace_context import trace_settings, without_collection
from ..limits import (
    FEW_LANES,
    LONG_PROGRAM_OPS,
    LONG_PROGRAM_OPS_OF_A_LANE,
    MAX_COPIED_BYTES,
    MAX_LAYOUTS,
    MAX_OPS_IN_BLOCKS,
    MAX_OPS_IN_PLACE,
    MAX_OPS_LLVM,
    MAX_OPS_OF_A_LANE,
    MAX_OPS_OF_MANY_LANES,
    MAX_SCALARS,
    MAX_SCALARS_IN_LONG_PROGRAMS,
    MAX_SHARED_SHARE,
    MIN_ENTRIES_SIDE_BY_SIDE,
    MIN_SHARE_SIDE_BY_SIDE,
    OPS_WITH_WIDE_VECTORS,
    REGISTERS_PER_VECTOR,
)
from ..scalar import Unsupported, carried_axes
from ..scalar.cost import cost, count_entries
from ..scalar.interpreter import program_inputs
from .emitter import ProgramText, emit
from .functions import shared_cost
from .jit import host, load_or_emit
from .optimized_later import wait_for_optimized
from .program_key import program_key

_lock = Lock()
# Compiled functions, or why there is none, by jaxpr and mask of varying operands. jax keeps the jaxpr of a function and
# its shapes.
_by_jaxpr: WeakKeyDictionary[AnyJaxpr, dict] = WeakKeyDictionary()
# the same functions by what a call knows before it is traced
_by_call: WeakValueDictionary[Hashable, CompiledFunction] = WeakValueDictionary()


class Jitted(Protocol):
    """A jitted function, by `jax.jit` or by `xla_cache`."""

    @property
    def trace(self) -> Callable: ...


class NativeProgram(NamedTuple):
    """A compiled program: its machine code or GPU kernel, its text, and the closed-over
    arrays that are its last inputs.

    ``in_turn``: whether it is one of a single lane, to be run for one lane after the other.
    """

    code: Any
    text: ProgramText
    constants: list[np.ndarray]
    in_turn: bool = False


class Layout(NamedTuple):
    """Where operands and results lie in the memory of a call.

    Attributes:
        size: bytes of the memory.
        inside: place of each operand in it; -1 for a large one, which stays where it is.
        results: shape, dtype, place and strides of each result.
        places: those of operands and results.
    """

    size: int
    inside: list[int]
    results: list[tuple]
    places: np.ndarray


@dataclass(frozen=True, eq=False)
class CompiledFunction:
    """A function of one lane compiled to be called on many; the result of `compile_lanes`.

    Attributes:
        program: its machine code.
        dtypes: dtypes of its operands.
        results: pairs of a result's aval in one lane, and whether it is a row of a `stream`.
        structure: pytree of its results.
        layouts: of the memory of a call, by numbers of lanes and rows and the operands that differ between lanes.
    """

    program: NativeProgram
    dtypes: list[np.dtype]
    results: list[tuple[ShapedArray, bool]]
    structure: PyTreeDef
    layouts: dict[tuple, Layout] = field(default_factory=dict)

    def launch(self, leaves: Sequence, carried: Sequence[bool], lanes: int, given: Sequence = ()) -> list[np.ndarray]:
        """Runs all lanes on the operands ``leaves``, and returns results with a leading lane axis.

        ``carried``: mask of the operands with a leading lane axis; ``given``: the sequences that a `stream` reads,
        one entry per row.
        """
        if self.program.in_turn and any(carried):
            alone = ([x[i] if c else x for x, c in zip(leaves, carried, strict=True)] for i in range(lanes))
            found = [self.launch(x, [False] * len(carried), 1, given) for x in alone]
            return [np.concatenate(x) for x in zip(*found, strict=True)]
        program = self.program
        if lanes > FEW_LANES and not program.code.is_final:
            wait_for_optimized()
        operands, carried = [*leaves, *program.constants], [*carried, *[False] * len(program.constants)]
        given = [np.ascontiguousarray(x) for x in given]
        rows = len(given[0]) if given else 0
        if (layout := self.layouts.get(key := (lanes, rows, *carried))) is None:
            while len(self.layouts) >= MAX_LAYOUTS:
                del self.layouts[next(iter(self.layouts))]
            layout = self.layouts[key] = self._layout(operands, carried, lanes, rows)
        whole = new_array((layout.size,), np.uint8)
        first = -whole.ctypes.data % 64  # scratch memory begins at a multiple of 64
        begin = whole.ctypes.data + first
        if (watch := current_watch()) is not None and program.text.width == 1:
            watch.count(whole[first:][:8].view(np.int64), rows)
        table, kept = layout.places + begin, []
        for i, (x, c, place) in enumerate(zip(operands, carried, layout.inside, strict=True)):
            if place < 0:
                kept.append(x := np.ascontiguousarray(x))
                table[i] = x.ctypes.data
            elif c:
                padded = self.padded_count(lanes)
                columns = np.ndarray((x.size // lanes, padded), x.dtype, whole, first + place)
                columns[:, :lanes] = x.reshape(lanes, -1).T
                columns[:, lanes:] = columns[:, lanes - 1 : lanes]
            else:
                np.ndarray(x.shape, x.dtype, whole, first + place)[...] = x
        entries, turns = table.ctypes.data, _pointer_table([x.ctypes.data for x in given])
        program.code.call(entries, entries + table.itemsize * len(operands), turns, begin, lanes, rows)
        return [
            np.ndarray(shape, dtype, whole, first + place, strides) for shape, dtype, place, strides in layout.results
        ]

    def _layout(self, operands: Sequence[np.ndarray], carried: Sequence[bool], lanes: int, rows: int) -> Layout:
        """Divides one allocation among scratch memory, small operands and results:
        one for each would take longer than many a program."""
        padded, end = self.padded_count(lanes), 64 + int(self.program.text.work)

        def reserve(size: int, dtype: np.dtype) -> int:
            nonlocal end
            place = end + -end % 64
            end = place + size * dtype.itemsize
            return place

        inside, results = [], []
        for x, c in zip(operands, carried, strict=True):
            size = x.size // lanes * padded if c else x.size
            inside.append(reserve(size, x.dtype) if c or x.nbytes <= MAX_COPIED_BYTES else -1)
        for a, many in self.results:
            size, of_entry = math.prod(a.shape), rows if many else 1
            place = reserve(size * of_entry * padded, a.dtype)
            # the last axis is that of lanes, and before it lies that of rows
            step = a.dtype.itemsize * padded
            of_shape = [step * of_entry * math.prod(a.shape[i + 1 :]) for i in range(len(a.shape))]
            strides = a.dtype.itemsize, *[step] * many, *of_shape
            results.append(((lanes, *[rows] * many, *a.shape), a.dtype, place, strides))
        return Layout(end + 64, inside, results, np.array([*inside, *(place for _, _, place, _ in results)], np.int64))

    def padded_count(self, lanes: int) -> int:
        """Returns the number of lanes, rounded up to a multiple of the vector width."""
        width = self.program.text.width
        return -(-lanes // width) * width


class BoundCall:
    """A program bound to arrays in memory, for many cheap calls.

    A call ``bound(*numbers, rows=0)`` takes a few indices; the program then runs on the entries of some
    of the arrays at these indices.

    Args:
        function: the compiled function.
        operands: for each operand, a pair of an array in the program's layout, and which of the call's indices (0,
            1, ...) selects the operand along the array's first axis; None if the whole array is the operand.
        results: arrays (size, whole) to write to.
        whole: number of lanes with padding.
        numbers: how many indices a call has.
        given: such pairs for the sequences that a `stream` in the function reads;
            it reads them from the entry at the call's index on.
    """

    def __init__(
        self,
        function: CompiledFunction,
        operands: Sequence,
        results: Sequence[np.ndarray],
        whole: int,
        numbers: int,
        given: Sequence = (),
    ):
        program = function.program
        every = [*operands, *((x, None) for x in program.constants), *given]
        self.base_addresses = np.array([x.ctypes.data for x, _ in every], np.int64)
        self.strides = np.zeros((numbers, len(every)), np.int64)
        for i, (x, which) in enumerate(every):
            if which is not None:
                self.strides[which, i] = math.prod(x.shape[1:]) * x.itemsize
        self.table = np.empty_like(self.base_addresses)
        self.work, work = _scratch_memory(program)
        # of a single motion the first number is its counter of turns
        self.turns = self.work[work - self.work.ctypes.data :][:8].view(np.int64) if program.text.width == 1 else None
        self.keep_alive = program, every, results
        address = self.table.ctypes.data
        of_given = address + self.table.itemsize * (len(every) - len(given))
        self.code, self.arguments = program.code, (address, _address_table(results), of_given, work, whole)

    def watched(self, rows: int) -> None:
        """Connects the progress bar, if one is shown, to the next call, whose `stream` yields this number of rows."""
        if self.turns is not None and (watch := current_watch()) is not None:
            watch.count(self.turns, rows)

    def __call__(self, *numbers: int, rows: int = 0) -> None:
        np.add(self.base_addresses, numbers @ self.strides, out=self.table)
        self.code.call(*self.arguments, rows)


def compile_lanes(
    one: Jitted,
    members: Sequence,
    carried: Sequence[bool],
    compiler: Callable | None = None,
    lanes: int | None = None,
    /,
    **static: Hashable,
) -> CompiledFunction:
    """Compiles a jitted function of one lane, or returns the earlier result for the same jaxpr.

    Args:
        one: the function, as `jax.jit` returns it.
        members: its operands in one lane, or their avals.
        carried: mask of the operands' leaves that differ between lanes.
        compiler: ``compiler(closed, carried, lanes)`` makes the `NativeProgram` of a closed jaxpr; None for one that
            compiles for this processor.
        lanes: how many lanes the first call has, if it is known.
        static: its static arguments.

    Raises:
        Unsupported: a primitive has no rule here, or the program is too large.
        ImportError: llvmlite is not installed.
    """
    host()
    with _lock, without_collection():
        traced = one.trace(*members, **static)
        closed, key = traced.jaxpr, (compiler, *carried)
        kept = _by_jaxpr.setdefault(closed, {})
        if key not in kept:
            try:
                if closed.effects:
                    raise Unsupported("an effect, such as of jax.debug.print")
                if any(is_random_key(v.aval) for v in [*closed.jaxpr.invars, *closed.jaxpr.constvars]):
                    raise Unsupported("a random key")
                program = (compiler or _compile)(closed, carried, lanes if any(carried) else 1)
                results = list(zip((v.aval for v in closed.jaxpr.outvars), program.text.rows, strict=True))
                dtypes = [v.aval.dtype for v in closed.jaxpr.invars]
                kept[key] = CompiledFunction(program, dtypes, results, jax.tree.structure(traced.out_info))
            except Unsupported as error:  # cached too: the next call need not try again
                kept[key] = error
    if isinstance(kept[key], Unsupported):
        raise kept[key]
    return kept[key]


def over_lanes(one: Jitted, axes: tuple, given: Sequence[np.ndarray] = (), **static: Hashable) -> Callable:
    """Returns what ``jax.vmap(one, in_axes=axes)`` does, but as native code:
    a function of all lanes that returns numpy arrays.

    If no operand has a lane axis, the function runs one lane, and results have a lane axis of length 1. ``given``: the
    sequences that a `stream` in ``one`` reads, one entry per row.

    Raises:
        Unsupported, ImportError: by the returned function, as `compile_lanes`.
    """

    prefix, tags = jax.tree.structure(axes, is_leaf=_is_none), tuple(static.items())
    marks = tuple(jax.tree.leaves(axes, is_leaf=_is_none))

    def call(*operands: object) -> PyTree:
        leaves, structure = jax.tree.flatten(operands)
        carried = _carried_leaves(prefix, marks, structure)
        kinds = tuple(map(operand_type, leaves, carried))
        key = one, tags, structure, carried, kinds, trace_settings()
        lanes = next((x.shape[0] for x, c in zip(leaves, carried, strict=True) if c), 1)
        if (found := _by_call.get(key)) is None:
            avals = zip(map(jax.typeof, leaves), carried, strict=True)
            members = [jax.ShapeDtypeStruct(a.shape[c:], a.dtype, weak_type=a.weak_type) for a, c in avals]
            operands_of_one = jax.tree.unflatten(structure, members)
            found = compile_lanes(one, operands_of_one, carried, compile_or_in_turn, lanes, **static)
            _by_call[key] = found
        leaves = [np.asarray(x, dtype) for x, dtype in zip(leaves, found.dtypes, strict=True)]
        return jax.tree.unflatten(found.structure, found.launch(leaves, carried, lanes, given))

    return call


def _is_none(x: object) -> bool:
    return x is None


@lru_cache
def _carried_leaves(prefix: PyTreeDef, marks: tuple, structure: PyTreeDef) -> tuple[bool, ...]:
    """Returns the mask of the operands' leaves that have a lane axis; cached by tree structure.

    ``prefix``, ``marks``: structure and leaves (0 or None) of the axes, a prefix tree of the operands; ``structure``:
    that of the operands.
    """
    operands = jax.tree.unflatten(structure, range(structure.num_leaves))
    return tuple(jax.tree.leaves(carried_axes(jax.tree.unflatten(prefix, marks), operands)))


def compile_or_in_turn(closed: ClosedJaxpr, carried: Sequence[bool], lanes: int | None) -> NativeProgram:
    """Compiles as `_compile`, but instead of a long program of many lanes one of a single lane, if its arrays lie side
    by side: it is much shorter."""
    long = any(carried) and shared_cost(closed, MAX_SCALARS) > MAX_OPS_OF_MANY_LANES
    if long and _entries_side_by_side(closed) > 1:
        return _compile(closed, [False] * len(carried), 1)._replace(in_turn=True)
    return _compile(closed, carried, lanes)


def _entries_side_by_side(closed: ClosedJaxpr) -> int:
    """Returns how many entries of an array an instruction computes in a program of a single lane; 1 where arrays are
    mostly small or sparse."""
    variables, _ = program_inputs(closed)
    real = [v.aval.dtype.itemsize for v in variables if v.aval.dtype.kind == "f"]
    # not with joints, whose matrices are mostly zeros, which scalars leave out
    sparse = contains_primitive(closed, "sparse_semidefinite_inverse")
    wide = count_entries(closed, MIN_ENTRIES_SIDE_BY_SIDE) > MIN_SHARE_SIDE_BY_SIDE * count_entries(closed)
    return 1 if sparse or not wide else host().vector_bytes // max(real, default=8)


def _compile(closed: ClosedJaxpr, carried: Sequence[bool], lanes: int | None) -> NativeProgram:
    """Emits and compiles a closed jaxpr for this processor, or loads its program from the cache.

    ``carried``: mask of the inputs that differ between lanes; if any does, the program works on vectors of lanes.
    ``lanes``: as in `compile_lanes`.
    """
    many = any(carried)
    variables, constants = program_inputs(closed)
    pack = 1 if many else _entries_side_by_side(closed)
    most = MAX_OPS_OF_A_LANE if pack > 1 else MAX_OPS_LLVM
    max_scalars = MAX_SCALARS
    long = LONG_PROGRAM_OPS_OF_A_LANE if pack > 1 else LONG_PROGRAM_OPS
    if (count := shared_cost(closed, MAX_SCALARS)) > long:
        max_scalars, count = MAX_SCALARS_IN_LONG_PROGRAMS, shared_cost(closed, MAX_SCALARS_IN_LONG_PROGRAMS)
    if count > most:
        raise Unsupported(f"a program of some {count} operations, more than {most}")
    # the vector width follows from the floats that differ between lanes; shared ones, as tolerances, may have more
    # digits
    real = [v.aval.dtype.itemsize for v, c in zip(variables, carried, strict=False) if c and v.aval.dtype.kind == "f"]
    register = host().vector_bytes // max(real, default=8) if many else 1
    paired = many and host().vector_bytes == 64 and cost(closed, max_scalars) in OPS_WITH_WIDE_VECTORS
    width = register * REGISTERS_PER_VECTOR if paired else register
    varies = [*carried, *[False] * len(constants)]
    blocks = many and not paired and count < MAX_OPS_IN_BLOCKS
    options = width, host().fused, register, max_scalars, pack
    few, whole = lanes is not None and lanes <= FEW_LANES, cost(closed, max_scalars)
    in_place = count > MAX_SHARED_SHARE * whole or (not few and whole <= MAX_OPS_IN_PLACE)
    name = program_key(closed, variables, varies, blocks, in_place, *options)
    write = lambda: emit(closed, variables, varies, *options, blocks=blocks, in_place=in_place)
    text, code = load_or_emit(name, write, few)
    return NativeProgram(code, text, [np.array(x, order="C") for x in constants])


def as_columns(x: np.ndarray, whole: int, lead: int = 0) -> np.ndarray:
    """Copies an array (lanes, ...) to a program's layout (size, whole), in which the lanes of an entry are contiguous.

    The last lane is repeated up to ``whole`` lanes. The first ``lead`` axes after the lane axis, if any,
    come before ``size`` in the result.
    """
    lanes, rows, size = len(x), x.shape[1 : 1 + lead], math.prod(x.shape[1 + lead :])
    found = np.empty((*rows, size, whole), x.dtype)
    found[..., :lanes] = np.moveaxis(x.reshape(lanes, *rows, size), 0, -1)
    found[..., lanes:] = found[..., lanes - 1 : lanes]
    return found


def as_lanes(x: np.ndarray, lanes: int, shape: tuple, many: bool) -> np.ndarray:
    """Inverse of `as_columns` for a result: from (size, rows, whole) to (lanes, rows, *shape),
    or (lanes, *shape) if it is not ``many`` rows."""
    return x[:, :, :lanes].transpose(2, 1, 0).reshape(lanes, *x.shape[1:2] * many, *shape)


def _scratch_memory(program: NativeProgram) -> tuple[np.ndarray, int]:
    """Allocates scratch memory for a program; returns it, and the first address in it that is a multiple of 64."""
    work = np.empty(program.text.work + 64, np.uint8)
    return work, work.ctypes.data + -work.ctypes.data % 64


def _pointer_table(addresses: Sequence[int]) -> ctypes.Array:
    return (ctypes.c_void_p * len(addresses))(*addresses)


def _address_table(arrays: Sequence[np.ndarray]) -> ctypes.Array:
    """Returns a C array of the arrays' addresses."""
    return _pointer_table([x.ctypes.data for x in arrays])
