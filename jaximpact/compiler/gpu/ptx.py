"""Code of NVIDIA GPUs (PTX) from LLVM IR, by llvmlite; it needs no GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..scalar import Unsupported

if TYPE_CHECKING:
    from llvmlite.binding import ModuleRef, TargetMachine

TRIPLE = "nvptx64-nvidia-cuda"
# the oldest devices that have all instructions used; drivers compile its code for every later one
DEVICE, ISA = "sm_70", "+ptx70"
LIBRARY_PATH = "nvvm/libdevice/libdevice.10.bc"  # NVIDIA's mathematical functions, in every CUDA toolkit
_lock = Lock()


def compile_kernel(ir: str, name: str) -> str:
    """Compiles a module of LLVM IR, whose kernel is called ``name``, to PTX;
    calls of the C library become calls of NVIDIA's library.

    Raises:
        Unsupported: a function is missing in NVIDIA's library, or the library is not found.
        ImportError: llvmlite knows no NVIDIA GPUs.
    """
    with _lock:
        binding, machine = _target()
        module = _of_device(binding.parse_assembly(ir), machine)
        if external := _external(module):
            _link_library(binding, machine, module, external)
            for x in [*module.functions, *module.global_variables]:
                if not x.is_declaration and x.name != name:
                    x.linkage = "internal"
        passes = binding.create_new_module_pass_manager()
        passes.add_global_dead_code_eliminate_pass()
        passes.add_sroa_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.add_aggressive_dce_pass()
        passes.run(module, binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=2)))
        # LLVM resolves the queries for the device in NVIDIA's library
        if missing := [f.name for f in _external(module) if f.name != "__nvvm_reflect"]:
            raise Unsupported(f"no function {', '.join(missing)} on this GPU")
        return machine.emit_assembly(module)


@lru_cache
def _target() -> tuple[Any, Any]:
    """Returns the module `llvmlite.binding`, and LLVM's target machine for NVIDIA GPUs."""
    import llvmlite.binding as binding

    try:
        binding.initialize_all_targets()
        binding.initialize_all_asmprinters()
        return binding, binding.Target.from_triple(TRIPLE).create_target_machine(cpu=DEVICE, features=ISA, opt=2)
    except (RuntimeError, AttributeError) as error:
        raise ImportError(f"llvmlite knows no NVIDIA GPUs: {error}") from error


def _of_device(module: ModuleRef, machine: TargetMachine) -> Any:
    module.triple, module.data_layout = TRIPLE, str(machine.target_data)
    return module


def _external(module: ModuleRef) -> list:
    """Functions that a module calls and does not define."""
    return [f for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")]


def _link_library(binding: ModuleType, machine: TargetMachine, module: ModuleRef, functions: list) -> None:
    """Links NVIDIA's library into ``module``, and defines the missing ``functions`` of the C library as calls of its
    functions ``__nv_...``."""
    lines = []
    for f in functions:
        kind = str(f.global_value_type).partition(" (")[0]
        operands = [f"{kind} %x{i}" for i, _ in enumerate(f.arguments)]
        given = ", ".join(operands)
        lines += [f"declare {kind} @__nv_{f.name}({given})", f"define linkonce_odr {kind} @{f.name}({given}) {{"]
        lines += [f"  %found = call {kind} @__nv_{f.name}({given})", f"  ret {kind} %found", "}"]
    module.link_in(_of_device(binding.parse_assembly("\n".join(lines)), machine))
    module.link_in(_of_device(binding.parse_bitcode(_library()), machine))


@cache
def _library() -> bytes:
    """NVIDIA's library of mathematical functions, from a CUDA toolkit or the packages that jax installs."""
    for folder in _toolkits():
        if (path := folder / LIBRARY_PATH).is_file():
            return path.read_bytes()
    raise Unsupported("no CUDA toolkit with libdevice: set CUDA_HOME")


def _toolkits() -> Iterator[Path]:
    """Yields folders in which a CUDA toolkit may be: from environment variables, among Python packages,
    and in the usual places."""
    yield from (Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ)
    packages = find_spec("nvidia")
    for place in packages.submodule_search_locations or () if packages else ():
        yield from sorted(Path(place).iterdir())
    yield Path(sys.prefix)  # of conda
    yield Path("/usr/local/cuda")
    yield from sorted(Path("/usr/local").glob("cuda-*"), reverse=True)
    yield Path("/opt/cuda")
