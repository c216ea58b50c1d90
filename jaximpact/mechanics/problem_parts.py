"""Parts of the statement of a problem: the types of its functions, and checks of the arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jax import Array
from numpy.typing import ArrayLike

from .coefficients import OfSpeed
from .gaps import OfBodies

Time = Any  # as users state it: a float, or an array
Args = Any  # numbers of the user in a pytree
Force = Callable[[Time, Array, Array, Args], Array]
Constraints = Callable[[Time, Array, Args], Array]
Energy = Callable[[Time, Array, Array, Args], Array]
Equations = Callable[[Time, Array, Args], Array]
Surfaces = Callable[[Time, Array, Array, Args], Array]
Reset = Callable[[Time, Array, Array, int, Args], Array | tuple[Array, Array]]
Slips = Callable[[Time, Array, Array, Args], Array]
Noise = Callable[[Time, Array, Array, Args], Array]
# numbers as users state them: each may be a function too, of q and args, of approach speeds, or of args
MassLike = ArrayLike | Callable[[Array, Args], ArrayLike] | None
RestitutionLike = ArrayLike | Callable[[Array, Args], ArrayLike]
FrictionLike = ArrayLike | Callable[..., ArrayLike] | None


FILES = ("from_mjcf", "from_urdf", "from_xml")  # names under which other tools read files of robots


class Named(type):
    """Metaclass of `Problem`: says in an AttributeError for ``Problem.from_urdf`` and the like
    what reads files of robots."""

    if not TYPE_CHECKING:  # a type checker is to find names that do not exist

        def __getattr__(cls, name: str) -> None:
            raise AttributeError(missing(f"type object {cls.__name__!r}", name))


def missing(whose: str, name: str) -> str:
    """Returns the message of the AttributeError for an attribute ``name`` that the class or
    module ``whose`` does not have."""
    if name not in FILES:
        return f"{whose} has no attribute {name!r}"
    return f"{name}: files of robots, MJCF and URDF, are read by jaximpact.spatial.from_mjcf(path), which makes a System; docs/howto/robots.md"  # noqa: E501


def annotate(function: Callable, **facts: object) -> None:
    """Sets attributes of a function of a problem by which checks know how it was made."""
    for name, value in facts.items():
        setattr(function, name, value)


def check_function(value: object, must: str, optional: bool = True) -> None:
    """Raises TypeError, saying what the value ``must`` be, unless it is a function,
    or None where it is ``optional``."""
    if not callable(value) and not (optional and value is None):
        raise TypeError(f"{must}, got {type(value).__name__}")


def check_switches(switches: object, reset: object) -> None:
    """Raises TypeError for switches or a reset that are no functions, ValueError for a reset without switches."""
    check_function(switches, "switches must be a function switches(t, q, v, args) -> (k,) or None")
    check_function(reset, "reset must be a function reset(t, q, v, k, args) -> v or (q, v), or None")
    if reset is not None and switches is None:
        raise ValueError("reset happens where a surface is crossed: state it, switches=lambda t, q, v, args: (k,)")


def slip_of_bodies(bodies: OfBodies, slip: object) -> Slips | None:
    """Returns the slip function that the bodies define; raises ValueError if another ``slip`` is given."""
    if slip is not None:
        raise ValueError(
            "slip: bodies of jaximpact.bodies state it for each pair, Bodies(slip=...); disks and spheres do so "
            "themselves"
        )
    return bodies.slips


def check_friction(slip: object, friction: object, static_friction: object, constraints: object) -> None:
    """Raises TypeError or ValueError for coefficients of friction that are texts,
    friction without ``slip`` or ``slip`` without friction."""
    check_function(slip, "slip must be a function slip(t, q, v, args) -> (m,) or (m, 2), or None")
    whose = "lambda t, q, v, args: (m,), or (m, 2) in space"
    if isinstance(constraints, OfBodies):
        whose = "(q_i, q_j, v_i, v_j, a_i, a_j) -> (k,) of two bodies to Bodies, or friction to bodies.disks"
    if isinstance(OfSpeed.or_as_given(static_friction), OfSpeed):
        raise TypeError(
            "static_friction is of contacts at rest, a number or a function of args: let friction(s, args) depend on "
            "the slip speeds s"
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
