"""The contact problem as a function of arrays, with friction and without: the law, enumeration, derivatives by
differences and by hand, refusals."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact.extend import solve_contact
from support.breadth import slow

solved = jax.jit(solve_contact, static_argnames="solver")


def drawn(rng, m, k, dof):
    """(A, b) of m contacts with k tangents on ``dof`` coordinates: feasible,
    with dependent rows where these are few."""
    rows = rng.standard_normal((m * (1 + k), dof))
    rows[:: 1 + k] *= 2  # inside Painleve's bound
    b = rows @ (2 * rng.standard_normal(dof))
    return rows @ rows.T, b if k == 0 else b.reshape(m, 1 + k)


def law_violation(a, b, mu, x):
    """By how much the law fails [velocity], straight from its statement: complementarity, Coulomb's cone,
    the largest dissipation in it."""
    size, (a, b, x) = np.shape(b), (np.asarray(y, float) for y in (a, b, x))
    columns = b.size // len(b)
    w, x = (a @ x.ravel() + b.ravel()).reshape(-1, columns), x.reshape(-1, columns)
    assert w.shape[0] == size[0]
    scale = np.max(np.diagonal(a).reshape(x.shape), axis=1)
    across, slip = np.linalg.norm(x[:, 1:], axis=1), np.linalg.norm(w[:, 1:], axis=1)
    normal = np.abs(np.minimum(w[:, 0], scale * x[:, 0]))
    cone = scale * np.maximum(across - mu * x[:, 0], 0)
    lost = np.abs(np.sum(x[:, 1:] * w[:, 1:], axis=1) + mu * x[:, 0] * slip)
    return max(normal.max(), cone.max(), np.max(scale * lost / np.maximum(scale * across + slip, 1e-300)))


EXACT, SPLIT, GRADIENT = ji.ActiveSet(), ji.ADMM(tolerance=1e-10), ji.ProjectedGradient(tolerance=1e-10)


@pytest.mark.parametrize(
    ("solver", "m", "k", "dof", "least"),
    [
        (EXACT, 6, 0, 3, 30), (EXACT, 100, 0, 15, 30), (GRADIENT, 100, 0, 15, 30), (SPLIT, 6, 0, 3, 30),
        (GRADIENT, 6, 0, 3, 30), (EXACT, 2, 1, 3, 30), (EXACT, 6, 2, 14, 29), (SPLIT, 4, 2, 14, 30),
        *(slow(x, 6, 0, 8, 30) for x in (EXACT, SPLIT, GRADIENT)), slow(EXACT, 12, 1, 18, 30),
        slow(EXACT, 4, 2, 14, 30), *(slow(x, 4, 1, 10, 30) for x in (EXACT, SPLIT, GRADIENT)),
        slow(GRADIENT, 4, 2, 14, 30),
    ],
    ids=lambda x: type(x).__name__ if not isinstance(x, int) else str(x),
)  # fmt: skip
def test_impulses_obey_the_law(solver, m, k, dof, least):
    """Also where there are more impulses than coordinates; in the plane always, as pivots are finite,
    in space nearly always."""
    rng = np.random.default_rng(5)
    a, b = (np.stack(x) for x in zip(*(drawn(rng, m, k, dof) for _ in range(30)), strict=True))
    mu = None if k == 0 else 0.8
    found = jax.jit(jax.vmap(lambda a, b: solve_contact(a, b, mu, solver=solver)))(a, b)
    np.testing.assert_allclose(
        found.velocity.ravel(),
        (np.einsum("nij,nj->ni", a, found.impulse.reshape(30, -1)) + b.reshape(30, -1)).ravel(),
        atol=1e-11,
    )
    # round-off of A x, by the condition of what iterates
    good = [law_violation(*each, mu or 0.0, x) < 1e-6 for *each, x in zip(a, b, found.impulse, strict=True)]
    assert np.sum(np.array(good) & (found.status == 0)) >= least and np.any(found.impulse > 0.1)


def enumerated(a, b, mu):
    """All solutions of a planar problem: a linear system for each mode of each contact."""
    m, every = len(b), []
    for modes in itertools.product(("open", "sticks", 1.0, -1.0), repeat=m):
        rows, right = np.zeros((2 * m, 2 * m)), np.zeros(2 * m)
        for i, mode in enumerate(modes):
            n, t = 2 * i, 2 * i + 1
            if mode == "open":
                rows[n, n] = rows[t, t] = 1
                continue
            rows[n], right[n] = a[n], -b[i, 0]
            if mode == "sticks":
                rows[t], right[t] = a[t], -b[i, 1]
            else:
                rows[t, t], rows[t, n] = 1, mu * mode
        x = np.linalg.solve(rows, right).reshape(m, 2)
        if law_violation(a, b, mu, x) < 1e-9:
            every.append(x)
    return every


@pytest.mark.parametrize("m", [slow(1), slow(2), 3])
def test_planar_solutions_are_those_of_enumeration(m):
    rng = np.random.default_rng(m)
    seen = 0
    for _ in range(60):
        (a, b), mu = drawn(rng, m, 1, 2 * m + 2), rng.uniform(0, 1.2)
        found = solved(a, b, mu)
        assert found.status == 0
        # |x| is of order 1, and the smallest eigenvalue of such a matrix 1e-3
        assert min(np.abs(found.impulse - y).max() for y in enumerated(a, b, mu)) < 1e-6
        seen += bool(np.any(found.impulse))
    assert seen > 20


def test_several_solutions():
    """Beyond Painleve's bound: the nearest to the guess, which is the mode of the step before."""
    a, b, mu = np.array([[1.0, -1.5], [-1.5, 4.0]]), np.array([[0.2, -1.0]]), 2.0
    every = enumerated(a, b, mu)
    assert len(every) == 3
    for x in every:
        np.testing.assert_allclose(solved(a, b, mu, guess=x + 1e-3).impulse, x, atol=1e-12)


def test_least_change_of_redundant_impulses():
    """A bar pressed flat onto a floor by two contacts shares the tangential impulse, or leaves it as it was."""
    rows = np.array([[0, 1, 1.0], [1, 0, 0], [0, 1, -1], [1, 0, 0]])
    a, b = rows @ rows.T, (rows @ np.array([0.3, -1.0, 0.0])).reshape(2, 2)
    np.testing.assert_allclose(solved(a, b, 0.9).impulse, [[0.5, -0.15], [0.5, -0.15]], atol=1e-14)
    x = solved(a, b, 0.9, guess=np.array([[0.5, -0.25], [0.5, -0.05]])).impulse
    np.testing.assert_allclose(x[:, 1], [-0.25, -0.05], atol=1e-14)


@pytest.mark.parametrize(("m", "k"), [(2, 1), slow(4, 1), slow(4, 2)])
def test_homogeneity(m, k):
    """Impulses grow with velocities and shrink with the contacts' inverse masses, of any size and ratio."""
    rng = np.random.default_rng(7)
    a, b = drawn(rng, m, k, m * (1 + k) + 2)
    x = np.asarray(solved(a, b, 0.5).impulse)
    units = 10.0 ** rng.uniform(-4, 4, m)
    each = np.repeat(units, 1 + k)
    scaled = solved(each[:, None] * a * each, 1e3 * units[:, None] * b, 0.5).impulse
    np.testing.assert_allclose(scaled * units[:, None], 1e3 * x, rtol=1e-7, atol=1e-7 * 1e3 * np.abs(x).max())


@pytest.mark.parametrize(("m", "k"), [(2, 1), slow(4, 1), slow(4, 2)])
def test_float32_and_nan(m, k):
    a, b = drawn(np.random.default_rng(4), m, k, m * (1 + k) + 2)
    found = solved(a.astype(np.float32), b.astype(np.float32), np.float32(0.5))
    assert found.impulse.dtype == np.float32 and found.status == 0 and found.iterations < 100
    assert law_violation(a, b, 0.5, found.impulse) < 1e-4
    b[0, 1] = np.nan
    assert int(solved(a, b, 0.5).status) & int(ji.Status.CONTACTS_NOT_SOLVED)


@pytest.mark.parametrize(("m", "k"), [(6, 0), (2, 1), slow(4, 2)])
def test_derivatives_are_differences_in_both_modes(m, k):
    """By A, b and mu; with friction one contact slips, whose direction turns."""
    rng = np.random.default_rng(8)
    a, b = drawn(rng, m, k, m * (1 + k) + 2)
    mu = np.asarray(0.3) if k else None
    if k:
        b[:, 0] = -1 - rng.random(m)
    change = rng.standard_normal(a.shape) * 0.1
    direction = change + change.T, rng.standard_normal(b.shape), None if mu is None else np.asarray(1.0)
    f, at, step = jax.jit(lambda *x: solve_contact(*x).impulse), (a, b, mu), 1e-6
    moved = lambda s: f(*jax.tree.map(lambda x, dx: x + s * step * dx, at, direction))
    x, forward = jax.jvp(f, at, direction)
    if k:
        w = np.asarray(solved(*at).velocity)
        assert np.any((np.linalg.norm(w[:, 1:], axis=1) > 1e-3) & (x[:, 0] > 1e-3))
    # error of the differences: their rounding 1e-13 / step
    np.testing.assert_allclose(forward, (moved(1) - moved(-1)) / (2 * step), atol=1e-6, rtol=1e-6)
    weight = rng.standard_normal(b.shape)
    reverse = jax.tree.leaves(jax.vjp(f, *at)[1](weight))
    total = sum(np.sum(np.asarray(r) * d) for r, d in zip(reverse, jax.tree.leaves(direction), strict=True))
    np.testing.assert_allclose(total, np.sum(np.asarray(forward) * weight), rtol=1e-10)


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


def test_what_no_impulse_opens_is_told():
    """No inverse mass, or walls that want x >= 1 and -x >= 1, beside others; NaN."""
    opposed = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    for rows in (np.zeros((1, 1)), opposed):
        assert int(solve_contact(rows @ rows.T, -np.ones(len(rows))).status) & int(ji.Status.CONTACTS_NOT_SOLVED)
    nan = jax.jit(lambda b: solve_contact(np.eye(6), b).status)(np.full(6, np.nan))
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
