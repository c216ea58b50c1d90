"""Restitution, friction and lane axes of the arguments of `ensemble` and `sensitivities`,
and checks of the starts of all lanes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from ..jaxtools.argument_checks import is_traced, real_array
from ..jaxtools.threads import make_executor, worker_count
from ..jaxtools.warnings import remark
from ..mechanics.motion import STATED
from ..mechanics.problem import Problem
from ..mechanics.scheme import Scheme
from ..mechanics.user_functions import differentiable
from .arguments import fit_joints, fit_room, has_good_start, start_reports
from .chunked_runs import largest_chunk
from .lanes import Lanes
from .start_report import StartReport, raise_or_warn


def refuse_traced(tree: object) -> None:
    """Raises TypeError under a jax transformation: dividing lanes into chunks needs known numbers."""
    if is_traced(tree):
        raise TypeError(
            "ensemble and sensitivities need known numbers, and cannot be called inside jax.jit, jax.vmap or jax.grad: "
            "use "
            "jax.vmap of solve there"
        )


def numbers_of_lanes(name: str, e: ArrayLike | None, m: int | None, lanes: int | None) -> Any:
    """Restitution ``e`` or coefficients of friction of a batched call, in one of their valid shapes: (N,) or (N, m) by
    lane, or (1, m) for all lanes.

    ``m``: number of contacts if there may be one number for each, else None; ``lanes``: number of lanes of the other
    arguments. A one-dimensional e is by lane, or by contact as in `solve` if its length
    differs from the number of lanes.

    Raises:
        ValueError: e could be by lane or by contact; (1, m) and (N, 1) are unambiguous.
    """
    e = real_array(STATED[name], e)
    if e.ndim == 2 and e.shape[1] == 1:
        return e[:, 0] if len(e) != 1 else e[0, 0]
    if e.ndim != 1 or m is None or m < 2 or len(e) != m:
        return e
    if lanes is None or lanes == m:
        raise ValueError(
            f"{name} has shape ({m},), which may be one number for each of {m} motions or for each of {m} contacts: "
            f"give shape (1, {m}), "
            f"{name}=[[...]], for contacts, ({m}, 1) for motions"
        )
    return e[None]


def is_shared(e: ArrayLike | None) -> bool:
    """Whether restitution or friction is the same for all lanes: one number, or (1, m)."""
    return e is None or np.ndim(e) == 0 or (np.ndim(e) == 2 and np.shape(e)[0] == 1)


def contacts_of(
    name: str, problem: Problem, q0: Array | np.ndarray, args: object, axes: object, scheme: Scheme
) -> int | None:
    """Number m of contacts if the scheme takes one restitution e or friction for each; None if it does not,
    or m is unknown.

    ``axes``: those of args, as `full_axes` returns them.
    """
    if problem.listed or (name == "e" and scheme.traits.restitution != "each"):
        return None
    if 0 in np.shape(q0):
        return None  # no lane at all, which is said elsewhere
    try:
        one = jax.tree.map(lambda x, axis: x if axis < 0 else x[0], args, axes)
        return problem.count(0.0, q0.reshape(-1, q0.shape[-1])[0], one)
    except (TypeError, ValueError, IndexError, KeyError, AttributeError):
        return None  # what is wrong with the functions is said where they are checked


def common_length(named: dict[str, tuple[Any, bool]], leaves: list) -> int:
    """Common length of all lane axes; ``named``: arguments by name, each with whether it has a lane axis; ``leaves``:
    those of args that have one."""
    sizes = {name: value.shape[0] for name, (value, carried) in named.items() if carried}
    for leaf in leaves:
        sizes["args"] = leaf.shape[0]
        if len(set(sizes.values())) > 1:
            break
    if not sizes:
        raise ValueError(
            f"no argument carries a lane axis: give q0, v0, t0, t1, h, {', '.join(STATED)} or (with args_axes) args "
            "one, or call solve"
        )
    if len(set(sizes.values())) > 1:
        raise ValueError(f"lane axes must have one length, got {sizes}")
    count = next(iter(sizes.values()))
    if count == 0:
        raise ValueError("the lane axis is empty: an ensemble needs at least one trajectory")
    return count


def advice_on_axes(args: object, axes: object, lanes: int) -> str:
    """Advice for a message if a leaf of args looks like one value per lane and args_axes does not say so."""
    paths = jax.tree_util.tree_leaves_with_path(args)
    for (path, leaf), axis in zip(paths, jax.tree.leaves(axes), strict=True):
        if axis < 0 and jnp.ndim(leaf) and leaf.shape[0] == lanes:
            where = "args" + jax.tree_util.keystr(path)
            return (
                f"; {where} has shape {leaf.shape}: if it holds one value for each trajectory, mark it 0 in args_axes"
            )
    return ""


def check_lanes(problem: Problem, lanes: Lanes) -> Problem:
    """Raises unless every lane has an admissible start and a positive definite mass.

    Returns the problem, with larger neighbour lists if the starts need them (`fit_room`), and with joints marked if
    rows depend on others at a start (`fit_joints`).
    """
    shortest, size = lanes.motion.h.min(), largest_chunk()

    def of_lanes(*one: Any) -> list:
        """Reports of the starts, or for each what ``one`` computes, of a chunk of lanes after the other."""

        def part(begin: int) -> object:
            some = lanes if lanes.count <= size else lanes.some(slice(begin, begin + size))
            with differentiable():
                found = start_reports(problem, some, shortest, *one)
            refuse_traced(found)
            return jax.tree.map(np.asarray, found)

        if lanes.count <= size:
            return [part(0)]
        with make_executor(worker_count(lanes.count), lanes.count) as pool:
            return [*pool.map(part, range(0, lanes.count, size))]

    # lists of bodies may have to be longer
    if not problem.listed and all(x.all() for x in of_lanes(has_good_start)):
        return problem
    report: StartReport = jax.tree.map(lambda *x: np.concatenate(x), *of_lanes())
    fitting = fit_room(problem, report)
    if fitting is not problem:
        return check_lanes(fitting, lanes)
    outward = raise_or_warn(report, lanes=True)
    if outward:
        remark(outward, stacklevel=4)
    return fit_joints(problem, report)
