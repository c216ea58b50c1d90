"""Calls of users' functions, with errors that name the function and say how it failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import numpy as np

from ..jaxtools.shapes import PyTree, shape_of_result


def outcome(name: str, read: Callable, function: Callable, *operands: object) -> PyTree:
    """Returns the shapes and dtypes of the result of a user's function;
    an error gives the ``name`` of the function and says how it failed.

    ``read``: function applied to the result, as in `shape_of_result`; ``operands``: the arguments,
    args the last of them.
    """
    try:
        return shape_of_result(read, function, *operands)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        hint = " (it must be traceable: jnp.where in place of if, jnp in place of np and math, no float())"
        raise renamed_error(f"{name} failed on arguments of shapes {_shapes(operands)}{hint}", error) from error
    except Exception as error:
        hint = _missing(operands[-1], error)
        raise renamed_error(f"{name} failed on arguments of shapes {_shapes(operands)}{hint}", error) from error


def _missing(args: object, error: Exception) -> str:
    """Returns the cure where an error comes of numbers that were not given."""
    asked = args is None and "NoneType" in str(error)
    return " (args is None: give the numbers that it reads, args=...)" if asked else ""


def _shapes(operands: tuple) -> list:
    """Returns the shapes of the operands, without the last one, args."""
    return [np.shape(x) for x in operands[:-1]]


def renamed_error(what: str, error: Exception) -> Exception:
    """Returns an error whose message begins with the text ``what``, then that of ``error``; TypeErrors keep their type,
    others become ValueError."""
    kind = TypeError if isinstance(error, TypeError) else ValueError
    return kind(f"{what}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}")


@contextmanager
def named_errors(name: str, args: object = ()) -> Iterator[None]:
    """Context in which errors of a user's function are reported under its name; ``args``: what it was given as args."""
    try:
        yield
    except Exception as error:
        raise renamed_error(f"{name} failed{_missing(args, error)}", error) from error


@contextmanager
def differentiable() -> Iterator[None]:
    """Context in which jax's errors about functions that it cannot differentiate name the
    user's functions and the cure."""
    try:
        yield
    except (ValueError, TypeError, NotImplementedError) as error:
        text = (str(error).splitlines() or [""])[0]
        if not any(word in text for word in ("differentiat", "autodiff", "JVP")):
            raise
        raise ValueError(
            "constraints(t, q, args), mass(q, args) and, for an implicit scheme or derivatives, force(t, q, v, args) "
            "must be functions that jax "
            "can differentiate, both ways (no pure_callback without a custom_jvp, custom_jvp in place of custom_vjp; "
            f"lax.scan or a fori_loop of fixed length in place of lax.while_loop): {text}"
        ) from error
