"""What an NVIDIA H100 would be given: ensembles compiled to kernels for one, on a machine that has none.
Nothing is run, no time is told.

    pip install nvidia-cuda-nvcc-cu12 nvidia-cuda-nvdisasm       # NVIDIA's assembler and its inverse, unless a CUDA toolkit is there
    python experiments/benchmarks/without_device.py --out out/compiled
    python experiments/benchmarks/without_device.py --only ball

Counted are, in the machine code: registers of a thread; bytes that do not fit and are stored and loaded elsewhere;
instructions of floating-point units (sums, products, both at once, comparisons, reciprocals) that a lane's step takes
at least: the shortest way through the loop over steps, which is that of a step that touches nothing; and all that stand
in the loop, each once. The limit is what the shortest way takes at 132 multiprocessors x 64 (float32: 128) such
instructions a clock, 1.98 GHz. Operations are those of the virtual code along its shortest way, a product with a sum
counted as two, a division or root as one: as those of the handwritten C++ loop are counted (`accelerator.FLOPS`).
Compiling is the processor time of tracing, LLVM and NVIDIA's assembler.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

WORKS = ("ball", "double-pendulum", "links-4")
UNITS, CLOCK = {"float64": 132 * 64, "float32": 132 * 128}, 1.98  # a clock; clocks a nanosecond


def kernel_code(name: str, dtype: str) -> str:
    """PTX of a work's ensemble of final states."""
    import jax

    from benchmarks import works
    from jaximpact.compiler.gpu.kernel import kernel_of
    from jaximpact.simulation import backends
    from jaximpact.simulation.call import Call, for_lanes
    from jaximpact.simulation.trajectory import trajectory

    jax.config.update("jax_enable_x64", dtype == "float64")
    work = works.WORKS[name]
    q0, v0 = (x.astype(dtype) for x in work.initial(2))
    program, lanes = for_lanes(Call(work.problem, q0, v0, work.t1, work.h, e=work.restitution, args=work.args))
    operands = program.without_rows, lanes.take(slice(0, 2))
    return kernel_of(backends.one_lane, (None, lanes.in_axes), operands, task=trajectory)


# what a step takes


class Block(NamedTuple):
    """Instructions without a jump among them, and the names of the blocks that may follow."""

    instructions: list[str]
    after: list[str]


def blocks(lines: Iterable[tuple[str, str, str, bool]]) -> dict[str, Block]:
    """From (label, operation, target of a jump, whether it is always taken), one of them for each line."""
    found: dict[str, Block] = {}
    previous = None
    for number, (label, operation, target, always) in enumerate(lines):
        if label or previous is None:
            name = label or f"#{number}"
            if previous is not None:
                previous.after.append(name)
            previous = found[name] = Block([], [])
        if operation:
            previous.instructions.append(operation)
        if target:
            previous.after.append(target)
            following = found[f"#{number}"] = Block([], [])
            if not always:
                previous.after.append(f"#{number}")
            previous = following
    return found


def reached(code: dict[str, Block], start: str, within: set[str]) -> set[str]:
    """The blocks of a set that may follow a block, at once or later."""
    seen: set[str] = set()
    todo = [start]
    while todo:
        new = {after for after in code[todo.pop()].after if after in within} - seen
        seen |= new
        todo += new
    return seen


def cycles(code: dict[str, Block], within: set[str]) -> list[set[str]]:
    """The sets of blocks from each of which all others are reached, loops with what is in them."""
    after = {name: reached(code, name, within) for name in within}
    found: list[set[str]] = []
    for name in within:
        if name in after[name] and not any(name in group for group in found):
            found.append({other for other in after[name] if name in after[other]})
    return found


def step_of(code: dict[str, Block], weigh: Callable[[str], float]) -> tuple[float, float]:
    """Of the loop over steps, the largest: the weight of the shortest way through it, and of all that stands in it."""
    weight = {name: sum(map(weigh, block.instructions)) for name, block in code.items()}
    first = next(iter(code))
    alive = {first} | reached(code, first, set(code))
    whole = max(cycles(code, alive), key=lambda group: sum(len(code[name].instructions) for name in group))
    [head] = whole & {after for name in alive - whole for after in code[name].after}
    shortest = float("inf")
    least, todo = {head: weight[head]}, [head]
    while todo:
        name = todo.pop()
        for after in code[name].after:
            if after == head:
                shortest = min(shortest, least[name])
            elif after in whole and least[name] + weight[after] < least.get(after, float("inf")):
                least[after] = least[name] + weight[after]
                todo.append(after)
    return shortest, sum(weight[name] for name in whole)


def machine_code(text: str) -> Iterable[tuple[str, str, str, bool]]:
    """Lines of the first function of a disassembly."""
    for line in text.split(".text.", 2)[-1].splitlines():
        if label := re.match(r"(\.L_x_\w+|\$\w+):", line.strip()):
            yield label[1], "", "", False
        elif found := re.search(r"\*/\s+(@!?U?P\w+ )?([A-Z][\w.]*)(.*?);", line):
            guard, name, rest = found.groups()
            target = re.search(r"`\((\.L_x_\w+)\)", rest)
            jumps = name.startswith("BRA") and target
            always = not guard and "BRA.DIV" not in name and not re.match(r"\s*U?!?U?P\d", rest)
            yield "", name, target[1] if jumps else "" if name != "EXIT" or guard else ".end", bool(always)
    yield ".end", "", "", False


def virtual_code(text: str) -> Iterable[tuple[str, str, str, bool]]:
    """Lines of virtual code."""
    for line in text.splitlines():
        if label := re.match(r"(\$\w+):", line):
            yield label[1], "", "", False
        elif found := re.match(r"\s*(@!?%p\d+\s+)?([a-z][\w.]*)\s*([^;]*);", line):
            guard, name, rest = found.groups()
            target = rest.strip() if name.startswith("bra") else ".end" if name in ("ret", "exit") else ""
            yield "", name, target, not guard
    yield ".end", "", "", False


FLOATS = {"float64": r"D(ADD|MUL|FMA|SETP|MNMX)|MUFU\.\w+64", "float32": r"F(ADD|MUL|FMA|SETP|MNMX)|MUFU\.\w+"}


def _processor_seconds() -> float:
    """Of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def row(name: str, dtype: str) -> dict:
    from benchmarks.accelerator import FLOPS

    begin = _processor_seconds()
    code = kernel_code(name, dtype)
    with tempfile.TemporaryDirectory() as temporary:
        virtual, binary = Path(temporary) / "kernel.ptx", Path(temporary) / "kernel.cubin"
        virtual.write_text(code)
        said = subprocess.run(
            [tool("ptxas"), "-v", "-arch=sm_90", virtual, "-o", binary], capture_output=True, text=True, check=True
        )
        seconds = _processor_seconds() - begin
        text = subprocess.run([tool("nvdisasm"), "-c", binary], capture_output=True, text=True, check=True).stdout
    said = said.stderr[said.stderr.index("'motion'") :]
    registers = re.search(r"Used (\d+) registers", said)
    spills = [int(x) for x in re.findall(r"(\d+) bytes spill", said)[:2]]
    floats = re.compile(FLOATS[dtype])
    calm, whole = step_of(blocks(machine_code(text)), lambda x: bool(floats.match(x)))
    kind = dtype.replace("float", "f")
    counted = re.compile(rf"(add|sub|mul|fma|div|sqrt|rcp|min|max)\.(\w+\.)*{kind}$")
    count = lambda x: (2 if x.startswith("fma") else 1) if counted.match(x) else 0
    operations, _ = step_of(blocks(virtual_code(code[code.index(".entry") :])), count)
    return {
        "work": name, "dtype": dtype, "registers": int(registers[1]), "spilled_bytes": sum(spills),
        "instructions": calm, "instructions_in_loop": whole,
        "limit_ns": calm / (UNITS[dtype] * CLOCK), "operations": operations, "operations_cpp": FLOPS[name],
        "compile_s": seconds,
    }  # fmt: skip


def tool(name: str) -> Path:
    """A program of the compiler, of a CUDA toolkit or among the packages of this environment."""
    if there := shutil.which(name) or next(iter(sorted(Path("/usr/local").glob(f"cuda*/bin/{name}"))), None):
        return Path(there)
    from importlib.util import find_spec

    packages = find_spec("nvidia")
    places = packages.submodule_search_locations if packages else ()
    found = [path for root in places for path in Path(root).glob(f"*/bin/{name}")]
    if not found:
        raise FileNotFoundError(f"{name} is missing: pip install nvidia-cuda-nvcc-cu12 nvidia-cuda-nvdisasm")
    return found[0]


def table(rows: list[dict]) -> str:
    lines = ["| work | numbers | registers | bytes spilled | floating-point instructions of a step that touches "
             "nothing | of all "
             "in the loop | limit [ns a trajectory-step] | operations, to C++ | compiling |",
             "|---" * 9 + "|"]  # fmt: skip
    for x in rows:
        ratio = f"{x['operations']} / {x['operations_cpp']} = {x['operations'] / x['operations_cpp']:.1f}"
        lines.append(f"| {x['work']} | {x['dtype']} | {x['registers']} | {x['spilled_bytes']} | {x['instructions']} | "
                     f"{x['instructions_in_loop']} "
                     f"| {x['limit_ns']:.2g} | {ratio} | {x['compile_s']:.1f} s |")  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/compiled"))
    parser.add_argument("--only", nargs="+", choices=WORKS, default=WORKS)
    parser.add_argument("--numbers", nargs="+", choices=list(UNITS), default=list(UNITS))
    options = parser.parse_args()
    rows = []
    for name in options.only:
        for dtype in options.numbers:
            rows.append(row(name, dtype))
            print(rows[-1], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "compiled.json").write_text(json.dumps(rows, indent=1) + "\n")
    (options.out / "compiled.md").write_text(table(rows))


if __name__ == "__main__":
    main()
