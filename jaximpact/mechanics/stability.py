"""Whether a step h is small enough for an explicit force: stiffness, damping, and jumps that it resolves."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from ..switches.switches import STATE, Switches, crossing
from .linearisation import Metric
from .motion import Motion
from .problem import Problem
from .scheme import SLIGHT, State, Traits

# h^2 K + 2 h C up to which an explicit step counts as stable: 4, and a margin for motions exactly at the bound
STABLE = 4.04
SOME = 200  # steps over which the mean force is added up for that speed


class Jump(NamedTuple):
    """A jump of the force between two states.

    Attributes:
        size: jump of the generalised force (d,), zero if it has none between the states.
        resolved: whether h is small enough to resolve the effect of the jump, ().
    """

    size: Array
    resolved: Array

    @classmethod
    def between(
        cls,
        problem: Problem,
        metric: Metric,
        motion: Motion,
        t: Array,
        before: tuple[Array, Array],
        after: tuple[Array, Array],
    ) -> Jump | None:
        """Finds the largest jump of the force between (q, v) ``before`` and ``after`` at time t; None (decided at trace
        time) if the force has no switch.

        It leaves out other jumps, so that `unstable` still counts a force that approximates a stiff spring by many
        small jumps as stiff. Neither state may lie on a border, where sign(0) = 0 belongs to neither side. The jump is
        resolved if the velocity that it gives in a step, h times the jump in the kinetic metric, is small compared with
        the speed of the motion, or with the velocity that the mean of the forces on both sides gives in ``SOME`` steps:
        its effect then has an error of first order.
        """
        switches = state_switches(problem, t, *before, motion.args)
        if switches is None:
            return None
        found = crossing(switches, (t, *before), (t, *after), (motion.args,))
        size, mean = found.value_after - found.value_before, 0.5 * (found.value_after + found.value_before)
        norm = lambda x: metric_norm(x, metric.solve(x))
        known = [before[1]] if motion.v0 is None else [before[1], motion.v0]
        speed = sum((metric_norm(v, metric.times(v)) for v in known), SOME * motion.h * norm(mean))
        return cls(size, motion.h * norm(size) <= SLIGHT * speed)

    @classmethod
    def along(
        cls, problem: Problem, metric: Metric, motion: Motion, t: Array, point: Callable, v: Array, w: Array
    ) -> Jump:
        """Finds the jump of the force, as `between`, near the states of two velocities v, w (d,); ``point`` maps a
        velocity to its state (q, v).

        So that neither end lies on a border, the search goes beyond both states,
        from ``point(2 v - w)`` to ``point(2 w - v)``.
        """
        found = cls.between(problem, metric, motion, t, point(2 * v - w), point(2 * w - v))
        assert found is not None
        return found


def state_switches(problem: Problem, t: Array, q: Array, v: Array, args: object) -> Switches | None:
    """Finds the switches of the force that depend on position or velocity, as a function of (t, q, v, args);
    None if there are none."""
    operands, marks = (t, q, v, args), (0, STATE, STATE, 0)
    return Switches.of(lambda t, q, v, args: jnp.asarray(problem.force(t, q, v, args), q.dtype), operands, marks)


def metric_norm(x: Array, y: Array) -> Array:
    """Returns the norm () of x (d,) in a metric A, given y = A x (d,)."""
    if x is y and x.size == 1:
        return jnp.abs(x[0])  # a root takes as long as the rest of a step with one coordinate
    return jnp.sqrt(jnp.abs(x @ y))


def unstable(traits: Traits, problem: Problem, motion: Motion, state: State) -> Array:
    """Tests whether h exceeds the stability bound of an explicit force, along the present velocity, ().

    An unstable solution alternates, (q, v) -> (q - h v, -v). Under that change the acceleration changes by (h K + 2 C)
    v, with stiffness K and damping C; h times this is below 4 v in a stable step, in the kinetic metric and in every
    direction. A force that accelerates the motion as strongly multiplies it by five in a step, which is not resolved
    either. Both evaluations use the same time, so that a force that varies in time does not count. Nor does a jump of
    the force that h resolves (`Jump`). Velocities and changes within the round-off of positions and forces are ignored:
    a body at rest has only those, and native code rounds sums differently from XLA.
    """
    if traits.explicit <= 0:
        return jnp.zeros((), bool)
    h, args = motion.h, motion.args
    n, q, v = state.n, state.q, state.v
    t = motion.time(n)
    metric = Metric.at(problem, q, args, t)
    # three quarters of that change: neither at the mirror image -v nor at rest, where forces are even or singular
    there = q - (0.75 * h) * v, -0.5 * v if traits.damping else v
    here = problem.generalised_force(t, q, v, args)
    change = problem.generalised_force(t, *there, args) - here
    eps = 64 * jnp.finfo(q.dtype).eps
    length, rounding = (eps / h) * q, (eps * h) * here
    speed = metric_norm(v, metric.times(v)) + metric_norm(length, metric.times(length))
    bound = (STABLE / traits.explicit) * speed + metric_norm(rounding, metric.solve(rounding))

    def answer(change: Array) -> Array:
        answer = (h / 0.75) * change
        return metric_norm(answer, metric.solve(answer))

    beyond = answer(change) > bound
    jump = Jump.between(problem, metric, motion, t, (q, v), there)
    return beyond if jump is None else beyond & ~(jump.resolved & (answer(change - jump.size) <= bound))
