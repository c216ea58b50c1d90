"""Which entries of a function's value depend on which entries of its argument, by its jaxpr: no values are needed, and
nothing is traced twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from .argument_checks import is_traced
from .jaxpr_tools import is_literal, needed_equations
from .jaxpr_types import Equation
from .known_arrays import MOVED
from .row_walk import ELEMENTWISE, REDUCTIONS, RowWalk

LARGEST = 2048  # entries of an argument of which each is followed by itself


def smallest_parts(function: Callable[..., Array], operands: Sequence[Array], least: int = 1) -> int:
    """Returns the smallest size, a multiple of ``least``, of equal parts of vectors (d,) such that no part of
    the value depends on another.

    ``function(*operands)``, (d,), and its operands, (d,) each, are cut at the same places.
    The size is d if no smaller one is found.
    """
    d = len(operands[0])
    if d > LARGEST:
        return d
    count = len(operands)
    found = dependence(lambda x: function(*jnp.split(x, count)), jnp.concatenate(operands))
    mixed = np.any(found.reshape(d, count, d), axis=1)
    for size in range(least, d, least):
        part = np.arange(d) // size
        if d % size == 0 and not np.any(mixed & (part[:, None] != part[None, :])):
            return size
    return d


def dependence(function: Callable[[Array], Array], x: Array) -> np.ndarray:
    """Returns the mask (m, d) of the entries of x (d,) on which each entry of ``function(x)`` (m,) may depend.

    An operation that no rule knows counts as one whose whole result depends on all of its operands.
    """
    walk, d = RowWalk.of(function, x), len(x)
    masks = {walk.argument: np.eye(d, dtype=bool)}
    for eqn in needed_equations(walk.jaxpr):
        if walk.moving.isdisjoint(eqn.outvars):
            continue
        given = [np.zeros((v.aval.size, d), bool) if is_literal(v) or v not in masks else masks[v] for v in eqn.invars]
        found = _by_rule(walk, eqn, given)
        if found is None:
            union = np.any(np.concatenate(given), axis=0)
            found = [np.broadcast_to(union, (v.aval.size, d)) for v in eqn.outvars]
        masks.update(zip(eqn.outvars, found, strict=True))
    (result,) = walk.jaxpr.outvars
    none = np.zeros((result.aval.size, d), bool)
    return none if is_literal(result) else masks.get(result, none)


def _by_rule(walk: RowWalk, eqn: Equation, given: list[np.ndarray]) -> list[np.ndarray] | None:
    """Returns which of the d inputs each entry of an equation's results depends on, as masks (n, d), ``given`` the same
    masks of its operands; None if there is no rule for it."""
    name, (first, *_) = eqn.primitive.name, eqn.outvars
    shapes = [v.aval.shape for v in eqn.invars]
    if name in ELEMENTWISE:
        whole = (*first.aval.shape, given[0].shape[1])
        spread = [np.broadcast_to(x.reshape(*s, -1), whole) for x, s in zip(given, shapes, strict=True)]
        return [np.any(spread, axis=0).reshape(-1, whole[-1])]
    if name in REDUCTIONS:
        return [np.any(given[0].reshape(*shapes[0], -1), axis=eqn.params["axes"]).reshape(first.aval.size, -1)]
    if name == "dot_general":
        return [_of_product(eqn, shapes, given)]
    if name not in MOVED:
        return None
    ends = np.cumsum([0, *(len(mask) for mask in given)])
    numbers: list[np.ndarray | None] = [
        np.arange(a, b).reshape(s) for a, b, s in zip(ends[:-1], ends[1:], shapes, strict=True)
    ]
    if name == "gather":
        places = eqn.invars[1]
        numbers[1] = places.val if is_literal(places) else walk.values.get(places)
        if numbers[1] is None or is_traced(numbers[1]):
            return None
        numbers[1] = np.asarray(numbers[1])
    moved = MOVED[name](eqn, *numbers)
    if moved is None:
        return None
    every = np.concatenate(given)
    return [every[np.ravel(x)] for x in (moved if isinstance(moved, list) else [moved])]


def _of_product(eqn: Equation, shapes: Sequence[tuple], given: list[np.ndarray]) -> np.ndarray:
    """Returns which of the d inputs each entry of a `dot_general` depends on, (n, d), ``given`` the same masks of its
    two factors."""
    contracted, batch = eqn.params["dimension_numbers"]
    parts: list[tuple[np.ndarray, int, int]] = []
    for shape, mask, summed, batched in zip(shapes, given, contracted, batch, strict=True):
        free = [i for i in range(len(shape)) if i not in (*summed, *batched)]
        order = [*batched, *free, *summed, len(shape)]
        by_axes = mask.reshape(*shape, -1).transpose(order)
        left = tuple(range(len(batched) + len(free), len(shape)))
        parts.append((np.any(by_axes, axis=left), len(batched), len(free)))
    (a, count, of_a), (b, _, of_b) = parts
    a = a.reshape(*a.shape[: count + of_a], *[1] * of_b, -1)
    b = b.reshape(*b.shape[:count], *[1] * of_a, *b.shape[count:])
    return np.ravel(a | b).reshape(-1, a.shape[-1])
