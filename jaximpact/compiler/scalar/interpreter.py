"""Interpreter of jaxprs whose arrays are object arrays of separate numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ...jaxtools.argument_checks import is_traced
from ...jaxtools.jaxpr_tools import (
    CALLS,
    IDENTITIES,
    as_closed,
    closed_over_values,
    is_literal,
    needed_equations,
    reader,
)
from . import control_flow as control
from . import indexing as structure
from . import linear_algebra as algebra
from . import reductions as sums
from .constant_folding import SIMPLIFIED, fold
from .cost import is_large
from .values import Emitter, Unsupported, Value, all_known, fill_array, known, split

RULES: dict[str, Callable] = structure.RULES | sums.RULES | algebra.RULES
# what reads or writes at places that need not be known
PLACES = {name for name in RULES if name.startswith(("gather", "scatter", "dynamic"))}
SEARCHED = 32  # entries up to which one is chosen among all
# of arrays of any size
CONTROL: dict[str, Callable] = control.RULES


class ScalarInterpreter:
    """Evaluates jaxprs on separate numbers through an emitter.

    ``given`` holds the values of closed-over variables that are inputs of the program; other closed-over values are constants.
    """

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self.given: dict[Any, Value] = {}
        self.kept: dict[int, tuple[Any, list]] = {}

    def __call__(self, name: str, *x: Any, params: Any = None, structural: bool = True) -> Any:
        """Applies an elementwise primitive to numbers.

        ``structural``: a constant 0 comes from a sparse tangent, so 0 * x may be dropped; False keeps the user's own 0 * x, which may be NaN.
        """
        if all(map(known, x)):
            found = fold(name, x, params)
            if found is not None:
                return found
        elif structural and name in SIMPLIFIED:
            found = SIMPLIFIED[name](self, *x)
            if found is not None:
                return found
        return self.emitter.op(name, params, *x)

    def each(self, name: str, *arrays: np.ndarray, params: Any = None, structural: bool = True) -> np.ndarray:
        """Applies an elementwise primitive to arrays of numbers."""
        arrays = np.broadcast_arrays(*arrays)
        entries = zip(*(a.flat for a in arrays), strict=True)
        return fill_array(arrays[0].shape, (self(name, *x, params=params, structural=structural) for x in entries))

    def run(self, jaxpr: Any, values: Sequence[Value]) -> list[Value]:
        """Evaluates a jaxpr: its outputs for the given inputs."""
        closed = as_closed(jaxpr)
        closes = zip(closed.jaxpr.constvars, closed.consts, strict=True)
        constants = [self.given[v] if v in self.given else self.constant(x) for v, x in closes]
        return self.evaluate(closed.jaxpr, constants, values)

    def constant(self, x: Any) -> Value:
        """A constant array, as separate numbers if it is small."""
        return split(x) if np.size(x) <= self.emitter.small else self.emitter.constant(np.asarray(x))

    def evaluate(self, jaxpr: Any, constants: Sequence[Value], values: Sequence[Value]) -> list[Value]:
        env: dict = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *values], strict=True))
        read = reader(env, lambda v: split(np.asarray(v.val, v.aval.dtype)))
        for eqn in self.needed(jaxpr):
            env.update(zip(eqn.outvars, self.apply(eqn, [read(v) for v in eqn.invars]), strict=True))
        return [read(v) for v in jaxpr.outvars]

    def needed(self, jaxpr: Any) -> list:
        """Equations on which an output depends, remembered by jaxpr."""
        if id(jaxpr) not in self.kept:
            self.kept[id(jaxpr)] = jaxpr, needed_equations(jaxpr)  # which lives as long as its number is known
        return self.kept[id(jaxpr)][1]

    def is_searched(self, name: str, inputs: list[Value]) -> bool:
        """Whether an entry at an unknown index is better looked up in memory than selected among all."""
        places = inputs[1:] if name in ("gather", "dynamic_slice") else inputs[2:] if "slice" in name else inputs[1:2]
        return self.emitter.memory and inputs[0].size > SEARCHED and not all(map(all_known, places))

    def apply(self, eqn: Any, inputs: list[Value]) -> list[Value]:
        name = eqn.primitive.name
        if name in IDENTITIES:
            return inputs[: len(eqn.outvars)]
        if name in CALLS:
            return self.run(eqn.params[CALLS[name]], inputs)
        if name in CONTROL:
            return CONTROL[name](self, eqn, inputs)
        if is_large(eqn, self.emitter.small) or (name in PLACES and self.is_searched(name, inputs)):
            return self.emitter.large(self, eqn, inputs)
        if name in RULES:
            return RULES[name](self, eqn, inputs)
        if len(eqn.outvars) != 1 or np.broadcast_shapes(*(x.shape for x in inputs)) != eqn.outvars[0].aval.shape:
            raise Unsupported(name)
        written = name in ("mul", "div") and any(is_literal(v) and v.val == 0 for v in eqn.invars)
        found = self.each(name, *inputs, params=eqn.params, structural=not written)
        if found.size and found.flat[0].dtype != eqn.outvars[0].aval.dtype:
            raise Unsupported(f"{name} of {', '.join(str(v.aval.dtype) for v in eqn.invars)}")
        return [found]


def inputs(closed: Any) -> tuple[list, list]:
    """Input variables of a jaxpr's program, and the values of the closed-over ones among them.

    Closed-over integers, which may be indices, are constants of the program.
    """
    given = {v: x for v, x in closed_over_values(closed).items() if _is_given(x)}
    return [*closed.jaxpr.invars, *given], [*given.values()]


def _is_given(constant: Any) -> bool:
    return is_traced(constant) or jnp.issubdtype(constant.dtype, jnp.inexact)
