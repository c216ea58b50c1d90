"""Contact laws, as a step uses them: impulses for gap velocities, or the projection of a position.

A scheme calls any law in the same way: `solved.Solved` computes the impulses, `Open` gives none and reports where one
should act, `Held` keeps given contacts closed, so that differentiating a step gives the
derivative with the active set fixed.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from ...jaxtools import linalg
from ...jaxtools.array_types import F0, I0, B_m, F_d, F_m, F_mr
from ..contacts import Contacts
from ..friction import FrictionInfo
from ..impact_law import NO_PUSH
from ..linearisation import Metric
from ..problem import Problem
from .friction.cones import OPEN, ConeProblem, length


class Reaction(NamedTuple):
    """Result of a contact law in a step: velocity jump, impulses and their accuracy.

    ``jump`` velocity jump M^-1 G' L (d,); ``impulse`` L (m,); ``acts`` (m,) contacts that have an impulse or, with
    `Open`, would be violated without one; ``residual`` largest KKT violation [velocity]; ``iterations`` of the solver,
    summed over linearisations; ``status`` bits; ``friction``.
    """

    jump: F_d
    impulse: F_m
    acts: B_m
    residual: F0
    iterations: I0
    status: I0
    friction: FrictionInfo

    @classmethod
    def exact(cls, jump: F_d, impulse: F_m, acts: B_m, friction: FrictionInfo | None = None) -> Reaction:
        """Makes a reaction with residual 0, no iterations and no status bits; ``friction``:
        by default that of contacts that do not rub."""
        zero = jnp.zeros((), jnp.int32)
        friction = FrictionInfo.none(len(acts), 0, jump.dtype) if friction is None else friction
        return cls(jump, impulse, acts, jnp.zeros((), jump.dtype), zero, zero, friction)

    def then(self, second: Reaction) -> Reaction:
        """Returns the reaction of two stages together; contacts do what they do in the second."""
        friction = second.friction._replace(impulse=self.friction.impulse + second.friction.impulse)
        acts, residual = self.acts | second.acts, jnp.maximum(self.residual, second.residual)
        counts = self.iterations + second.iterations, self.status | second.status
        return Reaction(self.jump + second.jump, self.impulse + second.impulse, acts, residual, *counts, friction)

    @classmethod
    def none(cls, d: int, acts: B_m, dtype: DTypeLike, friction: FrictionInfo | None = None) -> Reaction:
        """Makes a reaction without impulses, in which contacts ``acts`` (m,) should have one;
        ``friction`` as in `exact`."""
        return cls.exact(jnp.zeros(d, dtype), jnp.zeros(acts.shape, dtype), acts, friction)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Target:
    """A position W to be projected onto f(time, .) >= 0: W = base + increment, (d,) each;
    the result is Z = W + scale * jump.

    ``scale`` is a time, h or h/(1+e). ``normal`` says along which gradients W is projected. "implicit": those at Z, M
    (Z - W) = scale * G(Z)' L, the projection in the metric. "explicit": those at the base, M (Z - W) = scale * G(base)'
    L, with the same constraint f(Z) >= 0 (as SHAKE; of second order in lasting contact). "geodesic": for one
    constraint, along a geodesic of the metric.
    """

    time: F0
    base: F_d
    increment: F_d
    scale: F0
    normal: str = field(default="implicit", metadata={"static": True})

    def point(self, jump: F_d) -> F_d:
        """Returns the position Z (d,) for a velocity jump (d,); the small terms are added first,
        which keeps their accuracy."""
        return self.base + (self.increment + self.scale * jump)


class ContactLaw(abc.ABC):
    """Base class of contact laws. ``solves``: whether the law solves the contact problem,
    so that its status is meaningful."""

    solves: ClassVar[bool] = False

    @abc.abstractmethod
    def velocity(
        self, contacts: Contacts, offset: F_m, candidates: B_m | None = None, push: Array = NO_PUSH
    ) -> Reaction:
        """Solves 0 <= L - push _|_ A L + offset >= 0 for the impulses L of the contacts ``candidates`` (m,) bool,
        by default all; others get none.

        ``offset`` (m,): the gap velocities without impulses, restitution included; ``push`` (m,) >= 0, or of size 0 for
        none: least impulses, which a law of impact may ask for.
        """

    @abc.abstractmethod
    def position(self, problem: Problem, metric: Metric, target: Target, args: object) -> Reaction:
        """Projects a target onto the admissible positions, in a constant metric."""

    def beginning(self, guess: F_mr) -> ContactLaw:
        """Returns a copy whose solver starts from the impulses ``guess`` (m, 1 + k)."""
        return self

    def as_constant(self) -> ContactLaw:
        """Returns a copy for a step whose derivative the caller replaces,
        so that impulses of listed contacts with friction need none."""
        return self

    def resolution(self, pushed: F_m) -> Array | float:
        """Returns the magnitude () up to which a gap velocity may be an error that the solver's tolerance allows;
        zero for exact laws.

        ``pushed`` (m,): change of each gap velocity by the contact's own impulse alone, A_aa L_a.
        """
        return 0.0

    def acting(self, contacts: Contacts, offset: F_m, candidates: B_m) -> tuple[B_m, I0]:
        """Returns the mask (m,) of the contacts to which `velocity` gives impulses, and status bits (),
        without derivatives.

        Schemes that compute the impulses themselves call it: a derivative then keeps only
        this selection of contacts fixed.
        """
        found = self.velocity(*lax.stop_gradient((contacts, offset)), candidates)
        return found.acts, found.status


def restrict_problem(contacts: Contacts, offset: F_m, candidates: B_m | None) -> tuple[Contacts, F_m]:
    """Restricts a contact problem to the contacts ``candidates`` (m,), None for all: the others get gradient zero and a
    positive offset, and stay open."""
    if candidates is None:
        return contacts, offset
    return contacts.masked(candidates), jnp.where(candidates, offset, jnp.max(jnp.abs(offset), initial=0.0))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Open(ContactLaw):
    """Law without impulses; ``acts`` of its reaction marks the contacts that are, or may be,
    violated without an impulse.

    It is used for free steps, and costs an evaluation of the gaps. Expensive gaps are evaluated at the start of the
    step only, with a bound on how far they can close in the step.
    """

    def velocity(
        self, contacts: Contacts, offset: F_m, candidates: B_m | None = None, push: Array = NO_PUSH
    ) -> Reaction:
        acts = ~(offset >= 0)  # NaN acts
        acts = acts if candidates is None else acts & candidates
        return Reaction.none(contacts.shape[1], acts, offset.dtype, contacts.slip.still())

    def position(self, problem: Problem, metric: Metric, target: Target, args: object) -> Reaction:
        base, increment = target.base, target.increment
        closing = problem.gaps.closing(target.time, base, increment, args)
        return Reaction.none(len(base), closing, base.dtype)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Held(ContactLaw):
    """Law with known impulses, for derivatives: it differentiates a step while the closed contacts stay closed.

    ``closed`` (m,): mask of these contacts; ``impulse`` (m,): their impulses; ``point`` (d,): the known projection Z;
    ``friction``: modes and tangential impulses of contacts that rub. The derivative is that of the projection onto
    {f_a = 0, a closed}, by one Newton step from the known solution. If no contact is closed,
    it is that of the free step.
    """

    closed: B_m
    impulse: F_m
    point: F_d
    friction: FrictionInfo | None = None

    def velocity(
        self, contacts: Contacts, offset: F_m, candidates: B_m | None = None, push: Array = NO_PUSH
    ) -> Reaction:
        # steps are differentiated without restitution, which `saltation` adds
        if contacts.slip.k:
            return self._with_friction(contacts, offset, candidates)
        contacts, offset = restrict_problem(contacts, offset, candidates)
        velocity = offset + contacts.velocity(contacts.jump(self.impulse))
        return self._found(contacts, contacts.balance(), contacts.diagonal(), velocity)

    def _with_friction(self, contacts: Contacts, offset: F_m, candidates: B_m | None) -> Reaction:
        """Returns what `velocity` does, for contacts with friction, by one Newton step from the known impulses.

        Contacts keep their modes in it; in the plane, and where slip comes to rest in the step,
        they also keep their directions of slip.
        """
        known: Any = self.friction
        cones = ConeProblem.of(contacts, offset)
        closed = self.closed if candidates is None else self.closed & candidates
        mode = jnp.where(closed & (contacts.diagonal() > 0), known.mode, OPEN)
        start = jnp.concatenate([self.impulse[:, None], known.impulse], axis=1)
        start = lax.stop_gradient(jnp.where((mode == OPEN)[:, None], 0, start))
        slip_direction, in_space = known.direction, known.direction.shape[1] > 1
        if in_space:
            # slip that reverses may rest at the end of the step, up to rounding, which has no direction
            slip, noise = cones.velocity(start)[:, 1:], 1e3 * jnp.finfo(offset.dtype).eps * length(cones.offset[:, 1:])
            slip_direction = lax.stop_gradient(jnp.where(length(slip) > noise, 0, slip_direction))
        x = cones.in_modes(start, mode, slip_direction, turning=in_space)
        x = start + (x - lax.stop_gradient(x))
        friction = known._replace(impulse=x[:, 1:])
        return Reaction.exact(cones.response @ x.ravel(), x[:, 0], mode != OPEN, friction)

    def position(self, problem: Problem, metric: Metric, target: Target, args: object) -> Reaction:
        w = target.base + target.increment
        z = w + lax.stop_gradient(self.point - w)
        there = problem.gaps.at_instant(metric, target.time, z, args)
        explicit = target.normal == "explicit"
        contacts = problem.gaps.at_instant(metric, target.time, target.base, args) if explicit else there
        # z again, now with the derivative of the jump that the known impulse makes
        shift = target.scale * contacts.jump(self.impulse)
        gap = there.gap + lax.stop_gradient(there).velocity(shift - lax.stop_gradient(shift))
        if not explicit:
            return self._found(contacts, contacts.balance(), contacts.diagonal(), gap / target.scale)
        rows, response = there.jacobian, contacts.response
        balance = lambda offset, closed: linalg.solve_among(rows, response, -offset, closed)
        return self._found(contacts, balance, jnp.sum(rows * response.T, axis=1), gap / target.scale)

    def _found(self, contacts: Contacts, balance: Callable, diagonal: F_m, velocity: F_m) -> Reaction:
        closed = self.closed & (diagonal > 0)
        change = balance(velocity, closed)
        impulse = self.impulse + (change - lax.stop_gradient(change))
        return Reaction.exact(contacts.jump(impulse), impulse, closed)
