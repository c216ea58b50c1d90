"""Lane axes of jax primitives that evaluate a hashable function of one lane for many lanes.

Such a primitive has three parameters: ``function``, of flat operands; ``axes``, the lane axis of each operand, 0 or
None; and ``count``, the number of lanes, None without a lane axis. Its results have a leading lane axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import Primitive
from jax.sharding import AbstractMesh, PartitionSpec

NO_MESH = AbstractMesh((), ())


def of_one_lane(operands: Sequence, axes: Sequence[int | None]) -> list[jax.ShapeDtypeStruct]:
    """Returns shapes and dtypes of the operands in one lane."""
    shapes = [x.shape if a is None else x.shape[1:] for x, a in zip(operands, axes, strict=True)]
    return [jax.ShapeDtypeStruct(shape, x.dtype) for x, shape in zip(operands, shapes, strict=True)]


def of_lanes(members: Sequence, count: int | None, operands: Sequence) -> list[jax.core.ShapedArray]:
    """Returns the avals of results for all lanes; ``members``: shapes and dtypes in one lane; ``operands``:
    avals of the operands."""
    lead = () if count is None else (count,)
    found = [jax.core.ShapedArray((*lead, *x.shape), x.dtype) for x in members]
    if not operands or operands[0].mat.empty:
        return found
    # within `jax.shard_map` results vary over devices as the operands do
    first = operands[0]
    where = [first.sharding.update(spec=PartitionSpec(*[None] * x.ndim)) for x in found]
    return [x.update(sharding=s, manual_axis_type=first.mat) for x, s in zip(found, where, strict=True)]


def vary_alike(operands: Sequence) -> list:
    """Marks all operands as varying over the axes of devices over which any of them does, within `jax.shard_map`;
    gradients then sum over devices."""
    varying = [jax.typeof(x).mat.varying for x in operands]
    every = frozenset[str]().union(*varying)
    return [lax.pcast(x, tuple(every - own), to="varying") for x, own in zip(operands, varying, strict=True)]


def add_lanes(
    primitive: Primitive, operands: Sequence, dims: Sequence, *, function: Callable, axes: tuple, count: int | None
) -> tuple[list, list]:
    """Batching rule of a primitive: a first batch axis becomes the lane axis, another one makes more lanes."""
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    operands = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(operands, dims, strict=True)]
    if count is None:
        axes = tuple(None if d is None else 0 for d in dims)
        found = primitive.bind(*operands, function=function, axes=axes, count=size)
        return found, [0] * len(found)

    def join_axes(x: Array, d: int | None, a: int | None) -> Array:
        """An operand x with its batch axis d merged into its lane axis a; where it lacks one of the two,
        it is repeated along that axis."""
        if d is None and a is None:
            return x
        x = x[None] if d is None else x
        x = x[:, None] if a is None else x
        return jnp.broadcast_to(x, (size, count, *x.shape[2:])).reshape(size * count, *x.shape[2:])

    operands = [join_axes(x, d, a) for x, d, a in zip(operands, dims, axes, strict=True)]
    axes = tuple(None if d is None and a is None else 0 for d, a in zip(dims, axes, strict=True))
    found = primitive.bind(*operands, function=function, axes=axes, count=size * count)
    return [x.reshape(size, count, *x.shape[1:]) for x in found], [0] * len(found)


def is_real(x: Array) -> bool:
    """Whether an array holds floats, which have derivatives."""
    return jnp.issubdtype(x.dtype, jnp.floating)


def used_by_moved(function: Callable, operands: Sequence, moved: Sequence[bool], used: Sequence[bool]) -> tuple:
    """Returns the function from the list of operands in the mask ``moved`` to the list of results in the mask ``used``,
    and those operands."""

    def of(some: Sequence) -> list:
        numbers = iter(some)
        full = [next(numbers) if m else x for x, m in zip(operands, moved, strict=True)]
        return list(compress(function(*full), used))

    return of, list(compress(operands, moved))
