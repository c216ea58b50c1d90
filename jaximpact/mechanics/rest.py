"""Conditions on which a motion ends, tested at the ends of steps: everything is at rest, or bodies have jammed.

References:
    T.-T. Ng, Input parameters of discrete element methods, J. Eng. Mech. 132 (2006): the index of unbalanced forces.
    C. S. O'Hern, L. E. Silbert, A. J. Liu, S. R. Nagel, Jamming at zero temperature and zero applied stress, Phys. Rev.
    E 68, 011306 (2003):
        rattlers.
    C. P. Goodrich, A. J. Liu, S. R. Nagel, Finite-size scaling at the jamming transition, Phys. Rev. Lett. 109, 095704
    (2012): how many contacts a periodic packing has at least.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ..jaxtools.argument_checks import check_counts, is_number
from .linearisation import Metric, acceleration
from .motion import Motion
from .problem import Problem
from .status import Status

STEPS = 10  # least number of steps for which a motion has to be at rest
SLOWLY = (
    100  # times the speed of rest: velocity that forces would give in the time for which a motion has to be at rest
)
LEAST = 1e-3  # fraction of the mean impulse below which contacts do not count


class Watch(NamedTuple):
    """Carry of a test for rest over the steps: ``since`` (), the time from which on the motion has been at rest,
    infinity while it is not; and ``pull`` (), the largest acceleration without contact forces so far."""

    since: Array
    pull: Array

    @classmethod
    def start(cls, motion: Motion) -> Watch:
        """Makes the carry at the start of a motion."""
        return cls(jnp.full_like(motion.t0, jnp.inf), jnp.zeros_like(motion.t0))


@dataclass(frozen=True)
class AtRest:
    """Condition of `Until.at_rest`: for a ``time`` nothing has been faster than ``speed``, nor had an acceleration
    above ``speed``/``time``."""

    speed: float
    time: float | None = None

    before: ClassVar[bool] = False  # whether the step after which the condition holds is taken back

    def __post_init__(self) -> None:
        given: dict = {"speed": self.speed} | ({} if self.time is None else {"time": self.time})
        for name, value in given.items():
            if not (is_number(value) and 0 < value < jnp.inf):
                raise ValueError(f"Until.at_rest({name}=...) must be a positive number, got {value!r}")

    def check(self, problem: Problem) -> None:
        """Accepts any problem: no problem is unsuited to this condition."""

    def after(self, problem: Problem, motion: Motion, before: tuple, after: tuple) -> tuple[Watch, Array]:
        """Updates the `Watch` in a step, and tests whether the motion ends with that step, ().

        ``before``, ``after``: state, row and account of the motion at both ends of the step.
        """
        (old, old_row, _), (new, *_) = before, after
        watch = old_row.watch
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
    """Condition that contact forces balance each other, at as many contacts as are needed to hold all bodies but
    rattlers: see `Until.jammed`."""

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
                "until=Until.jammed(...) looks at bodies whose near pairs are listed: state them by jaximpact.bodies, "
                "with lists=True if they are few"
            )

    def after(self, problem: Problem, motion: Motion, before: tuple, after: tuple) -> tuple[Watch, Array]:
        """Returns the `Watch` unchanged, and whether the bodies are jammed by the impulses of this step, ();
        arguments as of `AtRest.after`.

        The bodies are jammed if the contact impulses on each of them cancel, up to ``balance``, and there are at least
        as many contacts as the equilibrium of the bodies that are held needs. A row of listed bodies holds the impulses
        of its step only, not their sum so far.
        """
        bodies = problem.bodies
        (old, old_row, _), (new, row, account) = before, after
        count, space = bodies.number, bodies.positions(new.q).shape[1]
        each = new.v.size // count  # coordinates of a body
        force = problem.generalised_force(motion.time(old.n), old.q, old.v, motion.args)
        net = Metric.at(problem, old.q, motion.args).times(new.v - old.v) - motion.h * force
        impulse, ends = row.impulse, row.pairs
        mean = lambda x, of: jnp.sum(jnp.where(of, x, 0)) / jnp.maximum(jnp.sum(of), 1).astype(x.dtype)
        pushes = (impulse > LEAST * mean(impulse, impulse > 0)) & (ends[:, 0] < count)
        # the impulses of a step that has no solution may be so large that their squares overflow
        largest = jnp.max(impulse)
        part = lambda x: x / jnp.where(largest > 0, largest, 1)
        unbalanced = jnp.sum(part(net.reshape(count, each)[:, :space]) ** 2) / count
        balanced = jnp.any(pushes) & (unbalanced <= self.balance**2 * mean(part(impulse) ** 2, pushes))
        rows = 1 + row.friction_impulse.shape[-1]
        needed = space + (rows == 1) if self.needed is None else self.needed
        held, contacts = backbone(ends, pushes, count, needed, balanced)
        # a periodic packing may drift as a whole, and has one contact more than equilibrium needs
        free = space - 1 if bodies.box is not None and None not in bodies.box else 0
        equations = (space if rows == 1 else each) * jnp.sum(held)
        whole = account.status & int(Status.NEIGHBOURS_LOST) == 0  # no pair was missing
        return old_row.watch, balanced & whole & jnp.any(held) & (rows * contacts >= equations - free)


def backbone(ends: Array, pushes: Array, count: int, needed: int, pending: Array) -> tuple[Array, Array]:
    """Finds the bodies that are held by their contacts, all bodies but rattlers: the mask (N,) of these, and the number
    () of contacts among them.

    It is the largest set of bodies each of which has at least ``needed`` pushing contacts with bodies of the set,
    or with walls.

    Args:
        ends: numbers (m, 2) of the two bodies of each contact, negative for a wall.
        pushes: mask (m,) of contacts that push; the others do not count.
        count: number N of bodies.
        pending: whether to search at all, (); otherwise no body is held.
    """
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
    """Returns the speeds (N,) of bodies, by their kinetic energy, rotation included; for other problems those of the
    coordinates, |v| (d,)."""
    if problem.between is None:
        return jnp.abs(v)
    bodies = problem.bodies
    count, space = bodies.number, bodies.positions(v).shape[1]
    energy = jnp.sum((v * metric.times(v)).reshape(count, -1), axis=1)
    mass = metric.mass.diagonal(v).reshape(count, -1)[:, :space]
    return jnp.sqrt(jnp.abs(energy) / jnp.mean(mass, axis=1))
