"""Closure conversion: traced values that a program's functions close over become args of the motion.

A jax primitive sees only its operands, so that derivatives by closed-over values need this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ..jaxtools.argument_checks import is_traced
from ..jaxtools.derivative_rules import hoist_constants
from ..jaxtools.shapes import PyTree
from ..mechanics.coefficients import OfSpeed
from ..mechanics.joints import MayDepend
from ..mechanics.motion import Motion
from ..mechanics.problem import Problem
from .program import Program


@dataclass(frozen=True)
class HoistedFunction:
    """A problem's function that closes over nothing: its ``args`` are (the user's args, values that all functions of
    the problem closed over).

    ``types``: dtypes of the leaves of its operands; ``place``: index of its own values among those of all functions.
    """

    pure: Callable
    types: tuple
    place: int

    def __call__(self, *operands: Any) -> PyTree:
        *at, (args, constants) = operands
        leaves, structure = jax.tree.flatten((*at, args))
        leaves = [jnp.asarray(x, dtype) for x, dtype in zip(leaves, self.types, strict=True)]
        return self.pure(constants[self.place], jax.tree.unflatten(structure, leaves))


@dataclass(frozen=True)
class HoistedReset:
    """A problem's reset: evaluates the hoisted function ``behind``, which returns the states after the resets of all
    surfaces, and takes the k-th."""

    behind: Any

    def __call__(self, t: ArrayLike, q: Array, v: Array, k: int, args: object) -> tuple[Array, Array]:
        return self.behind(t, q, v, args)[k]


def without_closures(program: Program, motion: Motion) -> tuple[Program, Motion]:
    """Returns program and motion with traced values that the problem's functions close over moved to the motion's args.

    Closures of a scheme or a solver are not converted: see `methods_are_closed`.
    """
    problem, constants = program.problem, []

    def open_one(function: Callable | None, *at: object) -> Callable | None:
        if function is None:
            return None
        at = jax.tree.map(jnp.asarray, (*at, motion.args))
        pure, known = hoist_constants(lambda operands: jax.tree.map(jnp.asarray, function(*operands)), at)
        constants.append(known)
        return HoistedFunction(pure, tuple(x.dtype for x in jax.tree.leaves(at)), len(constants) - 1)

    t, q, v, _ = motion.start
    joints: Any = open_one(problem.joints, t, q)
    speeds = jnp.zeros(problem.count(t, q, motion.args), q.dtype) if callable(problem.restitution) else None
    slips = (jnp.zeros(problem.count(t, q, motion.args), q.dtype),) if isinstance(problem.friction, OfSpeed) else ()
    operands = {"restitution": (speeds,), "mass": (q,), "friction": slips, "static_friction": ()}
    stated = {name: (getattr(problem, name), at) for name, at in operands.items()}
    numbers: dict = {name: open_one(of, *at) if callable(of) else None for name, (of, at) in stated.items()}
    if isinstance(problem.friction, OfSpeed):
        numbers["friction"] = OfSpeed(numbers["friction"])
    functions = (
        open_one(problem.force, t, q, v),
        open_one(problem.constraints, t, q),
        open_one(problem.energy, t, q, v),
        problem.naming,
        MayDepend(joints) if isinstance(problem.joints, MayDepend) else joints,
        open_one(problem.switches, t, q, v),
        None if problem.reset is None else HoistedReset(open_one(problem.states_behind, t, q, v)),
        open_one(problem.slip, t, q, v),
        open_one(problem.noise, t, q, v),
        problem.impact_law,
        tuple(numbers.values()),
    )
    kept = open_one(program.function, t, q, v)
    until: Any = program.until
    if program.end.located:
        opened: Any = open_one(until.function, t, q, v)
        until = replace(until, function=opened)
    if not is_traced(constants):
        return program, motion
    leaves, _ = problem.tree_flatten_with_keys()
    of = Problem.tree_unflatten(functions, tuple(x for _, x in leaves))
    return program.replace(problem=of, function=kept, until=until), motion._replace(args=(motion.args, constants))


def methods_are_closed(program: Program) -> bool:
    """Whether scheme and solver hold no function, which might close over a traced number."""
    methods: tuple[object, ...] = (program.scheme, program.solver)
    return not any(callable(getattr(x, f.name)) for x in methods if is_dataclass(x) for f in fields(x))
