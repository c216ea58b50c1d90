"""The event-driven reference and the exact cases: against formulas, central differences and published numbers."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from support.experiments.conformance import cases, central_differences, reference

# the integrator's tolerance of 1e-12, through a motion of a hundred steps and a Jacobian of order 10
SOLVED = 1e-9


@pytest.mark.parametrize(
    "name",
    ["off-wall"]
    + [
        pytest.param(x, marks=pytest.mark.slow)
        for x in ("corner", "hop1d", "grav1d", "zeno", "grav1d-once", "ball-e0.5", "two-balls")
    ],
)
def test_the_reference_is_the_closed_form(name):
    case = cases.get(name)
    found, exact = case.by_events(), case.exact_at()
    np.testing.assert_allclose(found.state, exact.state, rtol=0, atol=SOLVED)
    # zeno: the last of infinitely many bounces is the first slower than 1e-8
    tolerance = 1e-7 if name == "zeno" else SOLVED
    assert cases.relative_error(found.jacobian, exact.jacobian) < tolerance


def test_one_bounce_by_hand():
    """v(t1) = e u - g (t1 - t*), with u the speed and t* the time of impact."""
    g, e, y, v, wall = 9.81, 0.7, 1.0, -1.3, 0.05
    u = np.sqrt(v**2 + 2 * g * (y - wall))
    found = reference(cases.BALL, [y], [v], 0.9, {"g": g, "wall": wall}, e)
    assert found.impacts[0] == pytest.approx(((v + u) / g, 0, u), abs=1e-12)
    assert found.v[0] == pytest.approx(e * u - g * (0.9 - (v + u) / g), abs=SOLVED)
    assert found.jacobian["q0"][1, 0] == pytest.approx((1 + e) * g / u, abs=SOLVED)
    assert found.jacobian["e"][:, 0] == pytest.approx((u * (0.9 - (v + u) / g), u), abs=SOLVED)


@pytest.mark.slow
def test_sliding_into_a_ramp():
    """A point slides on a floor into a ramp (e = 0): the floor lets go, and it climbs at v cos(a) - g sin(a) t."""

    def surfaces(t, q, args):
        return jnp.stack([q[1], q[1] * jnp.cos(args["a"]) - (q[0] - 1) * jnp.sin(args["a"])])

    problem = ji.Problem(lambda t, q, v, args: -args["g"] * jnp.array([0.0, 1.0]), surfaces)
    x, v, g, a, t1 = 0.2, 2.0, 3.0, 0.5, 0.8
    found = reference(problem, [x, 0.0], [v, 0.0], t1, {"g": g, "a": a}, 0.0)
    time = t1 - (1 - x) / v
    along, speed = v * np.cos(a) * time - g * np.sin(a) * time**2 / 2, v * np.cos(a) - g * np.sin(a) * time
    ramp = np.array([np.cos(a), np.sin(a)])
    np.testing.assert_allclose(
        np.concatenate([found.q, found.v]), [1 + along * ramp[0], along * ramp[1], *speed * ramp]
    )
    assert [hit.constraint for hit in found.impacts] == [1] and found.closed == (1,)
    by_x = np.concatenate([speed / v * ramp, -g * np.sin(a) / v * ramp])  # an earlier impact, by dx/v
    np.testing.assert_allclose(found.jacobian["q0"][:, 0], by_x, atol=SOLVED)
    by_g = -np.sin(a) * np.concatenate([time**2 / 2 * ramp, time * ramp])
    np.testing.assert_allclose(found.jacobian["g"][:, 0], by_g, atol=SOLVED)


@pytest.mark.slow
def test_the_reference_is_the_central_difference():
    case = cases.get("dpend")
    found = reference(case.problem, case.q0, case.v0, case.t1, case.args, case.e)
    numeric = central_differences(case.problem, case.q0, case.v0, case.t1, case.args, case.e, step=1e-4)
    assert set(numeric) == set(found.jacobian) == {"q0", "v0", "e", "xw", "g", "m2"}
    for name, columns in numeric.items():
        # step^2 times third derivatives of order 100
        np.testing.assert_allclose(found.jacobian[name], columns, rtol=0, atol=1e-5)


KNOWN = {  # name: rows and columns of the Jacobian, and its values, to the digits they are known with
    "grav1d-once": ("v", "y0", [[3.698792]], 1e-6),
    "zeno": ("q2", "y0 e g wall", [[0.550739, 0.503533, -0.016842, 1.449261]], 1e-6),
    "ball-e0.8": ("q", "y0 v0 e", [[1.38650223, 0.18725745, 2.42944692]], 1e-8),
    "ball-e0.5": ("q", "y0 v0 e", [[-0.01687222, -0.01592819, 0.28834075]], 1e-8),
    "outside-disc": (
        "q1 q2",
        "x0 y0 vx vy",
        [[-0.9066, 3.3026, -1.5792, 3.5630], [0.5362, 2.9305, 1.2729, 3.2546]],
        1e-4,
    ),
    "two-balls": ("q2", "x1 x2 v1 v2", [[1, 0, 1, 0]], 1e-12),
    "off-wall": ("q", "y0", [[-1]], 1e-12),
}


@pytest.mark.parametrize("name", KNOWN)
def test_the_reference_has_the_known_numbers(name):
    case = cases.get(name)
    rows, columns, values, unit = KNOWN[name]
    place = np.ix_([case.rows.index(r) for r in rows.split()], [case.columns.index(c) for c in columns.split()])
    np.testing.assert_allclose(case.exact.jacobian[place], values, rtol=0, atol=unit)


def test_phases_meet_the_impact_in_every_part_of_a_step():
    case = cases.get("ball-e0.8")
    impact = np.sqrt(2 / 9.81)
    steps, ends = case.phases(1e-3)
    phase = np.sort(impact * steps / ends % 1)
    assert steps == 1000 and ends[0] == case.t1 and ends[-1] < case.t1 + 4e-3
    assert np.max(np.diff([*phase, phase[0] + 1])) < 0.3  # eight phases, evenly: 0.125
    exact = case.exact_at(ends[-1])
    assert exact.jacobian[1, 2] == pytest.approx(np.sqrt(2 * 9.81))  # dv/de is the speed at the impact
    assert exact.jacobian[0, 2] == pytest.approx(np.sqrt(2 * 9.81) * (ends[-1] - impact))


def test_what_has_no_derivative_is_refused():
    def wedge(t, q, args):
        return jnp.stack([q[1] - args["slope"] * q[0], q[1] + args["slope"] * q[0]])

    problem = ji.Problem(lambda t, q, v, args: jnp.array([0.0, -1.0]), wedge, restitution=0.5)
    # the walls are perpendicular at slope 1, but a derivative by the slope does not exist there either
    assert len(reference(problem, [0.0, 1.0], [0.0, 0.0], 2.0, {"slope": 1.0}, wrt=["q0"]).impacts) == 2
    with pytest.raises(ValueError, match=r"constraints \[0, 1\] are hit at once and not orthogonal"):
        reference(problem, [0.0, 1.0], [0.0, 0.0], 2.0, {"slope": 0.5}, wrt=["q0"])
    for start, message in {(-0.1, 0.0): "q0 violates constraint 0", (0.0, -1.0): "v0 points out"}.items():
        with pytest.raises(ValueError, match=message):
            reference(cases.WALL, [start[0]], [start[1]], 1.0, {"wall": 0.0}, 1.0)
    with pytest.raises(ValueError, match="no parameter 'mu'"):
        reference(cases.WALL, [1.0], [0.0], 1.0, {"wall": 0.0}, 1.0, wrt=["mu"])
