"""Contacts of bodies in space: gaps are distances, slip is the velocity of the material,
and the pair of tangents never degenerates."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaximpact import spatial

NORMAL = np.array([0.3, -0.2, 0.9]) / np.linalg.norm([0.3, -0.2, 0.9])
ELLIPSOID = spatial.ellipsoid((0.2, 0.1, 1.5), (0.3, 0.2, 0.1), mass=1.0, turn=(0.3, 0.5, -0.2))
BOX = spatial.box((0.2, 0.1, 1.5), (0.3, 0.4, 0.2), mass=1.0, turn=(0.3, 0.5, -0.2))
CYLINDER = spatial.cylinder((0, 0, 1.5), (0.3, 0.2, 1.4), 0.2, mass=1.0)
CAPSULE = spatial.capsule((0, 0, 1.5), (0.3, 0.2, 1.4), 0.2, mass=1.0)
SPHERE = spatial.ball((0.2, 0.1, 1.5), 0.2, mass=1.0)


def surface(body, count=40):
    """Points (n, 3) all over a body's surface, from its centre, in the axes of the start."""
    shape = body.shape
    theta, phi = np.meshgrid(np.linspace(0, np.pi, count), np.linspace(0, 2 * np.pi, 2 * count))
    unit = np.stack([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)], axis=-1).reshape(-1, 3)
    kind = type(shape).__name__
    if kind == "Sphere":
        return shape.radius * unit
    if kind == "Ellipsoid":
        return unit * shape.half @ np.array(shape.axes).T
    if kind == "Capsule":
        return np.concatenate([shape.radius * unit + side * np.array(shape.half) for side in (-1, 1)])
    if kind == "Box":
        return np.clip(4 * unit, -1, 1) * shape.half @ np.array(shape.axes).T
    axis = np.array(shape.half) / np.linalg.norm(shape.half)
    across = unit - (unit @ axis)[:, None] * axis
    rim = shape.rim * across / np.maximum(np.linalg.norm(across, axis=1), 1e-12)[:, None]
    return np.concatenate([rim + side * np.array(shape.half) for side in (-1, 1)])


def random_state(system, seed=0):
    random = np.random.default_rng(seed)
    q = system.q0 + 0.3 * random.normal(size=len(system.q0))
    return jnp.asarray(q), jnp.asarray(random.normal(size=len(q)))


SHAPES = {"sphere": SPHERE, "capsule": CAPSULE, "cylinder": CYLINDER, "box": BOX, "ellipsoid": ELLIPSOID}


@pytest.mark.parametrize("kind", SHAPES)
def test_the_least_gap_over_a_plane_is_that_of_the_lowest_point(kind):
    body = SHAPES[kind]
    system = spatial.System({"a": body}, [spatial.Plane("a", at=(0.1, 0.2, 0.3), normal=NORMAL)])
    for seed in range(5):
        q, _ = random_state(system, seed)
        turn, centre = np.asarray(system.rotation(q, "a")), np.asarray(q[:3])
        heights = (centre + surface(body) @ turn.T - (0.1, 0.2, 0.3)) @ NORMAL
        gap = float(jnp.min(system.gaps(0.0, q, None)))
        # samples lie on the surface: none is lower, and one is as low to the square of their distance (1/13)
        assert gap <= heights.min() + 1e-12 and gap > heights.min() - 0.3 * 0.1**2


@pytest.mark.parametrize("kind", SHAPES)
def test_slip_over_a_plane_that_moves_is_the_velocity_of_material_points(kind):
    table = spatial.box((0, 0, 0), (2, 2, 0.1), mass=3.0)
    plane = spatial.Plane("a", "table", at=(0, 0, 0.05), normal=NORMAL, friction=0.3)
    check_slip(spatial.System({"a": SHAPES[kind], "table": table}, [plane]), "a", "table")


def check_slip(system, a, b):
    """Slip and gradients of gaps against velocities of points that are fixed in both bodies,
    at the places where a push of a gap acts."""
    q, v = random_state(system, 1)
    gradients = jax.jacfwd(lambda q: system.gaps(0.0, q, None))(q)
    rates = gradients @ v
    slips = system.slip(0.0, q, v, None)
    twists = {name: np.asarray(system.twist(q, v, name)) for name in (a, b)}
    centres = {name: np.asarray(system.pose(q).centre(name)) for name in (a, b)}
    part = system.parts[-1]
    found = part._contact(system.pose(q))
    places, gaps = np.atleast_2d(found[-1]), np.atleast_1d(found[0])
    for place, gap, rate, slip, gradient in zip(places, gaps, rates, slips, gradients, strict=True):
        normal = np.asarray(gradient[:3])  # of the first body's centre
        np.testing.assert_allclose(np.linalg.norm(normal), 1, atol=1e-12)
        # of a pair the place is in the middle between the two surfaces
        middle = gap / 2 if len(found) == 3 else 0
        places_of = {a: place + middle * normal, b: place - middle * normal}
        speed = {name: twists[name][:3] + np.cross(twists[name][3:], place - centres[name]) for name in (a, b)}
        across = speed[a] - speed[b]
        np.testing.assert_allclose(
            np.linalg.norm(slip), np.linalg.norm(across - (across @ normal) * normal), atol=1e-12
        )
        touch = {n: twists[n][:3] + np.cross(twists[n][3:], places_of[n] - centres[n]) for n in (a, b)}
        if len(found) == 3:
            np.testing.assert_allclose(rate, normal @ (touch[a] - touch[b]), atol=1e-12)


PAIRS = {
    "sphere-sphere": (SPHERE, spatial.ball((0.5, 0.3, 0.4), 0.3, 1.0)),
    "sphere-capsule": (SPHERE, spatial.capsule((-1, 0, 0.4), (1, 0.3, 0.4), 0.1, 1.0)),
    "capsule-sphere": (spatial.capsule((-1, 0, 0.4), (1, 0.3, 0.4), 0.1, 1.0), SPHERE),
    "capsule-capsule": (CAPSULE, spatial.capsule((-1, 0, 0.4), (1, 0.3, 0.4), 0.1, 1.0)),
    "sphere-box": (SPHERE, spatial.box((0, 0, 0.3), (1, 1, 0.5), 1.0)),
    "box-sphere": (spatial.box((0, 0, 0.3), (1, 1, 0.5), 1.0), SPHERE),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_pairs_slip_with_their_material(pair):
    one, other = PAIRS[pair]
    check_slip(spatial.System({"a": one, "b": other}, [spatial.Contact("a", "b", friction=0.3)]), "a", "b")


def core(body, turn, centre, count):
    """Points (n, 3) of what a radius widens: a centre, an axis, a box."""
    shape = body.shape
    kind = type(shape).__name__
    if kind == "Sphere":
        return centre[None]
    if kind == "Capsule":
        return centre + np.linspace(-1, 1, count)[:, None] * (turn @ np.array(shape.half))
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 60)] * 3), axis=-1).reshape(-1, 3)
    return centre + grid * shape.half @ turn.T


@pytest.mark.parametrize("pair", PAIRS)
def test_gaps_of_pairs_are_distances(pair):
    one, other = PAIRS[pair]
    system = spatial.System({"a": one, "b": other}, [spatial.Contact("a", "b")])
    for seed in range(5):
        q, _ = random_state(system, seed)
        places = [np.asarray(system.rotation(q, n)) for n in "ab"], [np.asarray(system.pose(q).centre(n)) for n in "ab"]
        a, b = (core(body, turn, centre, 400) for body, turn, centre in zip((one, other), *places, strict=True))
        distance = np.min(np.linalg.norm(a[:, None] - b[None], axis=2)) - one.shape.radius - other.shape.radius
        gap = float(system.gaps(0.0, q, None)[0])
        # samples are 1/200 of an axis or 1/30 of a box's side apart; a distance over a flat place changes by the square
        assert distance - 2e-3 < gap < distance + 1e-12


@pytest.mark.parametrize("offset", [0.0, 0.7, 2.5])
def test_parallel_capsules_have_a_distance(offset):
    bodies = {
        "a": spatial.capsule((-1, 0, 1), (1, 0, 1), 0.1, 1.0),
        "b": spatial.capsule((1 + offset, 0, 0), (-1 + offset, 0, 0), 0.2, 1.0),
    }
    system = spatial.System(bodies, [spatial.Contact("a", "b", friction=0.3)])
    q = jnp.asarray(system.q0)
    found = float(system.gaps(0.0, q, None)[0])
    np.testing.assert_allclose(found, np.hypot(max(0, offset - 2), 1) - 0.3, rtol=1e-12)
    assert np.all(np.isfinite(jax.jacfwd(lambda q: system.gaps(0.0, q, None))(q)))
    if offset < 2:
        # in the middle of where they are beside each other
        np.testing.assert_allclose(system.parts[0]._contact(system.pose(q))[2][0], offset / 2, atol=1e-12)


def test_a_ball_in_a_box_has_the_signed_distance_to_the_nearest_face():
    bodies = {"a": spatial.ball((0.1, 0, 0.4), 0.05, 1.0), "b": spatial.box((0, 0, 0), (2, 2, 1), 1.0)}
    system = spatial.System(bodies, [spatial.Contact("a", "b", friction=0.1)])
    value, slope = jax.value_and_grad(lambda q: system.gaps(0.0, q, None)[0])(jnp.asarray(system.q0))
    np.testing.assert_allclose(value, -0.1 - 0.05, rtol=1e-12)
    np.testing.assert_allclose(slope[:3], (0, 0, 1), atol=1e-15)


def test_tangents_are_orthonormal_for_every_normal():
    """Of a ball that is carried all around another: at no place do the directions across the normal degenerate; nor is
    there a switch, which would make the forces of all motions ones in pieces."""
    bodies = {"a": spatial.ball((0, 0, 1), 0.5, 1.0), "b": spatial.ball((0, 0, 0), 0.5, 1.0)}
    system = spatial.System(bodies, [spatial.Contact("a", "b", friction=0.1)])
    slip = jax.jit(lambda q, v: system.slip(0.0, q, v, None)[0])
    choices = jax.make_jaxpr(lambda q, v: (system.gaps(0.0, q, None), slip(q, v)))(system.q0, system.q0)
    assert not {"select_n", "lt", "gt", "le", "ge", "max", "min"} & set(re.findall(r"= (\w+)", str(choices)))
    turning = [(np.sqrt(0.75), 0, -0.5), (0, np.sqrt(0.75), -0.5 - 1e-16)]  # where the pair changes
    for normal in [*np.eye(3), *-np.eye(3), *turning, *np.random.default_rng(0).normal(size=(20, 3))]:
        normal = normal / np.linalg.norm(normal)
        q = jnp.asarray(system.q0).at[:3].set(normal)
        rows = np.array([slip(q, jnp.zeros(14).at[i].set(1.0)) for i in range(3)]).T
        np.testing.assert_allclose(np.stack([*rows, normal]) @ np.stack([*rows, normal]).T, np.eye(3), atol=1e-14)


def test_stops_and_names():
    bodies = {"arm": spatial.capsule((0, 0, 0), (1, 0, 0), 0.1, 1.0)}
    parts = [
        spatial.Hinge("arm", at=(0, 0, 0), axis=(0, 0, 1)),
        spatial.AngleStop("arm", low=-0.1, high=lambda args: args, restitution=0.3),
        spatial.Plane("arm", at=(0, -1, 0), normal=(0, 1, 0), restitution=0.5, friction=0.2, name="wall"),
        spatial.Plane("arm", at=(0, -1, 0), normal=(0, 1, 0), points=[(1, 0, 0)], radius=0.2),
    ]
    system = spatial.System(bodies, parts)
    problem = system.problem()
    assert problem.contacts == (
        "arm against ground low",
        "arm against ground high",
        "wall end",
        "wall start",
        "arm on ground",
    )
    assert problem.units["arm against ground low"] == "rad" and problem.units["wall end"] == "m"
    np.testing.assert_allclose(problem.restitution, [0.3, 0.3, 0.5, 0.5, 0])
    np.testing.assert_allclose(problem.friction, [0, 0, 0.2, 0.2, 0])
    angle = 0.05
    found = problem.gaps(0.0, jnp.array([angle]), 0.2)
    np.testing.assert_allclose(found, [0.15, 0.15, np.sin(angle) + 0.9, 0.9, np.sin(angle) + 0.8], rtol=1e-12)


def test_a_cylinder_flat_on_an_end_has_finite_gradients():
    """While it moves, too, nothing becomes NaN where its axis is normal to a plane."""
    body = spatial.cylinder((0, 0, 1), (0, 0.5, 1), 0.2, 1.0)
    system = spatial.System({"a": body}, [spatial.Plane("a", at=(0, 0, 0), friction=0.2)])
    q = jnp.asarray(system.retract(system.q0, a=(0, 0, 0, np.pi / 2, 0, 0)))
    gaps, slope = system.gaps(0.0, q, None), jax.jacfwd(lambda q: system.gaps(0.0, q, None))(q)
    np.testing.assert_allclose(gaps, [1.25, 0.75], atol=1e-12)
    assert np.all(np.isfinite(slope))
