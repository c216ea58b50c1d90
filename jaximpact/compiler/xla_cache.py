"""Persistent cache of programs that XLA compiled, in the folder of `disk_cache`.

jax has a persistent cache too, but that is a setting of the whole process, made by the user: if it is set, it is used
in place of this one. The key is a hash of the lowered program, so that every process traces and lowers; XLA's
compilation, by far the largest part of the time, is saved.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import jax
from jax.experimental.serialize_executable import deserialize_and_load, serialize
from jax.extend.core import ClosedJaxpr
from jax.stages import Compiled, Lowered

from ..jaxtools.argument_checks import is_traced
from ..jaxtools.jaxpr_tools import closed_over_values
from ..jaxtools.shapes import PyTree, operand_type
from ..jaxtools.trace_context import is_concrete, platform, trace_settings
from . import disk_cache as cache
from .llvm.jit import host
from .llvm.xla_ffi import STABLE_PREFIX

# custom calls by names that are valid in this process only; names of LAPACK and of stable FFI targets are the same in
# all processes
UNSTABLE_CALL = re.compile(rf"custom_call\s+@(?!lapack_|{STABLE_PREFIX})|call_target_name")
log = logging.getLogger(__name__)
compilations = 0  # how many programs were compiled


class _Slot:
    """Place for the executable of one traced function, filled by the first thread that calls it."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.program: Compiled | None = None


class PersistentJit:
    """`jax.jit` with a persistent cache for CPU programs; ``static`` names the static arguments,
    ``options`` are compiler options."""

    def __init__(self, function: Callable, static: tuple[str, ...] = (), options: dict | None = None) -> None:
        self.jitted = jax.jit(function, static_argnames=static, compiler_options=options)
        self.trace, self.options, self.lock = self.jitted.trace, options, Lock()
        # slots by jaxpr, as long as jax keeps it, and by the types and static arguments of a call, known before it is
        # traced
        self.slots: WeakKeyDictionary[ClosedJaxpr, _Slot] = WeakKeyDictionary()
        self.called: WeakValueDictionary[Hashable, _Slot] = WeakValueDictionary()

    def __call__(self, *operands: object, **static: object) -> PyTree:
        if not is_cacheable():
            return self.jitted(*operands, **static)
        leaves, structure = jax.tree.flatten(operands)
        key = structure, tuple(map(operand_type, leaves)), tuple(sorted(static.items())), trace_settings()
        slot = self.called.get(key)
        if slot is None or slot.program is None:
            traced = self.trace(*operands, **static)
            # a function that closes over tracers cannot be called as an executable
            if is_traced(list(closed_over_values(traced.jaxpr).values())):
                return self.jitted(*operands, **static)
            with self.lock:
                slot = self.called[key] = self.slots.setdefault(traced.jaxpr, _Slot())
            with slot.lock:
                slot.program = slot.program or load_program(traced.lower(), self.options)
        return slot.program(*operands)


def is_cacheable() -> bool:
    """Whether the persistent cache can be used: no jax transformation is active, there is one CPU device and a cache
    folder, and no jax setting needs jax's own jit."""
    config: Any = jax.config
    return (
        is_concrete()
        and platform() == "cpu"
        and jax.local_device_count() == jax.process_count() == 1
        and not (config.jax_debug_nans or config.jax_debug_infs or config.jax_compilation_cache_dir)
        and cache.folder() is not None
    )


def load_program(lowered: Lowered, options: dict | None) -> Compiled:
    """Returns the executable of a lowered function, from the cache if it is there, else compiled now and stored;
    ``options``: XLA's options."""
    global compilations
    text = lowered.as_text()
    key = None if UNSTABLE_CALL.search(text) else _key(text, options)
    if key is not None and (kept := cache.load(key)) is not None:
        try:
            return deserialize_and_load(kept, jax.tree.structure(lowered.args_info), lowered.out_tree)
        except Exception as error:
            log.info("a program of XLA is compiled anew: %s", error)
    program = lowered.compile()
    compilations += 1
    if key is not None:
        try:
            cache.store(key, serialize(program)[0])
        except (ValueError, NotImplementedError, jax.errors.JaxRuntimeError) as error:
            log.info("a program of XLA is not kept: %s", error)
    return program


def _key(text: str, options: dict | None) -> str | None:
    """Cache key of a program: hash of its text, versions, settings and the processor;
    None if the processor is unknown."""
    try:
        processor = host()
    except ImportError:
        return None
    plain = {name: x for name, x in jax.config.values.items() if isinstance(x, str | int | float | None)}
    versions = jax.__version__, jax.lib.__version__, jax.devices()[0].client.platform_version
    about = versions, processor.cpu, processor.features, os.environ.get("XLA_FLAGS"), options, sorted(plain.items())
    return "xla-" + hashlib.sha256(f"{about}\n{text}".encode()).hexdigest()
