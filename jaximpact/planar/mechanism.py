"""What systems of bodies in the plane and in space have in common: checks of bodies and parts, names,
and the statement as a `Problem`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..jaxtools.argument_checks import short
from ..mechanics.coefficients import OfSpeed
from ..mechanics.problem import Problem
from ..mechanics.problem_parts import RestitutionLike
from .quantities import GROUND, value_at

OPTIONS = ("switches", "reset", "static_friction")  # of a problem, which a system hands on
Named = list[tuple[str, str]]  # names, each with its unit


class Kinds(NamedTuple):
    """Classes of the bodies and parts that a system takes, and words for messages: an ``example`` of bodies, what a
    body and a part must be."""

    body: type
    part: Any
    example: str
    body_is: str
    part_is: str


def check_system(bodies: object, parts: Any, kinds: Kinds) -> None:
    """Raises TypeError or ValueError if bodies are no mapping of them by names,
    or if a part is none or joins what is no body."""
    if not isinstance(bodies, Mapping) or not bodies:
        raise TypeError(f"bodies must be a dict of bodies by name, {kinds.example}, got {short(bodies)}")
    for name, body in bodies.items():
        if not isinstance(name, str) or not name or name == GROUND:
            raise ValueError(f"bodies: {name!r} is no name of a body: give a text other than {GROUND!r}")
        if not isinstance(body, kinds.body):
            raise TypeError(f"bodies[{name!r}] must be {kinds.body_is.format(short(body))}")
    names = [*bodies, GROUND]
    for i, part in enumerate(parts):
        if not isinstance(part, kinds.part):
            raise TypeError(f"parts[{i}] must be {kinds.part_is}, got {short(part)}")
        for body in (part.a, part.b):
            if body not in names:
                raise ValueError(
                    f"parts[{i}], {type(part).__name__}: {body!r} is no body; there are {', '.join(names)}"
                )
        if part.a == part.b:
            raise ValueError(f"parts[{i}], {type(part).__name__}: both bodies are {part.a!r}")


def check_options(options: dict) -> None:
    """Raises TypeError if ``options`` of a system's problem are not among those that it hands on."""
    unknown = [name for name in options if name not in OPTIONS]
    if unknown:
        raise TypeError(f"problem() takes restitution, {', '.join(OPTIONS[:-1])} and {OPTIONS[-1]}, not {unknown[0]!r}")


def state_problem(
    same: Any,
    restitution: RestitutionLike,
    coordinates: Named,
    gaps: Named,
    joints: Named,
    slip: Callable[[], Callable],
    options: dict,
    quaternions: tuple[int, ...] = (),
) -> Problem:
    """Makes the `Problem` of a system.

    Args:
        same: the system, whose methods are the functions of the problem.
        coordinates, gaps, joints: names and units; of several gaps or joints of one name each gets a number.
        slip: function that returns the function of slip velocities; it is called if there is friction.
        restitution, options, quaternions: as in `Problem`.
    """
    names = [name for name, _ in gaps + joints]
    numbered = [f"{x} {names[:i].count(x) + 1}" if names.count(x) > 1 else x for i, x in enumerate(names)]
    units = dict(coordinates) | dict(zip(numbered, (unit for _, unit in gaps + joints), strict=True))
    every = [mu for part in same.parts for mu in part.friction_coefficients]
    if any(every):
        friction: Any = (
            same.friction
            if any(callable(mu) for mu in every)
            else np.array(every, jax.dtypes.canonicalize_dtype(float))
        )
        friction = same.friction_at if any(isinstance(mu, OfSpeed) for mu in every) else friction
        options = options | {"slip": slip(), "friction": friction}
    return Problem(
        same.force,
        same.gaps if gaps else None,
        same.mass,
        restitution,
        same.energy,
        coordinates=[name for name, _ in coordinates],
        contacts=numbered[: len(gaps)] or None,
        joint_names=numbered[len(gaps) :] or None,
        units={name: unit for name, unit in units.items() if unit},
        quaternions=quaternions,
        joints=same.joints if joints else None,
        **options,
    )


def friction_of(parts: Sequence, args: object) -> Array:
    """Coefficients of friction (m,) of the contacts of all parts."""
    return jnp.stack([jnp.asarray(value_at(mu, args)) for part in parts for mu in part.friction_coefficients])


def friction_at_speeds(parts: Sequence, speeds: Array, args: object) -> Array:
    """Coefficients of friction (m,) of contacts with the slip ``speeds`` (m,)."""
    every = enumerate(mu for part in parts for mu in part.friction_coefficients)
    return jnp.stack(
        [jnp.asarray(mu(speeds[i], args) if isinstance(mu, OfSpeed) else value_at(mu, args)) for i, mu in every]
    )


def names_of_stop(stop: Any) -> Named:
    """Names of the gaps of a stop of angles, one for each bound that it has."""
    name = stop.name or f"{stop.a} against {stop.b}"
    sides = [side for side in ("low", "high") if getattr(stop, side) is not None]
    return [(f"{name} {side}" if len(sides) > 1 else name, "rad") for side in sides]


@lru_cache
def first_equal(system: Any) -> Any:
    """The first of all systems that equal this one.

    Problems of equal systems share its functions, and by them compiled programs, which jax looks up by the function.
    """
    return system
