"""Bodies whose mass matrix depends on where they are: lopsided disks, by blocks and by one matrix of all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import analysis, bodies

TIGHT = bodies.ConjugateGradients(tolerance=1e-12)
COUNT, RADIUS = 3, 0.1


def of_one(q, offset):
    """Of a disk of mass 1 at (x, y, angle), whose centre of mass is off its middle."""
    s, c = offset * jnp.sin(q[2]), offset * jnp.cos(q[2])
    inertia = 0.5 * RADIUS**2 + offset**2
    return jnp.stack(
        [
            jnp.stack([jnp.ones_like(s), 0 * s, -s]),
            jnp.stack([0 * s, jnp.ones_like(s), c]),
            jnp.stack([-s, c, inertia + 0 * s]),
        ]
    )


def height(q, args):
    each = q.reshape(COUNT, 3)
    return 9.81 * jnp.sum(each[:, 1] + args * jnp.sin(each[:, 2]))


def apart(a, b, x, y):
    return jnp.sqrt(jnp.sum((a[:2] - b[:2]) ** 2)) - 2 * RADIUS


def floor(t, q, args):
    return jnp.stack([q[1], q[0], 0.55 - q[0]]) - RADIUS


def lopsided(lists, blocks, restitution=0.0):
    mass = bodies.block_mass(COUNT, of_one)
    if not blocks:
        mass = lambda q, args: jax.scipy.linalg.block_diag(
            *jax.vmap(of_one, in_axes=(0, None))(q.reshape(COUNT, 3), args)
        )
    stated = bodies.Bodies(COUNT, apart, 2 * RADIUS, obstacles=floor, space=2, lists=lists)
    return ji.Problem.from_potential(height, stated, mass, restitution=restitution)


def start():
    row, column = np.divmod(np.arange(COUNT), 2)
    rng = np.random.default_rng(0)
    places = 0.25 * (np.stack([column, row], axis=1) + 0.5) + 0.005 * rng.uniform(-1, 1, (COUNT, 2))
    return np.concatenate([places, rng.uniform(0, 6, (COUNT, 1))], axis=1).ravel()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "e"),
    [(ji.Maury(), 0.0), pytest.param(ji.MoreauJean(theta=0.0), 0.5, marks=pytest.mark.slow)],
    ids=["maury", "moreau-jean"],
)
def test_blocks_are_the_matrix(scheme, e):
    q0 = start()
    options = {"t1": 0.4, "h": 4e-3, "args": 0.04, "scheme": scheme, "e": e}
    listed = ji.solve(lopsided(True, True), q0, 0 * q0, projection=TIGHT, **options)
    reference = ji.solve(lopsided(False, False), q0, 0 * q0, execution="xla", **options)
    assert listed.residual <= 1e-12 and not listed.failed and np.sum(np.asarray(listed.impulse) > 0) > 20
    # 100 steps solved to 1e-12 m/s, of bodies whose impacts amplify what differs
    assert np.allclose(listed.q, reference.q, rtol=0, atol=1e-9)
    # the disks turn though nothing rubs: the pull at their centre of mass has an arm
    assert np.max(np.abs(np.asarray(listed.q[-1] - listed.q[0]).reshape(COUNT, 3)[:, 2])) > 0.1


@pytest.mark.slow
def test_energy_is_never_gained():
    problem, q0 = lopsided(True, True), start()
    found = ji.solve(problem, q0, 0 * q0, t1=1.0, h=1e-3, args=0.04)
    balance = analysis.balance(problem, found, args=0.04)
    assert np.all(np.diff(balance.loss) >= -1e-12) and balance.loss[-1] > 0.1 * float(found.energy[0])
    assert np.max(np.diff(np.asarray(found.energy))) < 5e-4 * float(
        found.energy[0]
    )  # h g v, of the first order in a step
    assert found.penetration < 1e-8  # gaps are convex


@pytest.mark.slow
def test_derivatives_by_blocks():
    def end(q, offset, lists, blocks):
        options = {
            "t1": 0.3,
            "steps": 60,
            "args": offset,
            "scheme": ji.Maury(),
            "save": "final",
            "sensitivity": "discrete",
        }
        return ji.solve(lopsided(lists, blocks), q, 0 * q, projection=TIGHT if lists else ji.ActiveSet(), **options).q[
            -1
        ]

    q0, offset = jnp.asarray(start()), jnp.asarray(0.04)
    dense = jax.jacfwd(end, argnums=(0, 1))(q0, offset, False, False)
    for mode in (jax.jacfwd, jax.jacrev):
        for found, expected in zip(mode(end, argnums=(0, 1))(q0, offset, True, True), dense, strict=True):
            assert np.allclose(found, expected, rtol=0, atol=1e-8 * np.max(np.abs(expected)))


def test_masses_that_cannot_be_right():
    q0 = start()
    options = {"t1": 0.1, "h": 1e-2, "args": 0.04}
    for lists, blocks, shape, message in (
        (True, False, None, r"mass has shape \(9, 9\): of listed bodies give .* a block for each body, \(3, 3, 3\)"),
        (True, True, (9, 1, 1), "mass has 9 blocks, and there are 3 bodies"),
        (True, True, (9, 2, 3), "mass must be a scalar or have shape"),
    ):
        problem = lopsided(lists, blocks)
        if shape is not None:
            problem = ji.Problem(lambda t, q, v, args: 0 * q, problem.constraints, lambda q, args, s=shape: jnp.ones(s))
        with pytest.raises(ValueError, match=message):
            ji.solve(problem, q0, 0 * q0, **options)
    weightless = bodies.block_mass(COUNT, lambda q, args: 0 * jnp.eye(3))
    problem = ji.Problem(lambda t, q, v, args: 0 * q, lopsided(True, True).constraints, weightless)
    with pytest.raises(ValueError, match="mass is not positive definite"):
        ji.solve(problem, q0, 0 * q0, **options)
    with pytest.raises(TypeError, match=r"of_one=...\) must be a function"):
        bodies.block_mass(4, np.eye(3))
    with pytest.raises(ValueError, match="whole number >= 1"):
        bodies.block_mass(0, of_one)
