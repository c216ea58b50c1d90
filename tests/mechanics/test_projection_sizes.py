"""Projections of medium size: hard active sets, working sets, and what happens where pivots miss the tolerance."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import nnls

import jaximpact as ji
from jaximpact.extend import Contacts, ContactSolver, Metric, Solved, Target
from jaximpact.mechanics.contact import active_set
from jaximpact.mechanics.joints import Joints
from jaximpact.mechanics.mass import Identity
from jaximpact.mechanics.status import FAILURES, Status


def gradients(rng, kind, d, m):
    """Gradients (m, d): in general position, positive combinations of a few, within 1e-12 to 1e-3 of a few,
    or repeated."""
    few = rng.normal(size=(max(1, min(m // 2, d)), d))
    repeated = few[np.arange(m) % len(few)]
    return {
        "general": rng.normal(size=(m, d)),
        "dependent": np.concatenate([few, np.abs(rng.normal(size=(m - len(few), len(few)))) @ few]),
        "nearly dependent": repeated + 10.0 ** rng.uniform(-12, -3, (m, 1)) * rng.normal(size=(m, d)),
        "repeated": repeated * rng.uniform(0.1, 10, (m, 1)),
    }[kind]


def reference(jacobian, inverse_mass, v):
    """Velocity jump from the dual, the non-negative least squares problem min |R G' L + R^-T v|, M^-1 = R' R."""
    root = np.linalg.cholesky(inverse_mass).T
    impulse, _ = nnls(root @ jacobian.T, -np.linalg.solve(root.T, v), maxiter=10_000)
    return inverse_mass @ jacobian.T @ impulse


@pytest.mark.parametrize(
    ("d", "m"), [(12, 20), *(pytest.param(*x, marks=pytest.mark.slow) for x in [(2, 4), (3, 6), (16, 40)])]
)
def test_hard_active_sets(d, m):
    kinds = ("general", "dependent", "nearly dependent", "repeated")
    rng = np.random.default_rng(m)
    matrices, inverses, velocities = [], [], rng.normal(size=(4 * 15, d))
    for kind in kinds:
        for _ in range(15):
            root = rng.normal(size=(d, d))
            matrices.append(gradients(rng, kind, d, m))
            inverses.append(np.linalg.inv(root @ root.T + d * np.eye(d)))

    def project(matrix, inverse, v):
        offset = matrix @ v
        return Solved(ji.ActiveSet()).velocity(Contacts.of(offset, matrix, inverse @ matrix.T), offset)

    found = jax.jit(jax.vmap(project))(np.stack(matrices), np.stack(inverses), velocities)
    assert not np.any(found.status & int(FAILURES))
    assert np.all(found.impulse >= 0)
    for matrix, inverse, v, jump in zip(matrices, inverses, velocities, np.asarray(found.jump), strict=True):
        # the tolerance of 1e-12 over the smallest eigenvalue, above 1e-4, of an active block of independent gradients
        np.testing.assert_allclose(jump, reference(matrix, inverse, v), atol=1e-8)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Spoilt(ji.ActiveSet):
    """`ActiveSet` whose pivots miss the tolerance, as round-off may cause: for the first matrix, or always."""

    always: bool = field(default=False, metadata={"static": True})

    def impulses(self, contacts, offset, tolerance, guess):
        a, zero = contacts.delassus(), jnp.zeros((), jnp.int32)

        def spoilt(matrix, b, tolerance):
            found = active_set.dual_active_set(matrix, b, tolerance)
            wrong = self.always | (jnp.trace(matrix) == jnp.trace(a))
            return found._replace(impulse=jnp.where(wrong, 1.001 * found.impulse, found.impulse))

        start = active_set.Attempt(guess, jnp.zeros((), bool), zero, zero)
        return active_set.pivot_and_refine(a, offset, tolerance, start, spoilt)


@pytest.mark.parametrize("always", [False, True])
def test_refined_where_pivots_miss_the_tolerance(always):
    rng = np.random.default_rng(0)
    matrix, v = jnp.asarray(rng.normal(size=(6, 8))), jnp.asarray(rng.normal(size=8))
    offset = matrix @ v
    contacts = Contacts.of(offset, matrix, matrix.T)
    right, found = (
        jax.jit(Solved(solver).velocity)(contacts, offset) for solver in (ji.ActiveSet(), Spoilt(always=always))
    )
    assert not int(right.status) & ~int(Status.IMPULSES_COUPLED)
    assert bool(int(found.status) & Status.CONTACTS_NOT_SOLVED) == always
    if not always:
        # eigenvalues of the Delassus matrix are of order one
        np.testing.assert_allclose(found.jump, right.jump, atol=1e-11)


class AllTogether(ContactSolver):
    """`ActiveSet` without working sets and without warm starts, as the base class has it."""

    tolerance, max_linearisations, warm_starts = 1e-12, 50, False

    def impulses(self, contacts, offset, tolerance, guess):
        return ji.ActiveSet().impulses(contacts, offset, tolerance, jnp.zeros_like(offset))


def disks_gaps(t, q, args):
    centre = q.reshape(-1, 2)
    i, j = np.triu_indices(q.size // 2, 1)
    return jnp.concatenate([jnp.linalg.norm(centre[i] - centre[j], axis=1) - 0.2, q - 0.1, 0.9 - q])


DISKS = ji.Problem(lambda t, q, v, args: jnp.zeros_like(q), disks_gaps)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [ji.ActiveSet(), ji.ProjectedGradient()],
    ids=["active-set", "projected-gradient"],
)
def test_working_sets_find_the_projection_on_all_constraints(method):
    """Sixteen disks in a box, from one overlap to a crowd of more than the smaller working set."""
    rng = np.random.default_rng(1)
    column, row = np.meshgrid(np.arange(4), np.arange(4))
    lattice = np.stack([column.ravel(), row.ravel()], axis=1) * 0.202 + 0.197
    scale, base = jnp.asarray(1e-2), jnp.asarray(lattice.ravel())

    def project(method, move):
        metric, time = Metric(Identity(), Joints.none(len(base), base.dtype)), jnp.asarray(0.0)
        return Solved(method).position(DISKS, metric, Target(time, base, move, scale), None)

    counts = []
    for squeeze in (0.0, 0.02, 0.05):
        move = squeeze * (0.5 - base) + 0.002 * rng.uniform(-1, 1, 32)
        found, whole = (jax.jit(lambda x, m=m: project(m, x))(move) for m in (method, AllTogether()))
        assert not (int(found.status) | int(whole.status)) & ~int(Status.IMPULSES_COUPLED)
        # both residuals [velocity] are below round-off of 1/scale, multiplied by the Delassus matrix's condition
        np.testing.assert_allclose(found.jump, whole.jump, atol=1e-9)
        assert float(jnp.min(DISKS.gaps(0.0, base + move + scale * found.jump, None))) >= -1e-13
        counts.append(int(np.sum(found.impulse > 0)))
    assert counts[0] < 8 < 16 < counts[-1]


def test_rows_of_the_jacobian():
    """One tangent after the other gives what automatic differentiation gives at once."""
    q = jnp.asarray(np.random.default_rng(2).uniform(size=12))
    exact = jax.jit(jax.jacfwd(lambda q: disks_gaps(0.0, q, None)))(q)
    gaps, rows = np.asarray(jax.jit(lambda q: disks_gaps(0.0, q, None))(q)), np.array([3, 0, 20, 38])
    for chosen, wanted in ((None, exact), (rows, exact[rows])):
        f, matrix = jax.jit(lambda q, chosen=chosen: DISKS.gaps.jacobian(0.0, q, None, chosen))(q)
        # the same products and quotients, perhaps fused otherwise
        np.testing.assert_allclose(matrix, wanted, rtol=1e-14, atol=1e-15)
        np.testing.assert_allclose(f, gaps if chosen is None else gaps[rows])
