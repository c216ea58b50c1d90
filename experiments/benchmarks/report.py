"""The rows as a Markdown table, and what they were measured with."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax

import jaximpact as ji

from . import timing
from .baselines import native

PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "numba")


def about() -> dict:
    """Versions, processor and compilers; nothing that changes from run to run."""
    found = {"jaximpact": ji.__version__, "cpu": processor(), "machine": platform.machine(),
        "cores": timing.all_cores(), "device": str(jax.devices()[0]),
             "pinned": timing.CAN_PIN, "python": platform.python_version(),
             "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}  # fmt: skip
    compiler = native.compiler()
    if compiler:
        said = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
        found["compiler"] = (said.splitlines() or [Path(compiler).name])[0]
        found["compiler_flags"] = " ".join(native.FLAGS)
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def processor() -> str:
    """The processor's model, as the system names it."""
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if shutil.which("sysctl"):
        return subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True
        ).stdout.strip()
    return platform.processor()


def number(x, style: str = ".3g") -> str:
    return "" if x is None else f"{x:{style}}"


COLUMNS = {
    "work": lambda row: row["work"],
    "lanes": lambda row: f"{row['lanes']}",
    "constraints": lambda row: f"{row['constraints']}",
    "derivative": lambda row: row["mode"],
    "program": lambda row: row["contender"],
    "numbers": lambda row: row["dtype"],
    "cores": lambda row: f"{row.get('cores', '')}",
    "ns per trajectory-step": lambda row: number(row["ns_per_step"]) if "ns_per_step" in row else row.get("remark", ""),
    "ratio": lambda row: number(row.get("ratio")),
    "difference": lambda row: number(row.get("difference"), ".0e"),
    "error": lambda row: number(row.get("error"), ".1e"),
    "residual": lambda row: number(row.get("residual"), ".0e"),
    "compiling": lambda row: f"{row['compile_s']:.1f} s" if "compile_s" in row else "",
    "bytes per trajectory-step": lambda row: number(row.get("bytes_per_step"), ".3g"),
    "limit by bytes [ns]": lambda row: number(row.get("bytes_limit_ns")),
    "limit by arithmetic [ns]": lambda row: number(row.get("flops_limit_ns")),
}
BASIC = (
    "work",
    "lanes",
    "program",
    "numbers",
    "cores",
    "ns per trajectory-step",
    "ratio",
    "difference",
    "error",
    "compiling",
)
SECTIONS = {
    "values": ("Values", BASIC),
    "derivatives": (
        "Derivatives",
        ("work", "lanes", "derivative", *BASIC[2:7], "error", "compiling", "bytes per trajectory-step"),
    ),
    "peers": ("Other simulators", ("work", "lanes", "program", "cores", "ns per trajectory-step", "ratio", "error",
    "compiling")),
    "contacts": ("Many contacts", ("work", "constraints", "program", "cores", "ns per trajectory-step", "ratio",
    "residual", "difference", "compiling")), "accelerator": (
        "Accelerator",
        ("work", "lanes", "numbers", "program", "ns per trajectory-step", "limit by bytes [ns]", "limit by arithmetic "
            "[ns]",
         "error", "compiling"),
    ),
}  # fmt: skip
LEGEND = """\
Time is the shortest of several rounds in which the programs of one work and number of lanes run in turn, on one core \
or on all, in a process that has these from its start; other simulators run by themselves, on one core. Ratio is to the first program of the \
same work, lanes and cores. Difference: largest \
distance of a final position from the first program's, which moves by a step where rounding moves an impact. Error: largest \
distance of a final position from the motion itself (event location); of a derivative, the median over lanes of its \
largest error relative to the largest entry. Residual: largest of the complementarity conditions of all steps, a velocity \
[m/s]. Compiling: first call less a later one. A program \
that chooses its own steps is counted as making those of the work.
"""  # noqa: E501


def section(row: dict) -> str:
    """The part of the table that a row belongs to."""
    if "section" in row:
        return row["section"]
    return "values" if row["mode"] == "forward" else "derivatives"


def with_ratios(rows: list[dict]) -> list[dict]:
    """Rows with the ratio of their time to that of the first of the same work, lanes and cores: among derivatives the
    first of those, elsewhere the first of the values."""
    base: dict = {}
    found = []
    for row in rows:
        kind = section(row)
        key = kind == "derivatives", row["work"], row["lanes"], row.get("cores")
        if "ns_per_step" in row:
            if kind in ("values", "derivatives"):
                base.setdefault(key, row["ns_per_step"])
            if key in base and "ratio" not in row:  # rows of a process of its own bring theirs
                row = row | {"ratio": row["ns_per_step"] / base[key]}
        found.append(row)
    return found


def table(rows: list[dict], earlier: Collection[str] = ()) -> str:
    """All rows, a table for every section that has some; those ``earlier`` are of another run."""
    rows = with_ratios(rows)
    parts = [LEGEND]
    for key, (title, columns) in SECTIONS.items():
        mine = [row for row in rows if section(row) == key]
        if not mine:
            continue
        lines = [f"## {title}", "", "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
        lines += ["| " + " | ".join(COLUMNS[column](row) for column in columns) + " |" for row in mine]
        if key in earlier:
            lines.insert(2, "Recorded earlier, with an older version of this library.\n")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


QUOTED = {
    ("ball", 100_000): "bouncing ball, 100,000 lanes",
    ("forced-oscillator", 100_000): "oscillator that is shaken beside a wall, 100,000 lanes",
    ("double-pendulum", 1000): "double pendulum, M(q), two stops, 1000 lanes",
    ("double-pendulum", 10_000): "the same, 10,000 lanes",
    ("double-long", 1): "the same, one lane",
}
PROGRAMS = ("C++ SIMD", "C++", "numba", "plain JAX")


def rounded(x: float | None) -> str:
    """Two digits; thousands set apart."""
    return "–" if x is None else f"{x:,.0f}" if x >= 100 else f"{x:.2g}"


def summary(rows: list[dict]) -> str:
    """What the README quotes: float64, one core, ns per trajectory-step."""
    lines = ["| | C++ | numba | plain `vmap(scan)` | jaximpact |", "|---|---|---|---|---|"]
    for (work, lanes), title in QUOTED.items():
        mine = [r for r in rows if section(r) == "values" and (r["work"], r["lanes"]) == (work, lanes)]
        mine = [r for r in mine if r["dtype"] == "float64" and r.get("cores") == 1 and "ns_per_step" in r]
        if not mine:
            continue
        times = {r["contender"]: r["ns_per_step"] for r in mine}
        ours = min(ns for name, ns in times.items() if name not in PROGRAMS)
        others = [times.get("C++ SIMD", times.get("C++")), times.get("numba"), times.get("plain JAX")]
        lines.append(f"| {title} | " + " | ".join(map(rounded, (*others, ours))) + " |")
    return "\n".join(lines) + "\n"
