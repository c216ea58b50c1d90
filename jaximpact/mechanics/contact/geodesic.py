"""Projection along geodesics of the kinetic metric, for one constraint (Paoli and Schatzman 1999, (1.10)-(1.11)).

Finds Z on the boundary f = 0 and s >= 0 such that the geodesic from Z with unit initial velocity -N(Z), N proportional
to M^-1 grad f, reaches the target W at arc length s. Christoffel symbols come from automatic differentiation.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools import linalg
from ...jaxtools.array_types import B0, F0, F_d, F_m
from ..linearisation import Metric
from ..problem import Problem
from ..status import Status, as_status
from .implicit_derivative import reaction
from .laws import Reaction, Target
from .solver import ContactSolver, closing_speed

SUBSTEPS = 2  # RK4 steps along a geodesic whose length is O(h): error O(h^5)


def geodesic(problem: Problem, z: F_d, w: F_d, args: object) -> F_d:
    """Returns the end point (d,) of the geodesic of the metric M from z with initial velocity w, at parameter 1."""

    def kinetic(q: F_d, v: F_d) -> F0:
        return 0.5 * v @ Metric.at(problem, q, args).times(v)

    def rate(q: F_d, v: F_d) -> tuple[F_d, F_d]:
        metric = Metric.at(problem, q, args)
        _, drift = jax.jvp(lambda x: Metric.at(problem, x, args).times(v), (q,), (v,))
        return v, metric.solve(jax.grad(kinetic)(q, v) - drift)

    # stages of RK4 as a loop: (shift of the stage, weight), one trace of the rate for all
    table = (
        jnp.tile(jnp.array([[0.0, 1 / 6], [0.5, 1 / 3], [0.5, 1 / 3], [1.0, 1 / 6]], z.dtype), (SUBSTEPS, 1)) / SUBSTEPS
    )
    last = jnp.tile(jnp.array([False, False, False, True]), SUBSTEPS)

    def stage(carry: tuple, row: tuple) -> tuple[tuple, None]:
        (shift, weight), end = row
        start, slope, end_point = carry
        slope = rate(*jax.tree.map(lambda x, k: x + shift * k, start, slope))
        end_point = jax.tree.map(lambda x, k: x + weight * k, end_point, slope)
        start = jax.tree.map(lambda x, y: jnp.where(end, y, x), start, end_point)
        return (start, slope, end_point), None

    state = (z, w)
    ((end, _), _, _), _ = lax.scan(stage, (state, jax.tree.map(jnp.zeros_like, state), state), (table, last))
    return end


def project_geodesic(solver: ContactSolver, problem: Problem, target: Target, args: object) -> Reaction:
    """Projects a target W onto f >= 0, for a problem with one gap f, along the geodesic from W to the boundary f = 0
    that meets it at right angles.

    The projection Z is the point where the geodesic meets the boundary, and s is its length from Z to W. The reaction
    has the velocity jump (Z - W) / scale, with the ``scale`` of the `Target`, a time. Its impulse is L = s /
    (scale |grad f|), where |grad f| is the norm of the gradient at Z in the metric M^-1: L M^-1 grad f is then a
    velocity of norm s / scale along the normal. Tolerance and largest number of
    linearisations are those of the ``solver``.
    """
    scale, w = target.scale, target.base + target.increment
    d, dtype = w.shape[0], w.dtype

    def gap(x: F_d) -> F0:
        return problem.gaps(target.time, x, args)[0]

    def defects(x: tuple[F_d, F0], active: Array | bool) -> tuple[F_d, F0]:
        # unknowns: jump = (Z - W)/scale and the speed s/scale along the normal
        jump, speed = x
        z = w + scale * jump
        gradient = jax.grad(gap)(z)
        response = Metric.at(problem, z, args).solve(gradient)
        normal = response / jnp.sqrt(gradient @ response)
        back = geodesic(problem, z, -scale * speed[0] * normal, args)
        on_boundary = gap(z)[None] / scale
        return (back - w) / scale, jnp.where(active, on_boundary, speed)

    eps = jnp.finfo(dtype).eps
    gradient = jax.grad(gap)(w)
    reach = jnp.abs(gradient) @ jnp.abs(w) + jnp.sum(jnp.abs(w))
    speed = closing_speed(gap(w)[None] / scale)
    tolerance = lax.stop_gradient(jnp.maximum(solver.allowed(speed), 16 * eps * reach / scale))

    def solve() -> tuple:
        outside = gap(w) < -tolerance * scale

        def linearised(x: Array) -> tuple[Array, Array]:
            def flat(x: Array) -> tuple[Array, Array]:
                value = jnp.concatenate(defects((x[:-1], x[-1:]), True))
                return value, value

            matrix, value = jax.jacfwd(flat, has_aux=True)(x)
            return value, matrix

        def body(carry: tuple) -> tuple:
            k, x, value, matrix = carry
            x = x - linalg.solve(matrix, value)
            return k + 1, x, *linearised(x)

        def continues(carry: tuple) -> B0:
            k, _, value, _ = carry
            return outside & (k < solver.max_linearisations) & (jnp.max(jnp.abs(value)) > tolerance)

        # the kinetic projection's first Newton step is a start within O(h^2)
        response = Metric.at(problem, w, args).solve(gradient)
        length = jnp.sqrt(gradient @ response)
        speed = jnp.where(outside, -gap(w) / (scale * length), 0)
        x = jnp.concatenate([speed * response / length, speed[None]])
        k, x, value, _ = lax.while_loop(continues, body, (jnp.zeros((), jnp.int32), x, *linearised(x)))
        residual = jnp.where(outside, jnp.max(jnp.abs(value)), 0)
        status = as_status(~(residual <= tolerance), Status.CONTACTS_NOT_SOLVED)
        return (x[:-1], x[-1:]), (residual, k, status)

    def residual(x: tuple[F_d, F_m]) -> tuple[F_d, F_m]:
        return defects(x, lax.stop_gradient(x[1]) > 0)

    found = reaction(residual, solve, d, 1, dtype)
    gradient = jax.grad(gap)(w + scale * found.jump)
    length = jnp.sqrt(gradient @ Metric.at(problem, w + scale * found.jump, args).solve(gradient))
    return found._replace(impulse=found.impulse / length)
