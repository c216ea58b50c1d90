"""A scheme of one's own, from what `jaximpact.extend` gives alone."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaximpact.extend import (
    Metric,
    Scheme,
    State,
    acceleration,
    gap_rate,
    info_of,
    linearise,
    no_step,
    project_velocity,
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SymplecticEuler(Scheme):
    """v+ = v + h M^-1 g + M^-1 G' L, q+ = q + h v+; Newton's law for gaps that close within the step. Order 1.

    Reference: J. J. Moreau, CISM 302 (1988), explicit, with f + h (G v + f_t) <= 0 as the active contacts.
    """

    def init(self, problem, projection, inputs, q0, v0):
        return State.start(0, q0, v0), no_step(q0, v0, problem.count(inputs.t0, q0, inputs.args))

    def step(self, problem, projection, inputs, state):
        (_, q, v), (_, h, e, args), t = state[:3], inputs, inputs.time(state.n)
        metric = Metric.at(problem, q, args)
        near = linearise(problem, metric, t, q, args)
        free = v + h * acceleration(problem, metric, t, q, v, args)
        moving = gap_rate(problem, t, q, args)
        before, after = near.velocity(v) + moving, near.velocity(free) + moving
        closing = near.gap + h * after <= 0
        found = project_velocity(projection, near.masked(closing), jnp.where(closing, after + e * before, 1))
        new = state.moved(h * (free + found.jump), free + found.jump)
        return new, info_of(found, metric, new.q, new.v, e)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Unfinished(Scheme):
    """What lacks a step is no scheme."""

    def init(self, problem, projection, inputs, q0, v0):
        raise NotImplementedError
