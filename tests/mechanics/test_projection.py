"""Every projection solves the same problem, of velocities and of positions: against a general optimiser,
and differences."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import jaximpact as ji
from jaximpact import Status
from jaximpact.extend import Contacts, Metric, Solved, Target
from support.methods import SOLVERS

METHODS = pytest.mark.parametrize("method", [row.solver for row in SOLVERS.values()], ids=list(SOLVERS))

FEW_METHODS = pytest.mark.parametrize(
    "method",
    [
        row.solver if name == "active-set" else pytest.param(row.solver, marks=pytest.mark.slow)
        for name, row in SOLVERS.items()
    ],
    ids=list(SOLVERS),
)  # what is the same for all: the linearisations around Z, their derivative


def contacts_of(jacobian, mass):
    jacobian = jnp.asarray(jacobian)
    return Contacts.of(jnp.zeros(len(jacobian)), jacobian, jnp.linalg.solve(jnp.asarray(mass), jacobian.T))


@cache
def velocity(method):
    """Compiled solution of the velocity problem, (contacts, offset) -> reaction, one program for each size."""
    return jax.jit(lambda contacts, b: Solved(method).velocity(contacts, b))


def clean(found):
    """Nothing to remark, but that contacts are not orthogonal."""
    return int(found.status) & ~int(Status.IMPULSES_COUPLED) == 0


@METHODS
def test_constraints_in_different_units_have_each_their_own_round_off(method):
    """A gap in nanometres beside one in metres: its round-off, 1e-6, is no excuse for the other's violation of 1e-7."""
    contacts = contacts_of(np.diag([1.0, 1e9]), np.eye(2))
    found = velocity(method)(contacts, jnp.array([-1e-7, -1e9]))
    assert clean(found)
    # 32 roundings of 1, and the tolerance of 1e-12
    np.testing.assert_allclose(found.jump, [1e-7, 1.0], rtol=0, atol=1e-11)


def curved_problem():
    """Two curved constraints, not convex (outside an ellipse, above a sine), mass with coupling."""

    def constraints(t, q, args):
        return jnp.stack(
            [q[0] ** 2 / 2 + q[1] ** 2 - args["radius"] ** 2 - 0.1 * t, q[1] - 0.3 * jnp.sin(2 * q[0]), q[2] - 1]
        )

    mass = jnp.array([[2.0, 0.3, 0.0], [0.3, 1.0, 0.1], [0.0, 0.1, 1.5]])
    return ji.Problem(lambda t, q, v, args: jnp.zeros(3), constraints, mass=mass)


BASE, ARGS = jnp.array([0.9, 0.9, 1.1]), {"radius": 1.0}


@cache
def position(method):
    """Compiled solution of the curved problem from `BASE`, (increment, scale) -> reaction, one program for all."""
    problem = curved_problem()
    metric = Metric.at(problem, jnp.zeros(3), ARGS)
    return jax.jit(
        lambda x, scale: Solved(method).position(problem, metric, Target(jnp.asarray(0.5), BASE, x, scale), ARGS)
    )


@METHODS
@pytest.mark.parametrize("increment", [(-0.3, -0.4, 0.0), (0.2, -0.5, -0.2), (0.1, 0.1, 0.3), (-0.6, 0.0, 0.0)])
def test_curved_constraints(method, increment):
    problem, scale, increment = curved_problem(), jnp.asarray(0.1), jnp.asarray(increment)
    found = position(method)(increment, scale)
    assert clean(found)
    w, mass = np.asarray(BASE + increment), np.asarray(problem.mass)
    compiled = jax.jit(lambda z: problem.gaps(0.5, z, ARGS))
    gaps = lambda z: np.asarray(compiled(z))
    best = minimize(
        lambda z: (z - w) @ mass @ (z - w),
        w + 0.1,
        jac=lambda z: 2 * mass @ (z - w),
        constraints={"type": "ineq", "fun": gaps},
        method="SLSQP",
        options={"ftol": 1e-14},
    )
    # the optimiser stops at 1e-14 in the objective, 1e-7 in the point
    np.testing.assert_allclose(w + scale * found.jump, best.x, atol=1e-6)


@FEW_METHODS
@pytest.mark.parametrize("normal", ["implicit", pytest.param("explicit", marks=pytest.mark.slow)])
def test_the_implicit_derivative_is_the_difference_quotient(method, normal):
    """The implicit derivative against central differences, in forward and reverse mode."""
    problem = curved_problem()
    metric = Metric.at(problem, jnp.zeros(3), None)
    base, scale = jnp.array([0.9, 0.9, 1.1]), jnp.asarray(0.1)

    @jax.jit
    def projected(x):
        found = Solved(method).position(problem, metric, Target(x[4], base, x[:3], scale, normal), {"radius": x[3]})
        return jnp.concatenate([found.jump, found.impulse])

    x = jnp.array([-0.3, -0.6, -0.2, 1.0, 0.5])
    forward, reverse = jax.jit(jax.jacfwd(projected))(x), jax.jit(jax.jacrev(projected))(x)
    h = 1e-5
    differences = jnp.stack([(projected(x + h * e) - projected(x - h * e)) / (2 * h) for e in jnp.eye(5)], axis=1)
    assert np.sum(np.abs(np.asarray(projected(x)[3:])) > 1e-6) >= 2  # several active constraints
    np.testing.assert_allclose(forward, reverse, rtol=1e-10, atol=1e-10)
    # truncation h^2 f''' = 1e-9, projection tolerance / h = 1e-7
    np.testing.assert_allclose(forward, differences, atol=1e-5)


@pytest.mark.slow
def test_derivative_of_geodesic_projection():
    problem = ji.Problem.from_lagrangian(
        lambda t, q, v, args: 0.5 * (v[0] ** 2 + q[0] ** 2 * v[1] ** 2),
        lambda t, q, args: jnp.stack([args - q[0] * jnp.cos(q[1])]),
    )
    scheme = ji.PaoliSchatzman(metric="geodesic")

    def end(x):
        options = {"t1": 1.1, "h": 0.05, "scheme": scheme, "save": "final", "sensitivity": "discrete"}
        found = ji.solve(problem, x[:2], x[2:4], e=0.5, args=x[4], **options)
        return jnp.concatenate([found.q[0], found.impulse[0]])

    x = jnp.array([0.5385, 1.1903, 0.65, -1.5172, 1.0])
    h = 1e-5
    differences = jnp.stack([(end(x + h * e) - end(x - h * e)) / (2 * h) for e in jnp.eye(5)], axis=1)
    forward, reverse = jax.jacfwd(end)(x), jax.jacrev(end)(x)
    assert float(end(x)[2]) > 0.5  # an impact took place
    np.testing.assert_allclose(forward, reverse, atol=1e-9)
    np.testing.assert_allclose(forward, differences, rtol=1e-4, atol=1e-5)


@FEW_METHODS
def test_residual_is_a_velocity(method):
    """The residual of a position problem does not depend on the scale of time that defines the velocity."""
    for scale in (1e-1, 1e-3, 1e-5):
        increment = scale * jnp.array([-3.0, -9.0, -5.0])
        found = position(method)(increment, jnp.asarray(scale))
        z = BASE + increment + scale * found.jump
        rate = curved_problem().gaps(0.5, z, ARGS) / scale
        # the floor is eight rounding units of the position over the scale
        assert float(jnp.max(-rate)) <= max(1e-11, 64 * 2.2e-16 / scale)
        assert clean(found)


@pytest.mark.parametrize("execution", ["native", pytest.param("xla", marks=pytest.mark.slow)])
def test_the_round_off_of_a_large_radius_is_no_failure(execution):
    """A body that slides on a planet, by coordinates from a point of its surface: gaps have the round-off of the
    radius, 1e-13, which divided by h is more than 1e-12 of the speed at which it closes."""
    height = lambda t, q, radius: jnp.sqrt(q[0] ** 2 + (q[1] + radius) ** 2)[None] - radius
    planet = ji.Problem(lambda t, q, v, args: jnp.array([0.0, -9.81]), height)
    found = ji.solve(planet, [0.0, 1e-3], [0.5, 0.0], t1=1.0, h=1e-3, args=1e3, execution=execution, save=1)
    assert found.status == 0 and found.iterations < 2000
    # it has landed by then, and is left on the surface
    assert np.max(np.abs([height(0.0, q, 1e3) for q in found.q[100:]])) < 1e-12
