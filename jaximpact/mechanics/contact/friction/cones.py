"""Coulomb's cone of one contact, |L_t| <= mu L_n, and the law of friction as equations.

Impulses x and velocities w have shape (..., 1 + k), k = 1 in the plane and 2 in space: x[..., 0] and w[..., 0] along
the gap's gradient, the others along orthonormal tangents. Coulomb's law with Newton's or Moreau's normal law, 0 <= x_n
_|_ w_n >= 0, |x_t| <= mu x_n and x_t = -mu x_n w_t / |w_t| where w_t is not zero, is the complementarity of cones

    K* ∋ w + mu |w_t| n  _|_  x ∈ K = {|x_t| <= mu x_n}

(G. De Saxce and Z.-Q. Feng, Math. Comput. Modelling 28 (1998)). Without the term mu |w_t|,
a contact that slips would lift off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from ....jaxtools import linalg
from ....jaxtools.array_types import B0, F0, B_m, B_mm, F_dn, F_m, F_mk, F_mr, F_mrr, F_nd, F_nn, I_m
from ....jaxtools.outlined import outlined
from ....jaxtools.semidefinite import invert_semidefinite
from ...coefficients import lengths
from ...contacts import ORTHOGONAL, Contacts
from ...friction import Slip

OPEN, STICK, SLIP = 0, 1, 2  # modes of a contact


def length(x: Array) -> Array:
    """Returns `lengths` (..., 1), which broadcast against the vectors x."""
    return lengths(x)[..., None]


def fastest(offset: F_mr, candidates: B_m) -> F0:
    """Returns the largest speed () at which contacts ``candidates`` (m,) close or slip, given their velocities
    ``offset`` (m, 1 + k) without impulses.

    Gaps that open do not count: divided by the step, as in `Maury`, those of near pairs would be the largest of all,
    and tolerances with them.
    """
    closing = jnp.max(jnp.where(candidates, -offset[:, 0], 0), initial=0.0)
    return jnp.maximum(closing, jnp.max(jnp.where(candidates[:, None], jnp.abs(offset[:, 1:]), 0), initial=0.0))


def direction(x: Array) -> Array:
    """Returns x / |x| over the last axis; zero where x is zero."""
    size = length(x)
    return x / jnp.where(size > 0, size, 1)


def _beside(mu: ArrayLike, x: Array) -> Array:
    """Returns the coefficients ``mu`` (...) with shape (..., 1), so that they broadcast against x (..., 1 + k)."""
    return jnp.broadcast_to(jnp.asarray(mu, x.dtype), x.shape[:-1])[..., None]


def project(x: Array, mu: ArrayLike) -> Array:
    """Returns the point (..., 1 + k) of Coulomb's cone that is nearest to x (..., 1 + k), in the Euclidean norm;
    ``mu`` (...)."""
    mu = _beside(mu, x)
    normal, tangent = x[..., :1], x[..., 1:]
    size = length(tangent)
    # with mu = 0, points with a negative normal part are not inside the cone
    inside, polar = (size <= mu * normal) & (normal >= 0), mu * size <= -normal
    pushed = jnp.where(polar, 0, (normal + mu * size) / (1 + mu**2))
    slipping = jnp.concatenate([pushed, mu * pushed * direction(tangent)], axis=-1)
    return jnp.where(inside, x, slipping)


def residual(w: Array, x: Array, mu: ArrayLike) -> Array:
    """Returns the natural map x - P_K(x - (w + mu |w_t| n)), (..., 1 + k):
    zero exactly where w and x satisfy Coulomb's law.

    ``w``: velocities; ``x``: impulses scaled to velocities by a factor for each contact, such as the largest diagonal
    entry of its block of the Delassus matrix. The result is a velocity. With ``mu`` = 0 it is min(w_n, x_n).
    """
    shift = _beside(mu, x) * length(w[..., 1:])
    shifted = jnp.concatenate([w[..., :1] + shift, w[..., 1:]], axis=-1)
    return x - project(x - shifted, mu)


def modes_of(w: Array, x: Array, mu: ArrayLike, resolution: Array | float = 0.0) -> Array:
    """Returns the modes (...) of contacts that satisfy the law: `OPEN`, `STICK` or `SLIP`; ``w``,
    ``x`` as in `residual`.

    A contact slips only where |w_t| exceeds ``resolution`` [velocity]: a contact that sticks may have an impulse on the
    boundary of the cone too. Without friction nothing sticks: such a contact slips, also while its slip is zero.
    """
    mu, pushed = _beside(mu, x)[..., 0], x[..., 0] - w[..., 0]
    slips = length(x[..., 1:] - w[..., 1:])[..., 0] > mu * pushed
    slips = (slips & (length(w[..., 1:])[..., 0] > resolution)) | ~(mu > 0)
    return jnp.where(pushed <= 0, OPEN, jnp.where(slips, SLIP, STICK))


def frozen(w: Array, x: Array, mu: ArrayLike, modes: Array, slip_direction: Array | None = None) -> Array:
    """Returns the residuals (..., 1 + k) of contacts whose modes are known: x = 0 (open), w = 0 (sticks), w_n = 0 and
    x_t + mu x_n u = 0 (slips).

    The unit vector u is the direction of slip: ``slip_direction`` (..., k) if given,
    which makes the equations linear in (w, x), else that of w_t.
    """
    u = direction(w[..., 1:]) if slip_direction is None else slip_direction
    opened, slips = (modes == OPEN)[..., None], (modes == SLIP)[..., None]
    sliding = x[..., 1:] + _beside(mu, x) * x[..., :1] * u
    tangent = jnp.where(slips, sliding, w[..., 1:])
    return jnp.where(opened, x, jnp.concatenate([w[..., :1], tangent], axis=-1))


def blocks(delassus: F_nn, m: int) -> F_mrr:
    """Returns the diagonal blocks (m, 1 + k, 1 + k) of the contacts in a Delassus matrix."""
    size, each = delassus.shape[0] // m, jnp.arange(m)
    return delassus.reshape(m, size, m, size)[each, :, each, :]


def jams(delassus: F_nn, mu: F_m) -> B_m:
    """Tests whether friction exceeds Painleve's bound at each contact (m,), mu |A_nt| >= A_nn > 0: then sliding may
    have no solution, or two."""
    normal = blocks(delassus, mu.shape[0])[:, 0]
    return (mu * length(normal[:, 1:])[:, 0] >= normal[:, 0]) & (normal[:, 0] > 0)


def could_jam(delassus: F_nn, mu: F_m, slip_direction: F_mk) -> B_m:
    """Returns the mask (m,) of the contacts that friction can keep closed although they
    would lift off without an impulse.

    The mask marks a contact that slips in the ``slip_direction`` (m, k) if a normal impulse does not open it
    (`opening`), and a contact at rest, whose direction is zero, if that is so for some direction (`jams`).
    """
    opens = opening(delassus, mu, slip_direction)
    return jams(delassus, mu) & ((opens <= 0) | ~jnp.any(slip_direction != 0, axis=1))


def opening(delassus: F_nn, mu: F_m, slip_direction: F_mk) -> F_m:
    """Returns A_nn - mu A_nt u (m,), by which a unit of normal impulse with its friction changes gap velocities, for
    slips in the directions u (m, k)."""
    normal = blocks(delassus, mu.shape[0])[:, 0]
    return normal[:, 0] - mu * jnp.sum(normal[:, 1:] * slip_direction, axis=1)


def dependent(delassus: F_nn, mode: I_m, mu: F_m) -> B0:
    """Tests whether rows of the acting contacts are linearly dependent, ():
    then many impulses give the same velocities.

    ``mode`` (m,): the mode of each contact; contacts act unless they are open. The rows tested are the normals of all
    acting contacts and the tangents of those that stick and have friction; where a contact slips,
    friction follows from the normal impulse.
    """
    m = len(mode)
    if m < 2:
        return jnp.zeros((), bool)  # one contact's rows are independent, which is checked at the start
    size = len(delassus) // m
    counts = jnp.where(
        jnp.arange(size) == 0, mode[:, None] != OPEN, (mode == STICK)[:, None] & (mu > 0)[:, None]
    ).ravel()
    # with velocity-dependent forces in the iteration matrix it is not symmetric; its symmetric part has the same
    # dependences
    symmetric = 0.5 * (delassus + delassus.T)
    counts &= jnp.diagonal(symmetric) != 0  # rows of zeros are tangents that a contact does not have
    matrix = jnp.where(counts[:, None] & counts[None, :], symmetric, jnp.eye(m * size, dtype=delassus.dtype))
    cut = 256 * float(jnp.finfo(delassus.dtype).eps)
    inverse, _ = invert_semidefinite(matrix, cut)
    # a combination of rows has the square 1/b of its length if b is its entry in the inverse, zero of rows left out:
    # nothing but rounding if that is a small part of the squares of its terms
    independent = jnp.diagonal(inverse) > cut * (inverse**2 @ jnp.diagonal(matrix))
    return jnp.any(counts & ~independent)


class ConeProblem(NamedTuple):
    """Contact problem w = A x + b of m contacts with friction, A = H M^-1 H'.

    ``rows`` H (m (1 + k), d) and ``response`` M^-1 H' (d, m (1 + k)); velocities ``offset`` b (m, 1 + k) without
    impulses, restitution included; ``friction`` mu (m,), and the ``static`` coefficients (m,) of contacts at rest,
    None where they are the same.
    """

    rows: F_nd
    response: F_dn
    offset: F_mr
    friction: F_m
    static: F_m | None = None

    @classmethod
    def of(cls, contacts: Contacts, offset: F_m) -> ConeProblem:
        """Makes the problem of contacts that have tangential rows; ``offset`` (m,): gap velocities without impulses,
        restitution included."""
        slip = contacts.slip
        b = jnp.concatenate([offset[:, None], slip.velocity], axis=1)
        return cls(slip.rows(contacts.jacobian), slip.responses(contacts.response), b, slip.friction, slip.static)

    def over(self, scale: F_m | None) -> ConeProblem:
        """Returns the problem of the gaps divided by ``scale`` (m,), if given: of distances, so that its normal
        impulses are forces between bodies.

        Of several solutions, and in round-off, a solver then finds the same whatever the scales of the gaps.
        """
        if scale is None:
            return self
        each = jnp.ones_like(self.offset).at[:, 0].set(1 / scale)
        return ConeProblem(
            each.reshape(-1, 1) * self.rows,
            each.reshape(1, -1) * self.response,
            each * self.offset,
            *jax.tree.map(lambda mu: mu / scale, (self.friction, self.static)),
        )

    def velocity(self, x: F_mr) -> F_mr:
        """Returns the velocities w (m, 1 + k) for impulses x (m, 1 + k)."""
        return (self.rows @ (self.response @ x.ravel())).reshape(x.shape) + self.offset

    def slip(self) -> Slip:
        """Returns the tangential rows of the contacts, with velocities without impulses."""
        (m, size), d = self.offset.shape, self.rows.shape[1]
        rows, response = self.rows.reshape(m, size, d)[:, 1:], self.response.reshape(d, m, size)[:, :, 1:]
        velocity = self.offset[:, 1:]
        return Slip(rows, response, jnp.zeros_like(velocity), self.friction, velocity, self.static)

    def modes(self, x: F_mr, resolution: Array | float = 0.0) -> tuple[I_m, F_mk]:
        """Returns the modes (m,) and the directions of slip (m, k) of contacts,
        given impulses x (m, 1 + k) that solve the problem.

        Without derivatives; the direction is zero where a contact does not slip, ``resolution`` as in `modes_of`.
        """
        w, x = lax.stop_gradient((self.velocity(x), x))
        scale = lax.stop_gradient(self.scales())[:, None]
        mode = jnp.where(x[:, 0] > 0, modes_of(w, scale * x, self.friction, resolution), OPEN)
        return mode.astype(jnp.int32), jnp.where((mode == SLIP)[:, None], direction(w[:, 1:]), 0)

    def in_modes(
        self,
        x: F_mr,
        modes: I_m,
        slip_direction: F_mk | None,
        times: int = 1,
        turning: bool = False,
        several: Any = None,
    ) -> F_mr:
        """Solves for the impulses (m, 1 + k) of contacts whose ``modes`` (m,) are known,
        by ``times`` Newton steps from impulses x (m, 1 + k).

        ``slip_direction`` (m, k): the directions in which contacts slip; if None, each slips in the direction of its
        velocity after the impulses. ``turning``: contacts for which ``slip_direction`` is zero slip in that direction
        too. With given directions one step is exact; each further step makes derivatives of one more order exact,
        those of impulses that are not unique too, as the first has none.
        ``several`` (): whether impulses are not unique, if that is known.
        """
        # impulses are scaled to velocities by the largest diagonal entry of their contact's block
        scale = lax.stop_gradient(self.scales())[:, None]
        y = scale * x
        inverse = _inverse_in_modes(*lax.stop_gradient((self, y, scale, modes, slip_direction, several)), turning)
        for step in range(times):
            y = lax.stop_gradient(y) if step == 1 else y
            y = y - (inverse @ self._equations(y, scale, modes, slip_direction, turning).ravel()).reshape(y.shape)
        return y / scale

    def onto_modes(self, x: F_mr, modes: I_m, slip_direction: F_mk) -> Callable[[F_mr], F_mr]:
        """Returns the map of impulses (m, 1 + k) onto those near them of contacts in these ``modes`` (m,), where
        impulses are not unique: a Newton step of `in_modes` with the inverse at x."""
        scale = self.scales()[:, None]
        inverse = _inverse_in_modes(self, scale * x, scale, modes, slip_direction, jnp.ones((), bool), False)

        def held(x: F_mr) -> F_mr:
            y = scale * x
            y -= (inverse @ self._equations(y, scale, modes, slip_direction, False).ravel()).reshape(y.shape)
            return y / scale

        return held

    def _equations(self, y: F_mr, scale: Array, modes: I_m, slip_direction: F_mk | None, turning: bool) -> F_mr:
        """Returns the residuals (m, 1 + k) of `in_modes`, of impulses y (m, 1 + k) that are scaled by ``scale``."""
        w, u = self.velocity(y / scale), slip_direction
        if turning and u is not None:
            u = jnp.where(jnp.any(u != 0, axis=1, keepdims=True), u, direction(w[:, 1:]))
        return frozen(w, y, self.friction, modes, u)

    @property
    def at_rest(self) -> F_m:
        """Coefficients of friction (m,) of contacts at rest, which stick while |x_t| is at most this times x_n."""
        return self.friction if self.static is None else self.static

    def oblique(self, least: float = ORTHOGONAL) -> B_mm:
        """Returns the mask (m, m) of pairs of contacts in which an impulse at one changes a velocity of the other.

        Some of the rows of such a pair are not orthogonal in the metric M^-1: a cosine is beyond ``least``.
        Tangential rows count only where there is friction.
        """
        m, size = self.offset.shape
        counts = ((jnp.arange(size) == 0)[None, :] | (self.at_rest > 0)[:, None]).ravel()
        matrix = self.delassus()
        diagonal = jnp.diagonal(matrix)
        large = matrix**2 > least**2 * diagonal[:, None] * diagonal[None, :]
        large = (large & counts[:, None] & counts[None, :]).reshape(m, size, m, size)
        return jnp.any(large, axis=(1, 3)) & ~jnp.eye(m, dtype=bool)

    def scales(self) -> F_m:
        """Returns the largest diagonal entries (m,) of the contacts' blocks, which scale impulses to velocities;
        1 for rows of zeros."""
        found = jnp.max(jnp.sum(self.rows * self.response.T, axis=1).reshape(self.offset.shape), axis=1)
        return jnp.where(found > 0, found, 1)

    def delassus(self) -> F_nn:
        """Returns the Delassus matrix A (m (1 + k), m (1 + k)), ordered contact by contact."""
        return self.rows @ self.response


def _inverse(
    cones: ConeProblem, y: F_mr, scale: Array, modes: I_m, slip_direction: F_mk | None, several: Any, turning: bool
) -> F_nn:
    """Returns the inverse of the derivative of `ConeProblem.in_modes`'s equations at y, by which Newton's steps go."""
    delassus, eye = cones.delassus(), jnp.eye(y.size, dtype=y.dtype)
    known = cones._replace(rows=delassus, response=eye)  # the same velocities, by fewer products
    equations = lambda x: known._equations(x.reshape(y.shape), scale, modes, slip_direction, turning).ravel()
    matrix = jax.jacfwd(equations)(y.ravel())
    # if impulses are not unique, those near x: the shift keeps rounding from moving away
    eps = float(jnp.finfo(y.dtype).eps)
    if several is None:
        # a contact that sticks has no slip here, without friction too, as where an event takes what is left of it
        several = dependent(delassus, modes, jnp.ones_like(cones.friction)) if len(y) > 1 else False
    shift = jnp.where(several, eps**0.5, 64 * eps)
    inverse = linalg.inverse(matrix + shift * eye)
    if eps > 1e-10:
        # in float32 the shift itself changes derivatives, always in the same sense (three disks: by 3e-4), to first
        # order of it
        inverse = jnp.where(several, inverse, inverse @ (2 * eye - matrix @ inverse))
    return inverse


_inverse_in_modes = outlined(_inverse, (6,))
