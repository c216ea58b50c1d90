"""Parts of the statement of a problem: the types of its functions, the base class of constraints between bodies, and checks of the arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import Array

Force = Callable[[Any, Array, Array, Any], Array]
Constraints = Callable[[Any, Array, Any], Array]
Energy = Callable[[Any, Array, Array, Any], Array]
Equations = Callable[[Any, Array, Any], Array]
Surfaces = Callable[[Any, Array, Array, Any], Array]
Reset = Callable[[Any, Array, Array, int, Any], Any]
Slips = Callable[[Any, Array, Array, Any], Array]


@dataclass(frozen=True)
class OfSpeed:
    """A coefficient of friction that is a ``function`` (s, args) of the slip speeds, as `Problem` keeps it."""

    function: Callable[[Array, Any], Any]

    def __call__(self, speeds: Array, args: Any) -> Any:
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


def coefficients(given: Any, slip: Array, args: Any) -> Array:
    """Returns coefficients of friction (m,) at slip velocities (m, k), ``given`` as a number, one per contact, or a function of args or of the speeds."""
    if isinstance(given, OfSpeed):
        given = given(lengths(slip), args)
        given = jnp.where(given >= 0, given, jnp.nan)  # which no motion survives unnoticed
    elif callable(given):
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


class OfBodies:
    """Base class of constraints between bodies, which offer more than gaps: see `jaximpact.bodies`.

    ``local``: whether they are restricted to the pairs of a given neighbour list (`Problem.near`).
    """

    local = False

    @property
    def listed(self) -> bool:
        """Whether a neighbour list is used."""
        return False

    @property
    def slips(self) -> Slips | None:
        """The function of slip velocities of all contacts, as `Problem` takes it; None without friction."""
        return None

    def check(self, t: Any, q: Array, args: Any, outcome: Callable[..., Any]) -> None:
        """Raises ValueError or TypeError if the user's functions do not fit q and args; ``outcome`` (`user_functions.outcome`) evaluates them."""


FILES = ("from_mjcf", "from_urdf", "from_xml")  # names under which other tools read files of robots


class Named(type):
    """Metaclass of `Problem`: says in an AttributeError for ``Problem.from_urdf`` and the like how to state a robot without them."""

    if not TYPE_CHECKING:  # a type checker is to find names that do not exist

        def __getattr__(cls, name: str) -> None:
            raise AttributeError(missing(f"type object {cls.__name__!r}", name))


def missing(whose: str, name: str) -> str:
    """Returns the message of the AttributeError for an attribute ``name`` that the class or module ``whose`` does not have."""
    if name not in FILES:
        return f"{whose} has no attribute {name!r}"
    return f"{name}: jaximpact reads no files of robots; docs/howto/robots.md states one by the mass matrix and forces of MJX, in 20 lines"


def check_function(value: Any, must: str, optional: bool = True) -> None:
    """Raises TypeError, saying what the value ``must`` be, unless it is a function, or None where it is ``optional``."""
    if not callable(value) and not (optional and value is None):
        raise TypeError(f"{must}, got {type(value).__name__}")


def check_switches(switches: Any, reset: Any) -> None:
    """Raises TypeError for switches or a reset that are no functions, ValueError for a reset without switches."""
    check_function(switches, "switches must be a function switches(t, q, v, args) -> (k,) or None")
    check_function(reset, "reset must be a function reset(t, q, v, k, args) -> v or (q, v), or None")
    if reset is not None and switches is None:
        raise ValueError("reset happens where a surface is crossed: state it, switches=lambda t, q, v, args: (k,)")


def slip_of_bodies(bodies: OfBodies, slip: Any) -> Slips | None:
    """Returns the slip function that the bodies define; raises ValueError if another ``slip`` is given."""
    if slip is not None:
        raise ValueError(
            "slip: bodies of jaximpact.bodies state it for each pair, Bodies(slip=...); disks and spheres do so themselves"
        )
    return bodies.slips


def check_friction(slip: Any, friction: Any, static_friction: Any, constraints: Any) -> None:
    """Raises TypeError or ValueError for coefficients of friction that are texts, friction without ``slip`` or ``slip`` without friction."""
    check_function(slip, "slip must be a function slip(t, q, v, args) -> (m,) or (m, 2), or None")
    whose = "lambda t, q, v, args: (m,), or (m, 2) in space"
    if isinstance(constraints, OfBodies):
        whose = "(q_i, q_j, v_i, v_j, a_i, a_j) -> (k,) of two bodies to Bodies, or friction to bodies.disks"
    if isinstance(OfSpeed.or_as_given(static_friction), OfSpeed):
        raise TypeError(
            "static_friction is of contacts at rest, a number or a function of args: let friction(s, args) depend on the slip speeds s"
        )
    for name, given in (("friction", friction), ("static_friction", static_friction)):
        if isinstance(given, str):
            raise TypeError(f"{name} must be a number >= 0, one number per contact, or a function of args")
        if slip is None and given is not None:
            raise ValueError(f"{name} needs the tangential velocity at every contact: give slip={whose}")
    if slip is not None and friction is None:
        also = "" if static_friction is None else ", that of contacts which slip besides static_friction"
        raise ValueError(f"slip is the velocity at which contacts rub: give their coefficient too, friction=0.3{also}")
    if slip is not None and constraints is None:
        raise ValueError("friction acts at contacts, constraints(t, q, args) -> (m,): there are none")
