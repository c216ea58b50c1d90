"""Joints: equations c(t, q) = 0 that hold at all times, as part of the kinetic metric.

    M a = g + J' l,     J a + d/dt (J v + c_t)|_v = 0,     J = dc/dq,
    P = M^-1 - M^-1 J' (J M^-1 J')^+ J M^-1

P replaces M^-1 wherever a velocity follows from a force or an impulse, so that contacts, their Delassus matrix, the
impact law and the saltation keep the joints without further terms. Rows of J that depend on earlier ones are left out,
which changes no motion; of the joint impulses that give the same motion, those of least norm are reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike, DTypeLike

from ..jaxtools.array_types import F0, B_j, F_d, F_dj, F_j, F_jd, F_jj
from ..jaxtools.empty import empty, nothing
from ..jaxtools.jacobians import value_and_jacobian
from ..jaxtools.linalg import solve_by_inverse
from ..jaxtools.outlined import outlined
from ..jaxtools.semidefinite import invert_semidefinite
from .motion import At
from .problem import Problem

if TYPE_CHECKING:
    from .contacts import Contacts
    from .linearisation import Metric

DEPENDENT = 1e-8  # square of the sine of the angle to the earlier rows, below which a row counts as dependent on them
GAUSS = 0.5 - 12**-0.5, 0.5 + 12**-0.5  # points of the rule of two points on [0, 1]


@dataclass(frozen=True)
class MayDepend:
    """Wraps the function of a problem's joints to mark that some rows of its Jacobian depend on others, or may.

    Of all impulses that have the same effect those of least norm are then reported, which costs an inverse.
    """

    joints: Callable

    def __call__(self, t: ArrayLike, q: Array, args: object) -> Array:
        return self.joints(t, q, args)

    @classmethod
    def of(cls, problem: Problem) -> Problem:
        """Returns the problem with its joints marked as possibly dependent."""
        if problem.joints is None or isinstance(problem.joints, cls):
            return problem
        return problem.replace(joints=cls(problem.joints))


class Joints(NamedTuple):
    """Joints linearised at one configuration; j is 0 without joints, and the methods then cost nothing.

    ``value`` c (j,), ``jacobian`` J (j, d), ``rate`` c_t (j,), ``response`` M^-1 J' (d, j), ``gram`` J M^-1 J' (j, j),
    its ``inverse`` (j, j), in which rows of joints that depend on earlier ones are zero, and the ``pivots`` (j,) of its
    factorisation, zero for these joints. ``loose`` is a flag and no array: an empty tuple where the problem's joints
    are marked by `MayDepend`, so that `least` has to choose among impulses; else None.
    """

    value: F_j
    jacobian: F_jd
    rate: F_j
    response: F_dj
    gram: F_jj
    inverse: F_jj
    pivots: F_j
    loose: tuple[()] | None = None

    @classmethod
    def none(cls, d: int, dtype: DTypeLike) -> Joints:
        """Makes the joints of a system of d coordinates that has none: arrays of size 0."""
        none, square = empty(dtype, 0), empty(dtype, 0, 0)
        return cls(none, empty(dtype, 0, d), none, empty(dtype, d, 0), square, square, none)

    @property
    def size(self) -> int:
        """Number j of equations."""
        return self.value.shape[0]

    @classmethod
    def at(cls, problem: Problem, metric: Metric, t: ArrayLike, q: F_d, args: object) -> Joints:
        """Linearises the joints of a problem at (t, q) in a `Metric`, whose own joints are ignored."""
        if not problem.joint_count(t, q, args):
            return cls.none(q.shape[0], q.dtype)
        return _at(problem, metric, jnp.asarray(t, q.dtype), q, args)

    @classmethod
    def over_chord(cls, problem: Problem, metric: Metric, at: At, h: F0) -> Joints:
        """Averages the joints over the chord from a place with its velocity v for a time h, by Gauss's two-point rule.

        h (J v + c_t) is then the change of c along the chord up to O(h^5): a discrete gradient, with which joints that
        hold at the chord's end do no work. Gonzalez, J. Nonlinear Sci. 6 (1996); McLachlan, Quispel, Robidoux, Phil.
        Trans. R. Soc. A 357 (1999).
        """
        return _over_chord(problem, metric, at, h)

    @classmethod
    def of(cls, problem: Problem, values: Callable, metric: Metric, t: F0, q: F_d, args: object) -> Joints:
        """Linearises the joints whose equations are ``values(t, q)`` (j,) at (t, q) in a ``metric``."""
        value, matrix = value_and_jacobian(lambda x: values(t, x), q, problem.joint_count(t, q, args))
        rate = jax.jvp(lambda s: values(s, q), (t,), (jnp.ones_like(t),))[1]
        response = metric.solve_without_joints(matrix.T)
        gram = matrix @ response
        cut = _cut(q.dtype)
        loose = () if isinstance(problem.joints, MayDepend) else None
        return cls(
            value, matrix, rate, response, gram, *invert_semidefinite(lax.stop_gradient(gram), cut, sparse=True), loose
        )

    def forces(self, rates: Array) -> Array:
        """Returns (J M^-1 J')^+ x for x (j,) or (j, k): the impulses (forces) that change joint
        velocities (accelerations) by x.

        They are zero for dependent rows.
        """
        return solve_by_inverse(self.gram, self.inverse, rates) if self.size else rates

    def least(self, impulse: F_j) -> F_j:
        """Returns the impulses (j,) of least norm that have the same effect J' l on the motion as ``impulse`` (j,)."""
        return impulse if self.loose is None else _least(self.jacobian, impulse)

    def project(self, x: Array) -> Array:
        """Returns the part of velocities x, (d,) or (d, k), that the joints allow: J x = 0."""
        return x - self.restore(self.jacobian @ x) if self.size else x

    def restore(self, rates: Array) -> Array:
        """Returns the change of velocity (d,) that changes the joint velocities by ``rates`` (j,),
        the least one in the kinetic metric."""
        return self.response @ self.forces(rates)

    def reaction(self, momentum: Array) -> Array:
        """Returns the impulses (j,) with which the joints react to an impulse ``momentum`` (d,) on the system."""
        return -self.least(self.forces(self.response.T @ momentum)) if self.size else nothing(momentum.dtype, 0)

    def reaction_to(self, contacts: Contacts, impulse: Array) -> Array:
        """Returns the impulses (j,) with which the joints react to impulses (m,) of the contacts,
        or forces to forces."""
        return self.reaction(contacts.push(impulse)) if self.size else nothing(impulse.dtype, 0)

    def velocity(self, v: F_d) -> F_j:
        """Returns the joint velocities J v + c_t, (j,)."""
        return self.jacobian @ v + self.rate

    def terms(self, x: F_d) -> F_j:
        """Returns |J| |x| (j,): the magnitude of the terms of the joint velocities at x = v (d,), or of c at x = q
        (d,), from which their round-off follows."""
        return jnp.abs(self.jacobian) @ jnp.abs(x)

    def independent(self) -> B_j:
        """Returns the mask (j,) of the rows that do not depend on earlier ones."""
        return self.pivots > 0

    def margins(self) -> F_j:
        """Returns the distances (j,) of the rows of J from the span of the earlier rows, in the metric M^-1.

        They are zero for dependent rows, and one of them becomes zero in a singular position.
        """
        return jnp.sqrt(self.pivots)


def scales(jacobian: F_jd, x: F_d) -> F_j:
    """Returns the magnitudes (j,) from which the round-off of J x follows, x (d,) as for `Joints.terms`.

    Entries of J (j, d) that are zero but for round-off are sums of terms which cancel, as those of a planar linkage in
    space across its plane: they count as a hundredth of the largest.
    """
    size = jnp.abs(jacobian)
    return jnp.maximum(size, 0.01 * jnp.max(size)) @ jnp.abs(x)


@outlined
def _at(problem: Problem, metric: Metric, t: F0, q: F_d, args: object) -> Joints:
    return Joints.of(problem, lambda s, x: problem.joint_values(s, x, args), metric, t, q, args)


@outlined
def _least(jacobian: F_jd, impulse: F_j) -> F_j:
    # l = J y with J' J y = J' l
    square = jacobian.T @ jacobian
    inverse = invert_semidefinite(lax.stop_gradient(square), _cut(impulse.dtype), sparse=True)[0]
    return jacobian @ solve_by_inverse(square, inverse, jacobian.T @ impulse)


def _cut(dtype: DTypeLike) -> float:
    """Returns the fraction of a diagonal entry up to which a pivot counts as zero."""
    return max(DEPENDENT, 64 * float(jnp.finfo(dtype).eps))


@outlined
def _over_chord(problem: Problem, metric: Metric, at: At, h: F0) -> Joints:
    t, q, u, args = at

    def mean(s: F0, x: F_d) -> F_j:
        near, far = (problem.joint_values(s + part * h, x + part * h * u, args) for part in GAUSS)
        return (near + far) / 2

    return Joints.of(problem, mean, metric, t, q, args)


def joint_turning(problem: Problem, t: ArrayLike, q: F_d, v: F_d, args: object) -> F_j:
    """Returns the rate (j,) of the joint velocities J v + c_t along the motion with constant velocity v (d,)."""
    return _turning(problem, jnp.asarray(t, q.dtype), q, v, args)


@outlined
def _turning(problem: Problem, t: F0, q: F_d, v: F_d, args: object) -> F_j:
    zero, one = jnp.zeros_like(t), jnp.ones_like(t)

    def velocity(s: F0) -> F_j:
        return jax.jvp(lambda s: problem.joint_values(t + s, q + s * v, args), (s,), (one,))[1]

    return jax.jvp(velocity, (zero,), (one,))[1]
