"""What an NVIDIA H100 would be given: ensembles compiled for one, on a machine that has none. Nothing is run, no time is told.

    pip install 'jax[cuda12]' nvidia-cuda-nvdisasm       # the compiler, 3 GB: in an environment of its own
    python experiments/benchmarks/without_device.py --out out/compiled
    python experiments/benchmarks/without_device.py --only ball --ways kernel

Final states of a million lanes, by XLA and as one kernel, a process for each. Counted are

- by XLA, in the optimised program: what the host launches in one turn of the loop over steps, kernels and copies of arrays; the
  predicates that it waits for, one a turn of every loop whose length it does not know and one a choice; what the turns of inner
  loops launch; and, where steps are made in segments, what a segment launches besides.
- of the kernel, in the machine code: registers of a thread; bytes that do not fit and are stored and loaded elsewhere; instructions
  of floating-point units (sums, products, both at once, comparisons, reciprocals) that a lane's step takes at least: the shortest
  way through the loop over steps, which is that of a step that touches nothing; and all that stand in the loop, each once. The limit is
  what the shortest way takes at 132 multiprocessors x 64 (float32: 128) such instructions a clock, 1.98 GHz. Operations are those of
  the virtual code along its shortest way, a product with a sum counted as two, a division or root as one: as those of the handwritten
  C++ loop are counted (`accelerator.FLOPS`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

LANES = 1_000_000
WORKS = ("ball", "double-pendulum", "links-4")
WAYS = ("xla", "kernel")
UNITS, CLOCK = {"float64": 132 * 64, "float32": 132 * 128}, 1.98  # a clock; clocks a nanosecond
# what an H100 SXM tells of itself, as XLA asks for it
DEVICE = {
    "threads_per_block_limit": 1024, "threads_per_warp": 32, "threads_per_core_limit": 2048, "shared_memory_per_block": 49_152,
    "shared_memory_per_block_optin": 232_448, "shared_memory_per_core": 233_472, "core_count": 132, "fpus_per_core": 128,
    "clock_rate_ghz": CLOCK, "block_dim_limit_x": 2**31 - 1, "block_dim_limit_y": 65_535, "block_dim_limit_z": 65_535,
    "registers_per_core_limit": 65_536, "registers_per_block_limit": 65_536, "memory_bandwidth": 3_352_320_000_000,
    "l2_cache_size": 52_428_800, "device_memory_size": 84_929_347_584,
}  # fmt: skip


# compiling, in a process that was told where to leave what it makes


def compile_row(name: str, dtype: str, way: str, folder: Path) -> None:
    """Compile a work for the device; its program and the processor seconds that it took are left in the folder."""
    import jax
    import numpy as np

    from benchmarks import works
    from jaximpact.compiler.gpu import triton as kernel
    from jaximpact.simulation import backends as execution
    from jaximpact.simulation.arguments import for_lanes
    from jaximpact.simulation.trajectory import trajectory

    work = works.WORKS[name]
    q0, v0 = (x.astype(dtype) for x in work.initial(2))
    given = (0.0, work.t1, work.h, work.restitution, work.args, None, None, None, "final", None)
    program, lanes = for_lanes(work.problem, q0, v0, *given)
    leaves, structure = jax.tree.flatten(lanes.motion)
    place = sharding()

    def shape(x, axis):
        x = np.asarray(x)
        return jax.ShapeDtypeStruct((LANES, *x.shape[1:]) if axis == 0 else x.shape, x.dtype, sharding=place)

    motion = jax.tree.unflatten(structure, [shape(x, a) for x, a in zip(leaves, lanes.axes, strict=True)])
    if way == "xla":
        branch_free = program.replace(branch_free=True)
        call = lambda motion: execution.vmap_lanes(lambda one: trajectory(branch_free, one), motion, lanes.axes, 1)
    else:
        branching = program.replace(per_lane_branches=True)
        call = kernel.over_lanes(lambda one: trajectory(branching, one), (lanes.in_axes,), sys.maxsize)
    begin = time.process_time()
    traced = jax.jit(call, in_shardings=place, out_shardings=place).trace(motion)
    compiled = traced.lower(lowering_platforms=("cuda",)).compile()
    (folder / "seconds").write_text(str(time.process_time() - begin))
    (folder / "program.txt").write_text(compiled.as_text())


def sharding():
    """All on one device that is described, not there."""
    import jax
    import numpy as np
    from jax._src import xla_bridge
    from jax.experimental import topologies

    known = xla_bridge.canonicalize_platform
    # without a device jax has no platform of the name by which pallas asks for it
    xla_bridge.canonicalize_platform = lambda platform: "cuda" if platform == "gpu" else known(platform)
    numbers = " ".join(f"{key}: {value}" for key, value in DEVICE.items())
    described = f"""
        gpu_device_info {{ {numbers} cuda_compute_capability {{ major: 9 }} }}
        platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 7 }} runtime_version {{ major: 12 minor: 8 }}
        device_description_str: "NVIDIA H100 80GB HBM3"
    """
    there = topologies.get_topology_desc("h100", platform="cuda", target_config=described, topology="1x1x1")
    mesh = jax.sharding.Mesh(np.array(there.devices), ("device",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


# by XLA: what is launched


class Launches(NamedTuple):
    """What a turn of a loop launches: kernels, copies, predicates, and the same of the loops within."""

    kernels: int
    copies: int
    predicates: int
    inner: list[Launches]
    fixed: bool  # whether the host knows how many turns there are


NOTHING = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "while",
    "conditional",
    "copy",
    "after-all",
    "partition-id",
}


def launches(text: str) -> Launches:
    """Of the loop over steps of an optimised program."""
    computations: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if head := re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            lines = computations[head[1]] = []
            entry = head[1] if line.startswith("ENTRY") else ""
        elif " = " in line:
            lines.append(line)
    operation = re.compile(r" = .*? ([\w\-]+)\(")

    def of(name: str, fixed: bool) -> Launches:
        found = [(m[1], line) for line in computations[name] if (m := operation.search(line))]
        count = Counter(what for what, _ in found)
        inner = []
        for what, line in found:
            if what == "while":
                condition, body = (re.search(rf"{key}=%?([\w.\-]+)", line)[1] for key in ("condition", "body"))
                known = "known_trip_count" in line
                turn, test = of(body, known), of(condition, known)
                inner.append(turn if known else turn._replace(kernels=turn.kernels + test.kernels))
        predicates = count["conditional"] + (not fixed)
        return Launches(
            sum(n for what, n in count.items() if what not in NOTHING), count["copy"], predicates, inner, fixed
        )

    return max(of(entry, True).inner, key=lambda loop: loop.kernels)


def by_xla(folder: Path) -> dict:
    loop = launches((folder / "program.txt").read_text())
    segment = next((x for x in loop.inner if x.fixed), None)
    step = segment or loop
    turns = lambda loop: [{"kernels": x.kernels, "copies": x.copies, "turns": turns(x)} for x in loop.inner]
    found = {"kernels": step.kernels, "copies": step.copies, "predicates": predicates(step), "turns": turns(step)}
    if segment:
        found["segment"] = {"kernels": loop.kernels, "copies": loop.copies, "predicates": loop.predicates}
    return found


def predicates(loop: Launches) -> int:
    """In a turn, of every loop within once."""
    return loop.predicates + sum(map(predicates, loop.inner))


# as one kernel: what a step takes


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


def as_kernel(name: str, dtype: str, folder: Path) -> dict:
    from benchmarks.accelerator import FLOPS

    [virtual] = [x for x in folder.glob("*.ptx") if re.search(r"\.entry body\b", x.read_text())]
    binary = folder / "kernel.cubin"
    said = subprocess.run(
        [tool("ptxas"), "-v", "-arch=sm_90a", virtual, "-o", binary], capture_output=True, text=True, check=True
    )
    text = subprocess.run([tool("nvdisasm"), "-c", binary], capture_output=True, text=True, check=True).stdout
    registers = re.search(r"Used (\d+) registers", said.stderr)
    spills = [int(x) for x in re.findall(r"(\d+) bytes spill", said.stderr)]
    floats = re.compile(FLOATS[dtype])
    calm, whole = step_of(blocks(machine_code(text)), lambda x: bool(floats.match(x)))
    kind = dtype.replace("float", "f")
    counted = re.compile(rf"(add|sub|mul|fma|div|sqrt|rcp|min|max)\.(\w+\.)*{kind}$")
    count = lambda x: (2 if x.startswith("fma") else 1) if counted.match(x) else 0
    operations, _ = step_of(blocks(virtual_code(virtual.read_text())), count)
    return {
        "registers": int(registers[1]), "spilled_bytes": sum(spills), "instructions": calm, "instructions_in_loop": whole,
        "limit_ns": calm / (UNITS[dtype] * CLOCK), "operations": operations, "operations_cpp": FLOPS[name],
    }  # fmt: skip


def tool(name: str) -> Path:
    """A program of the compiler, among the packages of this environment."""
    import nvidia

    found = [path for root in nvidia.__path__ for path in Path(root).glob(f"*/bin/{name}")]
    if not found:
        raise FileNotFoundError(f"{name} is missing: pip install 'jax[cuda12]' nvidia-cuda-nvdisasm")
    return found[0]


# rows and tables


def row(name: str, dtype: str, way: str) -> dict:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        told = {
            "JAX_PLATFORMS": "cpu",
            "JAX_ENABLE_X64": str(int(dtype == "float64")),
            "XLA_FLAGS": f"--xla_dump_to={folder}",
        }
        command = [sys.executable, "-W", "ignore", __file__, "--row", name, dtype, way, str(folder)]
        subprocess.run(command, env=os.environ | told, check=True, stdout=sys.stderr)
        found = by_xla(folder) if way == "xla" else as_kernel(name, dtype, folder)
        return (
            {"work": name, "dtype": dtype, "way": way} | found | {"compile_s": float((folder / "seconds").read_text())}
        )


def turns_of(loops: list[dict]) -> str:
    """Kernels + copies a turn, of loops within in brackets."""
    text = lambda x: f"{x['kernels']} + {x['copies']}" + (f" ({turns_of(x['turns'])})" if x["turns"] else "")
    return ", ".join(map(text, loops)) or "none"


def table(rows: list[dict]) -> str:
    lines = ["By XLA, a step:", "", "| work | numbers | kernels | copies | predicates | a turn of inner loops | besides, a segment of 15 steps | compiling |",
             "|---" * 8 + "|"]  # fmt: skip
    for x in (x for x in rows if x["way"] == "xla"):
        s = x.get("segment")
        besides = f"{s['kernels']} kernels, {s['copies']} copies, {s['predicates']} predicates" if s else ""
        lines.append(
            f"| {x['work']} | {x['dtype']} | {x['kernels']} | {x['copies']} | {x['predicates']} | {turns_of(x['turns'])} | {besides} | {x['compile_s']:.1f} s |"
        )
    lines += ["", "As one kernel:", "", "| work | numbers | registers | bytes spilled | floating-point instructions of a step that touches nothing | of all "
              "in the loop | limit [ns a trajectory-step] | operations, to C++ | compiling |", "|---" * 9 + "|"]  # fmt: skip
    for x in (x for x in rows if x["way"] == "kernel"):
        ratio = f"{x['operations']} / {x['operations_cpp']} = {x['operations'] / x['operations_cpp']:.1f}"
        lines.append(f"| {x['work']} | {x['dtype']} | {x['registers']} | {x['spilled_bytes']} | {x['instructions']} | {x['instructions_in_loop']} "
                     f"| {x['limit_ns']:.2g} | {ratio} | {x['compile_s']:.1f} s |")  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/compiled"))
    parser.add_argument("--only", nargs="+", choices=WORKS, default=WORKS)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--numbers", nargs="+", choices=list(UNITS), default=list(UNITS))
    parser.add_argument("--row", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        return compile_row(*options.row[:3], Path(options.row[3]))
    rows = []
    for way in options.ways:
        for name in options.only:
            for dtype in options.numbers:
                rows.append(row(name, dtype, way))
                print(rows[-1], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "compiled.json").write_text(json.dumps(rows, indent=1) + "\n")
    (options.out / "compiled.md").write_text(table(rows))


if __name__ == "__main__":
    main()
