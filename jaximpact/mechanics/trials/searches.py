"""Searches for events: whether a trial is accepted, and which trial is made next.

The time of an impact is found by Newton's method on gap and gap velocity, that of a release by regula falsi on the push
of the contact that opens, and by bisection if the push jumps, as where a curved wall begins.
All numbers are constants for differentiation.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from .tableau import Tableau
from .trial import NEAREST, Base, Trial, first_roots, least_gaps

STEPPING, IMPACT, RELEASE, STOP, SWITCH = range(5)  # purpose of a trial: to advance, or to find such an event
TURNS = 60  # iterations of a search, which bisects at worst
TOGETHER = 1e-9  # fraction of a substep: impacts within that time are simultaneous
CLOSE = 1e-5  # fraction of a substep: remaining correction from which a last Newton step is enough
SETTLED = 1e-13  # fraction of a substep: remaining correction of a release
SHORTER = 4  # how much shorter a trial is made that goes wrong, by a method without estimates
SMOOTH = 12  # iterations in which regula falsi finds the root of a push that does not jump; bisection from then on


class Search(NamedTuple):
    """Plan of the next trial, carried by the loop over trials.

    Its length ``s`` () and purpose ``sought`` (STEPPING, IMPACT, ...); the ``substep`` () that the tolerance allows.
    For a search for an event: the mask ``which`` (m,) of contacts that may have the event; the bracket of its time,
    from ``low`` () to ``high`` (), and the least push of all closed contacts at both (``at_low``, ``at_high``); whether
    all closed contacts ``pushed`` at the end of the last trial; and the number of iterations so far, ``turns``. The
    ``borders`` (k,) of levels that may be crossed.
    """

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
    borders: Array


class Verdict(NamedTuple):
    """Decision on a trial: whether it is ``accepted`` (), and the plan ``search`` of the next one.

    If it is accepted: masks of the contact whose ``impact`` (m,) ends it, and of the contacts that open at its end,
    ``loosed`` (m,).
    """

    accepted: Array
    impact: Array
    loosed: Array
    search: Search


def decide_on_trial(
    base: Base, search: Search, trial: Trial, s: Array, shortest: Array, longest: Array, tableau: Tableau
) -> Verdict:
    """Decides on a trial of length s from a base by a method; all numbers are constants for differentiation.

    ``shortest`` () is the shortest trial that time resolves, ``longest`` () the step of the scheme.
    """
    stepping = search.sought == STEPPING
    fine = (trial.error <= 1) | ~stepping | (s <= shortest)
    if tableau.estimates:
        again = _propose_substep(search, trial.error, s, fine & stepping, stepping, tableau.halvings)
    else:  # slips may turn too fast for a step of the scheme, which is the longest
        longer = jnp.minimum(jnp.maximum(search.substep, SHORTER * s), longest)
        again = jnp.where(stepping, jnp.where(fine, longer, s / SHORTER), search.substep)
    search = search._replace(substep=again)
    if base.closed.shape[0] == 0:
        nothing = jnp.zeros_like(base.closed)
        return Verdict(fine, nothing, nothing, search._replace(s=search.substep))
    gap, _ = trial.after
    negative, pulling = ~base.closed & (gap < -base.roundoff), base.closed & (trial.push < 0)
    settled, contact, improved = _newton(base, search, trial, s, negative, shortest)
    released, falsi = _regula_falsi(base, search, trial, s)

    # a release is sought before an impact, whose trial it shortens; both before a negative value within a stage
    for_impact = ((stepping & fine) | released) & jnp.any(negative)
    for_release = (jnp.where(stepping, fine & ~for_impact, settled)) & jnp.any(pulling)
    found = (settled & ~for_release) | (released & ~for_impact)
    x, dips = least_gaps(trial.before, trial.after, s, base.roundoff)
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


def event_met(search: Search, verdict: Verdict, switched: Array, last: Array) -> Array:
    """Returns the number () of the event that a trial has met or searched for; of the ``last`` one,
    where it did neither."""
    met = verdict.impact | verdict.loosed | (search.which & (search.sought != STEPPING))
    met = jnp.concatenate([met, switched | search.borders])
    latest = jnp.max(jnp.where(met, jnp.arange(len(met), dtype=jnp.int32), -1), initial=-1)
    return jnp.where(latest >= 0, latest, last)


class _Newton(NamedTuple):
    """Next trial length of a search for an impact, and the bracket of its time."""

    s: Array
    low: Array
    high: Array


def _newton(
    base: Base, search: Search, trial: Trial, s: Array, negative: Array, shortest: Array
) -> tuple[Array, Array, _Newton]:
    """Makes one iteration of a search for the first impact: returns whether it has converged, the contact (m,) of the
    impact, and the next length.

    ``s``: length of the ``trial``; ``negative`` (m,): contacts whose gap is negative at its end; ``shortest`` (): the
    shortest trial that time resolves.
    """
    (_, began), (gap, rate) = trial.before, trial.after
    which = search.which | negative
    meets = which & (rate < 0)
    correction = jnp.where(meets, -gap / jnp.where(meets, rate, -1), jnp.inf)
    least = jnp.min(correction)
    beyond = jnp.any(which & ((gap < 0) | ((began < 0) & (rate >= 0))))
    small, improved = safeguarded_newton(search, s, least, beyond, shortest)
    small |= jnp.all(~which | (jnp.abs(gap) <= base.roundoff))  # all gaps are zero up to round-off
    contact = which & (jnp.arange(len(which)) == jnp.argmin(jnp.where(which, correction, jnp.inf)))
    return (search.sought == IMPACT) & small, contact, improved


def safeguarded_newton(
    search: Search, s: Array, correction: Array, beyond: Array, shortest: Array, close: Array | float = CLOSE
) -> tuple[Array, _Newton]:
    """Makes one safeguarded Newton iteration from a trial of length s: to s + ``correction``,
    or by bisection where that leaves the bracket.

    ``beyond`` (): whether s is after the root. Returns whether the search has converged, and the next length and
    bracket. It has converged if the correction is at most ``close`` times a substep, or the bracket as short as
    ``shortest`` (), the shortest trial that time resolves.
    """
    low, high = jnp.where(beyond, search.low, s), jnp.where(beyond, s, search.high)
    found, spare = s + correction, NEAREST * search.high
    # a correction may leave the bracket by rounding: that is no reason to halve it
    inside = (found >= low - spare) & (found <= high + spare)
    following = jnp.where(inside, jnp.clip(found, low, high), 0.5 * (low + high))
    small = (jnp.abs(correction) <= close * search.substep) | (high - low <= shortest) | (search.turns >= TURNS)
    return small, _Newton(following, low, high)


class _Falsi(NamedTuple):
    """Next trial length ``s`` of a search for a release, and the bracket of its time with the least pushes at its ends,
    as in `Search`.

    ``start`` and ``least``: the least push of all closed contacts at the start and at the end of the last trial;
    ``first``: the fraction of that trial to try if a search begins with it.
    """

    s: Array
    low: Array
    high: Array
    at_low: Array
    at_high: Array
    first: Array
    start: Array
    least: Array


def _regula_falsi(base: Base, search: Search, trial: Trial, s: Array) -> tuple[Array, _Falsi]:
    """Makes one iteration of a search for the first release: returns whether it has converged, and the next length.

    The iteration is the Illinois variant of regula falsi, for the least push of all closed contacts at the
    end of a ``trial`` of length s.
    """
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
    small |= jnp.abs(least) <= base.force_error  # forces that are not unique have no more digits
    falsi = _Falsi(following, low, high, at_low, at_high, ratio(start, least), start, least)
    return (search.sought == RELEASE) & small, falsi


def _propose_substep(search: Search, error: Array, s: Array, fine: Array, stepping: Array, halvings: int) -> Array:
    """Returns the substep () that the error of a trial of length s allows;
    a trial that was shortened for an event does not reduce it.

    ``fine`` (): whether the error is small enough; ``stepping`` (): whether the trial is no part of a search, during
    which the substep is kept; ``halvings``: as in `Tableau`.
    """
    root = jnp.maximum(error, 1e-12)
    for _ in range(halvings):
        root = jnp.sqrt(root)
    factor = jnp.where(jnp.isfinite(root), jnp.clip(0.9 / root, 0.2, 6.0), 0.2)
    shortened = fine & (s < 0.9 * search.substep)
    found = jnp.where(shortened, jnp.maximum(search.substep, s * factor), s * factor)
    return jnp.where(stepping, found, search.substep)
