"""The static description of a computation: problem, methods, and rows to save."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..jaxtools.argument_checks import is_traced
from ..jaxtools.shapes import as_array_tree
from ..mechanics.contact import ContactSolver
from ..mechanics.events.impact_record import IMPACT, OF_FRICTION
from ..mechanics.motion import By, Motion
from ..mechanics.problem import Problem
from ..mechanics.scheme import Scheme
from ..mechanics.trials.stops import Until
from ..mechanics.user_functions import outcome
from ..results.save import Save
from .ends import End, end_of

static = {"static": True}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Program:
    """Static part of a computation, the same for all lanes; it shapes the compiled code.

    Attributes:
        problem, scheme, solver: the problem, the scheme and the contact solver.
        times: times of the rows before the last (k,) [s], where they are given.
        rows: number of rows before the last. every: number of steps from row to row, 0 where times are given.
        function: save function, whose values replace the state (`Save`).
        impacts, kinds: number of impacts, or events of some kinds, from the first on,
            whose times and states are kept (`Events`).
        until: the condition (`Until`) at which the motion ends, if it holds before t1.
        sensitivity: the derivative, as in `solve`; None: "corrected" if it is taken.
        by: what derivatives are taken by; None if not known, or none are.
        again: whether a second derivative is known to be wanted.
        length: the number of steps, where reverse mode must know it; 0 for one trace for any number.
        per_lane_branches: whether every lane takes branches of its own, as in native code and GPU kernels.
        account: whether the status and totals of the motion are read.
        reports_progress: whether the XLA program reports its progress.
        classes: classes of the scheme, of the solver, and of their parts.
    """

    problem: Problem
    scheme: Scheme
    solver: ContactSolver
    times: Array | np.ndarray
    rows: int = field(default=0, metadata=static)
    every: int = field(default=0, metadata=static)
    function: Callable | None = field(default=None, metadata=static)
    impacts: int = field(default=0, metadata=static)
    kinds: tuple[str, ...] = field(default=(IMPACT,), metadata=static)
    until: Until | None = field(default=None, metadata=static)
    sensitivity: str | None = field(default="none", metadata=static)
    by: By | None = field(default=None, metadata=static)
    again: bool = field(default=False, metadata=static)
    length: int = field(default=0, metadata=static)
    per_lane_branches: bool = field(default=False, metadata=static)
    account: bool = field(default=True, metadata=static)
    reports_progress: bool = field(default=False, metadata=static)
    classes: tuple[type, ...] = field(default=(), metadata=static)

    def __post_init__(self) -> None:
        # jax takes structures of dataclasses for equal whose static fields are, whatever their classes (0.10), and
        # looks them up in tables in which that decides where some bits of their hashes agree: jit then ran the program
        # of one scheme in place of another's
        if isinstance(self.scheme, Scheme):
            object.__setattr__(self, "classes", (*classes_of(self.scheme), *classes_of(self.solver)))

    @classmethod
    def of(
        cls,
        problem: Problem,
        scheme: Scheme,
        solver: ContactSolver,
        save: Save,
        motion: Motion,
        until: Until | None = None,
    ) -> Program:
        """Makes a program for motions with known step counts; their numbers may have a lane axis."""
        dtype, end = motion.q0.dtype, end_of(until)
        if save.impacts or end.located:
            scheme.observing(save.impacts, until, save.kinds)  # which refuses what it cannot do
        if not problem.rubs and (rubs := [kind for kind in save.kinds if kind in OF_FRICTION]):
            raise ValueError(
                f"save: Events(kinds=...) asks for {', '.join(rubs)} of a problem without friction at contacts: state "
                "it with slip= and friction=, or leave "
                "them out; of a force that jumps, as one with sign(v), analysis.crossings finds the times"
            )
        end.check(problem, scheme)
        times, rows = np.zeros((0,), dtype), 0
        if save.every is not None:
            rows = -(-int(np.max(motion.steps)) // save.every)
        elif save.times is not None:
            times = _saved_times(save, motion)
            rows = times.shape[0]
        return cls(
            problem, scheme, solver, times, rows, save.every or 0, save.function, save.impacts, save.kinds, until
        )

    @cached_property
    def without_rows(self) -> Program:
        """The program for native code: without its saved times and numbers of steps and rows,
        which native code is given at run time."""
        rows, every = min(self.rows, 1), min(self.every, 1)
        return self.replace(
            per_lane_branches=True, length=0, times=self.times[:0], rows=rows, every=every, reports_progress=False
        )

    @property
    def end(self) -> End:
        """The end of the motion."""
        return end_of(self.until)

    def replace(self, **changes: Any) -> Program:
        """Copy with some fields changed."""
        return replace(self, **changes)

    def row_size(self, one: Motion, m: int) -> int:
        """Bytes of a saved row of one motion with ``m`` contacts; TypeError if the save function returns nothing."""
        if self.function is not None:
            name = "save: function(t, q, v, args)"
            found = outcome(name, as_array_tree, self.function, *one.start)
            if not jax.tree.leaves(found):
                raise TypeError("save: function(t, q, v, args) returns nothing: is a return missing?")
            return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(found))
        pairs = 8 * m * self.problem.listed
        return (3 * one.q0.shape[0] + m + 1 + (self.problem.energy is not None)) * one.q0.dtype.itemsize + pairs


def classes_of(x: object) -> tuple[type, ...]:
    """Returns the class of an object, and recursively those of its fields that are dataclasses.

    Fields that are leaves, such as numbers, are left out, since jax may put objects of its own, which are dataclasses,
    in their place.
    """
    parts = (getattr(x, part.name) for part in fields(x)) if is_dataclass(x) else ()
    nodes = (part for part in parts if is_dataclass(part) and not jax.tree_util.all_leaves([part]))
    return (type(x), *(found for part in nodes for found in classes_of(part)))


def _saved_times(save: Save, motion: Motion) -> Any:
    """Returns the saved times (k,), a last one at t1 left out, as the final row stands for it;
    ValueError if they are invalid."""
    dtype = motion.q0.dtype
    times = save.times.astype(dtype) if is_traced(save.times) else np.asarray(save.times, dtype)
    if times.ndim != 1:
        raise ValueError(f"save: times must have shape (k,), got {times.shape}")
    if is_traced(times):
        return times
    if not np.all(np.isfinite(times)) or np.any(np.diff(times) <= 0):
        raise ValueError("save: times must be finite and strictly increasing")
    near = np.min(np.diff(times), initial=np.inf)
    if not is_traced(motion.h) and save.function is not None and near < np.max(motion.h):
        raise ValueError("save: with a function, times must be at least h apart; store the state, or take a smaller h")
    if is_traced(motion.t0, motion.t1) or times.size == 0:
        return times
    t0, t1, latest = (float(x) for x in (np.max(motion.t0), np.min(motion.t1), np.max(motion.t1)))
    slack = 8 * np.finfo(times.dtype).eps * max(abs(t0), abs(latest))
    if times[0] < t0 - slack or times[-1] > t1 + slack:
        raise ValueError(f"save: times must lie in [t0, t1] = [{t0:g}, {t1:g}], got [{times[0]:g}, {times[-1]:g}]")
    # the final row stands for a last time equal to t1
    return times[:-1] if times[-1] >= latest - slack else times


def in_order(times: Array | np.ndarray, motion: Motion) -> Array:
    """Tests whether saved times (k,), which cannot raise if they are traced, increase from t0 to t1, ()."""
    times, t0, t1 = lax.stop_gradient((jnp.asarray(times), motion.t0, motion.t1))
    slack = 8 * jnp.finfo(times.dtype).eps * jnp.maximum(jnp.abs(t0), jnp.abs(t1))
    return jnp.all(jnp.diff(times) > 0) & (times[0] >= t0 - slack) & (times[-1] <= t1 + slack)
