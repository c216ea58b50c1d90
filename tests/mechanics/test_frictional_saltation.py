"""Derivatives across impacts with friction that fall into one step."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0.02, 0.6])
def test_impacts_of_bodies_apart_in_one_step_are_each_at_its_own_time(ahead):
    """Blocks with drag fall on one floor, the second a fraction of a step later: the Jacobian is that of each by itself."""
    h = 1e-3

    def blocks(n):
        def force(t, q, v, args):
            v = v.reshape(n, 2)
            return (jnp.array([[0.0, -9.81]]) - 0.4 * v - 0.1 * v * jnp.sum(v**2, axis=1, keepdims=True)).ravel()

        gaps = lambda t, q, args: q[1::2] - 0.1 * jnp.sin(3 * t)
        return ji.Problem(force, gaps, restitution=0.5, friction=0.3, slip=lambda t, q, v, args: v[::2] - 0.2 * t)

    def jacobian(n, q0, v0):
        found = ji.sensitivities(blocks(n), q0, v0, t1=0.25, h=h, wrt=("q0", "v0"))
        assert found.status == 0
        rows = [[found.jacobian[x][y] for y in ("q0", "v0")] for x in ("q", "v")]
        return np.array(rows).transpose(0, 2, 1, 3).reshape(2, n, 2, 2, n, 2)

    q0, v0 = np.array([0.0, 0.2, 1.0, 0.2 + ahead * h * 2.0]), np.array([0.5, 0.0, 1.2, 0.0])
    both = jacobian(2, q0, v0)
    for k, part in enumerate((slice(0, 2), slice(2, 4))):
        alone = jacobian(1, q0[part], v0[part])
        assert np.max(np.abs(alone)) > 3
        # the scheme's first order: accelerations before the impacts are those at the start of the step, which drag changes by 16 h until its middle
        assert np.allclose(both[:, k, :, :, k], alone[:, 0, :, :, 0], rtol=0, atol=3 * h)
        assert np.all(np.abs(both[:, k, :, :, 1 - k]) < 3 * h)
