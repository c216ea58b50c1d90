"""Schemes on neighbour lists: the contacts of a step are the pairs on the list, which is renewed as bodies move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..jaxtools.batched_branch import run_where_pending
from ..mechanics.contact.laws import ContactLaw
from ..mechanics.friction import impulses_of
from ..mechanics.motion import Motion
from ..mechanics.problem import Problem
from ..mechanics.scheme import Info, State, Wrapping
from ..mechanics.status import Status, as_status
from .neighbours import Neighbours, longest, same_slots, widest
from .start import at_reach, too_short

if TYPE_CHECKING:
    from ..mechanics.saltation.tracked import Tracked


class Listed(NamedTuple):
    """State of a `Listing`: the ``state`` of the scheme, the neighbour list, and the impulses (m, 1 + k) of the last
    step; attributes such as n, q and v are those of the scheme's state."""

    state: State | Tracked
    neighbours: Neighbours
    impulse: Array

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Listing(Wrapping[Listed]):
    """Wraps a scheme: the contacts of each of its steps are the pairs that are near at the start of the step."""

    def init(self, problem: Problem, law: ContactLaw, motion: Motion) -> tuple[Listed, Info]:
        """Initial state of the scheme, with a list made at the start."""
        neighbours = problem.gaps.neighbours(motion.t0, motion.q0, motion.args)
        state, info = self.scheme.init(problem.near(neighbours), law, motion)
        status = info.status | self.list_status(problem, motion, motion.t0 + motion.h, state.q, neighbours)
        # where bodies grow the reach may become too short; where data are traced it has not been checked before
        bodies = problem.bodies
        for t in (motion.t0, motion.t1):
            reach, _ = bodies.extent(t, motion.args, state.q.dtype)
            missed = jnp.any(too_short(at_reach(bodies, t, motion.q0, motion.args), reach))
            status = status | as_status(missed, Status.GAP_UNRESOLVED)
        return Listed(state, neighbours, impulses_of(info)), info._replace(status=status)

    def step(self, problem: Problem, law: ContactLaw, motion: Motion, state: Listed) -> tuple[Listed, Info]:
        """Step of the scheme on a renewed list; the solver starts from the impulses of the previous step."""
        t = motion.time(state.n + 1)
        neighbours, guess, before = self.renew_list(problem, motion, t, state)
        new, info = self.scheme.step(problem.near(neighbours), law.beginning(guess), motion, before)
        status = info.status | self.list_status(problem, motion, t, new.q, neighbours)
        return Listed(new, neighbours, lax.stop_gradient(impulses_of(info))), info._replace(status=status)

    @staticmethod
    def list_status(problem: Problem, motion: Motion, t: Array, q: Array, neighbours: Neighbours) -> Array:
        """Status bits of the list after a step to q at t: bodies moved so far that pairs may be missing,
        or the list overflowed."""
        bodies = problem.bodies
        reach, _ = bodies.extent(t, motion.args, q.dtype)
        # positions that are no numbers have a status of their own; a reach that is none lists nothing
        outrun = ~(neighbours.approach(bodies.positions(q), reach) <= neighbours.cutoff - neighbours.reach)
        return as_status(outrun, Status.GAP_UNRESOLVED) | as_status(neighbours.lost, Status.NEIGHBOURS_LOST)

    def renew_list(
        self, problem: Problem, motion: Motion, t: Array, state: Any
    ) -> tuple[Neighbours, Array, State | Tracked]:
        """Neighbour list for a step that ends at t, made anew if bodies have moved far.

        Also returns the impulses of the last step and the scheme's state, sorted by the slots of this list.
        """
        bodies = problem.bodies
        t, q, v, h, args = lax.stop_gradient((t, state.q, state.v, motion.h, motion.args))
        reach, skin = bodies.extent(t, args, q.dtype)
        before: Neighbours = lax.stop_gradient(state.neighbours)
        points, speeds = bodies.positions(q), bodies.positions(v)
        # half of the skin is for what happens within the step: an impact may turn any velocity round
        half = 0.5 * (before.cutoff - before.reach)
        stale = (before.approach(points, reach) + h * widest(speeds) > half) | (2 * h * longest(speeds) > half)

        def work(pending: Array, value: tuple, operands: tuple) -> tuple:
            old, *of_contacts = value
            points, reach, skin = operands
            # in a batch, what is not pending is not searched
            new = bodies.listed_near(points, jnp.where(pending, reach, -1 - skin), skin)
            slot = same_slots(old, new)
            slots = slot.shape[0]
            known = lambda x: (slot < slots).reshape(-1, *[1] * (x.ndim - 1))
            moved = lambda x: jnp.concatenate(
                [jnp.where(known(x), x[jnp.minimum(slot, slots - 1)], jnp.zeros((), x.dtype)), x[slots:]]
            )
            return new, *map(moved, of_contacts)

        kept: list[Array] = []

        def keep(x: Array) -> Array:
            kept.append(x)
            return x

        state.state.relisted(keep)  # what the state holds of contacts
        new, guess, *of_state = run_where_pending(
            work, stale, (before, lax.stop_gradient(state.impulse), *kept), (points, reach, skin)
        )
        entries = iter(of_state)
        return new, guess, state.state.relisted(lambda _: next(entries))
