"""Many motions as one kernel of a GPU: a block of lanes a program, its state in registers over all steps.

What a function does to one lane is traced, and executed on separate numbers (`small`) inside one `pallas_call`, with blocks of
lanes in their place. Loops and branches are real: a loop goes on while any lane of its block does, and a branch is taken if any
lane needs it, the others keeping what they have. What has no rule here raises `Unsupported`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import primitives

from .small import Machine, Unsupported, Value, carried_axes, filled
from .small.cost import SMALL, cost
from .small.program import inputs
from .small.sine import COSINE, SINE

BLOCK = (
    32  # lanes of one program, which go through loops and branches together: one warp was fastest, of 32 to 256 lanes
)
WARPS = 1
LARGEST = 10_000  # operations of a program: twice as many take minutes to compile


def over_lanes(one: Callable, axes: tuple, largest: int = LARGEST, interpret: bool = False) -> Callable:
    """``one`` for all lanes, as `jax.vmap` of it with ``in_axes=axes`` would be, as one kernel.

    ``largest``: operations of a program at most; ``interpret``: imitate the kernel, on any platform.

    Raises:
        Unsupported: while it is traced, if a part of ``one`` has no rule here, or is too large.
    """

    def call(*operands: Any) -> Any:
        carried = jax.tree.leaves(carried_axes(axes, operands))
        leaves, structure = jax.tree.flatten(operands)
        lanes = next(x.shape[0] for x, c in zip(leaves, carried, strict=True) if c)
        member = [jax.typeof(x).update(shape=x.shape[1:]) if c else x for x, c in zip(leaves, carried, strict=True)]
        closed, shape = jax.make_jaxpr(one, return_shape=True)(*jax.tree.unflatten(structure, member))
        if (count := cost(closed)) > largest:
            raise Unsupported(f"a program of some {count} operations, more than {largest}")
        variables, constants = inputs(closed)
        # what the function closes over is shared by all lanes
        given = [*zip(leaves, carried, strict=True), *((x, False) for x in constants)]
        columns, varies = [], []
        for x, c in given:
            x = jnp.asarray(x).reshape(lanes if c else 1, -1)
            columns += [x[:, i] for i in range(x.shape[1])]
            varies += [c] * x.shape[1]

        def program(numbers: Iterable) -> list:
            entries, machine = iter(numbers), Machine(Blocks())
            values = {v: filled(v.aval.shape, (next(entries) for _ in range(v.aval.size))) for v in variables}
            machine.given = values
            found = machine.run(closed, [values[v] for v in closed.jaxpr.invars])
            return [y for x in found for y in x.flat]

        dtypes = [v.aval.dtype for v in closed.jaxpr.outvars for _ in range(v.aval.size)]  # type: ignore[attr-defined]
        found = _launch(program, dtypes, columns, varies, lanes, interpret)
        arrays, parts = [], iter(found)
        for v in closed.jaxpr.outvars:
            columns = [next(parts) for _ in range(math.prod(v.aval.shape))]
            empty = jnp.zeros((lanes, 0), v.aval.dtype)
            arrays.append((jnp.stack(columns, -1) if columns else empty).reshape(lanes, *v.aval.shape))
        return jax.tree.unflatten(jax.tree.structure(shape), arrays)

    return call


def _launch(program: Callable, dtypes: list, entries: list, varies: list[bool], lanes: int, interpret: bool) -> list:
    """The program of one lane for all of them: entries (lanes,) or, shared, (1,); its outputs (lanes,)."""
    count = -(-lanes // BLOCK)
    fill = count * BLOCK - lanes
    entries = [jnp.concatenate([x, jnp.repeat(x[-1:], fill)]) if v and fill else x
               for x, v in zip(entries, varies, strict=True)]  # fmt: skip

    from jax.experimental import pallas  # a second of importing that not everybody needs

    def body(*refs: Any) -> None:
        values = [ref[...] if v else ref[0] for ref, v in zip(refs, varies, strict=False)]
        found = program(values)
        for ref, x in zip(refs[len(varies) :], found, strict=True):
            ref[...] = jnp.broadcast_to(jnp.asarray(x, ref.dtype), (BLOCK,))

    block = pallas.BlockSpec((BLOCK,), lambda i: (i,))
    shared = pallas.BlockSpec((1,), lambda i: (0,))
    shapes = [jax.ShapeDtypeStruct((count * BLOCK,), dtype) for dtype in dtypes]
    parameters: dict[str, Any] = {}
    if not interpret:
        from jax.experimental.pallas import triton

        parameters["compiler_params"] = triton.CompilerParams(num_warps=WARPS, num_stages=1)
    found = pallas.pallas_call(
        body, grid=(count,), in_specs=[block if v else shared for v in varies], out_specs=[block] * len(shapes),
        out_shape=shapes, interpret=interpret, **parameters,
    )(*entries)  # fmt: skip
    return [x[:lanes] for x in found]


# numbers are blocks of lanes (BLOCK,), or () where all lanes share them


class Blocks:
    """The emitter of a kernel, see `small`."""

    memory, small = False, SMALL

    def op(self, name: str, params: Any, *values: Any) -> Array:
        if name in RULES:
            return RULES[name](params, *_alike(values))
        if params is None or name in PLAIN:
            return PLAIN[name](*_alike(values), *([] if name != "convert_element_type" else [params["new_dtype"]]))
        primitive = getattr(primitives, f"{name}_p", None)
        if primitive is None or name not in ELEMENTWISE:
            raise Unsupported(name)
        return primitive.bind(*_alike(values), **params)

    def varies(self, x: Value) -> bool:
        return any(np.ndim(y) > 0 for y in x.flat)

    def large(self, machine: Machine, eqn: Any, inputs: list[Value]) -> list[Value]:
        raise Unsupported(
            f"{eqn.primitive.name} of an array of shape {max(v.aval.shape for v in (*eqn.invars, *eqn.outvars))}"
        )

    def constant(self, x: np.ndarray) -> Value:
        raise Unsupported(f"an array of shape {x.shape}")

    def scan(self, machine: Machine, eqn: Any, inputs: list[Value]) -> list[Value]:
        raise Unsupported("scan over arrays")

    def stream(self, machine: Machine, eqn: Any, inputs: list[Value]) -> list[Value]:
        raise Unsupported("saved rows")

    def loop(self, start: list[Value], varies: Sequence[bool], going: Callable, turn: Callable) -> list[Value]:
        rebuilt, flat = _rebuilt(start), lambda values: _flat(values, varies)
        test = lambda numbers: jnp.asarray(going(rebuilt(numbers)))
        numbers = flat(start)
        if jax.eval_shape(test, numbers).ndim == 0:
            return rebuilt(lax.while_loop(test, lambda numbers: flat(turn(rebuilt(numbers))), numbers))

        def of_live(state: tuple) -> tuple:
            live, old = state
            kept = [jnp.where(live, x, y) for x, y in zip(flat(turn(rebuilt(old))), old, strict=True)]
            return live & test(kept), kept

        return rebuilt(lax.while_loop(lambda state: _any(state[0]), of_live, (test(numbers), numbers))[1])

    def choose(
        self,
        which: Any,
        branches: Sequence[Callable],
        operands: list[Value],
        sizes: Sequence[int],
        avals: Sequence,
        varies: Sequence[bool],
    ) -> list[Value]:
        """The shortest always, the others if any lane asks for them."""
        rebuilt = _rebuilt([np.empty(a.shape, object) for a in avals])
        runs = [lambda branch=branch: _flat(branch(operands), varies) for branch in branches]
        which = jnp.clip(jnp.asarray(which).astype(jnp.int32), 0, len(branches) - 1)
        if which.ndim == 0:
            return rebuilt(lax.switch(which, runs))
        first, *rest = sorted(range(len(branches)), key=lambda i: sizes[i])
        found = runs[first]()
        for i in rest:
            asked = which == i

            def taken(found: list = found, asked: Array = asked, i: int = i) -> list:
                return [jnp.where(asked, x, y) for x, y in zip(runs[i](), found, strict=True)]

            found = lax.cond(_any(asked), taken, lambda found=found: list(found))
        return rebuilt(found)


def _rebuilt(values: Sequence[Value]) -> Callable[[Iterable], list[Value]]:
    """Values of the same shapes from their numbers."""

    def of(numbers: Iterable) -> list[Value]:
        entries = iter(numbers)
        return [filled(x.shape, (next(entries) for _ in range(x.size))) for x in values]

    return of


def _flat(values: Sequence[Value], varies: Sequence[bool]) -> list[Array]:
    """The numbers of values, as blocks where they vary."""
    pairs = [(jnp.asarray(y), v) for x, v in zip(values, varies, strict=True) for y in x.flat]
    return [jnp.broadcast_to(y, (BLOCK,)) if v else y for y, v in pairs]


def _alike(values: Sequence) -> list:
    """Blocks, if there is one among them."""
    if any(np.ndim(x) for x in values):
        return [jnp.broadcast_to(x, (BLOCK,)) for x in values]
    return [jnp.asarray(x) for x in values]


def _any(which: Array) -> Array:
    return jnp.max(which.astype(jnp.int32)) > 0


def _round(params: Any, x: Array) -> Array:
    """To the nearest whole number, and of two to the even one."""
    if params["rounding_method"] != lax.RoundingMethod.TO_NEAREST_EVEN:
        raise Unsupported("round away from zero")
    found = lax.floor(x + jnp.asarray(0.5, x.dtype))
    odd = found * 0.5 != lax.floor(found * 0.5)
    return jnp.where((found - x == 0.5) & odd, found - 1, found)


# pi/2 in parts of 23 bits, the product of which with a whole number below 2^30 is exact
_PARTS = (
    1.5707962512969971, 7.549789415861596e-08, 5.390302529957765e-15, 3.282003415807913e-22, 1.270655753080676e-29,
)  # fmt: skip


def _sine_cosine(x: Array) -> tuple[Array, Array]:
    """sin x and cos x to about an ulp up to 1e9, as straight-line arithmetic, which spills no registers."""
    k = lax.floor(x * (2 / math.pi) + 0.5)
    r = x
    for part in _PARTS:
        r = r - k * part
    z = r * r
    s, c = (reduce(lambda total, c: total * z + c, y[1:], jnp.full_like(z, y[0])) for y in (SINE, COSINE))
    sine = r + r * (z * s)
    cosine = 1 - 0.5 * z + z * z * c
    # quadrant of the angle, without a conversion to whole numbers
    half = k * 0.5
    odd = half != lax.floor(half)
    quarter = lax.floor(half) * 0.5
    back = quarter != lax.floor(quarter)
    s, c = jnp.where(odd, cosine, sine), jnp.where(odd, sine, cosine)
    return jnp.where(back, -s, s), jnp.where(back != odd, -c, c)


def _fast(i: int, exact: Callable) -> Callable:
    return lambda params, x: _sine_cosine(x)[i] if x.dtype == np.float64 else exact(x)


def _extreme(combine: Callable) -> Callable:
    """max or min, NaN where either is: those of the device take the other."""

    def rule(params: Any, x: Array, y: Array) -> Array:
        found = combine(x, y)
        return jnp.where(x != x, x, jnp.where(y != y, y, found)) if jnp.issubdtype(x.dtype, jnp.floating) else found

    return rule


_largest, _smallest = _extreme(lax.max), _extreme(lax.min)

RULES: dict[str, Callable] = {
    "sin": _fast(0, lax.sin), "cos": _fast(1, lax.cos), "round": _round, "max": _largest, "min": _smallest,
    "clamp": lambda params, least, x, most: _smallest(params, _largest(params, least, x), most),
}  # fmt: skip
# what is asked for without parameters
PLAIN: dict[str, Callable] = {
    "add": lax.add, "add_any": lax.add, "sub": lax.sub, "mul": lax.mul, "div": lax.div, "neg": lax.neg, "abs": lax.abs,
    "sqrt": lax.sqrt, "select_n": lax.select_n, "one_minus_square": lambda x: (1 - x) * (1 + x), "convert_element_type": lax.convert_element_type, "and": lax.bitwise_and,
    "or": lax.bitwise_or, "eq": lax.eq, "ne": lax.ne, "lt": lax.lt, "le": lax.le, "gt": lax.gt, "ge": lax.ge,
    "le_to": lambda x, y: (x <= y) | (y != y), "lt_to": lambda x, y: (x < y) | ((y != y) & (x == x)),
}  # fmt: skip
ELEMENTWISE = {
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "clz", "cosh", "erf", "erf_inv", "erfc",
    "exp", "exp2", "expm1", "floor", "integer_pow", "is_finite", "lgamma", "log", "log1p", "logistic", "nextafter", "not",
    "population_count", "pow", "reduce_precision", "rem", "rsqrt", "shift_left", "shift_right_arithmetic",
    "shift_right_logical", "sign", "sinh", "square", "tan", "tanh", "xor", "digamma",
}  # fmt: skip
