"""More impacts in a step than `EventCorrected` locates: energies stay, and what is left out is told."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import Status
from support.breadth import slow

SCHEME = ji.EventCorrected()
SLOT = ji.Problem(lambda t, q, v, args: jnp.zeros(1), lambda t, q, args: jnp.stack([q[0], args - q[0]]))


# Galperin's billiard: a wall, a light ball, and one of 10^4 times its mass
GALPERIN = ji.Problem(
    lambda t, q, v, args: jnp.zeros(2),
    lambda t, q, args: jnp.stack([q[0], q[1] - q[0]]),
    jnp.array([1.0, 1e4]),
    1.0,
)


def final(problem, q0, v0, **options):
    options = {"scheme": SCHEME, "save": "final", **options}
    return ji.solve(problem, q0, v0, **options)


@pytest.mark.slow
def test_more_orthogonal_walls_at_once_than_a_step_locates():
    """Three coordinates reach their walls together, where two events are located: values and derivatives of each alone."""
    walls = ji.Problem(lambda t, q, v, args: jnp.zeros(3), lambda t, q, args: q, restitution=0.6)

    @jax.jit
    @lambda f: jax.jacfwd(f, (0, 1), has_aux=True)
    def run(q0, v0):
        s = final(walls, q0, v0, t1=0.5, steps=7)
        return (jnp.concatenate([s.q[-1], s.v[-1]]),) * 2

    jacobian, state = run(jnp.full(3, 0.3), jnp.full(3, -1.0))
    np.testing.assert_allclose(state, [0.12] * 3 + [0.6] * 3, atol=1e-13)
    eye, zero = 0.6 * np.eye(3), np.zeros((3, 3))
    np.testing.assert_allclose(jacobian[0], np.vstack([-eye, zero]), atol=1e-12)
    np.testing.assert_allclose(jacobian[1], np.vstack([-0.5 * eye, -eye]), atol=1e-12)


@pytest.mark.parametrize("e", [1.0, slow(0.6)])
def test_more_impacts_than_a_step_locates(e):
    """Between walls a third of a step's way apart nothing is lost: it stays between them, no energy is made."""
    s = final(SLOT, [0.001], [1.0], t1=1.0, h=1e-2, e=[e, e], args=0.003, save="all").raise_if_failed()
    assert s.penetration <= 1e-14
    speed = np.abs(np.asarray(s.v)[:, 0])
    assert np.all(np.diff(speed) <= 1e-13)
    # at e < 1 it is slower by 0.6 at each impact, and no step has a third one
    assert bool(int(s.status) & Status.EVENTS_UNRESOLVED) == (e == 1)
    assert speed[-1] == pytest.approx(1.0, abs=1e-12) if e == 1 else speed[-1] < 0.05


@pytest.mark.slow
def test_energy_stays_where_more_impacts_fall_into_a_step_than_are_located():
    """Galperin's billiard with mass ratio 10^4 makes 313 impacts, most of them within a few steps of these; e = 1 keeps the energy."""
    found = final(GALPERIN, [1.0, 2.0], [0.0, -1.0], t1=3.0, steps=1009)
    energy = found.v[-1] ** 2 @ np.array([1.0, 1e4])
    assert Status(int(found.status)) & Status.EVENTS_UNRESOLVED
    np.testing.assert_allclose(energy, 1e4, rtol=1e-9)  # was 4150 times as much
    assert abs(found.v[-1, 1] - 1) < 2e-3  # the heavy ball, of speed 1 up to 2/sqrt(ratio) times that of the light one


def test_too_many_impacts_that_turn_a_motion_are_a_failure():
    """Galperin's billiard, mass ratio 10^4: the light ball is at .6605 at t = 4; a step that leaves hundreds of impacts out says .997."""
    exact = 0.6605359271728702  # 313 impacts followed one by one
    few, many = (final(GALPERIN, [1.0, 2.0], [0.0, -1.0], t1=4.0, steps=n) for n in (1009, 10007))
    assert Status(int(few.status)) & Status.GAP_UNRESOLVED
    # an impact moved by less than a step, 4e-4, of a ball of speed 100 at most
    assert abs(many.raise_if_failed().q[-1, 0] - exact) < 4e-2
