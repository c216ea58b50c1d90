"""What a step of `EventDriven` asks of its contacts and the pieces of its force: `SmoothContacts` without friction, or
`RubbingContacts`."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from ..motion import By
from ..problem import Problem
from ..scheme import Step
from .pieces import Pace
from .rubbing import RubbingContacts
from .smooth_contacts import SmoothContacts
from .trial import frozen


def regime_of(
    problem: Problem, t: Array, q: Array, v: Array, args: object, by: By | None, pace: Pace | None = None
) -> SmoothContacts | RubbingContacts:
    """Returns the contacts of a problem; ``by``: what derivatives are taken by, if known; ``pace`` of its motion, if
    known."""
    kind = SmoothContacts if problem.slip is None else RubbingContacts
    return kind.of(problem, t, q, v, args, by, pace)


def in_regime(step: Step, q: Array, v: Array, a: Array | None = None) -> Step:
    """Returns the step with its contacts, for a motion with q, v and, if known, the acceleration a (d,)."""
    if isinstance(step.regime, RubbingContacts):
        return step
    motion = step.motion
    pace = frozen((motion.h, v, jnp.zeros_like(v) if a is None else a))
    return step._replace(regime=regime_of(step.problem, step.start, q, v, motion.args, motion.by, pace))
