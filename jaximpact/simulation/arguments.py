"""The methods, the grid, the starts and the end of motions: what users give of them is checked,
and chosen where they do not.

Under a jax transformation numbers are unknown: shapes and types are still checked, values are not.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import fields, is_dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from ..compiler.xla_cache import PersistentJit
from ..jaxtools.argument_checks import check_counts, check_kind, is_array, is_number, is_traced, short
from ..jaxtools.shapes import as_array
from ..jaxtools.trace_context import is_concrete
from ..mechanics.contact.active_set import ActiveSet
from ..mechanics.contact.conjugate_gradients import ConjugateGradients
from ..mechanics.contact.solver import ContactSolver
from ..mechanics.joints import MayDepend
from ..mechanics.motion import OF_FRICTION, Motion
from ..mechanics.problem import Problem
from ..mechanics.scheme import Scheme
from ..mechanics.schemes.event_driven import EventDriven
from ..mechanics.schemes.maury import Maury
from ..mechanics.schemes.moreau_jean import MoreauJean
from ..mechanics.schemes.paoli_schatzman import PaoliSchatzman
from ..mechanics.trials.stops import Until, UntilLike
from ..mechanics.user_functions import differentiable, outcome
from ..results.save import Save
from .backends import execution_of, native_or_xla
from .lanes import Lanes
from .limits import DEFAULT_ROWS, DEFAULT_STEPS
from .start_report import JointReport, StartReport, raise_or_warn, start_report
from .validation import check_problem

NODES = 1000  # of a Gauss-Legendre rule


def choose_methods(
    scheme: Scheme | None, projection: ContactSolver | None, problem: Problem, steps: bool = True
) -> tuple[Scheme, ContactSolver]:
    """Scheme and projection, with the defaults for the problem for None;
    raises for classes or names in place of instances.

    ``steps``: whether the size or the number of steps is given; if not, the default is a scheme that chooses its own.
    """
    check_problem(problem)
    if scheme is None:
        scheme = _default_scheme(problem, steps)
    else:
        _check_method("scheme", scheme, Scheme, "PaoliSchatzman()")
    if projection is None:
        projection = ConjugateGradients() if problem.listed else ActiveSet()
    else:
        _check_method("projection", projection, ContactSolver, "ActiveSet()")
    if problem.listed and not projection.takes_lists:
        raise ValueError(
            f"{type(projection).__name__} needs a matrix of all contacts, which a list of near pairs has not: use "
            "ConjugateGradients()"
        )
    return scheme, projection


def _default_scheme(problem: Problem, steps: bool) -> Scheme:
    if problem.listed:
        return MoreauJean() if problem.rubs else Maury()
    if problem.reset is not None or not steps:
        return EventDriven()
    more = problem.jointed or problem.rubs or callable(problem.restitution)
    return MoreauJean() if more else PaoliSchatzman()


def _check_method(name: str, method: object, kind: type, example: str) -> None:
    """Checks a scheme or projection and its options: flags, counts from 1 on, and finite numbers >= 0;
    and that jax knows its class."""
    check_kind(name, method, kind, f"a {name} such as {example}")
    if jax.tree_util.all_leaves([method]):
        raise TypeError(
            f"{type(method).__name__} is a class that jax does not know: write @jax.tree_util.register_dataclass above "
            "its @dataclass(frozen=True)"
        )
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


def check_step(scheme: Scheme, problem: Problem, h: ArrayLike, steps: int | None) -> None:
    if h is not None and steps is not None:
        raise ValueError("give either h, the step, or steps, the number of steps, not both")
    if h is None and steps is None:
        name, other = type(scheme).__name__, "; EventDriven(), the default without them, chooses its own"
        why = "bodies in lists go by steps" if problem.listed else f"{name} goes by steps"
        raise ValueError(f"{why}: give h, their size, or steps, their number{'' if problem.listed else other}")
    if steps is not None:
        check_counts(steps=steps)


def choose_grid(scheme: Scheme, save: Save, problem: Problem, t0: ArrayLike, t1: ArrayLike) -> int | None:
    """Returns the number of steps that ``save`` needs, for a scheme that chooses its own; None for others."""
    if not scheme.traits.by_tolerance:
        return None
    if problem.noise is not None:
        raise ValueError(
            "noise: white forces are constant in a step, and no scheme can choose it: give h, its size, or steps, "
            "their number, with any scheme"
        )
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
    return start_report(motion.stated_in(problem), motion.start, motion.h)


@PersistentJit
def has_good_start(problem: Problem, motion: Motion) -> Array:
    """Whether a start needs no error and no warning, ()."""
    return _report(problem, motion).is_fine


@partial(PersistentJit, static=("one", "axes"))
def _of_lanes(problem: Problem, motion: Motion, one: PersistentJit, axes: tuple) -> StartReport:
    if not any(axis == 0 for axis in axes):
        # only h, e or t1 differ between lanes: one start
        return jax.tree.map(lambda x: x[None], one(problem, motion))
    return jax.vmap(one, in_axes=(None, Lanes(motion, axes, 0).in_axes))(problem, motion)


def start_reports(
    problem: Problem, lanes: Lanes, h: ArrayLike | None = None, one: PersistentJit = _report
) -> StartReport:
    """Start reports of all lanes, with a leading lane axis; ``h``: step, which sets the tolerance for closed contacts,
    or None.

    ``one``: what is computed of a lane, by default its report; or `has_good_start`,
    of which nothing else has to be looked at.
    """
    starts = lanes.only("q0", "v0", "t0", "args", *OF_FRICTION, h=h)
    through_xla = partial(_of_lanes, one=one, axes=starts.axes)
    either = execution_of("auto", problem) == "auto"
    call = native_or_xla(one, (None, starts.in_axes), through_xla) if either else through_xla
    return call(problem, starts.motion)


def check_start(problem: Problem, one: Lanes) -> tuple[Problem, str | None]:
    """Raises if the start of ``one`` motion is not admissible or a number is invalid; traced numbers are not checked.

    Returns the problem, with room for the near pairs at the start (`fit_room`) and joints marked if rows depend on
    others (`fit_joints`); and a remark for the user, for instance that v0 has to be projected, or None.
    """
    h = one.motion.h
    if is_traced(problem, one.only("q0", "v0", "t0", "args", *OF_FRICTION).motion):
        return MayDepend.of(problem), None
    # within another's jit operations are recorded, not done, unless told: one by one, each compiled, which takes longer
    with nullcontext() if is_concrete() else jax.ensure_compile_time_eval(), differentiable():
        report = start_reports(problem, one, None if is_traced(h) else h)
    if is_traced(report):
        # numbers that the problem's functions close over are not known
        return MayDepend.of(problem), None
    report = jax.tree.map(np.asarray, report)
    fitting = fit_room(problem, report)
    if fitting is not problem:
        return check_start(fitting, one)
    return fit_joints(problem, report), raise_or_warn(report, lanes=False)


def check_until(until: UntilLike, problem: Problem, one: Motion) -> Until | None:
    """The user's ``until`` as a checked `Until`, or None; TypeError or ValueError if it cannot be one."""
    found = Until.of(until)
    if found is not None and found.by_step is None:
        found = found.of_problem(problem, one.t0, one.q0, one.args)
        shape = outcome("until(t, q, v, args)", as_array, found.function, *one.start)
        if shape.shape != () or not jnp.issubdtype(shape.dtype, jnp.floating):
            raise ValueError(
                f"until(t, q, v, args) must return one real number, got {shape.dtype} of shape {shape.shape}"
            )
    return found


def fit_joints(problem: Problem, report: StartReport) -> Problem:
    """Returns the problem, with its joints wrapped as `MayDepend` if at the start of some lane rows of their
    Jacobian depend on other rows."""
    dependent = any(np.any(part.redundant) for part in report.parts if isinstance(part, JointReport))
    return MayDepend.of(problem) if dependent else problem


def fit_room(problem: Problem, report: StartReport) -> Problem:
    """Returns the problem with neighbour lists large enough for the near pairs found at the starts;
    unchanged if they are already."""
    if report.bodies is None:
        return problem
    before = problem.bodies
    bodies = before.with_capacity_for(report.bodies.list)
    return problem if bodies is before else problem.replace(constraints=bodies)
