"""Contacts as pairs of bodies: the operations of `Contacts` without any array of size contacts times coordinates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from ..compiler.scalar import Unsupported
from ..jaxtools import linalg
from ..jaxtools.empty import empty
from ..jaxtools.linalg import solve_matrix_free
from ..mechanics.contacts import ORTHOGONAL
from ..mechanics.friction import FrictionInfo, still
from ..mechanics.linearisation import Metric
from .mprgp_call import solve_mprgp, sweep_cones


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PairContacts:
    """Contacts between bodies ``i`` and ``j`` (m,), with N in place of an obstacle, linearised at one configuration.

    The first ``pairs`` contacts are between two bodies; then follow those with obstacles, the same number for every
    body, sorted by body. Matrix-vector products need gather and scatter operations for pair contacts only, since the
    contacts with obstacles are sorted by body. Sums over the coordinates of a body are written out term by term, which
    takes XLA a tenth of the time.

    ``gap`` f (m,), ``drift`` df/dt (m,); gradients ``gi`` and ``gj`` (m, D) with respect to either body's coordinates,
    responses ``ri`` and ``rj`` (m, D), M^-1 times the gradients, and ``hi`` and ``hj`` (m, D), H times the gradients,
    with H' H = M^-1, or None for a diagonal mass. In the methods G (m, d) is the matrix of the gradients, A = G M^-1 G'
    the Delassus matrix, and L (m,) are impulses.
    """

    gap: Array
    drift: Array
    i: Array
    j: Array
    gi: Array
    gj: Array
    ri: Array
    rj: Array
    bodies: int = field(metadata={"static": True})
    pairs: int = field(metadata={"static": True})
    hi: Array | None = None
    hj: Array | None = None
    slip: PairSlip = field(kw_only=True)

    dense: ClassVar[bool] = False

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of contacts m and of coordinates d."""
        return self.gap.shape[0], self.bodies * self.gi.shape[1]

    @property
    def resolution(self) -> float:
        """Smallest relative error to assume in gaps when they are compared.

        It is larger than round-off, since contacts are solved to a tolerance only.
        """
        return 2e-11

    @property
    def slack(self) -> int:
        """Multiples of the round-off by which contacts may overlap at a start, which may be the end of a run of a
        solver with a coarse tolerance."""
        return 100

    def beside(self, q: Array, sides: Array) -> Array:
        """As `Contacts.beside`: no two contacts of bodies are the sides of one bilateral constraint."""
        return jnp.zeros_like(sides)

    def sliding(self, v: Array) -> PairContacts:
        """Copy with the slip velocities at v (d,), as `Contacts.sliding`."""
        return replace(self, slip=self.slip.sliding(v))

    def rubbing(self, slip: PairSlip) -> PairContacts:
        """Copy with friction; ``slip`` holds the gradients of the slip velocities."""
        return replace(self, slip=slip)

    def friction_products(self) -> tuple[Callable[[Array], Array], Callable[[Array], Array], Array]:
        """Products with the normal and tangential gradients: the function from impulses (m, 1 + k) to the velocity jump
        (d,), the function from velocities (d,) to contact velocities (m, 1 + k),
        and the diagonal of the Delassus matrix (m, 1 + k).
        """
        slip = self.slip
        rows = (self, *slip.tangents)

        def jump(x: Array) -> Array:
            total = lambda name: sum(getattr(row, name) * x[:, a : a + 1] for a, row in enumerate(rows))
            return self._sum_by_body(total("ri"), total("rj")).ravel()

        velocity = lambda v: jnp.stack([row.velocity(v) for row in rows], axis=1)
        return jump, velocity, jnp.stack([row.diagonal() for row in rows], axis=1)

    def velocity(self, v: Array) -> Array:
        """Products G v of the gap gradients with velocities v (d,), (m,)."""
        return self._at_bodies(self.gi, self.gj, v)

    def gap_velocity(self, v: Array) -> Array:
        """Gap velocities G v + df/dt, (m,)."""
        return self.velocity(v) + self.drift

    def jump(self, impulse: Array) -> Array:
        """Velocity jump M^-1 G' L, (d,), by impulses L (m,)."""
        return self._sum_by_body(self.ri * impulse[:, None], self.rj * impulse[:, None]).ravel()

    def push(self, impulse: Array) -> Array:
        """Generalised impulse G' L, (d,), of impulses L (m,)."""
        return self._sum_by_body(self.gi * impulse[:, None], self.gj * impulse[:, None]).ravel()

    def velocity_terms(self, v: Array) -> Array:
        """|G| |v|, (m,): the sizes of the terms of G v, which bound its round-off."""
        return self._at_bodies(jnp.abs(self.gi), jnp.abs(self.gj), jnp.abs(v))

    def by_entry(self, *numbers: Array) -> tuple[Array, ...]:
        """As `Contacts.by_entry`, with the coordinates of both bodies of a contact, k = 2 D."""
        at = lambda x: jnp.concatenate([_rows(x, self.i), _rows(x, self.j)], axis=1).T
        size = jnp.abs(jnp.concatenate([self.gi, self.gj], axis=1)).T
        return size, *(at(x.reshape(self.bodies, -1)) for x in numbers)

    def jump_terms(self, impulse: Array) -> Array:
        """|M^-1 G'| |L|, (d,): the sizes of the terms of the velocity jump by impulses L (m,),
        which bound its round-off."""
        size = jnp.abs(impulse)[:, None]
        return self._sum_by_body(jnp.abs(self.ri) * size, jnp.abs(self.rj) * size).ravel()

    def largest(self, x: Array) -> Array:
        """As `Contacts.largest`: for each contact the largest of the numbers x (n,) of its parts, which consist of
        whole bodies."""
        k, of_bodies = self.pairs, jnp.repeat(x, self.bodies // len(x))
        walls = jnp.repeat(of_bodies, (len(self.gap) - k) // self.bodies)
        return jnp.concatenate([jnp.maximum(_rows(of_bodies, self.i[:k]), _rows(of_bodies, self.j[:k])), walls])

    def spread(self, x: Array, parts: int) -> Array:
        """As `Contacts.spread`, (parts,)."""
        k = self.pairs
        ends, pairs = jnp.concatenate([self.i[:k], self.j[:k]]), jnp.concatenate([x[:k], x[:k]])
        walls = jnp.max(x[k:].reshape(self.bodies, -1), axis=1, initial=0.0)
        of_bodies = walls.at[ends].max(pairs, mode="drop", wrap_negative_indices=False)
        return jnp.max(of_bodies.reshape(parts, -1), axis=1)

    def diagonal(self) -> Array:
        """Diagonal of the Delassus matrix, (m,)."""
        return _sum_last_axis(self.gi * self.ri + self.gj * self.rj)

    def coordinates_at(self, acting: Array) -> Array:
        """Number () of coordinates of all bodies that take part in a contact in the mask ``acting`` (m,)."""
        one = acting[:, None].astype(jnp.int32)
        return self.gi.shape[1] * jnp.sum(self._sum_by_body(one, one) > 0)

    def coupled(self, acting: Array) -> Array:
        """Whether any two contacts in the mask ``acting`` (m,) have gradients that are not
        orthogonal in the metric M^-1, ().

        It sums the squared scalar products of all pairs of gradients c_a, c_b at each body,
        which is |sum c c'|^2 - sum |c|^4.
        """
        diagonal = self.diagonal()
        scale = jnp.where(acting & (diagonal > 0), 1 / jnp.sqrt(jnp.where(diagonal > 0, diagonal, 1)), 0)[:, None]
        norm = lambda g, r: _sum_last_axis(scale**2 * g * r)[:, None] ** 2
        outer = lambda g, r: (scale**2 * g)[:, :, None] * r[:, None, :]
        both = lambda g, r: jnp.concatenate([outer(g, r).reshape(len(g), -1), norm(g, r)], axis=1)
        total = self._sum_by_body(both(self.gi, self.ri), both(self.gj, self.rj))
        gram = total[:, :-1].reshape(self.bodies, *[self.gi.shape[1]] * 2)
        # the trace of a square
        products = jnp.sum(gram * jnp.swapaxes(gram, 1, 2), axis=(1, 2))
        return jnp.any(products - total[:, -1] > ORTHOGONAL**2)

    def balance(self) -> Callable[[Array, Array], Array]:
        """Function (offset (m,), closed (m,)) -> forces or impulses L (m,) with A L + offset = 0 at closed contacts, A
        the Delassus matrix, and L = 0 elsewhere.

        By conjugate gradients with diagonal scaling; for dependent contacts the forces of least norm.
        """
        diagonal = self.diagonal()
        scale = jnp.where(diagonal > 0, 1 / jnp.sqrt(jnp.where(diagonal > 0, diagonal, 1)), 0)

        def forces(offset: Array, closed: Array) -> Array:
            known = jnp.where(closed, scale, 0)
            product = lambda x: known * self.velocity(self.jump(known * x))
            return known * solve_matrix_free(product, -known * offset)

        return forces

    def walked(
        self, products: Callable, offset: Array, tolerance: Array, guess: Array, limit: int
    ) -> tuple[Array, Array, Array | None]:
        """Solves for the impulses (m,) without friction, by native code on a CPU, elsewhere by ``products``.

        Arguments and results are those of `Contacts.walked`.
        """
        hi, hj = self._halves()
        known = (self.i, self.j, hi, hj, self.ri, self.rj, offset, tolerance, guess)

        def native(*known: Array) -> tuple[Array, Array, Array]:
            i, j, hi, hj, ri, rj, offset, tolerance, guess = known
            operands = i, j, hi, hj, offset, guess, tolerance, jnp.full(1, limit, jnp.int32)
            impulse, count, jump = solve_mprgp(self.bodies, (ri, rj), operands)
            return impulse, count, jump.ravel()

        def by_products(*known: Array) -> tuple[Array, Array, Array]:
            impulse, count = products(self, *known[6:])
            return impulse, count, self.jump(impulse)

        try:
            return lax.platform_dependent(*known, cpu=native, default=by_products)
        except (Unsupported, ImportError):
            return by_products(*known)

    def swept(
        self, by_products: Callable, offset: Array, candidates: Array, allowed: Array, guess: Array, limit: int
    ) -> tuple[Array, Array]:
        """Solves for the impulses with friction (m, 1 + k) of the contacts in the mask ``candidates`` (m,):
        returns them and the iterations ().

        By native sweeps on a CPU, elsewhere by ``by_products(offset, guess)``. ``offset`` (m, 1 + k): contact
        velocities without impulses; ``allowed``: tolerance, the natural residual () or (m,) [velocity] up to which a
        contact counts as solved; ``guess`` (m, 1 + k): impulses to start from; ``limit``: largest number of iterations.
        """
        slip = self.slip
        columns = jnp.stack([jnp.concatenate(row._halves(), axis=1) for row in (self, *slip.tangents)], axis=1)
        known = (
            columns,
            offset,
            slip.friction,
            candidates.astype(jnp.int32),
            jnp.broadcast_to(allowed, candidates.shape),
            guess,
        )

        def native(*known: Array) -> tuple[Array, Array]:
            columns, offset, mu, candidates, allowed, guess = known
            limits = jnp.full(1, limit, jnp.int32)
            return sweep_cones(self.bodies, (self.i, self.j, candidates, columns, offset, mu, guess, allowed, limits))

        def products(*known: Array) -> tuple[Array, Array]:
            return by_products(known[1], known[-1])

        try:
            return lax.platform_dependent(*known, cpu=native, default=products)
        except (Unsupported, ImportError):
            return products(*known)

    def _halves(self) -> tuple[Array, Array]:
        """H times the gradients with respect to body i and to body j, (m, D) each, where H' H = M^-1."""
        half = lambda g, r: jnp.where(g < 0, -1, 1) * jnp.sqrt(jnp.abs(g * r))
        hi = half(self.gi, self.ri) if self.hi is None else self.hi
        return hi, half(self.gj, self.rj) if self.hj is None else self.hj

    def at(self, gap: Array) -> PairContacts:
        """Copy with other gaps (m,)."""
        return replace(self, gap=gap)

    def under(self, metric: Metric) -> PairContacts:
        """Copy whose responses use another metric."""
        return replace(
            self, slip=self.slip.under(metric), **responses(metric, self.i, self.j, self.gi, self.gj, self.bodies)
        )

    def masked(self, active: Array) -> PairContacts:
        """Copy in which the gradients of contacts that are not ``active`` (m,) are zero."""
        names = ("gi", "gj", "ri", "rj", "hi", "hj")
        kept = {x: getattr(self, x) for x in names if getattr(self, x) is not None}
        changed: dict = {name: jnp.where(active[:, None], x, 0) for name, x in kept.items()}
        return replace(self, **changed)

    def _at_bodies(self, gi: Array, gj: Array, v: Array) -> Array:
        """Products (m,) of the gradients ``gi`` and ``gj`` with a vector (d,) of the bodies."""
        v, k = v.reshape(self.bodies, -1), self.pairs
        of_i, of_j = _rows(v, self.i[:k]), _rows(v, self.j[:k])
        walls = gi[k:].reshape(self.bodies, -1, v.shape[1])
        return jnp.concatenate(
            [_sum_last_axis(gi[:k] * of_i + gj[:k] * of_j), _sum_last_axis(walls * v[:, None]).ravel()]
        )

    def _sum_by_body(self, of_i: Array, of_j: Array) -> Array:
        """Sums (N, n), for each body, of the terms of its contacts: ``of_i`` (m, n) where it is body i of a contact,
        ``of_j`` where it is body j."""
        k, shape = self.pairs, (self.bodies, of_i.shape[1])
        walls = of_i[k:].reshape(self.bodies, -1, of_i.shape[1])
        ends = jnp.concatenate([self.i[:k], self.j[:k]])
        parts = jnp.concatenate([of_i[:k], of_j[:k]])
        total = jnp.zeros(shape, of_i.dtype).at[ends].add(parts, mode="drop", wrap_negative_indices=False)
        return total + _sum_last_axis(jnp.swapaxes(walls, 1, 2))


class PairSlip(NamedTuple):
    """Gradients T of the slip velocities of contacts between bodies: `Slip` without any array of
    size contacts times coordinates.

    ``tangents``: for each of k directions, contacts with the gradients of the slip velocity in place of those of the
    gap; the other fields as in `Slip`.
    """

    tangents: tuple[PairContacts, ...]
    drift: Array
    friction: Array
    velocity: Array
    static: Array | None = None
    before: FrictionInfo | None = None

    @classmethod
    def none(cls, m: int, dtype: DTypeLike) -> PairSlip:
        """Returns the `PairSlip` of m contacts without friction: k = 0 tangents."""
        still = empty(dtype, m, 0)
        return cls((), still, empty(dtype, 0), still)

    @property
    def k(self) -> int:
        """Number of tangents of a contact."""
        return len(self.tangents)

    def sliding(self, v: Array) -> PairSlip:
        """Copy whose slip ``velocity`` is that at v (d,)."""
        return self._replace(velocity=self.of(v)) if self.tangents else self

    def of(self, v: Array) -> Array:
        """Slip velocities (m, k) at v."""
        return jnp.stack([row.velocity(v) for row in self.tangents], axis=1) + self.drift

    def jump(self, impulse: Array) -> Array:
        """Velocity jump M^-1 T' r of tangential impulses r (m, k), (d,)."""
        return sum(
            (row.jump(impulse[:, a]) for a, row in enumerate(self.tangents[1:], 1)),
            self.tangents[0].jump(impulse[:, 0]),
        )

    def push(self, impulse: Array) -> Array:
        """Generalised impulse T' r, (d,), of tangential impulses r (m, k)."""
        return cast(Array, sum(row.push(impulse[:, a]) for a, row in enumerate(self.tangents)))

    def terms(self, v: Array) -> Array:
        """|T| |v|, (m, k): the sizes of the terms of the slip velocities, which bound their round-off."""
        return jnp.stack([row.velocity_terms(v) for row in self.tangents], axis=1)

    def heading(self, direction: Array) -> Array:
        """Headings T' u (m, 2 D) of directions of slip u (m, k), in the coordinates of the two bodies of each contact.

        They do not depend on the tangents, which may turn until the next step.
        """
        rows = [jnp.concatenate([row.gi, row.gj], axis=1) for row in self.tangents]
        return sum((direction[:, a : a + 1] * row for a, row in enumerate(rows[1:], 1)), direction[:, :1] * rows[0])

    def along(self, heading: Array) -> Array:
        """Directions of slip (m, k), not normalised, from headings (m, 2 D) as `heading` gives them."""
        rows = [jnp.concatenate([row.gi, row.gj], axis=1) for row in self.tangents]
        return jnp.stack([_sum_last_axis(row * heading) for row in rows], axis=1)

    def under(self, metric: Metric) -> PairSlip:
        """Copy with the responses of another metric."""
        return self._replace(tangents=tuple(row.under(metric) for row in self.tangents))

    def still(self) -> FrictionInfo:
        """`FrictionInfo` of a step in which these contacts have no impulses of friction."""
        return still(self)


def _sum_last_axis(x: Array) -> Array:
    """Sum over a short last axis, written out term by term, which XLA compiles to faster code than a reduction."""
    return sum((x[..., a] for a in range(x.shape[-1])), jnp.zeros(x.shape[:-1], x.dtype))


def _rows(x: Array, body: Array) -> Array:
    """Rows of x (N, n) for the given bodies; an arbitrary row for the index N."""
    return x.at[body].get(mode="clip", wrap_negative_indices=False)


def responses(metric: Metric, i: Array, j: Array, gi: Array, gj: Array, bodies: int) -> dict:
    """Fields of `PairContacts` that depend on the mass, by name: gradients times M^-1, and gradients times H,
    where H' H = M^-1."""
    if metric.matrix is None:
        return {"ri": gi, "rj": gj, "hi": lax.stop_gradient(gi), "hj": lax.stop_gradient(gj)}
    if metric.matrix.ndim == 3:
        return _by_blocks(metric, "i", i, gi) | _by_blocks(metric, "j", j, gj)
    inverse = 1 / jnp.broadcast_to(metric.matrix, (bodies * gi.shape[1],)).reshape(bodies, -1)
    inverse = jnp.concatenate([inverse, jnp.zeros((1, gi.shape[1]), inverse.dtype)])
    return {"ri": gi * inverse[i], "rj": gj * inverse[j], "hi": None, "hj": None}


def _by_blocks(metric: Metric, end: str, body: Array, g: Array) -> dict:
    """The fields of `responses` for one end of each contact, "i" or "j", if the mass matrix has a block for each body.

    ``body`` (m,): the body at that end; ``g`` (m, D): gradients with respect to its coordinates, zero for an obstacle.
    """
    matrix, factor = cast(Array, metric.matrix), cast(Array, metric.mass.factor)
    at = jnp.minimum(body, matrix.shape[0] - 1)
    r = jax.vmap(linalg.spd_solve)(matrix[at], factor[at], g)
    return {f"r{end}": r, f"h{end}": jax.vmap(linalg.first_substitution)(factor[at], lax.stop_gradient(g))}
