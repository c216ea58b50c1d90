"""An event-locating scheme of second order whose plain derivative is that of the motion, across impacts too.

A step follows, from event to event, the cubic path whose acceleration varies linearly between its two ends,

    q(s) = q + s v + s^2 (a/2 + s (a_r - a)/(6 r)),     a_r = acceleration at (t + r, q + r v + r^2 a/2, v + r a),

r being what is left of the step and a the acceleration with the persistent contacts' reaction. An impact ends it where
a gap f(t + s, q(s)) vanishes; that time is differentiated by the implicit function theorem, and with it everything that
an impact does to a derivative (the saltation matrix) follows from automatic differentiation. A release ends it where the
linearly varying multiplier of a persistent contact vanishes.

Reference: M. A. Aizerman, F. R. Gantmakher, On the stability of periodic motions, J. Appl. Math. Mech. 22 (1958), for
the derivative at an impact. The scheme is this project's own: no convergence theorem covers it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from .. import linalg
from ..contact import ORTHOGONAL, Contacts, Metric, acceleration, gap_rate, gap_rates, linearise, touch
from ..derivatives import graft
from ..problem import Problem
from ..projection.base import PENDING, ContactSolver, Untouched, as_status, complementarity
from ..status import Status
from .base import Info, Inputs, Scheme, added, gradient_status, mass_status, no_step, unrounded


class EventState(NamedTuple):
    """Step number n (t = t0 + n h), position q (d,), velocity v (d,) at t, persistent contacts closed (m,) bool."""

    n: Array
    q: Array
    v: Array
    closed: Array
    low: Array | None = None  # as in `State`


class _Progress(NamedTuple):
    """Where a step has come: time since its start, state, and what is reported of it."""

    elapsed: Array
    q: Array
    low: Array | None
    v: Array
    closed: Array
    impulse: Array
    residual: Array
    events: Array
    struck: Array
    status: Array


class _View(NamedTuple):
    """One state: contacts, free acceleration (d,), first and second derivative of the gaps (m,) without acceleration."""

    contacts: Contacts
    free: Array
    rate: Array
    bias: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EventCorrected(Scheme):
    """Second order in position, velocity and their derivatives where impacts are isolated and transversal.

    A contact becomes persistent when it would leave slower than 2 h (|G a| + |f'' - G a|) under an acceleration that
    closes it: through an accumulation of impacts position is second order, velocity and derivatives are first order.
    Contacts that are struck at once, up to round-off, meet one impact law together; where their gradients are orthogonal
    one after the other is the same, and keeps the derivative.

    Attributes:
        impacts: events (impacts and releases) located in one step. What still penetrates at its end is put back onto
            its surface and reflected there: nothing is lost, but that step is first order, and the status says
            EVENTS_UNRESOLVED.
        newton: Newton iterations for the time of an impact, from the root of the gap's Taylor polynomial.
    """

    impacts: int = field(default=2, metadata={"static": True})
    newton: int = field(default=4, metadata={"static": True})

    def check(self, problem: Problem, e: Any, m: int) -> None:
        for name in ("impacts", "newton"):
            if getattr(self, name) < 1:
                raise ValueError(f"EventCorrected({name}={getattr(self, name)!r}): at least one is needed")
        if jnp.ndim(e) > 0 and jnp.shape(e) != (m,):
            raise ValueError(f"restitution has shape {jnp.shape(e)}: give one number, or one per contact, shape ({m},)")

    def timing(self, e: Any) -> None:
        """The derivative of a step with located impacts is that of the motion."""
        return None

    def init(
        self, problem: Problem, projection: ContactSolver, inputs: Inputs, q0: Array, v0: Array
    ) -> tuple[Any, Info]:
        t0, _, _, args = inputs
        contacts = linearise(problem, Metric.at(problem, q0, args), t0, q0, args)
        rate = contacts.velocity(v0) + gap_rate(problem, t0, q0, args)
        # touching and not opening; the first step releases those that the acceleration opens
        leaving = touch(contacts, -rate, q0, v0)
        closed = leaving.touching & ~leaving.outward
        state = EventState(jnp.zeros((), jnp.int32), q0, v0, closed, unrounded(q0))
        return state, no_step(q0, v0, closed.shape[0])

    def step(
        self, problem: Problem, projection: ContactSolver, inputs: Inputs, state: Any, length: Array | None = None
    ) -> tuple[Any, Info]:
        """State at n + 1, or a time ``length`` after step n began, in (0, h]."""
        r = inputs.h if length is None else length
        if isinstance(projection, Untouched):
            return self._flight(problem, inputs, state, r)
        n, q, v, closed, low = state
        m = closed.shape[0]
        zero = jnp.zeros((), q.dtype)
        none = jnp.zeros((), jnp.int32)
        progress = _Progress(zero, q, low, v, closed, jnp.zeros(m, q.dtype), zero, none, jnp.zeros(m, bool), none)

        def advance(progress: _Progress, left: Array) -> tuple[_Progress, None]:
            moved = lambda p: self._segment(problem, projection, inputs, inputs.time(n), r, p, left)
            return lax.cond(progress.elapsed < r, moved, lambda p: p, progress), None

        count = self.impacts if m else 0
        progress, _ = lax.scan(advance, progress, jnp.arange(count, -1, -1))
        info = Info(
            progress.q, (progress.q - q) / r, progress.impulse, progress.residual, progress.events, progress.status
        )
        return EventState(n + 1, progress.q, progress.v, progress.closed, progress.low), info

    def _flight(self, problem: Problem, inputs: Inputs, state: Any, r: Array) -> tuple[Any, Info]:
        """The step of a motion that meets and leaves no contact; status PENDING where it does."""
        _, h, _, args = inputs
        n, q, v, closed, low = state
        t = inputs.time(n)
        contacts, a, rate, bias = _view(problem, t, q, v, args)
        change = _view(problem, t + r, q + r * (v + (0.5 * r) * a), v + r * a, args).free - a
        shift, v_new = _along(r, r, v, a, change)
        q_new, low = added(q, shift, low)
        allowed = _allowed(contacts, q)
        taylor = contacts.gap, rate, 0.5 * (contacts.velocity(a) + bias)
        event = closed | (problem.gaps(t + r, q_new, args) < -allowed) | _dips(taylor, r, closed, allowed)
        event |= _brushes(taylor, r, h, closed)
        pending = jnp.any(event) | (mass_status(Metric.at(problem, q_new, args)) != 0)
        info = no_step(q_new, (q_new - q) / r, closed.shape[0])
        return EventState(n + 1, q_new, v_new, closed, low), info._replace(status=as_status(pending, PENDING))

    def _segment(
        self,
        problem: Problem,
        projection: ContactSolver,
        inputs: Inputs,
        start: Array,
        length: Array,
        progress: _Progress,
        left: Array,
    ) -> _Progress:
        """Follow the path to the next event, of which ``left`` may be located, or to the end of the step, and treat it."""
        _, h, _, args = inputs
        elapsed, q, low, v, closed, impulse, residual, events, struck, status = progress
        t, r, last = start + elapsed, length - elapsed, left == 0

        # the path: accelerations at its two ends with the reaction of the contacts that push at its start
        contacts, free, rate, bias = _view(problem, t, q, v, args)
        push, pushing, stays, failure = _persist(projection, contacts, free, bias, closed)
        closed = closed & stays
        a = free + contacts.jump(push)
        there = _view(problem, t + r, q + r * (v + (0.5 * r) * a), v + r * a, args)
        push_end = _hold(there.contacts, -(there.contacts.velocity(there.free) + there.bias), pushing)
        change = there.free + there.contacts.jump(push_end) - a

        def along(s: Array, x: tuple) -> tuple[Array, Array]:
            """Gaps and their rates (m,) at time s of the path."""
            t, r, q, v, a, change, args = x
            gaps = lambda s: problem.gaps(t + s, q + _along(s, r, v, a, change)[0], args)
            return jax.jvp(gaps, (s,), (jnp.ones_like(s),))

        # the first event on it: an impact, or the release where a multiplier, linear in time, becomes negative
        path = (t, r, q, v, a, change, args)
        allowed = _allowed(contacts, q)
        frozen = lax.stop_gradient(path)
        penetrating = ~closed & (along(frozen[1], frozen)[0] < -allowed)
        taylor = contacts.gap, rate, 0.5 * (contacts.velocity(a) + bias)
        hits, which, hit_time = self._impact(along, path, taylor, closed, penetrating, allowed)
        loose = pushing & (there.contacts.diagonal() * push_end < -_noise(there.contacts, there.free, there.bias))
        release = jnp.where(loose, r * push / jnp.where(loose, push - push_end, 1), 2 * h)
        release_time = jnp.min(release, initial=jnp.inf)
        releases = jnp.any(loose) & ~last & ~(hits & (hit_time <= release_time))
        hits = hits & ~last & ~releases
        s = jnp.where(hits, hit_time, jnp.where(releases, release_time, r))
        ratio = s / _nonzero(r)
        start, (shift, v) = q, _along(s, r, v, a, change)
        q, low = added(q, shift, low)
        impulse = impulse + s * (push + (0.5 * ratio) * (push_end - push))

        candidates = jnp.where(last, penetrating, which & hits)
        arrived = q
        q, v, closed, jolt, error, hit, remarks = self._arrive(
            problem, projection, inputs, t + s, q, v, closed, candidates, struck, allowed, left
        )
        metric, moved = Metric.at(problem, start, args), lax.stop_gradient(arrived - start)
        remarks |= gradient_status(projection, problem, metric, contacts, t, start, moved, hit, args)
        remarks |= as_status(jnp.any(_brushes(taylor, r, h, closed | hit)), Status.DERIVATIVE_GRAZING)
        released = releases & (release <= release_time + 1e-9 * h)
        return _Progress(
            jnp.where(hits | releases, elapsed + s, length),
            q,
            low,
            v,
            closed & ~released,
            impulse + jolt,
            jnp.maximum(residual, error),
            events + (hits | releases).astype(jnp.int32),
            struck | hit,
            status | failure | remarks,
        )

    def _arrive(
        self,
        problem: Problem,
        projection: ContactSolver,
        inputs: Inputs,
        t: Array,
        q: Array,
        v: Array,
        closed: Array,
        candidates: Array,
        struck: Array,
        allowed: Array,
        left: Array,
    ) -> tuple[Array, Array, Array, Array, Array, Array, Array]:
        """At an end of the path: persistent contacts back onto their surface, the impact law for those that hit.

        Returns position, velocity, persistent contacts, impulse, KKT residual, the contacts that hit, and status.
        """
        _, h, e, args = inputs
        last = left == 0
        metric = Metric.at(problem, q, args)
        contacts = linearise(problem, metric, t, q, args)
        rate = contacts.velocity(v) + gap_rate(problem, t, q, args)
        near = contacts.gap <= allowed + 1e-6 * h * jnp.abs(rate)
        candidates = candidates & (near | last)
        # contacts struck at the same instant meet one impact law, unless one after the other is the same
        touching = near & ~closed & jnp.any(candidates)
        group = candidates | (touching & (rate < -_noise(contacts, v, rate)))
        oblique = (jnp.abs(contacts.angles()) > ORTHOGONAL) & ~jnp.eye(rate.shape[0], dtype=bool)
        coupled = (jnp.sum(group) > 1) & jnp.any(oblique & group[:, None] & (group | closed)[None, :])
        together = coupled | (jnp.sum(group) > left)
        hit = jnp.where(together, group, candidates)
        # those that touch without approaching are not struck, but may be pushed
        beside = touching & ~group
        others = hit & ~candidates
        delay = jnp.where(others, (contacts.gap - lax.stop_gradient(contacts.gap)) / jnp.where(others, -rate, 1), 0)
        gap = jnp.where(others, lax.stop_gradient(contacts.gap), contacts.gap)
        q = q + contacts.jump(_hold(contacts, -gap, closed | hit))
        tangent = _hold(contacts, -rate, closed)
        v = v + contacts.jump(tangent)
        rate = rate + contacts.delassus() @ tangent
        involved = (closed | hit | beside) & jnp.any(hit)
        sticks, slow = _sticks(
            problem, projection, inputs, *lax.stop_gradient((t, q, v, metric, contacts, rate)), involved
        )
        lands = (hit | beside) & sticks
        offset = rate * (1 + jnp.where(hit & ~lands, e, 0))
        jolt, _, failed = _react(projection, contacts, offset, involved)
        v = v + contacts.jump(jolt)
        # the others are struck at times of their own, the same in value
        q = q - contacts.jump(jolt * delay)
        after = rate + contacts.delassus() @ jolt
        opened = involved & (after > _noise(contacts, v, rate))
        defect = jnp.where(involved, after - rate + offset, 0)
        error = jnp.max(
            complementarity(lax.stop_gradient(defect), lax.stop_gradient(jolt), contacts.diagonal()), initial=0.0
        )
        # what derivatives, and the order of the step, suffer from
        zeno = hit & lands & (e > 0)
        grazing = hit & ~zeno & (rate >= -slow)
        pairs = oblique & hit[:, None] & (hit | struck)[None, :]
        status = (
            failed
            | mass_status(metric)
            | as_status(last & jnp.any(hit & ~zeno & (rate < -slow)), Status.EVENTS_UNRESOLVED)
            | as_status(jnp.any(zeno), Status.DERIVATIVE_ZENO)
            | as_status(jnp.any(grazing), Status.DERIVATIVE_GRAZING)
            | as_status(jnp.any(pairs) | (together & (jnp.sum(hit) > 1)), Status.DERIVATIVE_SIMULTANEOUS)
            | as_status(jnp.any(hit), Status.DERIVATIVE_AT_END)
        )
        return q, v, (closed | lands) & ~opened, tangent + jolt, error, hit, status

    def _impact(
        self,
        along: Callable,
        path: tuple,
        taylor: tuple[Array, Array, Array],
        closed: Array,
        penetrating: Array,
        allowed: Array,
    ) -> tuple[Array, Array, Array]:
        """The first free contact to reach zero gap on the path: whether there is one, which (m,) bool, and when.

        The time is found with all derivatives stopped; two more Newton steps give it the first three derivatives of the
        implicit function.
        """
        if closed.shape[0] == 0:
            return jnp.array(False), closed, path[1]
        frozen = lax.stop_gradient(path)
        r = frozen[1]
        (c, b, a), allowed = lax.stop_gradient((taylor, allowed))
        candidates = penetrating | _dips((c, b, a), r, closed, allowed)
        c = jnp.maximum(c, 0)
        exists = jnp.any(candidates)
        inward = b < 0
        root = jnp.sqrt(jnp.maximum(b * b - 4 * a * c, 0))
        falls = ~inward & (a < 0)
        first = jnp.where(inward, 2 * c / jnp.where(inward, root - b, 1), (b + root) / jnp.where(falls, -2 * a, 1))
        first = jnp.where(inward | falls, first, r)
        s = jnp.clip(jnp.min(jnp.where(candidates, first, r)), 0, r)

        def newton(s: Array, gap: Array, slope: Array) -> Array:
            return jnp.where(candidates & (slope < 0), s - gap / jnp.where(slope < 0, slope, -1), jnp.inf)

        def improve(_: Any, bracket: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            s, low, high = bracket
            gap, slope = along(s, frozen)
            beyond = jnp.any(candidates & ((gap < 0) | (inward & (slope >= 0))))
            low, high = jnp.where(beyond, low, s), jnp.where(beyond, s, high)
            s = jnp.min(newton(s, gap, slope))
            # a converged step may leave the bracket by rounding: that is no reason to bisect
            inside = (s >= low - 1e-6 * r) & (s <= high + 1e-6 * r)
            return jnp.where(inside, jnp.clip(s, low, high), 0.5 * (low + high)), low, high

        s, _, _ = lax.stop_gradient(lax.fori_loop(0, self.newton, improve, (s, jnp.zeros_like(r), r)))
        gap, slope = along(s, frozen)
        contact = jnp.arange(b.shape[0]) == jnp.argmin(newton(s, gap, slope))
        of_contact = lambda x: jnp.sum(jnp.where(contact, x, 0))
        # the time of a grazing contact has no derivative
        speed = -of_contact(slope)
        transversal = exists & (speed > of_contact(16 * allowed))
        value = jnp.clip(s + jnp.where(transversal, of_contact(gap) / jnp.where(transversal, speed, 1), 0), 0, r)

        def implicit(s: Array) -> Array:
            gap, slope = map(of_contact, along(s, path))
            return jnp.where(transversal, s - (gap - lax.stop_gradient(gap)) / jnp.where(transversal, slope, 1), value)

        return exists, contact, graft(value, implicit(implicit(value)))


def _sticks(
    problem: Problem,
    projection: ContactSolver,
    inputs: Inputs,
    t: Array,
    q: Array,
    v: Array,
    metric: Metric,
    contacts: Contacts,
    rate: Array,
    involved: Array,
) -> tuple[Array, Array]:
    """Whether contacts (m,) persist after an inelastic impact, and the elastic one is too slow to be resolved by h.

    Returns that and the gap velocity (m,) below which h resolves none.
    """
    _, h, e, args = lax.stop_gradient(inputs)
    v = v + contacts.jump(_react(projection, contacts, rate, involved)[0])
    free = acceleration(problem, metric, t, q, v, args)
    bias = gap_rates(problem, t, q, v, args)[1]
    slow = 2 * h * (jnp.abs(contacts.velocity(free)) + jnp.abs(bias))
    return (-e * rate <= slow) & _persist(projection, contacts, free, bias, involved)[2], slow


def _along(s: Array, r: Array, v: Array, a: Array, change: Array) -> tuple[Array, Array]:
    """Displacement and velocity at time s of a path of length r, along which the acceleration changes from a by ``change``."""
    ratio = s / _nonzero(r)
    return s * (v + s * (0.5 * a + (ratio / 6) * change)), v + s * (a + (0.5 * ratio) * change)


def _allowed(contacts: Contacts, q: Array) -> Array:
    """Round-off (m,) of gaps."""
    return 64 * jnp.finfo(q.dtype).eps * (1 + jnp.abs(contacts.jacobian) @ jnp.abs(q))


def _dips(taylor: tuple[Array, Array, Array], r: Array, closed: Array, allowed: Array) -> Array:
    """Gaps (m,) c + b s + a s^2 that close and open again within a path of length r: no penetration at its end shows them."""
    c, b, a = taylor
    c = jnp.maximum(c, 0)
    return ~closed & (b < 0) & (a > 0) & (b + 2 * a * r > 0) & (c * a - 0.25 * b * b < -allowed * a)


def _brushes(taylor: tuple[Array, Array, Array], r: Array, h: Array, closed: Array) -> Array:
    """Gaps (m,) c + b s + a s^2 with a minimum within a path of length r, so near zero that h cannot tell whether they close:
    those that do meet at a speed below 2 h 2 a."""
    c, b, a = taylor
    return ~closed & (b < 0) & (a > 0) & (b + 2 * a * r >= 0) & (jnp.abs(c * a - 0.25 * b * b) <= (2 * h * a) ** 2)


def _nonzero(x: Array) -> Array:
    """x, or 1 where it is zero."""
    return jnp.where(x == 0, 1, x)


def _noise(contacts: Contacts, x: Array, gap_rate: Array) -> Array:
    """Round-off (m,) of gap velocities (or accelerations) G x + gap_rate."""
    eps = 1e3 * jnp.finfo(x.dtype).eps
    return eps * (jnp.abs(contacts.jacobian) @ jnp.abs(x) + jnp.abs(gap_rate))


def _view(problem: Problem, t: Array, q: Array, v: Array, args: Any) -> _View:
    metric = Metric.at(problem, q, args)
    free = acceleration(problem, metric, t, q, v, args)
    return _View(linearise(problem, metric, t, q, args), free, *gap_rates(problem, t, q, v, args))


def _hold(contacts: Contacts, target: Array, held: Array) -> Array:
    """Impulses (m,) of the held contacts that change their gap velocities by ``target``, of least norm if dependent."""
    if held.shape[0] == 0:
        return target
    matrix = contacts.delassus()
    diagonal = jnp.diagonal(matrix)
    held = held & (diagonal > 0)
    target = jnp.where(held, target, 0)
    matrix = jnp.where(held[:, None] & held[None, :], matrix, 0) + jnp.diag(jnp.where(held, 0, 1).astype(target.dtype))
    # regular also where contacts depend on each other; one refinement makes up for it
    shift = jnp.where(held, 16 * jnp.finfo(target.dtype).eps * diagonal, 0)
    factor = linalg.cholesky(matrix + jnp.diag(shift))
    impulse = linalg.cholesky_solve(factor, target)
    return impulse + linalg.cholesky_solve(factor, target - matrix @ impulse)


def _react(projection: ContactSolver, contacts: Contacts, offset: Array, touching: Array) -> tuple[Array, Array, Array]:
    """Impulses 0 <= L _|_ G M^-1 G' L + offset >= 0 of the touching contacts (m,), which of them push, and status.

    The projection only chooses those that push; the impulses are differentiated with that choice frozen.
    """
    if touching.shape[0] == 0:
        return offset, touching, jnp.zeros((), jnp.int32)
    frozen, b = lax.stop_gradient((contacts.masked(touching), jnp.where(touching, offset, 1)))
    floor = 32 * jnp.finfo(b.dtype).eps * jnp.max(jnp.abs(jnp.where(touching, b, 0)), initial=0.0)
    tolerance = jnp.maximum(projection.tolerance, floor)
    found = projection.impulses(frozen, b, tolerance, jnp.zeros_like(b))
    pushing = touching & (frozen.diagonal() * lax.stop_gradient(found.impulse) > tolerance)
    return _hold(contacts, -offset, pushing), pushing, found.status


def _persist(
    projection: ContactSolver, contacts: Contacts, free: Array, bias: Array, closed: Array
) -> tuple[Array, Array, Array, Array]:
    """Contact forces of the closed contacts at the level of accelerations.

    Returns the forces (m,), which contacts push, which of the closed ones stay closed, and status.
    """
    normal = contacts.velocity(free) + bias
    push, pushing, status = _react(projection, contacts, normal, closed)
    opening = normal + contacts.delassus() @ push > _noise(contacts, free, bias)
    return push, pushing, closed & (pushing | ~opening), status
