"""Emitter of LLVM IR: a jaxpr as a function that runs over many lanes, one vector of lanes at a time.

Control flow stays control flow: a loop runs while any lane of the vector continues, and the other lanes keep their
carry. Of the branches of a `cond` the shortest may always run; each other one runs if any lane selects it. A primitive
without a rule raises `Unsupported`.

Layout of arrays in memory: an input or result that differs between lanes is (entries, padded lanes), where the number
of padded lanes is a multiple of the vector width. Rows of a `stream` are (entries, rows, padded lanes), or (rows,
entries, padded lanes) if the `stream` has ``by_row`` set. Inputs shared by all lanes are
in C order. Booleans are bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jax.extend.core import ClosedJaxpr

from ...jaxtools.jaxpr_tools import called_jaxpr, scan_counts, varying_outvars
from ...jaxtools.jaxpr_types import Equation, Params
from ...jaxtools.outlined import is_cold
from ..limits import MAX_SCALARS, MAX_SPECULATED_OPS, MIN_COLD_OPS
from ..scalar import ScalarInterpreter, Unsupported, Value, object_array
from ..scalar.cost import cost
from ..scalar.values import Scalar
from . import array_rules, arrays, packs, predicates
from .arrays import LargeArray
from .elementwise import RULES
from .functions import Functions, value_key
from .fused_products import fuse_products
from .ir_values import BOOL, INT, LONG, LaneValue, constant
from .ir_writer import COLD, Writer
from .lane_blocks import LaneBlocks, NoSections
from .lane_frames import ThreadGrid, VectorLoop
from .results import StreamEntry, store_result


class ProgramText(NamedTuple):
    """IR of a program, with the facts that its callers need.

    Attributes:
        ir: text of the module; empty if the code came from the cache.
        width: number of lanes of a vector.
        rows: for each result, whether it is a row of a `stream`, and so has an axis of rows.
        work: bytes of scratch memory.
    """

    ir: str
    width: int
    rows: list[bool]
    work: int


class LLVMEmitter:
    """Emitter of LLVM IR: see `scalar.values.Emitter`."""

    def __init__(
        self, width: int, register: int, fused: bool, max_scalars: int, pack: int = 1, threads: bool = False
    ) -> None:
        # vectors hold several lanes, or, in programs of a single lane, several entries of an array (packs)
        self.w, self.pack = Writer(max(width, pack), fused, pack > 1), pack
        self.register, self.max_scalars = register, max_scalars  # lanes of one register
        self.threads, self.many = threads, width > 1
        self.functions = Functions(self)
        self.constants: dict[
            tuple, tuple[str, str]
        ] = {}  # constant arrays: their names and definitions, by type and entries
        self.embedded: dict[tuple, LargeArray] = {}  # the same as values, by type, entries and shape
        self.live: LaneValue | None = None  # mask of the lanes that are no padding; None: a vector is one register
        self.empty_rows: list[Value] = []  # rows of streams without entries, which no `StreamEntry` marks as rows
        self.blocks: LaneBlocks | None = None  # the frame of a program that is cut into sections
        # a single motion counts the iterations of its outermost loop in memory, for a progress bar in another thread
        self.counter = self.w.reserve(1, LONG, False) if width == 1 and not threads else None

    def is_empty_row(self, x: Value) -> bool:
        return any(x is y for y in self.empty_rows)

    def as_value(self, x: Scalar) -> LaneValue:
        """Returns a scalar of the interpreter, constant or not, as a value of the IR."""
        if isinstance(x, StreamEntry):
            raise Unsupported("arithmetic with the rows of a stream")
        return packs.scalar_of(self.w, x)

    def op(self, name: str, params: Params | None, *values: Scalar) -> LaneValue:
        return self.op_of(name, params, [x if type(x) is LaneValue else self.as_value(x) for x in values])

    def op_of(self, name: str, params: Params | None, values: list[LaneValue]) -> LaneValue:
        """Emits the elementwise primitive ``name`` on values of the IR."""
        if name not in RULES:
            raise Unsupported(name)
        return RULES[name](self.w, params, values)

    def elementwise(
        self,
        machine: ScalarInterpreter,
        name: str,
        params: Params | None,
        structural: bool,
        arrays: Sequence[np.ndarray],
    ) -> np.ndarray:
        return packs.elementwise(self, machine, name, params, structural, arrays)

    def reduction(self, name: str, entries: Sequence[Scalar], empty: Scalar | None) -> Scalar:
        return packs.reduce_entries(self.w, lambda x, y: self.op_of(name, None, [x, y]), entries, empty)

    def adjacent(self, entries: Sequence[Scalar]) -> bool:
        return packs.adjacent(entries)

    def passes_packed(self, x: np.ndarray) -> bool:
        """Whether the entries of an array pass from one basic block to another in packs,
        rather than as single scalars."""
        return 2 * x.size > self.pack > 1

    def varies(self, x: Value) -> bool:
        return x.is_vector if isinstance(x, LargeArray) else any(getattr(y, "is_vector", False) for y in x.flat)

    def array_primitive(self, machine: ScalarInterpreter, eqn: Equation, inputs: list[Value]) -> list[Value]:
        """Emits an equation with a large array among its operands or results,
        or reuses the results of an equal earlier one."""
        key = eqn.primitive, (str(eqn.params), *map(value_key, inputs))
        if (found := self.w.lookup(key)) is None:
            found = self.w.available[-1][key] = array_rules.apply_rule(self, machine, eqn, inputs)
        return found

    def is_in_place(self, jaxpr: ClosedJaxpr) -> bool:
        return self.functions.is_in_place(jaxpr)

    def call(self, machine: ScalarInterpreter, eqn: Equation, inputs: list[Value]) -> list[Value]:
        if is_cold(eqn):
            jaxpr = called_jaxpr(eqn)
            if self.pack == 1 or cost(jaxpr, self.max_scalars) < MIN_COLD_OPS:
                return machine.run(jaxpr, inputs)
            return self.functions.apart(machine, jaxpr, inputs, cold=True)
        return self.functions.call(machine, eqn, inputs)

    def constant(self, x: np.ndarray) -> LargeArray:
        return arrays.embed_constant(self, x)

    # values that pass between basic blocks: scalars by phi nodes, large arrays in memory

    def flatten(self, values: Sequence[Value], varies: Sequence[bool]) -> list[LaneValue]:
        """Returns the scalars, or packs, of all small arrays in one list; ``varies``: for each array,
        whether they are broadcast to vectors."""
        found: list[LaneValue] = []
        for x, v in zip(values, varies, strict=True):
            if self.pack > 1 and not isinstance(x, LargeArray) and self.passes_packed(x):
                found += packs.packs_of_array(self.w, x)
            else:
                found += [self.w.as_vector(y) if v else y for y in map(self.as_value, x.flat)]
        return found

    def unflatten(self, values: Sequence[Value], scalars: Sequence[LaneValue]) -> list[Value]:
        """Inverse of `flatten`: returns ``values`` with the small arrays made of other ``scalars``;
        large arrays stay as they are."""
        entries = iter(scalars)

        def restored(x: Value) -> Value:
            if isinstance(x, LargeArray):
                return x
            if self.passes_packed(x):
                return packs.array_of_packs(x.shape, entries, self.pack)
            return object_array(x.shape, (next(entries) for _ in range(x.size)))

        return [restored(x) for x in values]

    def of_lane(self, x: LaneValue) -> LaneValue:
        """Returns a value in the form in which results are stored: as a vector over lanes,
        but unchanged in programs of a single lane."""
        return x if self.pack > 1 else self.w.as_vector(x)

    def store_large(self, targets: Sequence[Value], values: Sequence[Value], where: LaneValue | None) -> None:
        """Copies large arrays into the memory of ``targets``, in the lanes of the mask ``where`` (None: all).

        All values are computed before any target is overwritten, since a value may read a target: a loop may swap two
        carried arrays, for instance.
        """
        pairs = [
            (x, arrays.materialise(self, y)) for x, y in zip(targets, values, strict=True) if isinstance(x, LargeArray)
        ]
        for x, y in pairs:
            arrays.copy_array(self, x, y, where)

    def loop(
        self,
        start: list[Value],
        varies: Sequence[bool],
        continues: Callable,
        body: Callable,
        prepare: Callable | None = None,
    ) -> list[Value]:
        w = self.w
        if prepare is not None and self.blocks is not None and self.blocks.splits(w, start, varies):
            return self.blocks.loop(self, start, varies, continues, body, prepare)
        start = [
            arrays.copy_to_new(self, x, v) if isinstance(x, LargeArray) else x
            for x, v in zip(start, varies, strict=True)
        ]
        scalars = self.flatten(start, varies)
        before, head, inside, after = w.block, *(w.fresh_name(name) for name in ("head", "body", "after"))
        counter, self.counter = self.counter, None
        if counter:
            w.emit(f"store volatile i64 0, ptr {counter}, align 8")
        with w.loop_scope(w.active):
            w.jump(head)
            w.begin_block(head)
            phis = [w.phi(x.dtype, x.is_vector, [(x, before)]) for x in scalars]
            carry = self.unflatten(start, phis)
            more = w.as_scalar(self.as_value(continues(carry)))
            if more.is_vector:
                more = w.conjunction(more, w.active)
                # padding lanes select no branch, and would loop forever if only a branch ends the loop
                more = more if self.live is None or w.register_view is not None else w.conjunction(self.live, more)
            w.branch(w.any_lane(more), inside, after)
            w.begin_block(inside)
            if counter:
                turns = "%" + w.fresh_name("turns")
                w.emit(f"{turns} = load volatile i64, ptr {counter}, align 8")
                w.emit(f"{turns}.next = add i64 {turns}, 1")
                w.emit(f"store volatile i64 {turns}.next, ptr {counter}, align 8")
            with w.scope(more if more.is_vector else w.active):
                found = body(carry)
                new = self.flatten(found, varies)
                if more.is_vector:
                    new = [w.select(more, x, y) for x, y in zip(new, phis, strict=True)]
                self.store_large(start, found, more if more.is_vector else None)
                w.close_loop(phis, new)
                w.jump(head)
        w.begin_block(after)
        self.counter = counter
        return carry

    def switch(
        self,
        machine: ScalarInterpreter,
        which: Scalar,
        branches: Sequence,
        operands: list[Value],
        avals: Sequence,
        varies: Sequence[bool],
    ) -> list[Value]:
        w, last, which = self.w, len(branches) - 1, self.as_value(which)
        sizes = [cost(branch) for branch in branches]
        order = sorted(range(len(branches)), key=lambda i: sizes[i])
        results: list[Value] = []  # zeros for small results, memory for large ones
        for a, v in zip(avals, varies, strict=True):
            size = math.prod(a.shape)
            if size <= self.max_scalars:
                results.append(object_array(a.shape, [constant(0, a.dtype)] * size))
            else:
                results.append(arrays.reserve_array(self, a.shape, a.dtype, v))
        now = self.flatten(results, varies)
        if sizes[order[0]] <= MAX_SPECULATED_OPS:
            found = machine.run(branches[order.pop(0)], operands)
            self.store_large(results, found, None)
            now = self.flatten(found, varies)
        for i in order:
            selected = w.as_scalar(self.selects_branch(which, i, last))
            before, inside, after = w.block, w.fresh_name("inside"), w.fresh_name("outside")
            by_register = selected.is_vector and w.width > self.register
            by_register = by_register and not any(isinstance(x, LargeArray) for x in (*operands, *results))
            taken, lanes = selected, selected
            if selected.is_vector:
                active = w.active if not by_register or self.live is None else w.conjunction(self.live, w.active)
                taken, lanes = predicates.any_lane_where(w, selected, active)
            w.branch(taken, inside, after, COLD)
            w.begin_block(inside)
            with w.scope(lanes if selected.is_vector else w.active):
                if by_register:
                    branch = lambda operands, jaxpr=branches[i]: machine.run(jaxpr, operands)
                    new = self.run_by_register(branch, operands, varies, lanes, now)
                else:
                    long = not selected.is_vector and self.functions.is_long(branches[i])
                    found = (self.functions.apart if long else ScalarInterpreter.run)(machine, branches[i], operands)
                    new = self.flatten(found, varies)
                    if selected.is_vector:
                        new = [w.select(lanes, x, y) for x, y in zip(new, now, strict=True)]
                    self.store_large(results, found, lanes if selected.is_vector else None)
                end = w.block
                w.jump(after)
            w.begin_block(after)
            now = [w.phi(x.dtype, x.is_vector, [(y, before), (x, end)]) for x, y in zip(new, now, strict=True)]
        return self.unflatten(results, now)

    def selects_branch(self, which: LaneValue, i: int, last: int) -> LaneValue:
        """Emits the mask of the lanes whose index ``which`` selects branch i of 0 ... ``last``; an index out of range
        selects the nearest branch."""
        bits = predicates.flags(self.w, which)
        if bits and len(bits) == last == 1:
            return bits[0][0] if i else predicates.negate(self.w, bits[0][0])
        name = "icmp sle" if i == 0 else "icmp sge" if i == last else "icmp eq"
        return self.w.op(name, which, constant(i, INT), dtype=BOOL)

    def run_by_register(
        self, branch: Callable, operands: list[Value], varies: Sequence[bool], lanes: LaneValue, now: list[LaneValue]
    ) -> list[LaneValue]:
        """Emits an expensive branch for one register of a vector after the other,
        and skips registers in which no lane selects it.

        ``branch`` emits the branch for given operands and returns its results. Returns the scalars of these results in
        the lanes of the mask ``lanes``, and the scalars ``now`` in the others; ``varies``:
        mask of the results that differ between lanes.
        """
        w, width, bits = self.w, self.w.width, self.w.mask_as_integer(lanes)
        results = [w.reserve(1, x.dtype, True) for x in now]
        for place, x in zip(results, now, strict=True):
            w.store(place, x)
        stores = w.reserve_lines()  # of the vectors that the branch reads

        def run_register(i: LaneValue, _: list[LaneValue]) -> list[LaneValue]:
            with w.register_scope(self.register) as view:
                mask = w.mask_of_register(bits, i)
                inside, after = w.fresh_name("inside"), w.fresh_name("outside")
                w.branch(w.any_lane(mask), inside, after)
                w.begin_block(inside)
                view.reserve(stores)
                part = lambda y: view.part_of(y) if isinstance(y, LaneValue) else y
                with w.scope(mask):
                    found = self.flatten(branch([object_array(x.shape, map(part, x.flat)) for x in operands]), varies)
                    for place, x in zip(results, found, strict=True):
                        address = w.address(place, x.dtype, is_vector=True, place=i)
                        w.store(address, w.select(mask, x, w.load(address, x.dtype, True)))
                view.emit_parts(i)
                w.jump(after)
                w.begin_block(after)
            return []

        arrays.counted_loop(self, width // self.register, [], run_register)
        return [w.load(place, x.dtype, True) for place, x in zip(results, now, strict=True)]

    def scan(self, machine: ScalarInterpreter, eqn: Equation, inputs: list[Value]) -> list[Value]:
        p = eqn.params
        a, count = scan_counts(p)
        constants, start = inputs[:a], inputs[a : a + count]
        sequences = [arrays.materialise(self, x) for x in inputs[a + count :]]
        flags = varying_outvars(eqn, [self.varies(x) for x in inputs])
        rows = [
            arrays.reserve_array(self, v.aval.shape, v.aval.dtype, f)
            for v, f in zip(eqn.outvars[count:], flags[count:], strict=True)
        ]
        one, length = (object_array((), [np.int64(x)]) for x in (1, p["length"]))

        def body(carry: list[Value]) -> list[Value]:
            i = self.as_value(
                machine("sub", np.int64(p["length"] - 1), carry[0].item()) if p["reverse"] else carry[0].item()
            )
            here = [arrays.scalars_if_small(self, arrays.leading_slice(self, x, i)) for x in sequences]
            found = machine.run(p["jaxpr"], [*constants, *carry[1:], *here])
            for target, x in zip(rows, found[count:], strict=True):
                arrays.copy_array(self, arrays.leading_slice(self, target, i), arrays.as_large_array(self, x), None)
            return [machine.elementwise("add", carry[0], one), *found[:count]]

        continues = lambda carry: machine("lt", carry[0].item(), length.item())
        state = self.loop([object_array((), [np.int64(0)]), *start], [False, *flags[:count]], continues, body)[1:]
        return [*state, *(arrays.scalars_if_small(self, x) for x in rows)]

    def stream(self, machine: ScalarInterpreter, eqn: Equation, inputs: list[Value]) -> list[Value]:
        """Emits the loop of a `stream`, with an iteration for each row that the caller requests; entries of its rows
        are `StreamEntry` values.

        To which result of the program an entry belongs is known only when the program returns it; its store is then
        written into the loop's body.
        """
        w, jaxpr, carried = self.w, eqn.params["jaxpr"], eqn.params["carried"]
        if self.threads and eqn.params["by_row"]:
            raise Unsupported("rows that lie one after the other, in a kernel")
        constants, start = inputs[: len(jaxpr.constvars)], inputs[len(jaxpr.constvars) :]
        flags = [False, *varying_outvars(eqn, [self.varies(x) for x in inputs])[:carried]]
        given = [(load_pointer(w, "given", i), v.aval) for i, v in enumerate(jaxpr.invars[carried:])]
        count, rows, by_row = LaneValue("%rows", LONG, False), list[Value](), eqn.params["by_row"]

        def body(carry: list[Value]) -> list[Value]:
            i, *state = carry
            i = self.as_value(i.item())
            k = w.op("sub", w.op("sub", count, constant(1, LONG)), i) if eqn.params["backwards"] else i
            here = [arrays.row_of_input(self, at, aval, k, by_row) for at, aval in given]
            found = machine.evaluate(jaxpr, constants, [*state, *here])
            if any(isinstance(x, LargeArray) and x.size > MAX_SCALARS for x in found[carried:]):
                raise Unsupported("rows that are large arrays")
            found[carried:] = (arrays.as_scalars(self, x) for x in found[carried:])
            place = w.op("add", w.op("mul", i, LaneValue("%row", LONG, False)), LaneValue("%lane", LONG, False)).name
            flat = [x for y in found[carried:] for x in y.flat]
            scalars = flat if by_row and self.pack > 1 else [self.of_lane(self.as_value(x)) for x in flat]
            stores = w.reserve_lines()
            entries = iter(StreamEntry(x, stores, place, i if by_row else None) for x in scalars)
            rows[:] = [object_array(x.shape, [next(entries) for _ in range(x.size)]) for x in found[carried:]]
            return [object_array((), [w.op("add", i, constant(1, LONG))]), *found[:carried]]

        continues = lambda carry: w.op("icmp slt", self.as_value(carry[0].item()), count, dtype=BOOL)
        state = self.loop([object_array((), [np.int64(0)]), *start], flags, continues, body)[1:]
        self.empty_rows += [x for x in rows if x.size == 0]
        return [*state, *rows]


def emit(
    closed: ClosedJaxpr,
    variables: Sequence,
    varies: Sequence[bool],
    width: int,
    fused: bool,
    register: int | None = None,
    max_scalars: int = MAX_SCALARS,
    pack: int = 1,
    threads: bool = False,
    blocks: bool = False,
    in_place: bool = False,
) -> ProgramText:
    """Emits the program of a closed jaxpr of one lane, for vectors of ``width`` lanes,
    as a function with the C signature

        void motion(void** entries, void** results, void** given, void* work, int64_t lanes, int64_t rows)

    where ``given`` are the sequences that a `stream` reads, one entry per iteration, and ``work`` is scratch memory.
    With ``threads`` it is a kernel of a GPU, a thread for each lane, which takes the tables of pointers by value and
    has its own scratch memory.

    Args:
        closed: the jaxpr. What it closes over is a constant of the program unless it is among ``variables``.
        variables: inputs of the program, in the order of ``entries``.
        varies: for each input, whether it differs between lanes.
        width, register: lanes of a vector, and of a register if a vector takes several.
        fused: whether the processor has fused multiply-add.
        max_scalars: entries of the largest array that is taken apart into scalars.
        pack: in programs of a single lane, how many entries of an array are computed side by side in a vector; else 1.
        threads: whether lanes are threads of a GPU, with vectors of one lane.
        blocks: whether steps are made for a block of lanes before the next ones (`lane_blocks`),
            if the program can be cut so.
        in_place: whether the code of outlined functions stands wherever they are called.
    """
    with np.errstate(all="ignore"):  # of constants that are folded
        if blocks:
            try:
                return _emit(
                    closed, variables, varies, width, fused, register, max_scalars, pack, threads, True, in_place
                )
            except NoSections:
                pass
        return _emit(closed, variables, varies, width, fused, register, max_scalars, pack, threads, False, in_place)


def _emit(
    closed: ClosedJaxpr,
    variables: Sequence,
    varies: Sequence[bool],
    width: int,
    fused: bool,
    register: int | None,
    max_scalars: int,
    pack: int,
    threads: bool,
    blocks: bool,
    in_place: bool,
) -> ProgramText:
    """As `emit`; raises `NoSections` if the program cannot be cut into sections."""
    e = LLVMEmitter(width, register or width, fused, max_scalars, pack, threads)
    w, jaxpr, machine = e.w, closed.jaxpr, ScalarInterpreter(e)
    e.functions.read(closed, in_place)
    frame: ThreadGrid | VectorLoop
    if blocks:
        frame = e.blocks = LaneBlocks(w, width)
    else:
        frame = ThreadGrid(w) if threads else VectorLoop(w, width)
    sources = [
        arrays.ProgramInput(load_pointer(w, "entries", i), v.aval, x)
        for i, (v, x) in enumerate(zip(variables, varies, strict=True))
    ]
    # inputs shared by all lanes are read before the loop over vectors
    shared = {id(s): arrays.read_input(e, s) for s in sources if not s.is_vector}
    targets = [load_pointer(w, "results", i) for i in range(len(jaxpr.outvars))]
    frame.begin()
    if width > e.register:  # the padding of the last vector selects no branch
        indices = w.lane_indices(LaneValue("%lane", LONG, False))
        e.live = w.op("icmp slt", indices, LaneValue("%lanes", LONG, False), dtype=BOOL)
    machine.input_values = values = dict(
        zip(variables, (shared[id(s)] if id(s) in shared else arrays.read_input(e, s) for s in sources), strict=True)
    )
    found = machine.run(closed, [values[v] for v in jaxpr.invars])
    rows = [
        store_result(e, target, arrays.scalars_if_small(e, x)) or e.is_empty_row(x)
        for target, x in zip(targets, found, strict=True)
    ]
    frame.end()
    w.declared |= dict(e.constants.values())
    text = frame.module(len(variables), len(targets))
    return ProgramText(fuse_products(text) if fused and not threads else text, width, rows, w.scratch_bytes)


def load_pointer(w: Writer, table: str, i: int) -> str:
    """Emits the load of the i-th pointer of a table, and returns its name."""
    name = "%" + w.fresh_name("p")
    w.emit(f"{name}.at = getelementptr ptr, ptr %{table}, i64 {i}")
    w.emit(f"{name} = load ptr, ptr {name}.at")
    return name
