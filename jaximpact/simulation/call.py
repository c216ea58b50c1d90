"""`Call`: the arguments of `solve`, `ensemble` and `sensitivities` as one record,
which is checked and made canonical once, by `canonical`.

A number of a call, such as a restitution, is a field here, one of `Motion`, and a keyword in `public`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from ..jaxtools.argument_checks import check_counts, check_memory, is_traced, real_array
from ..jaxtools.shapes import PyTree
from ..jaxtools.threads import refuse_fork
from ..jaxtools.warnings import remark, remarks_so_far
from ..mechanics.contact.solver import ContactSolver
from ..mechanics.motion import STATED, Motion
from ..mechanics.problem import Problem
from ..mechanics.scheme import Scheme
from ..results.save import Save
from . import known_calls, random_keys
from .arguments import check_start, check_step, check_until, choose_grid, choose_methods
from .canonical_arrays import (
    canonical_state,
    cast_numbers,
    check_coefficients,
    check_finite,
    check_restitution,
    check_times,
    count_steps,
    full_axes,
    split_friction,
    split_restitution,
)
from .chunked_runs import FEWER_ROWS
from .lane_arguments import (
    advice_on_axes,
    check_lanes,
    common_length,
    contacts_of,
    is_shared,
    numbers_of_lanes,
    refuse_traced,
)
from .lanes import Lanes
from .program import Program
from .validation import check_functions, check_problem, without_empty_gaps

Arguments = dict[str, Any]  # of a call, or numbers among them, by name


class MotionOptions(TypedDict, total=False):
    """Options of motions, as in `solve`: parameters, restitution, friction, scheme and contact solver; None for an
    option that is not given."""

    args: object
    e: ArrayLike | None
    friction: ArrayLike | None
    static_friction: ArrayLike | None
    key: object
    scheme: Scheme | None
    projection: ContactSolver | None


class LaneOptions(MotionOptions, total=False):
    """Options of batches of motions, as in `ensemble`: those of `MotionOptions`,
    and which leaves of args carry a lane axis."""

    args_axes: object


@dataclass(frozen=True)
class Call:
    """Arguments of motions under their names in `ensemble`; `canonical` returns them checked, and the numbers apart."""

    problem: Problem
    q0: Any
    v0: Any
    t1: Any = None
    h: Any = None
    steps: Any = None
    t0: Any = 0.0
    scheme: Any = None
    projection: Any = None
    args: PyTree = None
    args_axes: object = None
    e: object = None
    friction: object = None
    static_friction: object = None
    key: object = None
    save: Any = "final"
    until: Any = None
    chunk: Any = None
    progress: Any = False
    execution: Any = "auto"

    def replace(self, **changes: Any) -> Self:
        """Copy with some fields changed."""
        return type(self)(**vars(self) | changes)

    @property
    def of_contacts(self) -> Arguments:
        """Numbers of contacts by name, None for the problem's own."""
        return {name: getattr(self, name) for name in STATED}

    @property
    def has_steps(self) -> bool:
        """Whether the size or the number of steps is given."""
        return self.h is not None or self.steps is not None

    @property
    def saves_steps(self) -> bool:
        """Whether the rows are all steps."""
        save = Save.of(self.save)
        return save.every == 1 and save.function is None


def canonical(call: Call, batched: bool = False) -> tuple[Call, Lanes]:
    """Chooses the methods and the steps of a call, converts its numbers to arrays of one dtype,
    and checks all of them but the starts.

    Returns the call with its methods and its problem, without the numbers, and these,
    of which none has a lane axis if it is not ``batched``.
    """
    problem = call.problem
    scheme, projection = choose_methods(call.scheme, call.projection, problem, call.has_steps)
    save = Save.of(call.save)
    steps = call.steps if call.has_steps else choose_grid(scheme, save, problem, call.t0, call.t1)
    q0, v0 = canonical_state(call.q0, call.v0)
    _check_states(q0, v0, batched)
    check_step(scheme, problem, call.h, steps)
    t0, t1 = real_array("t0", call.t0), real_array("t1", call.t1)
    dtype = q0.dtype
    ends = (t0, t1) if batched else (t0.astype(dtype), t1.astype(dtype))
    h = real_array("h", call.h if steps is None else (ends[1] - ends[0]) / steps)
    t0, t1, h = (x.astype(dtype) for x in (t0, t1, h))
    for name, value in {"t0": t0, "t1": t1, "h": h}.items():
        if value.ndim > batched:
            what = "be a number or have shape (B,)" if batched else "be one number"
            raise ValueError(
                f"{name} must {what}, got shape {value.shape}{'' if batched else '; for a sweep use ensemble'}"
            )
    args = cast_numbers("args", call.args, dtype)
    axes = full_axes(args, call.args_axes)
    # each with whether it has a lane axis
    named = {"q0": (q0, q0.ndim > 1), "v0": (v0, v0.ndim > 1)} | {
        name: (x, x.ndim > 0) for name, x in {"t0": t0, "t1": t1, "h": h}.items()
    }
    leaves = [x for x, axis in zip(jax.tree.leaves(args), jax.tree.leaves(axes), strict=True) if axis == 0]
    for name, given in call.of_contacts.items():
        stated = given is None or not batched  # numbers of the problem, and those of one motion, have no lane axis
        if not stated:
            others = [value for value, carried in named.values() if carried] + leaves
            m = contacts_of(name, problem, q0, args, axes, scheme)
            given = numbers_of_lanes(name, given, m, others[0].shape[0] if others else None)
        split: Any = split_restitution if name == "e" else partial(split_friction, name=name)
        problem, number = split(problem, given, dtype)
        shared = stated or is_shared(given)
        number = number[0] if not stated and number.ndim == 2 and number.shape[0] == 1 else number
        if number is not None:
            named[name] = number, not shared
    key = random_keys.words_of(call.key, problem)
    if key is not None:
        named["key"] = key, key.ndim > 1
    count = common_length(named, leaves) if batched else 1
    if key is not None:
        named["key"] = (random_keys.of_lanes(key, range(count)) if batched else random_keys.of_one(key)), batched
    check_finite(q0=q0, v0=v0)
    check_times(t0, t1, h)
    for name in STATED:
        if name in named:
            check_restitution(named[name][0]) if name == "e" else check_coefficients(named[name][0], name)
    number = _count(t0, t1, h) if steps is None else np.asarray(steps, np.int32)
    marks = {name: carried - 1 for name, (_, carried) in named.items()} | {"steps": number.ndim - 1, "args": axes}
    motion = Motion(**{name: x for name, (x, _) in named.items()}, steps=number, args=args)
    lanes = Lanes.of(motion, Motion(**marks), count)
    one = lanes.first
    try:
        check_functions(one.stated_in(problem), scheme, one.q0, one.v0, one.t0, one.e, one.args)
    except (ValueError, TypeError) as error:
        if not (batched and (advice := advice_on_axes(args, axes, count))):
            raise
        raise type(error)(f"{error}{advice}") from error
    e, of_lane = named["e"]
    if of_lane:
        for value in np.unique(np.asarray(e), axis=0)[[0, -1]]:
            scheme.check(problem, value, e.shape[-1] if e.ndim == 2 else 0)
    problem = without_empty_gaps(problem, one.q0, one.args)
    return call.replace(problem=problem, scheme=scheme, projection=projection, save=save), lanes


def _check_states(q0: Array, v0: Array, batched: bool) -> None:
    if not batched:
        if q0.ndim != 1 or q0.shape[0] == 0:
            raise ValueError(f"q0 must have shape (d,), got {q0.shape}; many trajectories at once go through ensemble")
        if v0.shape != q0.shape:
            raise ValueError(f"v0 must have the shape of q0, {q0.shape}, got {v0.shape}")
        return
    for name, value in {"q0": q0, "v0": v0}.items():
        if value.ndim not in (1, 2) or value.shape[-1] == 0:
            raise ValueError(f"{name} must have shape (d,) or (B, d), got {value.shape}")
    if q0.shape[-1] != v0.shape[-1]:
        raise ValueError(f"q0 and v0 must have the same d, got shapes {q0.shape} and {v0.shape}")


def _count(t0: Any, t1: Any, h: Any) -> np.ndarray:
    """Number of steps of size h from t0 to t1, () or by lane where it differs."""
    if is_traced(t0, t1, h):
        raise ValueError(
            "h, t0 and t1 must be concrete for solve to know the number of steps: under jit, vmap or grad over them, "
            "give "
            "steps=N in place of h (for a sweep over h use ensemble)"
        )
    begin, end, step = (np.asarray(x, np.float64) for x in (t0, t1, h))
    steps = np.asarray(count_steps(begin, end, step, float(jnp.finfo(t0.dtype).eps)), np.int32)
    return steps[0] if steps.ndim and (steps == steps[0]).all() else steps


def program_of(call: Call, lanes: Lanes, problem: Problem) -> Program:
    """The program of a canonical call for these motions; ``problem``: its own,
    made to fit their starts (`check_start`, `check_lanes`)."""
    until = check_until(call.until, problem, lanes.first)
    return Program.of(problem, call.scheme, call.projection, call.save, lanes.motion, until)


def for_one(call: Call) -> tuple[Program, Motion]:
    """Checks and converts the arguments of `solve`."""
    refuse_fork()
    call, lanes = canonical(call)
    problem, outward = check_start(call.problem, lanes)
    if outward:
        remark(outward, stacklevel=2)
    return program_of(call, lanes, problem), lanes.motion


def for_lanes(call: Call) -> tuple[Program, Lanes]:
    """Checks and converts the arguments of `ensemble`."""
    refuse_fork()
    others = (
        call.problem,
        call.t0,
        call.t1,
        call.h,
        call.of_contacts,
        call.key,
        call.args_axes,
        call.save,
        call.chunk,
        call.steps,
    )
    refuse_traced((call.q0, call.v0, call.args, others))
    key = None
    if call.until is None:
        key = known_calls.key_of(call.q0, call.v0, call.args, (call.scheme, call.projection), *others)
    if (found := known_calls.find(key)) is not None:
        program, lanes, size = found
        q0, v0 = canonical_state(call.q0, call.v0)
        args = cast_numbers("args", call.args, q0.dtype)
        check_finite(q0=q0, v0=v0)
        lanes = Lanes(lanes.motion._replace(q0=q0, v0=v0, args=args), lanes.axes, lanes.count, lanes.seen)
        problem = check_lanes(program.problem, lanes)
    else:
        before = remarks_so_far()
        known, lanes = canonical(call, batched=True)
        problem = check_lanes(known.problem, lanes)
        if call.chunk is not None:
            check_counts(chunk=call.chunk)
        if known.save.every is not None and np.ndim(lanes.motion.steps):
            raise ValueError(
                "save: every k-th step gives lanes of different numbers of steps different numbers of rows; give "
                "times, or 'final'"
            )
        program = program_of(known, lanes, problem)
        one = lanes.first
        size = program.row_size(one, problem.count(one.t0, one.q0, one.args))
        if problem is known.problem and remarks_so_far() == before:  # which are made in each call
            known_calls.keep(key, program, lanes, size)
    rows = program.rows + 1
    check_memory(
        float(lanes.count) * rows * size, f"save: the result of {lanes.count} motions with {rows} rows each", FEWER_ROWS
    )
    return program if problem is program.problem else program.replace(problem=problem), lanes


def as_lanes(call: Call) -> tuple[Call, bool]:
    """The call of one motion or of many as one of many, and whether it was of one: no argument has a lane axis."""
    carried = [axis is not None for axis in jax.tree.leaves(call.args_axes, is_leaf=lambda x: x is None)]
    ranked = (call.q0, 1), (call.v0, 1), (call.t0, 0), (call.t1, 0), (call.h, 0)
    try:
        single = not any(carried) and all(x is None or np.ndim(x) <= rank for x, rank in ranked)
    except ValueError:  # rows of different lengths
        return call, False
    if not single:
        return call, False
    numbers = {name: numbers_of_one(name, call) for name in STATED}
    if call.key is not None:
        words = random_keys.words_of(call.key, call.problem)
        if words.ndim > 1:
            return call.replace(**numbers), False
        numbers["key"] = words[None]  # its own, not that of lane 0
    if not all(is_shared(numbers[name]) for name in STATED):
        return call.replace(**numbers), False
    return call.replace(**numbers, q0=real_array("q0", call.q0)[None]), True


def numbers_of_one(name: str, call: Call) -> Any:
    """Restitution or coefficients of friction of a call in a valid shape for lanes,
    if no other argument has a lane axis.

    Shape (m,), with m contacts, is one number for each contact, as in `solve`, and becomes (1, m); every other is
    returned as it is. ``name``: "e", "friction" or "static_friction".
    """
    given = getattr(call, name)
    if isinstance(given, list | tuple):
        given = real_array(STATED[name], given)  # refuses rows of several lengths
    if given is None or callable(given) or np.ndim(given) != 1 or len(given) < 2:
        return given
    check_problem(call.problem)
    q0, given = real_array("q0", call.q0), real_array(STATED[name], given)
    scheme = choose_methods(call.scheme, None, call.problem, call.has_steps)[0]
    args = cast_numbers("args", call.args, q0.dtype)
    m = contacts_of(name, call.problem, q0, args, full_axes(args, None), scheme)
    return given[None] if len(given) == m else given
