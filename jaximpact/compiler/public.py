"""What users of the compiler call: a function of one lane as machine code for many.

`lanes_p` evaluates a function of one lane as an operation of jax: batching adds lanes, and derivatives are operations
of the same kind, of functions that jax derives from the function of one lane. Lowering for a CPU compiles the function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from itertools import compress

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from ..jaxtools.argument_checks import is_traced
from ..jaxtools.dead_code import without_dead_code
from ..jaxtools.jaxpr_types import OpenJaxpr
from ..jaxtools.trace_context import setting
from .lane_axes import NO_MESH, add_lanes, is_real, of_lanes, of_one_lane, used_by_moved, vary_alike
from .llvm.xla_ffi import lane_target
from .scalar import Unsupported

lanes_p = Primitive("lanes")
lanes_p.multiple_results = True


def vectorised(function: Callable, in_axes: int | Sequence | None = 0) -> Callable:
    """Returns a function like ``jax.vmap(function, in_axes)``, which computes all lanes by
    machine code of this processor.

    Each lane takes its own branches and its own number of turns of a `lax.while_loop`, and loops over small arrays run
    without XLA's runtime between their operations. From 256 lanes on, all cores take part. The function is compiled at
    the first call with arguments of new shapes; it works inside `jax.jit`, with `jax.grad`, `jax.jvp` and other
    derivatives, and `jax.vmap` adds lanes. A lane knows nothing of the others: what reduces over a batch, as
    `unvmap_any` of equinox, reduces over the lane's own numbers.

    Args:
        function: jax function of one lane: arrays or pytrees of them to arrays or pytrees of them.
        in_axes: axis of the lanes in each argument, or None for one that all lanes share, as for `jax.vmap`.

    Returns:
        The function of all lanes, whose results have the lanes along the first axis.

    Raises:
        Unsupported: by the returned function, if an operation has no rule here or jax runs on something else than a
            CPU; use `jax.vmap` then.
        ImportError: by the returned function, if llvmlite is not installed.
    """
    name = getattr(function, "__name__", repr(function))

    @wraps(function)
    def one(*operands: object, **keywords: object) -> object:
        leaves, structure = jax.tree.flatten((operands, keywords))

        def flat(*leaves: Array) -> object:
            operands, keywords = jax.tree.unflatten(structure, leaves)
            return function(*operands, **keywords)

        avals = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in map(jax.typeof, leaves)]
        with jax.sharding.use_abstract_mesh(
            NO_MESH
        ):  # a lane does not vary over devices, as it may within `jax.shard_map`
            closed, shape = jax.make_jaxpr(flat, return_shape=True)(*avals)
        outside = [is_traced(x) for x in closed.consts]  # of a transformation around this call: they are operands too
        value = _Value(closed.jaxpr, [None if o else x for x, o in zip(closed.consts, outside, strict=True)], name)
        inputs = vary_alike(list(map(jnp.asarray, [*compress(closed.consts, outside), *leaves])))
        found = lanes_p.bind(*inputs, function=value, axes=(None,) * len(inputs), count=None)
        return jax.tree.unflatten(jax.tree.structure(shape), found)

    return jax.jit(jax.vmap(one, in_axes))


@dataclass(frozen=True, eq=False)
class _Value:
    """A traced function; its operands are those values that it closes over that are None among ``constants``,
    then its own."""

    jaxpr: OpenJaxpr
    constants: Sequence
    name: str

    def __call__(self, *operands: Array) -> list:
        numbers = iter(operands)
        constants = [next(numbers) if x is None else x for x in self.constants]
        return jax.core.eval_jaxpr(self.jaxpr, constants, *numbers)

    def shapes(self, members: Sequence) -> list:
        """Shapes and dtypes of the results in one lane for operands of the shapes ``members``."""
        return [v.aval for v in self.jaxpr.outvars]


@dataclass(frozen=True)
class _Derivative:
    """Base of derivatives of the results in the mask ``used`` by the operands in the mask ``moved``."""

    function: _Value | _Tangent | _Cotangent
    moved: tuple[bool, ...]
    used: tuple[bool, ...]

    @property
    def name(self) -> str:
        return self.function.name


class _Tangent(_Derivative):
    """Maps the operands and the tangents of the moved ones to the tangents of the used results."""

    def __call__(self, *operands: Array) -> list:
        count = len(self.moved)
        of, some = used_by_moved(self.function, operands[:count], self.moved, self.used)
        return jax.jvp(of, (some,), (list(operands[count:]),))[1]

    def shapes(self, members: Sequence) -> list:
        return list(compress(self.function.shapes(members[: len(self.moved)]), self.used))


class _Cotangent(_Derivative):
    """Maps the operands and the cotangents of the used results to the cotangents of the moved operands."""

    def __call__(self, *operands: Array) -> list:
        count = len(self.moved)
        of, some = used_by_moved(self.function, operands[:count], self.moved, self.used)
        closed = without_dead_code(jax.make_jaxpr(of)(some))
        return list(jax.vjp(jaxpr_as_fun(closed), *some)[1](list(operands[count:])))

    def shapes(self, members: Sequence) -> list:
        return list(compress(members[: len(self.moved)], self.moved))


_OfLane = _Value | _Tangent | _Cotangent
_of_lane = jax.jit(lambda *operands, function: function(*operands), static_argnames="function")
_bound = jax.jit(
    lambda *operands, **params: lanes_p.bind(*operands, **params), static_argnames=("function", "axes", "count")
)


@lanes_p.def_impl
def _evaluate(*operands: Array, function: _OfLane, axes: tuple, count: int | None) -> list:
    """Results on given arrays; operation by operation where jax is told not to compile (`jax.disable_jit`)."""
    if not setting("jax_disable_jit"):
        return _bound(*operands, function=function, axes=axes, count=count)
    return (function if count is None else jax.vmap(function, axes, axis_size=count))(*operands)


@lanes_p.def_abstract_eval
def _abstract(*operands: Array, function: _OfLane, axes: tuple, count: int | None) -> list:
    return of_lanes(function.shapes(of_one_lane(operands, axes)), count, operands)


def _jvp(primals: Sequence, tangents: Sequence, *, function: _OfLane, axes: tuple, count: int | None) -> tuple:
    values = lanes_p.bind(*primals, function=function, axes=axes, count=count)
    moved = tuple(type(t) is not ad.Zero and is_real(x) for x, t in zip(primals, tangents, strict=True))
    used = tuple(map(is_real, values))
    # the tangents of shared operands are shared too
    operands, of_all = [*primals, *compress(tangents, moved)], (*axes, *compress(axes, moved))
    changes = iter(lanes_p.bind(*operands, function=_Tangent(function, moved, used), axes=of_all, count=count))
    return values, [
        next(changes) if u else ad.Zero(jax.typeof(x).to_tangent_aval()) for x, u in zip(values, used, strict=True)
    ]


def _transpose(cotangents: Sequence, *operands: Array, function: _OfLane, axes: tuple, count: int | None) -> list:
    linear = [ad.is_undefined_primal(x) for x in operands]
    avals, of_linear = [x.aval for x in compress(operands, linear)], list(compress(axes, linear))
    stays = [type(ct) is not ad.Zero for ct in cotangents]
    if not any(stays):
        return [None] * len(operands)
    if isinstance(function, _Tangent) and not any(linear[: len(function.moved)]):
        number = len(function.moved)
        which, wanted = iter(linear[number:]), iter(stays)
        moved = tuple(m and next(which) for m in function.moved)
        used = tuple(u and next(wanted) for u in function.used)
        known, of_known, function = list(operands[:number]), axes[:number], function.function
    else:  # a function that is itself linear in some operands: its derivative anywhere
        known = [jnp.zeros(x.aval.shape, x.aval.dtype) if lin else x for x, lin in zip(operands, linear, strict=True)]
        moved, used, of_known = tuple(linear), tuple(stays), axes
    given = list(compress(cotangents, stays))
    of_all = (*of_known, *[None if count is None else 0] * len(given))
    found = lanes_p.bind(*known, *given, function=_Cotangent(function, moved, used), axes=of_all, count=count)
    # what lanes share has the sum of theirs
    parts = (x.sum(axis=0) if count is not None and a is None else x for x, a in zip(found, of_linear, strict=True))
    totals = iter([x.astype(a.dtype) for x, a in zip(parts, avals, strict=True)])
    return [next(totals) if lin else None for lin in linear]


def _natively(
    ctx: mlir.LoweringRuleContext, *operands: Array, function: _OfLane, axes: tuple, count: int | None
) -> Sequence:
    """Lowering for CPUs: a call of machine code."""
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in ctx.avals_out]
    call: Callable = lambda *_: [jnp.zeros(x.shape, x.dtype) for x in shapes]
    if count != 0:
        members = of_one_lane(ctx.avals_in, axes)
        try:
            with jax.sharding.use_abstract_mesh(NO_MESH):
                name = lane_target(_of_lane, members, axes, count, shapes, lambda _: (), function=function)
        except Unsupported as error:
            raise _refused(function, error) from error
        call = jax.ffi.ffi_call(name, shapes)
    return mlir.lower_fun(call, multiple_results=True)(ctx, *operands)


def _elsewhere(ctx: mlir.LoweringRuleContext, *operands: Array, function: _OfLane, **_: object) -> Sequence:
    raise _refused(function, "another device than a CPU")


def _refused(function: _OfLane, reason: object) -> Unsupported:
    return Unsupported(
        f"{function.name} has no machine code, because of {reason}: call jax.vmap in place of vectorised, or write it "
        "with other operations"
    )


mlir.register_lowering(lanes_p, _elsewhere)
mlir.register_lowering(lanes_p, _natively, platform="cpu")
batching.primitive_batchers[lanes_p] = partial(add_lanes, lanes_p)
ad.primitive_jvps[lanes_p] = _jvp
ad.primitive_transposes[lanes_p] = _transpose
