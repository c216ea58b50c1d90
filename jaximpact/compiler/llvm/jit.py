"""Compilation of LLVM IR by llvmlite for this processor; machine code is cached in memory
and on disk (`disk_cache`)."""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import json
import logging
import os
import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING

from ...jaxtools.operating_system import is_windows, math_library
from .. import disk_cache as cache
from ..limits import MAX_LOADED_PROGRAMS, MIN_BYTES_QUICK_FIRST
from ..scalar import Unsupported
from .code_generation import FULL, QUICK, Target
from .elementwise import LIBRARY
from .emitter import ProgramText
from .lane_frames import FUNCTION_NAME
from .optimized_later import is_available, optimize_later

if TYPE_CHECKING:
    from llvmlite.binding import ExecutionEngine

SYMBOL_TABLE = 2  # section type of symbol tables in ELF files (SHT_SYMTAB)
# of cached files; part of their keys, since older versions had another layout
LAYOUT = "what is known of the code, in JSON, a line; the code"
QUICK_NAME = "-quick"  # ends the name of a file whose code is not optimised, and which holds the IR too
log = logging.getLogger(__name__)
_programs: OrderedDict[str, tuple[ProgramText, MachineCode]] = OrderedDict()
_lock = Lock()
compilations = 0  # how many programs were compiled


class MachineCode:
    """A compiled function with the C signature of `emitter.emit`; calls release the global interpreter lock.

    Optimised code may take the place of the first one while the function is in use; ``is_final``: whether none will.
    """

    def __init__(self, engine: ExecutionEngine, address: int, is_final: bool = True) -> None:
        self.engines: list[ExecutionEngine] = []
        self.is_final = is_final
        self.place = ctypes.c_void_p()  # of the address, for native callers
        self.use(engine, address)

    @property
    def address(self) -> int:
        return self.place.value or 0

    def use(self, engine: ExecutionEngine, address: int) -> None:
        """Lets further calls run the function at ``address``, whose code lives as long as ``engine``."""
        self.engines.append(engine)  # all are kept, since calls may still run in earlier code
        self.call: Callable = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 2)(address)
        self.place.value = address


class Host(Target):
    """This processor: what the writer of programs needs to know of it, and its compiler."""

    def __init__(self, llvmlite: ModuleType) -> None:
        binding = llvmlite.binding
        super().__init__(binding)
        found = self.known_features
        # fused multiply-add: all 64-bit Arm processors, x86 since 2013
        self.fused = bool(found.get("fma")) or self.triple.startswith(("aarch64", "arm64"))
        self.vector_bytes = 64 if found.get("avx512f") else 32  # of a vector; processors with shorter registers use two
        # jax's own flag: code that runs but once, in tests say, is had in half the time without the optimisations of
        # its last passes
        self.level = QUICK if os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS", "0").lower() in ("1", "true") else FULL
        self.versions = f"{llvmlite.__version__} {binding.llvm_version_info}"
        library, self.process = math_library(), ctypes.CDLL(None)
        for name in ("sin", "cos", "fmod", "pow", *LIBRARY.values()):
            for symbol in (name, name + "f"):
                binding.add_symbol(symbol, ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value)

    def key(self, text: str) -> str:
        """Cache key of machine code: hash of its source text, LLVM's version and the processor."""
        parts = (LAYOUT, self.versions, self.machines[FULL].triple, self.cpu, self.features, str(self.level), text)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def load(self, code: bytes) -> tuple[ExecutionEngine, int]:
        """Loads object code; returns the engine that owns it, and the address of its function `FUNCTION_NAME`.

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
        return engine, engine.get_function_address(FUNCTION_NAME)


def undefined_symbols(code: bytes) -> list[str]:
    """Names of the external functions that object code calls; empty for files other than ELF,
    which are not inspected."""
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
        return MachineCode(*host().load(host().compile(text, host().level)))


def compile_module(text: str, loops: bool = False) -> MachineCode:
    """Compiles and loads a module of LLVM IR, or takes its machine code from the cache; ``loops``:
    as in `Target.compile`."""
    return _load_or_compile(host().key(text), lambda: ProgramText(text, 0, [], 0), loops=loops)[1]


def load_or_emit(name: str | None, write: Callable[[], ProgramText], soon: bool) -> tuple[ProgramText, MachineCode]:
    """Returns text and machine code of the program with the key ``name``, from the cache, or else emitted by
    ``write()`` and compiled.

    If the name is None, the program is always emitted, and only its machine code is cached, by the IR. Text from the
    cache has no IR. ``soon``: whether code that is not optimised yet is welcome, if the program is long.
    """
    if name is not None:
        return _load_or_compile(host().key(name), write, soon)
    text = write()
    return text, _load_or_compile(host().key(text.ir), lambda: text, soon)[1]


def _load_or_compile(
    key: str, write: Callable[[], ProgramText], soon: bool = False, loops: bool = False
) -> tuple[ProgramText, MachineCode]:
    """Returns text and machine code for a cache key; if nothing is cached, of ``write()``.

    ``soon``: as in `load_or_emit`; ``loops``: as in `Target.compile`.
    """
    global compilations
    with _lock:
        if key not in _programs:
            try:
                found = _from_disk(key)
                if found is None:
                    found = _compile(key, write(), soon, loops)
                    compilations += 1
                _programs[key] = found
            except RuntimeError as error:
                log.warning("LLVM refuses a program, which is an error of jaximpact: please report it. %s", error)
                raise Unsupported(f"LLVM: {error}") from error
            while len(_programs) > MAX_LOADED_PROGRAMS:
                _programs.popitem(last=False)
        _programs.move_to_end(key)
        return _programs[key]


def _from_disk(key: str) -> tuple[ProgramText, MachineCode] | None:
    """Loads the program that the cache on disk keeps under ``key``; None if there is none."""
    if (found := cache.load(key)) is not None:
        about, code = found.split(b"\n", 1)
        return ProgramText("", *json.loads(about)), MachineCode(*host().load(code))
    if (found := cache.load(key + QUICK_NAME)) is None:  # of a process that ended before its code was optimised
        return None
    about, rest = found.split(b"\n", 1)
    *known, size = json.loads(about)
    text, program = (
        ProgramText(zlib.decompress(rest[size:]).decode(), *known),
        MachineCode(*host().load(rest[:size]), False),
    )
    _optimize_later(key, text, program)
    return text._replace(ir=""), program


def _compile(key: str, text: ProgramText, soon: bool, loops: bool) -> tuple[ProgramText, MachineCode]:
    """Compiles and loads a program, and stores it under ``key``; ``soon``, ``loops``: as in `_load_or_compile`."""
    about = [text.width, text.rows, int(text.work)]
    quick = soon and host().level == FULL and len(text.ir) > MIN_BYTES_QUICK_FIRST and is_available()
    code = host().compile(text.ir, QUICK if quick else host().level, loops)
    program = MachineCode(*host().load(code), not quick)
    if quick:
        stored = code + zlib.compress(text.ir.encode(), 1)
        cache.store(key + QUICK_NAME, json.dumps([*about, len(code)]).encode() + b"\n" + stored)
        _optimize_later(key, text, program)
    else:
        cache.store(key, json.dumps(about).encode() + b"\n" + code)
    return text, program


def _optimize_later(key: str, text: ProgramText, program: MachineCode) -> None:
    """Lets optimised code replace that of a ``program``, in use and on disk, as soon as it is compiled."""
    about = json.dumps([text.width, text.rows, int(text.work)]).encode()

    def done(code: bytes) -> None:
        program.use(*host().load(code))
        program.is_final = True
        cache.store(key, about + b"\n" + code)
        cache.remove(key + QUICK_NAME)

    optimize_later(text.ir, done)
