"""Kernels of a GPU without one: their code is made, and the same program for vectors of one lane runs
in their place on this CPU."""

import jax
import numpy as np
import pytest
from jax.interpreters import mlir

from jaximpact.compiler.gpu import kernel
from jaximpact.compiler.gpu.ptx import compile_kernel
from jaximpact.compiler.llvm import xla_ffi
from jaximpact.compiler.llvm.call import _pointer_table
from jaximpact.compiler.llvm.emitter import emit
from jaximpact.compiler.llvm.jit import compile_module
from jaximpact.compiler.scalar import Unsupported
from jaximpact.simulation import primitive

made = []  # PTX of all kernels


class Made:
    """A kernel that is not loaded."""

    def __init__(self, ptx, name):
        made.append(ptx)

    def check(self):
        pass


def _compile(closed, carried, many):
    """As `kernel._compile`, with machine code of this CPU."""
    texts = []

    def emit_both(*given, threads):
        texts.append(emit(*given))
        return emit(*given, threads=threads)

    def code(ir, name):
        try:
            return compile_kernel(ir, name)
        except Unsupported as error:
            if "libdevice" not in str(error):
                raise
            return ""  # no CUDA toolkit here, and the program has sines or the like

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "emit", emit_both)
        patch.setattr(kernel, "compile_kernel", code)
        found = _compile_kernel(closed, carried, many)
    [text] = texts
    return found._replace(text=text, code=compile_module(text.ir))


def _target(found, lanes, rows, inputs, given, results):
    """As `kernel._target`, for a CPU."""
    program = found.program
    work = np.empty(program.text.work + 64, np.uint8)

    def run(frame):
        operands, targets = xla_ffi.buffer_addresses(frame, inputs + given, results)
        tables = map(_pointer_table, (operands[:inputs], targets, operands[inputs:]))
        program.code.call(*tables, work.ctypes.data + -work.ctypes.data % 64, lanes, rows)

    return xla_ffi.register_frame_handler((id(program.code), lanes, rows), run, "cpu", program, work)


_compile_kernel = kernel._compile


def _lower(rule):
    for one in (primitive.motion_p, primitive.motion_with_tangent_p):
        mlir.register_lowering(one, rule, platform="cpu")


def pretend(monkeypatch):
    """Has everything executed as on a GPU; the list of PTX that is made. A generator, for a fixture."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(kernel, "Kernel", Made)
    monkeypatch.setattr(kernel, "_compile", _compile)
    monkeypatch.setattr(kernel, "_target", _target)
    _lower(primitive._on_gpu)
    made.clear()
    yield made
    _lower(primitive._natively)
    jax.clear_caches()
