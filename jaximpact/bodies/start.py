"""Checks of bodies at the start of a motion."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from .neighbours import Neighbours

if TYPE_CHECKING:
    from .statement import Bodies, NearBodies


class StartFacts(NamedTuple):
    """Facts about bodies at the start of a motion, computed to be checked by `judge`: neighbour list,
    contacts and gaps.

    Attributes:
        list: near pairs at the start.
        ends: the bodies of each contact (m, 2).
        gap, exchanged: gaps (K,) of the pairs, and the same gaps computed with the two bodies exchanged.
        apart: gap (N,) of each body to a copy of it shifted by the reach, minimised over directions.
        period: shortest period of space (), infinity without one.
    """

    list: Neighbours
    ends: Array
    gap: Array
    exchanged: Array
    apart: Array
    period: Array

    @classmethod
    def of(cls, near: NearBodies, t: ArrayLike, q: Array, args: object) -> StartFacts:
        """Computes the facts at (t, q) for the bodies whose constraints are ``near``, a `NearBodies`."""
        bodies = near.bodies
        own, each = bodies._own(t, args), q.reshape(bodies.number, -1)
        present, i, j = near._slots()
        of = jax.vmap(bodies.pair_gap)
        one, two = bodies._given(own, i, j)
        gap, exchanged = of(each[i], each[j], one, two), of(each[j], each[i], two, one)
        period = jnp.asarray(min((x for x in bodies.box or () if x is not None), default=np.inf), q.dtype)
        keep = lambda x: jnp.where(present, x, 0)
        ends = near.ends(len(i) + bodies.obstacle_count(t, q, args))
        return cls(near.list, ends, keep(gap), keep(exchanged), at_reach(bodies, t, q, args), period)

    def contact(self, lane: int, a: int) -> str:
        """Name of contact a in messages."""
        i, j = np.asarray(self.ends)[lane, a].tolist()
        return f"bodies {i} and {j}" if j >= 0 else f"body {i} with obstacle {-1 - j}"

    def judge(self, violated: np.ndarray, gap: np.ndarray, which: Callable[[int], str]) -> None:
        """Raises ValueError if gaps of pairs are not symmetric, the reach is too short, or bodies overlap.

        ``violated`` (lanes, m): mask of contacts whose ``gap`` (lanes, m) is negative; ``which(lane)``:
        text that names a lane in messages.
        """
        gaps, exchanged, apart, ends = (np.asarray(x) for x in (self.gap, self.exchanged, self.apart, self.ends))
        reach, cutoff, period = (np.asarray(x) for x in (self.list.reach, self.list.cutoff, self.period))
        eps = 1e4 * np.finfo(gaps.dtype).eps
        if not np.all((reach > 0) & np.isfinite(reach)):
            lane = int(np.argmin((reach > 0) & np.isfinite(reach)))
            raise ValueError(f"reach(t, args) must return a positive number, got {reach[lane]:.6g} at t0{which(lane)}")
        if np.any(period < 2 * cutoff):
            raise ValueError(
                f"Bodies(box=...): a period of {np.min(period):.6g} is no longer than twice the distance of listed "
                "pairs, reach + skin = "
                f"{np.max(cutoff):.6g}: a body would meet others from both sides; take a longer box or a smaller skin"
            )
        unlike = np.abs(gaps - exchanged)
        if np.any(unlike > eps * (reach[:, None] + np.abs(gaps))):
            lane, k = _worst(-unlike)
            i, j = ends[lane, k].tolist()
            raise ValueError(
                f"gap(q_i, q_j, a_i, a_j) is not symmetric{which(lane)}: of bodies {i} and {j} it is "
                f"{gaps[lane, k]:.6g}, "
                f"of {j} and {i} {exchanged[lane, k]:.6g}"
            )
        if np.any(too_short(apart, reach[:, None])):
            lane, i = _worst(apart)
            short = apart[lane, i]
            raise ValueError(
                f"reach is {reach[lane]:.6g}, too small{which(lane)}: body {i} and another like it have gap "
                f"{short:.6g} at that "
                f"distance; give Bodies(reach=...) at least {reach[lane] - short:.6g}, over the whole motion"
            )
        if np.any(violated):
            lane = int(np.argmax(np.any(violated, axis=1)))
            bad = np.flatnonzero(violated[lane])
            walls = int(np.sum(ends[lane, bad, 1] < 0))
            kinds = ((bad.size - walls, "pairs of bodies"), (walls, "bodies and obstacles"))
            counts = [f"{count} {what}" for count, what in kinds if count]
            worst = bad[np.argsort(gap[lane, bad])[:3]].tolist()
            most = ", ".join(f"{self.contact(lane, a)} by {-gap[lane, a]:.3g}" for a in worst)
            raise ValueError(
                f"q0{which(lane)} is not admissible: {' and '.join(counts)} overlap at t0, the most {most}; move them "
                "apart"
            )


def at_reach(bodies: Bodies, t: ArrayLike, q: Array, args: object) -> Array:
    """Gap (N,) of each body to a copy of it shifted by the reach along a coordinate axis, minimised over the axes."""
    own, each, every = bodies._own(t, args), q.reshape(bodies.number, -1), jnp.arange(bodies.number)
    alike, _ = bodies._given(own, every, every)
    space = bodies.positions(q).shape[1]
    apart = []
    for shift in np.concatenate([np.eye(space), -np.eye(space)]):
        away = each.at[:, :space].add(bodies.extent(t, args, q.dtype)[0] * jnp.asarray(shift, q.dtype))
        apart.append(jax.vmap(bodies.pair_gap)(each, away, alike, alike))
    return jnp.min(jnp.stack(apart), axis=0)


def too_short(apart: Any, reach: Any) -> Any:
    """Mask of the gaps ``apart`` (from `at_reach`) that are negative, so that the reach is too short.

    Bodies at the distance ``reach`` would overlap.
    """
    return apart < -1e4 * float(jnp.finfo(apart.dtype).eps) * reach


def _worst(value: np.ndarray) -> tuple[int, int]:
    """Lane and index of the smallest entry."""
    lane, k = np.unravel_index(np.argmin(value), value.shape)
    return int(lane), int(k)
