"""`Solution.at(t, problem)`: between rows as accurate as the scheme, near impacts too,
with the derivative of the motion."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from support.shaw_holmes import SHAW_HOLMES, arguments, closed_form

NUMBERS = 0.05, 2.2, -0.1, 0.8
EXACT, SHIFT, _ = closed_form(*NUMBERS)
PERIOD = 2 * np.pi / 2.2
START = 0.5 * PERIOD
(Q,), (V,) = EXACT(np.array([START]))
GIVEN = {"args": arguments(*NUMBERS[:3], SHIFT + START), "e": 0.8}
NEAR = START + 1e-9 * np.array([-1.0, 1.0])  # on both sides of an impact
TIMES = np.array([0.1, 1.0, *NEAR, 2.3, PERIOD + 0.3, *(PERIOD + NEAR), 5.0])


def test_states_between_rows_have_the_accuracy_of_the_scheme():
    scheme = ji.EventDriven(1e-12, 1e-12)
    motion = ji.solve(SHAW_HOLMES, Q, V, t1=6.0, steps=12, scheme=scheme, **GIVEN)
    exact = EXACT(TIMES + START)
    error = lambda found: np.abs(np.stack([found.q, found.v]) - exact).max()
    # rows are half a second apart, between which a cubic knows little
    assert error(motion.at(TIMES)) > 1e-3
    # the tolerance, and the time of an impact behind which the motion is looked at
    found = motion.at(TIMES, SHAW_HOLMES, **GIVEN)
    assert error(found) < 1e-11 and found.status == 0
    np.testing.assert_array_equal(motion.at(motion.t, SHAW_HOLMES, **GIVEN).q, motion.q)
    kept = ji.solve(SHAW_HOLMES, Q, V, t1=6.0, save=TIMES, scheme=scheme, **GIVEN)
    np.testing.assert_allclose(found.impulse, kept.impulse[:-1], rtol=0, atol=1e-11)
    # a batch: the lanes are those of each motion
    many = ji.ensemble(SHAW_HOLMES, [Q, Q + 0.1], [V, V], t1=6.0, steps=12, save=1, scheme=scheme, **GIVEN)
    np.testing.assert_allclose(many.at(TIMES, SHAW_HOLMES, **GIVEN).q[0], found.q, rtol=0, atol=1e-11)


@pytest.mark.slow
def test_states_between_rows_have_the_derivative_of_the_motion():
    times = TIMES[[0, 2, 3, 5]]

    def place(q, t):
        motion = ji.solve(SHAW_HOLMES, q, V, t1=3.5, steps=4, scheme=ji.EventDriven(1e-12, 1e-12), **GIVEN)
        return motion.at(t, SHAW_HOLMES, **GIVEN).q[:, 0]

    by_q, by_t = jax.jacfwd(place, (0, 1))(jnp.asarray(Q), jnp.asarray(times))
    speed = EXACT(times + START)[1][:, 0]
    np.testing.assert_allclose(by_t, np.diag(speed), rtol=0, atol=1e-9)
    # the saltation is that of the rows that `save` keeps at the times themselves
    kept = ji.sensitivities(
        SHAW_HOLMES, Q, V, t1=3.5, save=times, wrt="q0", scheme=ji.EventDriven(1e-12, 1e-12), **GIVEN
    )
    np.testing.assert_allclose(by_q[..., 0], kept.jacobian["q"]["q0"][:-1, 0, 0], rtol=0, atol=1e-9)


def test_a_scheme_whose_state_is_more_than_a_row_is_refused():
    motion = ji.solve(SHAW_HOLMES, Q, V, t1=1.0, steps=10, **GIVEN)
    with pytest.raises(ValueError, match="this solution is of PaoliSchatzman"):
        motion.at(0.5, SHAW_HOLMES, **GIVEN)


@pytest.mark.slow
def test_states_between_rows_of_a_rod_have_the_impulses_of_its_joint():
    rod = ji.Problem(
        lambda t, q, v, args: jnp.array([0.0, -9.81]), lambda t, q, args: q[:1] + 0.3, joints=lambda t, q,
        args: jnp.array([q @ q - 1.0]), restitution=0.7,
    )  # fmt: skip
    start, scheme = ([np.sin(0.5), -np.cos(0.5)], [0.0, 0.0]), ji.EventDriven(1e-12, 1e-12)
    times = np.array([0.33, 0.777, 1.5])
    found = ji.solve(rod, *start, t1=2.0, steps=20, scheme=scheme).at(times, rod)
    kept = ji.solve(rod, *start, t1=2.0, save=times, scheme=scheme)
    for name in ("q", "v", "impulse", "joint_impulse"):
        # the tolerance, over some fifty substeps
        np.testing.assert_allclose(getattr(found, name), getattr(kept, name)[:-1], rtol=0, atol=1e-10)


def test_no_times_give_no_rows():
    """With and without the problem, for one motion and for many: an IndexError with it."""
    ball = ji.Problem(lambda t, q, v, args: -jnp.ones(1), lambda t, q, args: q, restitution=0.5)
    given = {"t1": 1.0, "h": 0.5, "scheme": ji.EventCorrected()}
    one, many = ji.solve(ball, [1.0], [0.0], **given), ji.ensemble(ball, [[1.0], [2.0]], [0.0], save=1, **given)
    for motion, lanes in ((one, ()), (many, (2,))):
        for found in (motion.at([]), motion.at([], ball)):
            assert found.t.shape == (*lanes, 0) and found.impulse.shape == found.q.shape == found.z.shape == (
                *lanes,
                0,
                1,
            )
            assert found.status.shape == lanes
