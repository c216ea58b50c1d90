"""Many impacts in a step of `EventCorrected`: all are located."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
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
    """Three coordinates reach their walls together, where two events are located:
    values and derivatives of each alone."""
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
def test_many_impacts_in_a_step(e):
    """Between walls a third of a step's way apart nothing is lost: it stays between them, no energy is made."""
    s = final(SLOT, [0.001], [1.0], t1=1.0, h=1e-2, e=[e, e], args=0.003, save="all").raise_if_failed()
    assert s.penetration <= 1e-14
    speed = np.abs(np.asarray(s.v)[:, 0])
    assert np.all(np.diff(speed) <= 1e-13)
    assert s.status == 0
    assert speed[-1] == pytest.approx(1.0, abs=1e-12) if e == 1 else speed[-1] < 0.05


def test_hundreds_of_impacts_that_turn_a_motion():
    """Galperin's billiard, mass ratio 10^4: the light ball is at .6605 at t = 4;
    without those impacts it would be at .997."""
    exact = 0.6605359271728702  # 313 impacts followed one by one
    found = final(GALPERIN, [1.0, 2.0], [0.0, -1.0], t1=4.0, steps=1009).raise_if_failed()
    # straight paths: rounding, by a factor of each of 313 impacts
    assert abs(found.q[-1, 0] - exact) < 1e-9
