"""Motions of bodies in space against closed forms: tops, rolling balls, impacts of boxes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ellipj

import jaximpact as ji
from jaximpact import spatial

G = 9.81
MOMENTS = np.array([1.5, 2.0, 3.0])
TOP = spatial.System({"top": spatial.Body(1.0, MOMENTS, (0, 0, 0))}, gravity=0.0)


def free_top(t, first, last):
    """Angular velocity (k, 3) in the axes of the body, from (first, 0, last), of a top that turns about its third axis: Landau, Mechanics, 37."""
    a, b, c = MOMENTS
    twice, square = a * first**2 + c * last**2, (a * first) ** 2 + (c * last) ** 2
    k = (b - a) * (twice * c - square) / ((c - b) * (square - twice * a))
    sn, cn, dn, _ = ellipj(t * np.sqrt((c - b) * (square - twice * a) / (a * b * c)), k)
    sizes = [
        (twice * c - square) / (a * (c - a)),
        (twice * c - square) / (b * (c - b)),
        (square - twice * a) / (c * (c - a)),
    ]
    return np.sqrt(sizes) * np.stack([cn, sn, dn], axis=-1)


def check_free_top(t1, rtol, tolerance):
    first, last = 2.0, 1.6  # near the axis that is unstable: turns of it are slow
    q0, v0 = TOP.start(top=(0.1, 0.2, 0.3, first, 0.0, last))
    motion = ji.solve(TOP.problem(), q0, v0, t1=t1, scheme=ji.EventDriven(rtol=rtol, atol=rtol), steps=20)
    turns = np.array([TOP.rotation(q, "top") for q in motion.q])
    spins = np.array([TOP.twist(q, v, "top")[3:] for q, v in zip(motion.q, motion.v, strict=True)])
    inside = np.einsum("kji,kj->ki", turns, spins)
    assert motion.status == 0
    np.testing.assert_allclose(inside, free_top(np.asarray(motion.t), first, last), atol=tolerance)
    momentum = np.einsum("kij,j,kj->ki", turns, MOMENTS, inside)
    np.testing.assert_allclose(momentum, np.tile(momentum[0], (21, 1)), atol=tolerance)
    np.testing.assert_allclose(np.linalg.norm(motion.q[:, 3:], axis=1), 1, atol=tolerance)
    np.testing.assert_allclose(motion.energy, motion.energy[0], rtol=tolerance)
    np.testing.assert_allclose(motion.q[:, :3], np.outer(motion.t, (0.1, 0.2, 0.3)), atol=tolerance)


def test_a_free_top_turns_by_elliptic_functions():
    check_free_top(2.0, 1e-9, 1e-8)  # a tolerance a substep, of some twenty


@pytest.mark.slow
def test_a_free_top_turns_for_long_by_elliptic_functions():
    check_free_top(20.0, 1e-11, 2e-9)  # errors grow at the unstable axis, here by some 50


def test_a_heavy_top_precesses_steadily():
    """A fast symmetric top on its foot, at an angle to the vertical: J Omega^2 cos - J3 n Omega + m g l = 0, with n its angular velocity along its axis."""
    tilt, spin, mass, length = 0.4, 150.0, 0.5, 0.1
    across, along = 8e-4, 1.5e-3
    axis = np.array([np.sin(tilt), 0, np.cos(tilt)])
    moments = across * np.eye(3) + (along - across) * np.outer(axis, axis)
    top = spatial.System(
        {"top": spatial.Body(mass, moments, length * axis)}, [spatial.Ball("top", at=(0, 0, 0))], gravity=G
    )
    foot = across + mass * length**2
    a, b, c = foot * np.cos(tilt), -along * spin, mass * G * length
    omega = (-b - np.sqrt(b * b - 4 * a * c)) / (2 * a)
    q0, v0 = top.start(top=np.array([0, 0, omega]) + (spin - omega * np.cos(tilt)) * axis)
    motion = ji.solve(top.problem(), q0, v0, t1=1.0, scheme=ji.EventDriven(rtol=1e-9, atol=1e-9), steps=10)
    places = np.array([top.position(q, "top", length * axis) for q in motion.q])
    angle = omega * np.asarray(motion.t)
    expected = length * np.stack(
        [np.sin(tilt) * np.cos(angle), np.sin(tilt) * np.sin(angle), np.full(11, np.cos(tilt))], axis=1
    )
    assert omega > 1 and motion.status == 0
    np.testing.assert_allclose(places, expected, atol=1e-8)  # some 200 substeps of 1e-9 of the coordinates, times .1 m


def test_the_length_of_a_quaternion_changes_no_motion():
    ends = []
    for length in (1.0, 3.0):
        q0, v0 = TOP.start(top=(0, 0, 0, 0.3, 2.0, 0.4))
        scale = np.array([1.0] * 3 + [length] * 4)
        motion = ji.solve(TOP.problem(), q0 * scale, v0 * scale, t1=1.0, scheme=ji.EventDriven(), save="final")
        ends.append(np.ravel(TOP.rotation(motion.q[-1], "top")))
    np.testing.assert_allclose(*ends, atol=1e-7)  # tolerances 1e-9 a substep, of different ones


BOX = {"box": spatial.box((0, 0, 0.5), (0.2, 0.1, 0.05), mass=1.0)}


def test_impacts_of_a_smooth_box_keep_energy_and_what_symmetry_says():
    """e = 1: of three freedoms of a box over a smooth floor nothing changes: two of the centre, and the angular momentum about the vertical."""
    system = spatial.System(BOX, [spatial.Plane("box", at=(0, 0, 0), restitution=1.0)])
    start = system.start(box=(1.0, -0.5, 0, 3.0, -2.0, 5.0))
    motion = ji.solve(system.problem(), *start, t1=0.7, scheme=ji.EventDriven(), steps=7)
    assert motion.status == 0 and np.sum(motion.impulse[-1] > 0) >= 1
    np.testing.assert_allclose(motion.energy, motion.energy[0], rtol=1e-7)
    np.testing.assert_allclose(motion.v[:, :2], np.tile((1.0, -0.5), (8, 1)), atol=1e-8)

    def about_the_vertical(q, v):
        turn = system.rotation(q, "box")
        return (turn @ (np.array(BOX["box"].inertia) @ (turn.T @ system.twist(q, v, "box")[3:])))[2]

    found = [about_the_vertical(q, v) for q, v in zip(motion.q, motion.v, strict=True)]
    np.testing.assert_allclose(found, found[0], atol=1e-9)


RADIUS, MU, SPEED = 0.1, 0.3, 2.0
ROUGH = spatial.System(
    {"ball": spatial.ball((0, 0, RADIUS), RADIUS, mass=2.0)},
    [spatial.Plane("ball", at=(0, 0, 0), friction=lambda args: args["mu"], name="floor")],
    gravity=G,
)
SLIPS = 2 * SPEED / (7 * MU * G)  # until it rolls, if thrown without spin


def thrown(scheme, steps):
    q0, v0 = ROUGH.start(ball=(SPEED * 0.6, SPEED * 0.8, 0, 0, 0, 0))
    return ji.solve(ROUGH.problem(), q0, v0, t1=2 * SLIPS, steps=steps, args={"mu": MU}, scheme=scheme, save="all")


@pytest.mark.parametrize("scheme", [ji.MoreauJean(), ji.EventCorrected()], ids=["MoreauJean", "EventCorrected"])
def test_a_ball_that_is_thrown_along_a_floor_rolls_at_five_sevenths_of_its_speed(scheme):
    """It slips for 2 v / (7 mu g), which `MoreauJean` finds to first order and `EventCorrected` by location."""
    motion = thrown(scheme, 400)
    t = np.asarray(motion.t)
    speed = np.maximum(SPEED - MU * G * t, 5 / 7 * SPEED)
    gone = np.where(t < SLIPS, SPEED * t - MU * G * t**2 / 2, 0)
    gone = np.where(t < SLIPS, gone, SPEED * SLIPS - MU * G * SLIPS**2 / 2 + 5 / 7 * SPEED * (t - SLIPS))
    # first order: the step that ends slip, h mu g; of a located one rounding and the quaternion's path, of second order
    tolerance = 2 * MU * G * 2 * SLIPS / 400 if scheme == ji.MoreauJean() else 1e-4
    assert motion.status == 0
    np.testing.assert_allclose(motion.v[:, :2], speed[:, None] * [0.6, 0.8], atol=tolerance)
    np.testing.assert_allclose(motion.q[:, :2], gone[:, None] * [0.6, 0.8], atol=tolerance)
    spin = ROUGH.twist(motion.q[-1], motion.v[-1], "ball")[3:]
    np.testing.assert_allclose(spin, 5 / 7 * SPEED / RADIUS * np.array([-0.8, 0.6, 0]), atol=5 * tolerance / RADIUS)


def test_derivatives_of_a_flight_are_those_of_differences():
    """In six numbers, displacement and rotation vector, at both ends."""
    system = spatial.System(BOX)
    problem = system.problem()

    def end(step):
        start = system.start(q0=system.retract(system.q0, box=step), box=(1.0, 0, 0, 3.0, -2.0, 5.0))
        return ji.solve(problem, *start, t1=0.3, scheme=ji.EventDriven(rtol=1e-10, atol=1e-10), save="final").q[-1]

    reference = end(np.zeros(6))
    moved = jax.jit(lambda step: system.difference(reference, end(step), "box"))
    found = jax.jacfwd(moved)(jnp.zeros(6))
    h = 1e-4
    differences = np.stack([(moved(h * x) - moved(-h * x)) / (2 * h) for x in np.eye(6)], axis=1)
    np.testing.assert_allclose(found, differences, atol=1e-5)  # h^2, and 1e-10 / h


def test_a_picture_shows_bodies_and_shadows():
    from matplotlib.figure import Figure

    ax = Figure().add_subplot()
    system = spatial.System(BOX, [spatial.Plane("box", at=(0, 0, 0))])
    system.draw(ax, 0.0, system.q0)
    shadow, body = (patch.get_path().vertices for patch in ax.patches)
    # seen from 20 degrees above the floor, the shadow of a level box is .5 cos(20) lower
    drop = np.cos(np.radians(20)) * 0.5
    np.testing.assert_allclose(shadow[:, 1].min(), body[:, 1].min() + 0.025 * np.cos(np.radians(20)) - drop, atol=1e-12)
    assert len(ax.lines) == 24 and len(body) == 7  # a hexagon, closed
