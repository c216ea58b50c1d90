"""Conversion of the arguments of `ensemble` and `sensitivities` to a `Program` with `Lanes`; errors say what to do."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..jaxtools.argument_checks import check_counts, check_memory, is_traced, real_array
from ..jaxtools.threads import make_executor, refuse_fork, worker_count
from ..jaxtools.warnings import remark, remarks_so_far
from ..mechanics.contact.solver import ContactSolver
from ..mechanics.motion import Motion
from ..mechanics.problem import Problem
from ..mechanics.scheme import Scheme
from ..mechanics.user_functions import differentiable
from ..results.save import Save
from . import known_calls
from .arguments import (
    OF_FRICTION,
    STATED,
    check_step,
    check_until,
    choose_grid,
    choose_methods,
    fit_joints,
    fit_room,
    has_good_start,
    start_reports,
)
from .canonical_arrays import (
    canonical_state,
    cast_numbers,
    check_coefficients,
    check_finite,
    check_restitution,
    check_times,
    count_steps,
    leaf_axes,
    split_friction,
    split_restitution,
)
from .chunked_runs import FEWER_ROWS, largest_chunk
from .lanes import Lanes
from .program import Program
from .start_report import StartReport, raise_or_warn
from .validation import check_functions, check_problem, without_empty_gaps


def for_lanes(
    problem: Problem,
    q0: Any,
    v0: Any,
    t0: Any,
    t1: Any,
    h: Any,
    e: Any,
    args: Any,
    args_axes: Any,
    scheme: Scheme | None,
    projection: ContactSolver | None,
    save: Any,
    chunk: int | None,
    steps: int | None = None,
    until: Any = None,
    friction: Any = None,
    static_friction: Any = None,
) -> tuple[Program, Lanes]:
    """Checks and converts the arguments of `ensemble`; returns the `Program` and the `Lanes`."""
    refuse_fork()
    of_contacts = {"e": e, "friction": friction, "static_friction": static_friction}
    others = problem, t0, t1, h, of_contacts, args_axes, save, chunk, steps
    refuse_traced((q0, v0, args, others))
    key = None if until is not None else known_calls.key_of(q0, v0, args, (scheme, projection), *others)
    if (found := known_calls.find(key)) is not None:
        program, lanes, size = found
        q0, v0, args = _states_and_args(q0, v0, args)
        lanes = Lanes(lanes.motion._replace(q0=q0, v0=v0, args=args), lanes.axes, lanes.count, lanes.seen)
        problem = check_lanes(program.problem, lanes)
    else:
        before = remarks_so_far()
        save = Save.of(save)
        scheme, projection = choose_methods(scheme, projection, problem)
        steps = choose_grid(scheme, save, h, steps, t0, t1)
        check_step(h, steps)
        if steps is not None:
            h = (np.asarray(real_array("t1", t1)) - np.asarray(real_array("t0", t0))) / steps
        stated, lanes = _canonical_lanes(problem, q0, v0, t0, t1, h, args, args_axes, scheme, of_contacts)
        # round-off in h must not make a step more
        lanes = lanes if steps is None else lanes.with_steps(steps)
        problem = check_lanes(stated, lanes)
        if chunk is not None:
            check_counts(chunk=chunk)
        if save.every is not None and np.ndim(lanes.motion.steps):
            raise ValueError(
                "save: every k-th step gives lanes of different numbers of steps different numbers of rows; give times, or 'final'"
            )
        until = check_until(until, problem, lanes.first)
        program = Program.of(problem, scheme, projection, save, lanes.motion, until)
        one = lanes.first
        size = program.row_size(one, problem.count(one.t0, one.q0, one.args))
        if problem is stated and remarks_so_far() == before:  # which are made in each call
            known_calls.keep(key, program, lanes, size)
    rows = program.rows + 1
    check_memory(
        float(lanes.count) * rows * size, f"save: the result of {lanes.count} motions with {rows} rows each", FEWER_ROWS
    )
    return program if problem is program.problem else program.replace(problem=problem), lanes


def _states_and_args(q0: Any, v0: Any, args: Any) -> tuple[Any, Any, Any]:
    """States and args as arrays of one dtype, and finite."""
    q0, v0 = canonical_state(q0, v0)
    args = cast_numbers("args", args, q0.dtype)
    check_finite(q0=q0, v0=v0)
    return q0, v0, args


def refuse_traced(tree: Any) -> None:
    """Raises TypeError under a jax transformation: dividing lanes into chunks needs known numbers."""
    if is_traced(tree):
        raise TypeError(
            "ensemble and sensitivities need known numbers, and cannot be called inside jax.jit, jax.vmap or jax.grad: use "
            "jax.vmap of solve there"
        )


def is_single(args_axes: Any, *ranked: tuple[Any, int]) -> bool:
    """Whether no argument carries a lane axis; ``ranked`` are pairs (value, its rank without a lane axis)."""
    carried = [axis is not None for axis in jax.tree.leaves(args_axes, is_leaf=lambda x: x is None)]
    try:
        return not any(carried) and all(callable(x) or x is None or np.ndim(x) <= rank for x, rank in ranked)
    except ValueError:  # rows of different lengths
        return False


def numbers_of_lanes(name: str, e: Any, m: int | None, lanes: int | None) -> Any:
    """Restitution ``e`` or coefficients of friction of a batched call, in one of their valid shapes: (N,) or (N, m) by lane, or (1, m) for all lanes.

    ``m``: number of contacts if there may be one number for each, else None; ``lanes``: number of lanes of the other arguments. A
    one-dimensional e is by lane, or by contact as in `solve` if its length differs from the number of lanes.

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
            f"{name} has shape ({m},), which may be one number for each of {m} motions or for each of {m} contacts: give shape (1, {m}), "
            f"{name}=[[...]], for contacts, ({m}, 1) for motions"
        )
    return e[None]


def numbers_of_one(name: str, problem: Problem, q0: Any, args: Any, e: Any, scheme: Scheme | None) -> Any:
    """Restitution or coefficients of friction ``e`` in a valid shape for lanes, if no other argument has a lane axis.

    Shape (m,), with m contacts, is one number for each contact, as in `solve`, and becomes (1, m); every other ``e`` is returned as it is. ``name``:
    "e", "friction" or "static_friction".
    """
    if isinstance(e, list | tuple):
        e = real_array(STATED[name], e)  # refuses rows of several lengths
    if e is None or callable(e) or np.ndim(e) != 1 or len(e) < 2:
        return e
    check_problem(problem)
    q0, e, scheme = real_array("q0", q0), real_array(STATED[name], e), choose_methods(scheme, None, problem)[0]
    args = cast_numbers("args", args, q0.dtype)
    axes = (None,) * len(jax.tree.leaves(args))
    return e[None] if len(e) == contacts_of(name, problem, q0, args, axes, scheme) else e


def is_shared(e: Any) -> bool:
    """Whether restitution or friction is the same for all lanes: one number, or (1, m)."""
    return e is None or np.ndim(e) == 0 or (np.ndim(e) == 2 and np.shape(e)[0] == 1)


def contacts_of(name: str, problem: Problem, q0: Any, args: Any, args_axes: tuple, scheme: Scheme) -> int | None:
    """Number m of contacts if the scheme takes one restitution e or friction for each; None if it does not, or m is unknown."""
    if problem.listed or (name == "e" and scheme.traits.restitution != "each"):
        return None
    leaves, structure = jax.tree.flatten(args)
    some = [x if axis is None else x[0] for x, axis in zip(leaves, args_axes, strict=True) if axis is None or len(x)]
    if len(some) < len(leaves) or 0 in np.shape(q0):
        return None  # no lane at all, which is said elsewhere
    try:
        return problem.count(0.0, q0.reshape(-1, q0.shape[-1])[0], jax.tree.unflatten(structure, some))
    except (TypeError, ValueError, IndexError, KeyError, AttributeError):
        return None  # what is wrong with the functions is said where they are checked


def _canonical_lanes(
    problem: Problem,
    q0: Any,
    v0: Any,
    t0: Any,
    t1: Any,
    h: Any,
    args: Any,
    args_axes: Any,
    scheme: Scheme,
    of_contacts: dict[str, Any],
) -> tuple[Problem, Lanes]:
    """Converts arguments of many motions to arrays of one dtype, and checks them.

    ``of_contacts``: restitution and friction by name. Returns the problem without them, and the `Lanes`.
    """
    check_problem(problem)
    q0, v0 = canonical_state(q0, v0)
    for name, value in {"q0": q0, "v0": v0}.items():
        if value.ndim not in (1, 2) or value.shape[-1] == 0:
            raise ValueError(f"{name} must have shape (d,) or (B, d), got {value.shape}")
    if q0.shape[-1] != v0.shape[-1]:
        raise ValueError(f"q0 and v0 must have the same d, got shapes {q0.shape} and {v0.shape}")
    dtype = q0.dtype
    t0, t1, h = (real_array(name, x).astype(dtype) for name, x in {"t0": t0, "t1": t1, "h": h}.items())
    for name, value in {"t0": t0, "t1": t1, "h": h}.items():
        if value.ndim > 1:
            raise ValueError(f"{name} must be a number or have shape (B,), got {value.shape}")
    args = cast_numbers("args", args, dtype)
    leaves, args_axes = jax.tree.leaves(args), leaf_axes(args, args_axes)
    named = {
        "q0": (q0, q0.ndim == 2),
        "v0": (v0, v0.ndim == 2),
        "t0": (t0, t0.ndim),
        "t1": (t1, t1.ndim),
        "h": (h, h.ndim),
    }
    for name, given in of_contacts.items():
        own = given is None  # the problem's numbers have no lane axis
        if not own:
            others = [value for value, carried in named.values() if carried]
            others += [x for x, axis in zip(leaves, args_axes, strict=True) if axis == 0]
            m = contacts_of(name, problem, q0, args, args_axes, scheme)
            given = numbers_of_lanes(name, given, m, others[0].shape[0] if others else None)
        shared = own or is_shared(given)
        split: Any = split_restitution if name == "e" else partial(split_friction, name=name)
        problem, number = split(problem, given, dtype)
        number = number[0] if not own and number.ndim == 2 and number.shape[0] == 1 else number
        if number is not None:
            named[name] = (number, not shared)
    e, of_lane = named["e"]
    rubs = {name: named.get(name, (None,))[0] for name in OF_FRICTION}
    count = _common_length(named, leaves, args_axes)
    check_finite(q0=q0, v0=v0)
    check_times(t0, t1, h)
    check_restitution(e)
    for name, mu in rubs.items():
        check_coefficients(mu, name)
    eps = float(jnp.finfo(dtype).eps)
    begin, end, step = (np.asarray(x, np.float64) for x in (t0, t1, h))
    steps = np.asarray(count_steps(begin, end, step, eps), np.int32)
    if steps.ndim and (steps == steps[0]).all():
        steps = steps[0]
    axes = [0 if carried else None for _, carried in named.values()]
    axes = [*axes[:5], 0 if steps.ndim else None, axes[5], *args_axes, *axes[6:]]
    lanes = Lanes(Motion(q0, v0, t0, t1, h, steps, e, args, **rubs), tuple(axes), count)
    one = lanes.first
    try:
        check_functions(one.stated_in(problem), scheme, one.q0, one.v0, one.t0, one.e, one.args)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{error}{_lane_like(args, args_axes, count)}") from error
    if of_lane:
        for value in np.unique(np.asarray(e), axis=0)[[0, -1]]:
            scheme.check(problem, value, e.shape[-1] if e.ndim == 2 else 0)
    return without_empty_gaps(problem, one.q0, one.args), lanes


def _common_length(named: dict[str, tuple[Any, Any]], leaves: list, args_axes: tuple) -> int:
    """Common length of all lane axes; ``named``: arguments by name, each with whether it has a lane axis."""
    sizes = {name: value.shape[0] for name, (value, carried) in named.items() if carried}
    for leaf, axis in zip(leaves, args_axes, strict=True):
        if axis == 0:
            sizes["args"] = leaf.shape[0]
            if len({leaf.shape[0], *sizes.values()}) > 1:
                break
    if not sizes:
        raise ValueError(
            "no argument carries a lane axis: give q0, v0, t0, t1, h, e, friction, static_friction or (with args_axes) args one, or call solve"
        )
    if len(set(sizes.values())) > 1:
        raise ValueError(f"lane axes must have one length, got {sizes}")
    count = next(iter(sizes.values()))
    if count == 0:
        raise ValueError("the lane axis is empty: an ensemble needs at least one trajectory")
    return count


def _lane_like(args: Any, args_axes: tuple, lanes: int) -> str:
    """Advice for a message if a leaf of args looks like one value per lane and args_axes does not say so."""
    paths = jax.tree_util.tree_leaves_with_path(args)
    for (path, leaf), axis in zip(paths, args_axes, strict=True):
        if axis is None and jnp.ndim(leaf) and leaf.shape[0] == lanes:
            where = "args" + jax.tree_util.keystr(path)
            return (
                f"; {where} has shape {leaf.shape}: if it holds one value for each trajectory, mark it 0 in args_axes"
            )
    return ""


def check_lanes(problem: Problem, lanes: Lanes) -> Problem:
    """Raises unless every lane has an admissible start and a positive definite mass.

    Returns the problem, with larger neighbour lists if the starts need them (`fit_room`), and with joints marked if rows depend on others at a start
    (`fit_joints`).
    """
    shortest, size = lanes.motion.h.min(), largest_chunk()

    def of_lanes(*one: Any) -> list:
        """Reports of the starts, or for each what ``one`` computes, of a chunk of lanes after the other."""

        def part(begin: int) -> Any:
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
