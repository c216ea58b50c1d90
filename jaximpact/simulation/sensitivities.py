"""Dense Jacobians of motions, one or many at once, by the cheaper mode of automatic differentiation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import as_tuple, check_choice
from ..jaxtools.shapes import PyTree, array_module
from ..jaxtools.trace_context import platform
from ..jaxtools.warnings import without_remarks
from ..mechanics.motion import OF_FRICTION, STATED, By, Motion
from ..mechanics.schemes.event_driven import EventDriven
from ..mechanics.status import Status
from ..mechanics.user_functions import named_errors
from ..results import Sensitivities, Solution
from .arguments import start_reports
from .backends import batch_backend, directions_are_lanes, execution_of, one_lane, through_xla
from .call import Arguments, Call, as_lanes, for_lanes
from .chunked_runs import devices, in_chunks
from .lane_arguments import refuse_traced
from .lanes import Lanes
from .left_out_bounces import LeftOut, status_of_bounces
from .limits import (
    MAX_FORWARD_DIRECTIONS,
    MAX_REVERSE_INPUTS,
    MAX_SMALL_SYSTEM,
    MAX_SPARE_BYTES,
)
from .one_sided import displace_lanes, extrapolate_to_zero
from .primitive import bind, bytes_of_states, has_way_back
from .program import Program
from .start_report import refused_lanes
from .trajectory import structure, trajectory

NAMES = ("q0", "v0", *STATED, "args", "t0", "t1")


def state(solution: Solution) -> dict:
    """The default outputs: positions and velocities of the saved rows,
    without the row axis if there is one row only."""
    rows = 0 if solution.q.shape[0] == 1 else slice(None)
    return {"q": solution.q[rows], "v": solution.v[rows]}


def end_of_motion(solution: Solution) -> dict:
    """The default outputs with ``until=``: those of `state`, and the times of the rows."""
    return state(solution) | {"t": solution.t[0 if solution.t.shape[0] == 1 else slice(None)]}


def sensitivities(
    call: Call,
    wrt: str | Sequence[str] = ("q0", "v0"),
    output: Callable[[Solution], object] = state,
    sensitivity: str = "corrected",
    mode: str | None = None,
    direction: Mapping[str, object] | None = None,
) -> Sensitivities:
    """Jacobians of the outputs of motions by their inputs: see `jaximpact.sensitivities`."""
    wrt = as_tuple(wrt)
    unknown = [name for name in wrt if not (isinstance(name, str) and name in NAMES)]
    if unknown or not wrt:
        raise ValueError(f"wrt={wrt!r}: name some of {', '.join(map(repr, NAMES))}")
    if "args" in wrt and call.args is None:
        raise ValueError("wrt names 'args', but args is None: hand the problem's numbers over in args")
    check_choice("sensitivity", sensitivity, ("corrected", "discrete"))
    check_choice("mode", mode, ("forward", "reverse", None))
    if not callable(output):
        raise TypeError("output must be a function output(solution) -> pytree of arrays")
    refuse_traced((call.problem, call.q0, call.v0, call.t0, call.t1, call.h, call.args, call.of_contacts))
    problem, until = call.problem, call.until
    lane_call, single = as_lanes(call)
    program, lanes = for_lanes(lane_call)
    execution_of(call.execution, program.problem)  # raises where there is no such one
    output = end_of_motion if until is not None and output is state else output
    if "e" in wrt and callable(program.problem.restitution):
        raise ValueError(
            "wrt names 'e', but restitution is a function: name 'args', and let it take its numbers from there"
        )
    for name in OF_FRICTION:
        if name in wrt and getattr(lanes.motion, name) is None:
            why = (
                "is a function of args: name 'args'"
                if callable(getattr(problem, name))
                else f"is not stated: give slip and {name} to the problem"
            )
            raise ValueError(f"wrt names {name!r}, but {name} {why}")
    if "args" in wrt and not any(
        jnp.issubdtype(x.dtype, jnp.floating) and x.size for x in jax.tree.leaves(lanes.motion.args)
    ):
        raise ValueError("wrt names 'args', but args holds no real number: hand the problem's numbers over in args")
    program = program.replace(sensitivity=sensitivity, by=inputs_of(lanes.motion, wrt))
    if mode is None or not program.scheme.traits.reverse:
        mode = cheaper(program, lanes.take(0), wrt, output, call.execution)
    near = lanes if direction is None else displace_lanes(program.problem, program.scheme, lanes, direction)
    found = jacobians(program, near, Jacobian(wrt, output, mode), call.execution, call.chunk, call.progress)
    jacobian, (value, status) = found if near is lanes else extrapolate_to_zero(found, lanes.count)
    one = lanes.take(0)
    if not single:
        return Sensitivities(value, jacobian, status, mode, chosen_numbers(lanes, wrt))
    jacobian, value, status = jax.tree.map(lambda x: x[0], jax.device_get((jacobian, value, status)))
    stated = program.problem if callable(problem.restitution) else problem
    options = {"wrt": wrt, "output": output, "sensitivity": sensitivity, "mode": mode, "direction": direction}
    again = JacobianAtInputs(call.replace(problem=stated, progress=False), one, options)
    inputs = jax.tree.map(lambda x: x[0], chosen_numbers(lanes, wrt))
    return Sensitivities(value, jacobian, status, mode, inputs, again=again)


def inputs_of(motion: Motion, wrt: tuple[str, ...]) -> By:
    """The inputs in ``wrt``, by which a motion is differentiated."""
    return By.of(Motion(*(jax.tree.map(lambda _, n=name: n in wrt, x) for name, x in motion._asdict().items())))


def chosen_numbers(lanes: Lanes, wrt: tuple[str, ...]) -> Arguments:
    """Values of the inputs in ``wrt``: name -> (B, ...); None for leaves of args that are not real numbers."""
    marks, found = lanes.marks, {}
    for name in wrt:
        spread = lambda mark, x: np.asarray(x) if mark == 0 else np.broadcast_to(x, (lanes.count, *np.shape(x)))
        real = lambda x: x if jnp.issubdtype(jnp.result_type(x), jnp.floating) else None
        values = jax.tree.map(spread, getattr(marks, name), getattr(lanes.motion, name))
        found[name] = jax.tree.map(real, values)
    return found


@dataclass(frozen=True)
class JacobianAtInputs:
    """Recomputes the Jacobian of the motion ``one`` of a ``call`` at other inputs; ``options``:
    further arguments of `sensitivities`."""

    call: Call
    one: Motion
    options: Arguments

    def __call__(self, inputs: Arguments) -> tuple[Sensitivities | None, np.ndarray]:
        """Jacobians at samples of the inputs, given by name with a leading axis S, and status bits (S,) of all samples.

        Jacobians are computed for samples with valid inputs and an admissible start, whose status is 0;
        None in their place if there are none.
        """
        count = len(jax.tree.leaves(inputs)[0])
        values = self.one._asdict() | {name: x for name, x in inputs.items() if name != "args"}
        kept = inputs.get("args", jax.tree.map(lambda _: None, self.one.args))
        new = lambda old, x: old if x is None else x
        args = jax.tree.map(new, self.one.args, kept)
        marks = jax.tree.map(lambda _, x: -1 if x is None else 0, self.one.args, kept)
        rubs = [name for name in OF_FRICTION if getattr(self.one, name) is not None]
        contacts = ("e", *rubs)
        for name in ("q0", "v0", "t0", "t1", *contacts):
            own = getattr(self.one, name)
            values[name] = np.asarray(values[name] if name in inputs else np.broadcast_to(own, (count, *np.shape(own))))
        h = self.one.h * (values["t1"] - values["t0"]) / (self.one.t1 - self.one.t0)  # as many steps

        e = values["e"].reshape(count, -1)
        within = np.all((e >= 0) & (e <= 1), axis=1) & (values["t1"] > values["t0"])
        least = 0.0
        for name in rubs:
            # of static friction the coefficient of slip is the least
            mu = values[name].reshape(count, -1)
            within, least = within & np.all(mu >= least, axis=1), mu
        unused: Arguments = dict.fromkeys(("t1", "h", "steps", "e"))
        starts = Motion(values["q0"], values["v0"], values["t0"], args=args, **unused, **{x: values[x] for x in rubs})
        axes = Motion(0, 0, 0, args=marks, **unused, **dict.fromkeys(rubs, 0))
        report = jax.tree.map(np.asarray, start_reports(self.call.problem, Lanes.of(starts, axes, count)))
        status = np.where(refused_lanes(report), int(Status.INPUT_INVALID), 0)
        status |= np.where(within, 0, int(Status.INPUT_INVALID))
        started = status == 0
        if not started.any():
            return None, status
        times = {name: values[name][started] for name in ("t0", "t1")} | {"e": e[started], "h": np.asarray(h)[started]}
        if callable(self.call.problem.restitution):
            del times["e"]
        times |= {name: values[name].reshape(count, -1)[started] for name in rubs}
        with without_remarks():
            call = self.call.replace(
                q0=values["q0"][started],
                v0=values["v0"][started],
                steps=None,
                **times,
                args=jax.tree.map(lambda mark, x: x if mark < 0 else x[started], marks, args),
                args_axes=jax.tree.map(lambda mark: None if mark < 0 else 0, marks),
            )
            found = sensitivities(call, **self.options)
        return found, status


def cheaper(program: Program, one: Motion, wrt: tuple, output: Callable, execution: str) -> str:
    """The cheaper mode, "forward" or "reverse".

    It is forward if inputs do not outnumber outputs, or if they are few and native code computes the outputs.
    """
    if not program.scheme.traits.reverse:
        return "forward"
    inputs = [x for name in wrt for x in jax.tree.leaves(getattr(one, name)) if jnp.issubdtype(x.dtype, jnp.floating)]
    count, size = sum(x.size for x in inputs), max(one.q0.size, program.problem.count(one.t0, one.q0, one.args))
    native = execution in ("auto", "native") and platform() == "cpu" and row_by_row(program, output)
    if native and count <= MAX_FORWARD_DIRECTIONS and size <= MAX_SMALL_SYSTEM:
        return "forward"
    # a task that is equal to one before is not traced again
    outputs = jax.eval_shape(partial(one_lane, task=Size(wrt, output)), program, one)
    return "forward" if count <= outputs.size + 1 else "reverse"


def row_by_row(program: Program, output: Callable) -> bool:
    """Whether native code can compute the outputs: it writes one row after the other,
    so that an output must not combine several rows."""
    return program.rows == 0 or (output is state and program.function is None)


def jacobians(
    program: Program,
    lanes: Lanes,
    task: Jacobian,
    execution: str = "auto",
    chunk: int | None = None,
    progress: bool | None = False,
) -> PyTree:
    """Runs the ``task`` for every lane; returns (Jacobians, (outputs, status)), each with a leading lane axis."""

    def through_steps(motion: Motion, length: Array | None) -> PyTree:
        # forward mode runs the loop of any number of steps, reverse mode one compiled for this number
        number = motion.steps if length is None else length
        known = program.replace(length=0 if task.mode == "forward" else int(number))
        return through_xla(task, known, lanes, devices(lanes.count))(motion, length)

    program = program.replace(by=replace(program.by or inputs_of(lanes.motion, task.wrt), measured=True))
    either, one = task.mode == "forward" and row_by_row(program, task.output), lanes.first
    compiled = platform() != "cpu" or execution in ("auto", "native")
    if either and compiled and directions_are_lanes(program.problem, one, lanes.count, task.count(one)):
        jacobian, (value, status) = _by_directions(program, lanes, task, execution, chunk, progress)
    elif task.mode == "reverse" and _walks_back(program, lanes, task, execution):
        jacobian, (value, status) = _walking_back(program, lanes, task, execution, chunk, progress)
    else:
        call = batch_backend(task, program, lanes, execution) if either else through_steps
        jacobian, (value, status) = in_chunks(program, lanes, call, chunk, progress, on_device=True)
    jacobian, of_left_out = jacobian
    if of_left_out is not None and isinstance(program.scheme, EventDriven):
        if of_left_out.q is None:  # of the rows, the last one
            of_left_out = of_left_out._replace(q=jax.tree.map(lambda x: x[:, -1], jacobian["q"]))
        numbers = chosen_numbers(lanes, (*task.wrt, "t0", "t1"))
        durations = numbers["t1"] - numbers["t0"]
        status |= status_of_bounces(program.scheme, of_left_out, {x: numbers[x] for x in task.wrt}, durations)
    return jacobian, (value, status | status_of_entries(jacobian, lanes.count))


def status_of_entries(jacobian: object, count: int) -> np.ndarray | Array:
    """The status (count,) of lanes by the entries of their Jacobians: whether each is finite; where the entries are,
    here or on a device."""
    leaves = jax.tree.leaves(jacobian)
    xp = array_module(*leaves)
    finite = [xp.isfinite(x).reshape(count, -1).all(axis=1) for x in leaves]
    return xp.where(xp.stack(finite).all(axis=0), 0, int(Status.DERIVATIVE_NOT_FINITE)).astype(np.int32)


def _walks_back(program: Program, lanes: Lanes, task: Varied, execution: str) -> bool:
    """Whether native code computes the Jacobian in reverse mode, by walking back through the states
    of all steps (`reverse_loop`).

    ValueError if ``execution`` is unknown, or is "native" and that cannot be.
    """
    execution = execution_of(execution, program.problem)
    if execution == "native" and lanes.carries("steps"):
        raise ValueError(
            "execution='native' cannot take this problem (reverse mode of lanes with other numbers of steps): give "
            "execution='xla'"
        )
    if execution != "auto" or platform() != "cpu" or devices(lanes.count) > 1 or lanes.carries("steps"):
        return execution == "native"
    one, numbers = lanes.first, task.count(lanes.first)
    known = program.replace(length=int(one.steps))
    return numbers <= MAX_REVERSE_INPUTS and has_way_back(known, one)


def _walking_back(
    program: Program, lanes: Lanes, task: Jacobian, execution: str, chunk: int | None, progress: bool | None
) -> PyTree:
    """Runs the ``task`` by native code that walks back through the steps; returns as `jacobians`.

    By default as many lanes at once as have their states in memory that stays (`MAX_SPARE_BYTES`),
    for all of the outputs.
    """
    one = lanes.first
    known = program.replace(length=int(one.steps))
    outputs = 2 * one.q0.size * (program.rows + 1)
    most = MAX_SPARE_BYTES // (outputs * bytes_of_states(known, one))
    if chunk is None and most < lanes.count:
        chunk = max(most, 1)
    backwards = WalkedBack(task.wrt, task.output, task.mode, execution)
    return in_chunks(known, lanes, through_xla(backwards, known, lanes), chunk, progress)


def _by_directions(
    program: Program, lanes: Lanes, task: Jacobian, execution: str, chunk: int | None, progress: bool | None
) -> tuple[PyTree, PyTree]:
    """Computes each direction, the derivative by one number, of each lane's Jacobian in a lane of its own.

    Returns (Jacobians, (outputs, status)), each with a leading axis of the lanes of ``lanes``.
    """
    inputs, of_inputs = jax.tree.flatten(task.chosen(lanes.first))
    many, count = task.count(lanes.first), lanes.count
    leaves, structure = jax.tree.flatten(lanes.motion)
    spread = [x if axis is None else np.repeat(x, many, axis=0) for x, axis in zip(leaves, lanes.axes, strict=True)]
    motion = jax.tree.unflatten(structure, spread)
    motion = motion._replace(args=(motion.args, np.tile(np.arange(many, dtype=np.int32), count)))
    directions = Lanes.of(motion, lanes.marks._replace(args=(lanes.marks.args, 0)), count * many)
    call = batch_backend(Direction(task.wrt, task.output), program, directions, execution)
    found, others = in_chunks(program, directions, call, chunk and chunk * many, progress, lanes.first, on_device=True)
    ends = np.cumsum([np.size(x) for x in inputs])[:-1]

    def jacobian(x: np.ndarray | Array) -> object:
        xp = array_module(x)
        columns = xp.moveaxis(x.reshape(count, many, *x.shape[1:]), 1, -1)
        parts = zip(xp.split(columns, ends, axis=-1), inputs, strict=True)
        return jax.tree.unflatten(of_inputs, [part.reshape(*part.shape[:-1], *np.shape(y)) for part, y in parts])

    return jax.tree.map(jacobian, found), jax.tree.map(lambda x: x[::many], others)


def _is_real(x: ArrayLike) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.floating)


@dataclass(frozen=True)
class Varied:
    """Base of tasks that differentiate: the outputs of one lane, and what bounces left out (`left_out_bounces`), as a
    function of the numbers in ``wrt``."""

    wrt: tuple[str, ...]
    output: Callable[[Solution], object]

    def as_function(self, program: Program, motion: Motion, length: Array | None) -> tuple[Callable, Arguments]:
        """The function from the numbers in ``wrt`` to ((outputs, left out), (outputs, status)),
        and the values of these numbers in the motion."""
        leaves, structure = jax.tree.flatten(motion.args)
        values = self.values(motion)

        def function(chosen_numbers: Arguments) -> tuple[tuple[PyTree, LeftOut | None], tuple[PyTree, Array]]:
            now = values | chosen_numbers
            numbers = iter(jax.tree.leaves(now["args"]))
            full = [next(numbers) if _is_real(leaf) else leaf for leaf in leaves]
            stretch = (now["t1"] - now["t0"]) / (motion.t1 - motion.t0)
            moved = Motion(**now | {"h": motion.h * stretch, "args": jax.tree.unflatten(structure, full)})
            solution = self.run(program, moved, length)
            by_row = program.per_lane_branches and program.rows > 0
            if by_row:  # each row stands for all of them
                value: PyTree = {"q": solution.q, "v": solution.v}
            else:
                with named_errors("output(solution)"):
                    value = jax.tree.map(jnp.asarray, self.output(solution))
            return (value, LeftOut.of(solution, by_row)), (value, solution.status)

        return function, {name: values[name] for name in self.wrt}

    def run(self, program: Program, motion: Motion, length: Array | None) -> Solution:
        """Computes the motion."""
        return trajectory(program, motion, length)

    def values(self, motion: Motion) -> Arguments:
        """The numbers of a motion by name; args without its leaves that are not real."""
        return motion._asdict() | {"args": jax.tree.map(lambda x: x if _is_real(x) else None, motion.args)}

    def count(self, motion: Motion) -> int:
        """How many numbers of a motion are chosen."""
        return sum(map(np.size, jax.tree.leaves(self.chosen(motion))))

    def chosen(self, motion: Motion) -> Arguments:
        """The chosen numbers of a motion, by name."""
        values = self.values(motion)
        return {name: values[name] for name in self.wrt}


class Direction(Varied):
    """Task that returns the derivative of one lane's outputs by one of the numbers in ``wrt``;
    and the outputs and the status.

    The args of its motion are pairs of the user's args and the index of that number, the direction.
    """

    def __call__(self, program: Program, motion: Motion, length: Array | None) -> tuple[PyTree, tuple[PyTree, Array]]:
        args, number = motion.args
        function, chosen_numbers = self.as_function(program, motion._replace(args=args), length)
        flat, unravel = ravel_pytree(chosen_numbers)
        along = unravel((jnp.arange(flat.size, dtype=number.dtype) == number).astype(flat.dtype))
        _, tangent, others = jax.jvp(function, (chosen_numbers,), (along,), has_aux=True)
        return tangent, others


class Size(Varied):
    """Task that returns zeros, as many as there are numbers in the outputs of one lane."""

    def __call__(self, program: Program, motion: Motion, length: Array | None) -> Array:
        function, chosen_numbers = self.as_function(program, motion, length)
        return jnp.zeros(sum(x.size for x in jax.tree.leaves(function(chosen_numbers)[0][0])))


@dataclass(frozen=True)
class Jacobian(Varied):
    """Task that returns the Jacobian of one lane, in forward or reverse mode of differentiation,
    with the outputs and the status."""

    mode: str

    def __call__(self, program: Program, motion: Motion, length: Array | None) -> tuple[PyTree, tuple[PyTree, Array]]:
        transform = jax.jacfwd if self.mode == "forward" else jax.jacrev
        function, chosen_numbers = self.as_function(program, motion, length)
        return transform(function, has_aux=True)(chosen_numbers)


@dataclass(frozen=True)
class WalkedBack(Jacobian):
    """As `Jacobian` in reverse mode, by the motion as an operation of jax (`primitive`),
    which native code walks back through."""

    execution: str

    def run(self, program: Program, motion: Motion, length: Array | None) -> Solution:
        result = structure(program, motion)
        return bind(trajectory, result, program, motion, self.execution, walks_back=True)
