"""Conversion of states, parameters, times, restitution and friction to arrays of one dtype;
errors name the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import MAX_COUNT, is_array, is_traced, is_whole, known_numbers, real_array
from ..jaxtools.shapes import PyTree
from ..mechanics.problem import Problem


def cast_numbers(name: str, tree: object, dtype: np.dtype) -> PyTree:
    """Casts every real number and floating array of a pytree to ``dtype``; integer and boolean arrays are unchanged."""

    def cast(leaf: Any, where: str) -> Any:
        if is_array(leaf) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            cure = "give jax.random.key_data(key), and take jax.random.wrap_key_data of it where it is used"
            raise TypeError(f"{where} is a random key, and parameters must be real numbers or arrays of them: {cure}")
        if is_traced(leaf):
            return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
        try:
            array = known_numbers(where, leaf)
        except TypeError as error:
            what = f"{where} is a {type(leaf).__name__}: parameters must be real numbers or arrays of them"
            raise TypeError(f"{what} ({error})") from None
        if jnp.issubdtype(array.dtype, jnp.floating) or is_whole(leaf):
            array = array.astype(dtype)
            if not np.isfinite(array).all():
                raise ValueError(f"{where} is not finite: {_excerpt(array)}")
        return array

    try:
        return jax.tree.map(lambda leaf: cast(leaf, name), tree)
    except (TypeError, ValueError):  # again, to say where
        return jax.tree_util.tree_map_with_path(lambda path, leaf: cast(leaf, name + jax.tree_util.keystr(path)), tree)


def canonical_state(q0: ArrayLike, v0: ArrayLike) -> tuple[Any, Any]:
    """Returns q0 and v0 as arrays of one floating dtype: if only one of them is given as an array its dtype,
    else the promoted one."""
    arrays = [is_array(x) for x in (q0, v0)]
    q0, v0 = real_array("q0", q0), real_array("v0", v0)
    dtype = np.promote_types(q0.dtype, v0.dtype) if arrays[0] == arrays[1] else (q0 if arrays[0] else v0).dtype
    return q0.astype(dtype, copy=False), v0.astype(dtype, copy=False)


def full_axes(args: object, args_axes: object) -> PyTree:
    """Expands args_axes to a pytree like args: 0 for a leaf with a lane axis, -1 for one without;
    ValueError if it is no prefix of args."""
    if args_axes is None:
        return jax.tree.map(lambda _: -1, args)
    message = f"args_axes must be 0, None or a pytree prefix of args of 0 and None, got {args_axes!r}"
    given = jax.tree.leaves(args_axes, is_leaf=lambda x: x is None)
    if not all(axis is None or (is_whole(axis) and axis == 0) for axis in given):
        raise ValueError(message)
    try:
        axes = jax.tree.map(
            lambda axis, sub: jax.tree.map(lambda _: -1 if axis is None else 0, sub),
            args_axes,
            args,
            is_leaf=lambda x: x is None,
        )
    except (ValueError, TypeError) as error:
        raise ValueError(message) from error
    for axis, (path, leaf) in zip(jax.tree.leaves(axes), jax.tree_util.tree_leaves_with_path(args), strict=True):
        if axis == 0 and np.ndim(leaf) == 0:
            raise ValueError(
                f"args_axes marks args{jax.tree_util.keystr(path)}, a single number: give it a lane axis, or None in "
                "args_axes"
            )
    return axes


def leaf_axes(args: object, args_axes: object) -> tuple[int | None, ...]:
    """Lane axis of every leaf of args: 0 or None."""
    return tuple(None if axis < 0 else 0 for axis in jax.tree.leaves(full_axes(args, args_axes)))


def check_finite(**values: ArrayLike) -> None:
    for name, value in values.items():
        if not is_traced(value) and not np.isfinite(value).all():
            raise ValueError(f"{name} must be finite, got {_excerpt(np.asarray(value))}")


def check_times(t0: ArrayLike, t1: ArrayLike, h: ArrayLike) -> None:
    """Raises unless h > 0, t1 > t0 and h <= t1 - t0, for one motion or lanes."""
    check_finite(t0=t0, t1=t1, h=h)
    if is_traced(t0, t1, h):
        return
    t0, t1, h = np.asarray(t0), np.asarray(t1), np.asarray(h)
    if (t1 <= t0).any():
        raise ValueError(f"t1 must be later than t0, got t0 = {_excerpt(t0)}, t1 = {_excerpt(t1)}")
    if (h <= 0).any():
        raise ValueError(f"h must be positive, got {_excerpt(h)}")
    if (h > (t1 - t0) * (1 + 1e-6)).any():
        raise ValueError(f"h must not exceed t1 - t0 = {_excerpt(t1 - t0)}, got {_excerpt(h)}")


def count_steps(t0: Any, t1: Any, h: Any, eps: float) -> np.ndarray:
    """Number of steps of size h that lead from t0 to t1, up to round-off ``eps`` (relative), elementwise;
    ValueError if too many."""
    with np.errstate(over="ignore"):
        ratio = (np.asarray(t1, np.float64) - t0) / h
    if not (ratio <= MAX_COUNT).all():
        i = np.unravel_index(np.argmax(ratio), ratio.shape)
        of = f" of trajectory {i[0]}" if i else ""
        raise ValueError(
            f"h = {np.broadcast_to(h, ratio.shape)[i]:g}{of} makes {ratio[i]:.3g} steps from t0 to t1, but at most "
            f"{MAX_COUNT} "
            "(2^31 - 2) are possible: take a larger h, or compute the motion in parts"
        )
    steps = np.ceil(ratio - 4 * eps * (1 + ratio + np.abs(t0) / h))
    return np.maximum(1, steps).astype(int)


def check_restitution(e: ArrayLike | Callable | None) -> None:
    if not is_traced(e) and not ((e := np.asarray(e)) >= 0).all() & (e <= 1).all():
        raise ValueError(f"restitution must lie in [0, 1], got {_excerpt(np.asarray(e))}")


def check_coefficients(friction: ArrayLike | Callable | None, name: str = "friction") -> None:
    """Raises unless the coefficients of friction are finite and not negative;
    None (no friction) and traced values pass."""
    if friction is not None and not is_traced(friction):
        mu = np.asarray(friction)
        if not np.all((mu >= 0) & np.isfinite(mu)):
            raise ValueError(f"{name} must be finite and >= 0, got {_excerpt(mu)}")


def split_restitution(problem: Problem, e: ArrayLike | Callable | None, dtype: np.dtype) -> tuple[Problem, Any]:
    """Splits the restitution off the problem; returns the problem without it, a numeric mass cast to ``dtype``, and the
    restitution of a `Motion`.

    A restitution that is a function stays with the problem, unless e replaces it, and the motion's is then 1.
    """
    if callable(problem.restitution):
        problem, e = (problem, 1.0) if e is None else (problem.replace(restitution=0.0), e)
    e = real_array("restitution", problem.restitution if e is None else e).astype(dtype)
    numeric = problem.mass is not None and not callable(problem.mass)
    mass = real_array("mass", problem.mass).astype(dtype) if numeric else None
    leaves, functions = problem.tree_flatten_with_keys()
    return Problem.tree_unflatten(functions, (0.0, mass, *(x for _, x in leaves[2:]))), e


def split_friction(
    problem: Problem, given: ArrayLike | Callable | None, dtype: np.dtype, name: str = "friction"
) -> tuple[Problem, Any]:
    """Splits the coefficients of friction off the problem; returns the problem without them,
    and the coefficients of a `Motion`.

    ``given``: coefficients from the user, None for the problem's own. ``name``: "friction" or "static_friction". The
    returned coefficients are None if there are none, or if the problem computes them from args;
    such a function stays in the problem.
    """
    own = getattr(problem, name)
    if given is None and (own is None or callable(own)):
        return problem, None
    if not problem.rubs:
        raise ValueError(
            f"{name}=...: the problem says nothing of slip; state it with slip=lambda t, q, v, args: (m,), or (m, 2) "
            "in space"
        )
    mu = real_array(name, own if given is None else given).astype(dtype)
    # a number that no motion is computed with
    return problem.replace(**{name: np.nan}), mu


def _excerpt(value: np.ndarray) -> str:
    return f"{value:g}" if value.ndim == 0 else np.array2string(value, threshold=6, precision=6)
