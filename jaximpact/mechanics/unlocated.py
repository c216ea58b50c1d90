"""Kinks and jumps of joints and slip velocities on the way of a motion that the scheme does not locate: they are told.

Where a joint kinks, what it drives changes its velocity at once, and bodies that lie on that are struck or thrown.
Where a slip velocity jumps, a contact that sticks begins to slip. Time-stepping schemes pass both to first order,
though not the derivative by the time of it. `EventDriven` locates them, up to MAX_LEVELS of them. Else a scheme that
locates events holds closed contacts as they are until an event is found, whatever its steps: that is a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..switches.switches import Switches, depends_on_data, depends_on_path, depends_on_place, differ
from ..switches.walks import DATA, SPEED, STATE, TIME, Mark
from .motion import Motion
from .problem import Problem
from .scheme import Traits, time_of
from .status import Status, as_status
from .trials.pieces import Pieces, switching

OPERANDS = TIME, STATE, STATE | SPEED, DATA  # what (t, q, v, args) are


def status_of_kinks(problem: Problem, motion: Motion, step: tuple, acts: Array, traits: Traits) -> Array | None:
    """Returns the status bits () for kinks of joints and slip velocities in a step of a motion;
    None where there cannot be any.

    ``step``: the scheme's states at its ends; ``acts`` (): whether a contact has an impulse; ``traits``: of the scheme.
    """
    step, motion = lax.stop_gradient((step, motion))
    at, then = ((time_of(motion, state), state.q, state.v) for state in step)
    joints, slips, bits = lambda t, q, v, args: problem.joint_values(t, q, args), problem.slip_velocity, []
    located = _located(problem, *at, motion.args) if traits.kinks else ()
    # a substep of high order goes wrong across a kink of a joint, contacts or not
    of_joints, of_slips = (joints, acts | traits.by_tolerance), (slips, acts)
    functions = {"joints": of_joints} if problem.between else {"joints": of_joints, "slip": of_slips}
    reported = depends_on_path if motion.by_times else depends_on_data
    for function, fails in (functions[name] for name in functions if name not in located):
        if (doubted := _passes(function, at, then, motion.args, reported)) is not None:
            bits.append(as_status(doubted, Status.DERIVATIVE_JUMP))
        if traits.locates and (missed := _passes(function, at, then, motion.args, depends_on_path)) is not None:
            bits.append(as_status(missed & fails, Status.INPUT_INVALID))
    return reduce(jnp.bitwise_or, bits) if bits else None


def _located(problem: Problem, t: Array, q: Array, v: Array, args: object) -> tuple[str, ...]:
    """Returns the names of the functions, "joints" and "slip", all of whose switches the pieces of the force have."""
    at = t, q, v, args
    pieces = Pieces.of(problem, *at, depends_on_place if problem.rubs else depends_on_path, prescribed=True)
    every = switching(problem, *at, reported=depends_on_path)
    count = lambda of, *how: len(jax.eval_shape(Switches.of(of, at, OPERANDS, *how).sides, *at))  # type: ignore[union-attr]
    names = () if pieces is None else pieces.prescribes
    same = lambda of: count(of, depends_on_path) == count(of, depends_on_place, True)
    return tuple(name for name in names if same(every[name]))


def _passes(function: Callable, at: tuple, then: tuple, args: object, reported: Mark) -> Array | None:
    """Tests whether a switch of the ``function`` has another side in the second state, (); None if there is no
    switch."""
    found = Switches.of(function, (*at, args), OPERANDS, reported)
    return None if found is None else differ(found.sides(*at, args), found.sides(*then, args))
