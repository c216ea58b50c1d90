"""What a step may ask for: `Open` says where `Solved` would act, `Held` is `Solved` and its
derivative on a known active set."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact.extend import Contacts, Held, Metric, Open, Solved, Target

SOLVED = Solved(ji.ActiveSet())
MASS = np.array([[2.0, 0.3, 0.0], [0.3, 1.0, 0.1], [0.0, 0.1, 1.5]])


def constraints(t, q, args):
    """Outside an ellipse, above a sine that moves, above a floor."""
    return jnp.stack([q[0] ** 2 / 2 + q[1] ** 2 - 1, q[1] - 0.3 * jnp.sin(2 * q[0] + t), q[2] - 1])


PROBLEM = ji.Problem(lambda t, q, v, args: jnp.zeros(3), constraints, mass=jnp.asarray(MASS))
METRIC = Metric.at(PROBLEM, jnp.zeros(3), None)


def contacts_of(matrix):
    return Contacts.of(jnp.zeros(len(matrix)), matrix, jnp.linalg.solve(jnp.asarray(MASS), matrix.T))


@jax.jit
def velocities(matrix, offset, candidates):
    return [law.velocity(contacts_of(matrix), offset, candidates) for law in (Open(), SOLVED)]


@jax.jit
def positions(increment):
    target = Target(jnp.asarray(0.5), jnp.array([0.9, 0.9, 1.1]), increment, jnp.asarray(0.1))
    return [law.position(PROBLEM, METRIC, target, None) for law in (Open(), SOLVED)]


def test_open_acts_where_solved_has_an_impulse():
    """Of velocities exactly where; of positions wherever it has one, and beyond only where a
    gap could close on the way."""
    rng = np.random.default_rng(0)
    acted = 0
    for _ in range(40):
        candidates = jnp.asarray(rng.random(4) < 0.7)
        pairs = (
            velocities(jnp.asarray(rng.normal(size=(4, 3))), jnp.asarray(rng.normal(size=4) + 0.7), candidates),
            positions(jnp.asarray(0.15 * rng.normal(size=3))),
        )
        for k, (free, found) in enumerate(pairs):
            assert not np.any(free.jump) and not np.any(free.impulse) and int(free.status) == 0
            carries = bool(np.any(found.impulse > 0))
            assert bool(jnp.any(found.acts)) == carries
            assert bool(jnp.any(free.acts)) == carries or (k == 1 and bool(jnp.any(free.acts)))
            acted += bool(jnp.any(free.acts))
        assert not np.any((np.asarray(pairs[0][0].acts) | (pairs[0][1].impulse > 0)) & ~candidates)
    assert 20 <= acted <= 60  # of 80: both sides are met


def test_open_acts_on_what_is_no_number():
    assert np.array_equal(Open().velocity(contacts_of(jnp.eye(3)), jnp.array([1.0, jnp.nan, 0.0])).acts, [0, 1, 0])


def check(reaction, x, known, allowed):
    """Checks a `Held` reaction on ``known`` contacts: its value, and its derivative in x against
    that of the law with a solver."""

    def both(law, x):
        found = reaction(law, x)
        value = jnp.concatenate([found.jump, found.impulse])
        return value, (value, found.acts)

    slope = lambda law: jax.jacfwd(partial(both, law), has_aux=True)
    (by_held, (held, acts)), (by_solved, (solved, _)) = jax.jit(lambda x: [slope(known)(x), slope(SOLVED)(x)])(x)
    assert np.any(acts) and not np.all(acts)
    # the jump and the impulses fit each other to the solver's tolerance of 1e-12, over eigenvalues above 0.1
    np.testing.assert_allclose(held, solved, rtol=0, atol=1e-11)
    np.testing.assert_allclose(by_held, by_solved, rtol=0, atol=allowed)


def test_held_is_solved_on_its_active_set():
    matrix = jnp.array([[1.0, 0.2, 0.1], [0.3, 1.0, 0.0], [0.0, 0.1, 1.0]])
    offset = jnp.array([-1.0, 0.5, -0.3])
    found = jax.jit(SOLVED.velocity)(contacts_of(matrix), offset)
    known = Held(found.acts, found.impulse, jnp.zeros(3))
    check(lambda law, x: law.velocity(contacts_of(matrix + 0.1 * x[3]), x[:3]), jnp.append(offset, 0.0), known, 1e-10)


@pytest.mark.parametrize(
    ("normal", "allowed"), [pytest.param("implicit", 1e-2, marks=pytest.mark.slow), ("explicit", 1e-8)]
)
def test_held_is_solved_at_a_projected_position(normal, allowed):
    """One Newton step from the solution: exact where normals are fixed, else up to their turning,
    h times the curvature."""
    base, h = jnp.array([0.9, jnp.sqrt(0.595), 1.1]), 1e-3  # on the ellipse

    def reaction(law, x):
        target = Target(x[3], base, h * x[:3], jnp.asarray(h), normal)
        return law.position(PROBLEM, METRIC, target, None)

    x = jnp.array([-0.3, -0.4, 0.1, 0.5])
    found = jax.jit(partial(reaction, SOLVED))(x)
    check(reaction, x, Held(found.acts, found.impulse, base + h * (x[:3] + found.jump)), allowed)


def test_what_acts_is_told_without_impulses():
    """`acting`, for schemes that work out the impulses: what `velocity` gives an impulse, by each law."""
    rng = np.random.default_rng(1)
    contacts, offset = contacts_of(jnp.asarray(rng.normal(size=(3, 3)))), jnp.array([-1.0, 0.4, -0.2])
    candidates = jnp.array([True, True, False])
    for law in (SOLVED, Open(), Held(jnp.array([True, False, True]), jnp.ones(3), jnp.zeros(3))):
        both = lambda law: (
            law.acting(contacts, offset, candidates)[0],
            law.velocity(contacts, offset, candidates).acts,
        )
        assert np.array_equal(*jax.jit(both)(law))
