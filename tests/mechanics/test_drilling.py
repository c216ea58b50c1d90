"""Drilling and rolling friction: further columns of slip, angular velocities times a radius,
that share Coulomb's cone with the slip."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaximpact as ji
from support.breadth import slow_but

G, MU, RADIUS = 9.81, 0.3, 0.05
METHODS = [ji.MoreauJean(), pytest.param(ji.Maury(), marks=pytest.mark.slow)]


def system(inertia, rows):
    """A body on a floor: q is its centre (x, y, z) and its angles; ``rows(args)`` (k, d) gives the slip,
    angles included."""
    d = 3 + len(inertia)
    return ji.Problem(
        lambda t, q, v, args: jnp.zeros(d).at[2].set(-G),
        lambda t, q, args: q[2:3],
        np.concatenate([np.ones(3), inertia]),
        slip=lambda t, q, v, args: (rows(args) @ v)[None, :],
        friction=MU,
    )


def exact(inertia, rows, v0, t1, args):
    """Velocity and position at t1 while the slip lasts, by an integrator of order 5 at 1e-12:
    the force opposes the vector of slips."""
    mass, rows = np.concatenate([np.ones(3), inertia]), np.asarray(rows(args))

    def rates(t, y):
        w = rows @ y[: len(mass)]
        return np.concatenate([-MU * G * rows.T @ w / np.linalg.norm(w) / mass, y[: len(mass)]])

    start = np.concatenate([v0, np.zeros(len(mass))])
    return solve_ivp(rates, (0, t1), start, method="Radau", rtol=1e-11, atol=1e-13).y[:, -1]


def puck(r):
    return jnp.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 0, 1.0]]) * jnp.stack([1.0, 1.0, r])[:, None]


def ball(r):
    """Slip of a ball at its lowest point, drilling and rolling about both axes, with radii r and r/2."""
    slip = [[1.0, 0, 0, 0, -RADIUS, 0], [0, 1.0, 0, RADIUS, 0, 0]]
    turns = [[0, 0, 0, 0, 0, 1.0], [0, 0, 0, 0.5, 0, 0], [0, 0, 0, 0, 0.5, 0]]
    return jnp.concatenate([jnp.array(slip), r * jnp.array(turns)])


CASES = {
    "puck that slides and spins": ([0.5 * RADIUS**2], puck, [1.0, 0.2, 0, 60.0], 0.2),
    "ball that rolls and spins": ([0.4 * RADIUS**2] * 3, ball, [0.4, 0.2, 0, -4.0, 8.0, 30.0], 0.1),
}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", METHODS, ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("name", slow_but(["ball that rolls and spins"], CASES))
def test_motions_and_derivatives_converge_with_first_order(name, scheme):
    """Halving h twice halves the errors of state and derivative by the radius, within a tenth."""
    inertia, rows, v0, t1 = CASES[name]
    r, dr, v0 = 0.01, 1e-5, np.array(v0)
    state = exact(inertia, rows, v0, t1, r)
    slope = (exact(inertia, rows, v0, t1, r + dr) - exact(inertia, rows, v0, t1, r - dr)) / (2 * dr)
    start, h = np.broadcast_to(v0, (3, len(v0))), t1 / np.array([200, 400, 800])
    found = ji.sensitivities(system(inertia, rows), 0 * start, start, t1=t1, h=h, args=r, wrt="args", scheme=scheme)
    assert np.all(found.trusted) and not np.any(found.status)
    own = np.concatenate([found.value["v"], found.value["q"]], axis=1)
    by_r = np.concatenate([found.jacobian["v"]["args"], found.jacobian["q"]["args"]], axis=1).reshape(own.shape)
    errors = np.stack([np.max(np.abs(own - state), axis=1), np.max(np.abs(by_r - slope), axis=1)], axis=1)
    ratios = errors[:-1] / errors[1:]
    assert np.all(np.abs(ratios - 2) < 0.2), errors


def test_a_spinning_puck_comes_to_rest_at_its_time():
    """Without sliding the moment is mu r m g, and the spin ends after I w / (mu r m g); to a step,
    by a scheme of first order."""
    (inertia,), r, spin = CASES["puck that slides and spins"][0], 0.01, 60.0
    stop = inertia * spin / (MU * r * G)
    found = ji.solve(
        system([inertia], puck), np.zeros(4), [0, 0, 0, spin], t1=1.1 * stop, steps=1100, args=r, scheme=ji.MoreauJean()
    )
    # the steps here are of 1e-3 of the time
    assert np.allclose(found.v[900, 3], 0.1 * spin, rtol=0, atol=1e-2 * spin)
    assert np.allclose(found.v[-1], 0, rtol=0, atol=1e-12)


def test_a_contact_with_fewer_columns_than_others_has_zeros_there():
    """A puck that spins, beside a rod that slides along one line and then sticks: as without each other,
    to rounding."""
    inertia, r, spin = CASES["puck that slides and spins"][0][0], 0.01, 60.0
    alone = system([inertia], puck)
    mass = np.concatenate([np.ones(3), [inertia], np.ones(2)])
    rod = jnp.array([[[0, 0, 0, 0, 1.0, 0], [0] * 6, [0] * 6]])
    both = ji.Problem(
        lambda t, q, v, args: jnp.zeros(6).at[jnp.array([2, 5])].set(-G),
        lambda t, q, args: q[jnp.array([2, 5])],
        mass,
        slip=lambda t, q, v, args: jnp.concatenate([(puck(args) @ v[:4])[None], rod @ v]),
        friction=MU,
    )
    run = lambda problem, v0: ji.solve(
        problem, np.zeros(len(v0)), v0, t1=0.2, steps=50, args=r, scheme=ji.MoreauJean(), save="final"
    )
    one, two = run(alone, [1.0, 0.2, 0, spin]), run(both, [1.0, 0.2, 0, spin, 0.5, 0])
    assert not two.status  # of IMPULSES_NOT_UNIQUE, too
    np.testing.assert_allclose(two.v[-1], [*one.v[-1], 0, 0], atol=1e-12)


def test_what_takes_the_columns_is_said():
    problem = system(CASES["puck that slides and spins"][0], puck)
    with pytest.raises(ValueError, match=r"EventCorrected takes at most 2 columns of slip.* gives 3: use MoreauJean"):
        ji.solve(problem, np.zeros(4), np.ones(4), t1=0.1, steps=10, args=0.01, scheme=ji.EventCorrected())
    wide = problem.replace(slip=lambda t, q, v, args: jnp.zeros((1, 6)) * v[0])
    with pytest.raises(ValueError, match=r"up to three more columns for drilling and rolling, got .1, 6."):
        ji.solve(wide, np.zeros(4), np.ones(4), t1=0.1, steps=10, args=0.01, scheme=ji.MoreauJean())
