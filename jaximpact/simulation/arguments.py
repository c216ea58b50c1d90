"""Users' arguments converted to a `Program` with a `Motion` or `Lanes`, or an error that says what to do.

Under a jax transformation numbers are unknown: shapes and types are still checked, values are not.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..compiler.xla_cache import PersistentJit
from ..jaxtools.argument_checks import (
    check_counts,
    check_kind,
    check_memory,
    is_array,
    is_number,
    is_traced,
    real_array,
    short,
)
from ..jaxtools.shapes import as_array
from ..jaxtools.threads import make_executor, refuse_fork, worker_count
from ..jaxtools.trace_context import is_concrete
from ..jaxtools.warnings import remark
from ..mechanics.contact.active_set import ActiveSet
from ..mechanics.contact.conjugate_gradients import ConjugateGradients
from ..mechanics.contact.solver import ContactSolver
from ..mechanics.joints import MayDepend
from ..mechanics.motion import Motion
from ..mechanics.problem import Problem
from ..mechanics.schemes.base import Scheme
from ..mechanics.schemes.event_driven import EventDriven
from ..mechanics.schemes.maury import Maury
from ..mechanics.schemes.moreau_jean import MoreauJean
from ..mechanics.schemes.paoli_schatzman import PaoliSchatzman
from ..mechanics.schemes.stops import Until
from ..mechanics.user_functions import differentiable, outcome
from ..results.save import Save
from .backends import native_or
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
from .chunked_runs import FEWER_ROWS, largest
from .lanes import Lanes
from .limits import DEFAULT_ROWS, DEFAULT_STEPS
from .program import Program
from .start_report import StartReport, is_fine, raise_or_warn, start_report
from .validation import check_functions, check_problem

NODES = 1000  # of a Gauss-Legendre rule
OF_FRICTION = ("friction", "static_friction")
OF_CONTACTS = ("e", *OF_FRICTION)  # numbers of contacts that calls give in place of the problem's
STATED = {"e": "restitution"} | {name: name for name in OF_FRICTION}  # what the problem calls them


def choose_methods(scheme: Any, projection: Any, problem: Any = None) -> tuple[Any, Any]:
    """Scheme and projection, with defaults for None; raises for classes or names in place of instances."""
    if problem is not None:
        check_problem(problem)
    listed = problem is not None and problem.listed
    given: list[tuple[str, Any, type, str]] = []
    if scheme is not None:
        given.append(("scheme", scheme, Scheme, "PaoliSchatzman()"))
    if projection is not None:
        given.append(("projection", projection, ContactSolver, "ActiveSet()"))
    if scheme is None:
        scheme = _default_scheme(problem)
    if projection is None:
        projection = ConjugateGradients() if listed else ActiveSet()
    for name, value, kind, example in given:
        check_kind(name, value, kind, f"a {name} such as {example}")
        _check_options(value)
    if listed and not projection.takes_lists:
        raise ValueError(
            f"{type(projection).__name__} needs a matrix of all contacts, which a list of near pairs has not: use ConjugateGradients()"
        )
    return scheme, projection


def _default_scheme(problem: Any) -> Scheme:
    """The scheme where none is given."""
    if problem is None:
        return PaoliSchatzman()
    if problem.listed:
        return Maury() if problem.slip is None else MoreauJean()
    if problem.reset is not None:
        return EventDriven()
    plain = problem.joints is None and problem.slip is None and not callable(problem.restitution)
    return PaoliSchatzman() if plain else MoreauJean()


def _check_options(method: Any) -> None:
    """Checks the options of a scheme or projection: flags, counts from 1 on, and finite numbers >= 0."""
    for option in fields(method) if is_dataclass(method) else ():
        value, name = getattr(method, option.name), f"{type(method).__name__}({option.name}=...)"
        if is_traced(value) or option.type not in ("int", "float", "float | None", "bool"):
            continue
        if value is None and option.type == "float | None":
            continue
        if is_array(value):
            value = np.asarray(value)[()]
        if option.type == "bool":
            check_kind(name, value, bool | np.bool_, "True or False")
        elif option.type == "int":
            check_counts(**{name: value})
            if option.name == "nodes" and value > NODES:
                raise ValueError(f"{name} must not exceed {NODES}, got {value}")
        elif not is_number(value):
            raise TypeError(f"{name} must be a number, got {short(value)}")
        elif not 0 <= value < np.inf:
            raise ValueError(f"{name} must be finite and not negative, got {value!r}")


def canonical(
    problem: Problem,
    q0: Any,
    v0: Any,
    t0: Any,
    t1: Any,
    h: Any,
    steps: int | None,
    e: Any,
    args: Any,
    scheme: Scheme,
    friction: Any = None,
    static_friction: Any = None,
) -> tuple[Problem, Motion]:
    """Arguments of one motion as checked arrays of one dtype; with ``steps`` given, h is (t1 - t0)/steps."""
    check_problem(problem)
    q0, v0 = canonical_state(q0, v0)
    if q0.ndim != 1 or q0.shape[0] == 0:
        raise ValueError(f"q0 must have shape (d,), got {q0.shape}; many trajectories at once go through ensemble")
    if v0.shape != q0.shape:
        raise ValueError(f"v0 must have the shape of q0, {q0.shape}, got {v0.shape}")
    dtype = q0.dtype
    t0, t1 = real_array("t0", t0).astype(dtype), real_array("t1", t1).astype(dtype)
    _check_step(h, steps)
    h = (t1 - t0) / steps if h is None else real_array("h", h).astype(dtype)
    for name, value in {"t0": t0, "t1": t1, "h": h}.items():
        if value.ndim:
            raise ValueError(f"{name} must be one number, got shape {value.shape}; for a sweep use ensemble")
    args = cast_numbers("args", args, dtype)
    problem, e = split_restitution(problem, e, dtype)
    problem, friction = split_friction(problem, friction, dtype)
    problem, static_friction = split_friction(problem, static_friction, dtype, "static_friction")
    check_finite(q0=q0, v0=v0)
    check_times(t0, t1, h)
    check_restitution(e)
    check_coefficients(friction)
    check_coefficients(static_friction, "static_friction")
    motion = Motion(q0, v0, t0, t1, h, steps, e, args, friction, static_friction)
    check_functions(motion.stated_in(problem), scheme, q0, v0, t0, e, args)
    return problem, motion


def _check_step(h: Any, steps: Any) -> None:
    if (h is None) == (steps is None):
        raise ValueError(
            "give either h, the step, or steps, the number of steps (EventDriven(), which chooses its own by a tolerance, needs neither)"
        )
    if steps is not None:
        check_counts(steps=steps)


def choose_grid(scheme: Scheme, save: Save, h: Any, steps: Any, t0: Any, t1: Any) -> Any:
    """The number of steps between which a scheme that chooses its own is looked at, where neither h nor steps is given: as the rows ask."""
    if h is not None or steps is not None or scheme.traits.order is not None:
        return steps
    if save.every is not None:
        if save.every > 1:
            raise ValueError("save=k keeps every k-th step: give h or steps too, or times")
        return DEFAULT_ROWS
    if save.times is None:
        return DEFAULT_STEPS
    if save.function is None or is_traced(save.times, t0, t1):
        return max(DEFAULT_STEPS, np.size(save.times))
    near = np.min(np.diff(np.asarray(save.times)), initial=np.inf)  # rows of a function are a step apart
    return max(DEFAULT_STEPS, int(np.ceil(np.max(np.asarray(t1) - np.asarray(t0)) / near * (1 + 1e-12))))


@PersistentJit
def _report(problem: Problem, motion: Motion) -> StartReport:
    return start_report(motion.stated_in(problem), motion.q0, motion.v0, motion.t0, motion.args, motion.h)


@partial(PersistentJit, static=("axes",))
def _reports(problem: Problem, motion: Motion, axes: tuple) -> StartReport:
    if not any(axis == 0 for axis in axes):
        # only h, e or t1 differ between lanes: one start
        return jax.tree.map(lambda x: x[None], _report(problem, motion))
    return jax.vmap(_report, in_axes=(None, Lanes(motion, axes, 0).in_axes))(problem, motion)


def start_reports(problem: Problem, lanes: Lanes, h: Any = None) -> StartReport:
    """Start reports of all lanes (leading axis), for steps h."""
    starts = lanes.only("q0", "v0", "t0", "args", *OF_FRICTION, h=h)
    through_xla = partial(_reports, axes=starts.axes)
    # native code has no search for near pairs
    call = through_xla if problem.listed else native_or(_report, (None, starts.in_axes), through_xla)
    return call(problem, starts.motion)


def check_start(problem: Problem, motion: Motion) -> tuple[Problem, str | None]:
    """Raises for an inadmissible start; returns a remark if v0 is not admissible, and the problem as `fit_room` and `fit_joints` give it."""
    one = Lanes.of(motion, jax.tree.map(lambda _: -1, motion), 1)
    if is_traced(problem, one.only("q0", "v0", "t0", "args", *OF_FRICTION).motion):
        return MayDepend.of(problem), None
    # within another's jit operations are recorded, not done, unless told: one by one, each compiled, which takes longer
    with nullcontext() if is_concrete() else jax.ensure_compile_time_eval(), differentiable():
        report = start_reports(problem, one, None if is_traced(motion.h) else motion.h)
    if is_traced(report):
        # numbers that the problem's functions close over are not known
        return MayDepend.of(problem), None
    report = jax.tree.map(np.asarray, report)
    fitting = fit_room(problem, report)
    if fitting is not problem:
        return check_start(fitting, motion)
    return fit_joints(problem, report), raise_or_warn(report, lanes=False)


def check_until(until: Any, problem: Problem, one: Motion) -> Until | None:
    """Where motions end; TypeError or ValueError if it is no such place."""
    found = Until.of(until)
    if found is not None and found.by_step is None:
        found = found.of_problem(problem, one.t0, one.q0, one.args)
        shape = outcome("until(t, q, v, args)", as_array, found.function, one.t0, one.q0, one.v0, one.args)
        if shape.shape != () or not jnp.issubdtype(shape.dtype, jnp.floating):
            raise ValueError(
                f"until(t, q, v, args) must return one real number, got {shape.dtype} of shape {shape.shape}"
            )
    return found


def fit_joints(problem: Problem, report: StartReport) -> Problem:
    """The problem whose least joint impulses are told, if rows of its joints depend on others at the starts."""
    dependent = report.joints is not None and np.any(report.joints.redundant)
    return MayDepend.of(problem) if dependent else problem


def fit_room(problem: Problem, report: StartReport) -> Problem:
    """The problem with capacity for the near pairs found at the starts; unchanged if it suffices."""
    if report.bodies is None:
        return problem
    before: Any = problem.constraints
    bodies = before.with_capacity_for(report.bodies.list)
    return problem if bodies is before else problem.replace(constraints=bodies)


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
    """Checked `Program` and `Lanes` of many motions."""
    refuse_fork()
    refuse_traced((problem, q0, v0, t0, t1, h, e, args, friction, static_friction))
    save = Save.of(save)
    scheme, projection = choose_methods(scheme, projection, problem)
    steps = choose_grid(scheme, save, h, steps, t0, t1)
    _check_step(h, steps)
    if steps is not None:
        h = (np.asarray(real_array("t1", t1)) - np.asarray(real_array("t0", t0))) / steps
    of_contacts = {"e": e, "friction": friction, "static_friction": static_friction}
    problem, lanes = _canonical_lanes(problem, q0, v0, t0, t1, h, args, args_axes, scheme, of_contacts)
    # round-off in h must not make a step more
    lanes = lanes if steps is None else lanes.with_steps(steps)
    problem = check_lanes(problem, lanes)
    if chunk is not None:
        check_counts(chunk=chunk)
    counts = lanes.motion.steps
    if save.every is not None and np.ndim(counts):
        raise ValueError(
            "save: every k-th step gives lanes of different numbers of steps different numbers of rows; give times, or 'final'"
        )
    one = lanes.first
    program = Program.of(problem, scheme, projection, save, lanes.motion, check_until(until, problem, one))
    size = program.row_size(one, problem.count(one.t0, one.q0, one.args))
    rows = program.rows + 1
    check_memory(
        float(lanes.count) * rows * size, f"save: the result of {lanes.count} motions with {rows} rows each", FEWER_ROWS
    )
    return program, lanes


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
    """Restitution ``e`` or coefficients of friction of a call whose other arguments have no lanes: shape (m,) is by contact, as in `solve`."""
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
    """Arguments of many motions as arrays of one dtype, and which of them carry a lane axis."""
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
    return problem, lanes


def _common_length(named: dict[str, tuple[Any, Any]], leaves: list, args_axes: tuple) -> int:
    """Common length of all lane axes; ``named`` are arguments with a flag for a lane axis."""
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
    """Raises unless every lane has an admissible start and a positive mass; returns the problem as `fit_room` and `fit_joints` give it."""
    shortest = lanes.motion.h.min()

    def part(begin: int) -> tuple[StartReport, bool]:
        with differentiable():
            found = start_reports(problem, lanes.some(slice(begin, begin + size)), shortest)
        refuse_traced(found)
        found = jax.tree.map(np.asarray, found)
        return found, found.bodies is None and is_fine(found)

    if lanes.count <= (size := largest()):
        parts, fine = zip(*[part(0)], strict=True)
    else:
        with make_executor(worker_count(lanes.count), lanes.count) as pool:
            parts, fine = zip(*pool.map(part, range(0, lanes.count, size)), strict=True)
    if all(fine):
        return problem
    report: StartReport = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    fitting = fit_room(problem, report)
    if fitting is not problem:
        return check_lanes(fitting, lanes)
    outward = raise_or_warn(report, lanes=True)
    if outward:
        remark(outward, stacklevel=4)
    return fit_joints(problem, report)
