"""Other people's numbers: trajectories computed by Siconos, where they are at hand (shared/data/siconos).

Tolerances are relative to the largest value of a column. 1e-12 is round-off accumulated over 2000 to 4000 steps of the
same arithmetic in another order; the bar's implicit stiff steps lose two digits more (condition of its iteration
matrix); the position-level file amplifies round-off near the accumulation of impacts and is compared until t = 6.
"""

import gzip
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "siconos"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the Siconos reference files are not beside the project")

GRAVITY = 9.81


def reference(name):
    with gzip.open(DATA / f"{name}.ref.gz", "rt") as file:
        rows, columns = map(int, file.readline().split())
        values = np.array(file.read().split(), float)
    return values.reshape(rows, columns)


def close(found, expected, tolerance):
    found, expected = np.asarray(found), np.asarray(expected)
    assert np.max(np.abs(found - expected)) <= tolerance * max(1.0, np.max(np.abs(expected)))


def falling(t, q, v, args):
    return jnp.full_like(q, -GRAVITY)


BALL = ji.Problem(falling, lambda t, q, args: q, restitution=0.9)


def test_bouncing_ball():
    table = reference("BouncingBallTS")
    n = len(table) - 1
    found = ji.solve(BALL, [1.0], [0.0], t1=n * 0.005, h=0.005, scheme=ji.MoreauJean())
    close(found.t, table[:, 0], 1e-12)
    close(found.q[:, 0], table[:, 1], 1e-12)
    close(found.v[:, 0], table[:, 2], 1e-12)


@pytest.mark.slow
def test_column_of_beads():
    table = reference("ColumnOfBeadsTS")
    n, radius = len(table) - 1, 0.1
    beads = ji.Problem(
        falling,
        lambda t, q, args: jnp.concatenate([q[:1] - radius, jnp.diff(q) - 2 * radius]),
        restitution=0.9,
    )
    start = 1 + 0.25 * np.arange(10)
    found = ji.solve(beads, start, np.zeros(10), t1=n * 5e-4, h=5e-4, scheme=ji.MoreauJean())
    found.raise_if_failed()
    close(found.q, table[:, 1:20:2], 1e-12)
    close(found.v, table[:, 2:21:2], 1e-12)


def test_two_balls():
    table = reference("Ball2D_kernel_only")
    n, radius = len(table) - 1, 0.5
    balls = ji.Problem(
        falling,
        lambda t, q, args: jnp.stack([q[0] - radius, q[1] - q[0] - 2 * radius]),
        restitution=0.9,
    )
    found = ji.solve(balls, [1.0, 2.1], [0.0, 0.0], t1=n * 0.005, h=0.005, scheme=ji.MoreauJean())
    close(found.q[:, 0], table[:, 1], 1e-12)
    close(found.v[:, 0], table[:, 2], 1e-12)
    close(found.q[:, 1], table[:, 5], 1e-12)


def bar(n=100, density=7800.0, young=210e9, section=3.14e-4, length=1.0):
    """Consistent mass and stiffness of n - 1 linear elements of length L/n,
    as in their model (n degrees of freedom)."""
    width = length / n
    mass, stiffness = np.zeros((n, n)), np.zeros((n, n))
    for i in range(n - 1):
        part = slice(i, i + 2)
        mass[part, part] += density * section * width / 6 * np.array([[2.0, 1.0], [1.0, 2.0]])
        stiffness[part, part] += young * section / width * np.array([[1.0, -1.0], [-1.0, 1.0]])
    return mass, stiffness


@pytest.mark.slow
def test_impacting_bar():
    table = reference("ImpactingBar")
    mass, stiffness = bar()
    problem = ji.Problem(
        lambda t, q, v, args: -args @ q,
        lambda t, q, args: q[:1],
        mass=mass,
    )
    n = len(table) - 1
    h, t0 = 2e-6, table[0, 0]
    found = ji.solve(
        problem,
        np.full(100, 5e-5),
        np.full(100, -0.1),
        t0=t0,
        t1=t0 + n * h,
        h=h,
        args=stiffness,
        scheme=ji.MoreauJean(activation=0.0, newton=1),
    )
    found.raise_if_failed()
    for column, values in ((1, found.q[:, 0]), (2, found.v[:, 0]), (7, found.q[:, -1]), (8, found.v[:, -1])):
        scale = np.max(np.abs(table[:, column]))
        assert np.max(np.abs(values - table[:, column])) <= 1e-10 * scale, column


def test_schatzman_paoli():
    table = reference("BouncingBallTS-SchatzmanPaoliOSI")
    h = 0.005
    # their run starts one step late, from rest at U^0 = q0 and U^1 = q0 + 2 h v0 - g h^2: a start z with h z = -g h^2,
    # and their row k is our U^(k+1)
    scheme = ji.PaoliSchatzman(start=lambda h, q0, v0, args: jnp.full_like(q0, -GRAVITY) * h)
    n = round(6.0 / h)
    found = ji.solve(BALL, [1.0], [0.0], t1=n * h, h=h, scheme=scheme)
    first = int(np.argmin(np.abs(table[:, 1] - (1 - GRAVITY * h**2))))
    rows = table[first : first + n - 1, 1]
    assert np.max(np.abs(np.asarray(found.q[1:n, 0]) - rows)) <= 1e-9
