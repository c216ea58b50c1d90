"""The contact problem as a function of arrays: complementarity, derivatives by differences and by hand, batches, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact.extend import solve_contact

M = 6  # beyond what is enumerated


def problems(count, seed=0, rank=M, m=M):
    """Random (A, b) in lanes, A of the given rank, b in its range: feasible."""
    rng = np.random.default_rng(seed)
    g = rng.standard_normal((count, m, rank))
    a = g @ np.swapaxes(g, 1, 2)
    return a, np.einsum("nij,nj->ni", g, rng.standard_normal((count, rank)))


@pytest.mark.parametrize("rank", [pytest.param(M, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("solver", [ji.ActiveSet(), ji.ADMM(), ji.ProjectedGradient()], ids=lambda x: type(x).__name__)
def test_impulses_and_velocities_are_complementary(solver, rank):
    a, b = problems(20, rank=rank)
    found = jax.jit(jax.vmap(lambda a, b: solve_contact(a, b, solver=solver)))(a, b)
    assert not found.status.any()
    # round-off of A x, by the condition of what iterates
    assert np.all(found.impulse >= 0) and np.min(found.velocity) > -1e-9
    assert np.max(np.abs(found.impulse * found.velocity)) < 1e-8 and np.any(found.impulse > 0.1)
    np.testing.assert_allclose(found.velocity, np.einsum("nij,nj->ni", a, found.impulse) + b, atol=1e-12)


def test_derivatives_are_differences_in_both_modes():
    (a,), (b,) = problems(1)
    rng = np.random.default_rng(1)
    da, db = rng.standard_normal((M, M)), rng.standard_normal(M)
    da = da + da.T
    impulse = jax.jit(lambda s: solve_contact(a + s * da, b + s * db).impulse)
    h = 1e-6  # the error of central differences: h^2 and eps/h
    exact = (impulse(h) - impulse(-h)) / (2 * h)
    for transform in (jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(jax.jit(transform(impulse))(0.0), exact, rtol=1e-6, atol=1e-7)


def test_dependent_contacts_have_the_derivative_of_their_velocities():
    """Three equal contacts share a push: their velocities are zero whatever the matrix; the sum of impulses is 1/a."""
    total = lambda s: jnp.sum(solve_contact((1 + s) * jnp.ones((3, 3)), -jnp.ones(3)).impulse)
    value, slope = jax.jit(jax.value_and_grad(total))(0.5)
    assert np.isclose(value, 1 / 1.5, rtol=1e-12) and np.isclose(slope, -1 / 1.5**2, rtol=1e-6)


def test_one_contact_with_friction_slips_or_sticks_as_by_hand():
    a = jnp.diag(jnp.array([2.0, 4.0]))
    push = jax.jit(lambda mu, along: solve_contact(a, jnp.stack([-1.0 + 0 * along, along])[None], mu).impulse[0])
    by_mu, by_velocity = zip(*(jax.jit(jax.jacfwd(push, (0, 1)))(*at) for at in ((0.3, 3.0), (0.3, 0.2))), strict=True)
    np.testing.assert_allclose(push(0.3, 3.0), [0.5, -0.15], atol=1e-14)  # slips: mu times the normal impulse
    np.testing.assert_allclose(push(0.3, 0.2), [0.5, -0.05], atol=1e-14)  # sticks
    np.testing.assert_allclose(by_mu[0], [0.0, -0.5], atol=1e-12)
    np.testing.assert_allclose(by_velocity[1], [0.0, -0.25], atol=1e-12)


def test_many_contacts_in_space_are_in_their_cones():
    rng = np.random.default_rng(2)
    g = rng.standard_normal((12, 12))
    a, b, mu = g @ g.T, rng.standard_normal((4, 3)) - [1.0, 0, 0], np.array([0.1, 0.4, 0.0, 0.8])
    found = jax.jit(solve_contact)(a, b, mu)
    x = np.asarray(found.impulse)
    assert found.status == 0 and np.all(np.linalg.norm(x[:, 1:], axis=1) <= mu * x[:, 0] + 1e-12)
    # w + mu |w_t| n in the dual cone and orthogonal to the impulse (De Saxce and Feng 1998), to the solver's 1e-12 and round-off
    w = np.array(found.velocity)
    assert np.min(w[:, 0]) > -1e-9
    w[:, 0] += mu * np.linalg.norm(w[:, 1:], axis=1)
    assert np.max(np.abs(np.sum(x * w, axis=1))) < 1e-9


def test_what_no_impulse_opens_is_told():
    found = solve_contact(np.zeros((1, 1)), [-1.0])
    assert int(found.status) & int(ji.Status.CONTACTS_NOT_SOLVED)
    nan = jax.jit(lambda b: solve_contact(np.eye(M), b).status)(np.full(M, np.nan))
    assert int(nan) & int(ji.Status.CONTACTS_NOT_SOLVED)


@pytest.mark.parametrize("a, b, mu, message", [
    (np.eye(3), np.zeros(2), None, r"delassus must have shape \(2, 2\)"),
    (np.eye(2), np.zeros((1, 2)), None, "without friction"),
    (np.eye(2), np.zeros((1, 2)), -0.1, "friction must be >= 0"),
    (np.eye(2), np.zeros((1, 2)), [0.1, 0.2], r"friction must be a number or have shape \(1,\)"),
    (np.eye(4), np.zeros((1, 4)), 0.1, r"\(m, 2\) or \(m, 3\)"),
    ([[1.0, 0.5], [0.0, 1.0]], -np.ones(2), None, "delassus must be symmetric"),
    ([[1.0, 2.0], [2.0, 1.0]], -np.ones(2), None, "delassus must be positive semidefinite.* eigenvalue is -1"),
    ([[1.0, 2.0], [2.0, 1.0]], -np.ones((1, 2)), 0.3, "delassus must be positive semidefinite"),
    ([[np.nan]], [-1.0], None, "delassus must be finite"),
])  # fmt: skip
def test_bad_input_is_named(a, b, mu, message):
    with pytest.raises(ValueError, match=message):
        solve_contact(a, b, mu)


def test_no_contacts_have_no_impulses():
    for found in (solve_contact(np.zeros((0, 0)), []), jax.jit(solve_contact)(np.zeros((0, 0)), np.zeros(0))):
        assert found.impulse.shape == found.velocity.shape == (0,)
        assert not any(map(float, (found.residual, found.iterations, found.status)))
    assert solve_contact(np.zeros((0, 0)), np.zeros((0, 2)), 0.3).impulse.shape == (0, 2)


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_traced_matrices_that_are_none_of_a_system_set_a_bit(kind):
    """Not symmetric; indefinite, with a zero diagonal too; NaN. Of rank one and zero, scaled: right."""
    wrong = [[[1, 0.5], [0, 1]], [[1, 2], [2, 1]], [[0, 1], [1, 0]], [[np.nan, 0], [0, 1]]]
    right = [[[1, 1], [1, 1]], [[0, 0], [0, 0]], [[1e-20, 1e-20], [1e-20, 1e-20]], [[1e6, 1e3], [1e3, 1]]]
    status = jax.jit(jax.vmap(lambda a: solve_contact(a, jnp.ones(2, kind)).status))(np.array(wrong + right, kind))
    out = (np.asarray(status) & int(ji.Status.INPUT_INVALID)) > 0
    assert out.tolist() == [True] * 4 + [False] * 4
    rubs = jax.jit(lambda mu: solve_contact(jnp.eye(2, dtype=kind), -jnp.ones((1, 2), kind), mu).status)
    assert int(rubs(kind(-0.1))) & int(ji.Status.INPUT_INVALID) and not rubs(kind(0.1))
