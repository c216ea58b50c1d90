"""Writer of native loops over the contacts of bodies, and calls of what it wrote, a lane at a time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from ..compiler.llvm.jit import MachineCode
from ..compiler.llvm.lane_frames import FUNCTION_NAME
from ..compiler.llvm.xla_ffi import lane_pool

if TYPE_CHECKING:
    from llvmlite import ir

FAST = ("reassoc", "nsz", "contract", "arcp")  # sums in any order, but what is no number stays so


class KernelWriter:
    """Writes an LLVM function: arithmetic, access to arrays, variables and loops."""

    def __init__(self, real: type) -> None:
        from llvmlite import ir

        self.ir = ir
        self.real, self.int, self.long = (
            (ir.DoubleType() if real == np.float64 else ir.FloatType()),
            ir.IntType(32),
            ir.IntType(64),
        )
        self.pointer = ir.PointerType()
        self.module = ir.Module()
        kind = ir.FunctionType(ir.VoidType(), [self.pointer] * 4 + [self.long] * 2)
        self.function = ir.Function(self.module, kind, FUNCTION_NAME)
        self.at = ir.IRBuilder(self.function.append_basic_block("entry"))

    # numbers

    def number(self, value: float) -> ir.Value:
        return self.ir.Constant(self.real, float(value))

    def whole(self, value: int) -> ir.Value:
        return self.ir.Constant(self.long, value)

    def add(self, *terms: ir.Value) -> ir.Value:
        total = terms[0]
        for x in terms[1:]:
            total = self.at.fadd(total, x, flags=FAST)
        return total

    def sub(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.at.fsub(a, b, flags=FAST)

    def mul(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.at.fmul(a, b, flags=FAST)

    def div(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.at.fdiv(a, b, flags=FAST)

    def less(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.at.fcmp_ordered("<", a, b)

    def smaller(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.at.select(self.less(a, b), a, b)

    def larger(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.at.select(self.less(a, b), b, a)

    def either(self, which: ir.Value, yes: ir.Value, no: ir.Value) -> ir.Value:
        return self.at.select(which, yes, no)

    def size(self, a: ir.Value) -> ir.Value:
        return self.call("fabs", a)

    def sqrt(self, a: ir.Value) -> ir.Value:
        return self.call("sqrt", a)

    def call(self, name: str, a: ir.Value) -> ir.Value:
        function = self.module.declare_intrinsic(f"llvm.{name}", [self.real])
        return self.at.call(function, [a])

    def real_of(self, k: ir.Value) -> ir.Value:
        return self.at.sitofp(k, self.real)

    # memory

    def place(self, array: ir.Value, k: ir.Value, kind: ir.Type) -> ir.Value:
        return self.at.gep(array, [k], inbounds=True, source_etype=kind)

    def get(self, array: ir.Value, k: ir.Value) -> ir.Value:
        return self.at.load(self.place(array, k, self.real), typ=self.real)

    def put(self, array: ir.Value, k: ir.Value, value: ir.Value) -> None:
        self.at.store(value, self.place(array, k, self.real))

    def index(self, array: ir.Value, k: ir.Value) -> ir.Value:
        return self.at.sext(self.at.load(self.place(array, k, self.int), typ=self.int), self.long)

    def put_index(self, array: ir.Value, k: ir.Value, value: ir.Value) -> None:
        self.at.store(self.at.trunc(value, self.int), self.place(array, k, self.int))

    def entry(self, table: ir.Value, k: int) -> ir.Value:
        """Loads the k-th pointer of a table of pointers."""
        return self.at.load(self.place(table, self.whole(k), self.pointer), typ=self.pointer)

    def variable(self, value: ir.Value) -> LoopVariable:
        with self.at.goto_entry_block():
            address = self.at.alloca(value.type)
        found = LoopVariable(self, address, value.type)
        found.set(value)
        return found

    # control

    @contextmanager
    def over(self, count: ir.Value) -> Iterator[ir.Value]:
        """Context whose body is a loop over 0 ... count - 1; yields the index."""
        k = self.variable(self.whole(0))
        with self.loop(lambda: self.at.icmp_signed("<", k.get(), count)):
            yield k.get()
            k.set(self.at.add(k.get(), self.whole(1)))

    @contextmanager
    def loop(self, continues: Callable[[], ir.Value]) -> Iterator[None]:
        """Context whose body is a loop that runs while ``continues()``."""
        head, body, end = (self.function.append_basic_block(name) for name in ("head", "body", "end"))
        self.at.branch(head)
        self.at.position_at_end(head)
        self.at.cbranch(continues(), body, end)
        self.at.position_at_end(body)
        yield
        self.at.branch(head)
        self.at.position_at_end(end)


class LoopVariable:
    """A mutable variable on the stack."""

    def __init__(self, w: KernelWriter, address: ir.Value, kind: ir.Type) -> None:
        self.w, self.address, self.kind = w, address, kind

    def get(self) -> ir.Value:
        return self.w.at.load(self.address, typ=self.kind)

    def set(self, value: ir.Value) -> None:
        self.w.at.store(value, self.address)

    def plus(self, value: ir.Value) -> None:
        self.set(self.w.add(self.get(), value))


def call_lane(code: MachineCode, arrays: Iterable[list[np.ndarray]], m: int, bodies: int) -> None:
    """Calls a solver for one lane of m contacts; ``arrays``: its operands, its results and its working memory,
    a list of arrays each."""
    operands, results, own = ((ctypes.c_void_p * len(x))(*(y.ctypes.data for y in x)) for x in arrays)
    code.call(operands, results, None, ctypes.addressof(own), m, bodies)


def over_lanes(lane: Callable[[int], None], number: int) -> None:
    """Calls ``lane`` for each of a number of lanes, several of them at a time."""
    if number == 1:
        lane(0)
    else:
        list(lane_pool().map(lane, range(number)))
