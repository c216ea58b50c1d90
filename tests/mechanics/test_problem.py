"""Constructors: forces, Coriolis terms and energies by automatic differentiation, against hand derivations."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact.extend import Metric
from support.breadth import slow

L1, L2, M1, M2, G = 1.0, 0.8, 1.0, 0.7, 9.81


def coupling(q):
    return M2 * L1 * L2 * jnp.cos(q[0] - q[1])


def mass(q, args):
    return jnp.array([[(M1 + M2) * L1**2, coupling(q)], [coupling(q), M2 * L2**2]])


def potential(q, args):
    return -(M1 + M2) * G * L1 * jnp.cos(q[0]) - M2 * G * L2 * jnp.cos(q[1])


def by_hand(q, v):
    """Generalised force of the planar double pendulum in absolute angles, textbook form."""
    s = M2 * L1 * L2 * np.sin(q[0] - q[1])
    return np.array([-s * v[1] ** 2 - (M1 + M2) * G * L1 * np.sin(q[0]), s * v[0] ** 2 - M2 * G * L2 * np.sin(q[1])])


DAMPING = lambda t, q, v, args: -0.3 * v

POTENTIAL = ji.Problem.from_potential(potential, mass=mass, force=DAMPING)
LAGRANGIAN = ji.Problem.from_lagrangian(
    lambda t, q, v, args: 0.5 * v @ mass(q, args) @ v - potential(q, args), force=DAMPING
)


@pytest.mark.parametrize("problem", [POTENTIAL, LAGRANGIAN], ids=["potential", "lagrangian"])
def test_the_force_of_a_lagrangian_is_that_by_hand(problem):
    @jax.jit
    def found(q, v):
        return problem.generalised_force(0.0, q, v, None), problem.mass(q, None), problem.energy(0.0, q, v, None)

    known = jax.jit(lambda q: (mass(q, None), potential(q, None)))
    for q, v in np.random.default_rng(0).normal(size=(5, 2, 2)):
        matrix, height = known(q)
        expected = by_hand(q, v) - 0.3 * v, matrix, 0.5 * v @ np.asarray(matrix) @ v + float(height)
        for one, other in zip(found(q, v), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-12)


def polar_mass(q, args):
    return jnp.stack([jnp.ones_like(q[0]), q[0] ** 2])


def centrifugal(t, q, v, args):
    """Of a free point in polar coordinates: Coriolis and centrifugal terms."""
    return jnp.stack([q[0] * v[1] ** 2, -2 * q[0] * v[0] * v[1]])


@jax.custom_vjp
def opaque(v):
    return v**2


opaque.defvjp(lambda v: (opaque(v), v), lambda v, g: (2 * v * g,))
AT_REST = lambda t, q, v, args: jnp.zeros(2)


@pytest.mark.parametrize("force", [AT_REST, DAMPING], ids=["none", "damping"])
def test_missing_velocity_terms_are_remarked_on(force):
    """A free point in polar coordinates without centrifugal force stays at r = 1, in place of sqrt(1 + t^2);
    damping makes no difference."""
    free = ji.Problem(force, mass=polar_mass)
    with pytest.warns(
        ji.JaximpactWarning,
        match=r"mass\(q, args\) depends on q, and force.*from_potential and Problem.from_lagrangian",
    ):
        ji.solve(free, [1.0, 0.0], [0.0, 1.0], t1=0.1, h=0.1)
    if force is AT_REST:
        with pytest.warns(ji.JaximpactWarning, match="quadratic in v"):  # also where no number is known
            jax.jit(lambda v: ji.solve(free, [1.0, 0.0], v, t1=0.1, steps=1).q)(jnp.array([0.0, 1.0]))


@pytest.mark.parametrize(
    "problem",
    [
        ji.Problem(centrifugal, mass=polar_mass),
        slow(ji.Problem.from_potential(lambda q, args: jnp.zeros(()), mass=polar_mass)),
        slow(ji.Problem.from_lagrangian(lambda t, q, v, args: 0.5 * v @ (polar_mass(q, args) * v))),
        ji.Problem.from_momentum_force(lambda t, q, p, args: -p, mass=polar_mass),
        ji.Problem(AT_REST, mass=lambda q, args: args * jnp.ones_like(q)),
        ji.Problem(AT_REST, mass=lambda q, args: jnp.where(q > 5, 2.0, 1.0)),
        ji.Problem(lambda t, q, v, args: opaque(v), mass=polar_mass),
    ],
    ids=["by hand", "potential", "lagrangian", "momentum", "constant", "jumps", "no derivative"],
)
def test_no_velocity_terms_are_missed_where_none_are(problem):
    """Warnings are errors in this suite."""
    ji.solve(problem, [1.0, 0.0], [0.0, 0.5], t1=0.1, h=0.1, args=1.0)


def test_explicit_time_in_the_lagrangian():
    """A bead on a rod that turns at rate w, and a charge in a growing field: terms from d/dt of dL/dv."""
    # L = (v^2 + w^2 q^2)/2 + t v: g = w^2 q - 1
    problem = ji.Problem.from_lagrangian(lambda t, q, v, args: 0.5 * v @ v + 0.5 * args**2 * q @ q + t * v[0])
    found = problem.generalised_force(2.0, jnp.array([3.0]), jnp.array([0.7]), 1.5)
    np.testing.assert_allclose(found, [1.5**2 * 3.0 - 1.0], atol=1e-14)


def test_python_runs_a_lagrangian_once_for_each_kind_of_operands():
    """However often a program needs M and g; without that, tracing 1000 double pendulums
    took twice as long as by hand."""
    runs = []

    def lagrangian(t, q, v, args):
        runs.append(q.dtype)
        return 0.5 * v @ mass(q, args) @ v - args * potential(q, None)

    problem = ji.Problem.from_lagrangian(lagrangian)

    @jax.jit
    def found(t, q, v, args):
        force = problem.generalised_force(t, q, v, args)
        change = jax.jvp(lambda x: problem.generalised_force(t, x, v, args), (q,), (v,))[1]
        return force, change, problem.mass(q, args), problem.mass(q + v, args)

    for kind in (jnp.float64, jnp.float32):
        q, v = jnp.array([0.3, -0.4], kind), jnp.array([1.0, 2.0], kind)
        force, change, here, there = found(jnp.ones((), kind), q, v, jnp.ones((), kind))
        tiny = 100 * jnp.finfo(kind).eps
        np.testing.assert_allclose(force, by_hand(q, v), rtol=tiny)
        at, speed = np.asarray(q, float), np.asarray(v, float)
        sides = [by_hand(at + s * speed, speed) for s in (-1e-5, 1e-5)]  # error 1e-10, round-off 1e-10
        np.testing.assert_allclose(change, (sides[1] - sides[0]) / 2e-5, rtol=max(tiny, 1e-8))
        np.testing.assert_allclose(here, mass(q, None), rtol=tiny)
        np.testing.assert_allclose(there, mass(q + v, None), rtol=tiny)
    assert runs == [jnp.float64, jnp.float32]


def test_a_lagrangian_that_closes_over_what_is_differentiated():
    """L = v^2/2 - w q^2/2: dg/dw = -q."""

    def force(w):
        problem = ji.Problem.from_lagrangian(lambda t, q, v, args: 0.5 * v @ v - 0.5 * w * q @ q)
        return problem.generalised_force(0.0, jnp.array([3.0]), jnp.array([1.0]), None)[0]

    assert float(jax.grad(force)(2.0)) == -3.0
    assert float(jax.jit(jax.grad(force))(2.0)) == -3.0


@pytest.mark.parametrize("spin", [0.0, 0.5])
def test_where_the_expression_does_not_tell_that_it_is_quadratic_numbers_do(spin):
    """d2L/dv2 = 1 + spin sin(t): computed from t, and the same at all t for spin = 0 alone."""
    problem = ji.Problem.from_lagrangian(lambda t, q, v, args: 0.5 * (1 + args * jnp.sin(t)) * v @ v)
    motion = lambda: ji.solve(problem, [0.0], [1.0], t1=0.1, h=0.1, args=spin)
    if spin:
        with pytest.raises(ValueError, match="lagrangian must be quadratic in v"):
            motion()
    else:
        np.testing.assert_allclose(motion().q[-1], [0.1], rtol=1e-12)


def test_momentum_form():
    """f(t, q, p) = -p has generalised force -M v."""
    problem = ji.Problem.from_momentum_force(lambda t, q, p, args: -p, mass=mass)
    q, v = jnp.array([0.3, -0.4]), jnp.array([1.0, 2.0])
    np.testing.assert_allclose(problem.generalised_force(0.0, q, v, None), -mass(q, None) @ v, rtol=1e-14)
    for given, matrix in ((2.0, 2 * np.eye(2)), (jnp.array([1.0, 3.0]), np.diag([1.0, 3.0])), (None, np.eye(2))):
        problem = ji.Problem.from_momentum_force(lambda t, q, p, args: -p, mass=given)
        np.testing.assert_allclose(problem.generalised_force(0.0, q, v, None), -matrix @ v, rtol=1e-14)


@pytest.mark.parametrize("given", [jnp.array([2.0, 2.0]), slow(2 * jnp.eye(2)), lambda q, args: 2 * jnp.eye(2)])
def test_forms_of_the_mass_agree(given):
    """Scalar, diagonal, matrix and function give the same motion and impulses."""
    problem = ji.Problem(lambda t, q, v, args: -jnp.ones(2), lambda t, q, args: jnp.stack([q[0] + q[1]]), mass=given)
    found = ji.solve(problem, [0.3, 0.4], [0.0, -0.1], t1=3.0, h=0.01, e=0.5)
    reference = ji.solve(problem.replace(mass=2.0), [0.3, 0.4], [0.0, -0.1], t1=3.0, h=0.01, e=0.5)
    np.testing.assert_allclose(found.q, reference.q, atol=1e-12)
    np.testing.assert_allclose(found.impulse, reference.impulse, atol=1e-12)
    metric = Metric.at(problem, jnp.zeros(2), None)
    x = jnp.array([1.0, -2.0])
    np.testing.assert_allclose(metric.solve(metric.times(x)), x, atol=1e-14)
    assert bool(metric.positive())


def test_numbers_are_leaves():
    """Restitution and a numeric mass can be differentiated through the problem itself, here the discrete map."""
    ball = ji.Problem(lambda t, q, v, args: -jnp.ones(1), lambda t, q, args: q, mass=2.0, restitution=0.5)
    assert len(jax.tree.leaves(ball)) == 2

    def height(problem):
        return ji.solve(problem, [1.0], [0.0], t1=3.0, steps=300, save="final", sensitivity="discrete").q[0, 0]

    slope = jax.grad(height)(ball)
    h = 1e-6
    for name, value in (("restitution", 0.5), ("mass", 2.0)):
        ends = [float(height(ball.replace(**{name: value + d}))) for d in (-h, h)]
        # round-off 1e-13 over 2h
        assert float(getattr(slope, name)) == pytest.approx((ends[1] - ends[0]) / (2 * h), abs=1e-5)


def weight(t, q, v, args):
    return -9.81 * jnp.ones_like(q)


def floor(t, q, args):
    return q


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "deepcopy", "pickle"]
)
def test_copies_are_the_same_problem(again):
    """As for processes of a pool; jax then takes the programs that it has."""
    problem = ji.Problem(weight, floor, mass=np.array([2.0]), restitution=0.5, coordinates=("height",), units="m")
    one, other = jax.tree.flatten(problem), jax.tree.flatten(again(problem))
    assert one == other and again(problem).units == "m"


def test_energy_is_reported():
    """The scheme's energy in free flight of a harmonic oscillator stays within O(h) of its start."""
    problem = ji.Problem.from_potential(lambda q, args: 0.5 * q @ q)
    found = ji.solve(problem, [1.0], [0.0], t1=10.0, h=0.001)
    assert found.energy.shape == (10001,)
    np.testing.assert_allclose(found.energy, 0.5, atol=0.5 * 0.001)
