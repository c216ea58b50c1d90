"""Coefficients of friction: numbers, one per contact, functions of args, or functions of the slip speed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from .user_functions import named_errors


@dataclass(frozen=True)
class OfSpeed:
    """A coefficient of friction that is a ``function`` (s, args) of the slip speeds, as `Problem` keeps it."""

    function: Callable[[Array, Any], Any]

    def __call__(self, speeds: Array, args: object) -> Any:
        return self.function(speeds, args)

    @classmethod
    def or_as_given(cls, friction: Any) -> Any:
        """Returns a function of two parameters as one of the slip speeds; anything else as it is."""
        if not callable(friction) or isinstance(friction, cls):
            return friction
        try:
            every = inspect.signature(friction).parameters.values()
        except (TypeError, ValueError):  # of some callables nothing is known
            return friction
        needed = [x for x in every if x.default is x.empty and x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD)]
        return cls(friction) if len(needed) == 2 else friction


def coefficients(given: Any, slip: Array, args: object, name: str = "friction") -> Array:
    """Returns coefficients of friction (m,) at slip velocities (m, k), ``given`` as a number, one per contact, or a
    function of args or of the speeds; ``name``: its name in errors."""
    if isinstance(given, OfSpeed):
        with named_errors(f"{name}(s, args)", args):
            given = given(lengths(slip), args)
        given = jnp.where(given >= 0, given, jnp.nan)  # which no motion survives unnoticed
    elif callable(given):
        with named_errors(f"{name}(args)", args):
            given = given(args)
    return jnp.broadcast_to(jnp.asarray(given, slip.dtype), slip.shape[:-1])


def lengths(x: Array) -> Array:
    """Returns the Euclidean norms over the last axis; their derivatives at zero are zero.

    Numbers are scaled before they are squared, so that small ones do not underflow.
    """
    if x.shape[-1] == 1:
        return jnp.abs(x[..., 0])
    largest = jnp.max(jnp.abs(x), axis=-1)
    scale = jnp.where(largest > 0, largest, 1)
    some = jnp.where(largest[..., None] > 0, x / scale[..., None], 1)
    return jnp.where(largest > 0, scale * jnp.sqrt(jnp.sum(some**2, axis=-1)), largest)
