"""Directions of slow slip in space over a trial of `EventDriven`, where they turn too fast to be followed.

A slip s in space has the direction s / |s|, and changes across it decay in the time |s| / (mu N), in units of
acceleration. Where this is short, as after a contact has broken away, whose slip then grows with the square of time,
substeps would be as short. But the direction itself is smooth: it is the one along which the slip goes. So it is found
before the trial, as a polynomial of time whose slip has its direction at the nodes of Radau's method (E. Hairer, G.
Wanner, Solving Ordinary Differential Equations II, Springer (1996), IV.5), and the trial has a force
that is known, and not stiff.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ...jaxtools import linalg
from ...jaxtools.tables import table
from ..coefficients import lengths

if TYPE_CHECKING:
    from .trial import Base

frozen = lax.stop_gradient
NODES = 5
# iterations: each is a Newton step for the directions, and gains a factor of the trial's length for the rest of the
# state
TIMES = 8
LONGEST_TURN = 0.5  # in one of these
EDGE = 1e-6  # of the acceleration by friction: slips at the edge of their cones accelerate less


class Rules(NamedTuple):
    """Nodes (k,) of Radau's method in (0, 1]; weights (k, k) of integrals up to each node; the coefficients (k, k) of
    the powers 1 to k of the polynomial through zero and values at the nodes; and the weights (k,) of the change that
    the last node makes at 1."""

    nodes: np.ndarray
    integrals: np.ndarray
    powers: np.ndarray
    change: np.ndarray


@cache
def rules() -> Rules:
    legendre = np.polynomial.legendre.Legendre
    nodes = (1 + np.sort((legendre.basis(NODES) - legendre.basis(NODES - 1)).roots().real)) / 2
    up = np.arange(1, NODES + 1)
    integrals = (nodes[:, None] ** up / up) @ np.linalg.inv(nodes[:, None] ** (up - 1))
    powers = np.linalg.inv(nodes[:, None] ** up)
    fewer = np.linalg.inv(nodes[:-1, None] ** up[:-1])
    change = np.concatenate([-fewer.sum(axis=0), [1.0]])
    return Rules(nodes, integrals, powers, change)


def rotated(way: Array, angle: Array) -> Array:
    """Returns directions (m, 2) turned by angles (m,)."""
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.stack([cos * way[:, 0] - sin * way[:, 1], sin * way[:, 0] + cos * way[:, 1]], axis=1)


def cross(x: Array, y: Array) -> Array:
    """Returns the component (...) of y (..., 2) across a unit vector x (..., 2)."""
    return x[..., 0] * y[..., 1] - x[..., 1] * y[..., 0]


class Node(NamedTuple):
    """Quantities at one node: acceleration a (d,), tangents (m, 2, d), ``slip`` (m, 2) and its acceleration (m, 2)."""

    a: Array
    tangents: Array
    slip: Array
    pull: Array


def steered(node: Callable[..., Node], way: Array, slips: Array, t: Array, base: Base, s: Array) -> Array:
    """Returns the angles (k, m) at the nodes by which contacts that slip, ``slips`` (m,), have turned from their ways
    (m, 2) in a trial of length s.

    ``node``: function of time, position, velocity and ways (m, 2) to a `Node`; ``base``: where the trial begins,
    at time t.
    """
    of, (m, _) = rules(), way.shape
    nodes, integrals = (table(x, s.dtype) for x in (of.nodes, of.integrals))
    k = NODES
    # contacts that do not slip keep the angle zero
    still = jnp.broadcast_to(~slips, (k, m)).reshape(k * m, 1)

    def at(t: Array, q: Array, v: Array, angle: Array) -> tuple[Node, Array, Array]:
        ways = rotated(way, angle)
        slope = jax.jacfwd(lambda x: node(t, q, v, rotated(way, x)).pull)(angle)
        return node(t, q, v, ways), ways, frozen(slope)

    def improve(carry: tuple[Array, Array], _: object) -> tuple[tuple[Array, Array], None]:
        angle, a = carry
        v = base.v[None] + s * (integrals @ a)
        q = base.q[None] + s * (nodes[:, None] * base.v[None] + s * (integrals @ (integrals @ a)))
        found, ways, slope = lax.map(lambda x: at(*x), (t + s * nodes, q, v, angle))
        change = base.v[None] + s * (integrals @ found.a) - v
        slip = found.slip + jnp.einsum("jakd,jd->jak", found.tangents, change)
        across = jnp.where(slips[None], cross(ways, slip), 0)
        along = jnp.sum(ways * slip, axis=2)
        turns = cross(ways[:, :, None, None], jnp.transpose(slope, (1, 0, 3, 2))[None])
        matrix = (s * integrals[:, None, :, None] * turns).reshape(k * m, k * m) - jnp.diag(along.ravel())
        matrix = frozen(jnp.where(still, jnp.eye(k * m, dtype=s.dtype), matrix))
        turn = linalg.inverse(matrix) @ across.ravel()
        return (angle - turn.reshape(k, m), found.a), None

    first = jnp.zeros((k, m), s.dtype) + 0 * base.a[0], jnp.broadcast_to(base.a, (k, *base.a.shape))
    return lax.scan(improve, first, None, length=TIMES)[0][0]


def way_of_acceleration(
    pull: Callable[[Array], Array], way: Array, begins: Array, brakes: Array
) -> tuple[Array, Array]:
    """Returns the ways (m, 2) along which slips accelerate that begin, ``begins`` (m,), near the ways (m, 2); others
    keep theirs, and so do those that would accelerate against it. Also returns those (m,) that do not accelerate
    whatever their way is, as other contacts hold them.

    ``pull``: function of ways (m, 2) to accelerations of slip (m, 2). Their components across the ways determine
    these where a slip does not accelerate yet, too, at the edge of its cone. ``brakes`` (m,): accelerations of slip by
    friction.
    """
    begins &= jnp.any(way != 0, axis=1)
    slopes_at = lambda angle: frozen(jax.jacfwd(across)(angle))
    turned = lambda angle: (pull(rotated(way, angle)),) * 2
    response, first = frozen(jax.jacfwd(turned, has_aux=True)(0 * way[:, 0]))
    moved = lengths(first) + lengths(jnp.diagonal(response, axis1=0, axis2=2).T)
    held = begins & (moved <= EDGE * brakes)
    begins &= ~held

    def across(angle: Array) -> Array:
        ways = rotated(way, angle)
        return jnp.where(begins, cross(ways, pull(ways)), angle)

    def improve(angle: Array, _: object) -> tuple[Array, None]:
        turn = linalg.inverse(slopes_at(angle)) @ across(angle)
        return angle - jnp.clip(turn, -LONGEST_TURN, LONGEST_TURN), None

    angle = frozen(lax.scan(improve, 0 * way[:, 0], None, length=TIMES)[0])
    slopes = slopes_at(angle)
    inverse = linalg.inverse(slopes)
    for _ in range(2):  # two derivatives
        angle = angle - inverse @ across(angle)
    found = rotated(way, angle)
    along = frozen(jnp.sum(found * pull(found), axis=1))
    known = begins & (along >= -EDGE * jnp.abs(jnp.diagonal(slopes)))
    return jnp.where(known[:, None], found, way), held


def angles_at(angles: Array, x: Array) -> Array:
    """Returns the angles (m,) at a fraction x () of a trial, given those (k, m) at the nodes."""
    powers = x ** jnp.arange(1, NODES + 1, dtype=angles.dtype)
    return powers @ (table(rules().powers, angles.dtype) @ angles)


def unsure(angles: Array) -> Array:
    """Returns an estimate of the error of the angles (m,) at the end of a trial:
    by how much they change if the last node is left out."""
    return jnp.abs(table(rules().change, angles.dtype) @ angles)
