"""Checks of bodies before a motion starts, made of the shapes of their functions' results."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from ..jaxtools.shapes import PyTree, as_array_tree
from ..mechanics.coefficients import OfSpeed
from ..mechanics.motion import OF_FRICTION
from ..mechanics.user_functions import outcome as user_outcome

if TYPE_CHECKING:
    from ..mechanics.problem import Problem
    from ..mechanics.scheme import Scheme
    from .statement import Bodies


def check_bodies(
    bodies: Bodies, problem: Problem, scheme: Scheme, e: ArrayLike, q: Array, args: object, shape_of: Callable
) -> None:
    """Raises ValueError or TypeError if ``bodies`` do not fit the call; arguments as of `Gaps.check`.

    Checked are the shapes of their functions against the coordinates, and whether the scheme and the
    problem allow lists of near pairs.
    """
    t, outcome = np.zeros((), q.dtype), lambda name, *call: user_outcome(name, as_array_tree, *call)
    D = bodies.dimension(q)
    _check_images(bodies)
    one = jax.ShapeDtypeStruct((D,), q.dtype)
    own = args
    if bodies.each is not None:
        own = outcome("Bodies(each=...): each(t, args)", bodies.each, t, args)
        for x in jax.tree.leaves(own):
            if x.ndim == 0 or x.shape[0] != bodies.number:
                raise ValueError(
                    f"Bodies(each=...) must return arrays with a leading axis of {bodies.number} bodies, got shape "
                    f"{x.shape}"
                )
        own = of_one(own)
    found = outcome("Bodies(gap=...): gap(q_i, q_j, a_i, a_j)", bodies.gap, one, one, own, own)
    if getattr(found, "shape", None) != ():
        raise ValueError(f"gap(q_i, q_j, a_i, a_j) must return one number, got shape {getattr(found, 'shape', found)}")
    if not jnp.issubdtype(found.dtype, jnp.floating):
        raise TypeError(f"gap(q_i, q_j, a_i, a_j) must return a real number, got dtype {found.dtype}")
    if bodies.obstacles is not None:
        found = outcome("Bodies(obstacles=...): obstacles(t, q_i, a_i)", bodies.obstacles, t, one, own)
        if len(getattr(found, "shape", ())) != 1:
            raise ValueError(f"obstacles(t, q_i, a_i) must return shape (k,), got {getattr(found, 'shape', found)}")
    if bodies.slip is not None:
        _check_slip(bodies, t, one, own, None if bodies.obstacles is None else found.shape[0], outcome)
    if callable(bodies.reach):
        found = outcome("Bodies(reach=...): reach(t, args)", bodies.reach, t, args)
        if getattr(found, "shape", None) != ():
            raise ValueError(f"reach(t, args) must return one number, got shape {getattr(found, 'shape', found)}")
    if bodies.listed:
        check_listed(problem, scheme, e, args, shape_of)


def _check_slip(
    bodies: Bodies, t: ArrayLike, one: jax.ShapeDtypeStruct, own: object, walls: int | None, outcome: Callable
) -> None:
    """Raises ValueError or TypeError unless slip velocities of two bodies, and of a body against its obstacles, have
    equal numbers k of tangents.

    ``one`` and ``own``: coordinates and parameters of one body; ``walls``: its number of obstacles; ``outcome``:
    as in `check_bodies`.
    """
    stated = "slip(q_i, q_j, v_i, v_j, a_i, a_j)"
    found = outcome(f"Bodies(slip=...): {stated}", bodies.slip, one, one, one, one, own, own)
    shape = getattr(found, "shape", None)
    if shape not in ((), (1,), (2,)):
        raise ValueError(f"{stated} must return shape (k,), k = 1 in the plane and 2 in space, got {shape or found}")
    if bodies.obstacle_slip is not None:
        stated, k = "obstacle_slip(t, q_i, v_i, a_i)", (shape or (1,))[0]
        found = outcome(f"Bodies(obstacle_slip=...): {stated}", bodies.obstacle_slip, t, one, one, own)
        shape = getattr(found, "shape", None)
        if shape != (walls, k) and not (k == 1 and shape == (walls,)):
            raise ValueError(f"{stated} must return shape ({walls}, {k}) as obstacles and slip say, got {shape}")


def _check_images(bodies: Bodies) -> None:
    """Raises ValueError if a body could touch another one and its periodic image,
    which dense constraints do not cover."""
    period = min((x for x in bodies.box or () if x is not None), default=np.inf)
    if not (bodies.listed or callable(bodies.reach)) and period < 2 * bodies.reach:
        raise ValueError(
            f"Bodies(box=...): a period of {period:.6g} is shorter than twice the reach, {bodies.reach:.6g}: a body "
            "would meet others "
            "from both sides; take a longer box"
        )


def check_listed(problem: Problem, scheme: Scheme, e: ArrayLike, args: object, shape_of: Callable) -> None:
    """Raises if the scheme takes no listed bodies, or the problem or the restitution ``e`` has features that listed
    bodies do not support."""
    dense = "; of few bodies give Bodies(lists=False), all pairs as constraints of one dense function"
    if not scheme.traits.lists:
        raise ValueError(
            f"{type(scheme).__name__} takes no list of near pairs: use Maury(), MoreauJean() or PaoliSchatzman(){dense}"
        )
    if jnp.ndim(e) > 0:
        raise ValueError(
            f"restitution must be one number, got shape {jnp.shape(e)}: listed contacts come and go{dense}"
        )
    for name in OF_FRICTION:
        mu = getattr(problem, name)
        if callable(mu):
            if not isinstance(mu, OfSpeed) and shape_of(f"{name}(args)", mu, args) != ():
                raise ValueError(f"{name}(args) must return one number: listed contacts come and go")
        elif np.ndim(mu) > 0:
            raise ValueError(
                f"{name} must be one number, got shape {jnp.shape(mu)}: listed contacts come and go{dense}"
            )
    if problem.contacts is not None:
        raise ValueError(f"contacts=...: contacts of a list of near pairs come and go, and have no names{dense}")


def check_blocks(bodies: Bodies, shape: tuple[int, ...], d: int) -> None:
    """Raises if the mass of bodies has blocks (N, D, D) whose number is not that of the bodies, or if listed bodies
    have a full matrix (d, d)."""
    number: int = bodies.number
    if bodies.listed and len(shape) == 2:
        raise ValueError(
            f"mass has shape {shape}: of listed bodies give a number, a diagonal ({d},), or a block for each body, "
            f"({number}, {d // number}, "
            f"{d // number}): see bodies.block_mass; or Bodies(lists=False), of few bodies"
        )
    if len(shape) == 3 and shape[0] != number:
        raise ValueError(f"mass has {shape[0]} blocks, and there are {number} bodies: give one for each")


def of_one(every: PyTree) -> PyTree:
    """Shapes of one body's parameters, from those of all bodies."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), every)
