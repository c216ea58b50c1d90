"""`assemble`: the nearest position and velocity that satisfy the joints of a problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike

from ..jaxtools import linalg
from ..jaxtools.argument_checks import is_traced, real_array
from ..jaxtools.derivative_rules import implicit_root
from ..jaxtools.linalg import solve_by_inverse
from ..jaxtools.semidefinite import invert_semidefinite
from ..jaxtools.trace_context import full_precision
from ..mechanics.joints import DEPENDENT, scales
from ..mechanics.linearisation import Metric
from ..mechanics.problem import Problem
from ..mechanics.user_functions import outcome
from .canonical_arrays import canonical_state, cast_numbers, check_finite
from .validation import check_joints, check_problem

NEWTON = 30  # iterations


def assemble(
    problem: Problem,
    q0: ArrayLike,
    v0: ArrayLike,
    *,
    t0: ArrayLike = 0.0,
    args: object = None,
    free: Sequence[int | str] | None = None,
) -> tuple[Array, Array]:
    """Computes the position and velocity that satisfy the joints and are nearest to (q0, v0) in the kinetic metric.

    Differentiable, and batched by `jax.vmap`. Gaps are ignored: the position found may violate them.

    Args:
        problem: a problem with joints.
        q0, v0: position and velocity nearby (d,).
        t0: the time at which joints hold [s].
        args: parameters handed to the problem's functions.
        free: coordinates that may be changed, by number or name; the others, such as the crank's angle and its rate,
            stay. By default all.

    Returns:
        Position and velocity (d,).

    Raises:
        ValueError: the problem has no joints, there is no position near q0 that satisfies them,
            or no velocity that keeps them.

    Example:
        >>> import jax.numpy as jnp, jaximpact as ji
        >>> rod = ji.Problem(lambda t, q, v, args: jnp.zeros(2), joints=lambda t, q, args: jnp.stack([q @ q - 1]))
        >>> q0, v0 = ji.assemble(rod, [2.0, 0.0], [1.0, 1.0])
        >>> print(q0, v0)
        [1. 0.] [0. 1.]
    """
    check_problem(problem)
    if not problem.jointed:
        raise ValueError("problem has no joints to assemble: every q0 will do")
    near, speed = canonical_state(q0, v0)
    if near.ndim != 1 or speed.shape != near.shape:
        raise ValueError(
            f"q0 and v0 must have one shape (d,), got {near.shape} and {speed.shape}; of many use jax.vmap"
        )
    args, time = cast_numbers("args", args, near.dtype), real_array("t0", t0).astype(near.dtype)
    check_finite(q0=near, v0=speed)
    check_joints(problem, lambda name, function, *at: outcome(name, jnp.asarray, function, *at).shape, near, args)
    places = _places(problem, free, near.shape[0])
    q, v, left, rates, scale = _assemble(problem, near, speed, time, args, places)
    if not is_traced(left, rates, scale):
        tolerance = 1e4 * float(jnp.finfo(q.dtype).eps)
        if not np.all(np.abs(left) <= tolerance * np.asarray(scale[0])):
            raise ValueError(
                f"no position near q0 satisfies the joints: of joints(t0, q, args) {float(np.max(np.abs(left))):.3g} "
                "is left; begin nearer to "
                "one, or let more coordinates be free"
            )
        if not np.all(np.abs(rates) <= 1e-6 * np.asarray(scale[1])):
            raise ValueError(
                f"no velocity keeps the joints: their rates stay at {float(np.max(np.abs(rates))):.3g}; rows of "
                "joints(t, q, args) contradict "
                "each other, or more coordinates must be free"
            )
    return q, v


def _places(problem: Problem, free: Sequence[int | str] | None, d: int) -> tuple[int, ...]:
    """Numbers, sorted, of the coordinates that ``free`` names or numbers;
    all of the ``d`` coordinates if it is None."""
    if free is None:
        return tuple(range(d))
    names, found = problem.coordinates or (), []
    for one in free:
        if one in names:
            found.append(names.index(one))
        elif isinstance(one, int | np.integer) and not isinstance(one, bool) and -d <= one < d:
            found.append(int(one) % d)
        else:
            known = f" or one of {', '.join(names)}" if names else ""
            raise ValueError(f"free: {one!r} is no coordinate: give numbers 0 ... {d - 1}{known}")
    return tuple(sorted(set(found)))


@partial(jax.jit, static_argnames="places")
@full_precision()
def _assemble(problem: Problem, q0: Array, v0: Array, t0: Array, args: object, places: tuple[int, ...]) -> tuple:
    """Returns position and velocity (d,); the residuals of the joints (j,) and of their rates (j,) there; and the
    scales of both residuals.

    ``places``: numbers of the k coordinates that may change.
    """
    some, k, frozen = jnp.array(places), len(places), lax.stop_gradient
    place = lambda x: q0.at[some].set(x)
    joints = lambda x: problem.joint_values(t0, place(x), args)
    mass = lambda q: jax.vmap(Metric.at(problem, q, args).times)(jnp.eye(len(q0), dtype=q0.dtype))[some][:, some]
    metric, start = mass(q0), q0[some]
    cut = max(DEPENDENT, 64 * float(jnp.finfo(q0.dtype).eps))

    def response(matrix: Array, metric: Array) -> tuple[Array, Array, Array, Array]:
        """For a ``matrix`` J (j, k) and a ``metric`` M (k, k): M^-1 J', J M^-1 J',
        and the inverse of J M^-1 J' with its pivots."""
        found = linalg.solve(metric, matrix.T)
        return found, matrix @ found, *invert_semidefinite(frozen(matrix @ found), cut, sparse=True)

    # near the joints first, with the metric alone: the second derivatives of joints lead astray from afar
    def near(_: object, x: Array) -> Array:
        matrix = jax.jacfwd(joints)(x)
        answer, gram, inverse, _ = response(matrix, metric)
        return x - answer @ solve_by_inverse(gram, inverse, joints(x))

    x = frozen(lax.fori_loop(0, NEWTON, near, start))
    matrix = frozen(jax.jacfwd(joints)(x))
    answer, gram, inverse, pivots = frozen(response(matrix, metric))
    kept = pivots > 0
    force = solve_by_inverse(gram, inverse, matrix @ frozen(x - start))

    def residual(z: Array) -> Array:
        x, force = z[:k], z[k:]
        value, back = jax.vjp(joints, x)
        # a dependent row has no force
        return jnp.concatenate([metric @ (x - start) - back(force)[0], jnp.where(kept, value, force)])

    def solve(residual: Callable, guess: Array) -> tuple[Array, Array]:
        improve = lambda _, z: z - linalg.solve(jax.jacfwd(residual)(z), residual(z))
        return lax.fori_loop(0, NEWTON, improve, guess), jnp.zeros((), q0.dtype)

    tangent = lambda linear, y: linalg.solve(jax.jacfwd(linear)(jnp.zeros_like(y)), y)
    z, _ = implicit_root(residual, jnp.concatenate([x, force]), solve, tangent)
    q = place(z[:k])
    matrix = jax.jacfwd(lambda x: problem.joint_values(t0, x, args))(q)
    rate = jax.jvp(lambda s: problem.joint_values(s, q, args), (t0,), (jnp.ones_like(t0),))[1]
    answer, gram, inverse, _ = response(matrix[:, some], mass(q))
    v = v0.at[some].add(-answer @ solve_by_inverse(gram, inverse, matrix @ v0 + rate))
    size = jnp.abs(matrix)
    # of velocities all have the round-off of the largest: rows of bodies that rest have that of those that move
    scale = scales(matrix, jnp.abs(q) + 1), jnp.max(size @ (jnp.abs(v) + jnp.abs(v0)) + jnp.abs(rate))
    return q, v, frozen(joints(z[:k])), frozen(matrix @ v + rate), frozen(scale)
