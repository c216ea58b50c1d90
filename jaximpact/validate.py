"""Checks at the entry, once, on the host: shapes, types, finiteness, admissible start, positive definite mass.

Under a jax transformation the numbers are not known: shapes and types are still checked, numbers are not.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .checks import MOST, check_kind, is_array, is_traced, is_whole, short
from .contact import Closure, Metric, closure, linearise
from .jaxprs import depends
from .labels import UNNAMED, Labels
from .problem import Problem
from .schemes.base import Scheme
from .shapes import array, arrays, returned

HERE = os.path.dirname(__file__)  # the package


class JaximpactWarning(UserWarning):
    """A remark about a problem that is computed all the same."""


_silent: ContextVar[bool] = ContextVar("_silent", default=False)


@contextmanager
def without_remarks() -> Iterator[None]:
    """No remarks from what this thread calls. The filters of `warnings` are those of all threads, and stay as they are."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def remark(text: str, stacklevel: int) -> None:
    """Warn the caller of the function so many levels up, or whoever called that from outside this package."""
    if not _silent.get():
        frame = sys._getframe(stacklevel)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(HERE):
            frame, stacklevel = frame.f_back, stacklevel + 1
        warnings.warn(text, JaximpactWarning, stacklevel=stacklevel + 1)


def real_array(name: str, value: Any) -> Any:
    """``value`` as an array of its own float dtype, the default one for integers; or an error that names it.

    Known numbers stay numpy arrays: inside jit they remain known, and can be checked.
    """
    if is_traced(value):
        traced = jnp.asarray(value)
        return traced if jnp.issubdtype(traced.dtype, jnp.floating) else traced.astype(jnp.result_type(float))
    array = known_numbers(name, value)
    if isinstance(value, np.ndarray) and array.dtype == np.float64 and not jax.config.read("jax_enable_x64"):
        remark(
            f"{name} is float64 but jax computes in float32: call jax.config.update('jax_enable_x64', True) first, or "
            "pass float32 arrays",
            stacklevel=5,
        )
    floating = array.dtype.kind == "f" or jnp.issubdtype(array.dtype, jnp.floating)
    with np.errstate(over="ignore"):  # what becomes infinite is found not to be finite
        return array.astype(jax.dtypes.canonicalize_dtype(array.dtype) if floating else jnp.result_type(float))


def known_numbers(name: str, value: Any) -> np.ndarray:
    """``value`` as a numpy array of real numbers of its own dtype, or TypeError that names it."""
    if np.ma.is_masked(value):
        raise TypeError(f"{name} is a masked array, and nothing says what its masked entries are: fill them")
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise TypeError(f"{name} must be numbers, of rows of one length, got {short(value)}") from error
    if array.dtype.kind not in "iufb" and not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{name} must be real numbers, got {type(value).__name__} of dtype {array.dtype}")
    if array.dtype.itemsize > 8:
        raise TypeError(f"{name} has dtype {array.dtype}, and jax computes in float64 at most: give float64")
    return array


def cast_numbers(name: str, tree: Any, dtype: Any) -> Any:
    """Every real number and floating array of a pytree in ``dtype``; integer and boolean arrays stay as they are."""

    def cast(leaf: Any, where: str) -> Any:
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


def canonical_state(q0: Any, v0: Any) -> tuple[Any, Any]:
    """q0 and v0 as arrays of one floating dtype: that of those that are arrays, as a list of numbers has none."""
    arrays = [is_array(x) for x in (q0, v0)]
    q0, v0 = real_array("q0", q0), real_array("v0", v0)
    dtype = np.promote_types(q0.dtype, v0.dtype) if arrays[0] == arrays[1] else (q0 if arrays[0] else v0).dtype
    return q0.astype(dtype, copy=False), v0.astype(dtype, copy=False)


def full_axes(args: Any, args_axes: Any) -> Any:
    """args_axes leaf by leaf, in the structure of args: 0 for a lane axis, -1 for none."""
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
                f"args_axes marks args{jax.tree_util.keystr(path)}, a single number: give it a lane axis, or None in args_axes"
            )
    return axes


def leaf_axes(args: Any, args_axes: Any) -> tuple[int | None, ...]:
    """The axis of every leaf of args: 0 for lanes, None for none."""
    return tuple(None if axis < 0 else 0 for axis in jax.tree.leaves(full_axes(args, args_axes)))


def check_finite(**values: Any) -> None:
    for name, value in values.items():
        if not is_traced(value) and not np.isfinite(value).all():
            raise ValueError(f"{name} must be finite, got {_excerpt(np.asarray(value))}")


def check_times(t0: Any, t1: Any, h: Any) -> None:
    """h > 0, t1 > t0 and h <= t1 - t0, for scalars or lanes."""
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
    """Steps of size h that reach t1 or beyond, up to round-off in h and t1; elementwise. ValueError where too many."""
    with np.errstate(over="ignore"):
        ratio = (np.asarray(t1, np.float64) - t0) / h
    if not (ratio <= MOST).all():
        i = np.unravel_index(np.argmax(ratio), ratio.shape)
        of = f" of trajectory {i[0]}" if i else ""
        raise ValueError(
            f"h = {np.broadcast_to(h, ratio.shape)[i]:g}{of} makes {ratio[i]:.3g} steps from t0 to t1, but at most {MOST} "
            "(2^31 - 2) are possible: take a larger h, or compute the motion in parts"
        )
    steps = np.ceil(ratio - 4 * eps * (1 + ratio + np.abs(t0) / h))
    return np.maximum(1, steps).astype(int)


def check_restitution(e: Any) -> None:
    if not is_traced(e) and not ((e := np.asarray(e)) >= 0).all() & (e <= 1).all():
        raise ValueError(f"restitution must lie in [0, 1], got {_excerpt(np.asarray(e))}")


def check_problem(problem: Any) -> None:
    check_kind("problem", problem, Problem, "a jaximpact.Problem")


def split_restitution(problem: Problem, e: Any, dtype: Any) -> tuple[Problem, Any]:
    """The problem without its restitution, which becomes a number of the lane; a numeric mass in ``dtype``."""
    e = real_array("restitution", problem.restitution if e is None else e).astype(dtype)
    numbers = (0.0, None)
    if problem.mass is not None and not callable(problem.mass):
        numbers = (0.0, real_array("mass", problem.mass).astype(dtype))
    return Problem.tree_unflatten(problem.tree_flatten_with_keys()[1], numbers), e


def check_functions(problem: Problem, scheme: Scheme, q0: Array, v0: Array, t0: Array, e: Any, args: Any) -> None:
    """What the user's functions return has the right shape; the scheme covers the problem."""
    d = q0.shape[0]
    t = np.zeros((), q0.dtype)

    def shape_of(name: str, function: Callable, *operands: Any) -> tuple[int, ...]:
        name = getattr(function, "stated", name)  # of an energy, as the user wrote it
        found = outcome(name, array, function, *operands)
        if not jnp.issubdtype(found.dtype, jnp.floating):
            raise TypeError(f"{name} must return real numbers, got dtype {found.dtype}")
        return found.shape

    shape = shape_of("force(t, q, v, args)", problem.force, t, q0, v0, args)
    if shape != (d,):
        raise ValueError(f"force(t, q, v, args) must return shape ({d},) like q0, got {shape}")
    m = 0
    if problem.between is not None:
        problem.between.check(t, q0, args, lambda name, *call: outcome(name, arrays, *call))
    if problem.listed:
        check_listed(problem, scheme, e, d)
        m = problem.count(0.0, q0, args)
    elif problem.constraints is not None:
        shape = shape_of("constraints(t, q, args)", problem.constraints, t, q0, args)
        if len(shape) != 1:
            raise ValueError(
                f"constraints(t, q, args) must return shape (m,), got {shape}; for one gap return it in an array"
            )
        m = shape[0]
    if problem.mass is not None:
        callable_mass = callable(problem.mass)
        shape = shape_of("mass(q, args)", problem.mass, q0, args) if callable_mass else jnp.shape(problem.mass)
        blocks = len(shape) == 3 and shape[0] * shape[1] == d and shape[1] == shape[2]
        if shape not in ((), (d,), (d, d)) and not blocks:
            raise ValueError(
                f"mass must be a scalar or have shape ({d},), ({d}, {d}) or, block by block, (N, D, D) with N D = {d}, got {shape}"
            )
        if problem.between is not None:
            check_blocks(problem, shape, d)
    if problem.energy is not None:
        shape = shape_of("energy(t, q, v, args)", problem.energy, t, q0, v0, args)
        if shape != ():
            raise ValueError(f"energy(t, q, v, args) must return a scalar, got shape {shape}")
    problem.naming.check(d, m)
    scheme.check(problem, e, m)
    if jnp.ndim(e) > 1 or (jnp.ndim(e) == 1 and jnp.shape(e) != (m,)):
        raise ValueError(f"restitution must be one number or have shape ({m},), got shape {jnp.shape(e)}")


def check_listed(problem: Problem, scheme: Scheme, e: Any, d: int) -> None:
    """What is not covered where near pairs of bodies are listed."""
    dense = "; of few bodies give Bodies(lists=False), all pairs as constraints of one dense function"
    if not scheme.traits.lists:
        raise ValueError(
            f"{type(scheme).__name__} takes no list of near pairs: use Maury(), MoreauJean() or PaoliSchatzman(){dense}"
        )
    if jnp.ndim(e) > 0:
        raise ValueError(
            f"restitution must be one number, got shape {jnp.shape(e)}: listed contacts come and go{dense}"
        )
    if problem.contacts is not None:
        raise ValueError(f"contacts=...: contacts of a list of near pairs come and go, and have no names{dense}")


def check_blocks(problem: Problem, shape: tuple[int, ...], d: int) -> None:
    """The mass of bodies, of that shape: no matrix of all of them where near pairs are listed, and a block for each body."""
    number: int = problem.between.number  # type: ignore[union-attr, attr-defined]
    if problem.listed and len(shape) == 2:
        raise ValueError(
            f"mass has shape {shape}: of listed bodies give a number, a diagonal ({d},), or a block for each body, ({number}, {d // number}, "
            f"{d // number}): see bodies.block_mass; or Bodies(lists=False), of few bodies"
        )
    if len(shape) == 3 and shape[0] != number:
        raise ValueError(f"mass has {shape[0]} blocks, and there are {number} bodies: give one for each")


def outcome(name: str, read: Callable[[Any], Any], function: Callable, *operands: Any) -> Any:
    """Shapes and dtypes of what a function of the user's returns, see `shapes.returned`; or an error that names it and says how it failed."""
    try:
        return returned(read, function, *operands)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        hint = " (it must be traceable: jnp.where in place of if, jnp in place of np and math, no float())"
        raise retold(f"{name} failed on arguments of shapes {_shapes(operands)}{hint}", error) from error
    except Exception as error:
        missing = (
            " (args is None: give the numbers that it reads, args=...)"
            if operands[-1] is None and "NoneType" in str(error)
            else ""
        )
        raise retold(f"{name} failed on arguments of shapes {_shapes(operands)}{missing}", error) from error


def _shapes(operands: tuple) -> list:
    """Those of all but args."""
    return [np.shape(x) for x in operands[:-1]]


def retold(what: str, error: Exception) -> Exception:
    """An error of a user's function after what failed: a TypeError as one, any other as a ValueError."""
    kind = TypeError if isinstance(error, TypeError) else ValueError
    return kind(f"{what}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}")


@contextmanager
def told(name: str) -> Iterator[None]:
    """What a function of the user's raises, under its name."""
    try:
        yield
    except Exception as error:
        raise retold(f"{name} failed", error) from error


@contextmanager
def differentiable() -> Iterator[None]:
    """What jax says of functions that it cannot differentiate, in words that name them."""
    try:
        yield
    except (ValueError, TypeError, NotImplementedError) as error:
        text = (str(error).splitlines() or [""])[0]
        if "differentiat" not in text and "JVP" not in text:
            raise
        raise ValueError(
            "constraints(t, q, args), mass(q, args) and, for an implicit scheme, force(t, q, v, args) must be functions that jax "
            f"can differentiate (no pure_callback without a custom_jvp; lax.scan or a fori_loop of fixed length in place of lax.while_loop): {text}"
        ) from error


class Report(NamedTuple):
    """Facts about a start: gaps, gap velocities, which are closed, what holds of mass, Lagrangian and force."""

    gap: Array
    gap_velocity: Array
    closure: Closure
    positive: Array
    symmetric: Array
    lagrangian: Array
    finite: Array
    naming: Labels = UNNAMED
    bodies: Any = None


def start_report(problem: Problem, q0: Array, v0: Array, t0: Array, args: Any, h: Array | None = None) -> Report:
    metric, bodies, neighbours = Metric.at(problem, q0, args), None, problem.neighbours(t0, q0, args)
    near = problem.near(neighbours)
    if neighbours is not None:
        bodies = near.constraints.facts(t0, q0, args)  # type: ignore[union-attr]
    contacts = linearise(near, metric, t0, q0, args)
    gap_velocity = contacts.gap_velocity(v0)
    force = problem.generalised_force(t0, q0, v0, args)
    quadratic = jnp.array(True)
    matrix = metric.matrix
    if matrix is not None and matrix.ndim == 2:
        inertia = getattr(problem.force, "inertia", None)
        if inertia is not None and depends(inertia, (t0, q0, v0, args), on=(0, 2)):
            quadratic = _is_quadratic(inertia, q0, v0, t0, args)
    finite = jnp.all(jnp.isfinite(force))
    at = closure(contacts, gap_velocity, q0, v0, h, metric.solve(force))
    return Report(
        contacts.gap, gap_velocity, at, metric.positive(), metric.symmetric(), quadratic, finite, problem.naming, bodies
    )


def _is_quadratic(inertia: Callable, q: Array, v: Array, t: Array, args: Any) -> Array:
    """Whether d2L/dv2 is the same at another time and velocity, at a configuration (d,) and at one beside it, ().

    What is not finite there says nothing: a Lagrangian need not be defined beside its start.
    """
    d = q.shape[0]
    beside = q + (0.1 + 0.01 * jnp.arange(d, dtype=q.dtype)) * (1 + jnp.abs(q))
    mass = jax.vmap(lambda t, q, v: inertia(t, q, v, args))
    here, there = jnp.zeros_like(v), v + 1
    found = mass(jnp.stack([0 * t, t + 1] * 2), jnp.stack([q, q, beside, beside]), jnp.stack([here, there] * 2))
    known = jnp.where(jnp.isfinite(found), found, 0)
    small = 1e4 * jnp.finfo(q.dtype).eps * jnp.max(jnp.abs(known), axis=(1, 2), keepdims=True)
    return jnp.all(~(jnp.abs(found[1::2] - found[::2]) > small[::2]))


def refused(report: Report) -> np.ndarray:
    """Lanes whose start is not admissible or not finite, or has no positive definite mass."""
    bad = ~(report.positive & report.symmetric & report.finite)
    return np.asarray(bad | np.any(report.closure.violated | ~np.isfinite(report.gap), axis=1))


def is_fine(report: Report) -> bool:
    """Whether nothing is to be said of any lane."""
    at = report.closure
    right = report.positive.all() & report.symmetric.all() & report.lagrangian.all() & report.finite.all()
    return bool(right & np.isfinite(report.gap).all() & ~at.violated.any() & ~at.outward.any())


def judge(report: Report, *, lanes: bool) -> str | None:
    """Errors and remarks of a batch of start reports (leading axis: lanes)."""

    def worst(mask: Any, value: Any) -> tuple[int, int]:
        lane, constraint = np.unravel_index(np.argmin(np.where(mask, value, np.inf)), mask.shape)
        return int(lane), int(constraint)

    def which(i: int) -> str:
        return f" of trajectory {i}" if lanes else ""

    if not report.positive.all():
        i = int(np.argmin(report.positive))
        raise ValueError(
            f"mass is not positive definite (or not finite) at q0{which(i)}: check mass(q0, args), of a Lagrangian d2L/dv2"
        )
    if not report.symmetric.all():
        i = int(np.argmin(report.symmetric))
        raise ValueError(f"mass is not symmetric at q0{which(i)}: check mass(q0, args), of a Lagrangian d2L/dv2")
    if not report.lagrangian.all():
        raise ValueError(
            "lagrangian must be quadratic in v with a mass matrix independent of time: d2L/dv2 changes with t or v"
        )
    if not report.finite.all():
        i = int(np.argmin(report.finite))
        raise ValueError(f"force is not finite at t0, q0, v0{which(i)}: check force(t0, q0, v0, args)")
    if report.gap.size == 0:
        return None
    if report.bodies is not None:
        report.bodies.judge(np.asarray(report.closure.violated), np.asarray(report.gap), which)
    if not np.isfinite(report.gap).all():
        i = int(np.argmin(np.all(np.isfinite(report.gap), axis=1)))
        raise ValueError(f"constraints are not finite at q0{which(i)}: check constraints(t0, q0, args)")
    if report.closure.violated.any():
        i, a = worst(report.closure.violated, report.gap)
        raise ValueError(
            f"q0{which(i)} is not admissible: {report.naming.constraint(a)} has gap {report.gap[i, a]:.6g} < 0 at t0; move q0 by at least "
            "that much into the admissible set (every gap >= 0)"
        )
    if report.closure.outward.any():
        i, a = worst(report.closure.outward, report.gap_velocity)
        where = report.naming.constraint(a) if report.bodies is None else report.bodies.contact(i, a)
        return (
            f"v0{which(i)} points out of the admissible set: {where} is active and its gap would change at "
            f"{report.gap_velocity[i, a]:.6g}; v0 is projected onto the admissible velocities (an inelastic impact at t0)"
        )
    return None


def _excerpt(value: np.ndarray) -> str:
    return f"{value:g}" if value.ndim == 0 else np.array2string(value, threshold=6, precision=6)
