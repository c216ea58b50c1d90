"""Slip at the contacts of a problem with Coulomb friction, linearised.

The slip velocity of contact a is affine in v, s_a = T_a(t, q) v + T_a0(t, q), and its friction force acts along T_a':
by virtual power one function of the user gives both. A frictional contact then has 1 + k rows: the gradient of its gap
and k tangents, k = 1 in the plane and 2 in space. Coulomb's law compares forces, and the multiplier of a gap that is no
distance is not one: its coefficient is mu times `gap_scales`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike, DTypeLike

from ..jaxtools.array_types import I0, B_m, F_d, F_dm, F_dmk, F_dn, F_m, F_md, F_mk, F_mkd, F_mkk, F_mr, F_nd, I_m
from ..jaxtools.empty import empty, nothing
from .coefficients import OfSpeed
from .some_contacts import SomeSlips
from .status import Status, as_status

if TYPE_CHECKING:
    from .contact.laws import Reaction
    from .linearisation import Metric
    from .problem import Problem
    from .scheme import Info

STRAIGHT = -0.9  # cosine of the angle by which slip in space turns in a step, below which it reverses
# by which the square of a gradient's length may differ from that of a distance (its error is O(h) where surfaces bend)
UNIT = 0.02


class FrictionInfo(NamedTuple):
    """Friction at the contacts in one step, as reported by a contact law; k is 0 where contacts do not rub.

    Tangential ``impulse`` (m, k); the ``mode`` (m,) of each contact, `contact.friction.cones.OPEN`, `STICK` or `SLIP`;
    and the ``direction`` of slip (m, k), a unit vector, zero where a contact does not slip. Two fields are None unless
    static friction has a coefficient of its own: the mask ``breaks`` (m,) of the contacts that broke away from rest
    first, not because another contact broke away and changed their load;
    and the directions of slip as ``heading`` (m, d), see `Slip.heading`.
    """

    impulse: F_mk
    mode: I_m
    direction: F_mk
    breaks: B_m | None = None
    heading: F_md | None = None

    @classmethod
    def none(cls, m: int, k: int, dtype: DTypeLike) -> FrictionInfo:
        """Info of m open contacts with k tangents each."""
        if k == 0:
            return cls(nothing(dtype, m, 0), empty(jnp.int32, 0), empty(dtype, m, 0))
        zero = jnp.zeros((m, k), dtype)
        return cls(zero, jnp.zeros(m, jnp.int32), zero)

    def among(self, rows: Array) -> FrictionInfo:
        """Info of the contacts of numbers ``rows`` (k,) alone."""
        if self.impulse.shape[1] == 0:
            return FrictionInfo.none(len(rows), 0, self.impulse.dtype)
        return jax.tree.map(lambda x: x[rows], self)

    def only(self, rows: Array, found: FrictionInfo) -> FrictionInfo:
        """Info of as many contacts as here: ``found`` of those of numbers ``rows`` (k,), and open ones."""
        if self.impulse.shape[1] == 0:
            return self
        put = lambda whole, part: jnp.zeros_like(whole).at[rows].set(part, unique_indices=True)
        return jax.tree.map(put, self, found)


class Slip(NamedTuple):
    """Tangential rows of all contacts at one configuration; without friction k is 0, and every array has size 0.

    ``jacobian`` T (m, k, d), ``response`` M^-1 T' (d, m, k), ``drift`` T_0 (m, k), ``friction`` (m,), mu times the
    scale of the gap, and the slip ``velocity`` (m, k) without contact impulses, from which a contact law starts. With
    static friction also its coefficients ``static`` (m,), and the info of the step ``before``; else None. The ``scale``
    (m,) of the gaps, positive; None where they count as distances.
    """

    jacobian: F_mkd
    response: F_dmk
    drift: F_mk
    friction: F_m
    velocity: F_mk
    static: F_m | None = None
    before: FrictionInfo | None = None
    scale: F_m | None = None

    @classmethod
    def none(cls, m: int, d: int, dtype: DTypeLike) -> Slip:
        """Makes the slip of m contacts without friction, of d coordinates."""
        still = empty(dtype, m, 0)
        return cls(empty(dtype, m, 0, d), empty(dtype, d, m, 0), still, empty(dtype, 0), still)

    @property
    def k(self) -> int:
        """Number of tangents of a contact."""
        return self.drift.shape[1]

    @classmethod
    def at(cls, problem: Problem, metric: Metric, t: ArrayLike, q: F_d, v: F_d, args: object) -> Slip:
        """Linearises the slip at (t, q), with the responses of a `Metric` and the coefficients of
        friction at the velocity v (d,)."""
        if problem.gaps.local:
            bodies: Any = problem.constraints
            found = bodies.rubbed(metric, t, q, args)
            slips = found.of(v)
            return found._replace(
                friction=problem.friction_coefficients(slips, args), static=problem.static_coefficients(slips, args)
            )
        drift, jacobian = problem.slip_velocity(t, q, jnp.zeros_like(q), args), tangents(problem, t, q, args)
        slips = jacobian @ v + drift if isinstance(problem.friction, OfSpeed) else drift
        friction, static = problem.friction_coefficients(slips, args), problem.static_coefficients(slips, args)
        scale = gap_scales(problem, t, q, args)
        if scale is not None:
            friction, static = jax.tree.map(lambda mu: scale * mu, (friction, static))
            scale = jnp.where(scale > 0, scale, 1)
        return cls(jacobian, responses(metric, jacobian), drift, friction, drift, static, None, scale)

    @classmethod
    def of_acceleration(
        cls, problem: Problem, metric: Metric, state: tuple, a: F_d, args: object, frame: F_mkd | None = None
    ) -> Slip:
        """As `at`, at a ``state`` (t, q, v) and `onto` a ``frame``, with the acceleration of the slip under a
        (d,) in place of its velocity."""
        t, q, v = state
        slip = cls.at(problem, metric, t, q, v, args)
        _, swerve = jax.jvp(lambda t, q: problem.slip_velocity(t, q, v, args), (t, q), (jnp.ones_like(t), v))
        return slip._replace(velocity=slip.jacobian @ a + swerve).onto(frame)

    def onto(self, frame: F_mkd | None) -> Slip:
        """Returns the rows along tangents that are turned onto those of a place nearby, ``frame`` (m, 2, d);
        None leaves them as the problem has them."""
        return self if frame is None else self.turned(turn_onto(frame, self.jacobian))

    def turned(self, turn: F_mkk) -> Slip:
        """Returns the rows along tangents turned by ``turn`` (m, 2, 2), as by `turn_onto`."""
        response = jnp.einsum("mkl,dml->dmk", turn, self.response)
        jacobian, drift, velocity = (turn_components(turn, x) for x in (self.jacobian, self.drift, self.velocity))
        return self._replace(jacobian=jacobian, response=response, drift=drift, velocity=velocity)

    def of(self, v: F_d) -> F_mk:
        """Returns the slip velocities (m, k) at v (d,)."""
        return self.jacobian @ v + self.drift

    def terms(self, v: F_d) -> F_mk:
        """Returns |T| |v| (m, k), the magnitude of the terms in the slip velocities,
        from which their round-off follows."""
        return jnp.abs(self.jacobian) @ jnp.abs(v)

    def heading(self, direction: F_mk) -> F_md:
        """Returns T' u (m, d) for directions of slip u (m, k), which the next step can use though its tangents
        may have turned (`along`)."""
        return jnp.einsum("mkd,mk->md", self.jacobian, direction)

    def along(self, heading: F_md) -> F_mk:
        """Returns the components (m, k) along these tangents of a `heading` (m, d): vectors in the directions of slip,
        not of unit length."""
        return jnp.einsum("mkd,md->mk", self.jacobian, heading)

    def jump(self, impulse: F_mk) -> F_d:
        """Returns the velocity jump M^-1 T' r (d,) of tangential impulses r (m, k)."""
        return jnp.tensordot(self.response, impulse, 2)

    def push(self, impulse: F_mk) -> F_d:
        """Returns the generalised impulse T' r (d,) of tangential impulses r (m, k)."""
        return jnp.einsum("mkd,mk->d", self.jacobian, impulse)

    def under(self, metric: Metric) -> Slip:
        """Returns a copy with the responses of another metric."""
        return self._replace(response=responses(metric, self.jacobian)) if self.k else self

    def sliding(self, v: F_d) -> Slip:
        """Returns a copy whose slip ``velocity`` is that at v (d,)."""
        return self._replace(velocity=self.of(v)) if self.k else self

    def still(self) -> FrictionInfo:
        """Returns the info of a step in which all these contacts are open, without impulses."""
        return still(self)

    def rows(self, jacobian: F_md) -> F_nd:
        """Stacks the rows (m (1 + k), d) of all contacts: of each the gradient of its gap, from ``jacobian`` (m, d),
        and then its tangents."""
        m, k, d = self.jacobian.shape
        return jnp.concatenate([jacobian[:, None], self.jacobian], axis=1).reshape(m * (1 + k), d)

    def responses(self, response: F_dm) -> F_dn:
        """Stacks the velocity jumps (d, m (1 + k)) of unit impulses along `rows`,
        given the ``response`` (d, m) to normal ones."""
        d, m, k = self.response.shape
        return jnp.concatenate([response[:, :, None], self.response], axis=2).reshape(d, m * (1 + k))


def tangents(problem: Problem, t: ArrayLike, q: F_d, args: object) -> F_mkd:
    """Returns the tangents (m, k, d) of the contacts at (t, q): the gradients by v of the slip velocities,
    which are affine in v."""
    if isinstance(problem.slip, SomeSlips):
        return problem.slip.tangents(t, q, args)
    return jax.jacfwd(lambda v: problem.slip_velocity(t, q, v, args))(jnp.zeros_like(q))


def normals(problem: Problem, t: ArrayLike, q: F_d, args: object) -> tuple[F_md, F_md] | None:
    """Returns the gradients by v (m, d) of the normal velocities that ``slip`` gives, and those of the gaps (m, d);
    None where it gives none."""
    normal = lambda v: problem.contact_velocity(t, q, v, args)[0]
    if not problem.rubs or problem.listed or jax.eval_shape(normal, q) is None:
        return None
    return jax.jacfwd(normal)(jnp.zeros_like(q)), jax.jacfwd(lambda x: problem.gaps(t, x, args))(q)


def gap_scales(problem: Problem, t: ArrayLike, q: F_d, args: object) -> F_m | None:
    """Returns the rates of the gaps at unit normal velocity (m,), 1 where a gap is a distance; None where ``slip``
    gives tangential velocities alone.

    An impulse x along the gradient of a gap is a force of x times this scale between the bodies, which is what
    Coulomb's law limits friction by.
    """
    found = normals(problem, t, q, args)
    if found is None:
        return None
    normal, gradient = found
    square = jnp.sum(normal**2, axis=1)
    return jnp.abs(jnp.sum(normal * gradient, axis=1)) / jnp.where(square > 0, square, 1)


def distance_status(
    problem: Problem, metric: Metric, gradient: F_md, closed: B_m, t: ArrayLike, q: F_d, args: object
) -> I0:
    """Returns GAP_NOT_DISTANCE if friction at one of the ``closed`` contacts (m,) is seen to be
    wrong by the scale of its gap, ().

    ``gradient`` (m, d): of the gaps. Where ``slip`` gives normal velocities, they must be along it. Where it does not,
    a scale shows at contacts of points, one or two of them, whose Cartesian coordinates have one mass: a gradient is
    then as long as the tangents. Of other contacts nothing is known.
    """
    gradient = lax.stop_gradient(gradient)
    stated = lax.stop_gradient(normals(problem, t, q, args))
    if stated is not None:
        normal, _ = stated
        across, lengths = jnp.sum(normal * gradient, axis=1), jnp.sum(normal**2, axis=1) * jnp.sum(gradient**2, axis=1)
        wrong = across**2 < (1 - UNIT) * lengths
    else:
        if problem.between is not None or np.ndim(metric.matrix) > 1:
            return jnp.zeros((), jnp.int32)
        along = lax.stop_gradient(tangents(problem, t, q, args))
        used = (gradient != 0) | jnp.any(along != 0, axis=1)
        mass = lax.stop_gradient(metric.mass.diagonal(q))
        lightest = jnp.min(jnp.where(used, mass, jnp.inf), axis=1)
        alike = jnp.max(jnp.where(used, mass, 0), axis=1) <= (1 + UNIT) * lightest
        square, points = jnp.sum(along**2, axis=2), jnp.round(jnp.sum(along[:, 0] ** 2, axis=1))
        unit = jnp.all(jnp.abs(square - points[:, None]) <= 1e-3, axis=1) & ((points == 1) | (points == 2))
        cartesian = jnp.sum(used, axis=1, dtype=q.dtype) == points * (1 + along.shape[1])
        wrong = alike & unit & cartesian & (jnp.abs(jnp.sum(gradient**2, axis=1) - points) > UNIT * points)
    return as_status(jnp.any(closed & wrong), Status.GAP_NOT_DISTANCE)


def turn_components(turn: Array, along: Array) -> Array:
    """Returns components along two tangents of each contact (m, 2, ...) as those along tangents turned by ``turn`` (m,
    2, 2), as by `turn_onto`."""
    return jnp.einsum("mkl,ml...->mk...", turn, along)


def turn_onto(frame: F_mkd, jacobian: F_mkd) -> F_mkk:
    """Returns the orthogonal matrices (m, 2, 2) that turn tangents ``jacobian`` (m, 2, d) onto those of a place nearby,
    ``frame`` (m, 2, d).

    Two directions across a normal cannot be chosen for all normals without a jump somewhere. At the same place frame =
    R jacobian, and frame jacobian' = S R with S symmetric and positive semidefinite; R is the rotation, or the
    reflection where the determinant is negative, nearest to that.
    """
    both = jnp.einsum("mkd,mld->mkl", frame, jacobian)
    a, b, c, d = both[:, 0, 0], both[:, 0, 1], both[:, 1, 0], both[:, 1, 1]
    # of tangents of which one moves nothing the determinant is rounding
    mirrors = lax.stop_gradient(a * d - b * c < -1e-6 * (a * a + b * b + c * c + d * d))
    sign = jnp.where(mirrors, -1, 1).astype(both.dtype)
    cos, sin = a + sign * d, c - sign * b
    known = (cos != 0) | (sin != 0)  # unless slip does not depend on v
    cos, sin = jnp.where(known, cos, 1), jnp.where(known, sin, 0)
    size = jnp.sqrt(cos**2 + sin**2)
    cos, sin = cos / size, sin / size
    return jnp.stack([jnp.stack([cos, -sign * sin], axis=1), jnp.stack([sin, sign * cos], axis=1)], axis=1)


def still(slip: Any) -> FrictionInfo:
    """Returns the info of a step in which all contacts are open, without impulses; ``slip``: their tangential rows."""
    (m, k), dtype = slip.drift.shape, slip.drift.dtype
    return remembered(slip, FrictionInfo.none(m, k, dtype), jnp.zeros(m, bool))


def remembered(slip: Slip, info: FrictionInfo, breaks: Array | None) -> FrictionInfo:
    """Returns the ``info`` of a step with what the law of static friction has to know of it in the next one, and which
    contacts it found to break away."""
    if slip.static is None:
        return info
    return info._replace(breaks=breaks, heading=lax.stop_gradient(slip.heading(info.direction)))


def responses(metric: Metric, jacobian: F_mkd) -> F_dmk:
    """Returns M^-1 T' (d, m, k) for the tangents T ``jacobian`` (m, k, d)."""
    m, k, d = jacobian.shape
    return metric.solve(jacobian.reshape(m * k, d).T).reshape(d, m, k)


def impulses_of(found: Reaction | Info) -> F_mr:
    """Returns the impulses (m, 1 + k) along all rows in the result ``found`` of a contact law,
    or in the `Info` of a step."""
    return jnp.concatenate([found.impulse[:, None], found.friction.impulse], axis=1)
