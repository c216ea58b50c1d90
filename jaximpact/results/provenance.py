"""Provenance: versions, device and processor. Computations of equal provenance agree to the last bit,
others up to rounding."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax
import jaxlib
import numpy as np

from ..version import __version__
from .safe_reading import JsonObject

MATTERS = ("jaximpact", "jax", "jaxlib", "llvmlite", "device", "processor")  # to the last bits of results
TRACED = (*MATTERS, "numpy")  # to the program that jax makes of a function
# Settings of jax that change numbers; a worker computes with those of the study.
SETTINGS = ("enable_x64", "numpy_dtype_promotion", "default_matmul_precision")
# Settings of jax that change which errors are raised; a worker computes with those of the calling process.
CHECKS = ("numpy_rank_promotion", "debug_nans", "debug_infs", "disable_jit")


def provenance() -> dict[str, str]:
    """Versions, device and kind of processor of this process."""
    device = jax.local_devices()[0]
    return {
        "jaximpact": __version__,
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "llvmlite": _llvmlite(),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": f"{device.platform}: {device.device_kind}",
        "processor": processor() if device.platform == "cpu" else "any",
    }


@cache
def _llvmlite() -> str:
    try:
        return version("llvmlite")
    except PackageNotFoundError:
        return "none"


@cache
def processor() -> str:
    """Model and instruction set of the CPU, which compiled programs depend on and which determine their rounding."""
    try:
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    except OSError:
        lines = []
    found = {key.strip(): value.strip() for key, _, value in reversed(lines)}  # of the first core
    model = found.get("model name") or found.get("CPU part") or platform.processor() or "unknown"
    flags = " ".join(sorted((found.get("flags") or found.get("Features") or "").split()))
    vectors = f" (instructions #{hashlib.sha256(flags.encode()).hexdigest()[:8]})" if flags else ""
    return f"{platform.machine()} {model}{vectors}"


def changes(old: Mapping[str, str], new: Mapping[str, str], names: tuple[str, ...] = MATTERS) -> list[str]:
    """Differences between two provenances, each as "jax 0.9 → 0.10"."""
    both = [(name, old.get(name, "(not recorded)"), new.get(name, "(not recorded)")) for name in names]
    return [f"{name} {a} → {b}" for name, a, b in both if a != b]


def label(facts: Mapping[str, str]) -> str:
    """Provenance in one line, restricted to the entries that affect numbers."""
    return ", ".join(f"{name} {facts.get(name, '(not recorded)')}" for name in MATTERS)


def now() -> str:
    """Current time in UTC, as ISO text."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def settings_now(names: tuple[str, ...] = SETTINGS) -> JsonObject:
    """Current jax settings of this thread, by default those that change numbers."""
    return {name: getattr(jax.config, f"jax_{name}") for name in names}


@contextmanager
def settings_of(settings: JsonObject) -> Iterator[None]:
    """Context in which jax has the given settings in this thread; other threads keep theirs."""
    with ExitStack() as stack:
        for name, value in settings.items():
            if getattr(jax.config, f"jax_{name}") != value:
                stack.enter_context(getattr(jax, name)(value))
        yield
