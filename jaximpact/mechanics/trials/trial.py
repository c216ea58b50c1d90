"""A trial: one Runge-Kutta step of any length, its error estimate, and the gaps and contact forces in its stages.

The stages are the iterations of one loop, so that force and contacts are traced once, whatever the method; the loop
carries the accelerations of the stages so far, the newest first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from ...jaxtools.tables import table
from ..contacts import CANCELLING
from ..events.event_state import View, impulses_to_change
from ..joint_projection import put_on_joints
from ..linearisation import Metric, joint_acceleration, linearise, noise
from ..problem import Problem
from ..scheme import add_compensated
from .probes import error_of_changes
from .tableau import TABLEAUS, Rows, Tableau, estimate

frozen = lax.stop_gradient
GRAZING = 100  # tolerances of a gap by which the motion may be off where it comes near zero
# roundings of positions and displacements: derivatives by args below them are rounding, as by a mass that does not
# affect the motion
ROUNDING = 64
# fraction of a trial's length: a minimum of a gap closer than that to an end of the trial counts as at the end
NEAREST = 1e-6


class Base(NamedTuple):
    """State from which trials begin, carried by the loop over trials.

    Time ``elapsed`` since the step began; q, v and acceleration a (d,); of contacts (m,): which are ``closed``, their
    ``force``, and their ``push``, the force in units of acceleration plus round-off and ``slack``, negative where they
    would have to pull; the ``roundoff`` of negative gaps and ``still`` of gap velocities; ``slack`` (), the
    acceleration that counts as zero. ``low`` as in `State`; ``joint_force`` (j,); ``where``, the sides of a force with
    jumps (`pieces.Where`); ``force_error`` (), the rounding of contact forces since the last event, as an acceleration.
    """

    elapsed: Array
    q: Array
    v: Array
    a: Array
    closed: Array
    force: Array
    push: Array
    roundoff: Array
    still: Array
    slack: Array
    joint_force: Array
    low: Array | None = None
    where: Any = None
    force_error: Any = None

    def behind(self, trial: Trial, s: Array) -> Base:
        """Returns the base at the end of a trial of length s."""
        changed = ("q", "v", "a", "force", "push", "low", "joint_force")
        return self._replace(elapsed=self.elapsed + s, **{name: getattr(trial, name) for name in changed})

    def held_by(self, hold: Hold, t: Array, some: Array, args: object) -> Base:
        """Returns the base at time t with accelerations and forces by ``hold``, if ``some`` ()."""
        again = lambda: hold(t, self.q, self.v, self.closed, self.slack, args)
        as_it_is = lambda: (self.a, self.force, self.push, self.joint_force)
        a, force, push, of_joints = lax.cond(some, again, as_it_is)
        return self._replace(a=a, force=force, push=push, joint_force=of_joints)


class Tolerance(NamedTuple):
    """Error tolerances: of a number x, absolute + relative |x|."""

    relative: Array
    absolute: Array

    def of(self, x: Array, y: Array) -> Array:
        """Returns the tolerance of a number that goes from x to y in a trial."""
        return self.absolute + self.relative * jnp.maximum(jnp.abs(x), jnp.abs(y))


class GapRecord(NamedTuple):
    """Record of gaps and contact forces over the stages of a trial, carried by the loop over stages.

    ``gap`` and ``rate`` (m,) at the latest stage; the fraction () of the trial at which a gap or a push was first
    ``negative``, 1 for none; sums ``of_rate`` and ``of_push`` (n, m) with the weights of the n error estimates, and
    sums ``of_force`` (m,) and ``of_joints`` (j,) with the weights of the method, which are mean forces.
    """

    gap: Array
    rate: Array
    negative: Array
    of_rate: Array
    of_push: Array
    of_force: Array
    of_joints: Array


class LevelValues(NamedTuple):
    """Record of the functions of surfaces over the stages of a trial, as `GapRecord` is of gaps; they are positive
    before a surface is crossed.

    It holds either the function () of the surface that ends the motion (`stops`), or the levels (k,) of the borders of
    the pieces of a force. Values and rates ``before``, at the start of the trial, and ``after``, at the latest stage;
    the ``roundoff`` of negative values; the fraction of the trial at which each was first ``negative``, 1 for
    never; and the sums ``of_rate`` (n, ...) with the weights of the n error estimates.
    """

    before: tuple[Array, Array]
    after: tuple[Array, Array]
    roundoff: Array
    negative: Array
    of_rate: Array

    @classmethod
    def start(cls, found: tuple[Array, Array], roundoff: Array, weights: Array) -> LevelValues:
        """Makes the record at the start of a trial from values and rates ``found`` there;
        ``weights`` (n,) are those of the first stage."""
        return cls(found, found, roundoff, jnp.ones_like(found[0]), jnp.multiply.outer(weights, found[1]))

    def further(self, row: Rows, found: tuple[Array, Array]) -> LevelValues:
        """Adds the next stage, with its ``row`` of the tableau and the values and rates ``found``."""
        below = (found[0] < -self.roundoff) & (row.node < 1)
        negative = jnp.where(below, jnp.minimum(self.negative, row.node), self.negative)
        return LevelValues(
            self.before, found, self.roundoff, negative, self.of_rate + jnp.multiply.outer(row.errors, found[1])
        )

    def touches(self, s: Array, atol: Array, off: Array | float) -> Array:
        """Returns the mask of values that touch zero, or nearly do, at the end of a trial of length s without crossing
        it.

        ``atol`` (): the error of values; ``off`` (): their error for each unit of their second rate, if that is larger.
        """
        (_, began), (value, rate) = self.before, self.after
        moves = s * jnp.maximum(jnp.abs(rate), jnp.abs(began)) > atol
        bend = jnp.abs(rate - began) / jnp.where(s > 0, s, 1)
        unknown = jnp.maximum(atol, off * bend)
        falls = (
            jnp.minimum(began, rate) < 0
        )  # else it is least where the trial begins, and has left zero by an event there
        return moves & falls & (jnp.abs(value) <= jnp.maximum(unknown, self.roundoff)) & (rate**2 <= 2 * unknown * bend)

    def errors(self, s: Array, tolerance: Tolerance, unknown: Array) -> Array:
        """Returns the n error estimates (n, k) of the values after a trial of length s, in units of the tolerance and
        of what is ``unknown`` of them, (k,)."""
        found = s * self.of_rate / (tolerance.of(self.before[0], self.after[0]) + unknown)[None]
        return found.reshape(len(found), -1)


Hold = Callable[..., tuple[Array, Array, Array, Array]]  # `held` for one problem, of (t, q, v, closed, slack, args)
Watch = Callable[
    [Array, Array, Array, Array], tuple[Array, Array]
]  # values and rates of surfaces at (t, q, v, acceleration)


class Trial(NamedTuple):
    """Result of a trial.

    At its end q, v and acceleration a (d,), ``force`` and ``push`` of closed contacts (m,) as in `Base`; their
    ``impulse`` (m,) over the trial; gaps and rates (m,) ``before`` and ``after`` it; its ``error`` () in units of the
    tolerance; ``negative`` () as in `GapRecord`; ``low`` as in `State`; the `LevelValues` of a surface that ends the
    motion and of the ``borders`` of pieces of the force, None where there are none; force, impulse and residual |c|
    (j,) of the joints, and status bits of these, at the end.
    """

    q: Array
    v: Array
    a: Array
    force: Array
    push: Array
    impulse: Array
    before: tuple[Array, Array]
    after: tuple[Array, Array]
    error: Array
    negative: Array
    low: Array | None
    level_values: LevelValues | None
    borders: Any
    joint_force: Array
    joint_impulse: Array
    joint_residual: Array
    joint_status: Array


@cache
def _rows(order: int) -> tuple[Rows, Rows, Tableau]:
    """Returns the rows of a method for all stages, those for all but the first, and its tableau."""
    tableau = TABLEAUS[order]
    rows = tableau.rows()
    return rows, Rows(*(of_stages[1:] for of_stages in rows)), tableau


def gap_rates(problem: Problem, t: Array, q: Array, v: Array, args: object) -> tuple[Array, Array]:
    """Returns gaps and gap velocities (m,)."""
    gaps = lambda s: problem.gaps(t + s, q + s * v, args)
    zero = jnp.zeros_like(t)
    return jax.jvp(gaps, (zero,), (jnp.ones_like(zero),))


def held(
    problem: Problem, t: Array, q: Array, v: Array, closed: Array, slack: Array, args: object
) -> tuple[Array, Array, Array, Array]:
    """Returns the acceleration (d,) with the ``closed`` contacts (m,) kept closed, whether they push or pull.

    Also returns the forces (m,) of these contacts; their push (m,) as in `Base`, for which ``slack`` () is the
    acceleration that counts as zero; and the forces (j,) of the joints.
    """
    metric = Metric.at(problem, q, args, t)
    free, joint_force = joint_acceleration(problem, metric, t, q, v, args)
    none = jnp.zeros(closed.shape, q.dtype)
    if len(closed) == 0:
        return free, none, none, joint_force

    def bound() -> tuple[Array, Array, Array, Array]:
        contacts = linearise(problem, metric, t, q, args)
        view = View(contacts, free, *_turning(problem, t, q, v, args), metric.joints, joint_force)
        return hold(view, closed, slack)

    return lax.cond(jnp.any(closed), bound, lambda: (free, none, none, joint_force))


def _turning(problem: Problem, t: Array, q: Array, v: Array, args: object) -> tuple[Array, Array]:
    rate = lambda s: gap_rates(problem, t + s, q + s * v, v, args)[1]
    return jax.jvp(rate, (jnp.zeros_like(t),), (jnp.ones_like(t),))


def hold(view: View, closed: Array, slack: Array) -> tuple[Array, Array, Array, Array]:
    """As `held`, from the `View` of a state."""
    contacts = view.contacts
    normal = contacts.velocity(view.free) + view.gap_acceleration
    force = impulses_to_change(contacts, -normal, closed, True)
    a, spare = view.free + contacts.jump(force), noise(contacts, view.free, view.gap_acceleration) + slack
    push = contacts.diagonal() * force + spare
    if len(closed) > 1:
        # two sides of a bilateral constraint have opposite halves of its force: the pushing side gets all of it, and
        # neither opens
        sides = (contacts.angles() < CANCELLING - 1) & closed[:, None] & closed[None, :]
        norms, joined = contacts.norms(), jnp.any(sides, axis=1)
        other = jnp.sum(jnp.where(sides, (norms * force)[None, :], 0), axis=1) / norms
        force = jnp.where(joined, jnp.maximum(force - other, 0), force)
        push = jnp.where(joined, spare, push)
    return a, force, frozen(jnp.where(closed, push, 0)), view.joint_forces(force)


def attempt(
    problem: Problem,
    order: int,
    t: Array,
    base: Base,
    s: Array,
    tolerance: Tolerance,
    args: Any,
    hold: Hold,
    stop: Watch | None = None,
    borders: Watch | None = None,
    since: Array | None = None,
    lasts: ArrayLike = jnp.inf,
) -> Trial:
    """Makes one trial: a Runge-Kutta step of length s from a base at time t, with accelerations by ``hold``, as `held`.

    ``stop`` and ``borders`` evaluate the surface that ends the motion and the borders of pieces of the force, None
    without them. If the time ``since`` () the motion began is given, the error estimate includes that of derivatives
    (`probes`), which counts less where changes last only for a shorter time ``lasts``: those across a slip.
    """
    every, rows, tableau = _rows(order)
    q, v, closed = base.q, base.v, base.closed
    steady, m = frozen((t, s, base, args)), len(base.closed)
    before = gap_rates(problem, steady[0], steady[2].q, steady[2].v, steady[3])
    weights = table(tableau.errors[:, 0], q.dtype)
    seen = GapRecord(
        *before, jnp.ones((), q.dtype), jnp.outer(weights, before[1]), jnp.outer(weights, base.push),
        float(tableau.velocity[-1, 0]) * base.force,
        float(tableau.velocity[-1, 0]) * base.joint_force,
    )  # fmt: skip
    accelerations = jnp.zeros((len(tableau.nodes), len(q)), q.dtype).at[0].set(base.a)

    watches = stop, borders
    begins = (steady[0], *frozen((q, v, base.a)))
    roundoff: Any = (jnp.zeros_like(t), None if base.where is None else base.where.roundoff)
    watched = [w and LevelValues.start(w(*begins), x, weights) for w, x in zip(watches, roundoff, strict=True)]

    def stage(carry: tuple, row: Rows) -> tuple[tuple, tuple[Array, Array] | None]:
        kept, *_, seen, watched = carry
        shift = s * (row.node * v + s * (row.position @ kept))
        x = q + shift
        y = v + s * (row.velocity @ kept)
        a, force, push, joint_force = hold(t + row.node * s, x, y, closed, base.slack, args)
        seen = seen._replace(of_joints=seen.of_joints + row.weight * joint_force)
        if m:
            gap, rate = gap_rates(problem, steady[0] + row.node * steady[1], *frozen((x, y)), steady[3])
            below = jnp.any(~closed & (gap < -base.roundoff)) | jnp.any(push < 0)
            negative = jnp.where(below & (row.node < 1), jnp.minimum(seen.negative, row.node), seen.negative)
            sums = (
                seen.of_rate + jnp.outer(row.errors, rate),
                seen.of_push + jnp.outer(row.errors, push),
                seen.of_force + row.weight * force,
            )
            seen = GapRecord(gap, rate, negative, *sums, seen.of_joints)
        at = (steady[0] + row.node * steady[1], *frozen((x, y, a)))
        watched = [w and level_values.further(row, w(*at)) for w, level_values in zip(watches, watched, strict=True)]
        kept = jnp.concatenate([a[None], kept[:-1]])
        return (kept, shift, y, force, push, joint_force, seen, watched), None if since is None else (x, y)

    rows = jax.tree.map(lambda x: table(x, q.dtype), rows)
    # v in place of a zero displacement, so that the derivative of the stage is traced once
    start = (accelerations, v, v, base.force, base.push, base.joint_force, seen, watched)
    (kept, shift, y, force, push, joint_force, seen, watched), passed = lax.scan(stage, start, rows)
    x, low = add_compensated(q, shift, base.low)
    began = Metric.at(problem, q, args, t).joints
    landed = put_on_joints(problem, t + s, x, low, shift, began, args)
    x, low, y = landed.q, landed.low, landed.velocity(y)
    of_joints = joint_force, s * seen.of_joints, landed.residual, landed.status
    if began.size and m:
        seen = seen._replace(
            **dict(zip(("gap", "rate"), gap_rates(problem, *frozen((t + s, x, y)), steady[3]), strict=True))
        )
    if began.size:
        watched = [
            w and at and at._replace(after=w(*frozen((t + s, x, y, kept[0]))))
            for w, at in zip(watches, watched, strict=True)
        ]
    error = frozen(_error(tableau, base, kept, x, y, push, s, seen, watched, before[0], tolerance))
    if passed is not None and since is not None:
        along = (jnp.concatenate([first[None], rest]) for first, rest in zip((q, v), passed, strict=True))
        # forces that contacts balance are rounded too: of a body at rest nothing else moves
        moves = jnp.max(jnp.abs(q) + s * (jnp.abs(v) + s * jnp.max(jnp.abs(kept), axis=0)))
        least = ROUNDING * (jnp.finfo(q.dtype).eps * moves + s * s * base.force_error) / tolerance.relative
        at = frozen((t + jnp.asarray(every.node, s.dtype) * s, *along, closed, base.slack, s, args, least, since))
        of_changes = error_of_changes(tableau, every, hold, *at)
        matters = jnp.minimum(lasts / (since + s), 1.0)
        error = jnp.maximum(error, matters * of_changes / tolerance.relative)
    of_contacts = (force, push, s * seen.of_force, before, (seen.gap, seen.rate))
    return Trial(x, y, kept[0], *of_contacts, error, seen.negative, low, watched[0], watched[1], *of_joints)


def _error(
    tableau: Tableau,
    base: Base,
    kept: Array,
    q: Array,
    v: Array,
    push: Array,
    s: Array,
    seen: GapRecord,
    watched: list[LevelValues | None],
    gap: Array,
    tolerance: Tolerance,
) -> Array:
    """Returns the error () of a trial of length s from a base to (q, v), in units of the tolerance.

    It is the largest error of a coordinate, of a velocity, of an open gap as the integral of its rate, of an impulse as
    the integral of a push, of a level (``watched``), and the drift of a closed gap.

    Args:
        kept: accelerations (k + 1, d) of the stages, the newest first.
        push: push (m,) at the end of the trial, as in `Base`.
        seen: record of gaps and forces over the stages.
        watched: records of the surface that ends the motion and of the borders, None without them.
        gap: gaps (m,) at the start of the trial.
    """
    if not tableau.estimates:
        return jnp.zeros_like(s)
    turned = lambda weights: table(weights[:, ::-1], q.dtype)
    of_q, of_v = tolerance.of(base.q, q), tolerance.of(base.v, v)
    to_v, to_q = s * (turned(tableau.errors) @ kept), s * s * (turned(tableau.position_errors) @ kept)
    of_gap = tolerance.of(gap, seen.gap)
    # impulses have no relative tolerance beyond rounding
    rounding = tolerance._replace(relative=jnp.asarray(32 * jnp.finfo(q.dtype).eps, q.dtype))
    of_push = rounding.of(s * base.push, s * push) + ROUNDING * s * base.force_error
    errors = [to_q / of_q[None], to_v / of_v[None]]
    if len(base.closed):
        open_ = jnp.where(base.closed[None], 0, s * seen.of_rate / of_gap[None])
        errors += [open_, s * seen.of_push / of_push[None]]
    nothing = jnp.zeros_like(s)
    unknown = nothing, nothing if base.where is None else ROUNDING * base.force_error * base.where.of_forces
    errors += [x.errors(s, tolerance, off) for x, off in zip(watched, unknown, strict=True) if x is not None]
    error = jnp.max(estimate(jnp.concatenate(errors, axis=1)))
    drift = jnp.where(base.closed, jnp.abs(seen.gap - gap) / of_gap, 0)
    return jnp.maximum(error, jnp.max(drift, initial=0))


Ends = tuple[Array, Array]  # gaps and rates at an end of a trial


def cubic(before: Ends, after: Ends, s: Array) -> tuple[Array, Array, Array, Array]:
    """Returns the coefficients (m,), that of the power 0 first, of the cubics over [0,
    1] that interpolate gaps in a trial of length s.

    ``before``, ``after``: gaps and their rates (m,) at the start and at the end of the trial.
    """
    (g0, r0), (g1, r1) = before, after
    g0, b0, b1 = jnp.maximum(g0, 0), s * r0, s * r1
    return g0, b0, 3 * (g1 - g0) - 2 * b0 - b1, 2 * (g0 - g1) + b0 + b1


def least_gaps(before: Ends, after: Ends, s: Array, roundoff: Array) -> tuple[Array, Array]:
    """Estimates where in [0, 1] gaps (m,) had a minimum within a trial of length s that may have been negative.

    ``before``, ``after``: gaps and their rates (m,) at the start and at the end of the trial. Returns that place, 1
    where there is none, and the mask of such gaps; those that move by less than ``roundoff`` (m,) do not count.
    """
    c0, c1, c2, c3 = cubic(before, after, s)
    c4 = s * after[1]
    turns = (c1 < 0) & (c4 > 0)
    below = c2 + jnp.sqrt(jnp.maximum(c2 * c2 - 3 * c1 * c3, 0))
    x = jnp.where(turns, -c1 / jnp.where(turns, below, 1), 1)
    value = c0 + x * (c1 + x * (c2 + x * c3))
    # the cubic may be wrong by a fraction of the gap's displacement
    moves = jnp.maximum(-c1, c4)
    maybe = turns & (value < 0.02 * moves) & (moves > roundoff) & (x > NEAREST) & (x < 1 - NEAREST)
    return jnp.where(maybe, x, 1), maybe


def grazes(base: Base, trial: Trial, s: Array, tolerance: Tolerance, h: Array | float) -> Array:
    """Tests whether a gap has a minimum near the end of a trial of length s that is zero within the error of the
    motion, or within that of speeds that are off by 2 h times its acceleration, ()."""
    (gap0, rate0), (gap, rate) = trial.before, trial.after
    if len(gap) == 0:
        return jnp.zeros((), bool)
    _, _, c2, c3 = cubic(trial.before, trial.after, s)
    bend = (2 * c2 + 6 * c3) / jnp.where(s > 0, s * s, 1)
    unknown = GRAZING * tolerance.of(gap0, gap)
    turns = (bend > 0) & (jnp.abs(rate) <= 0.5 * s * bend)
    least = gap - 0.5 * rate * rate / jnp.where(turns, bend, 1)
    near = (gap0 > unknown) & (jnp.abs(least) <= unknown)
    near |= (rate0 < -base.still) & (jnp.abs(least) <= 2 * h * h * bend)
    return jnp.any(~base.closed & (rate0 < 0) & turns & near)


def first_roots(base: Base, trial: Trial, s: Array) -> Array:
    """Estimates where in [0, 1] gaps (m,) that are negative at the end of a trial of length s became negative.

    A contact that touches at the base with zero gap velocity, but is not closed there, opens first;
    its gap is zero again later.
    """
    gap, rate = trial.before
    touches = (gap <= base.roundoff) & (jnp.abs(rate) <= base.still)
    found = cubic(trial.before, trial.after, s)
    _, _, c2, c3 = found
    turns = (c2 > 0) & (c3 < 0) & (c2 < -c3)
    behind = jnp.where(turns, -c2 / jnp.where(turns, c3, -1), 0.5)
    return jnp.where(touches, behind, first_root(found, trial.after[0]))


def first_root(coefficients: tuple[Array, Array, Array, Array], last: Array) -> Array:
    """Returns where in [0, 1] the cubics with ``coefficients`` (m,), as by `cubic`, first become negative.

    ``last`` (m,): their values at 1, which are negative; the result means nothing for others.
    """
    c0, c1, c2, c3 = coefficients
    bent = last - c0 - c1
    root = jnp.sqrt(jnp.maximum(c1 * c1 - 4 * bent * c0, 0))
    inward, falls = c1 < 0, (c1 >= 0) & (bent < 0)
    x = jnp.where(inward, 2 * c0 / jnp.where(inward, root - c1, 1), (c1 + root) / jnp.where(falls, -2 * bent, 1))
    x = jnp.clip(x, 0, 1)

    def improve(_: object, bracket: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        x, low, high = bracket
        value, slope = c0 + x * (c1 + x * (c2 + x * c3)), c1 + x * (2 * c2 + 3 * x * c3)
        low, high = jnp.where(value > 0, x, low), jnp.where(value > 0, high, x)
        newton = x - value / jnp.where(slope < 0, slope, -1)
        sound = (slope < 0) & (newton >= low) & (newton <= high)
        return jnp.where(sound, newton, 0.5 * (low + high)), low, high

    return lax.fori_loop(0, 4, improve, (x, jnp.zeros_like(x), jnp.ones_like(x)))[0]
