"""Ends of motions that are seen at the ends of steps: when all is at rest, and when bodies have jammed.

References:
    T.-T. Ng, Input parameters of discrete element methods, J. Eng. Mech. 132 (2006): the index of unbalanced forces.
    C. S. O'Hern, L. E. Silbert, A. J. Liu, S. R. Nagel, Jamming at zero temperature and zero applied stress, Phys. Rev. E 68, 011306 (2003): rattlers.
    C. P. Goodrich, A. J. Liu, S. R. Nagel, Finite-size scaling at the jamming transition, Phys. Rev. Lett. 109, 095704 (2012): how many contacts
    a periodic packing has at least.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ..jaxtools.argument_checks import check_counts, is_number
from .linearisation import Metric, acceleration
from .motion import Motion
from .problem import Problem
from .status import Status

STEPS = 10  # that a motion has to be at rest, at least
SLOWLY = 100  # times its speed that forces would give in the time for which a motion has to be at rest
LEAST = 1e-3  # of the mean force: contacts with less do not count


class Watch(NamedTuple):
    """What a motion is known by behind a step: the time () ``since`` when it has been at rest, infinite while it is not; the largest
    acceleration () that its forces would have given so far, its ``pull``."""

    since: Array
    pull: Array

    @classmethod
    def start(cls, motion: Motion) -> Watch:
        """At the start of a motion."""
        return cls(jnp.full_like(motion.t0, jnp.inf), jnp.zeros_like(motion.t0))


@dataclass(frozen=True)
class AtRest:
    """Nothing is faster than ``speed``, nor accelerated so that it would be, for a ``time``: see `Until.at_rest`."""

    speed: float
    time: float | None = None

    before: ClassVar[bool] = False  # whether the step that shows it is taken back

    def __post_init__(self) -> None:
        given: dict[str, Any] = {"speed": self.speed} | ({} if self.time is None else {"time": self.time})
        for name, value in given.items():
            if not (is_number(value) and 0 < value < jnp.inf):
                raise ValueError(f"Until.at_rest({name}=...) must be a positive number, got {value!r}")

    def check(self, problem: Problem) -> None:
        """Any problem may come to rest."""

    def after(
        self, problem: Problem, motion: Motion, watch: Watch, old: Any, new: Any, row: Any, status: Array
    ) -> tuple[Watch, Array]:
        """What is known behind a step from a state to a ``new`` one with its row and status, and whether the motion ends with it, ()."""
        t, h, args = motion.time(new.n), motion.h, motion.args
        metric = Metric.at(problem, new.q, args, t)
        largest = lambda v: jnp.max(speeds(problem, metric, v), initial=0.0)
        free = acceleration(problem, metric, t, new.q, new.v, args)
        pull = jnp.maximum(watch.pull, largest(free))
        least = STEPS * h
        if self.time is None:
            time = jnp.maximum(least, jnp.where(pull > 0, SLOWLY * self.speed / jnp.where(pull > 0, pull, 1), 0))
        else:
            time = jnp.asarray(self.time, h.dtype)
        calm = (largest(new.v) <= self.speed) & (largest(new.v - old.v) * time <= self.speed * h)
        since = jnp.where(calm, jnp.minimum(watch.since, t - h), jnp.inf)
        return Watch(since, pull), t - since > time - 0.5 * h


@dataclass(frozen=True)
class Jammed:
    """Forces of contacts balance each other, at as many contacts as hold all bodies but rattlers: see `Until.jammed`."""

    balance: float = 1e-2
    needed: int | None = None

    before: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (is_number(self.balance) and 0 < self.balance < 1):
            raise ValueError(f"Until.jammed(balance=...) must be a number between 0 and 1, got {self.balance!r}")
        if self.needed is not None:
            check_counts(**{"Until.jammed(needed=...)": self.needed})

    def check(self, problem: Problem) -> None:
        """Raises ValueError unless near pairs of bodies are listed."""
        if not problem.listed:
            raise ValueError(
                "until=Until.jammed(...) looks at bodies whose near pairs are listed: state them by jaximpact.bodies, with lists=True if they are few"
            )

    def after(
        self, problem: Problem, motion: Motion, watch: Watch, old: Any, new: Any, row: Any, status: Array
    ) -> tuple[Watch, Array]:
        """As of `AtRest`; the row of listed bodies holds the impulses of the step alone."""
        bodies: Any = problem.between
        count, space = bodies.number, bodies.positions(new.q).shape[1]
        each = new.v.size // count  # coordinates of a body
        force = problem.generalised_force(motion.time(old.n), old.q, old.v, motion.args)
        net = Metric.at(problem, old.q, motion.args).times(new.v - old.v) - motion.h * force
        impulse, ends = row.impulse, row.pairs
        mean = lambda x, of: jnp.sum(jnp.where(of, x, 0)) / jnp.maximum(jnp.sum(of), 1).astype(x.dtype)
        pushes = (impulse > LEAST * mean(impulse, impulse > 0)) & (ends[:, 0] < count)
        # squares of impulses of a step that nothing can make may be too large for the type
        largest = jnp.max(impulse)
        part = lambda x: x / jnp.where(largest > 0, largest, 1)
        unbalanced = jnp.sum(part(net.reshape(count, each)[:, :space]) ** 2) / count
        balanced = jnp.any(pushes) & (unbalanced <= self.balance**2 * mean(part(impulse) ** 2, pushes))
        rows = 1 if row.friction_impulse is None else 1 + row.friction_impulse.shape[-1]
        needed = space + (rows == 1) if self.needed is None else self.needed
        held, contacts = backbone(ends, pushes, count, needed, balanced)
        # a packing that repeats itself may drift as a whole, and is held by one more contact than balances it
        free = space - 1 if bodies.box is not None and None not in bodies.box else 0
        equations = (space if rows == 1 else each) * jnp.sum(held)
        whole = status & int(Status.NEIGHBOURS_LOST) == 0  # no pair was missing
        return watch, balanced & whole & jnp.any(held) & (rows * contacts >= equations - free)


def backbone(ends: Array, pushes: Array, count: int, needed: int, pending: Array) -> tuple[Array, Array]:
    """Bodies (N,) held by at least ``needed`` contacts with others that are held, and the number () of those contacts; none unless ``pending``."""
    i, j = ends[:, 0], jnp.where(ends[:, 1] < 0, count, ends[:, 1])

    def counted(held: Array) -> Array:
        known = jnp.append(held, True)
        return pushes & known[jnp.minimum(i, count)] & known[j]

    def look(held: Array) -> Array:
        acts = counted(held).astype(jnp.int32)
        degree = jnp.zeros(count + 1, jnp.int32).at[i].add(acts, mode="drop").at[j].add(acts, mode="drop")
        return held & (degree[:count] >= needed)

    begin = jnp.broadcast_to(pending, (count,))
    fewer = lambda now: jnp.any(now[0] != now[1])
    held, _ = lax.while_loop(fewer, lambda now: (look(now[0]), now[0]), (look(begin), begin))
    return held, jnp.sum(counted(held))


def speeds(problem: Problem, metric: Metric, v: Array) -> Array:
    """Speeds (N,) of bodies, those of rotation by their kinetic energy; of other problems of the coordinates, (d,)."""
    bodies: Any = problem.between
    if bodies is None:
        return jnp.abs(v)
    count, space = bodies.number, bodies.positions(v).shape[1]
    energy = jnp.sum((v * metric.times(v)).reshape(count, -1), axis=1)
    matrix = jnp.ones((), v.dtype) if metric.matrix is None else metric.matrix
    diagonal = jnp.diagonal(matrix, axis1=-2, axis2=-1) if matrix.ndim > 1 else matrix
    mass = jnp.broadcast_to(diagonal.ravel(), v.shape).reshape(count, -1)[:, :space]
    return jnp.sqrt(jnp.abs(energy) / jnp.mean(mass, axis=1))
