"""Contact law by a contact solver: sets up linearised problems, checks their residuals,
and differentiates the solution.

Curved constraints are handled by successive linearisations (SQP) around the projected position Z. The unknowns are the
velocity jump and the impulse, not Z: no numbers as large as positions are subtracted, which keeps float32 usable and
the residual in velocity units. Of many constraints only a working set is passed to the solver, chosen again for each
linearisation; all gaps are checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...jaxtools.array_types import B0, F0, I0, B_m, F_d, F_m, F_md, F_mk, F_mr, F_s, I_m, I_s
from ...jaxtools.jacobians import SMALL
from ..contacts import Contacts
from ..friction import FrictionInfo, remembered
from ..impact_law import NO_PUSH
from ..linearisation import Metric
from ..problem import Problem
from ..status import Status, as_status
from .friction.cones import ConeProblem, dependent, fastest, jams
from .friction.pushed_contacts import impulses_beyond
from .friction.static_friction import cones_in_act, slip_before, slip_resolution
from .geodesic import project_geodesic
from .implicit_derivative import reaction
from .laws import ContactLaw, Reaction, Target, restrict_problem
from .list_friction import solve_friction_of_list
from .solver import ContactSolver, closing_speed, complementarity, resolved

# times the velocities of a problem with friction: a guess with larger impulses, as velocities, is not used
COMPARABLE = 16


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Solved(ContactLaw):
    """Law whose impulses are computed by a contact solver; the derivative keeps the acting contacts closed."""

    solver: ContactSolver
    guess: F_mr | None = None  # impulses (m, 1 + k) to begin with
    couples: bool = field(default=True, metadata={"static": True})  # whether IMPULSES_COUPLED is set
    # whether a small working set is tried first, which is faster, but makes the program longer
    small_sets: bool = field(default=True, metadata={"static": True})
    constant: bool = field(default=False, metadata={"static": True})  # with friction, see `as_constant`

    solves: ClassVar[bool] = True

    def velocity(
        self, contacts: Contacts, offset: F_m, candidates: B_m | None = None, push: Array = NO_PUSH
    ) -> Reaction:
        """Solves the contact problem on a working set, and again on a larger one while a
        contact outside it is violated."""
        if contacts.slip.k:
            if contacts.dense:
                return self._with_friction(contacts, offset, candidates, push)
            return solve_friction_of_list(self.solver, self.guess, contacts, offset, candidates, self.constant)
        if push.size:
            jump = contacts.jump(push)
            found = self.velocity(contacts, offset + contacts.velocity(jump), candidates)
            impulse = found.impulse + push
            return found._replace(jump=found.jump + jump, impulse=impulse, acts=impulse > 0)
        contacts, offset = restrict_problem(contacts, offset, candidates)
        m, d = contacts.shape
        if m == 0:
            return Reaction.none(d, offset < 0, offset.dtype)
        kind = _Velocities if contacts.dense else _ManyVelocities
        problem = kind(self.solver, contacts, offset, self.normal_guess, self.couples, self.small_sets)
        return reaction(problem.residual, problem.solve, d, m, offset.dtype, contacts.dense, contacts)

    def _with_friction(self, contacts: Contacts, offset: F_m, candidates: B_m | None, push: Array) -> Reaction:
        """Solves the contact problem on Coulomb's cones; its derivative keeps the modes of the contacts."""
        candidates = jnp.ones(contacts.shape[0], bool) if candidates is None else candidates
        slip = contacts.slip
        cones = ConeProblem.of(contacts, offset).over(slip.scale)
        matrix = cones.delassus()
        largest = fastest(cones.offset, candidates)
        least = 256 * jnp.finfo(offset.dtype).eps * largest
        allowed = lax.stop_gradient(jnp.maximum(self.solver.allowed(largest), least))  # twice what it allows itself
        guess = jnp.zeros_like(cones.offset)
        if self.guess is not None:
            # the impulses of an impact are so much larger than those after it that their rounding would dominate
            known = self.guess if slip.scale is None else self.guess.at[:, 0].multiply(slip.scale)
            pushed = jnp.max(cones.scales()[:, None] * jnp.abs(known))
            guess = jnp.where(pushed <= COMPARABLE * largest, known, 0)

        def solve(cones: ConeProblem) -> tuple[F_mr, ConeProblem, I0, F0]:
            one = partial(self.solver.frictional_impulses, tolerance=0.5 * allowed)
            pushes = push if slip.scale is None or not push.size else push * slip.scale
            return impulses_beyond(one, cones, matrix, pushes, guess, candidates)

        def modes(cones: ConeProblem, _: object) -> tuple[I_m, F_mk, None]:
            x, cones, *_others = solve(cones)
            return *cones.modes(x, least), None

        breaks, least = None, slip_resolution(allowed, largest, cones.static)
        if cones.static is not None:
            cones, breaks, _ = cones_in_act(cones, slip_before(slip), modes)
        x, cones, iterations, residual = solve(cones)
        acts = x[:, 0] > 0
        mode, slipping = cones.modes(x, least)
        status = as_status(~(residual <= resolved(matrix, x, allowed)), Status.CONTACTS_NOT_SOLVED)
        status |= as_status(jnp.any(acts & jams(matrix, cones.friction)), Status.FRICTION_JAMMED)
        redundant = dependent(*lax.stop_gradient((matrix, cones.modes(x)[0], cones.friction)))
        status |= as_status(redundant, Status.IMPULSES_NOT_UNIQUE)
        friction = remembered(slip, FrictionInfo(x[:, 1:], mode, slipping), breaks)
        normal = x[:, 0] if slip.scale is None else x[:, 0] / slip.scale
        return Reaction(cones.response @ x.ravel(), normal, acts, residual, iterations, status, friction)

    def position(self, problem: Problem, metric: Metric, target: Target, args: object) -> Reaction:
        time, base = target.time, target.base
        m, d = problem.count(time, base, args), base.shape[0]
        if m == 0:
            return Reaction.none(d, jnp.zeros(0, bool), base.dtype)
        if target.normal == "geodesic":
            return project_geodesic(self.solver, problem, target, args)
        if problem.gaps.local:
            many = _ManyPositions(self.solver, problem, metric, target, args, self.normal_guess, self.couples)
            return reaction(many.residual, many.solve, d, m, base.dtype, dense=False)
        normals = problem.gaps.jacobian(time, base, args)[1] if target.normal == "explicit" else None
        flat = not problem.gaps.curves(time, base, args)
        projection = _Positions(self.solver, problem, metric, target, args, normals, flat, self.normal_guess)
        return reaction(projection.residual, projection.solve, d, m, base.dtype)

    @property
    def normal_guess(self) -> F_m | None:
        """Normal impulses (m,) to begin with."""
        return None if self.guess is None else self.guess[:, 0]

    def beginning(self, guess: F_mr) -> Solved:
        return replace(self, guess=guess)

    def as_constant(self) -> Solved:
        return replace(self, constant=True)

    def resolution(self, pushed: F_m) -> Array | float:
        return 0.0 if self.solver.direct(len(pushed)) else self.solver.allowed(jnp.max(pushed, initial=0.0))

    def acting(self, contacts: Contacts, offset: F_m, candidates: B_m) -> tuple[B_m, I0]:
        contacts, b = lax.stop_gradient(restrict_problem(contacts, offset, candidates))
        known = jnp.where(candidates, b, 0)
        floor = 32 * jnp.finfo(b.dtype).eps * jnp.max(jnp.abs(known), initial=0.0)
        tolerance = jnp.maximum(self.solver.allowed(closing_speed(known)), floor)
        found = self.solver.impulses(contacts, b, tolerance, jnp.zeros_like(b))
        return candidates & (contacts.diagonal() * lax.stop_gradient(found.impulse) > tolerance), found.status


def coupling_status(contacts: Contacts, impulse: F_m) -> I0:
    """Returns IMPULSES_COUPLED if contacts with impulses (m,) have gradients that are not orthogonal."""
    if len(impulse) < 2:
        return jnp.zeros((), jnp.int32)
    acting = impulse > 0
    return as_status(contacts.coupled(acting), Status.IMPULSES_COUPLED)


def _tolerance(asked: Array | float, residual: Array | None, contacts: Contacts, size: F_d, gap_velocity: F_m) -> F_m:
    """Returns for each contact (m,) the larger of the tolerance ``asked`` () and the round-off of its gap velocity.

    The round-off is that of ``gap_velocity`` (m,) and of its terms, computed from velocities of magnitude ``size``
    (d,). It is computed only where it matters: if an entry of ``residual`` exceeds the tolerance,
    or if ``residual`` is None.
    """

    def raised(_: None) -> F_m:
        # twice the solvers' own, for other rounding than theirs
        floor = 64 * jnp.finfo(size.dtype).eps * (contacts.velocity_terms(size) + jnp.abs(gap_velocity))
        return jnp.maximum(asked, floor)

    if residual is None or size.shape[0] <= SMALL:
        return raised(None)
    every = jnp.full_like(gap_velocity, asked)
    return lax.cond(jnp.any(residual > asked), raised, lambda _: every, None)


class Iterate(NamedTuple):
    """Carry of the SQP iteration over linearised problems.

    Velocity ``jump`` (d,) and ``impulse`` (m,); ``gap`` (m,): the gap velocities with this jump or, in a projection of
    positions, the gaps divided by the target's ``scale``, of all contacts; the ``residual`` (); whether it is small
    enough (``done``); iterations of the solver so far; status bits.
    """

    jump: F_d
    impulse: F_m
    gap: F_m
    residual: F0
    done: B0
    iterations: I0
    status: I0

    @classmethod
    def start(cls, d: int, gap: F_m, guess: F_m | None) -> Iterate:
        """Makes the first iterate, with the impulses ``guess`` (m,), None for zeros."""
        zero, done = jnp.zeros((), jnp.int32), jnp.all(gap >= 0)
        impulse = jnp.zeros_like(gap) if guess is None else jnp.where(done, 0, guess)
        return cls(jnp.zeros(d, gap.dtype), impulse, gap, jnp.zeros((), gap.dtype), done, zero, zero)

    def until_done(self, improve: Callable[[Iterate, int], Iterate], limit: int, sizes: tuple[int, ...]) -> Iterate:
        """Repeats ``improve(iterate, size)`` on working sets of ``size`` contacts until done;
        not at all if no gap is violated.

        First it makes up to three repetitions with each smaller one of the ``sizes`` that is at least twice the number
        of contacts that are violated, are nearly closed or have an impulse; then at most 1 + ``limit`` with the last
        size. The carry is small: for batches of small systems recomputing contacts is cheaper than storing them.
        """
        now = self
        near = jnp.sum((self.gap < 0.1 * jnp.max(-self.gap)) | (self.impulse > 0))
        for size in sizes:
            tries = jnp.asarray(limit if size == sizes[-1] else jnp.where(2 * near <= size, 2, -1), jnp.int32)

            def body(carry: tuple[I0, Iterate], size: int = size) -> tuple[I0, Iterate]:
                k, now = carry
                new = improve(now, size)
                return k + 1, new._replace(iterations=now.iterations + new.iterations)

            def continues(carry: tuple[I0, Iterate], tries: Array | int = tries) -> B0:
                k, now = carry
                return (k <= tries) & ~now.done

            now = lax.while_loop(continues, body, (jnp.zeros((), jnp.int32), now))[1]
        return now

    def pack_root(self) -> tuple[tuple[F_d, F_m], tuple[F0, I0, I0]]:
        """Returns the result in the form of `implicit_derivative.reaction`: the root (jump, impulse),
        and (residual, iterations, status)."""
        status = self.status | as_status(~self.done, Status.CONTACTS_NOT_SOLVED)
        return (self.jump, self.impulse), (self.residual, self.iterations, status)


class Selection(NamedTuple):
    """Working set of a linearised problem: the numbers ``rows`` of its contacts, or None for all m."""

    rows: I_s | None
    m: int

    @classmethod
    def of(cls, now: Iterate, size: int) -> Selection:
        """Selects the ``size`` contacts most likely closed: those with an impulse first,
        then those with the smallest gaps."""
        m = now.gap.shape[0]
        if size >= m:
            return cls(None, m)
        # single precision is enough to choose, and much faster to sort
        largest = jnp.maximum(jnp.max(jnp.abs(now.gap)), jnp.finfo(now.gap.dtype).tiny)
        rank = jnp.where(now.impulse > 0, jnp.inf, -now.gap / largest).astype(jnp.float32)
        return cls(lax.top_k(rank, size)[1], m)

    def take(self, x: F_m) -> F_s:
        return x if self.rows is None else x[self.rows]

    def spread(self, x: F_s, others: Array | float = 0.0) -> F_m:
        """Returns a vector (m,) over all contacts from one over the working set, ``others`` () outside it."""
        if self.rows is None:
            return x
        return jnp.full(self.m, others, x.dtype).at[self.rows].set(x, unique_indices=True)


class _Velocities(NamedTuple):
    """The linear problem 0 <= L _|_ A L + offset >= 0 in velocities; a projection onto a
    polyhedral set of velocities."""

    solver: ContactSolver
    contacts: Contacts
    offset: F_m
    guess: F_m | None = None
    couples: bool = True
    small_sets: bool = True

    def improve(self, now: Iterate, size: int) -> Iterate:
        """Returns the next iterate: the solution on a working set of ``size`` contacts."""
        solver, contacts, offset, *_ = self
        chosen = Selection.of(now, size)
        part, start = contacts.take(chosen.rows), chosen.take(offset)
        asked, largest = solver.allowed(closing_speed(offset)), jnp.max(jnp.abs(offset))
        tolerance = 0.5 * _tolerance(asked, None, part, jnp.abs(now.jump), jnp.full_like(start, largest))
        found = solver.impulses(part, start, tolerance, chosen.take(now.impulse))
        jump, impulse = part.jump(found.impulse), chosen.spread(found.impulse)
        gap = contacts.velocity(jump) + offset
        residual = complementarity(gap, impulse, contacts.diagonal())
        # impulses along nearly dependent gradients are larger than their joint effect, the jump
        parts = part.jump_terms(found.impulse)
        done = jnp.all(residual <= _tolerance(asked, residual, contacts, parts, jnp.full_like(offset, largest)))
        status = found.status | coupling_status(part, found.impulse) if self.couples else found.status
        return Iterate(jump, impulse, gap, jnp.max(residual), done, found.iterations, status)

    def solve(self) -> tuple:
        m, d = self.contacts.shape
        start = Iterate.start(d, self.offset, self.guess)
        if self.solver.direct(m):
            found = self.improve(start, m)
            return found._replace(iterations=jnp.where(start.done, 0, found.iterations)).pack_root()
        sizes = self.solver.working_sets(m, d)
        limit = 0 if sizes[-1] == m else self.solver.max_linearisations
        return start.until_done(self.improve, limit, sizes if self.small_sets else sizes[-1:]).pack_root()

    def residual(self, x: tuple[F_d, F_m]) -> tuple[F_d, F_m]:
        """Returns the residual of the equations with acting contacts held closed; zero at the solution."""
        jump, impulse = x
        active = lax.stop_gradient(impulse) > 0
        velocity = self.contacts.velocity(jump) + self.offset
        return jump - self.contacts.jump(impulse), jnp.where(active, velocity, impulse)


class _ManyVelocities(_Velocities):
    """Linear problem as `_Velocities`, for neighbour lists: solved for all contacts at once,
    with an estimate of the round-off."""

    def solve(self) -> tuple:
        solver, contacts, offset, guess, couples, _ = self
        speed = closing_speed(offset)
        floor = 32 * jnp.finfo(offset.dtype).eps * (jnp.abs(offset) + 2 * speed)
        tolerance = jnp.maximum(solver.allowed(speed), floor)
        found = solver.impulses(contacts, offset, tolerance, jnp.zeros_like(offset) if guess is None else guess)
        jump = found.jumped(contacts)
        gap = contacts.velocity(jump) + offset
        residual = complementarity(gap, found.impulse, contacts.diagonal())
        done = jnp.all(residual <= tolerance)
        status = found.status | coupling_status(contacts, found.impulse) if couples else found.status
        return Iterate(jump, found.impulse, gap, jnp.max(residual), done, found.iterations, status).pack_root()


class _ManyPositions(NamedTuple):
    """Projection of a target onto the constraints of a neighbour list, by linearised problems of all contacts."""

    solver: ContactSolver
    problem: Problem
    metric: Metric
    target: Target
    args: object
    guess: F_m | None
    couples: bool

    def contacts(self, jump: F_d) -> Contacts:
        """Linearises the contacts at the position after a velocity ``jump`` (d,), with gaps in velocity units."""
        found = self.problem.gaps.at_instant(self.metric, self.target.time, self.target.point(jump), self.args)
        return found.at(found.gap / self.target.scale)

    def tolerance(self, asked: Array | float, contacts: Contacts, jump: F_d) -> F_m:
        """Returns for each contact (m,) the larger of the tolerance ``asked`` () and the round-off of positions,
        in velocity units."""
        target, eps = self.target, jnp.finfo(jump.dtype).eps
        size = (jnp.abs(target.base) + jnp.abs(target.increment)) * (1 / target.scale) + jnp.abs(jump)
        return jnp.maximum(asked, 32 * eps * (contacts.velocity_terms(size) + jnp.abs(contacts.gap)))

    def solve(self) -> tuple:
        contacts = self.contacts(jnp.zeros_like(self.target.base))
        start = Iterate.start(len(self.target.base), contacts.gap, self.guess)

        def body(carry: tuple[I0, Iterate, Contacts]) -> tuple[I0, Iterate, Contacts]:
            k, now, contacts = carry
            offset = contacts.gap - contacts.velocity(now.jump)
            asked = self.solver.allowed(closing_speed(offset))
            allowed = 0.25 * self.tolerance(asked, contacts, now.jump)
            found = self.solver.impulses(contacts, offset, allowed, now.impulse)
            jump = found.jumped(contacts)
            there = self.contacts(jump)
            moved = jnp.max(jnp.abs(there.jump(found.impulse) - jump))
            defect = complementarity(there.gap, found.impulse, there.diagonal())
            allowed = self.tolerance(asked, there, jump)
            # the empty slots of a list have no residual, and their tolerance does not count
            largest = jnp.max(jnp.where(there.diagonal() > 0, allowed, 0), initial=0.0)
            done = (moved <= largest) & jnp.all(defect <= allowed)
            residual, count = jnp.maximum(moved, jnp.max(defect)), now.iterations + found.iterations
            return k + 1, Iterate(jump, found.impulse, there.gap, residual, done, count, found.status), there

        def continues(carry: tuple[I0, Iterate, Contacts]) -> B0:
            return (carry[0] <= self.solver.max_linearisations) & ~carry[1].done

        _, found, contacts = lax.while_loop(continues, body, (jnp.zeros((), jnp.int32), start, contacts))
        coupled = coupling_status(contacts, found.impulse) if self.couples else 0
        return found._replace(status=found.status | coupled).pack_root()

    def residual(self, x: tuple[F_d, F_m]) -> tuple[F_d, F_m]:
        """Returns the residual of the equations with acting contacts held closed; zero at the solution."""
        return _held(self, x, None)


def _held(projection: _Positions | _ManyPositions, x: tuple[F_d, F_m], normals: F_md | None) -> tuple[F_d, F_m]:
    """Returns the residual of a projection's equations at x = (jump, impulse), with acting contacts held closed."""
    jump, impulse = x
    target, active = projection.target, lax.stop_gradient(impulse) > 0
    gaps = lambda x: projection.problem.gaps(target.time, x, projection.args)
    f, pull = jax.vjp(gaps, target.point(jump))
    force = pull(impulse)[0] if normals is None else impulse @ normals
    return jump - projection.metric.solve(force), jnp.where(active, f / target.scale, impulse)


class _Positions(NamedTuple):
    """Projection of a target onto the admissible positions by SQP.

    ``normals`` (m, d): the gradients at the base for the target's option "explicit", else None; ``flat``:
    whether all gaps are affine.
    """

    solver: ContactSolver
    problem: Problem
    metric: Metric
    target: Target
    args: object
    normals: F_md | None
    flat: bool
    guess: F_m | None = None

    def gaps(self, x: F_d) -> F_m:
        return self.problem.gaps(self.target.time, x, self.args)

    def linearised(self, now: Iterate, chosen: Selection) -> Contacts:
        """Linearises the contacts of the working set at the iterate ``now``."""
        if self.normals is None:
            point = self.target.point(now.jump)
            matrix = self.problem.gaps.jacobian(self.target.time, point, self.args, chosen.rows)[1]
        else:
            matrix = chosen.take(self.normals)
        return Contacts.of(chosen.take(now.gap), matrix, self.metric.solve(matrix.T))

    def tolerance(self, asked: Array | float, contacts: Contacts, parts: F_d, residual: Array | None = None) -> F_m:
        """Returns for each contact (m,) the larger of the tolerance ``asked`` () and round-off, in velocity units.

        The round-off is that of positions, and of a velocity jump whose terms have magnitude ``parts`` (d,);
        ``residual`` as in `_tolerance`.
        """
        target = self.target
        # the reciprocal is the same in all lanes
        size = (jnp.abs(target.base) + jnp.abs(target.increment)) * (1 / target.scale) + jnp.abs(parts)
        return _tolerance(asked, residual, contacts, size, contacts.gap)

    def corrected(
        self, now: Iterate, contacts: Contacts, chosen: Selection, pulled: F_d | None = None
    ) -> tuple[Iterate, F_d]:
        """Solves the linearised problem of a working set ``chosen``, with the gaps at ``now`` and
        the gradients of ``contacts``.

        ``pulled`` (d,): velocity jump that the impulses of ``now`` make with the gradients at ``now``. It is given if
        ``contacts`` has the gradients of an earlier iterate, and None if it has those at ``now``. Returns the next
        iterate, and this jump for the next iterate.
        """
        contacts, impulse, m = contacts.at(chosen.take(now.gap)), chosen.take(now.impulse), len(now.gap)
        change = -now.jump if pulled is None else pulled - contacts.jump(impulse) - now.jump
        offset = contacts.gap + contacts.velocity(change)
        asked = self.solver.allowed(closing_speed(offset))
        found = self.solver.impulses(contacts, offset, 0.25 * self.tolerance(asked, contacts, now.jump), impulse)
        # impulses between unequal masses, or along nearly dependent gradients, are larger than their joint effect, the
        # jump
        parts = contacts.jump_terms(found.impulse)
        impulse = found.impulse if pulled is None else found.impulse - impulse
        jump = contacts.jump(impulse) if pulled is None else pulled + contacts.jump(impulse)
        impulse = chosen.spread(found.impulse)
        if self.flat or self.normals is not None:
            f, pulled = self.gaps(self.target.point(jump)), jump
        else:
            f, pull = jax.vjp(self.gaps, self.target.point(jump))
            pulled = self.metric.solve(pull(impulse)[0])
        gap = f / self.target.scale
        moved = jnp.max(jnp.abs(pulled - jump))
        defect = complementarity(gap, impulse, chosen.spread(contacts.diagonal()))
        residual = jnp.maximum(moved, jnp.max(defect))
        allowed = self.tolerance(asked, contacts.at(chosen.take(gap)), parts, residual)
        # round-off of numbers inside the gap functions may be larger than that of positions: tolerated, if small
        # against the step, once stalled
        stalled = (now.residual > 0) & (residual > 0.5 * now.residual)
        speed = contacts.velocity_terms(jnp.abs(self.target.increment) * (1 / self.target.scale) + parts)
        allowed = jnp.maximum(allowed, jnp.where(stalled, jnp.finfo(gap.dtype).eps ** 0.5 * speed, 0))
        # the gradients of contacts outside the working set are not known
        largest = jnp.max(allowed)
        allowed = chosen.spread(allowed, largest)
        done = (moved <= largest) & jnp.all(defect <= allowed)
        check_coupling = lambda: coupling_status(contacts, found.impulse)
        # angles between many contacts are costly: computed at the solution only
        coupled = (
            check_coupling() if m <= SMALL else lax.cond(done, check_coupling, lambda: jnp.zeros_like(found.status))
        )
        return Iterate(jump, impulse, gap, residual, done, found.iterations, found.status | coupled), pulled

    def improve(self, now: Iterate, size: int) -> Iterate:
        """Returns the next iterate: the solution on a working set of ``size`` contacts, linearised at ``now``."""
        chosen = Selection.of(now, size)
        contacts = self.linearised(now, chosen)
        if len(now.gap) <= SMALL or not self.solver.warm_starts:
            return self.corrected(now, contacts, chosen)[0]

        # gradients are costly: kept while each correction reduces the residual by a factor of ten
        contacts = contacts.with_delassus()

        def body(carry: tuple[Iterate, I0, F_d]) -> tuple[Iterate, I0, F_d]:
            now, pulled, _ = carry
            new, pulled = self.corrected(now, contacts, chosen, pulled)
            return new._replace(iterations=now.iterations + new.iterations), pulled, now.residual

        def continues(carry: tuple[Iterate, I0, F_d]) -> B0:
            now, _, before = carry
            return ~now.done & (now.residual < 0.1 * before)

        start = now._replace(iterations=jnp.zeros_like(now.iterations))
        pulled = contacts.jump(chosen.take(now.impulse))
        return lax.while_loop(continues, body, (start, pulled, jnp.full_like(now.residual, jnp.inf)))[0]

    def solve(self) -> tuple:
        target, d = self.target, len(self.target.base)
        gap = self.gaps(target.base + target.increment) / target.scale
        m = len(gap)
        start = Iterate.start(d, gap, self.guess if m > SMALL else None)
        if self.flat and self.solver.direct(m):
            # one linearisation is exact for constraints affine in q
            return self.improve(start, m).pack_root()
        sizes = self.solver.working_sets(m, d)
        return start.until_done(self.improve, self.solver.max_linearisations, sizes).pack_root()

    def residual(self, x: tuple[F_d, F_m]) -> tuple[F_d, F_m]:
        """Returns the residual of the equations with acting contacts held closed; zero at the solution."""
        return _held(self, x, self.normals)
