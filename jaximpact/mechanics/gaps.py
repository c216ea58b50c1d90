"""The gaps of a problem as one object, whatever it was stated by: a function, bodies, bodies on a neighbour list,
or nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from ..jaxtools.interval_bounds import Unbounded, bound_change, is_expensive
from ..jaxtools.jacobians import SMALL, value_and_jacobian
from ..jaxtools.jaxpr_tools import depends_on
from ..jaxtools.outlined import call_outlined
from ..jaxtools.row_structure import RowsOf
from ..jaxtools.row_walk import RowWalk, Unstructured
from ..jaxtools.shapes import as_array, shape_of_result
from .contacts import Contacts

if TYPE_CHECKING:
    from ..bodies.start import StartFacts
    from .linearisation import Metric
    from .problem import Problem
    from .problem_parts import Constraints, Slips
    from .scheme import Scheme

MARGIN = 1.001  # factor on the displacement of a step, for the rounding of a bound


class Gaps:
    """Gaps f (m,) as a function (t, q, args), in the dtype of q, and what else is asked of them.

    ``local``: whether they are those of the pairs on a neighbour list, whose contacts have no matrices. ``listed``:
    whether they are those of bodies that keep such a list, so that a step restricts them to it (`near`).
    """

    local = False

    @property
    def listed(self) -> bool:
        return False

    def __call__(self, t: ArrayLike, q: Array, args: object) -> Array:
        raise NotImplementedError

    @property
    def written(self) -> Callable:
        """The function as it was written, whose results may have another dtype."""
        return self

    def count(self, t: ArrayLike, q: Array, args: object) -> int:
        """Returns the number m."""
        return shape_of_result(as_array, self.written, np.zeros((), q.dtype), q, args).shape[0]

    def check(self, problem: Problem, scheme: Scheme, e: ArrayLike, q: Array, args: object, shape_of: Callable) -> None:
        """Raises ValueError or TypeError if functions of the user do not fit q (d,) and args, or the ``scheme`` or the
        restitution ``e`` the gaps.

        ``shape_of(name, function, *operands)``: shape that a function returns.
        """
        stated = "constraints(t, q, args)"
        shape = shape_of(stated, self.written, np.zeros((), q.dtype), q, args)
        if len(shape) != 1:
            raise ValueError(f"{stated} must return shape (m,), got {shape}; for one gap return it in an array")

    def check_mass(self, shape: tuple[int, ...], d: int) -> None:
        """Raises ValueError if the ``shape`` of the mass does not fit bodies of d coordinates in all."""

    def jacobian(self, t: ArrayLike, q: Array, args: object, rows: Array | None = None) -> tuple[Array, Array]:
        """Returns the gaps f (m,) and their Jacobian df/dq (m, d) at (t, q),
        or only those of the contacts ``rows`` (k,)."""
        gaps, m = lambda x: self(t, x, args), self.count(t, q, args)
        with suppress(Unstructured):
            # of 50 disks all gradients one tangent after the other took half of a step
            if rows is not None or min(m, len(q)) > SMALL:
                found = RowsOf.at(gaps, q, jnp.arange(m) if rows is None else rows)
                return found.values, found.jacobian()
        of_rows = gaps if rows is None else lambda x: gaps(x)[rows]
        return value_and_jacobian(of_rows, q, m if rows is None else len(rows))

    def drift(self, t: ArrayLike, q: Array, args: object) -> Array:
        """Returns f_t (m,), the time derivative of the gaps at fixed q."""
        t = jnp.asarray(t, q.dtype)
        return jax.jvp(lambda s: self(s, q, args), (t,), (jnp.ones_like(t),))[1]

    def linearised(self, metric: Metric, t: ArrayLike, q: Array, args: object) -> Contacts:
        """Returns the contacts at (t, q), with the responses of a `Metric`; without tangential rows."""
        gap, matrix = self.jacobian(t, q, args)
        return Contacts.of(gap, matrix, metric.solve(matrix.T), self.drift(t, q, args))

    def at_instant(self, metric: Metric, t: ArrayLike, q: Array, args: object) -> Contacts:
        """Returns what `linearised` does, for projections of positions, which need no drift."""
        gap, matrix = self.jacobian(t, q, args)
        return Contacts.of(gap, matrix, metric.solve(matrix.T))

    def curves(self, t: ArrayLike, q: Array, args: object) -> bool:
        """Tests whether steps have to allow for gradients that turn with q: whether their jaxpr uses it.

        Not of listed bodies, whose displacement in a step is limited.
        """
        return depends_on(lambda x: self.jacobian(t, x, args)[1], (q,), (0,))

    def is_steady(self, t: Array, q: Array, args: object) -> bool:
        """Tests whether gap velocities depend on the velocity only: whether the jaxpr of gradients and
        drifts uses neither t nor q."""
        rates = lambda t, q: (self.jacobian(t, q, args)[1], self.drift(t, q, args))
        return not depends_on(rates, (t, q), (0, 1))

    def closing(self, t: Array, q: Array, shift: Array, args: object) -> Array:
        """Returns the mask (m,) of gaps that are, or may be, negative or no numbers after a ``shift``
        (d,) from q to a place at time t.

        Expensive ones are evaluated at q alone, with a bound on how far they can close in the step.
        """
        gaps = lambda q: self(t, q, args)
        if is_expensive(gaps, q):
            with suppress(Unbounded):
                gap, change = bound_change(gaps, q, MARGIN * jnp.abs(shift))
                return ~(gap >= change)
        return ~(gaps(q + shift) >= 0)

    def neighbours(self, t: ArrayLike, q: Array, args: object) -> Any:
        """Makes the neighbour list at (t, q); None where none is kept."""
        return None

    def stepped(self, scheme: Scheme) -> Scheme:
        """Returns the scheme that makes the steps of a motion, given the user's ``scheme``: for listed bodies a wrapper
        of it that keeps the list."""
        return scheme

    def pairs_of(self, state: Any) -> Array | None:
        """Returns the bodies of each contact (m, 2) in a state, as in `Solution.pairs`;
        None unless contacts come and go."""
        return None

    def before(self, impulse: Array) -> Array:
        """Returns the impulses (m, ...) to which those of a step are added, given the sum so far:
        none where contacts come and go."""
        return impulse

    def by_entry(self, metric: Metric, t: ArrayLike, q: Array, args: object) -> Callable:
        """Returns `Contacts.by_entry` of the contacts at (t, q), without the zeros of their
        gradients where these are known."""
        with suppress(Unstructured):
            return RowsOf.at(lambda x: self(t, x, args), q, jnp.arange(self.count(t, q, args))).by_entry
        return self.linearised(metric, t, q, args).by_entry

    def among(self, rows: Array, number: int) -> dict:
        """Returns the fields of a `Problem` that has only the contacts ``rows`` (k,) of the ``number`` here,
        as dense constraints."""
        return {"constraints": SomeGaps(self, rows)}

    def facts(self, t: ArrayLike, q: Array, args: object) -> StartFacts | None:
        """Returns what is to be checked at the start of a motion of listed bodies; None of others."""
        return None


class NoGaps(Gaps):
    """The gaps of a problem without constraints: none, of shape (0,)."""

    def __call__(self, t: ArrayLike, q: Array, args: object) -> Array:
        return jnp.zeros((0,), q.dtype)

    def count(self, t: ArrayLike, q: Array, args: object) -> int:
        return 0

    def check(self, *_: object) -> None: ...


@dataclass(frozen=True)
class StatedGaps(Gaps):
    """Gaps by a ``function`` of the user. If it is long, native code holds it once and calls it."""

    function: Constraints

    @property
    def written(self) -> Callable:
        return self.function

    def __call__(self, t: ArrayLike, q: Array, args: object) -> Array:
        return jnp.asarray(call_outlined(self.function, t, q, args), q.dtype)


class SomeGaps(Gaps):
    """The ``rows`` (k,) of a function ``whole(t, q, args)`` of all gaps (m,), at the cost of these only if its jaxpr
    can be evaluated row by row."""

    def __init__(self, whole: Constraints, rows: Array) -> None:
        self.whole, self.rows = whole, rows

    def __call__(self, t: ArrayLike, q: Array, args: object) -> Array:
        of_place = lambda x: self.whole(t, x, args)
        with suppress(Unstructured):
            return RowWalk.of(of_place, q).run(self.rows)
        return of_place(q)[self.rows]

    def count(self, t: ArrayLike, q: Array, args: object) -> int:
        return len(self.rows)

    def jacobian(self, t: ArrayLike, q: Array, args: object, rows: Array | None = None) -> tuple[Array, Array]:
        with suppress(Unstructured):
            found = RowsOf.at(lambda x: self.whole(t, x, args), q, self.rows)
            return found.values, found.jacobian()
        return super().jacobian(t, q, args, rows)


def gaps_of(function: Callable | None) -> Gaps:
    """Returns constraints, or joint equations, as an object."""
    if isinstance(function, Gaps):
        return function
    return StatedGaps(function) if function else NoGaps()


class OfBodies(Gaps):
    """Base class of constraints between bodies, which offer more than gaps: see `jaximpact.bodies`."""

    @property
    def slips(self) -> Slips | None:
        """The function of slip velocities of all contacts, as `Problem` takes it; None without friction."""
        return None
