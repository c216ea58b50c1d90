"""Interpreter of jaxprs whose values are numpy object arrays of scalars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NoReturn

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr
from jax.typing import ArrayLike

from ...jaxtools.argument_checks import is_traced
from ...jaxtools.jaxpr_tools import (
    CALLS,
    IDENTITIES,
    as_closed,
    called_jaxpr,
    closed_over_values,
    implementation,
    is_literal,
    reader,
    remember_by_jaxpr,
    value_equations,
)
from ...jaxtools.jaxpr_types import AnyJaxpr, Equation, Operand, Params
from ...jaxtools.outlined import is_cold, is_outlined
from ..limits import MAX_SELECTED_ENTRIES, MAX_SELECTED_ENTRIES_OF_A_LANE, MAX_SORTED_SCALARS
from . import control_flow, indexing, linear_algebra, reductions
from .constant_folding import SIMPLIFIED, fold
from .cost import is_large
from .values import Emitter, Scalar, Unsupported, Value, all_constant, is_constant, object_array, split_constant

RULES: dict[str, Callable] = indexing.RULES | reductions.RULES | linear_algebra.RULES
# primitives with index operands, which may be no constants
INDEXED = {name for name in RULES if name.startswith(("gather", "scatter", "dynamic"))}
# rules that are applied whatever the size of the arrays
CONTROL: dict[str, Callable] = control_flow.RULES


class NeedsInstruction(Exception):
    """Raised where an operation would need an instruction even after simplification."""


def _no_instruction(*_: object, **__: object) -> NoReturn:
    raise NeedsInstruction


class ScalarInterpreter:
    """Evaluates jaxprs on scalars: folds constants, moves data, and has the emitter compute the rest.

    ``input_values`` maps variables to values, for the program's inputs, among them some that the program closes over;
    all other values that it closes over are constants.
    """

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self.input_values: dict[Operand, Value] = {}
        self.passing: frozenset = frozenset()  # `passing_values` of the jaxpr that is evaluated
        # results of equations that `prepare` evaluated in the loops around, by the equation and its inputs
        self.prepared: dict[int, dict[tuple, list[Value]]] = {}

    def __call__(self, name: str, *x: Scalar, params: Params | None = None, structural: bool = True) -> Scalar:
        """Applies the elementwise primitive ``name`` to scalars: folds or simplifies it, else emits it.

        ``structural``: whether a constant 0 comes from a sparse tangent, so that 0 * x may be dropped. If False, 0 * x
        is the user's own, and is kept, as it may be NaN.
        """
        return self.apply(name, x, params, structural)

    def apply(self, name: str, x: Sequence[Scalar], params: Params | None = None, structural: bool = True) -> Scalar:
        """As a call, with the scalars in a sequence."""
        constants = [isinstance(y, np.generic) for y in x]
        if False not in constants:
            found = fold(name, x, params)
            if found is not None:
                return found
        elif structural and (True in constants or name == "select_n") and name in SIMPLIFIED:
            found = SIMPLIFIED[name](self, *x)
            if found is not None:
                return found
        return self.emitter.op(name, params, *x)

    def known(self, name: str, x: Sequence[Scalar], params: Params | None, structural: bool) -> Scalar | None:
        """Returns the result of the elementwise primitive ``name`` of scalars x if it needs no instruction,
        else None."""
        constants = list(map(is_constant, x))
        if all(constants):
            return fold(name, x, params)
        if not structural or name not in SIMPLIFIED or not (any(constants) or name == "select_n"):
            return None
        try:
            return SIMPLIFIED[name](_no_instruction, *x)
        except NeedsInstruction:
            return None

    def elementwise(
        self, name: str, *arrays: np.ndarray, params: Params | None = None, structural: bool = True
    ) -> np.ndarray:
        """Applies an elementwise primitive to arrays of scalars, which are broadcast against each other."""
        if any(x.shape != arrays[0].shape for x in arrays):
            arrays = np.broadcast_arrays(*arrays)
        if self.emitter.pack > 1 and arrays[0].size > 1:
            return self.emitter.elementwise(self, name, params, structural, arrays)
        entries = zip(*(a.flat for a in arrays), strict=True)
        return object_array(arrays[0].shape, (self.apply(name, x, params, structural) for x in entries))

    def run(self, jaxpr: AnyJaxpr, values: Sequence[Value]) -> list[Value]:
        """Evaluates a jaxpr, open or closed, and returns its outputs for the inputs ``values``."""
        closed = as_closed(jaxpr)
        pairs = zip(closed.jaxpr.constvars, closed.consts, strict=True)
        constants = [self.input_values[v] if v in self.input_values else self.constant(x) for v, x in pairs]
        return self.evaluate(closed.jaxpr, constants, values)

    def constant(self, x: ArrayLike) -> Value:
        """Returns a constant array as an array of scalars if it is small, else as a constant of the emitter."""
        return split_constant(x) if np.size(x) <= self.emitter.max_scalars else self.emitter.constant(np.asarray(x))

    def evaluate(self, jaxpr: AnyJaxpr, constants: Sequence[Value], values: Sequence[Value]) -> list[Value]:
        """Evaluates an open jaxpr, and returns its outputs for given values of its constants and inputs."""
        env: dict = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *values], strict=True))
        read = reader(env, lambda v: split_constant(np.asarray(v.val, v.aval.dtype)))
        passing = passing_values(jaxpr)
        for eqn in value_equations(jaxpr):
            self.passing = passing
            # None for variables on which only derivatives depend
            values = [read(v) if is_literal(v) or v in env else None for v in eqn.invars]
            env.update(zip(eqn.outvars, self.apply_equation(eqn, values), strict=True))
        return [read(v) for v in jaxpr.outvars]

    def prepare(self, jaxpr: AnyJaxpr, values: Sequence[Value | None], cold: bool = False) -> list[Value | None]:
        """Evaluates what in a jaxpr depends only on the inputs that are not None, and returns its outputs,
        None for the others.

        When the jaxpr is evaluated later, with these inputs, it takes the results from here. Branches and loops that
        depend on other inputs, too, are left to that time; of branches that these inputs choose the operations are
        evaluated that cost little where the branch is not taken (``cold``).
        """
        closed = as_closed(jaxpr)
        env: dict = dict(zip(closed.jaxpr.invars, values, strict=True))
        for v, x in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            known = self.input_values[v] if v in self.input_values else self.constant(x)
            env[v] = None if self.emitter.varies(known) else known
        read = reader(env, lambda v: split_constant(np.asarray(v.val, v.aval.dtype)))
        passing = passing_values(closed.jaxpr)
        for eqn in value_equations(closed.jaxpr):
            self.passing = passing
            inputs = [read(v) if is_literal(v) or v in env else None for v in eqn.invars]
            found: list[Value | None] = [None] * len(eqn.outvars)
            name = eqn.primitive.name
            # loops and branches may take long, and divisions of integers trap
            skipped = cold and (name in CONTROL or name in ("div", "rem"))
            if name not in CALLS and not skipped and all(x is not None for x in inputs):
                found = list(self.apply_equation(eqn, inputs))
                if not all(map(all_constant, found)):
                    self.prepared.setdefault(id(eqn), {})[_keys(inputs)] = found
            elif name in CALLS and not is_cold(eqn) and (not is_outlined(eqn) or self.is_in_place(eqn)):
                found = self.prepare(called_jaxpr(eqn), inputs, cold)
            elif name == "cond" and inputs[0] is not None:
                for branch in eqn.params["branches"]:
                    self.prepare(branch, inputs[1:], True)
            env.update(zip(eqn.outvars, found, strict=True))
        return [read(v) for v in closed.jaxpr.outvars]

    def loop(
        self, start: list[Value], varies: Sequence[bool], continues: Callable, body: Callable, prepare: Callable
    ) -> list[Value]:
        """Emits a loop as `Emitter.loop` does. What is prepared for its body is forgotten behind it: an equation that
        stands there too would take the results of the state in which the last turn began, or of no turn."""
        before, self.prepared = self.prepared, {eqn: dict(known) for eqn, known in self.prepared.items()}
        try:
            return self.emitter.loop(start, varies, continues, body, prepare)
        finally:
            self.prepared = before

    def is_in_place(self, eqn: Equation) -> bool:
        """Whether the code of an outlined call stands where it is called."""
        return self.emitter.is_in_place(as_closed(called_jaxpr(eqn)))

    def prefers_memory(self, name: str, inputs: list[Value]) -> bool:
        """Whether the primitive ``name``, which indexes or sorts an array,
        is cheaper on an array in memory than on scalars.

        On scalars, access at an index that is not constant is a selection among all entries.
        """
        if name == "sort":
            return len(inputs[0].shape) == 1 and inputs[0].size > MAX_SORTED_SCALARS
        places = inputs[1:] if name in ("gather", "dynamic_slice") else inputs[2:] if "slice" in name else inputs[1:2]
        most = MAX_SELECTED_ENTRIES if self.emitter.pack == 1 else MAX_SELECTED_ENTRIES_OF_A_LANE
        return inputs[0].size > most and not all(map(all_constant, places))

    def is_sparse(self, eqn: Equation, inputs: list[Value]) -> bool:
        """Whether an equation is a product of small matrices that has few enough terms for scalars,
        without the terms with a constant zero."""
        most = self.emitter.max_scalars
        known = self.emitter.pack == 1 and eqn.primitive.name == "dot_general"
        if (
            not known
            or any(not isinstance(x, np.ndarray) or x.size > most for x in inputs)
            or eqn.outvars[0].aval.size > most
        ):
            return False
        return reductions.count_products(eqn, inputs) <= most

    def apply_equation(self, eqn: Equation, inputs: list[Value]) -> list[Value]:
        """Returns the results of an equation by the rule of its primitive;
        takes a primitive without a rule for an elementwise one.

        A primitive of another library has an implementation by operations of jax, which is what one lane computes.

        Raises:
            Unsupported: the primitive has no rule and is not elementwise, or the emitter has no rule for it.
        """
        name = eqn.primitive.name
        if id(eqn) in self.prepared and all(x is not None for x in inputs):
            known = self.prepared[id(eqn)].get(_keys(inputs))
            if known is not None:
                return known
        if name in IDENTITIES:
            return inputs[: len(eqn.outvars)]
        if name in CALLS and (is_outlined(eqn) or is_cold(eqn)):
            return self.emitter.call(self, eqn, inputs)
        if name in CALLS:
            return self.run(called_jaxpr(eqn), inputs)
        if name in CONTROL:
            return CONTROL[name](self, eqn, inputs)
        if name == "dot_general" and len({v.aval.dtype for v in (*eqn.invars, *eqn.outvars)}) > 1:
            return self.run(reductions.in_one_type(eqn), inputs)
        try:
            return self.apply_rule(eqn, inputs)
        except Unsupported:
            if (closed := implementation(eqn)) is None:
                raise
            return self.run(closed, inputs)

    def apply_rule(self, eqn: Equation, inputs: list[Value]) -> list[Value]:
        """Returns the results of an equation that is no call, loop or branch, as `apply_equation`."""
        name = eqn.primitive.name
        large = is_large(eqn, self.emitter.max_scalars) and not self.is_sparse(eqn, inputs)
        if large or ((name in INDEXED or name == "sort") and self.prefers_memory(name, inputs)):
            return self.emitter.array_primitive(self, eqn, inputs)
        if name in RULES:
            return RULES[name](self, eqn, inputs)
        if len(eqn.outvars) != 1 or _broadcast_shape(inputs) != eqn.outvars[0].aval.shape:
            raise Unsupported(name)
        # a literal 0 is the user's own, a sparse tangent has zeros as constants
        literal_zero = name in ("mul", "div") and any(is_literal(v) and v.val == 0 for v in eqn.invars)
        found = self.elementwise(name, *inputs, params=eqn.params, structural=not literal_zero)
        if found.size and found.flat[0].dtype != eqn.outvars[0].aval.dtype:
            raise Unsupported(f"{name} of {', '.join(str(v.aval.dtype) for v in eqn.invars)}")
        return [found]


def _keys(values: Sequence[Value]) -> tuple:
    """Hashable key of values: equal keys mean identical values; constants are compared by their bits (NaN, -0.0)."""
    of_array = lambda x: (x.shape, *((y.dtype, y.tobytes()) if is_constant(y) else y for y in x.flat))
    return tuple(of_array(x) if isinstance(x, np.ndarray) else x for x in values)


def _broadcast_shape(values: Sequence[Value]) -> tuple | None:
    """Shape of elementwise results of these values; None if they have none,
    as of an operation that is another kind of one."""
    try:
        return np.broadcast_shapes(*(x.shape for x in values))
    except ValueError:
        return None


@remember_by_jaxpr
def passing_values(jaxpr: AnyJaxpr) -> frozenset:
    """Returns the variables of a jaxpr that are read only once, by an elementwise operation or a reduction.

    They need no memory, as such an equation reads each entry once.
    """
    equations = value_equations(jaxpr)
    uses = Counter(v for eqn in equations for v in eqn.invars if not is_literal(v))
    uses.update(v for v in jaxpr.outvars if not is_literal(v))
    others = RULES.keys() | CONTROL.keys() | CALLS.keys() | IDENTITIES
    readers = [eqn for eqn in equations if eqn.primitive.name.startswith("reduce_") or eqn.primitive.name not in others]
    return frozenset(v for eqn in readers for v in eqn.invars if not is_literal(v) and uses[v] == 1)


def program_inputs(closed: ClosedJaxpr) -> tuple[list, list]:
    """Returns the input variables of the program of a closed jaxpr, and the values of those
    inputs that the jaxpr closes over.

    The inputs are the jaxpr's own, then floats and tracers that it closes over: programs that differ only in these
    share machine code. Integers that it closes over are constants of the program, as they may be indices,
    which are cheap only as constants.
    """
    captured = {v: x for v, x in closed_over_values(closed).items() if _is_input(x)}
    return [*closed.jaxpr.invars, *captured], [*captured.values()]


def _is_input(constant: Array | np.ndarray) -> bool:
    return is_traced(constant) or jnp.issubdtype(constant.dtype, jnp.inexact)
