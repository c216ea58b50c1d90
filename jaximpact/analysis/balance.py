"""Energy and momentum balances along a computed motion: work, losses and residuals.

Over any interval M(q) dv = g dt + G' dΛ gives, with Ṁ the rate of M along the motion,

    change of M v        =  ∫ (g + Ṁ v) dt + Σ G' p,
    change of v' M v / 2 =  ∫ v·(g + Ṁ v / 2) dt - Σ loss - Σ p·f_t,      loss = p_a (1 - e_a)/(1 + e_a) (A p)_a / 2,

with forces g, gradients G of the gaps f, A = G M^-1 G', impulses Λ of contact and p in an impact, and f_t the partial
time derivative of f. For one contact that closes at the speed u the loss is (1 - e²) u² / (2 A). Lasting contact loses
nothing. With friction, impulses r along the tangents add T' r to G' p, A p is the whole change of gap velocities, and
friction takes -Σ r·(s⁻ + s⁺)/2 for slip velocities s = T v + T_0 before and after, of which a moving surface
supplies -r·T_0. No scheme enforces these balances: their residuals measure its error.

Within a step that has an impulse, the time of the impact follows from the chord and the velocities; integrals are then
of second order, as `EventCorrected` is. With the other schemes residuals are of first order, as the motions are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from ..mechanics.friction import Slip
from ..mechanics.impact_law import NEWTON
from ..mechanics.labels import UNNAMED, Labels
from ..mechanics.linearisation import Metric, acceleration, gap_derivatives, linearise
from ..mechanics.problem import Problem
from ..results import Arrays, Drawable, Solution, with_names
from ..results.impulse_intervals import runs
from ..simulation.call import Arguments
from ..simulation.canonical_arrays import cast_numbers, split_restitution
from .checks import check_no_noise, check_numbers_of_contacts, check_result, check_solution, takes_study
from .listed_pairs import SelectedPairs, every_step, is_listed, over_rows


@dataclass(frozen=True, repr=False)
class Balance(Drawable):
    """Result of `balance`: balances accumulated along one motion, at k of its rows,
    without rows in the middle of an impact.

    Attributes:
        t: times (k,) [s].
        kinetic: v' M v / 2 (k,) [J].
        work: work of the forces so far (k,) [J].
        loss: energy lost in impacts so far according to the restitution law (k,) [J].
        driven: work of moving constraints so far, including friction on moving surfaces (k,) [J].
        energy: residual, kinetic energy - its first value - work + loss + friction - driven (k,) [J].
        momentum: residual, change of M v - integral of g + Ṁ v - all impulses G' p and T' r (k, d).
        naming: names and units of the problem.
        friction: energy lost to friction so far (k,) [J]; None without friction.
    """

    t: np.ndarray
    kinetic: np.ndarray
    work: np.ndarray
    loss: np.ndarray
    driven: np.ndarray
    energy: np.ndarray
    momentum: np.ndarray
    naming: Labels = UNNAMED
    friction: np.ndarray | None = None

    def _arrays(self) -> Arrays:
        return {"time": (("time",), self.t)} | self._along("time", *self._parts())

    def _columns(self) -> dict[str, np.ndarray]:
        return self._table("t", *self._parts())

    def _parts(self) -> list[str]:
        """Names of the arrays other than ``t``."""
        rubbed = [] if self.friction is None else ["friction"]
        return ["kinetic", "work", "loss", *rubbed, "driven", "energy", "momentum"]

    @property
    def energy_error(self) -> float:
        """Largest energy residual [J]."""
        return float(np.max(np.abs(self.energy)))

    @property
    def momentum_error(self) -> float:
        """Largest component of the momentum residual."""
        return float(np.max(np.abs(self.momentum)))


@takes_study
@with_names
def balance(problem: Problem, solution: Solution, *, args: object = None, e: ArrayLike | None = None) -> Balance:
    """Energy and momentum balances of one motion of a problem.

    Args:
        problem: the mechanical system.
        solution: one motion of it (no lane axis), from `solve` with save="all"; or with every k-th step, if no two
            impacts of a contact follow each other within k steps and bodies are not listed.
        args, e: as they were given to `solve`.

    Returns:
        `Balance`.

    Raises:
        ValueError: the solution is a batch, has one row only, is not finite, or is of another problem;
            or the problem has a reset.
    """
    check_result("solution", solution, Solution, "solve")
    q, v, t, impulse = (np.asarray(x) for x in (solution.q, solution.v, solution.t, solution.impulse))
    if q.ndim != 2:
        raise ValueError(f"solution must be one motion with q of shape (k, d), got {q.shape}: pick a lane")
    if len(q) < 2:
        raise ValueError("solution has its final row only: solve with save='all'")
    if not all(np.isfinite(x).all() for x in (q, v, impulse)):
        raise ValueError("solution is not finite: see solution.raise_if_failed()")
    if is_listed(problem):
        every_step(solution)
        chosen = SelectedPairs.of(problem, solution, every=False)
        problem, solution, impulse = chosen.problem, chosen.solution(solution), chosen.impulse
    check_no_noise(problem, "balance does not know what white forces add to momentum and energy, which no row holds")
    if problem.reset is not None:
        raise ValueError(
            "balance: what a reset adds to momentum and energy is not known; there is none of a problem with a reset"
        )
    check_solution(problem, solution, args)
    m = impulse.shape[1]
    check_numbers_of_contacts(m, e)
    problem, e = split_restitution(problem, None if e is None else cast_numbers("e", e, q.dtype), q.dtype)
    rows = ~runs(impulse[None], solution.timing).inside[0]
    t, q, v, impulse = t[rows], q[rows], v[rows], impulse[rows]
    of_rows = lambda x: None if x is None else np.diff(np.asarray(x)[rows], axis=0)
    held, rubbed = of_rows(solution.joint_impulse), of_rows(solution.friction_impulse)
    args = cast_numbers("args", args, q.dtype)
    kinetic, momentum = (np.asarray(x) for x in _contents(problem, q, v, args))
    e = np.broadcast_to(e, (m,)).astype(q.dtype)
    parts = _intervals(problem, args, e, (t, q, v), (np.diff(impulse, axis=0), held, rubbed))
    work, loss, friction, driven, gained = (np.concatenate([np.zeros_like(x[:1]), np.cumsum(x, axis=0)]) for x in parts)
    energy = kinetic - kinetic[0] - work + loss + friction - driven
    more: Arguments = {} if rubbed is None else {"friction": friction}
    return Balance(t, kinetic, work, loss, driven, energy, momentum - momentum[0] - gained, **more)


@jax.jit
def _contents(problem: Problem, q: Array, v: Array, args: object) -> tuple[Array, Array]:
    """Kinetic energy (k,) and momentum M v (k, d) at the rows q, v (k, d)."""

    def one(q: Array, v: Array) -> tuple[Array, Array]:
        momentum = Metric.at(problem, q, args).times(v)
        return 0.5 * v @ momentum, momentum

    return over_rows(problem, one)(q, v)


@jax.jit
def _intervals(problem: Problem, args: object, e: Array, rows: tuple, impulses: tuple) -> tuple[Array, ...]:
    """Returns for each interval between rows: work, loss in impacts, loss to friction, driven work, (k - 1,) each, and
    momentum gained (k - 1, d).

    ``rows``: t (k,), q and v (k, d); ``impulses``: those of contacts, joints and friction in each interval,
    None where there are none.
    """
    one = partial(_interval, problem, args, e)
    return over_rows(problem, one)([x[:-1] for x in rows], [x[1:] for x in rows], impulses)


def _interval(problem: Problem, args: object, e: Array, begin: tuple, end: tuple, impulses: tuple) -> tuple[Array, ...]:
    (t, q, v), (t_end, q_end, v_end), (p, held, rubbed) = begin, end, impulses
    h = t_end - t
    middle, q_middle = t + 0.5 * h, 0.5 * (q + q_end)
    metric = Metric.at(problem, q_middle, args, middle)
    jump = linearise(problem, metric, middle, q_middle, args).jump(p)
    if rubbed is not None:
        jump = jump + Slip.at(problem, metric, middle, q_middle, v_end, args).jump(rubbed)
    a = acceleration(problem, Metric.at(problem, q, args, t), t, q, v, args)
    # the impact: q_end = q + h v + h^2 a / 2 + (time left) jump; in lasting contact that is the middle of the interval
    size = jump @ metric.times(jump)
    left = jump @ metric.times(q_end - q - h * (v + 0.5 * h * a)) / jnp.where(size > 0, size, 1)
    left = jnp.where(size > 0, jnp.clip(left, 0, h), 0.5 * h)
    s = h - left

    def rates(t: Array, q: Array, v: Array) -> tuple[Array, Array]:
        """Power of the forces, (g + Ṁ v / 2)·v, and rate of the momentum, g + Ṁ v."""
        force = problem.generalised_force(t, q, v, args)
        _, turn = jax.jvp(lambda x: Metric.at(problem, x, args).times(v), (q,), (v,))
        return v @ (force + 0.5 * turn), force + turn

    at_ends = rates(t, q, v), rates(t_end, q_end, v_end), rates(t_end, q_end, v_end - jump)
    work, gained = (0.5 * h * (x + y) + (0.5 * h - s) * (y - z) for x, y, z in zip(*at_ends, strict=True))

    at, q_at, v_at = t + s, q + s * (v + 0.5 * s * a), v + s * a
    metric = Metric.at(problem, q_at, args, at)
    contacts = linearise(problem, metric, at, q_at, args)
    response = contacts.jump(p)
    slip: Any = None
    if rubbed is not None:
        slip = Slip.at(problem, metric, at, q_at, v_at, args)
        response = response + slip.jump(rubbed)
    change = contacts.velocity(response)
    # a lasting contact's impulse makes up for the acceleration; an impact's is more
    _, turning = gap_derivatives(problem, at, q_at, v_at, args)
    impact = change > 2 * h * (jnp.abs(contacts.velocity(a)) + jnp.abs(turning))
    before = contacts.gap_velocity(v_at)
    e = problem.restitution_at(e, before, args)
    # of Newton's law, from e alone: to second order, as the velocities before the impact are of first
    lost = (1 - e) / (1 + e) * change if problem.impact_law == NEWTON else -2 * before - change
    loss = 0.5 * jnp.sum(jnp.where(impact, p * lost, 0))
    driven, friction = -p @ problem.gaps.drift(at, q_at, args), jnp.zeros_like(h)
    if slip is not None:
        driven = driven - jnp.sum(rubbed * slip.drift)
        friction = -jnp.sum(rubbed * slip.of(v_at + 0.5 * response))
    if held is not None:
        driven = driven - held @ metric.joints.rate
        gained = gained + contacts.jacobian.T @ p + metric.joints.jacobian.T @ held
        if slip is not None:
            gained = gained + jnp.tensordot(rubbed, slip.jacobian, 2)
        return work, loss, friction, driven, gained
    return work, loss, friction, driven, gained + metric.times(response)
