"""By how much a scheme that locates no impacts may have them too early or too late, what this does to gaps,
and whether one may lie at the end.

A body that an impact leaves behind its exact motion meets others late, and has its later impacts late; one that no
impact has to do with keeps its times and its place. The errors are therefore known for each part of the coordinates
that moves by itself between contacts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ...jaxtools.coupling import smallest_parts
from ...jaxtools.loops import while_loop
from ..linearisation import Metric
from ..motion import At, Motion
from ..problem import Problem
from ..scheme import Scheme, Traits, time_of
from ..status import Status, as_status
from .impact_saltation import Instant, observe

if TYPE_CHECKING:
    from ..contacts import Contacts

NEVER = -1  # in place of the number of a step
MEANT = 1e-3  # of the resolution of impacts: a motion that stops as near to an impact as that stops at it


class ImpactTimes(NamedTuple):
    """Times of impacts so far, of n equal parts of the coordinates between which nothing acts but contacts.

    ``latest`` (n,): number of the step of the latest impact that moved each part, negative before any; ``early``,
    ``late`` (n,): times by which its impacts may be earlier or later than those of the exact motion; ``aside`` (d,):
    the displacement by which that latest impact, where it is a step late, leaves the coordinates behind, and ``speed``
    (d,), their velocity after it.
    """

    latest: Array
    early: Array
    late: Array
    aside: Array
    speed: Array

    @classmethod
    def none(cls, parts: int, like: Array) -> ImpactTimes:
        """Makes the times of a motion without impacts so far, in the dtype of ``like``."""
        zero = jnp.zeros(parts, like.dtype)
        return cls(jnp.full(parts, -3, jnp.int32), zero, zero, *[jnp.zeros_like(like)] * 2)

    def since(self, h: Array, n: Array) -> Array:
        """Returns the time (n,) from the latest impact of each part to the step of number n, 0 before any."""
        return jnp.where(self.latest >= 0, elapsed(h, self.latest, n), 0)

    def of_gaps(self, n: Array, metric: Metric, by_entry: Callable, known: tuple) -> tuple[Array, Array]:
        """Returns what `Tracked` holds of each gap (m,) at the step of number n: when it was ``struck``,
        and how much it is ``aside``.

        Both are as ``known`` where no impact in the step before moved what the gap depends on,
        unless that is not known.

        Only displacements across the velocities count: along them, what a gap depends on is only delayed, and meets the
        same contacts. ``by_entry``: of `Contacts`, for the gradients of the gaps.
        """
        parts = len(self.latest)
        repeat = lambda x: jnp.repeat(x, len(self.aside) // parts)
        work, square = (
            repeat(jnp.sum((x * metric.times(self.speed)).reshape(parts, -1), axis=1)) for x in (self.aside, self.speed)
        )
        age = repeat(jnp.where(self.latest >= 0, n + 1 - self.latest, 0).astype(work.dtype))
        size, age, aside, speed, work, square = by_entry(age, self.aside, self.speed, work, square)
        work, square = jnp.sum(size * work, axis=0), jnp.sum(size * square, axis=0)
        along = work / jnp.where(square > 0, square, 1)
        oldest = jnp.max(jnp.where(size > 0, age, 0), axis=0, initial=0.0).astype(jnp.int32)
        struck = jnp.where(oldest > 0, n + 1 - oldest, NEVER).astype(jnp.int32)
        found = struck, jnp.sum(size * jnp.abs(aside - along[None] * speed), axis=0)
        new = jnp.any((size > 0) & (age == 1), axis=0) | (known[0] == 0)
        return lax.stop_gradient(jax.tree.map(lambda x, y: jnp.where(new, x, y), found, known))

    def after(
        self,
        traits: Traits,
        motion: Motion,
        n: Array,
        turned: tuple[Array, Array],
        here: Instant,
        impact: Array,
        acting: Array,
    ) -> ImpactTimes:
        """Returns the times after a step that begins at the number n, with an ``impact`` at some contacts (m,).

        ``turned``: velocities (d,) before and after the impacts; ``here``: the contacts at that time; ``acting`` (m,):
        those that pass on the impacts, as they have impulses or are closed.
        """
        v, behind_it = turned
        h, contacts, parts = motion.h, here.contacts, len(self.late)
        ahead, behind = lax.stop_gradient(traits.delay(motion.e))
        speed = jnp.where(impact, -here.gap_velocity, 0)
        swing = impact_time_errors(traits, speed, here.threshold, largest(contacts, self.since(h, n)))
        struck = impact.astype(h.dtype)
        errors = self.early, self.late
        # what each part has when the step begins, and what its impacts bring it
        delays = [jnp.where(impact, of_contacts(contacts, v, speed, x), 0) for x in errors]
        found = [spread(contacts, x, parts) for x in (*delays, jnp.where(impact, swing, 0), struck)]
        found = [jnp.maximum(x, y) for x, y in zip(found, (*errors, *[jnp.zeros_like(self.late)] * 2), strict=True)]
        early, late, swing, struck = found if parts == 1 else passed_on(contacts, acting | impact, tuple(found))
        moved = struck > 0
        early, late = (x + jnp.where(moved, h * steps + swing, 0) for x, steps in ((early, ahead), (late, behind)))
        latest = jnp.where(moved, n + 1, self.latest).astype(jnp.int32)
        changed, unmoved = (jnp.repeat(x, len(v) // parts) for x in (moved, latest < 0))
        aside = jnp.where(changed, h * (behind_it - v), self.aside)
        speed = jnp.where(changed | unmoved, behind_it, self.speed)
        return lax.stop_gradient(ImpactTimes(latest, early, late, aside, speed))


def parts_of(problem: Problem, metric: Metric, contacts: Any, t: Array, q: Array, v: Array, args: object) -> int:
    """Returns into how many equal parts the coordinates can be cut such that no part acts on another except through
    contacts; found from the structure of the force, not from values."""
    d, shape = len(q), np.shape(metric.matrix)
    least = 1 if contacts.dense else d // contacts.bodies
    if d == least or metric.joints.size or callable(problem.mass) or not contacts.shape[0]:
        return 1
    if len(shape) == 2:
        return 1
    if len(shape) == 3:
        least = max(least, shape[1])
    force = lambda q, v: problem.generalised_force(t, q, v, args)
    return d // smallest_parts(force, (q, v), least)


def largest(contacts: Contacts, x: Array) -> Array:
    """Returns for each contact (m,) the largest of the numbers x (n,) of the parts of the coordinates on which its gap
    depends."""
    return jnp.broadcast_to(x, contacts.gap.shape) if len(x) == 1 else contacts.largest(x)


def spread(contacts: Contacts, x: Array, parts: int) -> Array:
    """Returns the largest of numbers x (m,) of contacts that have to do with each of the
    ``parts`` (n,) of the coordinates."""
    return jnp.max(x, initial=0.0, keepdims=True) if parts == 1 else contacts.spread(x, parts)


def passed_on(contacts: Contacts, acting: Array, numbers: tuple) -> tuple:
    """Returns each of the ``numbers`` (n,) of parts of the coordinates, with the largest number among the parts that
    contacts ``acting`` (m,) link, directly or through others."""

    def body(constants: tuple, carry: tuple) -> tuple:
        contacts, acting = constants
        _, numbers = carry
        shared = lambda x: jnp.maximum(x, contacts.spread(jnp.where(acting, contacts.largest(x), 0), len(x)))
        found = tuple(map(shared, numbers))
        more = [jnp.any(x > y) for x, y in zip(found, numbers, strict=True)]
        return jnp.any(jnp.stack(more)), found

    known = lax.stop_gradient((contacts, acting))
    return while_loop(lambda constants, carry: carry[0], body, known, (jnp.ones((), bool), lax.stop_gradient(numbers)))[
        1
    ]


def of_contacts(contacts: Contacts, v: Array, speed: Array, delays: Array) -> Array:
    """Returns the delays (m,) of impacts at closing speeds ``speed`` (m,), given the ``delays`` (n,) of the parts of
    the coordinates and the velocities v (d,).

    If all parts of a contact are delayed alike, so is its impact. If one is delayed less than another, the impact is
    later still, at most by the way that this part moves in the difference, divided by the closing speed.
    """
    whole = largest(contacts, delays)
    if len(delays) == 1:
        return whole
    terms = contacts.velocity_terms
    apart = whole * terms(v) - terms(v * jnp.repeat(delays, len(v) // len(delays)))
    return whole + jnp.where(speed > 0, jnp.maximum(apart, 0) / jnp.where(speed > 0, speed, 1), 0)


def elapsed(h: Array, first: Array, last: Array) -> Array:
    """Returns the time between two steps, given by their numbers ``first`` and ``last``."""
    return h * (last - first).astype(h.dtype)


def impact_time_errors(traits: Traits, speed: Array, threshold: Array, flight: Array) -> Array:
    """Estimates errors (m,) of the times of impacts at closing speeds ``speed`` (m,),
    a time ``flight`` (m,) after the previous impact.

    The velocity after that previous impact has an error of a quarter of h times the acceleration for each step that an
    impact takes, which is an eighth of the ``threshold`` (m,) of gap velocities for impacts.
    """
    return jnp.where(speed > threshold, 0.125 * traits.steps * flight * threshold / jnp.where(speed > 0, speed, 1), 0)


def status_at_end(problem: Problem, scheme: Scheme, motion: Motion, steps: Array, state: Any) -> Array:
    """Returns DERIVATIVE_AT_END if an impact may lie so near the end of the motion that it may be before or after it.

    That holds for impacts within a step or two of the end, plus the errors of impact times accumulated so far; for a
    scheme that locates impacts, within the error of the time of that impact (`Scheme.time_errors`). ``state``: the
    state at the end of the motion, after ``steps`` steps.
    """
    traits, h = scheme.traits, scheme.resolution(motion)
    here = observe(problem, h, At(time_of(motion, state), state.q, state.v, motion.args))
    fall = jnp.minimum(here.gap_acceleration, 0)
    # speed at which a contact would close under the present velocity and acceleration
    square = here.gap_velocity**2 - 2 * fall * here.contacts.gap
    speed = jnp.where((here.gap_velocity < 0) | (fall < 0), jnp.sqrt(jnp.maximum(square, 0)), 0)
    early, threshold = 1.5 * h, here.threshold
    if traits.locates:
        since = motion.time(steps) - state.latest
        reach = scheme.time_errors(motion, state, here.contacts, speed)
        threshold = here.noise + (threshold - here.noise) * (reach / h)
        spread = getattr(state, "spread", None)
        early = early if spread is None else 1.5 * spread
    else:
        times, contacts = state.times, here.contacts
        since, early = elapsed(h, times.latest, steps), early + times.early
        late = of_contacts(contacts, lax.stop_gradient(state.v), speed, times.late)
        flight = largest(contacts, times.since(h, steps))
        reach = h + late + impact_time_errors(traits, speed, here.threshold, flight)
    left = here.contacts.gap + reach * (here.gap_velocity + 0.5 * reach * fall)
    soon = (speed > threshold) & (left < 0)
    stop = getattr(state, "stop", None)
    if stop is not None:
        # an impact at which the motion stops by intent is at its end whatever the data
        since, near = time_of(motion, state) - state.latest, MEANT * h
        since = jnp.where(stop.stopped & (since <= near), jnp.inf, since)
        soon = soon & ~(stop.stopped & (here.contacts.gap <= near * speed))
    return as_status(jnp.any(soon) | jnp.any(since < early), Status.DERIVATIVE_AT_END)
