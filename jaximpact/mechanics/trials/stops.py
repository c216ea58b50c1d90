"""Surfaces at which a motion ends: how a trial watches one, and how the time at which it is reached is found.

Along the motion a surface is a function of time, taken with the sign that makes it positive before the surface is
reached, as a gap is. It is evaluated in every stage, so that the error estimate of a trial
includes that of the function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ...jaxtools.argument_checks import check_counts, is_whole
from ..problem import Problem
from ..rest import AtRest, Jammed
from .searches import STEPPING, STOP, TOGETHER, Search, Verdict, safeguarded_newton
from .trial import LevelValues, Trial, cubic, first_root, frozen, least_gaps

NEAR_START = 16  # roundings of time, within which of a surface a motion counts as starting on it


@dataclass(frozen=True)
class Until:
    """Where a motion ends, for ``until=``: where a function (t, q, v, args) -> () changes its sign; or `at_rest`,
    or `jammed`.

    The end at such a surface is located to the order of the scheme, and its time and state have the derivative of the
    motion. A motion that starts on the surface leaves it first. The gap of a contact becomes zero just before the
    impact, and the motion ends there; if an impact changes the sign of a function of the velocity,
    the motion ends just after the impact.

    Attributes:
        function: the function, along the motion as smooth as the force. If it jumps, the end is found, but its time has
            no derivative (DERIVATIVE_JUMP); if it stays zero, as the gap of a lasting contact, it changes no sign.
        direction: 1 for changes from negative to positive only, -1 for those from positive to negative, 0 for both.
        number: at which of these changes the motion ends, 1 for the first.
        contact: set by `Until.impact`: the contact whose impacts are counted instead of changes of sign.
    """

    function: Any
    direction: int = 0
    number: int = 1
    contact: int | str | None = None

    @classmethod
    def impact(cls, contact: int | str = 0, number: int = 1) -> Until:
        """Ends the motion just before an impact of a contact, given by its number or name: the first,
        or the one of a ``number``.

        In an accumulation of impacts the scheme makes finitely many of them; if there are fewer than ``number``,
        the motion goes on to t1.
        """
        return cls(Gap(contact), -1, number, contact)

    @classmethod
    def apex(cls, coordinate: int | str = 0, number: int = 1) -> Until:
        """Ends the motion where a coordinate, given by its number or name, has a maximum: where its velocity changes
        from positive to negative."""
        return cls(Speed(coordinate), -1, number)

    @classmethod
    def section(cls, function: Callable, direction: int = 1, number: int = 1) -> Until:
        """Ends the motion where it crosses the section on which a function (t, q, v, args) -> () is zero;
        a start on it does not count."""
        return cls(function, direction, number)

    @classmethod
    def at_rest(cls, speed: float, time: float | None = None) -> Until:
        """Ends the motion when for a ``time`` nothing has been faster than ``speed``,
        nor had an acceleration above ``speed``/``time``.

        This is tested at the ends of steps, with every scheme but `EventCorrected` and `EventDriven`, for one motion,
        ensembles, studies and `study.Run`. No steps are made after the end,
        which is the end of a step and has no derivative.

        Args:
            speed: for a body the speed of its kinetic energy T, sqrt(2 T / m), rotation included [m/s]; for other
                problems |v_i| of every coordinate, in its unit.
            time: by default ten steps, or the time in which the forces without contacts would give a hundred times that
                speed, if that is more: a body that turns round in flight is not at rest, and at the end accelerations
                are at most a hundredth of those by these forces [s].
        """
        return cls(AtRest(speed, time))

    @classmethod
    def jammed(cls, balance: float = 1e-2, needed: int | None = None) -> Until:
        """Ends the motion before the step in which listed bodies that grow, or are pressed by moving walls, would jam;
        tested at the ends of steps.

        In that step contact forces balance each other, at as many contacts as are needed to hold all bodies but
        rattlers: a self-stress, so that no velocities open all contacts (Farkas). In a periodic box without friction
        these are space (N - 1) + 1 contacts of N bodies in ``space`` dimensions (Goodrich, Liu, Nagel, Phys. Rev. Lett.
        109, 095704 (2012)). The row at the end has positions from before the step, and the impulses of the step, of
        which only the ratios are meaningful.

        Args:
            balance: ratio of the root mean squares of the net force on a body and of the contact forces (Ng, J. Eng.
                Mech. 132 (2006)), below which forces count as balanced.
            needed: number of contacts that hold a body, as in `analysis.packing`; by default the dimensions of space +
                1, with friction the dimensions.
        """
        return cls(Jammed(balance, needed))

    @property
    def by_step(self) -> AtRest | Jammed | None:
        """The condition that is tested at the ends of steps (`AtRest`, `Jammed`); None where the end is a surface."""
        return self.function if isinstance(self.function, AtRest | Jammed) else None

    @classmethod
    def of(cls, until: UntilLike) -> Until | None:
        """Returns an `Until` as it is, or makes one from a function; None for None,
        TypeError or ValueError for anything else."""
        if until is None:
            return None
        found = until if isinstance(until, cls) else cls(until)
        if not callable(found.function) and found.by_step is None:
            raise TypeError(
                f"until must be a function(t, q, v, args) -> () or Until(function, direction), got {until!r}"
            )
        if found.direction not in (-1, 0, 1):
            raise ValueError(f"Until(direction=...) must be -1, 0 or 1, got {found.direction!r}")
        check_counts(**{"Until(number=...)": found.number})
        return found

    def of_problem(self, problem: Problem, t: ArrayLike, q: Array, args: object) -> Until:
        """Returns a copy with the contact or coordinate as a number; ValueError if the problem has
        none of that name or number."""
        if isinstance(self.function, Gap):
            place = _place("contact", self.function.contact, problem.contacts, problem.count(t, q, args))
            return replace(self, function=Gap(place, problem.constraints), contact=place)
        if isinstance(self.function, Speed):
            place = _place("coordinate", self.function.coordinate, problem.coordinates, len(q))
            return replace(self, function=Speed(place))
        return self

    def value(self, t: Array, q: Array, v: Array, args: object) -> Array:
        """Returns the function at a state, ()."""
        return jnp.asarray(self.function(t, q, v, args)).astype(q.dtype)

    def rates(self, t: Array, q: Array, v: Array, a: Array, args: object) -> tuple[Array, Array]:
        """Returns the function and its rate along the motion with acceleration a (d,), ()."""
        along = lambda s: self.value(t + s, q + s * v, v + s * a, args)
        return jax.jvp(along, (jnp.zeros_like(t),), (jnp.ones_like(t),))

    def counts(self, side: Array) -> Array:
        """Tests whether a change of sign from a ``side``, -1 or 1, to the other has the ``direction`` that counts,
        ()."""
        return side != 0 if self.direction == 0 else side == -self.direction


UntilLike = Until | Callable | None  # a function of a state, or an `Until`


@dataclass(frozen=True)
class Gap:
    """Function of the state that gives the gap of a contact, for `Until.impact`."""

    contact: int | str
    constraints: Callable | None = None

    def __call__(self, t: ArrayLike, q: Array, v: Array, args: object) -> Array:
        assert self.constraints is not None
        return jnp.asarray(self.constraints(t, q, args))[self.contact]


@dataclass(frozen=True)
class Speed:
    """Function of the state that gives the velocity of a coordinate, for `Until.apex`."""

    coordinate: int | str

    def __call__(self, t: ArrayLike, q: Array, v: Array, args: object) -> Array:
        return v[self.coordinate]


def _place(kind: str, given: str | int, names: tuple[str, ...] | None, count: int) -> int:
    """Returns the number of a contact or coordinate that is given by its number or name."""
    if isinstance(given, str) and given in (names or ()):
        return (names or ()).index(given)
    if isinstance(given, str) or not is_whole(given, 0) or given >= count:
        known = f"the names are {', '.join(names)}" if names else f"give its number, 0 ... {count - 1}"
        raise ValueError(f"until: the problem has no {kind} {given!r}; {known}")
    return int(given)


class Stop(NamedTuple):
    """What is known of the end of a motion at a surface, carried in the state.

    The ``side`` of the surface on which the motion is: the sign -1 or 1 of the function of `Until`, 0 while that is
    unknown. The ``time`` at which the motion has stopped, infinity before. For `Until.number` above 1, how many changes
    of sign or impacts are ``left``, with the one that ends it.
    """

    side: Array
    time: Array
    left: Array | None = None

    @property
    def stopped(self) -> Array:
        """Tests whether the motion has stopped, ()."""
        return jnp.isfinite(self.time)

    @classmethod
    def start(cls, until: Until, t: Array, q: Array, v: Array, a: Array, h: Array, args: object) -> Stop:
        """Makes this record at the start of a motion; if that lies on the surface,
        the side is the one to which the motion goes."""
        value, rate = frozen(until.rates(t, q, v, a, args))
        spare = NEAR_START * jnp.finfo(q.dtype).eps * (jnp.abs(t) + h)
        side = jnp.sign(jnp.where(jnp.abs(value) <= spare * jnp.abs(rate), rate, value))
        left = None if until.number == 1 else jnp.full((), until.number, jnp.int32)
        return cls(side, jnp.full_like(t, jnp.inf), left)

    def ends(self, until: Until) -> Array:
        """Tests whether the next change of sign would end the motion, ()."""
        counts = until.counts(self.side)
        return counts if self.left is None else counts & (self.left <= 1)

    def after(
        self,
        until: Until,
        t: Array,
        q: Array,
        v: Array,
        args: object,
        level_values: LevelValues,
        stops: Array,
        struck: Array,
        reset: Array,
    ) -> Stop:
        """Returns the record for the state (t, q, v) from which the motion goes on after a
        trial and the events at its end.

        ``level_values``: values of the function of the surface at the start and the end of the trial, before these
        events; ``stops`` (): whether the trial has ended on the surface, and the motion with it; ``struck`` (m,):
        contacts that had an impact at the end of the trial; ``reset`` (): whether there was a reset there. An impact or
        a reset makes the state jump; if the function changes its sign by that, the change counts too.
        """
        side = jnp.sign(frozen(until.value(t, q, v, args)))
        crossed = level_values.after[0] < 0
        # where the trial has crossed it the way that does not count, the impact begins on the other side
        before = jnp.where(crossed, -self.side, self.side)
        jumps = (jnp.any(struck) | reset) & until.counts(before) & (side * before < 0)
        left = self.left
        if left is None:
            stops = stops | jumps
        elif until.contact is not None:
            left = left - struck[until.contact].astype(jnp.int32)
        else:
            # changes on the way are counted, and not sought: a trial is split where it would change sign twice
            passed = left - (crossed & until.counts(self.side)).astype(jnp.int32)
            left = passed - jumps.astype(jnp.int32)
            stops = stops | (jumps & (passed <= 1))
        return Stop(jnp.where(side != 0, side, self.side), jnp.where(stops, t, self.time), left)


def surface_to_watch(until: Until | None, stop: Stop | None, args: object) -> Callable | None:
    """Returns the function (t, q, v, a) -> (value, rate) by which trials watch the surface that ends the motion;
    None without one.

    The value is positive before the surface is reached; a (d,) is the acceleration.
    """
    if stop is None or until is None:
        return None

    def watch(t: Array, q: Array, v: Array, a: Array) -> tuple[Array, Array]:
        value, rate = until.rates(t, q, v, a, frozen(args))
        return stop.side * value, stop.side * rate

    return watch


def check_surface(
    until: Until, stop: Stop, search: Search, verdict: Verdict, trial: Trial, s: Array, shortest: Array
) -> tuple[Verdict, Array]:
    """Changes the verdict on a trial of length s that may have crossed the surface;
    also returns whether the motion ends with the trial, ().

    ``search``: the plan of this trial; ``shortest`` (): the shortest trial that time resolves. If a trial that would be
    accepted has crossed the surface, a search for the time of crossing begins.
    """
    level_values: Any = trial.level_values
    (value, rate), struck = level_values.after, jnp.any(verdict.impact)
    # time from the end of the trial to the impact that ends it, which the last correction will add
    gap, gap_rate = trial.after
    impact = -jnp.sum(jnp.where(verdict.impact, gap / jnp.where(verdict.impact, gap_rate, 1), 0))
    seeking = search.sought == STOP
    ends, counts = verdict.accepted & ~seeking, stop.ends(until)
    # an impact at the same time as the surface does not come before it
    spare = jnp.where(struck, TOGETHER * search.substep, shortest)
    begins = ends & counts & (value + impact * rate <= spare * jnp.maximum(-rate, 0))
    x, dips = least_gaps(level_values.before, level_values.after, s, level_values.roundoff)
    part = jnp.minimum(jnp.where(dips, x, 1), level_values.negative)
    split = ends & ~begins & (value > 0) & (part < 1) & (s > shortest)

    closes = rate < 0
    correction = jnp.where(closes, -value / jnp.where(closes, rate, -1), jnp.inf)
    small, improved = safeguarded_newton(search, s, correction, value <= 0, shortest)
    stops = seeking & small
    high = s + jnp.maximum(impact, 0) + spare
    pick = lambda new, turn, other: jnp.where(begins, new, jnp.where(seeking, turn, other))
    following = verdict.search
    s = jnp.where(
        split,
        s * part,
        pick(s * first_root(cubic(level_values.before, level_values.after, s), value), improved.s, following.s),
    )
    following = following._replace(
        s=s,
        sought=jnp.where(split, STEPPING, pick(STOP, STOP, following.sought)).astype(jnp.int32),
        low=pick(jnp.zeros_like(s), improved.low, following.low),
        high=pick(high, improved.high, following.high),
        turns=jnp.where(split, 0, pick(0, search.turns + 1, following.turns)).astype(jnp.int32),
    )
    accepted = jnp.where(seeking, stops, ends & ~begins & ~split)
    return verdict._replace(accepted=accepted, impact=verdict.impact & accepted, search=following), stops
