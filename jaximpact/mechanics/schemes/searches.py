"""Searches for events: what follows from a trial, and which trial is next.

Of an impact the time is sought by Newton's method on gap and gap rate, of a release by regula falsi on the push of the contact that lets go,
and by halves if that jumps, as where a curved wall begins.
All numbers are constants for differentiation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from .trials import NEAREST, Base, Trial, first_roots, least_gaps

STEPPING, IMPACT, RELEASE, STOP, SWITCH = range(5)  # what a trial is for
TURNS = 60  # of a search, which halves at worst
TOGETHER = 1e-9  # of a substep: impacts within that time are at once
CLOSE = 1e-5  # of a substep: what is left to an impact when one last correction is enough
SETTLED = 1e-13  # of a substep: what a search for a release may still move
SMOOTH = 12  # turns in which regula falsi finds the root of a push that does not jump; from then on halves


class Search(NamedTuple):
    """The next trial: its length s, what it is ``sought`` for, of which contacts (m,), between which times, with which values
    there, whether all ``pushed`` at the last trial, in how many turns so far; and the ``substep`` that the tolerance allows. Of pieces of
    a force the ``borders`` (k,) that are sought."""

    s: Array
    substep: Array
    sought: Array
    which: Array
    low: Array
    high: Array
    at_low: Array
    at_high: Array
    pushed: Array
    turns: Array
    borders: Any = None


class Verdict(NamedTuple):
    """Of a trial: whether it is ``accepted``, the contact whose impact ends it (m,), those that let go at its end (m,), whether one
    of the gaps grazes zero, and the next trial if it is not accepted."""

    accepted: Array
    impact: Array
    loosed: Array
    search: Search


def judged(base: Base, search: Search, trial: Trial, s: Array, shortest: Array, halvings: int) -> Verdict:
    """What follows from a trial of length s; all numbers are constants for differentiation."""
    stepping = search.sought == STEPPING
    fine = (trial.error <= 1) | ~stepping | (s <= shortest)
    search = search._replace(substep=_proposed(search, trial.error, s, fine & stepping, stepping, halvings))
    if base.closed.shape[0] == 0:
        nothing = jnp.zeros_like(base.closed)
        return Verdict(fine, nothing, nothing, search._replace(s=search.substep))
    gap, _ = trial.after
    negative, pulling = ~base.closed & (gap < -base.allowed), base.closed & (trial.push < 0)
    settled, contact, improved = _newton(base, search, trial, s, negative, shortest)
    released, falsi = _regula_falsi(base, search, trial, s)

    # a release is sought before an impact, whose trial it ends; both before what a stage has seen
    for_impact = ((stepping & fine) | released) & jnp.any(negative)
    for_release = (jnp.where(stepping, fine & ~for_impact, settled)) & jnp.any(pulling)
    found = (settled & ~for_release) | (released & ~for_impact)
    x, dips = least_gaps(trial.before, trial.after, s, base.allowed)
    part = jnp.minimum(jnp.min(jnp.where(dips & ~base.closed & ~negative, x, 1)), trial.negative)
    ends = (stepping & fine & ~for_impact & ~for_release) | found
    split = ends & (part < 1)
    accepted = ends & ~split

    begins = for_impact | for_release
    first = s * jnp.where(for_impact, jnp.min(jnp.where(negative, first_roots(base, trial, s), 1)), falsi.first)
    following = jnp.where(
        search.sought == IMPACT, improved.s, jnp.where(search.sought == RELEASE, falsi.s, search.substep)
    )
    sought = jnp.where(for_impact, IMPACT, jnp.where(for_release, RELEASE, jnp.where(split, STEPPING, search.sought)))
    pick = lambda new, impact, release: jnp.where(begins, new, jnp.where(search.sought == IMPACT, impact, release))
    zero = jnp.zeros_like(s)
    search = search._replace(
        s=jnp.where(begins, first, jnp.where(split, s * part, following)),
        sought=sought.astype(jnp.int32),
        which=jnp.where(begins, negative, search.which | negative),
        low=pick(zero, improved.low, falsi.low),
        high=pick(s, improved.high, falsi.high),
        at_low=jnp.where(begins, falsi.start, falsi.at_low),
        at_high=jnp.where(begins, falsi.least, falsi.at_high),
        pushed=falsi.least >= 0,
        turns=jnp.where(begins | split, 0, search.turns + 1),
    )
    impact = contact & settled & accepted
    loosed = base.closed & (trial.push <= jnp.maximum(falsi.least, 0)) & released & accepted
    return Verdict(accepted, impact, loosed, search)


class _Newton(NamedTuple):
    """The next length of a search for an impact, and its bracket."""

    s: Array
    low: Array
    high: Array


def _newton(
    base: Base, search: Search, trial: Trial, s: Array, negative: Array, shortest: Array
) -> tuple[Array, Array, _Newton]:
    """Of a search for the first impact: whether it has settled, which contact (m,) has it, and how it goes on."""
    (_, began), (gap, rate) = trial.before, trial.after
    which = search.which | negative
    meets = which & (rate < 0)
    correction = jnp.where(meets, -gap / jnp.where(meets, rate, -1), jnp.inf)
    least = jnp.min(correction)
    beyond = jnp.any(which & ((gap < 0) | ((began < 0) & (rate >= 0))))
    small, improved = bracketed(search, s, least, beyond, shortest)
    small |= jnp.all(~which | (jnp.abs(gap) <= base.allowed))  # none is to be told from zero
    contact = which & (jnp.arange(len(which)) == jnp.argmin(jnp.where(which, correction, jnp.inf)))
    return (search.sought == IMPACT) & small, contact, improved


def bracketed(
    search: Search, s: Array, correction: Array, beyond: Array, shortest: Array, close: Array | float = CLOSE
) -> tuple[Array, _Newton]:
    """Of a search by Newton's method for the next ``correction`` of s, which is ``beyond`` the root or not: whether it ends, as ``close`` to the
    root as that part of a substep, and how it goes on."""
    low, high = jnp.where(beyond, search.low, s), jnp.where(beyond, s, search.high)
    found, spare = s + correction, NEAREST * search.high
    # a correction may leave the bracket by rounding: that is no reason to halve it
    inside = (found >= low - spare) & (found <= high + spare)
    following = jnp.where(inside, jnp.clip(found, low, high), 0.5 * (low + high))
    small = (jnp.abs(correction) <= close * search.substep) | (high - low <= shortest) | (search.turns >= TURNS)
    return small, _Newton(following, low, high)


class _Falsi(NamedTuple):
    """The next length of a search for a release, its bracket and the pushes there; the ``first`` part of a trial that it tries, from the
    least push at its ``start``, and the ``least`` at the end."""

    s: Array
    low: Array
    high: Array
    at_low: Array
    at_high: Array
    first: Array
    start: Array
    least: Array


def _regula_falsi(base: Base, search: Search, trial: Trial, s: Array) -> tuple[Array, _Falsi]:
    """Of a search for the first release, by the Illinois rule on the least push: whether it has settled, and how it goes on."""
    of_least = lambda push: jnp.min(jnp.where(base.closed, push, jnp.inf), initial=jnp.inf)
    least = of_least(trial.push)
    least = jnp.where(jnp.isfinite(least), least, 0)
    start = jnp.maximum(of_least(jnp.where(trial.push < 0, base.push, jnp.inf)), 0)
    start = jnp.where(jnp.isfinite(start), start, 0)
    pushes = least >= 0
    low, high = jnp.where(pushes, s, search.low), jnp.where(pushes, search.high, s)
    # an end that stays twice counts half
    again = jnp.where(pushes == search.pushed, 0.5, 1.0)
    at_low = jnp.where(pushes, least, again * search.at_low)
    at_high = jnp.where(pushes, again * search.at_high, least)
    ratio = lambda low, high: low / jnp.where(low > high, low - high, 1)
    following = low + (high - low) * jnp.where(search.turns < SMOOTH, ratio(at_low, at_high), 0.5)
    small = (jnp.abs(following - s) <= SETTLED * search.substep) | (search.turns >= TURNS)
    falsi = _Falsi(following, low, high, at_low, at_high, ratio(start, least), start, least)
    return (search.sought == RELEASE) & small, falsi


def _proposed(search: Search, error: Array, s: Array, fine: Array, stepping: Array, halvings: int) -> Array:
    """The substep that the error of a trial of length s allows; what one was shortened to for an event says nothing of it."""
    root = jnp.maximum(error, 1e-12)
    for _ in range(halvings):
        root = jnp.sqrt(root)
    factor = jnp.where(jnp.isfinite(root), jnp.clip(0.9 / root, 0.2, 6.0), 0.2)
    shortened = fine & (s < 0.9 * search.substep)
    found = jnp.where(shortened, jnp.maximum(search.substep, s * factor), s * factor)
    return jnp.where(stepping, found, search.substep)
