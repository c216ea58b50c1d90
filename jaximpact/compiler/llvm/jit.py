"""Compilation of LLVM IR by llvmlite for this processor; machine code is cached in memory and on disk (`disk_cache`)."""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import json
import logging
import os
import struct
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache, partial
from threading import Lock
from typing import Any

from ...jaxtools.operating_system import is_windows, math_library
from .. import disk_cache as cache
from ..limits import MAX_LOADED_PROGRAMS
from ..scalar import Unsupported
from .elementwise import LIBRARY
from .emitter import ProgramText
from .lane_frames import FUNCTION_NAME

SYMBOL_TABLE = 2  # section type of symbol tables in ELF files (SHT_SYMTAB)
LAYOUT = "what is known of the code, a line; the code"  # of cached files; part of their keys, since older versions had another layout
log = logging.getLogger(__name__)
_programs: OrderedDict[str, tuple[MachineCode, bytes]] = OrderedDict()
_lock = Lock()
compilations = 0  # how many programs were compiled


class MachineCode:
    """A compiled function with the C signature of `emitter.emit`; calls release the global interpreter lock."""

    def __init__(self, engine: Any, address: int) -> None:
        self.engine, self.address = engine, address  # the code lives as long as the engine
        self.call: Callable = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 2)(address)


class Host:
    """LLVM's target for this processor, and its compiler."""

    def __init__(self, llvmlite: Any) -> None:
        binding = llvmlite.binding
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        self.binding = binding
        self.cpu, found = binding.get_host_cpu_name(), binding.get_host_cpu_features()
        self.features = found.flatten()
        triple = binding.get_default_triple()
        # fused multiply-add: all 64-bit Arm processors, x86 since 2013
        self.fused = bool(found.get("fma")) or triple.startswith(("aarch64", "arm64"))
        self.vector_bytes = 64 if found.get("avx512f") else 32  # of a vector; processors with shorter registers use two
        target = binding.Target.from_triple(triple)
        # jax's own flag: code that runs but once, in tests say, is had in half the time without the optimisations of its last passes
        self.level = 0 if os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS", "0").lower() in ("1", "true") else 2
        self.new_machine = partial(target.create_target_machine, cpu=self.cpu, features=self.features, jit=True)
        self.machine, self.of_loops = self.new_machine(opt=self.level), self.new_machine(opt=2)
        self.versions = f"{llvmlite.__version__} {binding.llvm_version_info}"
        library, self.process = math_library(), ctypes.CDLL(None)
        for name in ("sin", "cos", "fmod", "pow", *LIBRARY.values()):
            for symbol in (name, name + "f"):
                binding.add_symbol(symbol, ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value)

    def key(self, text: str) -> str:
        """Cache key of machine code: hash of its source text, LLVM's version and the processor."""
        parts = (LAYOUT, self.versions, self.machine.triple, self.cpu, self.features, str(self.level), text)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def compile(self, text: str, loops: bool = False) -> bytes:
        """Compiles a module to object code; ``loops``: with all optimisation passes of O2, which vectorise loops over arrays."""
        binding, machine = self.binding, self.of_loops if loops else self.machine
        module = binding.parse_assembly(text)
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        tuning = binding.create_pipeline_tuning_options(speed_level=2)
        builder = binding.create_pass_builder(machine, tuning)
        if loops:
            builder.getModulePassManager().run(module, builder)
            return machine.emit_object(module)
        # The writer has made vectors and eliminated common subexpressions: the other passes of O2 take ten times as long, and
        # found nothing more.
        passes = binding.create_new_module_pass_manager()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.add_aggressive_dce_pass()
        passes.run(module, builder)
        return machine.emit_object(module)

    def load(self, code: bytes) -> MachineCode:
        """Loads object code and returns its function `FUNCTION_NAME`.

        Raises:
            Unsupported: the code calls an external function that does not exist, which would crash the process.
        """
        binding = self.binding
        # symbols registered with LLVM, and those of the process, such as memset, which LLVM's passes introduce
        is_defined = lambda name: binding.address_of_symbol(name) is not None or hasattr(self.process, name)
        if missing := [name for name in undefined_symbols(code) if not is_defined(name)]:
            raise Unsupported(f"no function {', '.join(missing)} in this process")
        engine = binding.create_mcjit_compiler(binding.parse_assembly(""), self.new_machine(opt=self.level))
        engine.add_object_file(binding.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return MachineCode(engine, engine.get_function_address(FUNCTION_NAME))


def undefined_symbols(code: bytes) -> list[str]:
    """Names of the external functions that object code calls; empty for files other than ELF, which are not inspected."""
    if code[:6] != b"\x7fELF\x02\x01":
        return []
    (sections,), (size, count) = struct.unpack_from("<Q", code, 40), struct.unpack_from("<2H", code, 58)
    # section headers: type, offset, size, and the index of the section with its symbols' names
    table = [struct.unpack_from("<4xI16x2QI", code, sections + i * size) for i in range(count)]
    found = []
    for kind, start, length, names in table:
        if kind != SYMBOL_TABLE:
            continue
        for name, where in struct.iter_unpack("<I2xH16x", code[start : start + length]):
            first = table[names][1] + name
            if name and where == 0:
                found.append(code[first : code.index(b"\0", first)].decode())
    return found


@lru_cache
def host() -> Host:
    """Returns the compiler for this processor, made at the first call.

    Raises:
        ImportError: llvmlite is not installed, or does not support the processor; or this is Windows.
    """
    if is_windows():
        raise ImportError("nobody has tried native code on Windows")
    import llvmlite.binding

    try:
        return Host(llvmlite)
    except (OSError, RuntimeError, AttributeError) as error:
        raise ImportError(f"llvmlite does not know this processor: {error}") from error


def load_module(text: str) -> MachineCode:
    """Compiles and loads a small module, without caching it."""
    with _lock:
        return host().load(host().compile(text))


def compile_module(text: str, loops: bool = False) -> MachineCode:
    """Compiles and loads a module of LLVM IR, or takes its machine code from the cache; ``loops``: as in `Host.compile`."""
    return _load_or_compile(host().key(text), lambda: (text, b""), loops)[0]


def load_or_emit(name: str | None, write: Callable[[], ProgramText]) -> tuple[ProgramText, MachineCode]:
    """Returns text and machine code of the program with the key ``name``, from the cache, or else emitted by ``write()`` and compiled.

    If the name is None, the program is always emitted, and only its machine code is cached, by the IR. Text from the cache has no IR.
    """
    if name is None:
        text = write()
        return text, compile_module(text.ir)

    def fresh() -> tuple[str, bytes]:
        text = write()
        return text.ir, json.dumps([text.width, text.rows, int(text.work)]).encode()

    code, about = _load_or_compile(host().key(name), fresh)
    return ProgramText("", *json.loads(about)), code


def _load_or_compile(
    key: str, fresh: Callable[[], tuple[str, bytes]], loops: bool = False
) -> tuple[MachineCode, bytes]:
    """Returns the machine code for a cache key, and bytes that are stored with it; if nothing is cached, ``fresh()`` returns the IR and these bytes.

    ``loops``: as in `Host.compile`.
    """
    global compilations
    with _lock:
        if key not in _programs:
            try:
                found = cache.load(key)
                if found is None:
                    text, about = fresh()
                    found = about + b"\n" + host().compile(text, loops)
                    compilations += 1
                    cache.store(key, found)
                about, code = found.split(b"\n", 1)
                _programs[key] = host().load(code), about
            except RuntimeError as error:
                log.warning("LLVM refuses a program, which is an error of jaximpact: please report it. %s", error)
                raise Unsupported(f"LLVM: {error}") from error
            while len(_programs) > MAX_LOADED_PROGRAMS:
                _programs.popitem(last=False)
        _programs.move_to_end(key)
        return _programs[key]
