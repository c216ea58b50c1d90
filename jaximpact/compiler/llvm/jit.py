"""Machine code from LLVM IR by llvmlite, for this processor. A program is compiled once and cached on disk (`disk_cache`)."""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import json
import logging
import struct
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache, partial
from threading import Lock
from typing import Any

from .. import disk_cache as cache
from ..scalar import Unsupported
from .elementwise import LIBRARY
from .emitter import FUNCTION_NAME, ProgramText

MAX_LOADED_PROGRAMS = 256  # compiled programs
SYMBOL_TABLE = 2  # the kind of a section of an object file that lists them
LAYOUT = "what is known of the code, a line; the code"  # of what is kept, which an older version kept otherwise
log = logging.getLogger(__name__)
_programs: OrderedDict[str, tuple[MachineCode, bytes]] = OrderedDict()
_lock = Lock()
compilations = 0  # how many programs were compiled


class MachineCode:
    """A compiled function, see `emit`; calls release Python's global lock."""

    def __init__(self, engine: Any, address: int) -> None:
        self.engine, self.address = engine, address  # the code lives as long as the engine
        self.call: Callable = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 2)(address)


class Host:
    """This processor, as LLVM knows it."""

    def __init__(self, llvmlite: Any) -> None:
        binding = llvmlite.binding
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        self.binding = binding
        self.cpu, found = binding.get_host_cpu_name(), binding.get_host_cpu_features()
        self.features = found.flatten()
        triple = binding.get_default_triple()
        # a sum of products in one instruction: all of 64-bit Arm, x86 since 2013
        self.fused = bool(found.get("fma")) or triple.startswith(("aarch64", "arm64"))
        self.vector_bytes = 64 if found.get("avx512f") else 32  # of a register; where they are shorter, of two
        target = binding.Target.from_triple(triple)
        self.new_machine = partial(target.create_target_machine, cpu=self.cpu, features=self.features, opt=2, jit=True)
        self.machine = self.new_machine()
        self.versions = f"{llvmlite.__version__} {binding.llvm_version_info}"
        library, self.process = ctypes.CDLL(ctypes.util.find_library("m")), ctypes.CDLL(None)
        for name in ("sin", "cos", "fmod", "pow", *LIBRARY.values()):
            for symbol in (name, name + "f"):
                binding.add_symbol(symbol, ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value)

    def key(self, text: str) -> str:
        """Cache key of a compiled program: everything that its code depends on."""
        parts = (LAYOUT, self.versions, self.machine.triple, self.cpu, self.features, text)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def compile(self, text: str, loops: bool = False) -> bytes:
        """Object code of a module; modules with ``loops`` over arrays go through all of LLVM's passes."""
        binding, machine = self.binding, self.machine
        module = binding.parse_assembly(text)
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        tuning = binding.create_pipeline_tuning_options(speed_level=2)
        builder = binding.create_pass_builder(machine, tuning)
        if loops:
            builder.getModulePassManager().run(module, builder)
            return machine.emit_object(module)
        # what is left to find in what is vectors without repetitions: the other passes take ten times as long for nothing
        passes = binding.create_new_module_pass_manager()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.add_aggressive_dce_pass()
        passes.run(module, builder)
        return machine.emit_object(module)

    def load(self, code: bytes) -> MachineCode:
        """Loads object code and returns its function `NAME`.

        Raises:
            Unsupported: it calls a function that does not exist, which would crash the process.
        """
        binding = self.binding
        # those that LLVM was told of, and those that the process has, as memset, which passes of LLVM write
        there = lambda name: binding.address_of_symbol(name) is not None or hasattr(self.process, name)
        if missing := [name for name in undefined_symbols(code) if not there(name)]:
            raise Unsupported(f"no function {', '.join(missing)} in this process")
        engine = binding.create_mcjit_compiler(binding.parse_assembly(""), self.new_machine())
        engine.add_object_file(binding.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return MachineCode(engine, engine.get_function_address(FUNCTION_NAME))


def undefined_symbols(code: bytes) -> list[str]:
    """External functions that object code calls; only ELF files are inspected."""
    if code[:6] != b"\x7fELF\x02\x01":
        return []
    (sections,), (size, count) = struct.unpack_from("<Q", code, 40), struct.unpack_from("<2H", code, 58)
    # of a section its kind, where it lies, how long it is, and which one has its names
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
    """This processor; needs llvmlite.

    Raises:
        ImportError: llvmlite is not available.
    """
    import llvmlite.binding

    try:
        return Host(llvmlite)
    except (OSError, RuntimeError, AttributeError) as error:
        raise ImportError(f"llvmlite does not know this processor: {error}") from error


def load_module(text: str) -> MachineCode:
    """Code of a small module, compiled now and not cached."""
    with _lock:
        return host().load(host().compile(text))


def compile_module(text: str, loops: bool = False) -> MachineCode:
    """Code of a module, compiled now or taken from the cache."""
    return _load_or_compile(host().key(text), lambda: (text, b""), loops)[0]


def load_or_emit(name: str | None, write: Callable[[], ProgramText]) -> tuple[ProgramText, MachineCode]:
    """Text and code of the program called ``name``, from the cache if possible; else ``write()`` emits it."""
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
    """Code for a cache key, with its text's facts; ``fresh()`` gives the text if nothing is cached."""
    global compilations
    with _lock:
        if key not in _programs:
            try:
                found = cache.load(key)
                if found is None:
                    text, about = fresh()
                    found = about + b"\n" + host().compile(text, loops)
                    compilations += 1
                    cache.keep(key, found)
                about, code = found.split(b"\n", 1)
                _programs[key] = host().load(code), about
            except RuntimeError as error:
                log.warning("LLVM refuses a program, which is an error of jaximpact: please report it. %s", error)
                raise Unsupported(f"LLVM: {error}") from error
            while len(_programs) > MAX_LOADED_PROGRAMS:
                _programs.popitem(last=False)
        _programs.move_to_end(key)
        return _programs[key]
