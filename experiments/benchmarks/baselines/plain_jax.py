"""The same scheme as one writes it in JAX with nothing done for speed:
`vmap` of a `lax.scan` over dense linear algebra.

    q1, v1 = jax.jit(plain_jax.simulator(works.WORKS["links-2"]))(q0, v0)      # states at t1, (lanes, d) each

    W = U + s (c V_ + k a),    V = V_ + k a + M(U)^-1 G(Z)' L,    0 <= L _|_ f(Z) >= 0,    U+ = U + h V,

with s = h/(1 + e), c = 1 - e, k = h, and in the first step s = h, c = 1, k = h/2 (Paoli and Schatzman). Up to four
constraints, which do not move, every active set is tried; more are relaxed one after the other,
in a loop without a reverse mode.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# linearisations that bring the residual of the projection to round-off; one where gaps are affine
LINEARISATIONS = {"double": 4, "gas": 4, "pile": 3}
ENUMERATE = 4
TOLERANCE, SWEEPS = 1e-13, 2000


def solve_mass(mass, x):
    """M^-1 x for a mass given as None, a diagonal (d,) or a matrix (d, d); x (d,) or (d, k)."""
    if mass is None:
        return x
    if mass.ndim == 1:
        return x / mass.reshape(-1, *[1] * (x.ndim - 1))
    return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(mass), True), x)


def closed(a, b, active):
    """Impulses that close the contacts ``active`` and no other: A x + b = 0 there."""
    both = active[:, None] & active[None, :]
    matrix = jnp.where(both, a, jnp.eye(b.size, dtype=b.dtype))
    return jnp.where(active, jax.scipy.linalg.solve(matrix, jnp.where(active, -b, 0), assume_a="pos"), 0)


def enumerate_sets(a, b):
    """Impulses x >= 0 with A x + b >= 0 and x (A x + b) = 0: the active set of least violation."""
    sets = jnp.array(list(itertools.product((False, True), repeat=b.size)))
    x = jax.vmap(closed, in_axes=(None, None, 0))(a, b, sets)
    violation = jnp.max(jnp.maximum(-(x @ a + b[None]), -jnp.diagonal(a)[None] * x), axis=1)
    return jnp.maximum(x[jnp.nanargmin(violation)], 0)


def single(a, b):
    """The same for one contact."""
    return jnp.maximum(0, -b / a[0])


def gauss_seidel(a, b):
    """The same by projected Gauss-Seidel, one contact after the other, until a sweep changes no gap velocity."""
    diagonal = jnp.diagonal(a)

    def relax(i, x):
        return x.at[i].set(jnp.maximum(0, x[i] - (a[i] @ x + b[i]) / diagonal[i]))

    def sweep(carry):
        count, x, _ = carry
        new = lax.fori_loop(0, b.size, relax, x)
        return count + 1, new, jnp.max(diagonal * jnp.abs(new - x))

    continues = lambda carry: (carry[2] > TOLERANCE) & (carry[0] < SWEEPS)
    return lax.while_loop(continues, sweep, (0, jnp.zeros_like(b), jnp.inf))[1]


def simulator(work, steps: int | None = None):
    """``run(q0, v0) -> (q, v)`` after ``steps`` steps, by default the work's own; all (lanes, d)."""
    problem, h, e, args = work.problem, work.h, work.restitution, work.args
    steps = work.steps if steps is None else steps
    linearisations = LINEARISATIONS.get(work.name.split("-")[0], 1)

    def gaps(q):
        return problem.constraints(0.0, q, args)

    def project(mass, w, s):
        """The velocity jump that leads from W to Z = W + s jump."""
        jump = jnp.zeros_like(w)
        for _ in range(linearisations):
            z = w + s * jump
            gradients = jax.jacfwd(gaps)(z)
            response = solve_mass(mass, gradients.T)
            a, b = gradients @ response, gaps(z) / s - gradients @ jump
            impulses = single if b.size == 1 else enumerate_sets if b.size <= ENUMERATE else gauss_seidel
            jump = response @ impulses(a, b)
        return jump

    def step(state, coefficients):
        (q, v), (t, s, c, k) = state, coefficients
        mass = problem.mass(q, args) if callable(problem.mass) else problem.mass
        kick = k * solve_mass(mass, problem.force(t, q, v, args))
        w = q + s * (c * v + kick)
        jump = lax.cond(jnp.all(gaps(w) >= 0), lambda: jnp.zeros_like(v), lambda: project(mass, w, s))
        v = v + kick + jump
        return (q + h * v, v), None

    def one(q, v):
        coefficients = np.tile([0, h / (1 + e), 1 - e, h], (steps, 1))
        coefficients[:, 0] = h * np.arange(steps)
        coefficients[0, 1:] = h, 1, h / 2
        return lax.scan(step, (q, v), jnp.asarray(coefficients, q.dtype))[0]

    def run(q0, v0):
        if len(q0) > 1:
            return jax.vmap(one)(q0, v0)
        q, v = one(q0[0], v0[0])  # in a batch, even of one, both branches of lax.cond are worked out
        return q[None], v[None]

    return run
