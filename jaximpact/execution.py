"""The one place that chooses how the motions of an ensemble are executed: through XLA, as native code of a CPU, or as one kernel of a GPU."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import kernel
from .integrate import Plan
from .numbers import Unsupported
from .solution import Solution
from .validate import check_choice, remark

EXECUTIONS = ("auto", "xla", "native", "kernel")
MEASURED = ("H100",)  # devices on which the kernel was compared with the XLA program and found right and faster
# what has no rule, a version of jax without the kernel's compiler, a program that it fails on
REFUSED = (Unsupported, ImportError, NotImplementedError, jax.errors.JaxRuntimeError)
log = logging.getLogger(__name__)


def executed(
    call: Callable[..., Solution], plan: Plan, execution: str, layout: str = "auto"
) -> Callable[..., Solution]:
    """``call(*operands, plan=plan)`` as ``execution`` says: see `jaximpact.ensemble`.

    On a device where it was never measured the kernel is taken after it agreed with XLA on the first chunk.

    Raises:
        ValueError: ``execution`` is unknown, or is "kernel" where more than final states are kept.
    """
    check_choice("execution", execution, EXECUTIONS)
    final = plan.rows == 0 and plan.function is None
    if execution == "kernel" and not final:
        raise ValueError("execution='kernel' keeps final states only: give save='final', or execution='xla'")
    through_xla = partial(call, plan=plan)
    backend = jax.default_backend()
    if execution == "native" or (execution == "auto" and backend == "cpu" and layout == "auto" and plan.devices == 1):
        as_native = partial(
            call, plan=plan._replace(native=True, few=True, scalar=False, alone=False, ragged=False, devices=1)
        )
        return (
            partial(_refusing, execution, as_native)
            if execution == "native"
            else partial(_either, as_native, through_xla)
        )
    if execution == "xla" or not final or (execution == "auto" and backend != "gpu"):
        return through_xla
    as_kernel = partial(call, plan=plan._replace(kernel=kernel.LARGEST, few=True, scalar=False, alone=False))
    if execution == "kernel":
        as_kernel = partial(call, plan=as_kernel.keywords["plan"]._replace(kernel=sys.maxsize))
        return partial(_refusing, execution, as_kernel)
    trusted = any(name in jax.devices()[0].device_kind for name in MEASURED)
    return _Chooser(as_kernel, through_xla, trusted)


def _refusing(execution: str, call: Callable[..., Solution], *operands: Any) -> Solution:
    try:
        return call(*operands)
    except Unsupported as error:
        raise ValueError(f"execution={execution!r} cannot take this problem ({error}): give execution='xla'") from error
    except ImportError as error:
        raise ValueError(f"execution={execution!r} is not to be had here ({error}): give execution='xla'") from error


def _either(as_native: Callable[..., Solution], through_xla: Callable[..., Solution], *operands: Any) -> Solution:
    """The native code where it can be had; what cannot be compiled is known after the first chunk."""
    try:
        return as_native(*operands)
    except (Unsupported, ImportError) as error:
        log.debug("not as native code, but through XLA: %s", error)
    return through_xla(*operands)


class _Chooser:
    """The kernel where it can be had and is right, else XLA; decided on the first chunk, whichever thread has it."""

    def __init__(self, as_kernel: Callable[..., Solution], through_xla: Callable[..., Solution], trusted: bool) -> None:
        self.as_kernel, self.through_xla, self.trusted = as_kernel, through_xla, trusted
        self.chosen: Callable[..., Solution] | None = None
        self.lock = Lock()

    def __call__(self, *operands: Any) -> Solution:
        with self.lock:
            if self.chosen is None:
                return self.first(*operands)
        return self.chosen(*operands)

    def first(self, *operands: Any) -> Solution:
        """The result of the first chunk."""
        self.chosen = self.through_xla
        try:
            found = self.as_kernel(*operands)
        except REFUSED:
            return self.through_xla(*operands)
        if not self.trusted:
            reference = self.through_xla(*operands)
            if not alike(found, reference):
                remark(
                    "the kernel of this GPU disagrees with XLA on the first chunk: all is computed by XLA", stacklevel=4
                )
                return reference
        self.chosen = self.as_kernel
        return found


def alike(found: Solution, reference: Solution) -> bool:
    """Whether nine of ten lanes end alike: rounding may move an impact of some to another step."""
    q, expected = np.asarray(found.q), np.asarray(reference.q)
    near = np.abs(q - expected) <= np.sqrt(float(jnp.finfo(q.dtype).eps)) * (1 + np.abs(expected))
    same = near.all(axis=(1, 2)) & (np.asarray(found.status) == np.asarray(reference.status))
    return bool(np.mean(same) >= 0.9)
