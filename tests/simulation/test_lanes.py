"""Lanes of one batch differ in what happens to them, and are each as they are alone."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from support.breadth import slow


@pytest.mark.parametrize("way", [slow("xla"), "native"])
def test_lanes_that_rest_bounce_fly_and_fail(way):
    """Lanes of every kind in one batch: each is as it is alone, and no inner status bit is reported."""

    def force(t, q, v, args):
        # one lane leaves the domain of its force
        return -9.81 + 1e-300 * jnp.log(args - t)

    def walls(t, q, args):
        return jnp.stack([q[0] + 0.1 * q[0] ** 2, 50 - q[0]])

    problem = ji.Problem(lambda t, q, v, args: force(t, q, v, args) * jnp.ones_like(q), walls)
    n = 80
    q0 = np.where(np.arange(n) % 4 == 0, 0.0, np.linspace(0.1, 30, n))[:, None]
    limit = np.where(np.arange(n) == 7, 0.5, 9.0)
    given = {"t1": 1.0, "h": 0.01, "e": 0.5}
    found = ji.ensemble(problem, q0, np.zeros((n, 1)), args=limit, args_axes=0, execution=way, **given)
    assert set(np.flatnonzero(found.failed)) == {7} and found.failed_at[7] == pytest.approx(0.5, abs=0.02)
    assert np.all(found.status < 2 * max(ji.Status))
    for i in (0, 4, 5, 6, 7, 40, 79):
        single_backend = ji.solve(problem, q0[i], np.zeros(1), args=limit[i], sensitivity="none", save="final", **given)
        for name in ("q", "v", "z", "impulse", "penetration", "residual", "iterations", "status", "failed_at"):
            # equal but for roundings: 100 steps of velocities up to 10
            np.testing.assert_allclose(
                getattr(found, name)[i], getattr(single_backend, name), rtol=1e-11, atol=1e-11, err_msg=name
            )
