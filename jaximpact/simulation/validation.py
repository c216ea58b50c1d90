"""Checks of a problem before a motion starts: shapes and types of its functions' results,
and whether the scheme can treat the problem.

These checks are made under jax transformations too, where values are unknown. Values are checked by `start_report`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import check_kind, is_traced
from ..jaxtools.jaxpr_tools import depends_on, moves_with
from ..jaxtools.shapes import as_array, as_array_tree, cached_by_types
from ..jaxtools.warnings import remark
from ..mechanics.coefficients import OfSpeed
from ..mechanics.motion import OF_FRICTION
from ..mechanics.problem import Problem
from ..mechanics.scheme import Scheme
from ..mechanics.user_functions import outcome


def check_problem(problem: Problem) -> None:
    check_kind("problem", problem, Problem, "a jaximpact.Problem")


def check_functions(problem: Problem, scheme: Scheme, q0: Array, v0: Array, t0: Array, e: Any, args: object) -> None:
    """Raises if a function of the problem returns a wrong shape or type, or the scheme cannot treat the problem."""
    d = q0.shape[0]
    t = np.zeros((), q0.dtype)

    def shape_of(name: str, function: Callable, *operands: object) -> tuple[int, ...]:
        name = getattr(function, "stated", name)  # of an energy, as the user wrote it
        found = outcome(name, as_array, function, *operands)
        if not jnp.issubdtype(found.dtype, jnp.floating):
            raise TypeError(f"{name} must return real numbers, got dtype {found.dtype}")
        return found.shape

    shape = shape_of("force(t, q, v, args)", problem.force, t, q0, v0, args)
    if shape != (d,):
        raise ValueError(f"force(t, q, v, args) must return shape ({d},) like q0, got {shape}")
    problem.gaps.check(problem, scheme, e, q0, args, shape_of)
    m = problem.count(0.0, q0, args)
    for name, check in CHECKS.items():
        if getattr(problem, name) is not None:
            check(problem, scheme, shape_of, m, q0, v0, args)
    if callable(problem.restitution):
        check_restitution_function(problem, scheme, shape_of, m, q0, args)
    problem.naming.check(d, m, problem.joint_count(np.zeros((), q0.dtype), q0, args))
    scheme.check(problem, e, m)
    if jnp.ndim(e) > 1 or (jnp.ndim(e) == 1 and jnp.shape(e) != (m,)):
        raise ValueError(f"restitution must be one number or have shape ({m},), got shape {jnp.shape(e)}")


def check_mass(
    problem: Problem, scheme: Scheme, shape_of: Callable, m: int, q0: Array, v0: Array, args: object
) -> None:
    """Raises if the mass has a wrong shape; ``shape_of(name, function, *operands)``: shape that a user's function
    returns; m: number of contacts."""
    d, callable_mass = q0.shape[0], callable(problem.mass)
    shape = shape_of("mass(q, args)", problem.mass, q0, args) if callable_mass else jnp.shape(problem.mass)
    blocks = len(shape) == 3 and shape[0] * shape[1] == d and shape[1] == shape[2]
    if shape not in ((), (d,), (d, d)) and not blocks:
        raise ValueError(
            f"mass must be a scalar or have shape ({d},), ({d}, {d}) or, block by block, (N, D, D) with N D = {d}, got "
            f"{shape}"
        )
    problem.gaps.check_mass(shape, d)
    if callable_mass and not getattr(problem.force, "derived_from_mass", False):
        remark_on_velocity_terms(problem, np.zeros((), q0.dtype), q0, v0, args)


def remark_on_velocity_terms(problem: Problem, t: ArrayLike, q: Array, v: Array, args: object) -> None:
    """Issues a remark if the mass, a function, depends on q, and the force has no terms quadratic in v: Coriolis and
    centrifugal terms are missing."""
    if not _is_curved(problem.force, t, q, v, args) and _mass_varies(problem.mass, q, args):
        remark(
            "mass(q, args) depends on q, and force(t, q, v, args) has no terms quadratic in v: Coriolis and "
            "centrifugal forces are missing. "
            "Problem.from_potential and Problem.from_lagrangian derive them; Problem takes a force that contains them",
            stacklevel=2,
        )


@cached_by_types
def _mass_varies(mass: Callable, q: Array, args: object) -> bool:
    """Whether a mass(q, args) changes with q, other than by jumps, and not only in writing, as 0 * q does: with every
    number of args 1 it is compared at two places, and numbers that are not finite count as changed."""
    if not moves_with(mass, (q, args), on=(0,)):
        return False
    ones = jax.tree.map(lambda x: np.ones(jnp.shape(x), jnp.result_type(x)), args)
    with jax.ensure_compile_time_eval():
        here, there = (np.asarray(mass(jnp.asarray(x + np.arange(q.size) / 8, q.dtype), ones)) for x in (0.3, 0.7))
    return not np.array_equal(here, there)


@cached_by_types
def _is_curved(force: Callable, t: ArrayLike, q: Array, v: Array, args: object) -> bool:
    """Whether a force(t, q, v, args) is not affine in v; if jax has no derivative of it, whether it depends on v."""
    slope = lambda v, along: jax.jvp(lambda v: jnp.asarray(force(t, q, v, args), q.dtype), (v,), (along,))[1]
    try:
        return depends_on(slope, (v, v), on=(0,))
    except (TypeError, ValueError, NotImplementedError):
        return depends_on(force, (t, q, v, args), on=(2,))


def check_joints(problem: Problem, shape_of: Callable, q0: Array, args: object) -> None:
    """Raises if the joints have a wrong shape; ``shape_of`` as in `check_mass`."""
    shape = shape_of("joints(t, q, args)", problem.joints, np.zeros((), q0.dtype), q0, args)
    if len(shape) != 1 or shape[0] == 0:
        raise ValueError(
            f"joints(t, q, args) must return shape (j,), got {shape}; return one equation in an array, and for none "
            "leave joints out"
        )


def check_kept_joints(
    problem: Problem, scheme: Scheme, shape_of: Callable, m: int, q0: Array, v0: Array, args: object
) -> None:
    """Raises if the joints have a wrong shape or the scheme takes none; arguments as of `check_mass`."""
    check_joints(problem, shape_of, q0, args)
    if not scheme.traits.joints:
        raise ValueError(
            f"{type(scheme).__name__} takes no joints: use MoreauJean(), EventCorrected() or EventDriven(), or "
            "coordinates that satisfy them"
        )


def check_energy(
    problem: Problem, scheme: Scheme, shape_of: Callable, m: int, q0: Array, v0: Array, args: object
) -> None:
    """Raises if the energy is no number; arguments as of `check_mass`."""
    shape = shape_of("energy(t, q, v, args)", problem.energy, np.zeros((), q0.dtype), q0, v0, args)
    if shape != ():
        raise ValueError(f"energy(t, q, v, args) must return a scalar, got shape {shape}")


def without_empty_gaps(problem: Problem, q0: Array, args: object) -> Problem:
    """Returns the problem, stated without constraints where their function returns none, (0,): only then steps and
    derivatives ask for no contact."""
    empty = problem.count(0.0, q0, args) == 0
    return problem.replace(constraints=None) if problem.constraints and empty else problem


def check_friction(
    problem: Problem, scheme: Scheme, shape_of: Callable, m: int, q0: Array, v0: Array, args: object
) -> None:
    """Raises if slip or the coefficients of friction have a wrong shape or value, or the scheme has no friction.

    Arguments as of `check_mass`.
    """
    t, stated = np.zeros((), q0.dtype), "slip(t, q, v, args)"
    if m == 0:
        raise ValueError(
            "friction acts at contacts, and constraints(t, q, args) returns none, (0,): leave slip and friction out"
        )
    slip = problem.sampled("slip")
    found = outcome(stated, as_array_tree, slip, t, q0, v0, args)
    if isinstance(found, tuple):
        if len(found) != 2 or jnp.shape(found[0]) != (m,):
            raise ValueError(
                f"{stated} must return tangential velocities, or (normal, tangential) with normal velocities of shape "
                f"({m},), got {len(found)} entries "
                f"of shapes {[jnp.shape(x) for x in found]}"
            )
        tangential = lambda *at: slip(*at)[1]
        shape_of(stated, lambda *at: slip(*at)[0], t, q0, v0, args)
    else:
        tangential = slip
    shape = shape_of(stated, tangential, t, q0, v0, args)
    if not problem.listed and shape not in ((m,), *((m, k) for k in range(1, 6))):
        raise ValueError(
            f"{stated} must return one velocity for each of {m} contacts, ({m},), or ({m}, 2) in space, with up to "
            "three more columns for drilling and "
            f"rolling, got {shape}"
        )
    velocities = lambda v: jax.tree.map(lambda x: jnp.asarray(x, q0.dtype), slip(t, q0, v, args))
    slopes = lambda v, along: jax.jvp(velocities, (v,), (along,))[1]
    if depends_on(slopes, (v0, v0), on=(0,)):
        raise ValueError(
            f"{stated} must be affine in v: a velocity of one body against the other, without squares, norms or "
            "branches of v"
        )
    if not scheme.traits.friction:
        name = type(scheme).__name__
        why = "its theory has no friction" if scheme.traits.restitution == "one" else "it does not know friction"
        others = "MoreauJean()" if problem.listed else "MoreauJean(), or EventDriven() for few contacts"
        raise ValueError(f"{name} takes no friction, as {why}: use {others}")
    if len(shape) == 2 and shape[1] > scheme.traits.friction:
        raise ValueError(
            f"{type(scheme).__name__} takes at most {scheme.traits.friction} columns of slip at a contact, and "
            f"{stated} gives {shape[1]}: use "
            f"{'EventDriven() or ' if shape[1] <= 2 else ''}MoreauJean(), with a step h"
        )
    for name in OF_FRICTION:
        given = getattr(problem, name)
        if isinstance(given, OfSpeed):
            check_friction_of_speed(given, shape_of, m, q0.dtype, args)
        elif given is not None:
            check_coefficients_of(name, given, shape_of, m, args)


def check_coefficients_of(name: str, friction: Any, shape_of: Callable, m: int, args: object) -> None:
    """Raises if coefficients of friction, a number, numbers or a function of args, have a wrong shape or value.

    ``shape_of``: as in `check_mass`; m: number of contacts; ``name``: argument to be named in messages.
    """
    if callable(friction):
        shape = shape_of(f"{name}(args)", friction, args)
    else:
        shape = jnp.shape(friction)
        if not is_traced(friction) and not np.all((np.asarray(friction) >= 0) & np.isfinite(np.asarray(friction))):
            raise ValueError(f"{name} must be finite and >= 0, got {friction}")
    if shape not in ((), (m,)):
        raise ValueError(f"{name} must be one number or one per contact, shape ({m},), got shape {shape}")


def check_friction_of_speed(friction: OfSpeed, shape_of: Callable, m: int, dtype: np.dtype, args: object) -> None:
    """Raises if a coefficient of friction that depends on the slip speed has a wrong shape, arguments as of
    `check_coefficients_of`."""
    stated, rest = "friction(s, args)", np.zeros(max(m, 1), dtype)
    shape = shape_of(stated, friction, rest, args)
    if shape not in ((), rest.shape):
        raise ValueError(
            f"{stated} must return one number or one per contact, ({m},) as the slip speeds s, got shape {shape}"
        )


def check_restitution_function(
    problem: Problem, scheme: Scheme, shape_of: Callable, m: int, q0: Array, args: object
) -> None:
    """Raises if a restitution that is a function has a wrong shape, or the scheme takes only numbers.

    ``shape_of``: as in `check_mass`.
    """
    if not scheme.traits.approach:
        raise ValueError(
            f"restitution is a function of the approach speed, and {type(scheme).__name__} takes numbers: use "
            "MoreauJean(), EventCorrected() or "
            "EventDriven()"
        )
    if m == 0:
        return
    shape = shape_of("restitution(w, args)", problem.restitution, np.ones(m, q0.dtype), args)
    if shape not in ((), (m,)):
        raise ValueError(
            f"restitution(w, args) must return one number or one per contact, ({m},) as the approach speeds w, got "
            f"shape {shape}"
        )


def check_switches(
    problem: Problem, scheme: Scheme, shape_of: Callable, m: int, q0: Array, v0: Array, args: object
) -> None:
    """Raises if stated switches or their reset have a wrong shape, or the scheme makes no resets;
    arguments as of `check_mass`."""
    t, stated = np.zeros((), q0.dtype), "switches(t, q, v, args)"
    shape = shape_of(stated, problem.switches, t, q0, v0, args)
    if len(shape) != 1 or shape[0] == 0:
        raise ValueError(
            f"{stated} must return shape (k,), got {shape}; return one surface in an array, and for none leave "
            "switches out"
        )
    if not depends_on(lambda *at: problem.switch_values(*at), (t, q0, v0, args), on=(0, 1, 2)):
        raise ValueError(f"{stated} must depend on t, q or v: a constant is no surface")
    if problem.reset is None:
        return
    if not scheme.traits.resets:
        raise ValueError(
            f"{type(scheme).__name__} makes no resets: use EventDriven() or EventCorrected(), which locate their "
            "times, or state one that is an impact as a "
            "constraint with restitution"
        )
    if problem.jointed:
        raise ValueError(
            "reset: not with joints, which the state behind it might break; use coordinates that satisfy them"
        )
    d, name = q0.shape[0], "reset(t, q, v, k, args)"
    for k in range(shape[0]):
        behind = partial(_reset_at, problem, k)
        found = outcome(name, as_array_tree, behind, t, q0, v0, args)
        parts = found if isinstance(found, tuple) else (found,)
        shapes = [getattr(x, "shape", None) for x in parts]
        if len(parts) not in (1, 2) or any(x != (d,) for x in shapes):
            of = shapes[0] if len(parts) == 1 else tuple(shapes)
            raise ValueError(f"{name} must return v or (q, v), each of shape ({d},), got {of} at k = {k}")


def _reset_at(problem: Problem, k: int, t: ArrayLike, q: Array, v: Array, args: object) -> Any:
    """Calls the reset of surface k; returns its result unchecked."""
    return cast(Callable, problem.reset)(t, q, v, k, args)


def check_noise(
    problem: Problem, scheme: Scheme, shape_of: Callable, m: int, q0: Array, v0: Array, args: object
) -> None:
    """Raises if the noise has a wrong shape or the scheme takes none; arguments as of `check_mass`."""
    d, stated = q0.shape[0], "noise(t, q, v, args)"
    shape = shape_of(stated, problem.noise, np.zeros((), q0.dtype), q0, v0, args)
    if len(shape) != 2 or shape[0] != d or shape[1] == 0:
        raise ValueError(
            f"{stated} must return sigma of shape ({d}, r), a column for each of r white forces, got {shape}"
        )


# of what a problem may have, in the order in which it is looked at
CHECKS: dict[str, Callable[..., None]] = {
    "mass": check_mass,
    "joints": check_kept_joints,
    "slip": check_friction,
    "switches": check_switches,
    "energy": check_energy,
    "noise": check_noise,
}
