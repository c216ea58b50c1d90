"""Checks of the analyses' arguments: counts, numbers, lane axes, and whether a solution belongs to the problem."""

from __future__ import annotations

import functools
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar, cast

import jax
import numpy as np
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import MAX_COUNT, as_tuple, check_kind, named_leaves, real, real_number
from ..jaxtools.shapes import PyTree
from ..jaxtools.trace_context import is_concrete
from ..mechanics.motion import OF_CONTACTS
from ..mechanics.motion import STATED as STATED_AS
from ..mechanics.problem import Problem
from ..mechanics.problem_parts import Args
from ..results import Solution
from ..results.impulse_intervals import runs
from ..results.result import Result
from ..results.save import SaveLike
from ..simulation.call import Arguments
from ..simulation.canonical_arrays import (
    cast_numbers,
    check_coefficients,
    check_finite,
    check_restitution,
    full_axes,
    leaf_axes,
)
from ..simulation.validation import check_problem

# of a motion, from which on the largest change of a gap between two rows bounds how far away a contact with an impulse
# can be
ROWS = 10
REPEATS = "no motion repeats under white forces: give problem.replace(noise=None) for that without them; lyapunov and the sections go along one path"  # noqa: E501


def check_steps(steps: int, periods: int, what: str, name: str = "steps") -> None:
    """Raises if ``steps`` times ``periods`` exceeds the largest step count;
    ``what`` names the periods in the message."""
    if steps * periods > MAX_COUNT:
        raise ValueError(
            f"{name}={steps} times {periods} ({what}) make {steps * periods} steps in one motion, more than "
            f"{MAX_COUNT}, what 32 bits "
            f"count: give fewer {name}"
        )


# a time: a number, numbers (B,) by lane, or a function of the args of one lane
TimeLike = ArrayLike | Callable[[Args], ArrayLike]
ParameterName = str | int | Sequence[str | int]  # a key of args, or keys into nested ones


def check_no_noise(problem: Problem, why: str) -> None:
    """Raises if the problem has noise, with which an analysis has no meaning; ``why`` says so,
    and what to do instead."""
    if isinstance(problem, Problem) and problem.noise is not None:
        raise ValueError(f"noise: {why}")


def distance(name: str, value: ArrayLike) -> float:
    """Checks a tolerance or a radius: one finite number >= 0."""
    found = real_number(name, value)
    if found < 0:
        raise ValueError(f"{name} must not be negative, got {value!r}")
    return found


def sweep_values(name: str, value: ArrayLike) -> np.ndarray:
    """Checks the values of a swept quantity: finite numbers (n,), at least one."""
    found = real(name, value).astype(np.float64)
    if found.ndim != 1 or found.size == 0 or not np.all(np.isfinite(found)):
        raise ValueError(f"{name} must be finite numbers of shape (n,), got {value!r}")
    return found


def check_numbers_of_contacts(m: int, e: ArrayLike | None = None, friction: ArrayLike | None = None) -> None:
    """Raises unless the restitution and the coefficients of friction of one motion, where given,
    are numbers () or (m,) in their range."""
    for name, value, check in (("e", e, check_restitution), ("friction", friction, check_coefficients)):
        if value is not None:
            found = real(name, value)
            if found.shape not in ((), (m,)):
                raise ValueError(f"{name} must be one number or have shape ({m},), got {found.shape}")
            check(found)


def parameter_path(parameter: ParameterName, args: object) -> tuple[str, ...]:
    """Returns which number an analysis varies: ("args", key, ...), or one of OF_CONTACTS by itself.

    ``parameter``: a key of args, or a sequence of keys into nested args, also written "args.NAME"; or "e", "friction"
    or "static_friction", also written "problem.restitution", "problem.friction" and "problem.static_friction".

    Raises:
        ValueError: the name is that of a number of contacts and a key of args.
    """
    keys = tuple(map(str, as_tuple(parameter)))
    if len(keys) != 1:
        return ("args", *keys)
    (name,) = keys
    own = {f"problem.{stated}": short for short, stated in STATED_AS.items()}
    if name in own:
        return (own[name],)
    if name.startswith("args."):
        return tuple(name.split("."))
    if name not in OF_CONTACTS:
        return "args", name
    if any(path[:1] == keys for path in named_leaves(args)):
        stated = STATED_AS[name]
        raise ValueError(
            f"parameter {name!r} is both a key of args and the problem's {stated}: write 'args.{name}' for the number "
            "in args, or "
            f"'problem.{stated}'"
        )
    return keys


def parameter_name(path: tuple[str, ...]) -> str:
    """Returns the name in results of a parameter with a path of `parameter_path`: its key in args, with "args." only
    before one of OF_CONTACTS."""
    root, *keys = path
    return ".".join(path if root != "args" or keys[:1] in [[name] for name in OF_CONTACTS] else keys)


def share_of_period(phase: float) -> float:
    """Checks a phase: a number in [0, 1)."""
    if not 0 <= real_number("phase", phase) < 1:
        raise ValueError(f"phase must lie in [0, 1), a part of the period, got {phase!r}")
    return float(phase)


def check_result(name: str, value: Result, kind: type, source: str) -> None:
    check_kind(name, value, kind, f"a {kind.__name__}, from {source}")
    if value._is_traced():
        raise TypeError(f"{name} is traced: analyses take known numbers, call them outside of jax's transformations")


def one_lane(args: object, args_axes: object, lane: int = 0) -> PyTree:
    """Returns the args of the lane numbered ``lane``, without lane axes."""
    return jax.tree.map(lambda axis, x: x if axis < 0 else x[lane], full_axes(args, args_axes), args)


def of_one_lane(e: Any) -> Any:
    """Restitution or friction of the first lane, a number or (m,), from shape (B, 1), (B, m) or (1, m)."""
    row = np.asarray(e)[0] if np.ndim(e) == 2 else e
    return row[0] if np.shape(row) == (1,) else row


def number_of(name: str, value: TimeLike, args: object, args_axes: object) -> np.ndarray:
    """Evaluates a time given as a number, as numbers (B,) by lane, or as a function of the args of one lane;
    returns () or (B,), finite.

    ``name``: name of the argument in messages.
    """
    if callable(value):
        value = _lane_by_lane(name, value, args, args_axes)
    value = real(name, value)
    if value.ndim > 1 or value.size == 0:
        raise ValueError(f"{name} must be a number, a function of args that returns one, or (B,), got {value.shape}")
    check_finite(**{name: value})
    return value


def _lane_by_lane(name: str, function: Callable[[Args], ArrayLike], args: object, args_axes: object) -> ArrayLike:
    """Evaluates a ``function`` of one lane's args for all lanes: by vmap, or one by one if it cannot be traced;
    ``name``: its name in messages."""
    axes, (leaves, structure) = leaf_axes(args, args_axes), jax.tree.flatten(args)
    carried = [np.asarray(x) for axis, x in zip(axes, leaves, strict=True) if axis == 0]
    lengths = {len(x) for x in carried}
    if len(lengths) > 1:
        raise ValueError(f"args: lane axes must have one length, got {sorted(lengths)}")

    def one(own: Iterable) -> ArrayLike:
        own = iter(own)
        return function(
            jax.tree.unflatten(
                structure, [x if axis is None else next(own) for x, axis in zip(leaves, axes, strict=True)]
            )
        )

    try:
        if not lengths:
            return function(args)
        try:
            return jax.vmap(one)(carried)
        except (jax.errors.JAXTypeError, TypeError):
            # numpy, math, if: one lane after the other
            return np.array([one(own) for own in zip(*carried, strict=True)])
    except (TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{name} failed as a function of the args of one lane: {type(error).__name__}: {str(error).splitlines()[0]}"
        ) from error


def positive_time(name: str, value: TimeLike, args: object, args_axes: object) -> np.ndarray:
    """Evaluates a time as `number_of` does, and raises unless it is positive."""
    value = number_of(name, value, args, args_axes)
    if np.any(value <= 0):
        raise ValueError(f"{name} must be positive, got {np.min(value):g}")
    return value


def check_solution(problem: Problem, solution: Solution, args: object) -> None:
    """Raises if a solution cannot belong to this problem (dimension, number of constraints)
    with ``args`` of one lane."""
    check_problem(problem)
    check_result("solution", solution, Solution, "solve or ensemble")
    if solution.pairs is not None:
        raise ValueError(
            "solution is of listed bodies, and the problem is not: give the problem that the solution was computed with"
        )
    dtype, m = solution.q.dtype, solution.impulse.shape[-1]
    args = cast_numbers("args", args, dtype)
    t, q = (jax.ShapeDtypeStruct(shape, dtype) for shape in ((), solution.q.shape[-1:]))
    try:
        # args are traced too: functions may look up their entries at a time or place
        shapes = lambda t, q, args: (problem.gaps(t, q, args), problem.generalised_force(t, q, q, args))
        found = jax.eval_shape(shapes, t, q, args)
    except (TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        raise ValueError(
            f"solution has q of {q.shape[0]} components, on which the problem's functions fail with these args: "
            f"{type(error).__name__}: {str(error).splitlines()[0]}; give the problem and the args that the solution "
            "was computed with"
        ) from error
    gaps, force = (x.shape for x in found)
    if gaps != (m,) or force != q.shape:
        raise ValueError(
            f"solution is of another problem: it has {q.shape[0]} coordinates and {m} constraints, the problem a force "
            "of shape "
            f"{force} and gaps of shape {gaps}"
        )


def check_gaps(solution: Solution, gap: np.ndarray) -> None:
    """Raises if gaps (k, m), computed with a problem and args at the rows of a solution, show that the solution belongs
    to another problem or args.

    They show it if a gap is more negative than the solution's largest penetration allows,
    or if an impulse acts where the gap is wide.
    """
    if gap.size == 0 or not np.all(np.isfinite(gap)):
        return
    moved = float(np.max(np.abs(np.diff(gap, axis=0)), initial=0.0))
    noise = math.sqrt(np.finfo(gap.dtype).eps) * float(np.max(np.abs(gap)))
    reason = "give the problem and the args that the solution was computed with"
    deepest = float(-np.min(gap))
    if deepest > float(solution.penetration) + moved + noise:
        raise ValueError(
            f"solution is of another problem or other args: a gap is {-deepest:.3g} in it, the motion itself reports a "
            "penetration "
            f"of {float(solution.penetration):.3g} at most; {reason}"
        )
    pushed = runs(np.asarray(solution.impulse)[None], solution.timing).active[0]
    if len(gap) >= ROWS and pushed.any():
        least = np.minimum(gap[1:], gap[:-1])[pushed]
        if np.median(least) > 2 * moved + noise:
            raise ValueError(
                "solution is of another problem or other args: it records impulses where gaps are "
                f"{np.median(least):.3g}; {reason}"
            )


class StudyLike(ABC):
    """Interface of `jaximpact.study.Study` that the analyses use; they must not import that package,
    which imports them."""

    @property
    @abstractmethod
    def problem(self) -> Problem: ...
    @property
    @abstractmethod
    def design(self) -> Any: ...
    @abstractmethod
    def settings(self) -> AbstractContextManager[None]: ...
    @abstractmethod
    def solution(self) -> Solution: ...
    @abstractmethod
    def arguments(self, which: Any = ...) -> Arguments: ...
    @abstractmethod
    def lane(self, index: int | tuple[int, ...] | Mapping[str, int], save: SaveLike | None = None) -> Solution: ...
    @abstractmethod
    def number(self, index: Any) -> int: ...
    @abstractmethod
    def quantity(self, name: str) -> np.ndarray: ...


P = ParamSpec("P")
R = TypeVar("R")
STATED = (
    "q0",
    "v0",
    "t0",
    "args",
    "args_axes",
    *OF_CONTACTS,
    "scheme",
    "projection",
)  # arguments of an analysis that a study supplies


def takes_study(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: the analysis also takes a `Study` as its first argument, which supplies the problem, the solution or
    the starts, args and methods.

    For an analysis of one motion ``lane=`` selects it, as in `Study.lane`;
    the motion is recomputed with every step saved.
    """
    names = inspect.signature(function).parameters
    single = "solution" in names and "args" in names and "args_axes" not in names

    def of_study(study: StudyLike, **options: Any) -> Any:
        if single:
            if "lane" not in options:
                raise TypeError(f"{function.__name__} looks at one motion: say which lane of the study, lane=0")
            index = options.pop("lane")
            known = study.arguments([study.number(index)])
            found = {"args": one_lane(known["args"], known["args_axes"]), "solution": study.lane(index, save="all")}
            found |= {name: of_one_lane(known[name]) for name in OF_CONTACTS if name in names}
        else:
            known = study.arguments()
            wanted = STATED if "solution" not in names else ("args", "args_axes", *OF_CONTACTS)
            found = {name: known[name] for name in wanted if name in names}
            if "solution" in names:
                found["solution"] = study.solution()
            if isinstance(options.get("groups"), str):
                options["groups"] = study.quantity(options["groups"])
        if "problem" in names:
            found["problem"] = study.problem
        return cast(Callable, function)(**found | options)

    return of_a_study(of_study)(function)


def _call_eagerly(function: Callable[P, R], *given: P.args, **options: P.kwargs) -> R:
    """Calls an analysis eagerly, also inside another function's jit, where jax would otherwise trace
    operations on concrete numbers.

    TypeError if some of the numbers are traced.
    """
    if is_concrete():
        return function(*given, **options)
    try:
        with jax.ensure_compile_time_eval():
            return function(*given, **options)
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError) as error:
        raise TypeError(
            f"{function.__name__} needs known numbers: inside jax.jit, jax.vmap or jax.grad nothing that it is given "
            "may be traced, nor "
            "what the problem's functions close over"
        ) from error


def of_a_study(other: Callable) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: if the first argument of the analysis is a `Study`,
    ``other(study, **options)`` is called in its place."""

    def wrapper(function: Callable[P, R]) -> Callable[P, R]:
        other.__qualname__ = function.__qualname__  # in what Python says of arguments that are missing

        @functools.wraps(function)
        def call(*given: Any, **options: Any) -> Any:
            if not given or not isinstance(given[0], StudyLike):
                return _call_eagerly(function, *given, **options)
            if len(given) > 1:
                raise TypeError(f"{function.__name__}(study, ...) takes the study alone by its place, the rest by name")
            with given[0].settings():
                return other(given[0], **options)

        return call

    return wrapper
