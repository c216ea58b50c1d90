"""Motions by event location with scipy, which shares nothing with the time-stepping
schemes but the problem's functions.

    q, v = reference.event_located(work.problem, q0, v0, times, e, args)     # (lanes, k, d) each

DOP853 runs from impact to impact, by default at a tolerance of 1e-12; Newton's law there is in the kinetic metric. For
isolated impacts of one contact at a time: a lane that meets anything else becomes NaN.
"""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

IMPACTS = 100
TOUCHING = 1e-9  # a gap [m] in which a contact counts as closed


@cache
def programs(problem, e):
    """Compiled functions of a problem: time derivative of y = (q, v), gaps, their rates, and y after an impact."""

    @jax.jit
    def field(t, y, args):
        q, v = jnp.split(y, 2)
        return jnp.concatenate([v, solve_mass(problem, q, problem.force(t, q, v, args), args)])

    @jax.jit
    def gaps(t, y, args):
        return problem.constraints(t, y[: y.size // 2], args)

    @jax.jit
    def rates(t, y, args):
        d = y.size // 2
        return jax.jvp(lambda s, x: gaps(s, x, args), (t, y), (1.0, jnp.concatenate([y[d:], jnp.zeros(d)])))[1]

    @jax.jit
    def rebound(t, y, args, which):
        q, v = jnp.split(y, 2)
        gradient = jax.jacfwd(lambda x: problem.constraints(t, x, args))(q)[which]
        response = solve_mass(problem, q, gradient, args)
        return jnp.concatenate([q, v - (1 + e) * rates(t, y, args)[which] / (gradient @ response) * response])

    return field, gaps, rates, rebound


def event_located(
    problem, q0, v0, times, e, args, tolerance: float = 1e-12, longest: float = 0.05
) -> tuple[np.ndarray, np.ndarray]:
    """Positions and velocities (lanes, k, d) at increasing ``times`` (k,), from q0 and v0 (lanes, d) at t = 0, by steps
    up to ``longest``."""

    field, gaps, rates, rebound = programs(problem, e)

    def lane(y, args):
        """States (k, 2 d) at the times, from y at t = 0."""

        def event(which):
            function = lambda t, y: float(gaps(t, y, args)[which])
            function.terminal, function.direction = True, -1
            return function

        t, found = 0.0, np.full((len(times), y.size), np.nan)
        closing = max(TOUCHING, 10 * tolerance)
        events = [event(which) for which in range(gaps(t, y, args).shape[0])]
        for _ in range(IMPACTS):
            flight = solve_ivp(lambda t, y: np.asarray(field(t, y, args)), (t, times[-1]), y, "DOP853", events=events,
                               dense_output=True, rtol=tolerance, atol=tolerance, max_step=longest)  # fmt: skip
            if any(np.min(gaps(t, y, args)) < -closing for t, y in zip(flight.t, flight.y.T, strict=True)):
                break  # an impact was missed: it followed another too closely
            now = (times >= t) & (times <= flight.t[-1])
            if np.any(now):
                found[now] = flight.sol(times[now]).T
            t, y = flight.t[-1], flight.y[:, -1]
            if flight.status == 0:
                return found
            closed = np.flatnonzero((np.asarray(gaps(t, y, args)) < closing) & (np.asarray(rates(t, y, args)) < 0))
            if closed.size != 1:
                break
            y = np.asarray(rebound(t, y, args, closed[0]))
        return np.full_like(found, np.nan)

    found = np.stack([lane(np.concatenate([q, v]), args) for q, v in zip(q0, v0, strict=True)])
    return found[..., : q0.shape[1]], found[..., q0.shape[1] :]


def derivative(problem, q0, v0, t1: float, e, args, directions, change: float = 1e-6) -> np.ndarray:
    """Derivative of sum(q(t1)) + sum(v(t1)) along ``directions`` (k, 2 d) of (q0, v0), by central differences;
    (lanes, k)."""
    d = q0.shape[1]

    def end(sign, direction):
        shift = sign * change * direction
        q, v = event_located(problem, q0 + shift[:d], v0 + shift[d:], np.array([t1]), e, args)
        return np.sum(q[:, 0] + v[:, 0], axis=1)

    return np.stack([(end(1, x) - end(-1, x)) / (2 * change) for x in directions], axis=1)


def solve_mass(problem, q, x, args):
    mass = problem.mass(q, args) if callable(problem.mass) else problem.mass
    if mass is None:
        return x
    mass = jnp.asarray(mass)
    return jnp.linalg.solve(mass, x) if mass.ndim == 2 else x / mass
