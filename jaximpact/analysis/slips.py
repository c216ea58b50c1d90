"""Analysis of contacts with friction: their modes (open, stick, slip) in every step, the work of friction, and when
slip stops, begins or reverses.

Whether a contact sticks or slips in a step is decided by its slip velocity where the scheme evaluates it: at the end of
the step, (t+, q+, v+), or in `MoreauJean` at (t+, q + h v, v+). With listed bodies the contacts are the pairs that ever
have an impulse, and the solver's residual decides which slips count as zero.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from ..mechanics.contact.friction.cones import OPEN, SLIP, STICK
from ..mechanics.friction import Slip, gap_scales
from ..mechanics.labels import UNNAMED, Labels
from ..mechanics.linearisation import Metric, linearise
from ..mechanics.problem import Problem
from ..results import Arrays, Drawable, Solution, with_names
from ..results.interpolation import is_located
from ..simulation.call import Arguments
from ..simulation.canonical_arrays import cast_numbers, full_axes, split_friction
from .checks import check_result, check_solution, one_lane, takes_study
from .listed_pairs import SelectedPairs, is_listed, over_rows

RESIDUALS = 1e2  # multiples of the residual of a solver of listed contacts up to which a slip counts as zero
STOP, BREAK, REVERSAL = "stop", "break", "reversal"


class ContactMode(enum.IntEnum):
    """Mode of a contact with friction in a step: open, without an impulse; or with an impulse, while its bodies stick
    to each other or slip."""

    OPEN = OPEN
    STICK = STICK
    SLIP = SLIP


@dataclass(frozen=True, repr=False)
class Slips(Drawable):
    """Result of `slips`: slip and stick at the contacts of motions, and n events between them, sorted by lane,
    contact and time.

    Attributes:
        lane, contact: which motion and which constraint (n,).
        t: times (n,) [s].
        kind: "stop" (slip ends in sticking), "break" (a contact that sticks begins to slip) or "reversal" (planar slip
            changes sign without sticking).
        before, after: slip velocities (n, k) at the rows before and after the event [m/s], k = 1 in the plane and 2 in
            space; zero where a contact sticks.
        row: the solution's row at or after the event (n,).
        times: times of the rows (rows,), or (B, rows) [s].
        modes: `ContactMode` of each contact in the step that ends at a row, (rows, m) or (B, rows, m): 0 open, 1
            sticks, 2 slips. In the first row, at which no step ends, contacts count as open.
        velocity: slip velocity at the end of that step (..., rows, m, k) [m/s], of open contacts as well.
        work: work of friction at each contact since the start (..., rows, m) [J]: impulses times the mean of the slip
            velocities before and after each step; negative where friction dissipates.
        naming: names and units of the problem.
        pairs: with listed bodies, the two bodies of each of the m contacts (m, 2), as in `Solution.pairs`: the pairs of
            bodies that have an impulse at some time, and every body paired with each obstacle.
    """

    lane: np.ndarray
    contact: np.ndarray
    t: np.ndarray
    kind: np.ndarray
    before: np.ndarray
    after: np.ndarray
    row: np.ndarray
    times: np.ndarray
    modes: np.ndarray
    velocity: np.ndarray
    work: np.ndarray
    naming: Labels = UNNAMED
    pairs: np.ndarray | None = None

    def _arrays(self) -> Arrays:
        lanes = "motion " * (self.modes.ndim - 2)
        events = self._along("slip", "lane", "contact", "t", "kind", "row")
        rows = self._along(f"{lanes}time", "times") | self._along(f"{lanes}time constraint", "modes", "work")
        rows |= self._along(f"{lanes}time constraint tangent", "velocity")
        return events | self._along("slip tangent", "before", "after") | rows | self._along("constraint end", "pairs")

    def _columns(self) -> dict[str, np.ndarray]:
        columns = self._table("lane", "contact", "t", "kind", "before", "after", "row")
        names = self.naming.contacts
        if self.pairs is not None:
            columns |= {name: self.pairs[self.contact, end] for end, name in enumerate(("body", "other"))}
        return columns | ({"contact": np.array(names)[self.contact]} if names else {})

    def __len__(self) -> int:
        return len(self.lane)

    @property
    def lost(self) -> np.ndarray:
        """Energy that each motion has lost to friction, () or (B,) [J]."""
        return -np.sum(self.work[..., -1, :], axis=-1)


@takes_study
@with_names
def slips(
    problem: Problem,
    solution: Solution,
    *,
    args: object = None,
    args_axes: object = None,
    friction: ArrayLike | None = None,
    static_friction: ArrayLike | None = None,
) -> Slips:
    """Finds whether the contacts of a solution with friction are open, stick or slip in each step,
    and the events between these modes.

    Times of events have an error of O(h), as the motion of `MoreauJean` has. A stop is located where the extrapolated
    slip vanishes; a break where the extrapolated friction force reaches the coefficient of static friction times the
    normal force; a reversal where slip vanishes between two rows. Opening and closing of a contact are not listed: see
    `impacts`. `EventDriven` with save=Events(kinds=...) has such times to its tolerance.

    Args:
        problem: the mechanical system, with friction.
        solution: one motion or a batch that holds every step, from `solve` with save="all" or `ensemble` with save=1.
        args, args_axes, friction, static_friction: as they were given to `ensemble` (or `solve`).

    Returns:
        `Slips`.

    Raises:
        ValueError: the problem has no friction, or the solution does not hold every step or is not one of the problem.
    """
    check_result("solution", solution, Solution, "solve or ensemble")
    if not problem.rubs or solution.friction_impulse is None:
        raise ValueError("slips: the problem has no friction; state it with slip= and friction=")
    if solution.values is not None or np.shape(solution.t)[-1] < 2 or solution.origin.every_step is False:
        raise ValueError(
            "slips need every step of a motion: solve with save='all' (ensemble: save=1), without a function"
        )
    pairs, residual = None, np.zeros((1, 1, 1))
    if is_listed(problem):
        chosen = SelectedPairs.of(problem, solution, every=False)
        residual = np.reshape(solution.residual, (-1, 1, 1))
        problem, solution, pairs = chosen.problem, chosen.solution(solution), chosen.ends
    t, q, v, impulse, along = (
        np.asarray(getattr(solution, name)) for name in ("t", "q", "v", "impulse", "friction_impulse")
    )
    check_solution(problem, solution, one_lane(args, args_axes))
    single = q.ndim == 2
    if single:
        t, q, v, impulse, along = (x[None] for x in (t, q, v, impulse, along))
    args, axes = cast_numbers("args", args, q.dtype), full_axes(args, args_axes)
    own: Arguments = {}
    for name, mu in (("friction", friction), ("static_friction", static_friction)):
        problem, mu = split_friction(problem, mu, q.dtype, name)
        if mu is not None:
            own[name] = _by_lane(mu, single, len(t), impulse.shape[2])
    lanes = (0, 0, 0, jax.tree.map(lambda axis: None if axis < 0 else 0, axes), {x: mu[1] for x, mu in own.items()})
    numbers = {name: mu[0] for name, mu in own.items()}
    ends = is_located(solution)
    leaves, structure = jax.tree.flatten(lanes, is_leaf=lambda x: x is None)
    looked = _look(problem, (tuple(leaves), structure), ends, (t, q, v, args, numbers))
    before, after, size, scale, limit, static = (np.asarray(x) for x in looked)

    given = np.diff(along, axis=1)  # of each step, as all that follows
    pushed = np.diff(impulse, axis=1)
    power = np.sum(given * 0.5 * (before + after), axis=-1)
    # the friction of a contact that slips is at its bound, to the rounding of what is accumulated
    limit, rough = limit * pushed, static > 0
    static = np.where(rough, static, 1)
    load = np.where(limit > 0, np.linalg.norm(given, axis=-1) / np.where(limit > 0, limit, 1), 1)
    eps = np.finfo(q.dtype).eps
    rounding = 8 * eps * (1 + impulse[:, 1:] / np.where(pushed > 0, pushed, np.inf))
    bound = (load >= 1 - rounding) & ((load <= 1 + rounding) | (static <= 1))
    noise = eps * np.max(size, axis=1, keepdims=True)
    speed = np.linalg.norm(after, axis=-1)
    still = (speed <= 1e2 * noise) | (~bound & (speed <= noise / np.sqrt(eps)))
    # of listed contacts within what the solver left, and where friction falls short of its bound by more than makes a
    # slip so slow
    still |= (speed <= RESIDUALS * residual) | (speed <= scale * (limit - np.linalg.norm(given, axis=-1)))
    modes = np.where(pushed > 0, np.where(still & rough, STICK, SLIP), OPEN)
    events = _events(t, modes, after, load / static)
    first = lambda x: np.concatenate([np.zeros_like(x[:, :1]), x], axis=1)
    start = np.asarray(before[:, :1])
    rows = (t, first(modes), np.concatenate([start, after], axis=1), first(np.cumsum(power, axis=1)))
    times, modes, velocity, work = (x[0] if single else x for x in rows)
    of_events: dict = dict(zip(("lane", "contact", "t", "kind", "before", "after", "row"), events, strict=True))
    return Slips(**of_events, times=times, modes=modes, velocity=velocity, work=work, pairs=pairs)


def _by_lane(mu: np.ndarray | Array, single: bool, lanes: int, m: int) -> tuple[np.ndarray | Array, int | None]:
    """Reshapes coefficients ``mu``, as given to `solve` (``single``) or `ensemble`,
    so that they broadcast over the m contacts.

    Returns them and their lane axis: 0, or None if they are shared by all lanes.
    """
    by_lane = np.ndim(mu) == 2 or (np.ndim(mu) == 1 and not single and len(mu) == lanes != m)
    mu = mu[:, None] if by_lane and np.ndim(mu) == 1 else mu
    by_lane = by_lane and len(mu) == lanes
    return (mu, 0) if by_lane else (mu[0] if np.ndim(mu) == 2 else mu, None)


@partial(jax.jit, static_argnames=("lanes", "ends"))
def _look(problem: Problem, lanes: tuple, ends: bool, operands: tuple) -> tuple[Array, ...]:
    """Evaluates slip in each of the n steps of every lane: at both ends of the step,
    or without ``ends`` where `MoreauJean` does.

    ``operands``: t, q, v, args and the coefficients of friction by name that replace those of the problem; ``lanes``:
    vmap axes of their leaves, and the structure of these.

    Returns:
        Slip velocities before and after the step (B, n, m, k) each; sums of the magnitudes of the terms of the latter,
        for rounding errors (B, n, m); the velocities (B, n, m) up to which a unit of friction that is left makes a slip
        count as none: of listed contacts the largest diagonal entry of the Delassus matrix, of others a share of it as
        small as rounding; coefficients of friction times the scales of the gaps (B, n, m); and the coefficients of
        static friction divided by those of friction (B, 1, m), 0 where nothing rubs.
    """

    def steps(t: Array, q: Array, v: Array, args: object, mu: dict) -> tuple[Array, ...]:
        own = problem.replace(**mu) if mu else problem

        def one(t: Array, end: Array, q: Array, place: Array, v: Array, w: Array) -> tuple[Array, ...]:
            place = place if ends else q + (end - t) * v
            slip = lambda v: own.slip_velocity(end, place, v, args)
            if own.gaps.local:
                metric = Metric.at(own, place, args, end)
                rows: Any = Slip.at(own, metric, end, place, w, args)
                contacts = linearise(own, metric, end, place, args)
                terms = rows.terms(w) + jnp.abs(rows.drift)
                diagonals = [row.diagonal() for row in (contacts, *rows.tangents)]
                scale = jnp.max(jnp.stack(diagonals), axis=0)
            else:
                drift = slip(jnp.zeros_like(v))
                terms = jnp.abs(jax.jacfwd(slip)(v)) @ jnp.abs(w) + jnp.abs(drift)
                # of a slip that is rounding no share of that is left
                metric = Metric.at(own, place, args, end)
                tangent = Slip.at(own, metric, end, place, w, args)
                scale = jnp.max(jnp.einsum("mkd,dmk->mk", tangent.jacobian, tangent.response), axis=1)
                scale = jnp.finfo(v.dtype).eps ** 0.5 * scale
            of_gap = gap_scales(own, end, place, args)
            of_gap = jnp.ones_like(scale) if of_gap is None else of_gap
            return own.slip_velocity(t, q, v, args) if ends else slip(v), slip(w), jnp.max(terms, axis=1), scale, of_gap

        *found, of_gap = over_rows(own, one)(t[:-1], t[1:], q[:-1], q[1:], v[:-1], v[1:])
        sliding = jax.vmap(lambda slips: own.friction_coefficients(slips, args))(found[0])
        still = jnp.zeros_like(found[0][0])
        static = own.static_coefficients(still, args)
        at_rest = jnp.broadcast_to(own.friction_coefficients(still, args) if static is None else static, sliding.shape)
        excess = jnp.where(at_rest > 0, jnp.where(sliding > 0, at_rest / sliding, 1), 0)
        return *found, of_gap * sliding, excess

    return jax.vmap(steps, in_axes=jax.tree.unflatten(lanes[1], lanes[0]))(*operands)


def _events(t: np.ndarray, modes: np.ndarray, slip: np.ndarray, load: np.ndarray) -> tuple[np.ndarray, ...]:
    """Finds the events between steps; returns their lane, contact, time, kind, slip velocity before, slip velocity
    after, and row, as in `Slips`.

    ``t`` (B, n + 1): times of the rows; ``modes`` (B, n, m): modes of the contacts in the steps; ``slip`` (B, n, m, k):
    slip velocities at the ends of the steps; ``load`` (B, n, m): impulses of friction divided by their bounds.
    """
    # rounding may open the gap of a lasting contact for a step
    missed = (modes[:, 1:-1] == OPEN) & (modes[:, :-2] != OPEN) & (modes[:, 2:] != OPEN)
    modes = modes.copy()
    modes[:, 1:-1] = np.where(missed, modes[:, :-2], modes[:, 1:-1])
    old, new = modes[:, :-1], modes[:, 1:]
    turned = np.sum(slip[:, :-1] * slip[:, 1:], axis=-1) < 0
    of_kind = {
        STOP: (old == SLIP) & (new == STICK),
        BREAK: (old == STICK) & (new == SLIP),
        REVERSAL: (old == SLIP) & (new == SLIP) & turned & (slip.shape[-1] == 1),
    }
    parts = []
    for kind, mask in of_kind.items():
        lane, step, contact = np.nonzero(mask)
        begin, h = t[lane, step + 1], t[lane, step + 2] - t[lane, step + 1]
        # steps `step` and `step + 1` end and begin at row step + 1
        earlier = np.maximum(step - 1, 0)
        at = lambda x, where, lane=lane, contact=contact: x[lane, where, contact]
        if kind == BREAK:
            now, then = at(load, step), at(load, earlier)
            lasted = at(modes, earlier) == STICK
            # forces are those of the middle of a step
            share = np.where(lasted & (now > then), (1 - now) / np.where(now > then, now - then, 1) - 0.5, 0.0)
            share = np.clip(share, -1, 1)
        else:
            sign = at(slip, step)
            size, was = np.linalg.norm(sign, axis=-1), np.linalg.norm(at(slip, earlier), axis=-1)
            lasted = (at(modes, earlier) == SLIP) & (was > size)
            share = np.clip(np.where(lasted, size / np.where(lasted, was - size, 1), 1.0), 0, 1)
            if kind == REVERSAL:
                following = np.linalg.norm(at(slip, step + 1), axis=-1)
                share = np.where(lasted, share, size / (size + following))
        before, after = at(slip, step) * (kind != BREAK), at(slip, step + 1) * (kind != STOP)
        parts.append((lane, contact, begin + share * h, np.full(len(lane), kind), before, after, step + 2))
    found = [np.concatenate(x) for x in zip(*parts, strict=True)]
    order = np.lexsort((found[2], found[1], found[0]))
    return tuple(x[order] for x in found)
