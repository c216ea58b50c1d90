"""The function around the program of one lane: a loop over vectors of lanes on a CPU,
or a kernel with a thread for each lane on a GPU.

Both define names in the IR: ``%lane``, the number of the lane, or of the first lane of a vector; and ``%row``, the
padded number of lanes. The lanes of an entry are contiguous in memory,
so that this is the distance from one entry to the next.
"""

from __future__ import annotations

from .ir_lines import join_lines
from .ir_values import LONG, LaneValue, constant
from .ir_writer import Writer

FUNCTION_NAME = "motion"
MAX_GIVEN = 8  # sequences of a `stream`, in a kernel
THREAD_NUMBERS = ("ctaid", "ntid", "tid")  # special registers: number of the block, threads of a block, number in it


class VectorLoop:
    """A loop over vectors of lanes, in a function with the C signature of `emitter.emit`."""

    def __init__(self, w: Writer, width: int) -> None:
        self.w, self.width = w, width
        w.emit(f"%above = add i64 %lanes, {width - 1}")
        w.emit(f"%blocks = udiv i64 %above, {width}")
        w.emit(f"%row = mul i64 %blocks, {width}")

    def begin(self) -> None:
        """Begins the part of the program that runs for each vector of lanes."""
        w = self.w
        w.jump("block")
        w.begin_block("block")
        self.number = w.phi(LONG, False, [(constant(0, LONG), "entry")])
        w.emit(f"%lane = mul i64 {self.number.name}, {self.width}")

    def end(self) -> None:
        """Ends the loop and the function."""
        w = self.w
        w.emit(f"%next = add i64 {self.number.name}, 1")
        w.emit("%more = icmp slt i64 %next, %blocks")
        w.close_loop([self.number], [LaneValue("%next", LONG, False)])
        w.emit("br i1 %more, label %block, label %done")
        w.begin_block("done")
        w.emit("ret void")

    def module(self, inputs: int, results: int) -> str:
        """Returns the IR of the module: the function, and the functions that it calls; ``inputs``, ``results``:
        numbers of arrays."""
        parameters = (
            "ptr noalias %entries, ptr noalias %results, ptr noalias %given, ptr noalias %work, i64 %lanes, i64 %rows"
        )
        # spilled vectors lie on the stack: aligned to a cache line, none of them crosses two
        return _module_text(self.w, f"define void @{FUNCTION_NAME}({parameters}) nounwind alignstack(64)", [])


class ThreadGrid:
    """A GPU kernel whose threads compute one lane each; it takes the tables of pointers by value, and each thread has
    its own scratch memory."""

    def __init__(self, w: Writer) -> None:
        self.w = w
        block, size, thread = (self._register(name) for name in THREAD_NUMBERS)
        w.emit(f"%blocks.before = mul i32 {block}, {size}")
        w.emit(f"%thread = add i32 %blocks.before, {thread}")
        w.emit("%lane = zext i32 %thread to i64")
        w.emit("%row = add i64 %lanes, 0")
        w.emit("%exists = icmp slt i64 %lane, %lanes")
        w.emit("br i1 %exists, label %begin, label %done")
        w.begin_block("begin")

    def _register(self, name: str) -> str:
        function = f"@llvm.nvvm.read.ptx.sreg.{name}.x"
        self.w.declared[function] = f"declare i32 {function}()"
        self.w.emit(f"%{name} = call i32 {function}()")
        return f"%{name}"

    def begin(self) -> None:
        """Emits nothing: the whole program runs in each thread."""

    def end(self) -> None:
        """Ends the kernel."""
        self.w.jump("done")
        self.w.begin_block("done")
        self.w.emit("ret void")

    def module(self, inputs: int, results: int) -> str:
        """Returns the IR of the module: the kernel, and the functions that it calls; ``inputs``, ``results``:
        numbers of arrays."""
        table = lambda name, count: f"ptr byval([{max(count, 1)} x ptr]) align 8 %{name}"
        parameters = f"{table('entries', inputs)}, {table('results', results)}, {table('given', MAX_GIVEN)}, i64 %lanes, i64 %rows"  # noqa: E501
        work = [f"  %work = alloca [{self.w.scratch_bytes} x i8], align 64"] if self.w.scratch_bytes else []
        return _module_text(self.w, f"define ptx_kernel void @{FUNCTION_NAME}({parameters}) nounwind", work)


def _module_text(w: Writer, head: str, first: list[str]) -> str:
    """Returns the IR of a module: a function with the line ``head``, the lines ``first`` and the writer's lines; then
    the functions it calls."""
    body, others = join_lines([*first, *w.entry_lines, *w.lines]), "\n".join(w.declared.values())
    return f"{head} {{\nentry:\n{body}\n}}\n{others}\n"
