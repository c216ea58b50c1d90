"""The projection argmin ||W - Z||_M over f(tau, Z) >= 0, its protocol, and the one derivative all methods share.

Every scheme reduces its contact problem to impulses L and a velocity jump dv = M^-1 G' L with

    0 <= L  _|_  gap velocity >= 0,

so tolerances and residuals are velocities [unit of f per unit of time], free of the factor 1/h that amplifies an
error in position. A *method* solves one linearised problem (a linear complementarity problem with the Delassus
matrix A = G M^-1 G'); curved constraints are handled here by successive linearisations around Z (SQP).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import Literal
from jax.flatten_util import ravel_pytree

from .. import linalg
from ..contact import Contacts, Metric, jacobian
from ..lanes import once
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


class Projection(Protocol):
    """A method for the linearised contact problem.

    ``tolerance`` is the KKT residual asked for [velocity]; it is raised to the round-off floor where that is larger.
    ``max_linearisations`` bounds the SQP iterations around a curved constraint.
    """

    @property
    def tolerance(self) -> float: ...

    @property
    def max_linearisations(self) -> int: ...

    def direct(self, m: int) -> bool:
        """Whether ``solve`` is straight-line arithmetic, exact to round-off, for m constraints."""
        ...

    def solve(self, contacts: Contacts, offset: Array, tolerance: Array) -> Impulses:
        """Impulses L >= 0 with w = A L + offset >= 0 and L w = 0, to a residual of ``tolerance``."""
        ...


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
        self, problem: Problem, metric: Metric, time, base: Array, increment: Array, scale, args, normal: str
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
        self, problem: Problem, metric: Metric, time, base: Array, increment: Array, scale, args, normal: str
    ) -> Projected:
        """As `project_position`."""
        gaps = problem.gaps(time, base + increment, args)
        none = nothing(len(base), len(gaps), base.dtype)
        return none._replace(status=as_status(~jnp.all(gaps >= 0), PENDING))


def complementarity(velocity: Array, impulse: Array, diagonal: Array) -> Array:
    """Natural residual of 0 <= L _|_ w >= 0 as a velocity: max |min(w, A_aa L)|."""
    return jnp.max(jnp.abs(jnp.minimum(velocity, diagonal * impulse)), initial=0.0)


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


def nothing(d: int, m: int, dtype) -> Projected:
    """The projection of a point that needs none."""
    zero = jnp.zeros((), jnp.int32)
    return Projected(jnp.zeros(d, dtype), jnp.zeros(m, dtype), jnp.zeros((), dtype), zero, zero)


def implicit_root(residual: Callable, solve: Callable, guess):
    """A root x = (primal, multipliers) of ``residual`` found by ``solve``, differentiated implicitly.

    Forward and reverse mode follow from the implicit function theorem at the solution with the active set frozen,
    whatever iteration found it. Dependent active gradients are regularised by round-off: the primal derivative is
    then still right, the split between multipliers is the one of least weighted norm.
    """

    def tangent_solve(linear, y):
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

    return lax.custom_root(residual, guess, solve, tangent_solve, has_aux=True)


def _floor(contacts: Contacts, size: Array, gap_velocity: Array) -> Array:
    """Round-off of the gap velocities: no residual can be asked to be smaller.

    ``size`` (d,) is the magnitude, as a velocity, of what is added up before the gaps are taken.
    """
    eps = jnp.finfo(size.dtype).eps
    return 32 * eps * jnp.max(jnp.abs(contacts.jacobian) @ size + jnp.abs(gap_velocity), initial=0.0)


def project_velocity(method: Projection, contacts: Contacts, offset: Array) -> Projected:
    """Solve 0 <= L _|_ A L + offset >= 0 once: the projection onto a polyhedral set of velocities.

    ``offset`` (m,) is the gap velocity without impulses.
    """
    m, d = contacts.jacobian.shape
    if m == 0:
        return nothing(d, m, offset.dtype)
    if isinstance(method, Frozen | Untouched):
        return method.velocity(contacts, offset)

    def solve(_, guess):
        def work(_):
            start = jnp.maximum(method.tolerance, _floor(contacts, jnp.zeros(d, offset.dtype), offset))
            found = method.solve(contacts, offset, start)
            jump = contacts.jump(found.impulse)
            residual = complementarity(contacts.velocity(jump) + offset, found.impulse, contacts.diagonal())
            tolerance = jnp.maximum(method.tolerance, _floor(contacts, jnp.abs(jump), offset))
            status = found.status | as_status(~(residual <= tolerance), Status.PROJECTION_NOT_CONVERGED)
            return (jump, found.impulse), (residual, found.iterations.astype(offset.dtype), status.astype(offset.dtype))

        zero = jnp.zeros((), offset.dtype)
        pending = ~jnp.all(offset >= 0)
        if method.direct(m):
            found, (error, iterations, status) = work(None)
            return found, (error, jnp.where(pending, iterations, 0), status)
        return once(work, pending, (guess, (zero, zero, zero)))

    def residual(x):
        jump, impulse = x
        active = lax.stop_gradient(impulse) > 0
        return jump - contacts.jump(impulse), jnp.where(active, contacts.velocity(jump) + offset, impulse)

    guess = (jnp.zeros(d, offset.dtype), jnp.zeros(m, offset.dtype))
    return _unpack(implicit_root(residual, solve, guess))


def project_position(
    method: Projection,
    problem: Problem,
    metric: Metric,
    time: Array,
    base: Array,
    increment: Array,
    scale: Array,
    args,
    normal: str = "implicit",
) -> Projected:
    """Project W = base + increment onto f(time, .) >= 0 in a frozen metric; Z = W + scale * jump.

    The unknowns are the jump and the impulse, not Z: nothing of the size of Z is subtracted, which keeps float32
    usable and the residual in velocity units (``scale`` is a time, h/(1+e)).

    Args:
        normal: "implicit", M (Z - W) = scale * G(Z)' L as in the papers: the metric projection; or "explicit",
            G(base)' L with the same exact constraint (SHAKE-like, second order in persistent contact).
    """
    d = base.shape[0]
    dtype = base.dtype

    def point(jump):
        return base + (increment + scale * jump)

    def gaps(x):
        return problem.gaps(time, x, args)

    m = problem.count(time, base, args)
    if m == 0:
        return nothing(d, m, dtype)
    if isinstance(method, Frozen | Untouched):
        return method.position(problem, metric, time, base, increment, scale, args, normal)
    fixed_normals = jacobian(problem, time, base, args)[1] if normal == "explicit" else None

    def linearise(jump):
        z = point(jump)
        if normal == "explicit":
            f, matrix = gaps(z), fixed_normals
        else:
            f, matrix = jacobian(problem, time, z, args)
        return Contacts(f / scale, matrix, metric.solve(matrix.T))

    def check(contacts, jump, impulse):
        mismatch = jnp.max(jnp.abs(contacts.jump(impulse) - jump))
        residual = jnp.maximum(mismatch, complementarity(contacts.gap, impulse, contacts.diagonal()))
        size = (jnp.abs(base) + jnp.abs(increment)) / scale + jnp.abs(jump)
        return residual, jnp.maximum(method.tolerance, _floor(contacts, size, contacts.gap))

    def improved(contacts, jump, tolerance):
        found = method.solve(contacts, contacts.gap - contacts.velocity(jump), 0.25 * tolerance)
        return contacts.jump(found.impulse), found.impulse, found.iterations, found.status

    direct = method.direct(m)
    if is_straight(method, problem, time, base, args):

        def solve(_, guess):
            """One linearisation, exact for constraints affine in q."""
            contacts = linearise(guess[0])
            jump, impulse, iterations, status = improved(contacts, guess[0], jnp.asarray(method.tolerance, dtype))
            residual, tolerance = check(contacts._replace(gap=gaps(point(jump)) / scale), jump, impulse)
            status = status | as_status(~(residual <= tolerance), Status.PROJECTION_NOT_CONVERGED)
            return (jump, impulse), (residual, iterations.astype(dtype), status.astype(dtype))

    else:

        def solve(_, guess):
            """Linearisations until the residual is small, none where W is admissible. Little is carried: in a batch of
            small systems computing contacts again costs less than storing them."""

            def body(carry):
                k, jump, impulse, _, _, iterations, status = carry
                contacts = linearise(jump)
                residual, tolerance = check(contacts, jump, impulse)
                done = residual <= tolerance
                old = (jump, impulse, jnp.zeros((), jnp.int32), status)
                if direct:
                    better = improved(contacts, jump, tolerance)
                    jump, impulse, more, status = jax.tree.map(lambda x, y: jnp.where(done, x, y), old, better)
                else:
                    jump, impulse, more, status = once(lambda _: improved(contacts, jump, tolerance), ~done, old)
                return k + 1, jump, impulse, residual, done, iterations + more, status

            def unfinished(carry):
                k, *_, done, _, _ = carry
                return (k <= method.max_linearisations) & ~done

            jump, impulse = guess
            admissible = jnp.all(gaps(base + increment) >= 0)
            zero = jnp.zeros((), jnp.int32)
            carry = (zero, jump, impulse, jnp.zeros((), dtype), admissible, zero, zero)
            _, jump, impulse, residual, done, iterations, status = lax.while_loop(unfinished, body, carry)
            status = status | as_status(~done, Status.PROJECTION_NOT_CONVERGED)
            return (jump, impulse), (residual, iterations.astype(dtype), status.astype(dtype))

    def residual(x):
        jump, impulse = x
        z = point(jump)
        active = lax.stop_gradient(impulse) > 0
        f, pull = jax.vjp(gaps, z)
        force = impulse @ fixed_normals if normal == "explicit" else pull(impulse)[0]
        return jump - metric.solve(force), jnp.where(active, f / scale, impulse)

    guess = (jnp.zeros(d, dtype), jnp.zeros(m, dtype))
    return _unpack(implicit_root(residual, solve, guess))


def is_straight(method: Projection, problem: Problem, time, q: Array, args) -> bool:
    """Whether a projection is straight-line arithmetic, with nothing to iterate: few constraints, seen to be affine in q."""
    return method.direct(problem.count(time, q, args)) and _flat(lambda x: jacobian(problem, time, x, args)[1], q)


def _flat(function: Callable, x: Array) -> bool:
    """Whether ``function`` is seen not to depend on x."""
    jaxpr = jax.make_jaxpr(function)(x).jaxpr
    moving = set(jaxpr.invars)
    for eqn in jaxpr.eqns:
        if any(v in moving for v in eqn.invars if not isinstance(v, Literal)):
            moving |= set(eqn.outvars)
    return not any(v in moving for v in jaxpr.outvars if not isinstance(v, Literal))


def _unpack(found) -> Projected:
    # custom_root carries auxiliary values as floats; they have no derivative
    (jump, impulse), aux = found
    residual, iterations, status = lax.stop_gradient(aux)
    return Projected(jump, impulse, residual, iterations.astype(jnp.int32), status.astype(jnp.int32))
