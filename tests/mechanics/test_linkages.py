"""Closed chains: a four-bar linkage in three angles and by one of them, positions in which a linkage is singular,
and joints that drive."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from support.breadth import slow_but

G = 9.81
FINE = ji.EventDriven(rtol=1e-13, atol=1e-13)
SCHEMES = [ji.MoreauJean(), ji.EventCorrected(), ji.EventDriven()]
RODS, BASE = np.array([1.0, 2.0, 1.5]), 2.0
WEIGHTS = G * np.array([0.5, 1.3, 0.7])


def loop(t, q, args):
    x = RODS[0] * jnp.cos(q[0]) + RODS[1] * jnp.cos(q[1]) - RODS[2] * jnp.cos(q[2]) - BASE
    return jnp.stack([x, RODS[0] * jnp.sin(q[0]) + RODS[1] * jnp.sin(q[1]) - RODS[2] * jnp.sin(q[2])])


def closed(crank):
    """The three angles by the crank's."""
    x, y = RODS[0] * jnp.cos(crank) - BASE, RODS[0] * jnp.sin(crank)
    square = x * x + y * y
    reach = (RODS[2] ** 2 + square - RODS[1] ** 2) / (2 * RODS[2] * jnp.sqrt(square))
    rocker = jnp.arctan2(y, x) - jnp.arccos(reach)
    return jnp.stack([crank, jnp.arctan2(RODS[2] * jnp.sin(rocker) - y, RODS[2] * jnp.cos(rocker) - x), rocker])


def lagrangian(t, q, v, args):
    angles, rates = jax.jvp(closed, (q[0],), (v[0],))
    return 0.5 * jnp.sum(RODS * rates * rates) - jnp.sum(WEIGHTS * jnp.sin(angles))


STOP = 1.7
FOUR_BAR = ji.Problem(
    lambda t, q, v, args: -WEIGHTS * jnp.cos(q), lambda t, q, args: STOP - q[:1], RODS, 0.5, joints=loop
)
BY_CRANK = ji.Problem.from_lagrangian(lagrangian, lambda t, q, args: STOP - q, 0.5)


def turned(crank):
    """Start of the linkage whose crank turns at 1."""
    return jax.jvp(closed, (crank,), (jnp.ones_like(crank),))


@pytest.fixture(scope="module")
def crank_end():
    found = ji.solve(BY_CRANK, [1.2], [1.0], t1=1.0, steps=8, scheme=FINE, save="final")
    return closed(found.q[-1, 0])


@pytest.mark.slow
@pytest.mark.parametrize("scheme", slow_but(SCHEMES[:1], SCHEMES), ids=repr)
def test_a_four_bar_with_a_stop_is_one_in_its_cranks_angle(scheme, crank_end):
    start = turned(1.2)
    found = ji.solve(FOUR_BAR, *start, t1=1.0, steps=1000, scheme=scheme, save="final")
    # by the crank: 3.6e-4, 8e-9, and the tolerance
    bound = {ji.MoreauJean: 5e-4, ji.EventCorrected: 5e-8, ji.EventDriven: 1e-8}[type(scheme)]
    np.testing.assert_allclose(found.q[-1], crank_end, atol=bound)
    assert found.status == 0 and found.joint_residual < 1e-14

    with pytest.warns(
        ji.JaximpactWarning, match=r"joints\(t0, q0, args\)\[2\] adds nothing to the joints before it at q0"
    ):
        again = ji.solve(
            FOUR_BAR.replace(joints=dependent_loop), *start, t1=1.0, steps=1000, scheme=scheme, save="final"
        )
    np.testing.assert_allclose(again.q, found.q, atol=1e-13)
    assert again.status == ji.Status.IMPULSES_NOT_UNIQUE


def dependent_loop(t, q, args):
    """Twice as many rows as are needed; the last one depends on the others only where they hold."""
    c = loop(t, q, args)
    return jnp.stack([*c, c[0] - c[1] * jnp.cos(q[0]), c[0] * (1 + c[1]) + 3 * c[1] ** 2])


@pytest.mark.slow
def test_impulses_of_dependent_rows_are_the_least_with_their_derivative():
    """Those with which a start is projected: of the two rows that are needed by numpy's pseudo-inverse, and its
    differences along the linkage's motion."""
    options = {"t1": 0.01, "steps": 1, "scheme": ji.MoreauJean(), "save": "final"}

    def impulse(crank, joints, save=1):
        problem = FOUR_BAR.replace(joints=joints)
        return ji.solve(problem, closed(crank), np.array([0.3, -0.5, 1.2]), **options | {"save": save}).joint_impulse[0]

    rows = jax.jit(jax.vmap(jax.jacfwd(lambda q: dependent_loop(0.0, q, None))))
    pulls = jax.jit(jax.vmap(jax.jacfwd(lambda q: loop(0.0, q, None))))
    near = jnp.array([1.2 - 1e-5, 1.2, 1.2 + 1e-5])
    places, two = jax.vmap(closed)(near), jax.vmap(lambda crank: impulse(crank, loop))(near)
    least = (
        np.linalg.pinv(np.swapaxes(rows(places), 1, 2), rcond=1e-6)
        @ np.einsum("kjd,kj->kd", pulls(places), two)[..., None]
    )
    found, slope = jax.jvp(lambda crank: impulse(crank, dependent_loop), (near[1],), (1.0,))
    np.testing.assert_allclose(found, least[1, :, 0], atol=1e-13)
    # differences of the second order
    np.testing.assert_allclose(slope, (least[2] - least[0])[:, 0] / 2e-5, atol=1e-8)


@pytest.mark.slow
def test_the_jacobian_of_a_four_bar_is_that_by_its_crank():
    def end(crank, scheme, steps, problem=FOUR_BAR):
        place, rate = turned(crank) if problem is FOUR_BAR else (crank[None], jnp.ones(1))
        q = ji.solve(problem, place, rate, t1=1.0, steps=steps, scheme=scheme, save="final").q[-1]
        return q if problem is FOUR_BAR else closed(q[0])

    right = jax.jacfwd(end)(jnp.array(1.2), FINE, 8, BY_CRANK)
    for scheme, steps, bound in (
        (ji.MoreauJean(), 4000, 2e-3),
        (ji.EventCorrected(), 1000, 1e-6),
        (SCHEMES[2], 8, 1e-7),
    ):
        np.testing.assert_allclose(jax.jacfwd(end)(jnp.array(1.2), scheme, steps), right, atol=bound)


@pytest.mark.parametrize("scheme", slow_but(SCHEMES[:1], SCHEMES), ids=repr)
def test_a_linkage_that_passes_a_singular_position_fails(scheme):
    """A parallelogram that lies flat at t = 1, where it may fold; and one that keeps away from there."""

    def parallel(t, q, args):
        closing = jnp.cos(q) * np.array([1.0, 2.0, -1.0]), jnp.sin(q) * np.array([1.0, 2.0, -1.0])
        return jnp.stack([jnp.sum(closing[0]) - 2, jnp.sum(closing[1])])

    problem = ji.Problem(lambda t, q, v, args: jnp.zeros(3), joints=parallel)
    run = lambda angle, rate, t1: ji.solve(
        problem, [angle, 0.0, angle], [rate, 0.0, rate], t1=t1, steps=100, scheme=scheme, save="final"
    )
    flat, away = run(1.0, -1.0, 2.0), run(0.5, 1.0, 2.0)
    early = 0.02 * (11 if isinstance(scheme, ji.EventCorrected) else 5)  # ten steps, or some
    assert ji.Status.JOINTS_NOT_MET & int(flat.status) and 1 - early < flat.failed_at < 1
    assert away.status == 0
    np.testing.assert_allclose(away.q[-1], [2.5, 0, 2.5], atol=1e-9)
    with pytest.warns(ji.JaximpactWarning, match=r"\[0\] adds nothing to the joints before it at q0: .* singular"):
        assert ji.Status.JOINTS_NOT_MET & int(run(0.0, 1.0, 0.5).status)


def test_a_driven_joint_moves_as_it_is_told():
    """A mass on a crank of given angle t^2: by the joint's equations alone,
    with the driving impulse that the change of momentum asks for."""
    driven = ji.Problem(
        lambda t, q, v, args: jnp.zeros(2), joints=lambda t, q, args: jnp.stack([q[0] - t**2, q[1] - 0.5 * q[0]])
    )
    found = ji.solve(driven, [0.0, 0.0], [0.0, 0.0], t1=1.0, steps=100, scheme=ji.MoreauJean())
    np.testing.assert_allclose(found.q[:, 0], found.t**2, atol=1e-14)
    # velocities are those of chords: exact for a parabola
    np.testing.assert_allclose(found.v[:, 0], 2 * found.t, atol=1e-11)
    np.testing.assert_allclose(found.joint_impulse[-1], [2 + 0.5 * 1, 1.0], atol=1e-11)


@pytest.mark.slow
def test_a_linkage_of_opposing_gaps_is_one_of_joints(crank_end):
    gaps = lambda t, q, args: jnp.stack([*(x := loop(t, q, args)), *-x, STOP - q[0]])
    four_bar = ji.Problem(FOUR_BAR.force, gaps, mass=RODS, restitution=0.5)
    found = ji.solve(four_bar, *turned(1.2), t1=1.0, h=1e-3, scheme=ji.MoreauJean(), save="final")
    # of first order, as is the impact: h |v|
    np.testing.assert_allclose(found.q[-1], crank_end, atol=2e-3)
    assert not found.failed
