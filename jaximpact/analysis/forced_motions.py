"""Batches of motions of one forced system, each lane with its own forcing period; they are run over whole periods and
restarted from the ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..jaxtools.argument_checks import known_numbers
from ..jaxtools.shapes import PyTree
from ..mechanics.contact.solver import ContactSolver
from ..mechanics.joint_projection import nearest_on_joints
from ..mechanics.linearisation import Metric, closure, linearise
from ..mechanics.motion import OF_CONTACTS, STATED, Motion
from ..mechanics.problem import Problem
from ..mechanics.scheme import Scheme, Timing
from ..results import Solution
from ..results.save import SaveLike
from ..simulation.arguments import choose_methods
from ..simulation.call import Arguments, Call, numbers_of_one
from ..simulation.canonical_arrays import canonical_state, cast_numbers, full_axes
from ..simulation.ensemble import ensemble
from ..simulation.lane_arguments import contacts_of, is_shared, numbers_of_lanes
from ..simulation.lanes import Lanes
from ..simulation.limits import CHUNK_BYTES
from ..simulation.random_keys import of_lanes, words_of
from ..simulation.validation import check_problem
from .checks import TimeLike, positive_time, share_of_period

LIFT = 4e3  # rounding units of gap at which a motion is started again: above what counts as touching


@dataclass(frozen=True)
class ForcedMotions:
    """Motions of one forced system, with checked arguments.

    ``lanes``: starts q0, v0 (B, d), restitution, friction and args; ``period``: forcing periods (B,) [s]; ``begins``:
    start time of all motions divided by their period, a phase plus a whole number.
    """

    problem: Problem
    scheme: Scheme
    projection: ContactSolver
    lanes: Lanes
    period: np.ndarray
    begins: float

    def __len__(self) -> int:
        return self.lanes.count

    @property
    def args(self) -> PyTree:
        """Parameters, as `ensemble` takes them with ``args_axes``."""
        return self.lanes.motion.args

    @property
    def args_axes(self) -> PyTree:
        """Lane axes of the parameters, as `ensemble` takes them."""
        return jax.tree.map(lambda mark: None if mark < 0 else mark, self.lanes.marks.args)

    def call(self, **more: Any) -> Call:
        """The call of the motions; ``more``: its times and further arguments."""
        motion = self.lanes.motion
        numbers = {name: getattr(motion, name) for name in ("q0", "v0", "args", "key", *OF_CONTACTS)} | more
        return Call(self.problem, scheme=self.scheme, projection=self.projection, args_axes=self.args_axes, **numbers)

    def strobes(self, k: np.ndarray) -> np.ndarray:
        """Times (B, n), k (n,) periods after the start."""
        return (self.begins + k) * self.period[:, None]

    def over_one_period(self) -> Lanes:
        """The motions over their first period."""
        begin = self.begins * self.period
        return self.lanes.replace(t0=begin, t1=begin + self.period)

    def constraints(self) -> int:
        """Number of constraints m."""
        one = self.lanes.take(0)
        return self.problem.count(0.0, jnp.asarray(one.q0), one.args)

    def restitution(self) -> np.ndarray | None:
        """Restitution by lane (B, 1), or by lane and contact (B, m) or (1, m); None for the problem's own function."""
        own = self.lanes.motion.e
        if own is None and callable(self.problem.restitution):
            return None
        e = np.asarray(self.problem.restitution if own is None else own, self.lanes.motion.q0.dtype)
        return e[:, None] if own is not None and e.ndim == 1 else np.atleast_2d(e)

    def friction(self, name: str = "friction") -> np.ndarray | None:
        """Coefficients of friction by lane (B, 1), or by lane and contact (B, m) or (1, m);
        None if the problem's own are used.

        ``name``: "friction" or "static_friction".
        """
        mu = getattr(self.lanes.motion, name)
        return None if mu is None else mu[:, None] if mu.ndim == 1 else np.atleast_2d(mu)

    def some(self, which: np.ndarray) -> ForcedMotions:
        """Selects the lanes ``which``."""
        return replace(self, lanes=self.lanes.some(which), period=self.period[which])

    def parts(self, size: int) -> Iterator[tuple[ForcedMotions, int]]:
        """Splits the lanes into groups that fit into memory at ``size`` bytes for a lane;
        yields each group with its number of real lanes.

        All groups have the same number of lanes, so that they share one compilation:
        the last group is padded with copies of the last lane.
        """
        groups = -(-len(self) * size // CHUNK_BYTES)
        count = -(-len(self) // groups)
        for first in range(0, len(self), count):
            live = min(count, len(self) - first)
            yield self.some(np.minimum(np.arange(first, first + count), len(self) - 1)), live

    def run(self, periods: int, steps: int, save: SaveLike, progress: bool | None) -> Solution:
        """Runs all lanes over a number of ``periods``, with ``steps`` steps in each;
        ``save`` and ``progress`` as in `ensemble`."""
        dtype = self.lanes.motion.q0.dtype
        times = (self.begins * self.period, (self.begins + periods) * self.period, self.period / steps)
        t0, t1, h = (x.astype(dtype) for x in times)
        return jax.device_get(ensemble(self.call(t0=t0, t1=t1, h=h, save=save, progress=progress)))

    def after(self, solution: Solution) -> ForcedMotions:
        """Returns the motions with the final states of ``solution`` as starts;
        failed lanes keep their previous start."""
        q, v = (np.asarray(x[:, -1]) for x in (solution.q, solution.v))
        return self.restart(np.where(np.asarray(solution.failed)[:, None], np.nan, q), v)

    def restart(self, q: np.ndarray, v: np.ndarray) -> ForcedMotions:
        """Returns the motions with states q, v (B, d) as starts, made admissible; lanes with a state that is not finite
        keep their previous start."""
        motion = self.lanes.motion
        lost = ~np.all(np.isfinite(q) & np.isfinite(v), axis=1)
        q, v = (np.where(lost[:, None], old, new) for old, new in ((motion.q0, q), (motion.v0, v)))
        starts = self.lanes.replace(q0=q, v0=v, args=cast_numbers("args", motion.args, q.dtype)).only(
            "q0", "v0", "args"
        )
        t = np.asarray(self.begins * self.period, q.dtype)
        q, v = map(np.asarray, admit(self.problem, t, starts.motion, starts.axes))
        return replace(self, lanes=self.lanes.replace(q0=q, v0=v))


@partial(jax.jit, static_argnames=("axes",))
def admit(problem: Problem, t: Array, motion: Motion, axes: tuple) -> tuple[Array, Array]:
    """Returns admissible positions and velocities (B, d): starts on the joints, which may depend on what is varied, and
    whose contacts, if violated or closed and approaching, are opened by a shift along M^-1 grad f.

    The gap becomes slightly positive, not zero: a motion that starts on a wall and moves into it
    would lose its normal velocity.
    """

    def one(t: Array, motion: Motion) -> tuple[Array, Array]:
        args = motion.args
        q, v = nearest_on_joints(problem, t, motion.q0, motion.v0, args)
        for _ in range(2):
            contacts = linearise(problem, Metric.at(problem, q, args, t), t, q, args)
            found = closure(contacts, contacts.gap_velocity(v), q, v)
            inside = found.violated | found.outward
            goal = LIFT * jnp.finfo(q.dtype).eps * (1 + jnp.abs(contacts.jacobian) @ jnp.abs(q))
            matrix = jnp.where(inside[:, None] & inside[None, :], contacts.delassus(), 0.0)
            q = q + contacts.jump(jnp.linalg.pinv(matrix, hermitian=True) @ jnp.where(inside, goal - contacts.gap, 0))
        return q, v

    return jax.vmap(one, in_axes=(0, Lanes(motion, axes, 0).in_axes))(t, motion)


def gather(call: Call, period: TimeLike, phase: float) -> ForcedMotions:
    """Checks the arguments of a section and collects them as `ForcedMotions`, each lane with its start and period."""
    problem, args, args_axes = call.problem, call.args, call.args_axes
    check_problem(problem)
    phase = share_of_period(phase)
    scheme, projection = choose_methods(call.scheme, call.projection, problem)
    q0, v0 = (np.asarray(x) for x in canonical_state(call.q0, call.v0))
    for name, value in {"q0": q0, "v0": v0}.items():
        if value.ndim not in (1, 2):
            raise ValueError(f"{name} must have shape (d,) or (B, d), got {value.shape}")
    axes = full_axes(args, args_axes)
    period = positive_time("period", period, args, args_axes).astype(np.float64)
    sizes = {name: len(x) for name, x in {"q0": q0, "v0": v0}.items() if x.ndim == 2}
    if period.ndim:
        sizes["period"] = len(period)
    for axis, leaf in zip(jax.tree.leaves(axes), jax.tree.leaves(args), strict=True):
        if axis == 0:
            sizes[f"args of shape {np.shape(leaf)}"] = len(leaf)
    numbers = {}
    for name in OF_CONTACTS:
        numbers[name] = of_contacts(name, call.replace(q0=q0, scheme=scheme), sizes)
        if not is_shared(numbers[name]):
            sizes[name] = len(numbers[name])
    key = words_of(call.key, problem)
    if np.ndim(key) > 1:
        sizes["key"] = len(key)
    if 0 in sizes.values():
        raise ValueError(f"lane axes must hold a lane, got {sizes}")
    if len(set(sizes.values())) > 1:
        raise ValueError(f"lane axes must have one length, got {sizes}")
    count, d = next(iter(sizes.values()), 1), q0.shape[-1]
    q0, v0 = np.broadcast_to(q0, (count, d)), np.broadcast_to(v0, (count, v0.shape[-1]))
    times: Arguments = dict.fromkeys(("t0", "t1", "h", "steps"))
    by_lane = {name: None if x is None else -1 if is_shared(x) else 0 for name, x in numbers.items()}
    numbers = {name: None if x is None else np.asarray(x, q0.dtype) for name, x in numbers.items()}
    key = None if key is None else of_lanes(key, range(count))
    motion = Motion(q0, v0, args=args, key=key, **numbers, **times)
    marks = Motion(0, 0, args=axes, key=None if key is None else 0, **by_lane, **times)
    lanes = Lanes.of(motion, marks, count)
    return ForcedMotions(problem, scheme, projection, lanes, np.broadcast_to(period, (count,)), phase)


def check_restarts(scheme: Scheme) -> None:
    """Raises for a scheme whose next step needs more than a state (q, v)."""
    if Timing.of(scheme).rebounds:
        raise ValueError(
            f"scheme={type(scheme).__name__}: an impact in its last step rebounds in the next one, so that motions "
            "cannot "
            "be started again from a state; use EventDriven(), EventCorrected() or MoreauJean()"
        )


def of_contacts(name: str, call: Call, sizes: dict[str, int]) -> Any:
    """Returns restitution or friction of a section as a number or with shape (1, m), (B, 1) or (B, m);
    None if it is None.

    Its shape is interpreted as in `solve` if no other argument has lanes, else as in `ensemble`. ``name``: "e",
    "friction" or "static_friction"; ``sizes``: numbers of lanes of the other arguments by name.
    """
    if getattr(call, name) is None:
        return None
    e = known_numbers(STATED[name], getattr(call, name)).astype(call.q0.dtype)
    if not sizes:
        e = numbers_of_one(name, call.replace(**{name: e}))
    elif np.ndim(e) == 1 and 0 not in sizes.values():
        args = cast_numbers("args", call.args, call.q0.dtype)
        m = contacts_of(name, call.problem, call.q0, args, full_axes(args, call.args_axes), call.scheme)
        e = numbers_of_lanes(name, e, m, next(iter(sizes.values())))
    return e[:, None] if np.ndim(e) == 1 else e
