"""The projection argmin ||W - Z||_M over f(tau, Z) >= 0, its protocol, and the one derivative all methods share.

Every scheme reduces its contact problem to impulses L and a velocity jump dv = M^-1 G' L with

    0 <= L  _|_  gap velocity >= 0,

so tolerances and residuals are velocities [unit of f per unit of time], free of the factor 1/h that amplifies an
error in position. A *method* solves one linearised problem (a linear complementarity problem with the Delassus
matrix A = G M^-1 G'); curved constraints are handled here by successive linearisations around Z (SQP).
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import Literal
from jax.flatten_util import ravel_pytree

from .. import linalg
from ..contact import ORTHOGONAL, SMALL, Contacts, Metric, jacobian
from ..derivatives import implicit_root
from ..problem import Problem
from ..status import Status

PENDING = 1 << 30  # status bit, never reported: a projection is needed


class Impulses(NamedTuple):
    """Solution of one linearised problem: impulse (m,), iterations (), status bits ()."""

    impulse: Array
    iterations: Array
    status: Array


class Projected(NamedTuple):
    """Result of a projection.

    ``jump`` velocity jump M^-1 G' L (d,); ``impulse`` multipliers L (m,); ``residual`` largest KKT violation [velocity];
    ``iterations`` of the method, summed over linearisations; ``status`` bits.
    """

    jump: Array
    impulse: Array
    residual: Array
    iterations: Array
    status: Array


class ContactSolver(abc.ABC):
    """A method for the contact problem of one linearisation: ``impulses`` is all that a new one must define.

    Of ``contacts`` it may ask for gap velocities ``velocity(v)`` = G v, velocity jumps ``jump(L)`` = M^-1 G' L and the
    ``diagonal()`` of the Delassus matrix, and for the matrix itself, ``delassus()``, if it suits few contacts alone: contacts
    that are kept as pairs of bodies have the first three only. Constraints that are masked out have zero gradients.

    Attributes:
        tolerance: the KKT residual asked for [velocity]; it is raised to the round-off floor where that is larger.
        max_linearisations: SQP iterations around a curved constraint, at most.
        warm_starts: whether ``guess`` is used; above eight constraints gradients are then kept for several corrections.
    """

    tolerance: float
    max_linearisations: int
    warm_starts: ClassVar[bool] = True

    @abc.abstractmethod
    def impulses(self, contacts: Contacts, offset: Array, tolerance: Array, guess: Array) -> Impulses:
        """Impulses L >= 0 with w = A L + offset >= 0 and L w = 0, to a residual of ``tolerance``, () or (m,), from ``guess`` (m,)."""

    def direct(self, m: int) -> bool:
        """Whether ``impulses`` is straight-line arithmetic, exact to round-off, for m constraints."""
        return False

    def working_sets(self, m: int, d: int) -> tuple[int, ...]:
        """Increasing numbers of constraints: only so many, the likely ones, are handed to the solver, and all are checked."""
        return (m,)


class Frozen(NamedTuple):
    """A projection already known, as a function whose derivative is wanted with the closed contacts kept closed.

    ``closed`` (m,) contacts that stay closed, their ``impulse`` (m,), and the admissible ``point`` Z (d,). In place of
    a method in a scheme's step it gives the derivative of the projection onto {f_a = 0, a closed}, by one Newton step
    from the known solution, and the free step's where nothing is closed.
    """

    closed: Array
    impulse: Array
    point: Array

    def velocity(self, contacts: Contacts, offset: Array) -> Projected:
        """As `project_velocity`."""
        return self._found(contacts, contacts.delassus(), offset + contacts.velocity(contacts.jump(self.impulse)))

    def position(
        self,
        problem: Problem,
        metric: Metric,
        time: Array,
        base: Array,
        increment: Array,
        scale: Array,
        args: Any,
        normal: str,
    ) -> Projected:
        """As `project_position`."""
        target = base + increment
        z = target + lax.stop_gradient(self.point - target)
        gap, rows = jacobian(problem, time, z, args)
        normals = jacobian(problem, time, base, args)[1] if normal == "explicit" else rows
        contacts = Contacts(gap, normals, metric.solve(normals.T))
        # z again, now with the derivative of the jump that the known impulse makes
        shift = scale * contacts.jump(self.impulse)
        gap = gap + lax.stop_gradient(rows) @ (shift - lax.stop_gradient(shift))
        return self._found(contacts, rows @ contacts.response, gap / scale)

    def _found(self, contacts: Contacts, matrix: Array, velocity: Array) -> Projected:
        change = linalg.solve_masked(matrix, -velocity, self.closed & (jnp.diagonal(matrix) > 0))
        impulse = self.impulse + (change - lax.stop_gradient(change))
        zero = jnp.zeros((), jnp.int32)
        return Projected(contacts.jump(impulse), impulse, jnp.zeros((), impulse.dtype), zero, zero)


class Untouched(NamedTuple):
    """A projection that makes no impulse and says, by the status bit PENDING, where one is needed.

    In place of a method in a scheme's step it gives the step of a motion far from its constraints, at the cost of a
    look at the gaps.
    """

    def velocity(self, contacts: Contacts, offset: Array) -> Projected:
        """As `project_velocity`."""
        m, d = contacts.jacobian.shape
        return nothing(d, m, offset.dtype)._replace(status=as_status(~jnp.all(offset >= 0), PENDING))

    def position(
        self,
        problem: Problem,
        metric: Metric,
        time: Array,
        base: Array,
        increment: Array,
        scale: Array,
        args: Any,
        normal: str,
    ) -> Projected:
        """As `project_position`."""
        gaps = problem.gaps(time, base + increment, args)
        none = nothing(len(base), len(gaps), base.dtype)
        return none._replace(status=as_status(~jnp.all(gaps >= 0), PENDING))


def complementarity(velocity: Array, impulse: Array, diagonal: Array) -> Array:
    """Natural residual of 0 <= L _|_ w >= 0 as velocities (m,): |min(w, A_aa L)|."""
    return jnp.abs(jnp.minimum(velocity, diagonal * impulse))


def coupling(contacts: Contacts, impulse: Array) -> Array:
    """Status bit of impulses (m,) along gradients that are not orthogonal."""
    m = impulse.shape[0]
    if m < 2:
        return jnp.zeros((), jnp.int32)
    matrix, acting = contacts.delassus(), impulse > 0
    diagonal = jnp.diagonal(matrix)
    oblique = matrix**2 > ORTHOGONAL**2 * diagonal[:, None] * diagonal[None, :]
    pairs = acting[:, None] & acting[None, :] & ~jnp.eye(m, dtype=bool)
    return as_status(jnp.any(oblique & pairs), Status.IMPULSES_COUPLED)


def unit_scaling(contacts: Contacts) -> tuple[Array, Array, Array, Array]:
    """Scaling of the Delassus matrix to a unit diagonal: diagonal, whether a constraint has a gradient, root, 1/root.

    Constraints masked out have root 1 and scale 0.
    """
    diagonal = contacts.diagonal()
    present = diagonal > 0
    root = jnp.sqrt(jnp.where(present, diagonal, 1))
    return diagonal, present, root, jnp.where(present, 1 / root, 0)


def as_status(condition: Array, bit: int) -> Array:
    """``bit`` where the condition holds, else 0."""
    return jnp.where(condition, int(bit), 0).astype(jnp.int32)


def nothing(d: int, m: int, dtype: Any) -> Projected:
    """The projection of a point that needs none."""
    zero = jnp.zeros((), jnp.int32)
    return Projected(jnp.zeros(d, dtype), jnp.zeros(m, dtype), jnp.zeros((), dtype), zero, zero)


def contact_root(residual: Callable, solve: Callable, guess: tuple[Array, Array]) -> tuple[Any, Any]:
    """A root x = (primal, multipliers) of ``residual`` found by ``solve``, differentiated implicitly.

    Forward and reverse mode follow from the implicit function theorem at the solution with the active set frozen,
    whatever iteration found it. Dependent active gradients are regularised by round-off: the primal derivative is
    then still right, the split between multipliers is the one of least weighted norm.
    """

    def tangent_solve(linear: Callable, y: Any) -> Any:
        flat, unravel = ravel_pytree(y)
        d = y[0].size
        matrix = jax.jacfwd(lambda x: ravel_pytree(linear(unravel(x)))[0])(jnp.zeros_like(flat))
        # block elimination, with everything that multiplies y kept free of it (transposed in reverse mode)
        primal = linalg.inverse(matrix[:d, :d])
        coupling = primal @ matrix[:d, d:]
        schur = matrix[d:, d:] - matrix[d:, :d] @ coupling
        dual = linalg.inverse(schur + jnp.diag(64 * jnp.finfo(flat.dtype).eps * jnp.diag(schur)))
        upper = primal @ flat[:d]
        lower = dual @ (flat[d:] - matrix[d:, :d] @ upper)
        return unravel(jnp.concatenate([upper - coupling @ lower, lower]))

    return implicit_root(residual, guess, solve, tangent_solve)


def _floor(contacts: Contacts, size: Array, gap_velocity: Array) -> Array:
    """Round-off (m,) of the gap velocities: no residual can be asked to be smaller.

    ``size`` (d,) is the magnitude, as a velocity, of what is added up before the gaps are taken.
    """
    eps = jnp.finfo(size.dtype).eps
    return 32 * eps * (jnp.abs(contacts.jacobian) @ size + jnp.abs(gap_velocity))


def _tolerance(
    method: ContactSolver, residual: Array | None, contacts: Contacts, size: Array, gap_velocity: Array
) -> Array:
    """The method's tolerance (m,), raised to round-off; where the residual meets the first, the second is not worked out."""

    def raised(_: None) -> Array:
        return jnp.maximum(method.tolerance, _floor(contacts, size, gap_velocity))

    if residual is None or size.shape[0] <= SMALL:
        return raised(None)
    asked = jnp.full_like(gap_velocity, method.tolerance)
    return lax.cond(jnp.any(residual > asked), raised, lambda _: asked, None)


class Iterate(NamedTuple):
    """What one linearised problem leaves to the next: ``gap`` (m,) are all gap velocities, under ``jump``."""

    jump: Array
    impulse: Array
    gap: Array
    residual: Array
    done: Array
    iterations: Array
    status: Array

    @classmethod
    def start(cls, d: int, gap: Array) -> Iterate:
        zero = jnp.zeros((), jnp.int32)
        none = jnp.zeros_like(gap)
        return cls(jnp.zeros(d, gap.dtype), none, gap, jnp.zeros((), gap.dtype), jnp.all(gap >= 0), zero, zero)

    def until_done(self, improved: Callable[[Iterate, int], Iterate], limit: int, sizes: tuple[int, ...]) -> Iterate:
        """Improved while not done, ``limit`` times more than once at most; not at all where no gap is violated. Little is
        carried: in a batch of small systems computing contacts again costs less than storing them.

        The working sets have the last of the ``sizes``, or a smaller one, to begin with, where half of that is enough for
        what is violated or as good as touching.
        """
        now = self
        near = jnp.sum(self.gap < 0.1 * jnp.max(-self.gap))
        for size in sizes:
            tries = limit if size == sizes[-1] else jnp.where(2 * near <= size, 2, -1)

            def body(carry: tuple[Array, Iterate], size: int = size) -> tuple[Array, Iterate]:
                k, now = carry
                new = improved(now, size)
                return k + 1, new._replace(iterations=now.iterations + new.iterations)

            def going(carry: tuple[Array, Iterate], tries: Any = tries) -> Array:
                k, now = carry
                return (k <= tries) & ~now.done

            now = lax.while_loop(going, body, (jnp.zeros((), jnp.int32), now))[1]
        return now

    def packed(self) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
        """As `contact_root` wants it: root, and the rest as floats."""
        dtype = self.gap.dtype
        status = self.status | as_status(~self.done, Status.PROJECTION_NOT_CONVERGED)
        return (self.jump, self.impulse), (self.residual, self.iterations.astype(dtype), status.astype(dtype))


class Selection(NamedTuple):
    """The contacts a linearised problem is solved for: ``rows`` of all m, or None for all of them."""

    rows: Array | None
    m: int

    @classmethod
    def of(cls, now: Iterate, size: int) -> Selection:
        """``size`` of them, most likely to be closed: first what carries an impulse, then what has the least gap."""
        m = now.gap.shape[0]
        if size >= m:
            return cls(None, m)
        # single precision is enough to choose, and much quicker to sort
        rank = jnp.where(now.impulse > 0, jnp.inf, -now.gap).astype(jnp.float32)
        return cls(lax.top_k(rank, size)[1], m)

    def take(self, x: Array) -> Array:
        return x if self.rows is None else x[self.rows]

    def spread(self, x: Array) -> Array:
        """(m,), zero in what was left out."""
        return x if self.rows is None else jnp.zeros(self.m, x.dtype).at[self.rows].set(x, unique_indices=True)


def project_velocity(method: ContactSolver, contacts: Contacts, offset: Array) -> Projected:
    """Solve 0 <= L _|_ A L + offset >= 0 once: the projection onto a polyhedral set of velocities.

    ``offset`` (m,) is the gap velocity without impulses. A method with a working set is asked again, for more contacts,
    while one that was left out is violated.
    """
    m, d = contacts.jacobian.shape
    if m == 0:
        return nothing(d, m, offset.dtype)
    if isinstance(method, Frozen | Untouched):
        return method.velocity(contacts, offset)

    def improved(now: Iterate, size: int) -> Iterate:
        chosen = Selection.of(now, size)
        part, start = contacts.take(chosen.rows), chosen.take(offset)
        tolerance = _tolerance(method, None, part, jnp.abs(now.jump), start)
        found = method.impulses(part, start, tolerance, chosen.take(now.impulse))
        jump, impulse = part.jump(found.impulse), chosen.spread(found.impulse)
        gap = contacts.velocity(jump) + offset
        residual = complementarity(gap, impulse, contacts.diagonal())
        # impulses along nearly dependent gradients are larger than the jump that they add up to
        parts = jnp.abs(part.response) @ found.impulse
        done = jnp.all(residual <= _tolerance(method, residual, contacts, parts, offset))
        status = found.status | coupling(part, found.impulse)
        return Iterate(jump, impulse, gap, jnp.max(residual), done, found.iterations, status)

    def solve(_: Any, guess: Any) -> tuple:
        start = Iterate.start(d, offset)
        if method.direct(m):
            found = improved(start, m)
            return found._replace(iterations=jnp.where(start.done, 0, found.iterations)).packed()
        sizes = method.working_sets(m, d)
        return start.until_done(improved, 0 if sizes[-1] == m else method.max_linearisations, sizes).packed()

    def residual(x: tuple[Array, Array]) -> tuple[Array, Array]:
        jump, impulse = x
        active = lax.stop_gradient(impulse) > 0
        return jump - contacts.jump(impulse), jnp.where(active, contacts.velocity(jump) + offset, impulse)

    guess = (jnp.zeros(d, offset.dtype), jnp.zeros(m, offset.dtype))
    return _unpack(contact_root(residual, solve, guess))


def project_position(
    method: ContactSolver,
    problem: Problem,
    metric: Metric,
    time: Array,
    base: Array,
    increment: Array,
    scale: Array,
    args: Any,
    normal: str = "implicit",
) -> Projected:
    """Project W = base + increment onto f(time, .) >= 0 in a frozen metric; Z = W + scale * jump.

    The unknowns are the jump and the impulse, not Z: nothing of the size of Z is subtracted, which keeps float32
    usable and the residual in velocity units (``scale`` is a time, h/(1+e)). A method with a working set sees the
    constraints that may become active, chosen again for each linearisation; all gaps are checked.

    Args:
        normal: "implicit", M (Z - W) = scale * G(Z)' L as in the papers: the metric projection; or "explicit",
            G(base)' L with the same exact constraint (SHAKE-like, second order in persistent contact).
    """
    d = base.shape[0]
    dtype = base.dtype

    def point(jump: Array) -> Array:
        return base + (increment + scale * jump)

    def gaps(x: Array) -> Array:
        return problem.gaps(time, x, args)

    m = problem.count(time, base, args)
    if m == 0:
        return nothing(d, m, dtype)
    if isinstance(method, Frozen | Untouched):
        return method.position(problem, metric, time, base, increment, scale, args, normal)
    fixed_normals: Any = jacobian(problem, time, base, args)[1] if normal == "explicit" else None
    flat = is_flat(problem, time, base, args)

    def linearise(now: Iterate, chosen: Selection) -> Contacts:
        if fixed_normals is None:
            matrix = jacobian(problem, time, point(now.jump), args, chosen.rows)[1]
        else:
            matrix = chosen.take(fixed_normals)
        return Contacts(chosen.take(now.gap), matrix, metric.solve(matrix.T))

    def tolerance(contacts: Contacts, jump: Array, residual: Array | None = None) -> Array:
        size = (jnp.abs(base) + jnp.abs(increment)) / scale + jnp.abs(jump)
        return _tolerance(method, residual, contacts, size, contacts.gap)

    def corrected(
        now: Iterate, contacts: Contacts, chosen: Selection, pulled: Array | None = None
    ) -> tuple[Iterate, Array]:
        """With gradients from where ``now`` is; or from before, ``pulled`` (d,) being the jump its impulses make now."""
        contacts, impulse = contacts._replace(gap=chosen.take(now.gap)), chosen.take(now.impulse)
        change = -now.jump if pulled is None else pulled - contacts.jump(impulse) - now.jump
        offset = contacts.gap + contacts.velocity(change)
        found = method.impulses(contacts, offset, 0.25 * tolerance(contacts, now.jump), impulse)
        impulse = found.impulse if pulled is None else found.impulse - impulse
        jump = contacts.jump(impulse) if pulled is None else pulled + contacts.jump(impulse)
        impulse = chosen.spread(found.impulse)
        if flat or fixed_normals is not None:
            f, pulled = gaps(point(jump)), jump
        else:
            f, pull = jax.vjp(gaps, point(jump))
            pulled = metric.solve(pull(impulse)[0])
        gap = f / scale
        moved = jnp.max(jnp.abs(pulled - jump))
        defect = complementarity(gap, impulse, chosen.spread(contacts.diagonal()))
        residual = jnp.maximum(moved, jnp.max(defect))
        allowed = tolerance(contacts._replace(gap=chosen.take(gap)), jump, residual)
        # what was left out has a gradient that is not at hand
        largest = jnp.max(allowed)
        if chosen.rows is not None:
            allowed = chosen.spread(allowed - largest) + largest
        done = (moved <= largest) & jnp.all(defect <= allowed)
        status = found.status | coupling(contacts, found.impulse)
        return Iterate(jump, impulse, gap, residual, done, found.iterations, status), pulled

    def improved(now: Iterate, size: int) -> Iterate:
        chosen = Selection.of(now, size)
        contacts = linearise(now, chosen)
        if m <= SMALL or not method.warm_starts:
            return corrected(now, contacts, chosen)[0]

        # gradients are dear: kept while each correction leaves less than a tenth of the residual
        def body(carry: tuple[Iterate, Array, Array]) -> tuple[Iterate, Array, Array]:
            now, pulled, _ = carry
            new, pulled = corrected(now, contacts, chosen, pulled)
            return new._replace(iterations=now.iterations + new.iterations), pulled, now.residual

        def going(carry: tuple[Iterate, Array, Array]) -> Array:
            now, _, before = carry
            return ~now.done & (now.residual < 0.1 * before)

        start = now._replace(iterations=jnp.zeros_like(now.iterations))
        pulled = contacts.jump(chosen.take(now.impulse))
        return lax.while_loop(going, body, (start, pulled, jnp.full_like(now.residual, jnp.inf)))[0]

    def solve(_: Any, guess: Any) -> tuple:
        start = Iterate.start(d, gaps(base + increment) / scale)
        if method.direct(m) and flat:
            # one linearisation is exact for constraints affine in q
            return improved(start, m).packed()
        return start.until_done(improved, method.max_linearisations, method.working_sets(m, d)).packed()

    def residual(x: tuple[Array, Array]) -> tuple[Array, Array]:
        jump, impulse = x
        z = point(jump)
        active = lax.stop_gradient(impulse) > 0
        f, pull = jax.vjp(gaps, z)
        force = impulse @ fixed_normals if normal == "explicit" else pull(impulse)[0]
        return jump - metric.solve(force), jnp.where(active, f / scale, impulse)

    guess = (jnp.zeros(d, dtype), jnp.zeros(m, dtype))
    return _unpack(contact_root(residual, solve, guess))


def is_straight(method: ContactSolver, problem: Problem, time: Array, q: Array, args: Any) -> bool:
    """Whether a projection is straight-line arithmetic, with nothing to iterate: few constraints, seen to be affine in q."""
    return method.direct(problem.count(time, q, args)) and is_flat(problem, time, q, args)


def is_flat(problem: Problem, time: Array, q: Array, args: Any) -> bool:
    """Whether all constraints are seen to be affine in q."""
    return _flat(lambda x: jacobian(problem, time, x, args)[1], q)


def _flat(function: Callable, x: Array) -> bool:
    """Whether ``function`` is seen not to depend on x."""
    jaxpr = jax.make_jaxpr(function)(x).jaxpr
    moving = set(jaxpr.invars)
    for eqn in jaxpr.eqns:
        if any(v in moving for v in eqn.invars if not isinstance(v, Literal)):
            moving |= set(eqn.outvars)
    return not any(v in moving for v in jaxpr.outvars if not isinstance(v, Literal))


def _unpack(found: tuple[Any, Any]) -> Projected:
    # auxiliary values are carried as real numbers; they have no derivative
    (jump, impulse), aux = found
    residual, iterations, status = lax.stop_gradient(aux)
    return Projected(jump, impulse, residual, iterations.astype(jnp.int32), status.astype(jnp.int32))
