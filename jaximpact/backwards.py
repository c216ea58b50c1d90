"""Reverse mode of a motion as native code: its states are kept, and its steps differentiated one by one, from the last to the first.

Each part of the motion, its start, one step, its end, is a function of numbers whose transposed derivative is compiled once;
a loop outside calls them. What a step costs then does not depend on how many numbers are differentiated by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from .jaxprs import holds, inlined
from .native.foreign import cores, registered
from .native.run import Prepared, prepared
from .rows import Turn
from .small import Unsupported
from .stream import stream
from .threads import core_count
from .trajectory import Account, Course

MEMORY = 2**30  # bytes of states to keep, beyond which reverse mode goes through XLA, which computes them again
WIDE = 20_000  # numbers moved beyond which XLA's products of large matrices are the faster way
FEW = 16  # lanes from which they are shared out to all cores: a lane takes many steps


def is_real(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


@dataclass(frozen=True)
class Parts:
    """The parts of a motion as functions of the leaves of program and motion, and of the carry between steps.

    Attributes:
        structure: of (program, motion); of a program for any number of steps, that keeps the last row alone.
        moved: the leaves that are differentiated by.
        used: the leaves of the solution that are differentiated.
    """

    structure: Any
    moved: tuple[bool, ...]
    used: tuple[bool, ...]

    def course(self, leaves: Sequence) -> tuple[Course, Any]:
        """The motion under way, and its numbers."""
        program, motion = jax.tree.unflatten(self.structure, leaves)
        return Course(program, motion), motion

    def start(self, leaves: Sequence) -> tuple:
        course, motion = self.course(leaves)
        return course.begin(motion)

    def step(self, leaves: Sequence, carry: Any) -> Any:
        return self.course(leaves)[0].advance(carry)

    def end(self, leaves: Sequence, carry: Any) -> list:
        found = jax.tree.leaves(self.course(leaves)[0].at_end(carry))
        return [x for x, u in zip(found, self.used, strict=True) if u]

    def states(self, *leaves: Any) -> tuple:
        """The carry after the last step, and that before each, which stands for all of them."""
        course, motion = self.course(leaves)
        each = Turn(*(jax.ShapeDtypeStruct((), x) for x in (jnp.int32, motion.q0.dtype, bool)))
        return stream(lambda carry, _: (self.step(leaves, carry), carry), course.begin(motion), each)

    # transposed derivatives; of the carry the account has none

    def of_start(self, leaves: Sequence, change: Sequence, total: Sequence) -> list:
        """``total`` with what the first carry owes to the leaves moved."""
        some, _ = self._pulled(lambda leaves, _: _reals(self.start(leaves)), leaves, None, change)
        return [x + y for x, y in zip(total, some, strict=True)]

    def of_step(
        self, step: ClosedJaxpr, leaves: Sequence, carry: Any, change: Sequence, total: Sequence
    ) -> tuple[list, list]:
        """What the carry after a ``step`` owes to that before it, and ``total`` with what it owes to the leaves moved."""
        structure = jax.tree.structure(carry)
        made = lambda leaves, carry: jaxpr_as_fun(step)(*leaves, *jax.tree.leaves(carry))
        after = lambda *operands: _reals(jax.tree.unflatten(structure, made(*operands)))
        # of a scan jax transposes no other than a linear one
        some, before = self._pulled(after, leaves, carry, change, whole=not holds(step, "scan"))
        return before, [x + y for x, y in zip(total, some, strict=True)]

    def of_end(self, leaves: Sequence, carry: Any, change: Sequence) -> tuple[list, list]:
        """What the solution owes to the last carry, and to the leaves moved."""
        some, before = self._pulled(self.end, leaves, carry, change)
        return before, some

    def _pulled(self, function: Callable, leaves: Sequence, carry: Any, change: Sequence, whole: bool = False) -> tuple:
        def of(some: Sequence, reals: Sequence) -> list:
            numbers = iter(some)
            full = [next(numbers) if m else x for x, m in zip(leaves, self.moved, strict=True)]
            return function(full, carry if carry is None else _with_reals(carry, reals))

        some = [x for x, m in zip(leaves, self.moved, strict=True) if m]
        at = (some, [] if carry is None else _reals(carry))
        if not whole:
            return jax.vjp(of, *at)[1](list(change))
        # values and derivative in one program, as nobody asks for the values alone: jax takes its time to tell them apart
        pushed = lambda some, reals: jax.jvp(of, at, (some, reals))[1]
        return jax.linear_transpose(pushed, *at)(list(change))


def _reals(carry: Any) -> list:
    """The real leaves of state and row."""
    return [x for x in jax.tree.leaves(carry[:2]) if is_real(x)]


def _with_reals(carry: Any, reals: Sequence) -> Any:
    numbers = iter(reals)
    return (*jax.tree.map(lambda x: next(numbers) if is_real(x) else x, carry[:2]), carry[2])


_step = jax.jit(lambda leaves, carry, parts: parts.step(leaves, carry), static_argnames="parts")
_start = jax.jit(lambda leaves, parts: parts.start(leaves), static_argnames="parts")
_states = jax.jit(lambda leaves, parts: parts.states(*leaves), static_argnames="parts")
_of_start = jax.jit(lambda *operands, parts: parts.of_start(*operands), static_argnames="parts")
_of_step = jax.jit(lambda *operands, parts, step: parts.of_step(step, *operands), static_argnames=("parts", "step"))
_of_end = jax.jit(lambda *operands, parts: parts.of_end(*operands), static_argnames="parts")


class Backwards:
    """The cotangents of the leaves moved, from the leaves and cotangents of the outputs used; compiled for ``lanes`` (None: one).

    Raises:
        Unsupported, ImportError: as `prepared`; what is reported of the whole motion is differentiated, the states would not fit into
            `MEMORY`, or there are more than `WIDE` numbers moved.
    """

    def __init__(self, parts: Parts, solution: Any, length: int, members: Sequence, axes: Sequence, lanes: int | None):
        self.lanes = lanes
        flags = jax.tree.unflatten(solution, parts.used)
        if any(getattr(flags, name) for name in Account._fields):
            raise Unsupported("reverse mode of what is reported of a whole motion")
        self.count = count = len(parts.moved)
        leaves, change = members[:count], members[count:]
        some = [x for x, m in zip(leaves, parts.moved, strict=True) if m]
        self.carry = jax.eval_shape(lambda leaves: _start(leaves, parts=parts), leaves)
        reals = _reals(self.carry)
        size = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(self.carry))
        if size * length * (lanes or 1) > MEMORY:
            raise Unsupported("reverse mode of so many states")
        if sum(math.prod(x.shape) for x in some) > WIDE:
            raise Unsupported("reverse mode of so many numbers")
        self.steps = length
        self.carried = [a is not None for a in axes]

        def part(one: Callable, *operands: Any, given: Sequence[bool] = (), **static: Any) -> tuple:
            many = [lanes is not None] * (len(jax.tree.leaves(operands[1:])) - len(given))
            flags = [*self.carried[:count], *many, *given]
            return prepared(one, operands, flags, parts=parts, **static), flags

        self.states = part(_states, leaves)
        self.of_end = part(_of_end, leaves, self.carry, change, given=self.carried[count:])
        step = inlined(_step.trace(leaves, self.carry, parts=parts).jaxpr)
        self.of_step = part(_of_step, leaves, self.carry, reals, some, step=step)
        self.of_start = part(_of_start, leaves, reals, some)

    @cached_property
    def turns(self) -> list[np.ndarray]:
        """What the loop over the steps is given: nothing but their number."""
        dtype = self.carry[1].q.dtype
        return [np.zeros(self.steps, np.int32), np.zeros(self.steps, dtype), np.zeros(self.steps, bool)]

    def __call__(self, operands: list[np.ndarray], found: list[np.ndarray]) -> None:
        """Fills in the results of all lanes."""
        many, every = self.lanes is not None, self.lanes or 1
        slices = [slice(0, every)]
        if every >= FEW:
            ends = np.linspace(0, every, core_count() + 1).astype(int)
            slices = [slice(a, b) for a, b in pairwise(ends)]

        def share(some: slice) -> None:
            mine = [x[some] if c else x for x, c in zip(operands, self.carried, strict=True)]
            for x, y in zip(found, self.of_lanes(mine, some.stop - some.start), strict=True):
                if many:
                    x[some] = y
                else:
                    x[...] = y[0]

        if len(slices) == 1:
            share(slices[0])
        else:
            list(cores().map(share, slices))

    def of_lanes(self, operands: list[np.ndarray], lanes: int) -> list[np.ndarray]:
        """The results for some lanes."""
        leaves, change = operands[: self.count], operands[self.count :]
        number = len(jax.tree.leaves(self.carry))
        one = (lambda x: x) if self.lanes is not None else (lambda x: x[0])

        def call(part: tuple[Prepared, list[bool]], *given: Any, turns: Sequence = ()) -> list[np.ndarray]:
            return [one(x) for x in part[0].launch([*leaves, *given], part[1], lanes, turns)]

        axis = 0 if self.lanes is None else 1
        every = call(self.states, turns=self.turns)
        rows = [many for _, many in self.states[0].results[number:]]  # not of what is empty
        of_steps = lambda x, many: np.moveaxis(x, axis, 0) if many else np.broadcast_to(x, (self.steps, *x.shape))
        last, before = every[:number], [of_steps(x, many) for x, many in zip(every[number:], rows, strict=True)]
        found = call(self.of_end, *last, *change)
        for k in reversed(range(self.steps)):
            found = call(self.of_step, *(x[k] for x in before), *found)
        return self.of_start[0].launch([*leaves, *found], self.of_start[1], lanes)


def target(
    parts: Parts, solution: Any, length: int, members: Sequence, axes: Sequence, lanes: int | None, results: Sequence
) -> str:
    """The name of a target of XLA's foreign function interface: from the leaves, and cotangents of the outputs used, those of the
    leaves moved. ``solution``: the structure of the outputs; ``length``: the number of steps; the rest as in `foreign.target`."""
    lead = [() if a is None else (lanes,) for a in axes]
    shapes = [((*n, *x.shape), np.dtype(x.dtype)) for n, x in zip(lead, members, strict=True)]
    outputs = [(x.shape, np.dtype(x.dtype)) for x in results]
    key = (parts, length, tuple(axes), lanes, str(shapes))
    return registered(key, lambda: Backwards(parts, solution, length, members, axes, lanes), shapes, outputs)
