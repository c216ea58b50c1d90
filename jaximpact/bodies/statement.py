"""Constraints between bodies, stated for one pair and one body: dense for few bodies, on a neighbour list for many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from ..jaxtools.argument_checks import MAX_COUNT, check_memory, check_whole, is_number
from ..jaxtools.shapes import PyTree, as_array, as_array_tree, shape_of_result
from ..jaxtools.trace_context import platform
from ..mechanics.gaps import OfBodies
from ..mechanics.linearisation import Metric
from .checks import check_blocks, check_bodies, of_one
from .contacts import PairContacts, PairSlip, responses
from .listing import Listing
from .neighbours import Neighbours, search
from .some_pairs import ContactsOfList, SlipOfPairs, SomePairs
from .start import StartFacts

if TYPE_CHECKING:
    from ..mechanics.problem import Problem
    from ..mechanics.scheme import Scheme

FEW = 8  # bodies up to which all pairs are constraints
SKIN = 0.2  # of the reach
PER_BODY = {1: 2, 2: 4, 3: 8}  # near pairs for each body that there is room for
MEMBERS = {1: 4, 2: 8, 3: 12}  # bodies in a cell that there is room for
NUMBERS = 20  # that a solver, a state and a row keep for each pair, besides eight for each coordinate of position


@dataclass(frozen=True)
class Bodies(OfBodies):
    """Constraints between ``number`` bodies of D coordinates each, concatenated in q (number * D,).

    Given as ``constraints`` of a `Problem`. With few bodies there is a constraint for each pair and each obstacle,
    (m,); with many only near pairs have constraints, on a neighbour list that is renewed as bodies move.

    Args:
        number: number of bodies N.
        gap: ``gap(q_i, q_j, a_i, a_j) -> ()``, of two bodies at (D,) each; symmetric in them, C^{1,1} where they touch.
        reach: distance of the positions of two bodies beyond which their gap is positive, whatever their other
            coordinates are, or a function ``reach(t, args) -> ()`` that returns it [length].
        obstacles: ``obstacles(t, q_i, a_i) -> (o,)``, gaps of one body to its o obstacles, such as walls, or None.
        each: ``each(t, args) -> `` a pytree of arrays with a leading axis of length ``number``: the parameters a_i of
            body i, for instance its radius. By default a_i is ``args``.
        space: how many of a body's coordinates, the first ones, are its position: 1, 2 or 3; by default all D.
        box: where space is periodic: its length, or None, along each direction of position.
        skin: how much further than the reach pairs are listed [length]; by default 0.2 of the reach. No body may move
            a quarter of it in a step.
        lists: whether near pairs are listed; by default for more than 8 bodies.
        pairs, members: capacity for near pairs, and for bodies in a cell of the search;
            by default as the start of the motion needs.
        search: method to find near pairs: "cells", a cell list on any device; "tree", scipy's k-d tree on a CPU, which
            needs no compilation. By default the tree on a CPU, and cells elsewhere.
        slip: with friction, ``slip(q_i, q_j, v_i, v_j, a_i, a_j) -> (k,)``, the velocity of body i against body j where
            they touch, along k orthonormal tangents: 1 in the plane, 2 in space, which may jump as bodies move; affine
            in v_i and v_j [m/s]. By virtual power it gives the direction of friction, and its torque. The coefficient
            is the problem's ``friction``, that at rest its ``static_friction``, one each for all contacts.
        obstacle_slip: with friction, ``obstacle_slip(t, q_i, v_i, a_i) -> (o, k)``,
            the slip velocity of body i against each of its o obstacles.
    """

    number: int
    gap: Callable[..., Array]
    reach: float | Callable
    obstacles: Callable[..., Array] | None = None
    each: Callable | None = None
    space: int | None = None
    box: tuple[float | None, ...] | None = None
    skin: float | None = None
    lists: bool | None = None
    pairs: int | None = None
    members: int | None = None
    search: str | None = None
    slip: Callable[..., Array] | None = None
    obstacle_slip: Callable[..., Array] | None = None

    def __post_init__(self) -> None:
        for name in ("number", "pairs", "members"):
            value = getattr(self, name)
            if value is not None or name == "number":
                check_whole(f"Bodies({name}=...)", value)
        for name in ("gap", "obstacles", "each", "slip", "obstacle_slip"):
            value = getattr(self, name)
            if not callable(value) and not (value is None and name != "gap"):
                raise TypeError(f"Bodies({name}=...) must be a function, got {type(value).__name__}")
        if (self.obstacle_slip is None) != (self.slip is None or self.obstacles is None):
            raise ValueError(
                "Bodies(obstacle_slip=...): where bodies rub, slip is that of two bodies and obstacle_slip that of one "
                "against its obstacles: "
                "give both, or slip alone where there are no obstacles"
            )
        if self.search not in (None, "cells", "tree"):
            raise ValueError(f"Bodies(search=...): choose 'cells', 'tree' or None, got {self.search!r}")
        if self.space not in (None, 1, 2, 3):
            raise ValueError(f"Bodies(space=...): positions have 1, 2 or 3 coordinates, got {self.space!r}")
        for name in ("reach", "skin"):
            value = getattr(self, name)
            if callable(value) if name == "reach" else value is None:
                continue
            if not is_number(value) or not 0 < value < np.inf:
                raise ValueError(f"Bodies({name}=...) must be a positive number, got {value!r}")
        if self.box is not None:
            try:
                box = tuple(None if x is None else float(x) for x in self.box)
            except (TypeError, ValueError):
                box = (np.nan,)
            if not all(x is None or 0 < x < np.inf for x in box):
                raise ValueError(
                    "Bodies(box=...): lengths must be positive, or None where not periodic, one for each direction of "
                    "position; got "
                    f"{self.box!r}"
                )
            object.__setattr__(self, "box", box)
        if self.lists not in (None, True, False):
            raise ValueError(f"Bodies(lists=...): choose True, False or None, got {self.lists!r}")

    # all pairs

    def __call__(self, t: ArrayLike, q: Array, args: object) -> Array:
        """Gaps of all pairs i < j, row by row, and of all bodies to their obstacles, (m,)."""
        i, j = np.triu_indices(self.number, 1)
        return self._gaps(t, q, args, jnp.asarray(i, jnp.int32), jnp.asarray(j, jnp.int32))

    def sample(self, t: ArrayLike, q: Array, args: object) -> Array:
        """Gap of the first two bodies, which stands for those of all pairs (too many to trace),
        and gaps of all bodies to their obstacles."""
        return self._gaps(t, q, args, jnp.zeros(1, jnp.int32), jnp.full(1, min(1, self.number - 1), jnp.int32))

    def dimension(self, q: Any) -> int:
        """Coordinates of a body, D."""
        d = q.shape[-1]
        if d % self.number:
            raise ValueError(
                f"q0 has {d} coordinates, which {self.number} bodies cannot share: Bodies(number=...) must divide them"
            )
        D = d // self.number
        space = D if self.space is None else self.space
        if space > min(D, 3):
            raise ValueError(
                f"a body has {D} coordinates: give Bodies(space=...), how many of the first ones are its position (1, "
                "2 or 3)"
            )
        if self.box is not None and len(self.box) != space:
            raise ValueError(f"Bodies(box=...) has {len(self.box)} lengths, positions have {space} coordinates")
        return D

    def check(self, problem: Problem, scheme: Scheme, e: ArrayLike, q: Array, args: object, shape_of: Callable) -> None:
        check_bodies(self, problem, scheme, e, q, args, shape_of)
        if not self.listed:
            super().check(problem, scheme, e, q, args, shape_of)

    def check_mass(self, shape: tuple[int, ...], d: int) -> None:
        check_blocks(self, shape, d)

    def obstacle_count(self, t: ArrayLike, q: Array, args: object) -> int:
        """Number of gaps between all bodies and their obstacles, N times o."""
        if self.obstacles is None:
            return 0
        time, one = jax.ShapeDtypeStruct((), q.dtype), jax.ShapeDtypeStruct((self.dimension(q),), q.dtype)
        own = args if self.each is None else of_one(shape_of_result(as_array_tree, self.each, time, args))
        return self.number * shape_of_result(as_array, self.obstacles, time, one, own).size

    def count(self, t: ArrayLike, q: Array, args: object) -> int:
        """Number m of contacts: with lists, pair slots of the neighbour list, and contacts with obstacles."""
        if not self.listed:
            return super().count(t, q, args)
        return self.slots(self.positions(q).shape[1])[0] + self.obstacle_count(t, q, args)

    def positions(self, q: Any) -> Array:
        """Positions (N, space) of the bodies."""
        D = self.dimension(q)
        return q.reshape(self.number, D)[:, : D if self.space is None else self.space]

    def _gaps(self, t: ArrayLike, q: Array, args: object, i: Array, j: Array) -> Array:
        t = jnp.asarray(t, q.dtype)
        own = self._own(t, args)
        bodies = q.reshape(self.number, self.dimension(q))
        of_pairs = jax.vmap(self.pair_gap)(bodies[i], bodies[j], *self._given(own, i, j)).astype(q.dtype)
        return jnp.concatenate([of_pairs, self._walls(t, bodies, own).ravel()])

    def _own(self, t: ArrayLike, args: object) -> PyTree:
        """Parameters a_i of all bodies: what ``each(t, args)`` returns, or ``args`` for every body."""
        return args if self.each is None else self.each(t, args)

    def _given(self, own: object, i: Array, j: Array) -> tuple[object, object]:
        if self.each is None:
            spread = lambda k: jax.tree.map(lambda x: jnp.broadcast_to(x, (*k.shape, *jnp.shape(x))), own)
            return spread(i), spread(j)
        taken = lambda k: jax.tree.map(lambda x: jnp.asarray(x)[k], own)
        return taken(i), taken(j)

    def pair_gap(self, a: Array, b: Array, own_a: object, own_b: object) -> Array:
        """Gap between body a and the nearest periodic image of body b."""
        return self.gap(a, self._image(a, b), own_a, own_b)

    def _image(self, a: Array, b: Array) -> Array:
        """Coordinates (D,) of the periodic image of body b that is nearest to body a."""
        if self.box is not None:
            for axis, length in enumerate(self.box):
                if length is not None:
                    b = b.at[axis].add(length * jnp.round((a[axis] - b[axis]) / length))
        return b

    # slip

    @property
    def slips(self) -> SlipOfBodies | None:
        """Slip velocities of all contacts as a function (t, q, v, args) -> (m, k); None without friction."""
        return None if self.slip is None else SlipOfBodies(self)

    def slip_at(self, t: ArrayLike, q: Array, v: Array, args: object) -> Array:
        """Slip velocities (m, k) of all pairs and of all bodies against their obstacles."""
        i, j = np.triu_indices(self.number, 1)
        of_pairs, of_walls = self.slips_of(t, q, v, args, jnp.asarray(i, jnp.int32), jnp.asarray(j, jnp.int32))
        return jnp.concatenate([of_pairs, of_walls.reshape(-1, of_pairs.shape[1])])

    def slips_of(self, t: ArrayLike, q: Array, v: Array, args: object, i: Array, j: Array) -> tuple[Array, Array]:
        """Slip velocities (p, k) of bodies ``i`` against bodies ``j`` (p,),
        and (N, o, k) of all bodies against their obstacles."""
        t, n, D = jnp.asarray(t, q.dtype), self.number, self.dimension(q)
        own, places, speeds = self._own(t, args), *(jnp.asarray(x).reshape(n, D) for x in (q, v))
        one, two = self._given(own, i, j)
        of_pairs = jax.vmap(self.pair_slip)(places[i], places[j], speeds[i], speeds[j], one, two).astype(q.dtype)
        if self.obstacle_slip is None:
            return of_pairs, jnp.zeros((n, 0, of_pairs.shape[1]), q.dtype)
        axes = (None, 0, 0, None if self.each is None else 0)
        of_walls = jax.vmap(self.wall_slip, in_axes=axes)(t, places, speeds, own)
        return of_pairs, of_walls.astype(q.dtype)

    def pair_slip(self, a: Array, b: Array, va: Array, vb: Array, own_a: object, own_b: object) -> Array:
        """Slip velocity (k,) of body a against the nearest periodic image of body b."""
        return jnp.atleast_1d(cast(Callable, self.slip)(a, self._image(a, b), va, vb, own_a, own_b))

    def wall_slip(self, t: Array, x: Array, v: Array, own: object) -> Array:
        """Slip velocities (o, k) of a body against its obstacles."""
        found = cast(Callable, self.obstacle_slip)(t, x, v, own)
        return found[:, None] if found.ndim == 1 else found

    def _walls(self, t: ArrayLike, bodies: Array, own: object) -> Array:
        """Gaps (N, o) of all bodies to their obstacles; ``bodies`` (N, D): coordinates, ``own``:
        parameters of all bodies."""
        if self.obstacles is None:
            return jnp.zeros((self.number, 0), bodies.dtype)
        axes = (None, 0, None if self.each is None else 0)
        return jax.vmap(self.obstacles, in_axes=axes)(t, bodies, own).astype(bodies.dtype)

    # near pairs

    @property
    def listed(self) -> bool:
        """Whether a neighbour list is used."""
        return self.number > FEW if self.lists is None else self.lists

    def slots(self, space: int) -> tuple[int, int]:
        """Capacities for near pairs and for bodies in a cell, for positions with ``space`` coordinates."""
        every = self.number * (self.number - 1) // 2
        pairs = self.number * PER_BODY[space] if self.pairs is None else self.pairs
        members = MEMBERS[space] if self.members is None else self.members
        return max(1, min(pairs, every)), min(members, self.number)

    def extent(self, t: ArrayLike, args: object, dtype: DTypeLike) -> tuple[Array, Array]:
        """Evaluates the ``reach`` and the ``skin`` of these bodies at time t, each ()."""
        reach = jnp.asarray(self.reach(t, args) if callable(self.reach) else self.reach, dtype)
        return reach, SKIN * reach if self.skin is None else jnp.asarray(self.skin, dtype)

    def neighbours(self, t: ArrayLike, q: Array, args: object) -> Neighbours | None:
        """Neighbour list at (t, q); None without lists."""
        if not self.listed:
            return None
        return self.listed_near(self.positions(q), *self.extent(t, args, q.dtype))

    def listed_near(self, points: Array, reach: Array, skin: Array) -> Neighbours:
        """Neighbour list of the pairs at ``points`` (N, S) that are nearer than reach + skin."""
        return search(points, reach, skin, self.box, *self.slots(points.shape[1]), self.search)

    def curves(self, t: ArrayLike, q: Array, args: object) -> bool:
        return not self.listed and super().curves(t, q, args)

    def stepped(self, scheme: Scheme) -> Scheme:
        return Listing(scheme) if self.listed else scheme

    def pairs_of(self, state: Any) -> Array | None:
        return self.near(state.neighbours).ends(state.impulse.shape[0]) if self.listed else None

    def before(self, impulse: Array) -> Array:
        return jnp.zeros_like(impulse) if self.listed else impulse

    def near(self, neighbours: Neighbours) -> NearBodies:
        """Constraints of the pairs on a neighbour list."""
        return NearBodies(self, neighbours)

    def with_capacity_for(self, neighbours: Neighbours) -> Bodies:
        """Copy with capacity for the list ``neighbours`` and a margin; self if it suffices."""
        if not np.any(neighbours.lost):
            return self
        slots, cell_capacity = self.slots(neighbours.points.shape[-1])
        pairs, members = int(np.max(neighbours.pairs)), int(np.max(neighbours.members))
        # of a cell too full the pairs are not all found
        pairs = max(slots, pairs + pairs // 2) if members <= cell_capacity else max(2 * slots, 2 * pairs)
        return self._roomier(pairs, max(cell_capacity, members + 4), neighbours.points.shape[-1])

    def enlarge(self, q: Any, lanes: int = 1) -> Bodies:
        """Copy with twice the capacity, for bodies at q (d,), in ``lanes`` motions at once."""
        space = self.positions(q).shape[1]
        slots, cell_capacity = self.slots(space)
        return self._roomier(2 * slots, 2 * cell_capacity, space, lanes)

    def _roomier(self, pairs: int, members: int, space: int, lanes: int = 1) -> Bodies:
        """Copy with the given capacities for near pairs, and for bodies in a cell of the search; ``lanes``:
        number of motions at once.

        Raises:
            ValueError: memory does not suffice.
        """
        found = replace(self, pairs=min(pairs, MAX_COUNT), members=members)
        slots, cell_capacity = found.slots(space)
        numbers = (8 * space + NUMBERS) * slots
        if self.search == "cells" or platform() != "cpu":
            numbers += (space + 3) * self.number * cell_capacity
        check_memory(
            8.0 * lanes * numbers if slots < MAX_COUNT else np.inf,
            f"Bodies: room for {slots} pairs of {self.number} bodies nearer than reach + skin, {cell_capacity} in a "
            "cell of "
            "that width,",
            "look at where they are when their lists run out, all in one place or one far from all others; or give a "
            "smaller reach or skin",
        )
        return found


@dataclass(frozen=True)
class SlipOfBodies:
    """Slip velocities of all contacts of bodies, or of those on a list, as a function (t, q, v, args) -> (m, k):
    ``slip`` of the problem."""

    bodies: Bodies | NearBodies

    def __call__(self, t: ArrayLike, q: Array, v: Array, args: object) -> Array:
        return self.bodies.slip_at(t, q, v, args)

    def sample(self, t: ArrayLike, q: Array, v: Array, args: object) -> Array:
        """Slip velocity of the first two bodies, which stands for those of all pairs, and slip velocities of all bodies
        against their obstacles."""
        bodies: Any = self.bodies
        one, two = jnp.zeros(1, jnp.int32), jnp.full(1, min(1, bodies.number - 1), jnp.int32)
        of_pairs, of_walls = bodies.slips_of(t, q, v, args, one, two)
        return jnp.concatenate([of_pairs, of_walls.reshape(-1, of_pairs.shape[1])])


@dataclass(frozen=True, eq=False)
class NearBodies(OfBodies):
    """Constraints (m,) of the pairs on a neighbour list, empty slots included,
    and of all bodies with their obstacles."""

    bodies: Bodies
    list: Neighbours

    local = True

    def __call__(self, t: ArrayLike, q: Array, args: object) -> Array:
        present, i, j = self._slots()
        gaps = self.bodies._gaps(t, q, args, i, j)
        return jnp.concatenate([jnp.where(present, gaps[: len(i)], 1), gaps[len(i) :]])

    @property
    def slips(self) -> SlipOfBodies | None:
        """Slip velocities of all contacts as a function (t, q, v, args) -> (m, k); None without friction."""
        return None if self.bodies.slip is None else SlipOfBodies(self)

    def slip_at(self, t: ArrayLike, q: Array, v: Array, args: object) -> Array:
        """Slip velocities (m, k) of all contacts, zero in empty slots."""
        present, i, j = self._slots()
        of_pairs, of_walls = self.bodies.slips_of(t, q, v, args, i, j)
        kept = jnp.where(present[:, None], of_pairs, 0)
        return jnp.concatenate([kept, of_walls.reshape(-1, of_pairs.shape[1])])

    def among(self, rows: Array, number: int) -> dict:
        of = ContactsOfList(self, rows, number)
        return {"constraints": SomePairs(of), "slip": None if self.bodies.slip is None else SlipOfPairs(of)}

    def curves(self, t: ArrayLike, q: Array, args: object) -> bool:
        return False

    def is_steady(self, t: Array, q: Array, args: object) -> bool:
        return False

    def by_entry(self, metric: Metric, t: ArrayLike, q: Array, args: object) -> Callable:
        return self.linearised(metric, t, q, args).by_entry

    def closing(self, t: Array, q: Array, shift: Array, args: object) -> Array:
        return ~(self(t, q + shift, args) >= 0)

    def most(self, number: int) -> int:
        """How many of m = ``number`` contacts a dense problem has room for,
        which is enough for all bodies to touch six others."""
        return min(number, 3 * self.bodies.number + 8)

    def _slots(self) -> tuple[Array, Array, Array]:
        """Mask (K,) of the occupied slots of the list, and the bodies i and j (K,) of each slot,
        0 and 1 for an empty one."""
        present = self.list.i < self.bodies.number
        return present, jnp.where(present, self.list.i, 0), jnp.where(present, self.list.j, 1)

    def ends(self, m: int) -> Array:
        """The two bodies of each of the m contacts (m, 2); obstacle a is -1 - a, and an empty slot holds N twice."""
        n = self.bodies.number
        walls = jnp.arange(m - self.list.i.shape[0], dtype=jnp.int32)
        k = max(1, walls.shape[0] // n)
        pairs = jnp.stack([self.list.i, self.list.j], axis=1)
        return jnp.concatenate([pairs, jnp.stack([walls // k, -1 - walls % k], axis=1)])

    def facts(self, t: ArrayLike, q: Array, args: object) -> StartFacts:
        """`StartFacts` of these constraints at (t, q), to be checked at the start of a motion."""
        return StartFacts.of(self, t, q, args)

    def linearised(self, metric: Metric, t: ArrayLike, q: Array, args: object) -> Any:
        bodies, n = self.bodies, self.bodies.number
        D, t = bodies.dimension(q), jnp.asarray(t, q.dtype)
        own, each = bodies._own(t, args), q.reshape(n, D)
        present, i, j = self._slots()
        keep = lambda x, other: jnp.where(present.reshape(-1, *[1] * (x.ndim - 1)), x, other)
        local = jax.value_and_grad(bodies.pair_gap, argnums=(0, 1))
        gap, (gi, gj) = jax.vmap(local)(each[i], each[j], *bodies._given(own, i, j))
        axis = None if bodies.each is None else 0

        def wall(x: Array, a: object) -> Array:
            both = lambda x: (cast(Callable, bodies.obstacles)(t, x, a).astype(x.dtype),) * 2
            return jax.jacfwd(both, has_aux=True)(x)

        if bodies.obstacles is None:
            slopes, walls = jnp.zeros((n, 0, D), q.dtype), jnp.zeros((n, 0), q.dtype)
        else:
            slopes, walls = jax.vmap(wall, in_axes=(0, axis))(each, own)
        m = walls.size
        first = jnp.concatenate([self.list.i, jnp.repeat(jnp.arange(n, dtype=jnp.int32), m // n)])
        second = jnp.concatenate([self.list.j, jnp.full(m, n, jnp.int32)])
        gi = jnp.concatenate([keep(gi, 0), slopes.reshape(m, D)])
        gj = jnp.concatenate([keep(gj, 0), jnp.zeros((m, D), q.dtype)])
        gap = jnp.concatenate([keep(gap.astype(q.dtype), 1), walls.ravel()])
        drift = jax.jvp(lambda s: self(s, q, args), (t,), (jnp.ones_like(t),))[1]
        by_mass = responses(metric, first, second, gi, gj, n)
        slip = PairSlip.none(len(gap), q.dtype)
        return PairContacts(gap, drift, first, second, gi, gj, bodies=n, pairs=len(i), slip=slip, **by_mass)

    at_instant = linearised

    def rubbed(self, metric: Metric, t: ArrayLike, q: Array, args: object) -> PairSlip:
        """The gradients of the slip velocities of the contacts at (t, q), with coefficients zero."""
        bodies, n = self.bodies, self.bodies.number
        D, t = bodies.dimension(q), jnp.asarray(t, q.dtype)
        own, each, still = bodies._own(t, args), q.reshape(n, D), jnp.zeros(D, q.dtype)
        present, i, j = self._slots()
        at_rest = jnp.broadcast_to(still, (len(i), D))
        # affine in the velocities: its derivative anywhere
        local = jax.vmap(jax.jacfwd(bodies.pair_slip, argnums=(2, 3)))
        si, sj = local(each[i], each[j], at_rest, at_rest, *bodies._given(own, i, j))
        drift = self.slip_at(t, q, jnp.zeros_like(q), args)
        k = drift.shape[1]
        slopes = jnp.zeros((n, 0, k, D), q.dtype)
        if bodies.obstacle_slip is not None:
            axes = (None, 0, None, None if bodies.each is None else 0)
            slopes = jax.vmap(jax.jacfwd(bodies.wall_slip, argnums=2), in_axes=axes)(t, each, still, own)
        walls = slopes.reshape(-1, k, D).astype(q.dtype)
        ends = self.ends(len(drift))
        first, second = ends[:, 0], jnp.where(ends[:, 1] < 0, n, ends[:, 1])
        keep = lambda x: jnp.where(present[:, None, None], x.astype(q.dtype), 0)
        si = jnp.concatenate([keep(si), walls])
        sj = jnp.concatenate([keep(sj), jnp.zeros_like(walls)])

        none = PairSlip.none(len(drift), q.dtype)

        def tangent(a: int) -> PairContacts:
            gi, gj = si[:, a], sj[:, a]
            by_mass = responses(metric, first, second, gi, gj, n)
            return PairContacts(
                drift[:, a], drift[:, a], first, second, gi, gj, bodies=n, pairs=len(i), slip=none, **by_mass
            )

        return PairSlip(tuple(tangent(a) for a in range(k)), drift, jnp.zeros(len(drift), q.dtype), drift)
