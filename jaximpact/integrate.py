"""`solve`: one motion as one jitted `lax.scan`, what to save of it, and the `Solution`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike

from .contact import Metric, closure, linearise
from .derivatives import REVERSE_INSIDE, TWICE, UNDIFFERENTIATED, forward_first, guarded
from .lanes import few, few_differentiated
from .problem import Problem
from .projection import ContactLaw, ContactSolver, Solved
from .save import Save
from .scalarise import scalarise
from .schemes.base import Info, Inputs, Scheme, Timing, finite
from .sensitivity import Corrected, end, synchronous
from .solution import Solution
from .status import DERIVATIVES, FAILURES, Status, as_status
from .stream import stream
from .threads import interruptible, refuse_fork
from .validate import (
    Data,
    canonical,
    check_choice,
    check_memory,
    check_start,
    choose_methods,
    count_steps,
    differentiable,
    is_traced,
    outcome,
    remark,
)

ALIGNED = 1e-9  # of a step: times as near as that to a step's end are its end
LOOK = 15  # steps after which the stability of the force is looked at; odd, since what is unstable alternates
SEGMENTED = 32  # steps from which reverse mode keeps the states between segments only
LAYOUTS = ("auto", "scalar", "array")
MUCH_WORK = 1e7  # trajectory-steps from which their longer compilation pays
SMALL_SYSTEM = 8  # coordinates and constraints up to which separate numbers are faster
FEWER_ROWS = "keep fewer rows (save='final', every k-th step, times, or a function), or compute fewer motions at once"
SENSITIVITIES = ("corrected", "discrete", "none")


class Lane(NamedTuple):
    """Numbers of one trajectory, ready for the scan."""

    q0: Array
    v0: Array
    t1: Array
    steps: Array
    length: Array
    times: Array
    inputs: Inputs


class Plan(NamedTuple):
    """Everything that shapes the loop: static, one trace for each.

    ``length`` None: as many steps as ``Lane.length`` says, one trace for any number, no reverse mode. ``sensitivity``
    as in `solve`; ``scalar``: small arrays as separate numbers; ``few``: lanes that need no projection are advanced
    without it, all at once, and the others a few at a time (`lanes.few`), on processors that can branch; ``alone``:
    there is only one; ``devices``: how many share the lanes of a batch; ``kernel``: all lanes as one
    kernel of a GPU, if a motion has no more operations than that; ``native``: as native code of a CPU, where a branch is taken
    by the lanes that need it.
    """

    length: int | None
    ragged: bool
    every: int | None
    rows: int
    function: Callable | None
    sensitivity: str = "none"
    scalar: bool = False
    few: bool = False
    alone: bool = False
    devices: int = 1
    kernel: int = 0
    native: bool = False

    @property
    def lean(self) -> bool:
        """Whether contact steps are made only where something happens or is kept: another program, with
        roundings of its own, and not for derivatives, all rows, or lanes of different numbers of steps."""
        full = self.length is not None or self.sensitivity != "none" or self.ragged or self.every == 1
        return self.native or (self.few and not full)


class Turn(NamedTuple):
    """What native code is told of a row: the number of its step, or its time; whether it is the last, at t1, and whether to look
    at the stability of the force there."""

    number: Any
    time: Any
    last: Any
    look: Any

    @classmethod
    def of(cls, plan: Plan, times: Any) -> Turn:
        """Those of all rows of a plan."""
        times = np.append(times, 0) if plan.every is None else np.zeros(plan.rows + 1, times.dtype)
        number = np.arange(len(times)) * (plan.every or 0)
        last = np.arange(len(times)) == plan.rows
        often = plan.every is not None and plan.every < LOOK
        return cls(number.astype(np.int32), times, last, last | (number % LOOK == 0) if often else np.ones_like(last))


class Row(NamedTuple):
    """What a saved row holds until it is interpolated."""

    q: Array
    v: Array
    z: Array
    impulse: Array
    chord: Array
    last: Array
    before: Any = None  # state and impulse at the start of its step, of a scheme that can step to a row's time


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Part:
    """A scheme whose step ends after a time ``length``, within the step."""

    scheme: Any
    length: Array

    def step(self, problem: Problem, law: ContactLaw, inputs: Inputs, state: Any) -> tuple[Any, Info]:
        """The state then; its number is that of the full step."""
        return self.scheme.step(problem, law, inputs, state, self.length)

    def free_step(self, problem: Problem, inputs: Inputs, state: Any) -> tuple[Any, Info]:
        """As `step`, without impulses."""
        return self.scheme.free_step(problem, inputs, state, self.length)


def start(problem: Problem, law: ContactLaw, inputs: Inputs, q0: Array, v0: Array) -> tuple[Array, Array, Array]:
    """v0 projected onto the admissible velocities T(t0, q0) in the kinetic metric (Paoli 2010, initial data (P4)).

    Returns the velocity, the impulse of that projection (m,) and status bits.
    """
    t0, h, _, args = inputs
    contacts = linearise(problem, Metric.at(problem, q0, args), t0, q0, args)
    gap_velocity = contacts.gap_velocity(v0)
    at = closure(contacts, gap_velocity, q0, v0, h)
    found = law.velocity(contacts, gap_velocity, at.closed)
    inside = jnp.all((inputs.e >= 0) & (inputs.e <= 1)) & (inputs.h > 0)
    status = (
        (found.status & ~int(Status.IMPULSES_COUPLED))  # inelastic
        | as_status(jnp.any(at.outward), Status.START_VELOCITY_PROJECTED)
        | as_status(jnp.any(at.violated), Status.START_NOT_ADMISSIBLE)
        | as_status(~inside, Status.INPUT_OUT_OF_RANGE)
    )
    return v0 + found.jump, found.impulse, status


def noted(measures: tuple, bits: Array, t: Array) -> tuple:
    """The accounts of a motion with status bits that it got at time t; the first failure gives the time of failing."""
    *rest, status, failed_at = measures
    failing = ((bits & int(FAILURES)) != 0) & ((status & int(FAILURES)) == 0)
    return (*rest, status | bits, jnp.where(failing, t, failed_at))


def trajectory(problem: Problem, scheme: Scheme, projection: ContactSolver, lane: Lane, plan: Plan) -> Solution:
    """One motion, a pure function of one lane's arrays: batch it from outside with `jax.vmap`."""
    inputs = lane.inputs
    t0, h, _, args = inputs
    locates = scheme.timing(inputs.e) is None  # impacts, and makes part steps
    differentiated = plan.sensitivity != "none" and problem.constraints is not None
    corrected = plan.sensitivity == "corrected" and differentiated and not locates
    timing, starts_at, law = Timing.of(scheme), scheme.starts_at, Solved(projection)
    if corrected:
        scheme = Corrected(scheme)
    # rules that jax forgets in reverse mode inside another derivative: those of a mass matrix, of a step
    forgetful = differentiated or (plan.sensitivity != "none" and Metric.at(problem, lane.q0, args).factor is not None)

    v0, impulse, status = start(problem, law, inputs, lane.q0, lane.v0)
    state, info = scheme.init(problem, law, inputs, lane.q0, v0)
    initial = Row(lane.q0, v0, lane.q0, impulse, jnp.zeros_like(v0), impulse)
    if locates:
        initial = initial._replace(before=(state, impulse))
    # step number at or after each saved time, and the first of the times that share a step
    index = _step_at_or_after(lane.times, t0, h)
    if not plan.lean:
        first = jnp.searchsorted(index, index).astype(index.dtype)
        after = jnp.searchsorted(index, index, side="right").astype(index.dtype)

    # a scheme that can make part of a step makes the last one end at t1
    over = inputs.time(lane.steps) - lane.t1
    over = jnp.where(over > ALIGNED * h, over, 0) if locates else jnp.zeros_like(over)

    def until(k: Any) -> Any:
        """The scheme whose step ends with number k, or at t1."""
        return Part(scheme, jnp.where(k == lane.steps, h - over, h)) if locates else scheme

    # a step up to a row's time is for kept rows alone: not within the loop over all steps
    afterwards = plan.function is None or (plan.every is None and not plan.lean and locates)

    def content(k: Any, row: Row, pointer: Any) -> Any:
        if plan.every is not None:
            row = row._replace(before=None)
        if afterwards:
            return row
        t = inputs.time(k) if plan.every is not None else jnp.take(lane.times, pointer, mode="clip")
        row = in_time(t, row, inputs.time(k) - t)
        return evaluate(plan.function, t, row.q, row.v, args)

    def in_time(t: Array, row: Row, back: Array) -> Row:
        """The row at time t, which is ``back`` before its step ended."""
        found = _interpolate(row, back, h)
        if corrected:
            found = found._replace(v=synchronous(problem, scheme, inputs, t, *found[:2], found.impulse, found.last))
        if row.before is None:
            return found
        before, impulse = row.before
        inside = back > ALIGNED * h
        part: Any = Part(scheme, jnp.where(inside, h - back, h))
        new, info = step(problem, part, law, inputs, before)
        exact = row_of(new, info, impulse, before)
        return jax.tree.map(lambda x, y: jnp.where(inside, x, y), exact, found)._replace(before=None)

    def slot(k: Any, pointer: Array) -> tuple[Array, Array]:
        # where step k goes: the spare last row if nowhere
        if plan.every is not None:
            return jnp.where(k % plan.every == 0, jnp.minimum(k // plan.every, plan.rows), plan.rows), pointer
        hit = (pointer < plan.rows) & (jnp.take(index, pointer, mode="clip") == k)
        return jnp.where(hit, pointer, plan.rows), jnp.where(hit, jnp.take(after, pointer, mode="clip"), pointer)

    def record(buffer: Any, k: Any, row: Row, pointer: Array, live: Any = True) -> tuple[Any, Array]:
        if plan.rows == 0 or plan.lean:
            return buffer, pointer
        where, pointer_new = slot(k, pointer)
        where = jnp.where(live, where, plan.rows)
        value = content(k, row, pointer)
        buffer = jax.tree.map(lambda b, x: lax.dynamic_update_index_in_dim(b, x, where, 0), buffer, value)
        return buffer, jnp.where(live, pointer_new, pointer)

    def account(
        k: Any, state: Any, info: Info, measures: tuple, problem: Problem = problem, inputs: Inputs = inputs
    ) -> tuple:
        """Accumulate what is reported of the whole motion: of a state, and of the step k that led to it or leaves it."""
        # the problem and the inputs of a lane are arguments: see `lanes.few`
        penetration, residual, iterations, *remarks = measures
        t = inputs.time(state.n)
        gaps = problem.gaps(t, state.q, inputs.args)
        lost = as_status(~finite(state), Status.NON_FINITE)
        measures = (
            jnp.maximum(penetration, jnp.max(-gaps, initial=0.0)),
            jnp.maximum(residual, info.residual),
            iterations + info.iterations,
            *remarks,
        )
        return noted(measures, info.status | lost, jnp.where(lost > 0, t, inputs.time(k)))

    def stable(state: Any, measures: tuple) -> tuple:
        """The accounts, with a failure where the force is too stiff for h: looked at now and then, it costs two forces."""
        state = lax.stop_gradient(state)
        bits = as_status(scheme.unstable(problem, lax.stop_gradient(inputs), state), Status.STEP_UNSTABLE)
        return noted(measures, bits, inputs.time(state.n))

    def row_of(state: Any, info: Info, before: Array, start: Any) -> Row:
        """Of the state that a step led to, from the impulse ``before`` it and the state at its start."""
        impulse = jnp.where(finite(state), before + info.impulse, jnp.nan)
        kept = (start, before) if locates else None
        return Row(state.q, state.v, info.z, impulse, info.chord, info.impulse, kept)

    zero = jnp.zeros((), lane.q0.dtype)
    none = jnp.zeros((), jnp.int32)
    measures = noted((zero, zero, none, none, jnp.full_like(zero, jnp.nan)), status, t0)
    # kept rows, and a spare one for steps that are not kept
    buffer = None
    if plan.rows and not plan.lean:
        shape = jax.eval_shape(lambda row: content(0, row, 0), initial)
        buffer = jax.tree.map(lambda x: jnp.zeros((plan.rows + 1, *x.shape), x.dtype), shape)
    buffer, pointer = record(buffer, 0, initial, jnp.zeros((), index.dtype))
    measures = account(starts_at, state, info, measures)
    row = initial
    if starts_at > 0:
        row = row_of(state, info, initial.impulse, state)
        buffer, pointer = record(buffer, starts_at, row, pointer)

    # nothing a lane could be spared
    direct = not (locates or corrected or plan.native) and law.direct(problem, t0, lane.q0, args)

    def step(*system: Any) -> Any:
        """A step of (problem, scheme, law, inputs, state); with the law for the lanes in which a contact acts."""

        def free(system: Any) -> tuple[Any, Array]:
            problem, scheme, _, inputs, state = system
            new, info = scheme.free_step(problem, inputs, state)
            return (new, info), unsettled(new, info)

        contact = lambda system: system[1].step(system[0], *system[2:])
        if direct or not plan.few or problem.constraints is None:
            return contact(system)
        return few_differentiated(free, contact, TWICE if corrected else REVERSE_INSIDE)(system)

    def body(carry: Any, k: Array) -> tuple[Any, None]:
        state, row, measures, buffer, pointer = carry
        state_new, info = step(problem, until(k), law, inputs, state)
        if forgetful and not corrected:
            state_new = forward_first(state_new)
        row_new, measures_new = row_of(state_new, info, row.impulse, state), account(k, state_new, info, measures)
        measures_new = lax.cond(k % LOOK == 0, stable, lambda _, measures: measures, state_new, measures_new)
        live: Any = True
        if plan.ragged:
            live = k <= lane.steps
            new, old = (state_new, row_new, measures_new), (state, row, measures)
            state_new, row_new, measures_new = jax.tree.map(lambda x, y: jnp.where(live, x, y), new, old)
        buffer, pointer = record(buffer, k, row_new, pointer, live)
        return (state_new, row_new, measures_new, buffer, pointer), None

    def attempt(state: Any, impulse: Array, measures: tuple, target: Array) -> tuple[Any, Array]:
        """A step towards number ``target`` without what is rare, and whether it is right; a step that is kept has all that
        belongs to one."""
        new, impulse, measured, _, right = tried(state, impulse, measures)
        return (new, impulse, measured), right & (new.n < target)

    def tried(state: Any, impulse: Array, measures: tuple) -> tuple:
        """A step without what is rare, what it does to impulse and accounts, and whether it is right.

        Rare are impulses, unless the law is straight-line arithmetic, larger penetrations than before, failures.
        """
        penetration, residual, iterations, *rest = measures
        gaps = problem.gaps(inputs.time(state.n), state.q, args)
        if direct:
            new, info = scheme.step(problem, law, inputs, state)
            right = (info.status == 0) & finite(new)
            penetration = jnp.maximum(penetration, jnp.max(-gaps, initial=0.0))
            residual = jnp.maximum(residual, info.residual)
        else:
            new, info = scheme.free_step(problem, inputs, state)
            right = ~unsettled(new, info) & jnp.all(gaps >= -penetration)
        measured = (penetration, residual, iterations + info.iterations, *rest)
        return new, impulse + info.impulse, measured, info, right

    def contact_step(
        state: Any,
        impulse: Array,
        measures: tuple,
        problem: Problem = problem,
        scheme: Any = scheme,
        law: ContactLaw = law,
        inputs: Inputs = inputs,
    ) -> tuple[Any, Row, tuple]:
        new, info = scheme.step(problem, law, inputs, state)
        return new, row_of(new, info, impulse, state), account(state.n + 1, state, info, measures, problem, inputs)

    def among_many(carry: Any, target: Array) -> Any:
        """A step of all lanes of a batch, made with the law for the few that need it."""
        state, row, measures = carry
        (new, impulse, measured), right = attempt(state, row.impulse, measures, target)

        def work(value: Any, operands: Any) -> Any:
            # reached so far by those that attempt anything, and more by those that fail it
            state, impulse, iterations, *system = operands
            penetration, residual, _, *rest = value[2]
            new, row, measures = contact_step(state, impulse, (penetration, residual, iterations, *rest), *system)
            return new[1:], row, measures

        value = (new[1:], row._replace(impulse=impulse), measured)
        operands = (state, row.impulse, measures[2], problem, until(state.n + 1), law, inputs)
        rest, row, measures = few(work, ~right, value, operands)
        return type(state)(new.n, *rest), row, measures

    def alone(carry: Any, target: Array) -> Any:
        """Steps of one lane until one needs the law, and that one: a loop small enough to be fast."""
        state, row, measures = carry

        def advance(carry: tuple[tuple[Any, Array, tuple], Array]) -> Any:
            found, right = attempt(*carry[0], target)
            return jax.tree.map(lambda new, old: jnp.where(right, new, old), found, carry[0]), right

        start = (state, row.impulse, measures), jnp.asarray(True)
        now, _ = lax.while_loop(lambda carry: carry[1], advance, start)
        return contact_step(*now, scheme=until(now[0].n + 1))

    def in_lane(carry: Any, target: Array) -> Any:
        """A step of one lane of many that branch, as native code does."""
        state, row, measures = carry
        new, impulse, measured, info, right = tried(state, row.impulse, measures)
        if plan.rows == 0 or locates:
            right &= new.n < (target if plan.rows == 0 else length)  # the last step has all that belongs to one
        row_new = row_of(new, info, row.impulse, state) if plan.rows else row._replace(impulse=impulse)

        def made() -> tuple:
            new, row_new, measured = contact_step(state, row.impulse, measures, scheme=until(state.n + 1))
            return new[1:], row_new, measured

        # the number of the step is that of all lanes, which spares them a choice
        rest, row, measures = lax.cond(right, lambda: (new[1:], row_new, measured), made)
        return type(state)(new.n, *rest), row, measures

    def streamed_row(carry: Any, turn: Turn) -> tuple[Any, Any]:
        """Steps up to the next row, and that: its time, state and energy, or what is saved in their place."""
        target = turn.number if plan.every is not None else _step_at_or_after(turn.time, t0, h)
        target = jnp.where(turn.last, length, target)
        carry = lax.while_loop(lambda carry: carry[0].n < target, partial(in_lane, target=target), carry)
        state, row, measures = carry
        measures = lax.cond(turn.look, stable, lambda _, measures: measures, state, measures)
        carry = (state, row, measures)
        row = jax.tree.map(lambda x, y: jnp.where(target == 0, x, y), initial, row)
        if plan.every is not None or plan.rows == 0:
            row = row._replace(before=None)
        t = jnp.where(turn.last, lane.t1, turn.time if plan.every is None else inputs.time(target))
        row = in_time(t, row, jnp.where(turn.last, ended.time(target), inputs.time(target)) - t)
        if plan.function is not None:
            return carry, (t, evaluate(plan.function, t, row.q, row.v, args))
        energy = problem.energy
        energies = None if energy is None else jnp.asarray(energy(t, row.q, row.v, args), row.q.dtype)
        return carry, (t, row.q, row.v, row.z, row.impulse, energies)

    def kept_row(carry: Any, target: Array, i: Array) -> tuple[Any, Any]:
        """Steps up to number ``target``, and what is kept of that one for the i-th saved time."""
        advance = partial(alone if plan.alone else among_many, target=target)
        if direct and not plan.alone:
            # the step that is kept costs all lanes together little more than any other
            carry = lax.while_loop(lambda carry: carry[0].n < target - 1, advance, carry)
            last = lambda carry: contact_step(carry[0], carry[1].impulse, carry[2])
            carry = lax.cond(carry[0].n < target, last, lambda carry: carry, carry)
        else:
            carry = lax.while_loop(lambda carry: carry[0].n < target, advance, carry)
        row = jax.tree.map(lambda x, y: jnp.where(target == 0, x, y), initial, carry[1])
        carry = (*carry[:2], stable(carry[0], carry[2]))
        return carry, content(target, row, i)

    ended = inputs._replace(t0=inputs.t0 - over)  # the clock of the last state
    first_step = jnp.asarray(starts_at + 1, jnp.int32)
    length = lane.length if plan.length is None else plan.length
    rows: Any
    if plan.native:
        dtypes = Turn(jnp.int32, lane.q0.dtype, bool, bool)
        each = Turn._make(jax.ShapeDtypeStruct((), dtype) for dtype in dtypes)
        (state, row, measures), rows = stream(streamed_row, (state, row, measures), each)
        still = Info.none(state.q, state.v, len(row.impulse))
        measures = account(length, state, still, measures, inputs=ended)
    elif plan.lean:
        numbers = jnp.arange(plan.rows + 1, dtype=jnp.int32)
        kept = numbers * plan.every if plan.every is not None else jnp.append(index, length)
        kept = kept.at[-1].set(length)
        (state, row, measures), buffer = lax.scan(
            lambda now, x: kept_row(now, *x), (state, row, measures), (kept, numbers)
        )
        still = Info.none(state.q, state.v, len(row.impulse))
        measures = account(length, state, still, measures, inputs=ended)
    else:
        carry = (state, row, measures, buffer, pointer)
        if plan.length is None:
            carry = lax.fori_loop(first_step, length + 1, lambda k, carry: body(carry, k)[0], carry)
        else:
            numbers = jnp.arange(starts_at + 1, plan.length + 1, dtype=jnp.int32)
            carry = (
                _scan(body, carry, numbers) if plan.sensitivity == "none" else _scan_in_segments(body, carry, numbers)
            )
        state, row, measures, buffer, _ = carry
        measures = stable(state, measures)
    if corrected or (differentiated and locates):
        bits = end(problem, ended, lane.steps, state)
        measures = (*measures[:3], measures[3] | bits, measures[4])
    elif locates:
        measures = (*measures[:3], measures[3] & ~int(DERIVATIVES), measures[4])

    if plan.native and plan.function is None:
        found: Any = (*rows, None, *measures)
        return guarded(Solution(*found, timing=timing), UNDIFFERENTIATED)  # type: ignore[misc]
    final = in_time(lane.t1, row._replace(before=None), ended.time(lane.steps) - lane.t1)
    final_value = final if plan.function is None else evaluate(plan.function, lane.t1, final.q, final.v, args)
    if plan.native:
        return _with_values(timing, rows, final, measures, problem.energy, lane)
    rows = jax.tree.map(lambda b: b[: plan.rows], buffer)
    if plan.every is not None:
        times = inputs.time(jnp.arange(plan.rows) * plan.every)
    else:
        times = lane.times
        if afterwards and plan.rows and not plan.lean:
            rows = jax.tree.map(lambda b: b[first], rows)
    if afterwards and plan.rows:
        back = inputs.time(index) - times if plan.every is None else jnp.zeros_like(times)
        rows = jax.vmap(in_time)(times, rows, back)
        function = plan.function
        if function is not None:
            rows = jax.vmap(lambda t, row: evaluate(function, t, row.q, row.v, args))(times, rows)
    if plan.rows:
        rows = jax.tree.map(lambda b, x: jnp.concatenate([b, x[None]]), rows, final_value)
    else:
        rows = jax.tree.map(lambda x: x[None], final_value)
    times = jnp.concatenate([times, lane.t1[None]])
    kept, values = (rows, None) if plan.function is None else (jax.tree.map(lambda x: x[None], final), rows)
    kept_times = times if plan.function is None else times[-1:]
    energy = problem.energy
    energies = None
    if energy is not None:
        energies = jax.vmap(lambda t, q, v: jnp.asarray(energy(t, q, v, args), q.dtype))(kept_times, kept.q, kept.v)
    found = (times, kept.q, kept.v, kept.z, kept.impulse, energies, values, *measures)
    solution = Solution(*found, timing=timing)  # type: ignore[misc]
    return guarded(solution, UNDIFFERENTIATED) if plan.sensitivity == "none" else solution


def _with_values(timing: Timing, rows: Any, final: Row, measures: tuple, energy: Any, lane: Lane) -> Solution:
    """The solution of native code that has saved a function's values."""
    t, values = rows
    q, v, z, impulse = final[:4]
    energies = None if energy is None else jnp.asarray(energy(lane.t1, q, v, lane.inputs.args), q.dtype)[None]
    found: Any = (t, q[None], v[None], z[None], impulse[None], energies, values, *measures)
    return guarded(Solution(*found, timing=timing), UNDIFFERENTIATED)  # type: ignore[misc]


def unsettled(state: Any, info: Info) -> Array:
    """Whether a free step is not to be used."""
    return info.acts | (info.status != 0) | ~finite(state)


def _scan(body: Callable, carry: Any, numbers: Array) -> Any:
    return lax.scan(body, carry, numbers)[0]


def _scan_in_segments(body: Callable, carry: Any, numbers: Array) -> Any:
    """The same, with little memory for reverse mode.

    Only the states between segments are kept, and their number is about the square root of the number of steps; a
    segment is computed again when its derivative is taken.
    """
    count = len(numbers)
    root = math.isqrt(count)
    if count < SEGMENTED:
        return _scan(body, carry, numbers)
    # a length that divides the count spares a second copy of the step
    length = next((k for i in range(root // 2) for k in (root - i, root + i) if count % k == 0), root)
    whole = count - count % length
    segment = jax.checkpoint(partial(_scan, body), prevent_cse=False)
    carry = _scan(lambda c, ks: (segment(c, ks), None), carry, numbers[:whole].reshape(-1, length))
    return _scan(body, carry, numbers[whole:]) if whole < count else carry


def evaluate(function: Any, t: Array, q: Array, v: Array, args: Any) -> Any:
    """What a save function returns, as arrays."""
    return jax.tree.map(jnp.asarray, function(t, q, v, args))


def _step_at_or_after(times: Array, t0: Array, h: Array) -> Array:
    """Number of the first step at or after each time, up to round-off."""
    ratio = (times - t0) / h
    slack = 4 * jnp.finfo(times.dtype).eps * (1 + jnp.abs(ratio) + jnp.abs(t0) / h)
    return jnp.ceil(ratio - slack).astype(jnp.int32)


def _interpolate(row: Row, back: Array, h: Array) -> Row:
    """The row a time ``back`` before its step ended: affine position, impulse spread over the step."""
    return row._replace(q=row.q - back * row.chord, impulse=row.impulse - (back / h) * row.last)


def motion(problem: Problem, scheme: Scheme, projection: ContactSolver, lane: Lane, plan: Plan) -> Solution:
    """`trajectory` in the plan's layout."""
    if not plan.scalar:
        return trajectory(problem, scheme, projection, lane, plan)
    unknown: list[str] = []
    found = scalarise(partial(trajectory, problem, scheme, projection, plan=plan), unknown.append)(lane)
    if unknown:
        remark(
            f"no elementwise rule for {', '.join(sorted(set(unknown)))} in the problem's functions or the projection: done on arrays, more "
            "slowly; layout='array' may be faster",
            stacklevel=2,
        )
    return found


def is_scalar(layout: str, d: int, m: int, work: float = np.inf) -> bool:
    """Whether a layout means separate numbers; "auto" does for small systems and much work (trajectory-steps)."""
    check_choice("layout", layout, LAYOUTS)
    return layout == "scalar" or (layout == "auto" and max(d, m) <= SMALL_SYSTEM and work >= MUCH_WORK)


run = partial(jax.jit, static_argnames=("plan",))(motion)


def solve(
    problem: Problem,
    q0: ArrayLike,
    v0: ArrayLike,
    *,
    t1: ArrayLike,
    h: ArrayLike | None = None,
    steps: int | None = None,
    t0: ArrayLike = 0.0,
    scheme: Scheme | None = None,
    projection: ContactSolver | None = None,
    args: Any = None,
    e: ArrayLike | None = None,
    save: Any = "all",
    sensitivity: str = "corrected",
    layout: str = "array",
) -> Solution:
    """Integrate one motion from (q0, v0) at t0 to t1.

    Steps of size h are made until the last lands at or beyond t1; the last row of the solution is the state at t1,
    interpolated between the two steps around it where t1 - t0 is no multiple of h. One trace serves all numbers of the
    same shapes and the same count of steps.

    Differentiable, in forward and reverse mode, and vmappable with respect to q0, v0, args, e, numbers the problem's
    functions close over and, with ``steps`` in place of h, t0 and t1; numbers that are traced are not checked. By
    default derivatives converge, as h -> 0, to those of the motion, across impacts too; the status says where they
    are not to be trusted (`Status`, DERIVATIVE_...).

    Args:
        problem: the mechanical system.
        q0: initial position (d,), admissible: every gap >= 0. Its dtype (float64 or float32) is that of the run.
        v0: initial velocity (d,); where it points out of the admissible set it is projected, with a warning.
        t1: final time > t0 [s].
        h: step [s], 0 < h <= t1 - t0; or ``steps``, their number, and h = (t1 - t0)/steps.
        scheme: `PaoliSchatzman()` (default), `Maury()`, `MoreauJean()` or `EventCorrected()`.
        projection: `ActiveSet()` (default), `ProjectedGradient()` or `ADMM()`.
        args: parameters handed to the problem's functions, any pytree of numbers and arrays.
        e: restitution in [0, 1], in place of the problem's own.
        save: "all" steps, "final", every k-th step (k), an array of times, or `Save`.
        sensitivity: the derivative of the solution. "corrected", of the motion, to O(h): the discrete map's on smooth
            pieces and in lasting contact, a saltation at impacts; "discrete", of the discrete map, exactly (wrong
            across impacts, whatever h); "none", differentiation raises. The values are the same in all three. Second
            derivatives, with forward mode inside: of the motion with `EventCorrected`, of the discrete map with
            "discrete"; others raise.
        layout: "array", or "scalar": every small array held as separate numbers, which compiles longer and runs
            faster under `jax.vmap`; "auto", "scalar" up to eight coordinates and constraints. Equal to a few ulp a
            step.

    Returns:
        A `Solution`. Nothing raises inside the computation: see its ``status`` and ``raise_if_failed()``.

    Raises:
        ValueError, TypeError: an argument has a wrong shape, type or value; the message names it and says what to do.

    Reference: the schemes' own files; the limit as h -> 0 is the measure differential inclusion of Paoli (2010), (P1)-(P4).
    """
    refuse_fork()
    scheme, projection = choose_methods(scheme, projection)
    data = canonical(problem, q0, v0, t0, t1, h, steps, e, args, scheme)
    outward = check_start(data)
    if outward:
        remark(outward, stacklevel=2)
    number = int(steps) if steps is not None else _count(data)
    plan, times = make_plan(Save.of(save), data, number)
    check_choice("sensitivity", sensitivity, SENSITIVITIES)
    m = data.problem.count(data.t0, data.q0, data.args)
    # the rows while they are made, the rows that are returned, and the numbers of the steps
    size = 2.0 * (plan.rows + 1) * row_size(data, m, plan) + 4.0 * number
    check_memory(size, f"save: a motion of {number} steps with {plan.rows + 1} rows", FEWER_ROWS)
    few = jax.default_backend() == "cpu"
    plan = plan._replace(sensitivity=sensitivity, scalar=is_scalar(layout, data.q0.shape[0], m), few=few)
    count = jnp.asarray(number, jnp.int32)
    lane = Lane(data.q0, data.v0, data.t1, count, count, times, Inputs(data.t0, data.h, data.e, data.args))
    with differentiable():
        return interruptible(lambda: run(data.problem, scheme, projection, lane, plan), number)


def row_size(one: Data, m: int, plan: Plan) -> int:
    """Bytes of a saved row of one motion."""
    if plan.function is not None:
        found = outcome(
            "save: function(t, q, v, args)", partial(evaluate, plan.function), one.t0, one.q0, one.v0, one.args
        )
        if not jax.tree.leaves(found):
            raise TypeError("save: function(t, q, v, args) returns nothing: is a return missing?")
        return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(found))
    return (3 * one.q0.shape[0] + m + 1 + (one.problem.energy is not None)) * one.q0.dtype.itemsize


def _count(data: Data) -> int:
    if is_traced(data.h, data.t0, data.t1):
        raise ValueError(
            "h, t0 and t1 must be concrete for solve to know the number of steps: under jit, vmap or grad over them, give "
            "steps=N in place of h (for a sweep over h use ensemble)"
        )
    return int(count_steps(float(data.t0), float(data.t1), float(data.h), float(jnp.finfo(data.q0.dtype).eps)))


def make_plan(save: Save, data: Data, length: int) -> tuple[Plan, Any]:
    """The static plan of a run of ``length`` steps, and the saved times before t1."""
    dtype = data.q0.dtype
    empty = jnp.zeros((0,), dtype)
    if save.every is not None:
        return Plan(length, False, save.every, -(-length // save.every), save.function), empty
    if save.times is None:
        return Plan(length, False, None, 0, save.function), empty
    times = save.times.astype(dtype) if is_traced(save.times) else np.asarray(save.times, dtype)
    if times.ndim != 1:
        raise ValueError(f"save: times must have shape (k,), got {times.shape}")
    if not is_traced(times):
        times = _check_times(times, data, save)
    return Plan(length, False, None, times.shape[0], save.function), times


def _check_times(times: np.ndarray, data: Data, save: Save) -> np.ndarray:
    if not np.all(np.isfinite(times)) or np.any(np.diff(times) <= 0):
        raise ValueError("save: times must be finite and strictly increasing")
    if not is_traced(data.h) and save.function is not None and np.min(np.diff(times), initial=np.inf) < np.max(data.h):
        raise ValueError("save: with a function, times must be at least h apart; store the state, or take a smaller h")
    if is_traced(data.t0, data.t1) or times.size == 0:
        return times
    t0, t1, latest = (float(x) for x in (np.max(data.t0), np.min(data.t1), np.max(data.t1)))
    slack = 8 * np.finfo(times.dtype).eps * max(abs(t0), abs(latest))
    if times[0] < t0 - slack or times[-1] > t1 + slack:
        raise ValueError(f"save: times must lie in [t0, t1] = [{t0:g}, {t1:g}], got [{times[0]:g}, {times[-1]:g}]")
    # the final row stands for a last time equal to t1
    return times[:-1] if times[-1] >= latest - slack else times
