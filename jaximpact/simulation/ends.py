"""Ends of motions, as the loop over steps sees them: at t1, at a surface that the scheme locates within a step,
or at the end of a step after which a condition holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array

from ..mechanics.motion import Motion
from ..mechanics.problem import Problem
from ..mechanics.rest import Watch
from ..mechanics.scheme import Scheme
from ..mechanics.trials.stops import Until

if TYPE_CHECKING:
    from ..mechanics.rest import AtRest, Jammed
    from .rows import Row

ALIGNED = 1e-9  # of a step: times as near as that to a step's end are its end


class End:
    """The end at t1; and base class of ends before it."""

    located = False  # within a step
    by_step = False  # seen at the end of a step

    def check(self, problem: Problem, scheme: Scheme) -> None:
        """Raises ValueError unless this end can be seen in motions of the problem by the scheme."""

    def begin(self, row: Row, state: Any, motion: Motion) -> Row:
        """Returns the ``row`` at the start with what is known of the end."""
        return row

    def stop(self, row: Row, state: Any) -> Array | None:
        """Returns the time () at which the motion ended in a step to ``state`` or before; ``row``: that before the
        step."""
        return row.stop

    def after(self, problem: Problem, motion: Motion, before: tuple, after: tuple) -> tuple:
        """Returns the carry (state, row, account) after a step, given those ``before`` and ``after`` it."""
        return after

    def goes_on(self, row: Row) -> Array | bool:
        """Tests whether the motion goes on after the step of a row, ()."""
        return True


class Located(End):
    """The end at a surface, whose time the state has."""

    located = True

    def begin(self, row: Row, state: Any, motion: Motion) -> Row:
        return row._replace(stop=state.stop.time)

    def stop(self, row: Row, state: Any) -> Array | None:
        return state.stop.time


@dataclass(frozen=True)
class ByStep(End):
    """The end of the first step after which a ``condition`` holds (`mechanics.rest`)."""

    condition: AtRest | Jammed

    by_step = True

    def check(self, problem: Problem, scheme: Scheme) -> None:
        self.condition.check(problem)
        if scheme.traits.locates:
            raise ValueError(
                "until=Until.at_rest(...) and jammed(...) are seen at the ends of steps, and "
                f"{type(scheme).__name__} chooses its own: give "
                "scheme=MoreauJean(), Maury() or PaoliSchatzman(), or a surface, until=function(t, q, v, args)"
            )

    def begin(self, row: Row, state: Any, motion: Motion) -> Row:
        return row._replace(stop=jnp.full_like(motion.t0, jnp.inf), watch=Watch.start(motion))

    def after(self, problem: Problem, motion: Motion, before: tuple, after: tuple) -> tuple:
        """Returns the carry whose row has the time of the stop if the condition holds.

        For a condition whose attribute `before` is true the motion ends at the start of the step: that is the carry
        ``before`` it, but with the impulses of the step.
        """
        (old, old_row, old_account), (new, row, account) = before, after
        watch, ends = self.condition.after(problem, motion, before, after)
        t = motion.time(old.n if self.condition.before else new.n)
        ends &= t <= motion.t1 + ALIGNED * motion.h  # the last step may lead beyond
        row = row._replace(stop=jnp.where(ends, t, jnp.inf), watch=watch)
        if not self.condition.before:
            return new, row, account
        names = ("impulse", "last", "pairs", "friction_impulse", "friction_last", "stop", "watch")
        stays = old, old_row._replace(**{name: getattr(row, name) for name in names}), old_account
        stays = (*stays[:2], old_account._replace(iterations=account.iterations))
        return jax.tree.map(lambda x, y: jnp.where(ends, x, y), stays, (new, row, account))

    def goes_on(self, row: Row) -> Array | bool:
        return ~jnp.isfinite(row.stop)


def end_of(until: Until | None) -> End:
    """Returns the end of motions with the option ``until``."""
    if until is None:
        return End()
    return Located() if until.by_step is None else ByStep(until.by_step)
