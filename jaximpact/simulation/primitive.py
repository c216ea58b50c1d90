"""The motion as one jax primitive: batching adds lanes, and its derivatives are primitives of the same kind.

On a CPU the primitive runs as native code if the problem allows it, also inside a program that XLA compiles; on an
NVIDIA GPU as one kernel. Otherwise XLA compiles the lane function (`lane_functions`). Reverse mode with few inputs
multiplies by the Jacobian in forward mode, which needs no memory for the steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import compress
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import Primitive, Var
from jax.flatten_util import ravel_pytree
from jax.interpreters import ad, batching, mlir, partial_eval

from ..compiler.lane_axes import NO_MESH, add_lanes, is_real, of_lanes, of_one_lane, vary_alike
from ..compiler.scalar import Unsupported
from ..jaxtools.jaxpr_types import Equation
from ..jaxtools.trace_context import platform, setting
from ..mechanics.motion import Motion
from .backends import Task, directions_are_lanes
from .lane_functions import (
    Cotangent,
    Derivative,
    ForwardJacobian,
    Tangent,
    Value,
    ValueAndJacobian,
    ValueAndTangent,
    lanewise,
    vmapped,
)
from .limits import (
    MAX_FORWARD_DIRECTIONS,
    MAX_FORWARD_DIRECTIONS_OF_ONE,
    MAX_FORWARD_ENTRIES_OF_ONE,
    MAX_JACOBIAN_BYTES,
    MAX_STATE_BYTES,
)
from .program import Program

if TYPE_CHECKING:
    from .lane_functions import LaneFunction

T = TypeVar("T")

log = logging.getLogger(__name__)
DIRECTIONS_AT_ONCE = 64  # of inputs, in reverse mode through steps that cannot be walked back
LEAVES_OF_A_STATE = 8  # arrays of coordinates and contacts, about, that are kept of a step to walk back through
JACOBIANS = ForwardJacobian, ValueAndJacobian
motion_p = Primitive("motion")
motion_p.multiple_results = True
# the same with its JVP, in one pass through the steps; it is taken apart where the tangents are not known yet, as in
# reverse mode
motion_with_tangent_p = Primitive("motion_with_tangent")
motion_with_tangent_p.multiple_results = True


def bind(
    task: Task, result: T, program: Program, motion: Motion, execution: str = "auto", walks_back: bool = False
) -> T:
    """Returns ``task(program, motion, None)``, computed by the motion primitive;
    ``result`` is the pytree structure of this value.

    ``walks_back``: whether reverse mode goes back through the steps however few the inputs.
    """
    leaves, structure = jax.tree.flatten((program, motion))
    # plain numbers, tolerances say, take the types of the motion: an operand has no weak one
    kinds = {float: motion.q0.dtype, int: jnp.int32, bool: bool}
    leaves = vary_alike([jnp.asarray(x, kinds.get(type(x))) for x in leaves])
    value = Value(task, structure, result, execution, walks_back=walks_back)
    found = motion_p.bind(*leaves, function=value, axes=(None,) * len(leaves), count=None)
    return jax.tree.unflatten(result, found)


_bound = jax.jit(
    lambda *operands, primitive, **params: primitive.bind(*operands, **params),
    static_argnames=("primitive", "function", "axes", "count"),
)


def _evaluate(*operands: Array, primitive: Primitive, function: Any, axes: tuple, count: int | None) -> list:
    """Results on given arrays: of a compiled program, or operation by operation where jax is told not to
    compile (`jax.disable_jit`)."""
    params = {"function": function, "axes": axes, "count": count}
    if setting("jax_disable_jit"):
        return lanewise(**params)(*operands)
    return _bound(*operands, primitive=primitive, **params)


def _abstract(*operands: Array, function: Any, axes: tuple, count: int | None) -> list:
    members = of_one_lane(operands, axes)
    if _is_native(function):
        if isinstance(function, Cotangent):
            function.announce(members, axes, count)
        shapes = function.native_shapes(members)
    else:
        shapes = jax.eval_shape(partial(vmapped, function=function, axes=axes, count=None), *members)
    return of_lanes(shapes, count, operands)


def _is_native(function: LaneFunction) -> bool:
    return function.value.execution != "xla"


def _motion_jvp(primals: Sequence, tangents: Sequence, *, function: Any, axes: tuple, count: int | None) -> tuple:
    moved = tuple(type(t) is not ad.Zero and is_real(x) for x, t in zip(primals, tangents, strict=True))
    changes = [ad.instantiate_zeros(t) for t, m in zip(tangents, moved, strict=True) if m]
    further = tuple(a for a, m in zip(axes, moved, strict=True) if m)
    if _is_native(function) and type(function) in (Tangent, *JACOBIANS) and function.function is function.value:
        values = motion_p.bind(*primals, function=function, axes=axes, count=count)
        used = tuple(map(is_real, values))
        second = Tangent(function, moved, used)
        found = motion_p.bind(*primals, *changes, function=second, axes=(*axes, *further), count=count)
        return values, _with_zeros(found, values, used)
    if function is not function.value:
        # derivatives of derivatives: of the lane function as it stands
        some = [x for x, m in zip(primals, moved, strict=True) if m]

        def of(some: list) -> list:
            numbers = iter(some)
            full = [next(numbers) if m else x for x, m in zip(primals, moved, strict=True)]
            return vmapped(*full, function=function, axes=axes, count=count)

        return jax.jvp(of, (some,), (changes,))
    function = function.with_derivative(primals, moved)
    shapes = _abstract(*map(jax.typeof, primals), function=function, axes=axes, count=count)
    used = tuple(map(is_real, shapes))
    if any(isinstance(x, partial_eval.JaxprTracer) for x in changes):
        # tangents that are not known yet, as in reverse mode
        members, given = [jax.typeof(x) for x in changes], list(compress(shapes, used))
        if platform() == "cpu" and _is_native(function) and _fits(function, primals, members, further, given, count):
            return _with_jacobian(primals, changes, ValueAndJacobian(function, moved, used), axes, count)
    both = ValueAndTangent(function, moved, used)
    all_of = motion_with_tangent_p.bind(*primals, *changes, function=both, axes=(*axes, *further), count=count)
    values, found = all_of[: len(used)], all_of[len(used) :]
    return values, _with_zeros(found, values, used)


def _with_zeros(found: Sequence, values: Sequence, used: Sequence[bool]) -> list:
    """The tangents of all ``values``: those ``found`` of the ones in the mask ``used``, zero of the others."""
    some = iter(found)
    return [next(some) if u else ad.Zero(jax.typeof(x).to_tangent_aval()) for x, u in zip(values, used, strict=True)]


def _with_jacobian(
    primals: Sequence, changes: Sequence, function: ValueAndJacobian, axes: tuple, count: int | None
) -> tuple[list, list]:
    """Values, and their tangents by a product with the Jacobian, both computed in one pass through the steps."""
    values, every = _value_and_jacobian(*primals, function=function, axes=axes, count=count)
    found = _along(every, changes, tuple(compress(axes, function.moved)), count)
    return values, _with_zeros(found, values, function.used)


# each one program, where jax would compile each of their operations
@partial(jax.jit, static_argnames=("function", "axes", "count"))
def _value_and_jacobian(*operands: Array, function: ValueAndJacobian, axes: tuple, count: int | None) -> tuple:
    """The values, and the derivatives (p, ...) or (lanes, p, ...) of those that ``function`` uses."""
    found, number = motion_p.bind(*operands, function=function, axes=axes, count=count), len(function.used)
    return [jnp.squeeze(x, 0 if count is None else 1) for x in found[:number]], found[number:]


@partial(jax.jit, static_argnames=("axes", "count"))
def _along(jacobians: list, changes: list, axes: tuple, count: int | None) -> list:
    """The changes of outputs along those of the moved operands, by their Jacobians (p, ...) or (lanes, p, ...)."""
    if count is not None:
        return jax.vmap(lambda *x: _along(*x, axes, None), in_axes=(0, list(axes)))(jacobians, changes)
    direction = jnp.concatenate([x.ravel() for x in changes])
    return [jnp.tensordot(direction, x, 1) for x in jacobians]


def _batch_with_tangent(operands: Sequence, dims: Sequence, *, function: ValueAndTangent, **params: Any) -> tuple:
    """Batches values and tangents; if only the tangents of the inputs are batched, all lanes have the same values,
    returned once without batch axis."""
    found, places = add_lanes(motion_with_tangent_p, operands, dims, function=function, **params)
    if any(d is not None for d in dims[: len(function.moved)]):
        return found, places
    values = len(function.used)
    return [*(x[0] for x in found[:values]), *found[values:]], [None] * values + places[values:]


def _apart(operands: Sequence, function: ValueAndTangent, axes: tuple, count: int | None) -> list:
    """Results of `motion_with_tangent` by two `motion` primitives: one for the values, and one, linear in the input
    tangents, for the tangents."""
    number = len(function.moved)
    values = motion_p.bind(*operands[:number], function=function.function, axes=axes[:number], count=count)
    return [*values, *motion_p.bind(*operands, function=function.tangent, axes=axes, count=count)]


def _jvp_with_tangent(primals: Sequence, tangents: Sequence, **params: Any) -> tuple:
    """JVP rule of `motion_with_tangent`: differentiates its values and its tangents as two primitives (`_apart`)."""
    moved = [type(t) is not ad.Zero for t in tangents]

    def of(some: list) -> list:
        numbers = iter(some)
        return _apart([next(numbers) if m else x for x, m in zip(primals, moved, strict=True)], **params)

    chosen = [x for x, m in zip(primals, moved, strict=True) if m]
    return jax.jvp(of, (chosen,), ([t for t, m in zip(tangents, moved, strict=True) if m],))


def _known_values(trace: Any, *tracers: Any, function: ValueAndTangent, axes: tuple, count: int | None) -> list:
    """Partial evaluation of `motion_with_tangent`: if only tangents of the inputs are unknown, computes the values now
    and leaves the tangents for later."""
    known, number = [x.pval.get_known() for x in tracers], len(function.moved)
    if all(x is not None for x in known) or any(x is None for x in known[:number]):
        params = {"function": function, "axes": axes, "count": count}
        return trace.default_process_primitive(motion_with_tangent_p, tracers, params)
    values = motion_p.bind(*known[:number], function=function.function, axes=axes[:number], count=count)
    params = {"function": function.tangent, "axes": axes, "count": count}
    return [*values, *trace.default_process_primitive(motion_p, tracers, params)]


def _known_equation(_: Any, unknown: Sequence[bool], at_hand: Sequence[bool], eqn: Any) -> tuple:
    """Rule of `motion_with_tangent` for partial evaluation within `jax.checkpoint`.

    Returns the equation of the values, if they are known, else None; the whole equation, to be evaluated later; the
    masks of the results that are unknown, and of those that the later equation provides; and the operands to keep for
    the later equation. ``at_hand``: mask of the operands that need not be kept.
    """
    function, axes, number = eqn.params["function"], eqn.params["axes"], len(eqn.params["function"].moved)
    kept = [x for x, here in zip(eqn.invars, at_hand, strict=True) if isinstance(x, Var) and not here]
    results = len(eqn.outvars)
    if any(unknown[:number]):
        return None, eqn, [True] * results, [True] * results, kept
    if not any(unknown):
        return eqn, eqn, [False] * results, [True] * results, kept
    values = len(function.used)
    params = eqn.params | {"function": function.function, "axes": axes[:number]}
    first = eqn.replace(primitive=motion_p, invars=eqn.invars[:number], outvars=eqn.outvars[:values], params=params)
    return first, eqn, [False] * values + [True] * (results - values), [True] * results, kept


def _transpose_with_tangent(cotangents: Sequence, *operands: Array, function: ValueAndTangent, **params: Any) -> list:
    """Transpose rule of `motion_with_tangent`: its tangents are linear in the tangents of the inputs,
    its values do not depend on them."""
    return _motion_transpose(cotangents[len(function.used) :], *operands, function=function.tangent, **params)


def _motion_transpose(
    cotangents: Sequence, *operands: Array, function: Tangent, axes: tuple, count: int | None
) -> list:
    number = len(function.moved)
    known, changes = operands[:number], operands[number:]
    linear = [ad.is_undefined_primal(x) for x in changes]
    results = iter(_cotangents(cotangents, known, changes, linear, function, axes, count))
    return [None] * number + [next(results) if lin else None for lin in linear]


def _cotangents(
    cotangents: Sequence,
    known: Sequence,
    changes: Sequence,
    linear: Sequence[bool],
    function: Tangent,
    axes: tuple,
    count: int | None,
) -> list:
    """Cotangents of the input tangents that are ``linear``: by the Jacobian in forward mode or a backward pass,
    whichever `_fits` finds cheaper.

    ``cotangents``: those of the used outputs; ``known``: operands of the motion; ``changes``: tangents of the moved
    operands, ``linear`` the mask of those to transpose by. Entries of the result are None if all cotangents are zero.
    """
    number = len(known)
    varied = iter(linear)
    moved = tuple(m and next(varied) for m in function.moved)
    wanted = iter(cotangents)
    used = tuple(u and type(next(wanted)) is not ad.Zero for u in function.used)
    given = [ct for ct in cotangents if type(ct) is not ad.Zero]
    avals = [x.aval for x, lin in zip(changes, linear, strict=True) if lin]
    lane_axes = [a for a, lin in zip(axes[number:], linear, strict=True) if lin]
    if not given:
        return [None] * len(avals)
    if _is_native(function) and _fits(function.value, known, avals, lane_axes, given, count):
        jacobian = ForwardJacobian(function.function, moved, used)
        every = motion_p.bind(*known, function=jacobian, axes=axes[:number], count=count)
        along = lambda changes: _along(every, changes, tuple(lane_axes), count)
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in avals]
        return jax.linear_transpose(along, shapes)(given)[0]
    elif function.function is function.value and not function.value.unflatten(known)[0].scheme.traits.reverse:
        of = Tangent(function.function, moved, used)
        found = _cotangents_by_directions(of, known, given, axes[:number], count)
    elif function.function is not function.value:
        return _cotangents_as_it_stands(cotangents, known, changes, linear, function, axes, count)
    else:
        further = (None if count is None else 0,) * len(given)
        of_lanes = Cotangent(function.function, moved, used)
        found = motion_p.bind(*known, *given, function=of_lanes, axes=(*axes[:number], *further), count=count)
    # what lanes share has the sum of theirs
    return [x.sum(axis=0) if count is not None and a is None else x for x, a in zip(found, lane_axes, strict=True)]


def _cotangents_by_directions(
    function: Tangent, known: Sequence, given: Sequence, axes: tuple, count: int | None
) -> list:
    """As `_cotangents`, in forward mode for however many inputs, of schemes whose steps cannot be walked back: in each
    direction by itself, which keeps neither a Jacobian nor states. ``given``: cotangents of the outputs that
    ``function`` uses."""
    push, flat, unravel = _push(motion_p, function, known, axes, count)
    batch = () if count is None else (count,)

    def along(i: Array) -> Array:
        changes = push(flat.at[i].set(1))
        parts = [x.reshape(*batch, -1) * ct.reshape(*batch, -1) for x, ct in zip(changes, given, strict=True)]
        return reduce(jnp.add, (jnp.sum(x, axis=-1) for x in parts))

    total = jnp.moveaxis(jax.lax.map(along, jnp.arange(flat.size), batch_size=DIRECTIONS_AT_ONCE), 0, -1)
    return unravel(total) if count is None else jax.vmap(unravel)(total)


def _cotangents_as_it_stands(
    cotangents: Sequence,
    known: Sequence,
    changes: Sequence,
    linear: Sequence[bool],
    function: Tangent,
    axes: tuple,
    count: int | None,
) -> list:
    """As `_cotangents`, where ``function`` is the tangent of a derivative: jax transposes the lane function itself."""

    def of(some: list) -> list:
        numbers = iter(some)
        full = [next(numbers) if lin else x for x, lin in zip(changes, linear, strict=True)]
        return vmapped(*known, *full, function=function, axes=axes, count=count)

    shapes = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x, lin in zip(changes, linear, strict=True) if lin]
    return jax.linear_transpose(of, shapes)([ad.instantiate_zeros(ct) for ct in cotangents])[0]


def _push(
    primitive: Primitive, function: Derivative, known: Sequence, axes: tuple, count: int | None
) -> tuple[Callable[[Array], list], Array, Callable[[Array], list]]:
    """A function from a direction (p,) of the moved operands, the same in all lanes, to the results of the
    ``primitive`` along it.

    Also returns the direction zero, and what splits a direction into those of the operands.
    """
    some = compress(of_one_lane(known, axes), function.moved)
    flat, unravel = ravel_pytree([jnp.zeros(x.shape, x.dtype) for x in some])
    every = (*axes, *[None] * sum(function.moved))
    push = lambda direction: primitive.bind(*known, *unravel(direction), function=function, axes=every, count=count)
    return push, flat, unravel


def _fits(
    value: Value, known: Sequence, avals: Sequence, lane_axes: Sequence, given: Sequence, count: int | None
) -> bool:
    """Whether the Jacobian in forward mode is cheaper than reverse mode.

    ``known``: operands of the motion; ``avals`` and ``lane_axes``: those of the operands by which derivatives are
    taken; ``given``: cotangents of the outputs; ``count``: number of lanes, None without a lane axis.
    """
    directions = sum(x.size for x in of_one_lane(avals, lane_axes))
    size = directions * sum(x.size * x.dtype.itemsize for x in given)
    if value.walks_back or directions > MAX_FORWARD_DIRECTIONS or size > MAX_JACOBIAN_BYTES:
        return False
    if platform() != "cpu":
        return True
    program, motion = value.unflatten(known)
    if count is not None or directions <= MAX_FORWARD_DIRECTIONS_OF_ONE or not has_way_back(program, motion):
        return True
    return directions * motion.q0.size**2 <= MAX_FORWARD_ENTRIES_OF_ONE


def has_way_back(program: Program, motion: Motion) -> bool:
    """Whether native code has a backward pass for one motion (`reverse_loop`) whose states fit into memory."""
    traits = program.scheme.traits
    # of a scheme that chooses its own steps every trial is one to walk back through
    if not program.length or not traits.reverse or traits.by_tolerance:
        return False
    return bytes_of_states(program, motion) <= MAX_STATE_BYTES


def bytes_of_states(program: Program, motion: Motion) -> int:
    """Returns about how many bytes the states take that are kept of one motion to walk back through its steps."""
    of_state = LEAVES_OF_A_STATE * (motion.q0.size + program.problem.count(motion.t0, motion.q0, motion.args) + 1)
    return of_state * program.length * motion.q0.dtype.itemsize


def _without_unread(used: Sequence[bool], *rest: Any) -> tuple[list[bool], Equation | None]:
    """Rule for dead code, which jit removes: computes no account of the motion that nobody reads.

    Newer versions of jax hand over more before the equation, which is the last argument.
    """
    (*_, eqn), used = rest, list(used)
    if not any(used):
        return [False] * len(eqn.invars), None
    function, stays = eqn.params["function"].reading(used)
    if all(stays):
        return [True] * len(eqn.invars), eqn
    outvars = [v for v, s in zip(eqn.outvars, stays, strict=True) if s]
    return [True] * len(eqn.invars), eqn.replace(outvars=outvars, params=eqn.params | {"function": function})


def _jacobian_or(lower: Callable) -> Callable:
    """A lowering that has each direction of a Jacobian computed in a lane of its own where that is cheaper, and is
    ``lower`` otherwise."""

    def rule(ctx: mlir.LoweringRuleContext, *operands: Array, function: LaneFunction, **params: Any) -> Sequence:
        if isinstance(function, JACOBIANS) and _is_native(function):
            program, one = function.value.unflatten(members := of_one_lane(ctx.avals_in, params["axes"]))
            directions = sum(x.size for x in compress(members, function.moved))
            if directions_are_lanes(program.problem, one, params["count"] or 1, directions):
                run = partial(_by_lanes, function=function, **params)
                return mlir.lower_fun(run, multiple_results=True)(ctx, *operands)
        return lower(ctx, *operands, function=function, **params)

    return rule


def _by_lanes(
    *operands: Array, function: ForwardJacobian | ValueAndJacobian, axes: tuple, count: int | None
) -> list[Array]:
    """Results of a Jacobian with each direction in a lane of its own."""
    lane, of = 0 if count is None else 1, (function.function, function.moved, function.used)
    values = len(function.used) if isinstance(function, ValueAndJacobian) else 0
    primitive, kind = (motion_with_tangent_p, ValueAndTangent) if values else (motion_p, Tangent)
    push, flat, _ = _push(primitive, kind(*of), operands, axes, count)
    places = [None] * values + [lane] * sum(function.used)
    found = jax.vmap(push, out_axes=places)(jnp.eye(flat.size, dtype=flat.dtype))
    return [*(jnp.expand_dims(x, lane) for x in found[:values]), *found[values:]]


def _natively(
    ctx: mlir.LoweringRuleContext, *operands: Array, function: LaneFunction, axes: tuple, count: int | None
) -> Sequence:
    """Lowering for CPUs: to native code if that is possible and asked for, else through XLA."""
    members = of_one_lane(ctx.avals_in, axes)
    try:
        if not _is_native(function):
            raise Unsupported("not asked for")
        name = function.target(members, axes, count, ctx.avals_out)
    except (Unsupported, ImportError, NotImplementedError) as error:
        if function.value.execution == "native":
            raise ValueError(f"execution='native' cannot take this problem ({error}): give execution='xla'") from error
        return _by_xla(ctx, *operands, function=function, axes=axes, count=count)
    call = jax.ffi.ffi_call(name, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in ctx.avals_out])
    return mlir.lower_fun(lambda *xs: call(*xs), multiple_results=True)(ctx, *operands)


def _on_gpu(
    ctx: mlir.LoweringRuleContext, *operands: Array, function: LaneFunction, axes: tuple, count: int | None
) -> Sequence:
    """Lowering for NVIDIA GPUs: to a kernel if that is possible and asked for, else through XLA."""
    if _is_native(function):
        try:
            run = lambda *operands: function.in_kernel(operands, axes, count)
            return mlir.lower_fun(run, multiple_results=True)(ctx, *operands)
        except (Unsupported, ImportError, NotImplementedError) as error:
            log.debug("through XLA: %s", error)
    return _by_xla(ctx, *operands, function=function, axes=axes, count=count)


def _by_xla(ctx: Any, *operands: Array, function: LaneFunction, axes: tuple, count: int | None) -> Sequence:
    # each device has its own operands, of which the function need not know that they vary over devices
    # (`jax.shard_map`)
    here = ctx.replace(avals_in=[jax.core.ShapedArray(x.shape, x.dtype) for x in ctx.avals_in])
    with jax.sharding.use_abstract_mesh(NO_MESH):
        return mlir.lower_fun(lanewise(function, axes, count), multiple_results=True)(here, *operands)


for _primitive in (motion_p, motion_with_tangent_p):
    _primitive.def_impl(partial(_evaluate, primitive=_primitive))
    _primitive.def_abstract_eval(_abstract)
    mlir.register_lowering(_primitive, _by_xla)
    mlir.register_lowering(_primitive, _jacobian_or(_natively), platform="cpu")
    mlir.register_lowering(_primitive, _jacobian_or(_on_gpu), platform="cuda")
    partial_eval.dce_rules[_primitive] = _without_unread
batching.primitive_batchers[motion_p] = partial(add_lanes, motion_p)
batching.primitive_batchers[motion_with_tangent_p] = _batch_with_tangent
ad.primitive_jvps[motion_p] = _motion_jvp
ad.primitive_transposes[motion_p] = _motion_transpose
ad.primitive_transposes[motion_with_tangent_p] = _transpose_with_tangent
ad.primitive_jvps[motion_with_tangent_p] = _jvp_with_tangent
partial_eval.custom_partial_eval_rules[motion_with_tangent_p] = _known_values
partial_eval.partial_eval_jaxpr_custom_rules[motion_with_tangent_p] = _known_equation
