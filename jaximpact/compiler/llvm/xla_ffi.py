"""Native code as custom calls of XLA's foreign function interface (FFI), so that programs compiled by XLA can call it.

XLA calls a handler for each call. For one lane the handler is native, and passes XLA's buffers on. For many lanes it is
a Python function that reads the call frame of the C interface (``xla/ffi/api/c_api.h`` of jaxlib). It takes some tens
of microseconds, and holds the global interpreter lock while it transposes operands to the
program's layout and results back.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count as numbers_from
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.typing import DTypeLike

from ...jaxtools.operating_system import core_count
from ...version import __version__ as version
from ..limits import MAX_STACK_BYTES, MIN_LANES_FOR_THREADS
from .call import NativeProgram, compile_lanes, compile_or_in_turn
from .jit import load_module
from .lane_frames import FUNCTION_NAME

if TYPE_CHECKING:
    from .call import Jitted

# offsets in bytes in structures of the C interface
EXTENSION, API, CONTEXT, ARGUMENTS, RESULTS = 8, 16, 24, 72, 112  # XLA_FFI_CallFrame
DATA = 24  # XLA_FFI_Buffer
METADATA, VERSION, TRAITS = 24, 24, 32  # the extension by which XLA asks for the handler's version
OWN_VERSION, NEW_ERROR, GET_STREAM = 32, 48, 80  # XLA_FFI_Api
INTERNAL = 13  # XLA_FFI_Error_Code_INTERNAL
STABLE_PREFIX = "jaximpact_fixed_"  # prefix of the names of targets that are the same in every process
_target_numbers = numbers_from()
_targets: dict[Hashable, str] = {}
_handlers: list[object] = []  # kept alive for ever: XLA does not unregister handlers


def lane_target(
    one: Jitted,
    members: Sequence,
    axes: Sequence[int | None],
    lanes: int | None,
    results: Sequence,
    turns: Callable[[Sequence[np.ndarray]], Sequence],
    before: int = 0,
    **static: Hashable,
) -> str:
    """Returns the name of the FFI target that runs a jitted function of one lane for all ``lanes``;
    registers it at the first call.

    Args:
        one: the function, as `jax.jit` returns it.
        members: avals of its operands in one lane.
        axes: lane axis of each operand, 0 or None.
        lanes: number of lanes; None for a single lane without a lane axis.
        results: avals of its results for all lanes.
        turns: function from the operands to the sequences that a `stream` in the function reads, one entry per row.
        before: number of axes of a result that lie between the lane axis and the axis of rows.
        static: static arguments of the function.

    Raises:
        Unsupported, ImportError: as `compile_lanes`.
    """
    carried = [a is not None for a in axes]
    program = compile_lanes(one, members, carried, compile_or_in_turn, lanes, **static)
    shapes = [((lanes, *x.shape) if c else x.shape, x.dtype) for x, c in zip(members, carried, strict=True)]
    outputs = [(x.shape, np.dtype(x.dtype)) for x in results]
    key = (id(program.program), tuple(carried), lanes, str(shapes), str(outputs))
    if key in _targets:
        return _targets[key]
    if lanes is None and not any(many for _, many in program.results) and program.program.text.work <= MAX_STACK_BYTES:
        code = load_module(_one_lane_handler(program.program, len(shapes), len(outputs)))
        return _register_handler(key, code.address, code, program)

    def call(operands: list[np.ndarray], found: list[np.ndarray]) -> None:
        given, every = turns(operands), lanes or 1
        slices = [slice(0, every)]
        if every >= MIN_LANES_FOR_THREADS:
            ends = np.linspace(0, every, core_count() + 1).astype(int).tolist()
            slices = [slice(a, b) for a, b in pairwise(ends)]

        def part(some: slice) -> None:
            mine = [x[some] if c else x for x, c in zip(operands, carried, strict=True)]
            made = program.launch(mine, carried, some.stop - some.start, given)
            for x, y, (_, many) in zip(found, made, program.results, strict=True):
                y = np.moveaxis(y, 1, 1 + before) if many else y
                if lanes is None:
                    x[...] = y[0]
                else:
                    x[some] = y

        if len(slices) == 1:
            part(slices[0])
        else:
            list(lane_pool().map(part, slices))

    return register_target(key, lambda: call, shapes, outputs)


def register_target(
    key: Hashable,
    make: Callable[[], Callable[[list, list], None]],
    shapes: Sequence,
    outputs: Sequence,
    lasts: bool = False,
) -> str:
    """Returns the name of the FFI target for ``key``, registered at the first call; it runs
    ``make()(operands, results)`` on numpy arrays.

    Args:
        key: identifies the target.
        make: makes the function; called once.
        shapes, outputs: pairs of shape and dtype of the operands and results.
        lasts: whether the key means the same in every process. The name is then the same too, as cached XLA programs
            need it (`xla_cache`).
    """
    if key in _targets:
        return _targets[key]
    call = make()
    inputs, results = _buffer_kinds(shapes), _buffer_kinds(outputs)

    def run(frame: int) -> None:
        call(
            _buffer_arrays(_read_pointer(frame + ARGUMENTS), inputs),
            _buffer_arrays(_read_pointer(frame + RESULTS), results),
        )

    return register_frame_handler(key, run, "cpu", call, lasts=lasts)


def register_frame_handler(
    key: Hashable, run: Callable[[int], None], platform: str, *parts: object, lasts: bool = False
) -> str:
    """Returns the name of the FFI target for ``key``, registered at the first call; it runs ``run(frame)`` with the
    address of XLA's call frame.

    ``parts``: objects to keep alive with the target; ``lasts``: as in `register_target`.
    """
    if key in _targets:
        return _targets[key]
    handler = _HandlerType(_make_handler(run))
    address = ctypes.cast(handler, ctypes.c_void_p).value or 0
    return _register_handler(key, address, handler, *parts, lasts=lasts, platform=platform)


def _register_handler(key: Hashable, address: int, *parts: object, lasts: bool = False, platform: str = "cpu") -> str:
    """Registers the handler function at an address as an FFI target for ``key``, and returns the target's name.

    ``parts``, ``lasts``: as in `register_frame_handler`.
    """
    name = f"jaximpact_{os.getpid()}_{next(_target_numbers)}"
    if lasts:
        name = STABLE_PREFIX + hashlib.sha256(repr((version, key)).encode()).hexdigest()[:32]
    _handlers.append((key, *parts))
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(address), platform=platform, api_version=1)
    _targets[key] = name
    return name


def _one_lane_handler(program: NativeProgram, operands: int, results: int) -> str:
    """Returns the IR of a native handler that passes XLA's buffers to a program of one lane, a hundred times faster
    than a Python handler."""
    lines: list[str] = []

    def at(name: str, base: str, offset: int) -> str:
        """Emits the load of the pointer stored at ``base`` + ``offset``."""
        lines.append(f"%{name}.at = getelementptr i8, ptr {base}, i64 {offset}")
        lines.append(f"%{name} = load ptr, ptr %{name}.at")
        return f"%{name}"

    def put(value: str, table: str, i: int) -> None:
        lines.append(f"%{table}.{i} = getelementptr ptr, ptr %{table}, i64 {i}")
        lines.append(f"store ptr {value}, ptr %{table}.{i}")

    def fixed_pointer(address: int) -> str:
        return f"inttoptr (i64 {address} to ptr)"

    lines += [f"%entries = alloca [{operands + len(program.constants)} x ptr]", f"%results = alloca [{results} x ptr]"]
    lines += [f"%work = alloca [{program.text.work + 64} x i8], align 64"]
    asked = at("extension", "%frame", EXTENSION)
    lines += [f"%asked = icmp ne ptr {asked}, null", "br i1 %asked, label %about, label %run", "about:"]
    about, api = at("metadata", asked, METADATA), at("api", "%frame", API)
    lines += [f"%own = getelementptr i8, ptr {api}, i64 {OWN_VERSION}", "%version = load i64, ptr %own"]
    lines += [f"%reported = getelementptr i8, ptr {about}, i64 {VERSION}", "store i64 %version, ptr %reported"]
    lines += [
        f"%traits = getelementptr i8, ptr {about}, i64 {TRAITS}",
        "store i32 0, ptr %traits",
        "ret ptr null",
        "run:",
    ]
    for table, offset, count in (("entries", ARGUMENTS, operands), ("results", RESULTS, results)):
        buffers = at(f"{table}.buffers", "%frame", offset)
        for i in range(count):
            put(at(f"{table}.data{i}", at(f"{table}.buffer{i}", buffers, 8 * i), DATA), table, i)
    for i, x in enumerate(program.constants):
        put(fixed_pointer(x.ctypes.data), "entries", operands + i)
    given = "ptr %entries, ptr %results, ptr null, ptr %work, i64 1, i64 0"
    # read at each call, since optimised code may take the place of the first
    lines += [f"%program = load ptr, ptr {fixed_pointer(ctypes.addressof(program.code.place))}"]
    lines += [f"call void %program({given})", "ret ptr null"]
    body = "\n".join(lines)
    return f"define ptr @{FUNCTION_NAME}(ptr %frame) nounwind {{\n{body}\n}}\n"


_HandlerType = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


@cache
def lane_pool() -> ThreadPoolExecutor:
    """Returns the thread pool of this process, with a thread per core,
    which computes parts of the lanes of a call in parallel."""
    return ThreadPoolExecutor(core_count(), "jaximpact")


def _read_pointer(address: int) -> int:
    """The pointer stored at an address."""
    return ctypes.c_void_p.from_address(address).value or 0


def _buffer_address(table: int, i: int) -> int:
    """Address of the data of the i-th buffer of a table."""
    return _read_pointer(_read_pointer(table + 8 * i) + DATA)


def _call_api(api: int, offset: int, arguments: ctypes.Structure) -> int | None:
    """Calls the function of XLA's C interface whose pointer lies at ``offset`` in the table at the address ``api``;
    returns its error or None."""
    call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(_read_pointer(api + offset))
    return call(ctypes.addressof(arguments))


def _buffer_kinds(
    kinds: Sequence[tuple[tuple[int, ...], DTypeLike]],
) -> list[tuple[tuple[int, ...], np.dtype, Any]]:
    """Returns shape, dtype and type of the memory of buffers, from their shapes and dtypes."""
    found = []
    for shape, dtype in kinds:
        shape, dtype = tuple(map(int, shape)), np.dtype(dtype)
        found.append((shape, dtype, ctypes.c_char * (math.prod(shape) * dtype.itemsize)))
    return found


def _buffer_arrays(table: int, kinds: Sequence[tuple[tuple[int, ...], np.dtype, Any]]) -> list[np.ndarray]:
    """Returns the buffers of a call frame as numpy arrays on XLA's memory; ``table``: address of their table;
    ``kinds``: as by `_buffer_kinds`."""
    if not kinds:
        return []
    found = []
    for (shape, dtype, memory), buffer in zip(kinds, (ctypes.c_size_t * len(kinds)).from_address(table), strict=True):
        if memory._length_ == 0:
            found.append(np.empty(shape, dtype))
        else:
            found.append(np.ndarray(shape, dtype, memory.from_address(_read_pointer(buffer + DATA))))
    return found


class _NewError(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("kind", ctypes.c_int),
    )


def _make_error(api: int, text: str) -> int | None:
    """Address of a new XLA_FFI_Error with a message."""
    arguments = _NewError(ctypes.sizeof(_NewError), None, text.encode(), INTERNAL)
    return _call_api(api, NEW_ERROR, arguments)


def _make_handler(run: Callable[[int], None]) -> Callable[[int], int | None]:
    """Returns the Python handler of a target, which calls ``run(frame)``,
    or reports the version of the interface if XLA asks for it.

    It turns an exception into an error of XLA.
    """

    def handler(frame: int) -> int | None:
        api, extension = _read_pointer(frame + API), _read_pointer(frame + EXTENSION)
        try:
            if extension:
                about = _read_pointer(extension + METADATA)
                ctypes.memmove(about + VERSION, api + OWN_VERSION, 8)
                ctypes.c_uint32.from_address(about + TRAITS).value = 0
            else:
                run(frame)
        except BaseException as error:
            return _make_error(api, f"{type(error).__name__}: {error}")
        return None

    return handler


def buffer_addresses(frame: int, inputs: int, results: int) -> tuple[list[int], list[int]]:
    """Returns the addresses of the data of the operands and results of a call, given the address of its frame."""
    tables = (_read_pointer(frame + ARGUMENTS), inputs), (_read_pointer(frame + RESULTS), results)
    operands, targets = ([_buffer_address(table, i) for i in range(count)] for table, count in tables)
    return operands, targets


class _GetStream(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    )


def stream_of(frame: int) -> int:
    """Returns the address of the GPU stream of a call, given the address of its frame."""
    arguments = _GetStream(ctypes.sizeof(_GetStream), None, _read_pointer(frame + CONTEXT), None)
    if _call_api(_read_pointer(frame + API), GET_STREAM, arguments):
        raise RuntimeError("XLA has no stream for a kernel")
    return arguments.stream or 0
