"""The derivative across a jump of the force, for a scheme of fixed steps:
the saltation of a border at which the acceleration jumps.

    dv+ = dv- + (a- - a+) dt*,     dt* = -dk/k',     k(t, q, v) = 0,

with k the level of the switch (`trials.pieces`) whose side changes within the step, k' its rate along the motion, and
a-, a+ the acceleration before and after. Position and velocity are continuous. The scheme's position, velocity and
times have first-order errors, and so has the derivative, provided that these errors cannot change the sequence of
events: the border is crossed once, at a rate well above zero, and no other border,
no contact and not the end of the motion is near.

References:
    M. A. Aizerman, F. R. Gantmakher, On the stability of periodic motions, J. Appl. Math. Mech. 22 (1958).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.derivative_rules import graft
from ...switches.kinds import Sides
from ...switches.switches import Crossing, Switches, differ
from ..linearisation import Metric, acceleration
from ..motion import Motion
from ..problem import Problem
from ..scheme import Scheme, State
from ..trials.borders import jumps_beyond
from ..trials.pieces import Pieces
from .impact_times import status_at_end
from .tracked import FREE, LASTING, Tracked

CLEAR = 2  # steps by which a jump must be away from other events, plus
DRIFT = (
    0.5  # times the square root of the number of steps: under the condition `STEADY`, errors move a crossing by less
)
STEADY = 0.25  # fraction of a level's rate by which that may change over this time
MISS = (
    0.5 / STEADY**2
)  # times this time squared and the second derivative of a level: a minimum of the level above that is no near miss


StepEnds = tuple[Any, Any]  # states of a scheme, at the start of a step and at its end


class Passage(NamedTuple):
    """Crossing of a border at which the force jumps, within one step; no derivatives.

    Attributes:
        passed: whether the motion crosses such a border, and the derivative of the crossing is known, ().
        share: fraction of the step at which it crosses, ().
        sides: the sides of all switches before the crossing.
        chosen: mask (k,) of the level that is zero at the crossing.
        kick: derivative (d,) of the velocity after the crossing by that level, (a+ - a-)/k'.
    """

    passed: Array
    share: Array
    sides: Sides
    chosen: Array
    kick: Array


def known_surfaces(problem: Problem, state: Any, *operands: Any) -> Pieces | None:
    """Finds the pieces of a problem's force across whose borders the derivative can be corrected; None (decided at
    trace time) if there are none.

    ``operands``: (t, q, v, args). None too for schemes whose state is not a `State`,
    and for problems with friction or a neighbour list.
    """
    plain = state.state if isinstance(state, Tracked) else state
    if type(plain) is not State or problem.rubs or problem.listed:
        return None
    found = Pieces.of(problem, *operands)
    return found if type(found) is Pieces else None


def no_passage(pieces: Pieces, *operands: Any) -> Passage:
    """Makes the `Passage` of a step without a crossing."""
    q = operands[1]
    none = jnp.zeros((), bool), jnp.zeros((), q.dtype)
    return Passage(*none, pieces.start(*operands).sides, jnp.zeros(pieces.count, bool), jnp.zeros_like(q))


def reach_of(motion: Motion, state: Any) -> Array:
    """Returns the time () that must separate the crossing of a border from any other event for the
    derivative of the crossing to be known.

    It grows with the number of steps up to ``state``, as errors of the times of events do.
    """
    reach = motion.h * (CLEAR + DRIFT * jnp.sqrt(state.n.astype(motion.h.dtype)))
    return reach + jnp.max(state.times.early) + jnp.max(state.times.late) if isinstance(state, Tracked) else reach


def passage(
    pieces: Pieces, force: Switches, scheme: Scheme, motion: Motion, step: StepEnds, found: Crossing
) -> Passage:
    """Makes the `Passage` of a jump that was ``found`` in a ``step`` between two states; it has ``passed`` if all
    conditions of the module hold.

    ``force``: all switches of the force; if any of them changes its side elsewhere near the crossing,
    the conditions do not hold.
    """
    before, after = step
    h, args = motion.h, motion.args
    problem, reach = pieces.problem, reach_of(motion, after)

    def side(at: tuple[Array, Array, Array, Array]) -> tuple:
        """Returns the acceleration at (t, q, v), a point beside the border, and the state (t, q, v) a time ``away``
        later by Taylor's formula."""
        t, q, v, away = at
        a = acceleration(problem, Metric.at(problem, q, args, t), t, q, v, args)
        return a, t + away, q + away * (v + (0.5 * away) * a), v + away * a

    near = tuple(jnp.stack(x) for x in zip(found.before, found.after, strict=True))
    a, *far = lax.map(side, (*near, jnp.stack([-reach, reach])))
    sides = pieces.switches.definite(*found.before, args)
    places = tuple(jnp.concatenate([x, y]) for x, y in zip(near, far, strict=True))
    measure = lambda at: pieces.rates(sides, at[0], at[1], at[2], at[3], args)
    level, rate = lax.map(measure, (*places, jnp.concatenate([a, a])))
    # in the order: before, after, long before, long after
    chosen = (level[1] < 0) | ((level[1] == 0) & (level[0] > 0))
    rate = jnp.sum(jnp.where(chosen, rate, 0), axis=1)
    others = jnp.all(jnp.where(chosen, 1, level) > 0)
    own = jnp.sum(jnp.where(chosen, level, 0), axis=1)
    through = (own[0] >= 0) & (own[2] > 0) & (own[3] < 0) & jnp.all(rate < 0)
    slowest = jnp.min(jnp.abs(rate[:2]))
    steady = jnp.max(jnp.abs(rate[2:] - rate[:2])) <= STEADY * slowest
    once = jnp.sum(chosen) == 1
    for i, known in ((0, found.sides_before), (1, found.sides_after)):
        once &= ~differ(force.sides(*(x[i] for x in far), args), known)
    t = found.before[0]
    clear = (before.n > 0) & (t + reach <= motion.t1) & _free(pieces, scheme, motion, step, chosen)
    passed = once & others & through & steady & clear & jnp.all(jnp.isfinite(a))
    kick = jnp.where(passed, (a[1] - a[0]) / jnp.where(passed, rate[0], 1), 0)
    # between both ends of the bracket
    part = jnp.where(passed, own[0] / jnp.where(passed, own[0] - own[1], 1), 0)
    share = (t + part * (found.after[0] - t) - motion.time(before.n)) / h
    return Passage(passed, share, sides, chosen, kick)


def _free(pieces: Pieces, scheme: Scheme, motion: Motion, step: StepEnds, chosen: Array) -> Array:
    """Tests whether no contact acts in a step or near it, (). ``chosen`` (k,): the level that is crossed.

    False for a level that depends on the velocity if there are contacts at all,
    since impacts may cross its border as well.
    """
    before, after = step
    if pieces.problem.constraints is None:
        return jnp.ones((), bool)
    free = jnp.all((before.last == FREE) & (after.last == FREE)) & ~jnp.any(chosen[pieces.steep])
    return free & (status_at_end(pieces.problem, scheme, motion, after.n, after) == 0)


def may_miss_jump(pieces: Pieces, motion: Motion, step: StepEnds, struck: Array, clock: bool) -> Array:
    """Tests whether the exact motion may cross a jump of the force that the scheme does not cross in a
    ``step`` between two states, ().

    It may if a level has a minimum that is above zero by less than its error; if, in a step with an impact (``struck``,
    ()), a level would soon have become zero without the impact; or if a level would become zero soon after the end of
    the motion. ``clock``: whether jumps at times that do not depend on data count too.
    """
    before, after = step
    reach, args = reach_of(motion, after), motion.args
    here = (motion.time(before.n), before.q, before.v)
    sides = pieces.switches.definite(*here, args)
    both = tuple(jnp.stack([x, y]) for x, y in zip(here, (motion.time(after.n), after.q, after.v), strict=True))
    lasts = jnp.zeros((), bool)
    if isinstance(before, Tracked):
        lasts = jnp.any((before.last == LASTING) | (after.last == LASTING)) & ~struck
    mean = (after.v - before.v) / motion.h

    def rates(at: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        t, q, v = at
        a = mean
        if len(pieces.steep):
            free = acceleration(pieces.problem, Metric.at(pieces.problem, q, args, t), t, q, v, args)
            a = jnp.where(lasts, mean, free)
        return pieces.rates(sides, t, q, v, a, args)

    level, rate = lax.map(rates, both)
    bend = (rate[1] - rate[0]) / motion.h
    turns = (rate[0] < 0) & (rate[1] >= 0) & (jnp.min(level, axis=0) > 0)
    turns &= jnp.min(level, axis=0) <= MISS * bend * reach**2
    near = jnp.where(struck, level[0] + reach * rate[0] < 0, turns)
    near |= (after.n >= motion.steps) & (level[1] + reach * rate[1] < 0)
    return jumps_beyond(pieces, sides, near & (pieces.open | clock), here, args)


def add_passage(pieces: Pieces, motion: Motion, step: StepEnds, passage: Passage) -> Any:
    """Returns the state at the end of a ``step`` between two states, unchanged in value, with the derivative of a
    ``passage`` in the step added."""
    before, after = step
    share, h = passage.share, lax.stop_gradient(motion.h)

    def add_kick() -> Array:
        between = lambda x, y: x + share * (y - x)
        at = between(before.q, after.q), between(before.v, after.v)
        t = between(motion.time(before.n), motion.time(after.n))
        level = jnp.sum(jnp.where(passage.chosen, pieces.levels(passage.sides, t, *at, motion.args), 0))
        return passage.kick * (level - lax.stop_gradient(level))

    kick = lax.cond(passage.passed, add_kick, lambda: jnp.zeros_like(after.v))
    q = graft(after.q, after.q + ((1 - share) * h) * kick)
    return with_state(after, q, graft(after.v, after.v + kick))


def with_state(state: Any, q: Array, v: Array) -> Any:
    """Returns a copy of a state with another position and velocity (d,)."""
    if isinstance(state, Tracked):
        return state._replace(state=with_state(state.state, q, v))
    return state._replace(q=q, v=v)
