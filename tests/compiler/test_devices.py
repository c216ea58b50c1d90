"""Lanes shared out to several devices are computed as on one."""

import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from support.breadth import slow

START = """
import sys, warnings
import jax
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp, numpy as np, jaximpact as ji
warnings.simplefilter("error")
assert jax.local_device_count() == 3
"""
BALL = """
ball = ji.Problem(lambda t, q, v, args: -args * jnp.ones_like(q), lambda t, q, args: q + 0.1 * q**2, restitution=0.5)
q0, pull = np.linspace(0.5, 1, 7)[:, None], np.linspace(9, 10, 7)
given = dict(t1=1.0, args=pull, args_axes=0)
"""
ENSEMBLE = """
saved = ji.ensemble(ball, q0, [0.0], h=np.linspace(0.01, 0.03, 7), save=[0.3, 0.6], **given)
found = dict(q=saved.q, status=saved.status, v=saved.v)
"""
SENSITIVITIES = """
varied = ji.sensitivities(ball, q0, [0.0], h=0.01, wrt=("q0", "args"), **given)
found = dict(q0=varied.jacobian["q"]["q0"], pull=varied.jacobian["v"]["args"])
"""


@pytest.mark.parametrize("motions", [ENSEMBLE, slow(SENSITIVITIES)], ids=["ensemble", "sensitivities"])
def test_devices_change_nothing(tmp_path, motions):
    """The same batches here, on one device, and on three that the processor of another process is made to look like."""
    path = tmp_path / "motions.npz"
    devices = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=3"
    flags = {"XLA_FLAGS": devices, "JAX_PLATFORMS": "cpu"}
    program = START + BALL + motions + "np.savez(sys.argv[1], **found)"
    with subprocess.Popen([sys.executable, "-c", program, str(path)], env=os.environ | flags) as process:
        space = {"jnp": jnp, "np": np, "ji": ji}
        exec(BALL + motions, space)
        assert process.wait() == 0
    one, three = space["found"], np.load(path)
    assert set(one) == set(three.files)
    for name in one:
        # shares of other lengths are compiled to other roundings, of order-one numbers over 100 steps
        np.testing.assert_allclose(three[name], one[name], rtol=1e-13, atol=1e-13, err_msg=name)
