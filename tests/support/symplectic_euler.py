"""A scheme of one's own, from what `jaximpact.extend` gives alone."""

from dataclasses import dataclass

import jax

from jaximpact.extend import Info, Metric, Scheme, State, acceleration, linearise


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SymplecticEuler(Scheme):
    """v+ = v + h M^-1 g + M^-1 G' L, q+ = q + h v+; Newton's law for gaps that close within the step. Order 1.

    Reference: J. J. Moreau, CISM 302 (1988), explicit, with f + h (G v + f_t) <= 0 as the active contacts.
    """

    def init(self, problem, law, motion):
        m = problem.count(motion.t0, motion.q0, motion.args)
        return State.start(motion), Info.none(motion.q0, motion.v0, m)

    def step(self, problem, law, motion, state):
        (_, q, v), h, e, args = state[:3], motion.h, motion.e, motion.args
        t = motion.time(state.n)
        metric = Metric.at(problem, q, args)
        near = linearise(problem, metric, t, q, args)
        free = v + h * acceleration(problem, metric, t, q, v, args)
        before, after = near.gap_velocity(v), near.gap_velocity(free)
        found = law.velocity(near, after + e * before, candidates=near.gap + h * after <= 0)
        new = state.moved(h * (free + found.jump), free + found.jump)
        return new, Info.of(found, metric, new.q, new.v, e)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Unfinished(Scheme):
    """What lacks a step is no scheme."""

    def init(self, problem, law, motion):
        raise NotImplementedError
