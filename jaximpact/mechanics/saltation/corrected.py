"""Derivatives that are right across impacts: a wrapper that keeps a scheme's values and corrects its tangent.

Differentiating a time-stepping scheme through an impact loses the dependence of the impact's time t* on the data: an
error that no step size cures. Here the values of a step are unchanged and its derivative is that of the saltation of
its impacts, followed by the scheme's own step with the contacts that stay closed held closed.
With x = (q, v) and parameters theta,

    dt* = -(G dq + f_theta dtheta)/f',    dx+ = D_R dx- + R_theta dtheta + (D_R F- + d_t R - F+) dt*,

R being the impact law (q, v) -> (q, v - (1+e) M^-1 G' (G M^-1 G')^-1 f'), F = (v, a) before and after it, and f' the
gap velocity. The saltation is taken at that time within the step where the scheme's impacts lie on average
(`Traits.phase`). A step without impact has the derivative of the discrete map itself, or of the equations that it
solves (`Traits.tangent`).

References:
    M. A. Aizerman, F. R. Gantmakher, On the stability of periodic motions, J. Appl. Math. Mech. 22 (1958).
    R. I. Leine, H. Nijmeijer, Dynamics and Bifurcations of Non-Smooth Mechanical Systems, Springer (2004), ch. 7.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from ...jaxtools.batched_branch import run_where_needed
from ...jaxtools.derivative_rules import graft_once, graft_tree
from ...jaxtools.empty import empty
from ...jaxtools.jacobians import SMALL
from ...jaxtools.linalg import MANY
from ...jaxtools.remembered import remember
from ..contact.laws import ContactLaw
from ..events.event_state import Event, View, persisting
from ..events.impacts import order_matters, shared
from ..friction import FrictionInfo
from ..linearisation import Metric, acceleration, closure, linearise
from ..motion import At, Motion
from ..problem import Problem
from ..scheme import Info, Scheme, State, Traits, Wrapping
from ..some_contacts import look_at_those_that_matter, with_contacts
from ..status import Status, as_status
from .impact_saltation import IMPACTS, Instant
from .impact_times import NEVER, ImpactTimes, parts_of
from .rough_impacts import modes_at_start, rough_impacts, rows_of_list
from .smooth_impacts import smooth_impacts
from .tracked import FREE, IMPACT, LASTING, REBOUND, Edge, Salted, Tracked

# contacts that a step treats without the others: of a gas of 16 disks, a step with such an impact takes a third of what
# it takes with 48
FEW = 8
# times a gap's error by a late impact: a speed above what that gives is known to a third, and the derivative with it
FIRM = 2
Misses = tuple[Array, Array, Array]  # as `near_misses` returns them


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Corrected(Wrapping[Tracked]):
    """Wraps a scheme that locates no impacts: keeps its values, and gives them the derivative of the motion.

    Attributes:
        branches: whether a step skips computations that it does not need, such as those of impacts where there is none.
            Native code profits, as it computes one lane at a time; in XLA all lanes of a
            batch would compute both branches.
        rubs: whether contacts have friction.
    """

    branches: bool = field(default=False, metadata={"static": True})
    rubs: bool = field(default=False, metadata={"static": True})

    @property
    def traits(self) -> Traits:
        # with friction every scheme ends an impact in the step in which it begins
        return self.scheme.traits._replace(steps=1) if self.rubs else self.scheme.traits

    @property
    def tangent(self) -> Scheme:
        """The scheme whose step is differentiated."""
        return self.traits.tangent or self.scheme

    def init(self, problem: Problem, law: ContactLaw, motion: Motion) -> tuple[Tracked, Info]:
        """Makes the initial state of the scheme, with the modes of the contacts there."""
        state, info = self.scheme.init(problem, law, motion)
        t0, q0, v0, args = motion.start
        metric = Metric.at(problem, q0, args, t0)
        contacts = linearise(problem, metric, t0, q0, args)
        speed = contacts.gap_velocity(v0)
        closed = closure(contacts, speed, q0, v0, motion.h, acceleration(problem, metric, t0, q0, v0, args)).closed
        lasts = closed & (speed <= 0)
        if contacts.dense and not problem.gaps.is_steady(t0, q0, args):
            # a wall that falls or curves away faster than the body lets it go at once, which a scheme may see a step
            # later
            view = View.at(problem, t0, q0, v0, args)
            lasts = persisting(law, contacts, view.free, view.gap_acceleration, lasts)[2]
        last = lax.stop_gradient(jnp.where(lasts, LASTING, FREE)).astype(jnp.int32)
        times = ImpactTimes.none(parts_of(problem, metric, contacts, t0, q0, v0, args), q0)
        gap = lax.stop_gradient(contacts.gap)
        none = jnp.zeros_like(gap)
        struck = jnp.full(gap.shape, NEVER, jnp.int32)
        smooth = FrictionInfo(*[empty(gap.dtype, len(gap), 0)] * 3), Edge.none(gap.dtype)
        found = Tracked(state, last, jnp.zeros_like(closed), times, gap, none, struck, none, *smooth)
        return modes_at_start(problem, motion, found, info) if self.rubs else (found, info)

    def step(self, problem: Problem, law: ContactLaw, motion: Motion, state: Tracked) -> tuple[Tracked, Info]:
        """Makes a step of the scheme; its derivative is the saltation of its impacts and slip reversals, followed by
        the step with contacts held in their modes.

        Of contacts that rub on a neighbour list only those that act, or did in the step before, have rows in the
        equations of the derivative.
        """
        state = with_new_pairs(problem, motion, state)
        new, info = self.scheme.step(problem, law.as_constant(), *lax.stop_gradient((motion, state.state)))
        info = info._replace(impulse=remember(info.impulse), z=remember(info.z))
        made = new, info
        misses = missed, gap, _ = near_misses(problem, self.traits, motion, state)
        touches = lambda: self._touching_step(problem, law, motion, state, made, misses)[:2]
        if not problem.gaps.local if self.rubs else state.last.size <= SMALL:
            return touches()
        # of many contacts none acts in most steps, even in those that are not free steps
        acts = jnp.any(info.impulse != 0) | jnp.any(state.last == LASTING) | jnp.any(missed) | (state.n == 0)
        acts = remember(acts)
        flies = lambda: self._flying_step(problem, motion, state, made, misses)
        sizes = self.sizes_of_sets(problem, motion, state)

        def among(rows: Array | None) -> tuple[Tracked, Info]:
            return touches() if rows is None else self._step_among(rows, problem, law, motion, state, made, misses)

        def acting() -> tuple[Tracked, Info]:
            # and in the other steps few of them do
            matters = (info.impulse != 0) | (state.last != FREE) | missed
            if self.rubs:
                rows, status = rows_of_list(problem, matters, gap)
                found, found_info = among(rows)
                return found, found_info._replace(status=found_info.status | status)
            matters |= self._reached_soon(problem, motion, state)
            return look_at_those_that_matter(matters, gap, sizes, among, remember)

        return lax.cond(acts, acting if sizes or self.rubs else touches, flies)

    def sizes_of_sets(self, problem: Problem, motion: Motion, state: Tracked) -> tuple[int, ...]:
        """Returns the sizes of sets of contacts, of which a step takes the smallest that has all that matter for it;
        none where it always treats all."""
        m, d = state.last.size, state.q.size
        size = max(MANY + 8, d + d // 2)
        # a restitution function needs all contacts together; schemes that take neighbour lists can take a subset of
        # contacts
        plain = jnp.ndim(motion.e) == 0 and not callable(problem.restitution) and self.traits.lists
        return (FEW, size) if self.branches and plain and not problem.gaps.local and m >= 2 * size else ()

    def _flying_step(
        self, problem: Problem, motion: Motion, state: Tracked, made: tuple[State, Info], misses: Misses
    ) -> tuple[Tracked, Info]:
        """Makes the step from ``state``, in which no contact acts, with its derivative;
        other arguments as of `_touching_step`."""
        (new, info), (_, gap, change) = made, misses
        moved = motion._replace(e=jnp.zeros_like(motion.e))
        found, found_info = self.tangent.beside(new.v).free_step(problem, moved, state.state)
        # impulses and residuals of the step, which has none
        found_info = info._replace(z=found_info.z, chord=found_info.chord, joints=found_info.joints)
        found, found_info = graft_tree((new, info), (found, found_info))
        free = state._replace(state=found, last=jnp.full_like(state.last, FREE), gap=gap, change=change)
        return free.opened(), found_info

    def _reached_soon(self, problem: Problem, motion: Motion, state: Tracked) -> Array:
        """Finds the contacts (m,) that `order_matters` needs: those that close soon, during an impact that the scheme
        spreads over several steps."""
        steps = self.traits.steps - 1
        if steps == 0:
            return jnp.zeros(state.last.shape, bool)
        e, at = lax.stop_gradient((motion.e, At(motion.time(state.n), state.q, state.v, motion.args)))
        h, middle = motion.h, self.traits.phase(e) * motion.h
        a = acceleration(problem, Metric.at(problem, at.q, at.args, at.t), *at)
        t, q, v, args = at.after(middle, a)
        gap, speed = jax.jvp(lambda t, q: problem.gaps(t, q, args), (t, q), (jnp.ones_like(t), v))
        return lax.stop_gradient((speed < 0) & (gap <= -3 * steps * h * speed))

    def _step_among(
        self,
        rows: Array,
        problem: Problem,
        law: ContactLaw,
        motion: Motion,
        state: Tracked,
        made: tuple[State, Info],
        misses: Misses,
    ) -> tuple[Tracked, Info]:
        """Does what `_touching_step` does with the contacts of numbers ``rows`` (k,) only; others count as free.
        Other arguments as there."""
        take = lambda x: x[rows]
        put = lambda whole, part: whole.at[rows].set(part, unique_indices=True)
        (new, info), (_, gap, change) = made, misses
        found, found_info, (t, q) = self._touching_step(
            with_contacts(problem, rows, len(gap)),
            law,
            motion,
            state.relisted(take),
            (new.relisted(take), info._replace(impulse=take(info.impulse), friction=info.friction.among(rows))),
            tuple(map(take, misses)),
        )

        # an impact causes errors in all gaps of what it moves
        known = lax.stop_gradient((state.struck, state.aside))
        led = lambda: errors_of_gaps(problem, found.times, state.n + 1, t, q, motion.args, known)
        struck, aside = lax.cond(jnp.any(found.last == IMPACT), led, lambda: known)
        # what of the scheme's state belongs to contacts is as the step leaves it
        of_scheme = jax.tree.map(lambda part, all_of: part if part.shape == all_of.shape else all_of, found.state, new)
        history = {
            "last": put(jnp.full_like(state.last, FREE), found.last),
            "met": put(state.met, found.met),
            "gap": put(gap, found.gap),
            "change": put(change, found.change),
            "struck": struck,
            "aside": aside,
        }
        impulse = put(jnp.zeros_like(info.impulse), found_info.impulse)
        friction = info.friction.only(rows, found_info.friction)
        # contacts that the step does not look at are open
        opened = state.opened()
        history["friction"] = jax.tree.map(put, opened.friction, found.friction)
        history["edge"] = jax.tree.map(put, opened.edge, found.edge)
        return found._replace(state=of_scheme, **history), found_info._replace(impulse=impulse, friction=friction)

    def _touching_step(
        self,
        problem: Problem,
        law: ContactLaw,
        motion: Motion,
        state: Tracked,
        made: tuple[State, Info],
        misses: Misses,
    ) -> tuple[Tracked, Info, tuple]:
        """Makes the step from ``state`` with its derivative across impacts and lasting contacts.

        ``made``: the new state of the scheme and the info of its step; ``misses``: the result of `near_misses`. Returns
        the new state, the info, and (t, q) of the impacts in the step.
        """
        new, info = made
        if self.rubs:
            salted = rough_impacts(problem, law, motion, state, info, self.traits, new.v)
        else:
            salted = smooth_impacts(problem, law, motion, state, info, self.traits, self.branches)
        # `beside` as in free steps: where nothing touches, lanes and modes of differentiation may take either of them
        plain = motion._replace(e=jnp.zeros_like(salted.e))
        found, found_info = self.tangent.beside(new.v).step(problem, salted.held, plain, salted.back)
        rubbed = info.friction._replace(impulse=found_info.friction.impulse + salted.impulse[:, 1:])
        joints = found_info.joints._replace(impulse=found_info.joints.impulse + salted.joint_impulse)
        found_info = found_info._replace(
            impulse=found_info.impulse + salted.impulse[:, 0], friction=rubbed, joints=joints
        )
        new, info = graft_tree((new, info), (found, found_info))
        return *self.tracked(problem, motion, state, (new, info), salted, misses), salted.at[:2]

    def tracked(
        self,
        problem: Problem,
        motion: Motion,
        state: Tracked,
        made: tuple[State, Info],
        salted: Salted,
        misses: Misses,
    ) -> tuple[Tracked, Info]:
        """Makes the new state with the history of its contacts, and adds the status of the derivative to the info.

        ``made``: the new state of the scheme and the info; ``salted``: what impacts did; ``misses``:
        the result of `near_misses`.
        """
        (new, info), here, metric, motion = made, salted.here, salted.metric, motion._replace(e=salted.e)
        before, last, met, times = state[:4]
        active, impact, rebound, reacting, lasting, stays = salted.current
        h, e, q, traits = motion.h, motion.e, before.q, self.traits
        lasted, crossed = last == LASTING, jnp.any(impact)
        since, (missed, gap, change) = h * steps_since(state, h.dtype), misses
        zeno = lasting & ~lasted & met & (e > 0)
        touched = (
            (reacting & (last == FREE) & ~zeno)
            | weak_impacts(traits, here, impact, met, since, state.aside)
            | (missed & ~active)
        )
        # one side of a bilateral constraint takes over from the other: no grazing
        beside = lambda: here.contacts.beside(q, active | lasted)
        branches = self.branches or last.size > SMALL
        grazing = run_where_needed(branches, jnp.any(touched), lambda: touched & ~beside(), lambda: touched)
        acting = jnp.where(active, info.impulse, 0)
        status = info.status | salted.status | derivative_status(salted, q, grazing | zeno, acting, branches)
        # an impact of two steps is under way in the next one, too
        met_now = Event(motion.time(before.n), q, before.v, metric, here.contacts, here.gap_velocity)
        in_order = order_matters(
            problem, met_now, lasting | rebound, impact, e, 2 * (traits.steps - 1) * h, motion.args
        )
        if traits.steps > 1:
            # and a contact that it opens leaves in that step
            in_order |= crossed & jnp.any(lasted & ~impact & ~stays)
        status |= as_status(in_order, Status.DERIVATIVE_EVENTS)
        # an impact of two steps that the first step is part of is not resolved
        at_start = crossed & (before.n == 0) & (traits.steps > 1)
        status = status | as_status(at_start, Status.DERIVATIVE_AT_END)
        after = lambda: times.after(
            traits, motion, before.n, (salted.at[2], salted.after), here, impact, active | lasted | lasting
        )
        times = lax.cond(crossed, after, lambda: times) if branches else after()
        known = lax.stop_gradient((state.struck, state.aside))
        led = lambda: times.of_gaps(before.n + 1, metric, here.contacts.by_entry, known)
        struck, aside = lax.cond(crossed, led, lambda: known)
        last = jnp.where(impact, IMPACT, jnp.where(rebound, REBOUND, jnp.where(lasting, LASTING, FREE)))
        # a gap velocity that an impulse reverses is no near miss
        gap, change = jnp.where(active, -jnp.inf, gap), jnp.where(active, 0, change)
        history = last.astype(jnp.int32), met | impact, times, gap, change, struck, aside
        return Tracked(new, *history, salted.friction, salted.edge), info._replace(status=status)

    def free_step(self, problem: Problem, motion: Motion, state: Tracked) -> tuple[Tracked, Info]:
        """Makes a free step with the scheme's own derivative; invalid (``info.acts``) too for a lasting contact,
        even if it opens.

        A near miss is a remark: what else a step with contacts computes needs an impulse.
        """
        new, info = self.scheme.free_step(problem, *lax.stop_gradient((motion, state.state)))
        surrogate = self.tangent.beside(new.v).free_step(
            problem, motion._replace(e=jnp.zeros_like(motion.e)), state.state
        )
        new, info = graft_tree((new, info), surrogate)
        missed, gap, change = near_misses(problem, self.traits, motion, state)
        acts = info.acts | jnp.any(state.last == LASTING)
        state = state._replace(state=new, last=jnp.full_like(state.last, FREE), gap=gap, change=change)
        return state.opened(), info._replace(acts=acts, remark=as_status(jnp.any(missed), Status.DERIVATIVE_EVENTS))


def derivative_status(salted: Salted, q: Array, unclear: Array, impulse: Array, branches: bool) -> Array:
    """Returns DERIVATIVE_EVENTS if derivatives across a step from q (d,) are doubtful, ().

    ``unclear`` (m,): contacts that graze, or whose impacts accumulate; ``impulse`` (m,): of all contacts in the step;
    ``branches``: as of `Corrected`.
    """
    impact = salted.current.impact
    several = jnp.any(impact) & (jnp.sum(impact | (impulse > 0)) > 1)
    look = lambda: _depend_on_each_other(salted.here, q, salted.e, impact, impulse)
    # angles between all pairs of contacts are costly, and with one contact there are none
    together = run_where_needed(branches, several, look, lambda: jnp.zeros((), bool))
    return as_status(jnp.any(unclear) | together, Status.DERIVATIVE_EVENTS)


def _depend_on_each_other(here: Instant, q: Array, e: Array, impact: Array, impulse: Array) -> Array:
    """Tests whether simultaneous impacts (m,) depend on each other, or on other contacts with impulses (m,), ().

    ``here``: the contacts at the time of the impacts, with restitution e; other arguments as of `derivative_status`.
    """
    count = jnp.sum(impact)
    together = (count > 1) & (here.contacts.coupled(impact) | (count > IMPACTS))
    if here.contacts.dense and len(impulse) > 1:
        joints = here.contacts.beside(q, jnp.ones_like(impact))
        together |= jnp.any(shared(here.contacts.oblique(), impact, impulse > 0, joints, impulse, e))
    return together


def velocity_at_row_time(
    problem: Problem, scheme: Scheme, motion: Motion, t: Array, q: Array, v: Array, apart: Array
) -> Array:
    """Returns the velocity v (d,) of a row at t with the derivative of the motion's velocity at t,
    once a first impact has happened.

    A scheme's velocity may lag behind its time (`Traits.lag`), as that of the middle of a step. After an impact,
    between contacts (``apart``, ()), the derivative is then that of v + lag h a.
    Before the first contact it stays that of the discrete map.
    """
    h, args = motion.h, motion.args
    a = acceleration(problem, Metric.at(problem, q, args, t), t, q, v, args)
    return graft_once(v, v + jnp.where(apart, lax.stop_gradient(scheme.traits.lag * h) * a, 0))


def steps_since(state: Tracked, dtype: DTypeLike) -> Array:
    """Returns the number (m,) of steps since an impact moved what each gap depends on, 0 before any."""
    return jnp.where(state.struck == NEVER, 0, state.n - state.struck).astype(dtype)


def with_new_pairs(problem: Problem, motion: Motion, state: Tracked) -> Tracked:
    """Returns the state with what impacts did to the gaps of pairs that are new on a neighbour list."""
    if not problem.gaps.local:
        return state
    t, q, args = lax.stop_gradient((motion.time(state.n), state.q, motion.args))
    known = lax.stop_gradient((state.struck, state.aside))
    led = lambda: errors_of_gaps(problem, state.times, state.n, t, q, args, known)
    struck, aside = lax.cond(jnp.any(state.struck == 0), led, lambda: known)
    return state._replace(struck=struck, aside=aside)


def errors_of_gaps(
    problem: Problem, times: ImpactTimes, n: Array, t: Array, q: Array, args: object, known: tuple
) -> tuple[Array, Array]:
    """Returns `ImpactTimes.of_gaps` of all gaps at (t, q), without the zeros of their
    gradients where these are known."""
    t, q, args = lax.stop_gradient((t, q, args))
    metric = Metric.at(problem, q, args, t)
    return times.of_gaps(n, metric, problem.gaps.by_entry(metric, t, q, args), known)


def gap_errors(traits: Traits, flight: Array, threshold: Array) -> Array:
    """Bounds the errors of gaps (m,) a time ``flight`` (m,) after an impact,
    from the ``threshold`` (m,) of gap velocities for impacts.

    The bound was found by measurement: after an impact that takes two steps the velocity is wrong by at most h times
    the acceleration, after one that takes one step by a quarter of that.
    Before the first impact the error is of second order.
    """
    return 0.125 * traits.steps**2 * flight * threshold


def weak_impacts(traits: Traits, here: Instant, impact: Array, met: Array, flight: Array, aside: Array) -> Array:
    """Finds the impacts (m,) that are so weak that errors of gaps make their speed, or even whether they happen,
    uncertain.

    The errors are those after a time ``flight`` (m,) since the previous impact, and ``aside`` (m,), see `Tracked`.
    Contacts that had an impact before (``met``, (m,)) and fall back do not count: their next impact is early or late,
    but certain.
    """
    speed, pull = -here.gap_velocity, jnp.abs(here.gap_acceleration)
    errors = gap_errors(traits, flight, here.threshold) + FIRM * aside
    weak = impact & (speed**2 <= 2 * pull * errors)
    return weak & ~(met & (flight * pull <= 2 * (speed + here.threshold)))


def near_misses(problem: Problem, traits: Traits, motion: Motion, state: Tracked) -> Misses:
    """Finds the gaps (m,) that had a minimum one step ago which is too near zero for h to decide whether they close.

    A minimum is too near zero if the gap, were it to close there, would close below the threshold speed of impacts, or
    if the minimum is within the error of gaps since the last impact. Also returns the gaps (m,) at ``state``, and their
    changes (m,) in the last step.
    """
    t, q, args = lax.stop_gradient((motion.time(state.n), state.q, motion.args))
    gap = problem.gaps(t, q, args)
    change = gap - state.gap
    # the threshold, 2 h times the acceleration, over h
    turn = 2 * (change - state.change)
    steps = steps_since(state, q.dtype)
    near = state.gap <= turn + gap_errors(traits, steps, turn) + state.aside
    # between bodies that move together the gap changes by rounding only
    rounding = 32 * jnp.finfo(q.dtype).eps * jnp.max(jnp.abs(q), initial=0.0)
    missed = (state.change < -rounding) & (change >= 0) & near
    return missed, gap, change
