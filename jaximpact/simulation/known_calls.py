"""What is kept of calls of `ensemble`, so that the next call that differs from one by entries of its arrays
alone need not state it anew."""

from __future__ import annotations

from collections.abc import Hashable

import jax
import numpy as np
from numpy.typing import ArrayLike

from ..jaxtools.shapes import operand_type
from ..jaxtools.trace_context import trace_settings
from .lanes import Lanes
from .limits import MAX_KNOWN_CALLS
from .program import Program, classes_of

MAX_BYTES = 1024  # of an array whose entries are part of a key
_known: dict[Hashable, tuple[Program, Lanes, int]] = {}


def key_of(q0: ArrayLike, v0: ArrayLike, args: object, methods: tuple, *others: object) -> Hashable | None:
    """Hashable key of a call: types and shapes of the states and of args, and all other arguments by value; None if one
    of these has no key.

    ``methods``: scheme and projection; ``others``: the problem among them, whose functions are compared by identity.
    """
    if not isinstance(q0, np.ndarray | jax.Array) or not isinstance(v0, np.ndarray | jax.Array):
        return None
    numbers, of_args = jax.tree.flatten(args)
    values, of_others = jax.tree.flatten((methods, others))
    try:
        kinds = [type(x) if isinstance(x, int | float) else (type(x), operand_type(x)) for x in (q0, v0, *numbers)]
        of_values = tuple(map(_value, values))
        # structures of methods do not tell their classes
        key = *kinds, of_args, of_values, of_others, *map(classes_of, methods), trace_settings()
        hash(key)
    except TypeError:  # no numbers, which is said elsewhere, or without a hash
        return None
    return None if None in of_values else key


def _value(x: object) -> Hashable | None:
    """Key of a number, text or small array: equal keys mean the same bits; None for others."""
    if isinstance(x, int | float | str):
        return type(x), repr(x)
    if isinstance(x, np.ndarray | jax.Array) and x.nbytes <= MAX_BYTES and (x := np.asarray(x)).dtype.kind in "iufb":
        return x.shape, x.dtype, x.tobytes()
    return None


def find(key: Hashable | None) -> tuple[Program, Lanes, int] | None:
    """Returns what `keep` stored under the key, without states and args; None if there is nothing, or if the key is
    None."""
    return None if key is None else _known.get(key)


def keep(key: Hashable | None, program: Program, lanes: Lanes, size: int) -> None:
    """Keeps what was made of a call, unless its key is None; ``size``: bytes of a row of a motion.
    Of many calls the oldest is dropped."""
    if key is not None:
        while len(_known) >= MAX_KNOWN_CALLS:
            _known.pop(next(iter(_known), None), None)
        nothing = lanes.motion._replace(q0=None, v0=None, args=None)
        _known[key] = program, Lanes(nothing, lanes.axes, lanes.count, lanes.seen), size
