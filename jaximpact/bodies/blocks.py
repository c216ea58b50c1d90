"""Block-diagonal mass matrices, where each body's mass depends on its own position."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from ..jaxtools.argument_checks import check_whole
from ..mechanics.problem_parts import Args


def block_mass(
    number: int, of_one: Callable[[Array, Args], Array], each: Callable | None = None
) -> Callable[[Array, Args], Array]:
    """Makes the function ``mass(q, args)`` of a `Problem` of many bodies, which returns blocks (N, D, D), one per body.

    Equations with the mass matrix are solved block by block, so that the work grows linearly with the number of bodies.
    The forces due to a varying mass (Coriolis, centrifugal) are not included: `Problem.from_potential` adds them.

    Args:
        number: number of bodies N.
        of_one: ``of_one(q_i, b_i) -> (D, D)``, the mass matrix of one body at q_i (D,).
        each: ``each(args) -> `` a pytree of arrays with a leading axis of length N: b_i are their i-th entries.
            By default b_i is ``args``.

    Raises:
        ValueError, TypeError: number is not a whole number >= 1; of_one or each is not a function.
    """
    check_whole("block_mass(number=...)", number)
    for name, value in (("of_one", of_one), ("each", each)):
        if not callable(value) and not (name == "each" and value is None):
            raise TypeError(f"block_mass({name}=...) must be a function, got {type(value).__name__}")

    def mass(q: Array, args: object) -> Array:
        own = args if each is None else each(args)
        found = jax.vmap(of_one, in_axes=(0, None if each is None else 0))(q.reshape(number, -1), own)
        return jnp.asarray(found, q.dtype)

    return mass
