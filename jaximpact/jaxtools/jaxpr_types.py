"""jax's classes of jaxprs, as annotations: here all operands are arrays, which have a shape and a dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

Params = dict[str, Any]  # parameters of an equation, by name: each primitive has others


class Operand(Protocol):
    """An operand of an equation: a variable or a literal."""

    aval: ShapedArray


class LiteralOperand(Operand, Protocol):
    """A number in a jaxpr."""

    val: Any


if TYPE_CHECKING:

    class Equation(JaxprEqn):
        """An equation of a jaxpr."""

        invars: list  # of `Operand`, which lists of jax's own class are not
        outvars: list

    class OpenJaxpr(Jaxpr):
        """A jaxpr without the values of its constants."""

        eqns: list  # of `Equation`
        invars: list
        outvars: list
        constvars: list

    AnyJaxpr = OpenJaxpr | ClosedJaxpr  # open or closed
else:
    Equation, OpenJaxpr, AnyJaxpr = JaxprEqn, Jaxpr, Jaxpr | ClosedJaxpr
