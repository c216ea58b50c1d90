"""Lanes shared out to several devices are computed as on one."""

import os
import subprocess
import sys

import numpy as np
import pytest

PROGRAM = """
import sys, warnings
import jax
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp, numpy as np, jaximpact as ji
warnings.simplefilter("error")
assert jax.local_device_count() == int(sys.argv[1])
ball = ji.Problem(lambda t, q, v, args: -args * jnp.ones_like(q), lambda t, q, args: q + 0.1 * q**2, restitution=0.5)
q0, pull = np.linspace(0.5, 1, 7)[:, None], np.linspace(9, 10, 7)
given = dict(t1=1.0, args=pull, args_axes=0)
saved = ji.ensemble(ball, q0, [0.0], h=0.01, save=[0.3, 0.6], **given)
swept = ji.ensemble(ball, q0, [0.0], h=np.linspace(0.01, 0.03, 7), **given)
varied = ji.sensitivities(ball, q0, [0.0], h=0.01, wrt=("q0", "args"), **given)
found = dict(q=saved.q, status=saved.status, v=swept.v, q0=varied.jacobian["q"]["q0"], pull=varied.jacobian["v"]["args"])
np.savez(sys.argv[2], **found)
"""


@pytest.fixture(scope="module")
def motions(tmp_path_factory):
    """The same batches on one device and on three that the processor is made to look like."""

    def run(devices: int):
        path = tmp_path_factory.mktemp("devices") / "motions.npz"
        flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-c", PROGRAM, str(devices), str(path)]
        return path, subprocess.Popen(command, env=os.environ | flags)

    found = [run(1), run(3)]
    assert [process.wait() for _, process in found] == [0, 0]
    return tuple(np.load(path) for path, _ in found)


def test_devices_change_nothing(motions):
    one, three = motions
    assert set(one.files) == set(three.files)
    for name in one.files:
        # shares of other lengths are compiled to other roundings, of order-one numbers over 100 steps
        np.testing.assert_allclose(three[name], one[name], rtol=1e-13, atol=1e-13, err_msg=name)
