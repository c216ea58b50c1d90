"""Interface of a scheme: `init` and `step`, pure functions of the arrays of one motion;
and helpers that schemes share."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike, DTypeLike

from ..jaxtools.argument_checks import is_traced
from ..jaxtools.array_types import B0, F0, I0, B_m, F_d, F_j, F_m
from ..jaxtools.empty import nothing
from ..switches.switches import gap_switches
from .contact.laws import ContactLaw, Open, Reaction
from .contacts import Contacts
from .friction import FrictionInfo
from .impact_law import require_newton
from .linearisation import Metric
from .motion import At, Motion
from .problem import Problem
from .status import Status, as_status

if TYPE_CHECKING:
    from .schemes.event_driven import EventDriven
    from .trials.stops import Until

S = TypeVar("S")  # the state of a scheme between steps

FACING = -0.99  # cosine of the angle between contacts that face each other
SLIGHT = 0.1  # fraction of the speed of a motion by which a resolved jump of the force may change it in a step


class State(NamedTuple):
    """State between steps: step number n (t = t0 + n h), position q (d,), and velocity v (d,) over the last step.

    Attributes:
        low: rounding remainder of the compensated sum q (d,), kept in precisions below float64, where a step may be
            smaller than the resolution of q; None in float64.
        lasting: mask (m,) of contacts that the next step treats as active whatever their gaps;
            None for schemes that select by gaps only.
        joints: whether any two gaps may be opposite sides of one bilateral constraint, as f >= 0 and -f >= 0 are, ().
        friction: modes and impulses of the contacts in the previous step; None unless static friction,
            whose law needs them.
    """

    n: I0
    q: F_d
    v: F_d
    low: F_d | None = None
    lasting: B_m | None = None
    joints: B0 | None = None
    friction: FrictionInfo | None = None

    @classmethod
    def start(cls, motion: Motion, lasting: B_m | None = None, joints: B0 | None = None) -> State:
        """Makes the state at step 0."""
        return cls(jnp.zeros((), jnp.int32), motion.q0, motion.v0, zero_remainder(motion.q0), lasting, joints)

    def relisted(self, moved: Callable[[Array], Array]) -> State:
        """Returns the state for a rebuilt neighbour list; ``moved`` maps arrays of contacts (m,) from the
        old slots to the new ones."""
        lasting, friction = jax.tree.map(moved, (self.lasting, self.friction))
        return self._replace(lasting=lasting, friction=friction)

    def moved(self, shift: F_d, v: F_d, lasting: B_m | None = None) -> State:
        """Returns the next state: displaced by ``shift`` (d,), with velocity v;
        the sum is compensated in precisions below float64."""
        q, low = add_compensated(self.q, shift, self.low)
        return self._replace(n=self.n + 1, q=q, v=v, low=low, lasting=lasting)

    def remembering(self, friction: FrictionInfo) -> State:
        """Returns the state with what contacts did in the step, if the law of friction needs it."""
        return self if self.friction is None else self._replace(friction=lax.stop_gradient(friction))


def zero_remainder(q: F_d) -> F_d | None:
    """Returns the initial rounding remainder of a position (d,); None in float64,
    where the sum of displacements is not compensated."""
    return None if q.dtype == jnp.float64 else jnp.zeros_like(q)


def add_compensated(q: F_d, shift: F_d, low: F_d | None) -> tuple[F_d, F_d | None]:
    """Returns q + shift and its new rounding remainder, given the previous remainder ``low``
    (Kahan's compensated sum)."""
    if low is None:
        return q + shift, None
    shift = shift + low
    new = q + shift
    return new, shift - (new - q)


class JointInfo(NamedTuple):
    """Report of one step on the joints c(t, q) = 0: their ``impulse`` (j,) in the step,
    and the ``residual`` |c| (j,) at its end."""

    impulse: F_j
    residual: F_j

    @classmethod
    def none(cls, problem: Problem, q: F_d, args: object) -> JointInfo:
        """Zero impulses and residuals, to start sums from."""
        zero = jnp.zeros(problem.joint_count(jnp.zeros((), q.dtype), q, args), q.dtype)
        return cls(zero, zero)

    @classmethod
    def without_joints(cls, dtype: DTypeLike) -> JointInfo:
        """The report on no joints."""
        return cls(nothing(dtype, 0), nothing(dtype, 0))


class Step(NamedTuple):
    """Constant inputs of one step of a ``scheme`` that locates events: problem, contact law and motion; the time
    ``start`` () at which the step begins and its ``length`` (); and the ``regime``, what it asks of contacts and of the
    pieces of a force that jumps (`regimes`), once that is known."""

    scheme: EventDriven
    problem: Problem
    law: ContactLaw
    motion: Motion
    start: F0
    length: F0
    regime: Any = None


class Info(NamedTuple):
    """Report of one step, from which the saved rows and the `Account` of the motion are made.

    ``z`` admissible position (d,), ``chord`` (q_new - q_old)/h (d,), ``impulse`` (m,) of the contacts in the step,
    ``acts`` () whether a contact has an impulse or, in a free step, would have one; KKT ``residual`` [velocity],
    solver's ``iterations``, ``status`` bits; the reports on ``joints`` and on ``friction``; the estimated ``error`` ()
    of the step in units of the tolerance, from schemes that estimate it (`Traits.tells_error`), else None; ``remark``
    bits () of a free step, which do not make it invalid as those of ``status`` do, or None; the time ``ended`` () at
    which a step that did not reach its end failed, NaN for others, and the number ``near`` () of the event that it met
    last (`status.event_name`), or None.
    """

    z: F_d
    chord: F_d
    impulse: F_m
    acts: B0
    residual: F0
    iterations: I0
    status: I0
    joints: JointInfo
    friction: FrictionInfo
    error: Any = None
    remark: I0 | None = None
    ended: Any = None
    near: I0 | None = None

    @classmethod
    def of(cls, found: Reaction, metric: Metric, z: F_d, chord: F_d, e: Array) -> Info:
        """Makes the info of a step from ``found``, the reaction of its contact law with restitution ``e``; adds the
        status of the mass matrix.

        ``z``, ``chord`` (d,): as in the class.
        """
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
            JointInfo.without_joints(z.dtype),
            found.friction,
        )

    @classmethod
    def none(cls, q: F_d, v: F_d, m: int, friction: FrictionInfo | None = None) -> Info:
        """Makes the info of m contacts without impulses, with z = q and chord = v: that of `Scheme.init`,
        which makes no step.

        ``friction``: by default that of contacts that do not rub.
        """
        zero = jnp.zeros((), jnp.int32)
        none = jnp.zeros(m, q.dtype)
        joints = JointInfo.without_joints(q.dtype)
        friction = FrictionInfo.none(m, 0, q.dtype) if friction is None else friction
        return cls(q, v, none, jnp.zeros((), bool), jnp.zeros((), q.dtype), zero, zero, joints, friction)


class Traits(NamedTuple):
    """Properties of a scheme that hold for all its steps; static.

    Attributes:
        steps: number of steps over which an impact is spread, 1 or 2.
        phase: ``phase(e)`` in [0, 1], the fraction of the first of these steps at which the derivative of an impact
            with restitution e is taken.
        delay: ``delay(e)``, (ahead, behind): by how many steps at most an impact with restitution e leaves the scheme
            ahead of the exact motion, and behind it.
        lag: by how many steps a velocity lags behind the end of its step.
        locates: whether impacts are located within a step. The plain derivative of the scheme is then that of the
            motion, `Scheme.step` and `Scheme.free_step` take a time ``length`` in (0, h] after which to end, and the
            state holds the time of the ``latest`` impact, to the scheme's `resolution`. Position and velocity of a row
            are those at its time: interpolation and tables of impacts take them so.
        order: order of convergence of positions across impacts; None where a tolerance sets their
            error and h only spaces the rows.
        restitution: the coefficients that are covered: "each", one for all contacts or one for each; "one"; "none",
            e = 0.
        approach: whether restitution may be a function of the approach speed (`Problem.restitution_at`);
            otherwise such a problem is refused.
        impact_laws: whether the scheme asks the problem's `ImpactLaw`; otherwise only Newton's is taken.
        explicit: fraction of the force that is explicit in q, which gives a step a stability bound; 0 for none.
        damping: whether the force is explicit in the velocity too.
        lists: whether a step works with the contacts of a neighbour list (`jaximpact.bodies`), which have no (m, m)
            matrices; its state is then a `State`.
        reverse: whether reverse-mode differentiation goes through a step.
        tells_jumps: whether a step itself sets DERIVATIVE_JUMP.
        tells_error: whether a step estimates its error, `Info.error`; the sum over all steps is `Solution.error`.
        friction: directions of slip at a contact up to which steps include friction, 1 in the plane and 2 in space, 0
            for none; more are refused.
        joints: whether steps satisfy the problem's joints; otherwise a problem with joints is refused.
        kinks: whether kinks of joints and jumps of slip velocities are located.
        resets: whether the state is reset where the motion crosses a surface that the problem states;
            otherwise a ``reset`` is refused.
        tangent: the scheme whose step is differentiated for ``sensitivity="corrected"``, with the same values and a
            derivative that is as accurate and costs less. By default the scheme itself.
    """

    steps: int = 1
    phase: Callable[[Array], ArrayLike] = lambda e: 0.5
    delay: Callable[[Array], tuple[ArrayLike, ArrayLike]] = lambda e: (1.0, 2.0)
    lag: float = 0.0
    locates: bool = False
    order: int | None = 1
    restitution: str = "each"
    approach: bool = False
    impact_laws: bool = False
    explicit: float = 1.0
    damping: bool = True
    lists: bool = False
    reverse: bool = True
    tells_jumps: bool = False
    tells_error: bool = False
    joints: bool = False
    friction: int = 0
    kinks: bool = False
    resets: bool = False
    tangent: Scheme | None = None

    @property
    def by_tolerance(self) -> bool:
        """Whether a tolerance sets the error, and h only spaces the rows."""
        return self.order is None


class Scheme(abc.ABC, Generic[S]):
    """Base class of schemes: a new one must define `init` and `step`, and may define `free_step`, `traits` and `check`.

    Both are pure functions of the arrays of one motion, in float64 and float32. A step gets its impulses from the
    contact law that it is given, so that the same `step` makes contact steps,
    free steps and the steps that are differentiated.
    """

    @abc.abstractmethod
    def init(self, problem: Problem, law: ContactLaw, motion: Motion) -> tuple[S, Info]:
        """Makes the state at n = 0 from initial data whose velocity is admissible
        (`simulation.motion_loop.start` projects it)."""

    @abc.abstractmethod
    def step(self, problem: Problem, law: ContactLaw, motion: Motion, state: S) -> tuple[S, Info]:
        """Makes one step: returns the state at n + 1 and its info."""

    def free_step(self, problem: Problem, motion: Motion, state: S) -> tuple[S, Info]:
        """Makes one step without impulses; the result is invalid if ``info.acts`` or a status bit is set."""
        return self.step(problem, Open(), motion, state)

    @property
    def traits(self) -> Traits:
        """Properties of the scheme."""
        return Traits()

    def beside(self, velocity: F_d) -> Scheme:
        """Returns a copy for a step whose new ``velocity`` (d,) is already known,
        so that iterations of the step may start from it."""
        return self

    def resolution(self, motion: Motion) -> F0:
        """Bounds the error () of the times of located impacts; a derivative at t1 is not to be trusted
        within that time of an impact."""
        return motion.h

    def time_errors(self, motion: Motion, state: S, contacts: Contacts, speed: F_m) -> F_m:
        """Bounds the errors (m,) of the times at which ``contacts`` meet at gap velocities ``speed`` (m,) near a state;
        by default the `resolution`."""
        return jnp.broadcast_to(self.resolution(motion), speed.shape)

    def on_piece(self, problem: Problem, motion: Motion, state: S) -> Problem:
        """Returns the problem with its functions on the sides of their switches on which a state is,
        for schemes that locate crossings."""
        return problem

    def for_values(self) -> Scheme:
        """Returns the scheme for runs without derivatives or status bits about them:
        the same values by fewer operations."""
        return self

    def observing(self, impacts: int, until: Until | None, kinds: tuple[str, ...]) -> Scheme:
        """Returns the scheme that also records the first ``impacts``, events of some ``kinds``, in its state
        (`impact_record`) and ends where ``until`` says (`stops`).

        Raises ValueError if the scheme cannot.
        """
        wanted = "save=Events(impacts=...)" if impacts else "until=..."
        raise ValueError(
            f"{wanted}: {type(self).__name__} does not locate events to the accuracy of its rows; give "
            "scheme=EventDriven()"
        )

    def check(self, problem: Problem, e: ArrayLike, m: int) -> None:
        """Raises ValueError, on the host, if the scheme does not cover the problem or one of its options is wrong.

        By default the restitution ``e`` must be one that ``traits.restitution`` allows; ``m``: number of contacts.
        """
        name, covered = type(self).__name__, self.traits.restitution
        if covered == "none" and not is_traced(e) and np.any(np.asarray(e) != 0):
            raise ValueError(
                f"restitution is {np.max(np.asarray(e)):g}, but {name} treats inelastic impacts only: set it to 0, or "
                "use "
                "PaoliSchatzman or MoreauJean"
            )
        if not self.traits.impact_laws and covered != "none":
            require_newton(
                problem.impact_law, f"{name} (use MoreauJean, EventDriven or EventCorrected for another law)"
            )
        if problem.listed and problem.rubs:
            require_newton(problem.impact_law, "friction of listed bodies (one dense function of gaps takes any)")
        if covered == "one" and jnp.ndim(e) > 0:
            raise ValueError(
                f"restitution must be one number for {name} (the theory has one coefficient for all contacts); use "
                "MoreauJean "
                "for one per contact"
            )
        if jnp.ndim(e) > 0 and jnp.shape(e) != (m,):
            raise ValueError(f"restitution has shape {jnp.shape(e)}: give one number, or one per contact, shape ({m},)")


@dataclass(frozen=True)
class Wrapping(Scheme[S]):
    """Base class of schemes that wrap another scheme."""

    scheme: Scheme

    @property
    def traits(self) -> Traits:
        return self.scheme.traits

    def resolution(self, motion: Motion) -> F0:
        return self.scheme.resolution(motion)

    def on_piece(self, problem: Problem, motion: Motion, state: S) -> Problem:
        return self.scheme.on_piece(problem, motion, state)


class Timing(NamedTuple):
    """Timing of a scheme's rows, by which a result recognises impacts.

    It holds no array, so that a `Solution` carries it through jax's transformations.

    Attributes:
        scheme: the name of the scheme's class, for messages.
        velocity_lag: by how many steps velocities lag.
        rebounds: whether an impact takes two steps.
        locates: whether impacts are located, so that a row has the position and the velocity of
            its own time (`Traits.locates`).
        by_tolerance: whether a tolerance sets the error, whatever the distance of the rows (``Traits.order`` is None).
    """

    scheme: str
    velocity_lag: float
    rebounds: bool
    locates: bool
    by_tolerance: bool

    @classmethod
    def of(cls, scheme: Scheme) -> Timing:
        traits = scheme.traits
        return cls(type(scheme).__name__, float(traits.lag), traits.steps > 1, traits.locates, traits.by_tolerance)

    @property
    def steps(self) -> int:
        """Number of steps that an impact takes."""
        return 2 if self.rebounds else 1


def time_of(motion: Motion, state: State) -> F0:
    """Returns the time () of a state: that of its step, or the time at which the motion has stopped,
    if that is earlier."""
    t, stop = motion.time(state.n), getattr(state, "stop", None)
    return t if stop is None else jnp.where(stop.time < t, stop.time, t)


def time_before_start(motion: Motion) -> F0:
    """Returns the time () three steps before the start of a motion, which stands for that of the latest
    impact while there was none."""
    return lax.stop_gradient(motion.t0 - 3 * motion.h)


def finite(state: State) -> B0:
    """Tests whether position and velocity are finite, ()."""
    return jnp.all(jnp.isfinite(state.q)) & jnp.all(jnp.isfinite(state.v))


def restitution_status(e: Array, acts: B_m) -> I0:
    """Returns INPUT_INVALID for restitutions e (m,) outside [0, 1] at contacts that ``acts`` (m,) marks."""
    return as_status(jnp.any(acts & ~((e >= 0) & (e <= 1))), Status.INPUT_INVALID)


def mass_status(metric: Metric) -> I0:
    """Returns the status bits of a mass matrix that is not positive definite or not symmetric."""
    wrong = as_status(~metric.positive(), Status.MASS_INVALID)
    return wrong | as_status(~metric.symmetric(), Status.MASS_INVALID)


def gradient_status(
    law: ContactLaw, problem: Problem, metric: Metric, contacts: Contacts, at: At, shift: F_d, acting: B_m
) -> I0:
    """Returns CONTACTS_NOT_SOLVED if the linearisation of a gap of the ``acting`` contacts (m,) fails over the
    displacement ``shift`` (d,) from the place ``at``, where it was made.

    It fails if its error exceeds half of the largest change that the linearised gap has over any displacement of that
    length: the gradient vanishes, or the displacement is as long as the radius of curvature.
    """
    t, q, _, args = at
    # with neighbour lists, evaluating all gaps once more would cost as much as a step; the result reports their
    # overlaps
    if not law.solves or not problem.gaps.curves(t, q, args):
        return jnp.zeros((), jnp.int32)
    eps = 1e3 * jnp.finfo(q.dtype).eps
    switches = gap_switches(problem, t, q, args)
    # a kink on the way is no curvature: the gap is continued smoothly from its side at q
    gaps = problem.gaps if switches is None else partial(switches.frozen, switches.sides(t, q, args))
    rest = gaps(t, q + shift, args) - contacts.gap - contacts.velocity(shift)
    reach = jnp.sqrt(contacts.diagonal() * (shift @ metric.times(shift)))
    unresolved = jnp.abs(rest) > 0.5 * reach + eps * (jnp.abs(contacts.gap) + contacts.velocity_terms(q))
    return as_status(jnp.any(unresolved & acting), Status.CONTACTS_NOT_SOLVED)


def mean_acceleration(problem: Problem, metric: Metric, at: At, h: F0, count: int) -> F_d:
    """Returns (1/h) times the integral over [t, t + h] of M^-1 g(s, q, v) ds (d,),
    by Gauss-Legendre quadrature with ``count`` nodes."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    force = jnp.zeros_like(at.q)
    for c, w in zip(nodes, weights, strict=True):
        later = at._replace(t=at.t + float(0.5 * (1 + c)) * h)
        force = force + float(0.5 * w) * problem.generalised_force(*later)
    return metric.solve(force)
