"""Interface of a scheme: `init` and `step`, pure functions of one motion's small arrays; and helpers that schemes share."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ...jaxtools.argument_checks import is_traced
from ..contact.laws import ContactLaw, Open, Reaction
from ..friction import FrictionInfo
from ..linearisation import Contacts, Metric, is_flat
from ..motion import Motion
from ..problem import Problem
from ..status import Status, as_status
from ..switches import STATE, Switches, crossing, gap_switches

FACING = -0.99  # cosine of the angle between contacts that face each other
STABLE = 4.04  # h^2 K + 2 h C up to which an explicit step counts as stable: 4, and a margin for what is at the bound
SLIGHT = 0.1  # of the speed of a motion, by which a resolved jump of the force may change it in a step
SOME = 200  # steps over which the other forces count towards that speed


class State(NamedTuple):
    """State between steps: step number n (t = t0 + n h), position q (d,), and velocity v (d,) over the last step.

    Attributes:
        low: rounding remainder of q (d,), kept below float64, where a step may be smaller than the resolution of q.
        lasting: mask (m,) of contacts that the next step includes whatever their gaps; None for schemes that select by gaps alone.
        joints: whether two gaps may be the sides of one joint, ().
        friction: what the contacts did in the step before; None where that does not matter, static friction being that of slip.
    """

    n: Array
    q: Array
    v: Array
    low: Array | None = None
    lasting: Array | None = None
    joints: Array | None = None
    friction: FrictionInfo | None = None

    @classmethod
    def start(cls, motion: Motion, lasting: Array | None = None, joints: Array | None = None) -> State:
        """State at step 0."""
        return cls(jnp.zeros((), jnp.int32), motion.q0, motion.v0, zero_remainder(motion.q0), lasting, joints)

    def relisted(self, moved: Callable[[Array], Array]) -> State:
        """The state on another neighbour list; ``moved`` maps its arrays of contacts (m,) to the new slots."""
        if self.lasting is None:
            return self
        return self._replace(lasting=moved(self.lasting), friction=jax.tree.map(moved, self.friction))

    def moved(self, shift: Array, v: Array, lasting: Array | None = None) -> State:
        """The next state: displaced by ``shift`` (d,), with velocity v; the sum is compensated below float64."""
        q, low = add_compensated(self.q, shift, self.low)
        return self._replace(n=self.n + 1, q=q, v=v, low=low, lasting=lasting)


def zero_remainder(q: Array) -> Array | None:
    """Initial rounding remainder of a position (d,); None in float64, where positions are not compensated."""
    return None if q.dtype == jnp.float64 else jnp.zeros_like(q)


def add_compensated(q: Array, shift: Array, low: Array | None) -> tuple[Array, Array | None]:
    """q + shift and its rounding remainder, given the previous remainder (Kahan's compensated sum)."""
    if low is None:
        return q + shift, None
    shift = shift + low
    new = q + shift
    return new, shift - (new - q)


class JointInfo(NamedTuple):
    """Facts about the joints in one step: their ``impulse`` (j,), and the ``residual`` max |c| () at its end."""

    impulse: Array
    residual: Array

    @classmethod
    def none(cls, problem: Problem, q: Array, args: Any) -> JointInfo | None:
        """Of no step; None without joints."""
        if problem.joints is None:
            return None
        zero = jnp.zeros((), q.dtype)
        return cls(jnp.zeros(problem.joint_count(zero, q, args), q.dtype), zero)


class Step(NamedTuple):
    """With what a ``scheme`` that locates events makes a step, in all of its parts: a problem under a law in a motion, from a time ``start`` () over a ``length`` (); and the
    ``pieces`` of the force, None where it has none."""

    scheme: Any
    problem: Problem
    law: ContactLaw
    motion: Motion
    start: Array
    length: Array
    pieces: Any = None


class Info(NamedTuple):
    """Facts about one step, for rows and the account.

    ``z`` admissible position (d,), ``chord`` (q_new - q_old)/h (d,), ``impulse`` (m,) of the step, ``acts`` () whether a
    contact has one or, in a free step, would have one; KKT ``residual`` [velocity], solver's ``iterations``, ``status`` bits; of
    ``joints`` and of ``friction``, None where there are none.
    """

    z: Array
    chord: Array
    impulse: Array
    acts: Array
    residual: Array
    iterations: Array
    status: Array
    joints: JointInfo | None = None
    friction: FrictionInfo | None = None

    @classmethod
    def of(cls, found: Reaction, metric: Metric, z: Array, chord: Array, e: Any) -> Info:
        """Info of a step from its reaction, found with restitution ``e``; adds the status of the mass matrix."""
        status = found.status | mass_status(metric)
        if found.impulse.shape[0] > 1:
            # without restitution coupled impulses are the projection of the theory
            status = status & ~jnp.where(jnp.any(e > 0), 0, int(Status.IMPULSES_COUPLED)).astype(jnp.int32)
        return cls(
            z,
            chord,
            found.impulse,
            jnp.any(found.acts),
            found.residual,
            found.iterations,
            status,
            friction=found.friction,
        )

    @classmethod
    def none(cls, q: Array, v: Array, m: int, friction: FrictionInfo | None = None) -> Info:
        """Info of `init`, which makes no step."""
        zero = jnp.zeros((), jnp.int32)
        none = jnp.zeros(m, q.dtype)
        return cls(q, v, none, jnp.zeros((), bool), jnp.zeros((), q.dtype), zero, zero, friction=friction)


class Traits(NamedTuple):
    """Properties of a scheme; static.

    Attributes:
        steps: over how many steps an impact is spread, 1 or 2.
        phase: ``phase(e)``, where within the first of them, in [0, 1], the derivative of an impact with restitution e is taken.
        delay: ``delay(e)``, by how many steps after an impact with restitution e the scheme may be ahead of the motion, and how many behind.
        lag: by how many steps a velocity lags behind the end of its step.
        locates: whether impacts are located within a step. Its plain derivative is then that of the motion, `Scheme.step` and
            `Scheme.free_step` take a time ``length`` in (0, h] after which to end, and the state tells the time of the ``latest`` impact,
            to the scheme's `resolution`.
        order: of positions, across impacts; None where a tolerance sets their error, and h only where rows are.
        restitution: the coefficients that are covered: "each", one for all contacts or one for each; "one"; "none", e = 0.
        approach: whether steps take it from `Problem.restitution_at`: by others a function of the approach speed is refused.
        explicit: the share of the force that is explicit in q, by which a step has a bound of stability; 0 for none.
        damping: whether the force is explicit in the velocity too.
        lists: whether a step asks of contacts only what those of a list of near pairs of bodies have; its state is then a `State`.
        reverse: whether reverse mode goes through a step.
        tells_jumps: whether a step tells of DERIVATIVE_JUMP itself.
        friction: whether steps know friction: of others a problem with friction is refused.
        joints: whether steps keep the problem's joints: those of others are refused.
        resets: whether the state is reset where the motion crosses a surface that the problem states: a ``reset`` is refused by others.
        tangent: the scheme whose step is differentiated for ``sensitivity="corrected"``: of the same values, with a derivative that
            is as near the motion's and costs less. By default itself.
    """

    steps: int = 1
    phase: Callable[[Array], Any] = lambda e: 0.5
    delay: Callable[[Any], tuple[Any, Any]] = lambda e: (1.0, 2.0)
    lag: float = 0.0
    locates: bool = False
    order: int | None = 1
    restitution: str = "each"
    approach: bool = False
    explicit: float = 1.0
    damping: bool = True
    lists: bool = False
    reverse: bool = True
    tells_jumps: bool = False
    joints: bool = False
    friction: bool = False
    resets: bool = False
    tangent: Scheme | None = None


class Scheme(abc.ABC):
    """Base class of schemes: a new one must define `init` and `step`, and may define `free_step`, `traits` and `check`.

    Both are pure functions of one motion's small arrays, in float64 and float32. A step asks its contact law for impulses,
    whichever law it is: so one function gives contact steps, free steps and derivatives.
    """

    @abc.abstractmethod
    def init(self, problem: Problem, law: ContactLaw, motion: Motion) -> tuple[State, Info]:
        """State at n = 0 from initial data, whose velocity is admissible: see `motion_loop.start`."""

    @abc.abstractmethod
    def step(self, problem: Problem, law: ContactLaw, motion: Motion, state: State) -> tuple[State, Info]:
        """State at n + 1."""

    def free_step(self, problem: Problem, motion: Motion, state: State) -> tuple[State, Info]:
        """State at n + 1 without impulses; invalid if ``info.acts`` or a status bit is set."""
        return self.step(problem, Open(), motion, state)

    @property
    def traits(self) -> Traits:
        """Properties of the scheme."""
        return Traits()

    def beside(self, velocity: Array) -> Scheme:
        """The same for a step of which the new ``velocity`` (d,) is known, which may spare iterations."""
        return self

    def resolution(self, motion: Motion) -> Array:
        """By what time () impacts may be off, where they are located: a derivative is not to be trusted at t1 as near to one."""
        return motion.h

    def for_values(self) -> Scheme:
        """The same, where no derivative is asked for and no remark on one: of the same values, by fewer operations."""
        return self

    def observing(self, impacts: int, until: Any) -> Scheme:
        """The same, which writes down the first ``impacts`` in its state (`record`) and ends at a surface (`stops`); ValueError if it cannot."""
        wanted = "save=Events(impacts=...)" if impacts else "until=..."
        raise ValueError(
            f"{wanted}: {type(self).__name__} does not locate events to the accuracy of its rows; give scheme=EventDriven()"
        )

    def check(self, problem: Problem, e: Any, m: int) -> None:
        """Raises ValueError, on the host, if the scheme does not cover the problem or one of its options is wrong.

        By default the restitution must be one that ``traits.restitution`` allows.
        """
        name, covered = type(self).__name__, self.traits.restitution
        if covered == "none" and not is_traced(e) and np.any(np.asarray(e) != 0):
            raise ValueError(
                f"restitution is {np.max(np.asarray(e)):g}, but {name} treats inelastic impacts only: set it to 0, or use "
                "PaoliSchatzman or MoreauJean"
            )
        if covered == "one" and jnp.ndim(e) > 0:
            raise ValueError(
                f"restitution must be one number for {name} (the theory has one coefficient for all contacts); use MoreauJean "
                "for one per contact"
            )
        if jnp.ndim(e) > 0 and jnp.shape(e) != (m,):
            raise ValueError(f"restitution has shape {jnp.shape(e)}: give one number, or one per contact, shape ({m},)")


@dataclass(frozen=True)
class Wrapping(Scheme):
    """A scheme that wraps another one."""

    scheme: Scheme

    @property
    def traits(self) -> Traits:
        return self.scheme.traits

    def resolution(self, motion: Motion) -> Array:
        return self.scheme.resolution(motion)


class Timing(NamedTuple):
    """Timing of a scheme's rows, by which impacts are recognised: its name, lag of velocities in steps, and whether an impact takes two steps.

    It holds no array, so that a `Solution` carries it through jax's transformations.
    """

    scheme: str
    velocity_lag: float
    rebounds: bool

    @classmethod
    def of(cls, scheme: Scheme) -> Timing:
        traits = scheme.traits
        return cls(type(scheme).__name__, float(traits.lag), traits.steps > 1)

    @property
    def steps(self) -> int:
        """Number of steps that an impact takes."""
        return 2 if self.rebounds else 1


def time_of(motion: Motion, state: Any) -> Array:
    """Time () of a state: that of its step, or the one at which the motion has stopped before."""
    t, stop = motion.time(state.n), getattr(state, "stop", None)
    return t if stop is None else jnp.where(stop.time < t, stop.time, t)


def before(motion: Motion) -> Array:
    """A time before any impact of a motion, ()."""
    return lax.stop_gradient(motion.t0 - 3 * motion.h)


def finite(state: State) -> Array:
    """Whether position and velocity are finite numbers, ()."""
    return jnp.all(jnp.isfinite(state.q)) & jnp.all(jnp.isfinite(state.v))


def restitution_status(e: Array, acts: Array) -> Array:
    """Status bit of restitutions (m,) that a function gives for contacts which act (m,)."""
    return as_status(jnp.any(acts & ~((e >= 0) & (e <= 1))), Status.INPUT_OUT_OF_RANGE)


def mass_status(metric: Metric) -> Array:
    """Status bits of the mass matrix."""
    wrong = as_status(~metric.positive(), Status.MASS_NOT_POSITIVE)
    return wrong | as_status(~metric.symmetric(), Status.MASS_NOT_SYMMETRIC)


class Jump(NamedTuple):
    """A jump of the force between two states.

    Attributes:
        size: the jump (d,), zero if the force has none there.
        resolved: whether h resolves its effect, ().
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
        """The largest jump of the force from (q, v) ``before`` to ``after`` at time t; None if it has no switch, known while tracing.

        A staircase that stands for a stiff spring keeps all of its steps but one. Neither end may lie on a switch, where sign(0) = 0 is
        on neither side. A body held by friction that jumps with its velocity keeps a velocity of h times the jump. It is resolved if
        that is small beside the speed of the motion, or beside what the other forces give in ``SOME`` steps: an error of first order.
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
        """The jump between the states ``point(v)`` and ``point(w)`` of two velocities, extended by their distance beyond both."""
        found = cls.between(problem, metric, motion, t, point(2 * v - w), point(2 * w - v))
        assert found is not None
        return found


def state_switches(problem: Problem, t: Array, q: Array, v: Array, args: Any) -> Switches | None:
    """Switches of the force that depend on position or velocity, as a function of (t, q, v, args); None if there are none."""
    operands, marks = (t, q, v, args), (0, STATE, STATE, 0)
    return Switches.of(lambda t, q, v, args: problem.generalised_force(t, q, v, args), operands, marks)


def metric_norm(x: Array, y: Array) -> Array:
    """Norm () of x (d,) in a metric, whose product with x is y (d,)."""
    return jnp.sqrt(jnp.abs(x @ y))


def unstable(traits: Traits, problem: Problem, motion: Motion, state: State) -> Array:
    """Whether h is beyond the stability bound of an explicit force, tested along the present velocity, ().

    An unstable state alternates, (q, v) -> (q - h v, -v). The acceleration changes by (h K + 2 C) v under that, with stiffness K and
    damping C; h times this is below 4 v in a stable step, in the kinetic metric and in every direction. A force that accelerates the motion
    as strongly multiplies it by five in a step, which is not resolved either. Both evaluations use the same time, so that a force that varies
    in time does not count. Nor does a jump of the force that h resolves (`Jump`). Velocities and changes within the round-off of positions
    and forces are ignored: a body at rest has only those, and native code rounds sums differently from XLA.
    """
    if traits.explicit <= 0:
        return jnp.zeros((), bool)
    h, args = motion.h, motion.args
    n, q, v = state.n, state.q, state.v
    t = motion.time(n)
    metric = Metric.at(problem, q, args, t)
    # three quarters of the way there: neither at the mirror image nor at rest, where forces are even or singular
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


def gradient_status(
    law: ContactLaw,
    problem: Problem,
    metric: Metric,
    contacts: Contacts,
    t: Array,
    q: Array,
    shift: Array,
    acting: Array,
    args: Any,
) -> Array:
    """Status bit of acting contacts (m,) whose gradient does not describe the gap over the displacement ``shift`` (d,), by half or more.

    The gradient vanishes there, or the step is as long as the radius of curvature.
    """
    # of listed bodies another look at all gaps would cost as much as a step; how far they overlap is told
    if not law.solves or problem.is_local or is_flat(problem, t, q, args):
        return jnp.zeros((), jnp.int32)
    eps = 1e3 * jnp.finfo(q.dtype).eps
    switches = gap_switches(problem, t, q, args)
    # a kink on the way is no curvature: the gap goes on as it is here
    gaps = problem.gaps if switches is None else partial(switches.frozen, switches.sides(t, q, args))
    rest = gaps(t, q + shift, args) - contacts.gap - contacts.velocity(shift)
    reach = jnp.sqrt(contacts.diagonal() * (shift @ metric.times(shift)))
    unresolved = jnp.abs(rest) > 0.5 * reach + eps * (jnp.abs(contacts.gap) + contacts.velocity_terms(q))
    return as_status(jnp.any(unresolved & acting), Status.GRADIENT_VANISHES)


def mean_acceleration(
    problem: Problem, metric: Metric, t: Array, h: Array, q: Array, v: Array, args: Any, count: int
) -> Array:
    """(1/h) times the integral over [t, t + h] of M^-1 g(s, q, v) ds, by quadrature in time."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    force = jnp.zeros_like(q)
    for c, w in zip(nodes, weights, strict=True):
        force = force + float(0.5 * w) * problem.generalised_force(t + float(0.5 * (1 + c)) * h, q, v, args)
    return metric.solve(force)
