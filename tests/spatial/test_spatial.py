"""Bodies in space: kinematics, accelerations, forces, joints in loops, and statements that cannot be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import spatial
from support import random_trees
from support.breadth import slow

G = 9.81
CUBE = spatial.box((0.3, 0.1, 0.2), (0.4, 0.2, 0.6), mass=2.0)
ARM = spatial.capsule((0.5, 0.1, 0.2), (1.1, 0.1, 0.2), 0.05, mass=lambda args: args["m"])
HINGED = {"cube": CUBE, "arm": ARM}
HINGE = spatial.Hinge("arm", "cube", at=(0.5, 0.1, 0.2), axis=(0, 1, 1))
ARGS = {"m": 1.3}


def random_state(system, seed=0):
    random = np.random.default_rng(seed)
    q = system.q0 + 0.4 * random.normal(size=len(system.q0))
    return jnp.asarray(q), jnp.asarray(random.normal(size=len(q)))


def sampled_inertia(inside, half, count=80):
    """Of a unit mass that fills the points of a grid for which ``inside`` is true."""
    x = np.stack(np.meshgrid(*(h * (2 * np.arange(count) + 1 - count) / count for h in half), indexing="ij"), axis=-1)
    x = x[inside(x)]
    return (np.sum(x**2) * np.eye(3) - x.T @ x) / len(x)


@pytest.mark.parametrize(
    "body, half, inside",
    [
        (spatial.ball((1, 2, 3), 0.5, mass=2.0), (0.5, 0.5, 0.5), lambda x: np.sum(x**2, -1) < 0.25),
        (spatial.box((1, 2, 3), (0.2, 0.4, 0.6), mass=2.0), (0.1, 0.2, 0.3), lambda x: x[..., 0] < 1),
        (spatial.ellipsoid((1, 2, 3), (0.1, 0.2, 0.3), mass=2.0), (0.1, 0.2, 0.3),
        lambda x: np.sum((x / (0.1, 0.2, 0.3)) ** 2, -1) < 1),
        (spatial.cylinder((1, 2, 2.7), (1, 2, 3.3), 0.2, mass=2.0), (0.2, 0.2, 0.3),
        lambda x: np.sum(x[..., :2] ** 2, -1) < 0.04), (
            spatial.capsule((0.7, 2, 3), (1.3, 2, 3), 0.2, mass=2.0),
            (0.5, 0.2, 0.2),
            lambda x: np.sum(x[..., 1:] ** 2, -1) + np.maximum(np.abs(x[..., 0]) - 0.3, 0) ** 2 < 0.04,
        ),
    ],
    ids=["ball", "box", "ellipsoid", "cylinder", "capsule"],
)  # fmt: skip
def test_bodies_are_uniform(body, half, inside):
    # the grid has 80 points along each axis: round surfaces are known to some part of 1/80
    np.testing.assert_allclose(body.inertia, 2 * sampled_inertia(inside, half), rtol=3e-3, atol=1e-6)
    np.testing.assert_allclose(body.centre, (1, 2, 3), rtol=1e-15)


def test_a_turned_box_has_its_inertia_turned():
    turned = spatial.box((0, 0, 0), (0.2, 0.4, 0.6), mass=2.0, turn=(0, 0, np.pi / 2))
    np.testing.assert_allclose(turned.inertia, spatial.box((0, 0, 0), (0.4, 0.2, 0.6), mass=2.0).inertia, atol=1e-15)


def check_accelerations(seed, count):
    rng = np.random.default_rng(seed)
    system, how = random_trees.random_tree(rng, count)
    q, v = random_state(system, seed)
    expected = jax.jit(lambda q, v: random_trees.accelerations(system, how, q, v))(q, v)
    found = jax.jit(lambda q, v: jnp.linalg.solve(system.mass(q, None), system.force(0.0, q, v, None)))(q, v)
    found, expected = np.array(found), np.array(expected)
    for i in system.tree.quaternions():
        # along p the length is led back to 1, which Lagrange's equations do not know
        p, own = q[i : i + 4], slice(i, i + 4)
        found[own] += (p @ (expected[own] - found[own])) / (p @ p) * p
    # rounding, by the condition of a mass matrix
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11 * np.abs(expected).max())


@pytest.mark.parametrize("seed", [1, slow(9)])
def test_accelerations_are_those_of_lagrange(seed):
    check_accelerations(seed, 3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_accelerations_of_random_trees(seed):
    check_accelerations(seed, 2 + seed % 5)


ENDS = ((0.4, 0.2, 0.4), (1.0, 0.1, 0.3))


def test_energy_changes_by_the_power_of_what_is_not_elastic():
    """Of a damper, a torsion spring's damper and two motors, beside springs, which have none."""
    parts = [
        spatial.Spring("cube", "arm", ends=ENDS, stiffness=30.0, length=0.4),
        spatial.Spring("cube", "arm", ends=ENDS, damping=2.0),
        spatial.AngleSpring("arm", "cube", stiffness=5.0, damping=0.7, angle=0.2),
        spatial.Motor("cube", "arm", torque=3.0),
        spatial.Motor("arm", "cube", torque=lambda t, angle, rate, args: 2 * t - rate),
    ]
    power = lambda stretch, turn: -2.0 * stretch**2 - 0.7 * turn**2 - 3.0 * turn + (1.0 - turn) * turn
    system = spatial.System(HINGED, [HINGE, *parts])
    q, v = random_state(system)
    p = slice(3, 7)
    v = v.at[p].add(-(v[p] @ q[p]) / (q[p] @ q[p]) * q[p])  # of a constant |p|

    @jax.jit
    def rates(q, v):
        a = jnp.linalg.solve(system.mass(q, ARGS), system.force(0.5, q, v, ARGS))
        apart = lambda q: jnp.linalg.norm(system.position(q, "cube", ENDS[0]) - system.position(q, "arm", ENDS[1]))
        power = jax.jvp(lambda q, v: system.energy(0.5, q, v, ARGS), (q, v), (v, a))[1]
        return power, jax.jvp(apart, (q,), (v,))[1]

    found, stretch = rates(q, v)
    np.testing.assert_allclose(found, power(stretch, v[7]), rtol=1e-11, atol=1e-11)


def test_forces_do_the_power_of_their_points():
    """Virtual power of a force at a point of the arm, and of a torque between arm and cube."""
    push, couple = np.array([1.0, -2.0, 0.5]), np.array([0.3, 0.2, -0.7])
    parts = [
        spatial.Force("arm", at=(0.9, 0.2, 0.1), force=lambda t, args: push * t),
        spatial.Torque("arm", "cube", torque=lambda t, args: couple),
    ]
    loaded, free = (spatial.System(HINGED, [HINGE, *some], gravity=0.0) for some in (parts, []))
    q, v = random_state(loaded)
    difference = jax.jit(lambda q, v: loaded.force(2.0, q, v, ARGS) - free.force(2.0, q, v, ARGS))(q, v)
    speed = jax.jvp(lambda q: loaded.position(q, "arm", (0.9, 0.2, 0.1)), (q,), (v,))[1]
    spins = [loaded.twist(q, v, name)[3:] for name in ("arm", "cube")]
    np.testing.assert_allclose(v @ difference, 2 * push @ speed + couple @ (spins[0] - spins[1]), rtol=1e-12)


def test_twists_are_derivatives_of_places():
    system = spatial.System(HINGED, [HINGE])
    q, v = random_state(system, 4)
    for name, centre in (("arm", (0.8, 0.1, 0.2)), ("cube", CUBE.centre)):
        speed = jax.jvp(lambda q: system.position(q, name, centre), (q,), (v,))[1]  # noqa: B023
        turn, rate = jax.jvp(lambda q: system.rotation(q, name), (q,), (v,))  # noqa: B023
        spin = rate @ turn.T
        expected = [*speed, spin[2, 1], spin[0, 2], spin[1, 0]]
        np.testing.assert_allclose(system.twist(q, v, name), expected, rtol=1e-12, atol=1e-12)


def test_starts_have_the_twists_that_are_given():
    system = spatial.System(HINGED, [spatial.Ball("arm", "cube", at=(0.5, 0.1, 0.2))])
    first = system.retract(system.q0, cube=(0.1, 0.2, -0.3, 0.5, -1.0, 0.3), arm=(0.2, 0.1, 0.4))
    rate = np.array([1.0, 2.0, 3.0, -0.5, 0.7, 0.2])
    q0, v0 = system.start(ARGS, q0=first, cube=rate, arm=(0.1, -0.4, 0.6))
    np.testing.assert_allclose(system.twist(q0, v0, "cube"), rate, atol=1e-14)
    # relative to the cube, in its axes
    expected = rate[3:] + system.rotation(q0, "cube") @ np.array([0.1, -0.4, 0.6])
    np.testing.assert_allclose(system.twist(q0, v0, "arm")[3:], expected, atol=1e-14)


def test_steps_and_differences_are_inverse():
    system = spatial.System(HINGED, [HINGE])
    q, _ = random_state(system, 2)
    step = np.array([0.1, -0.2, 0.3, 0.8, -1.9, 0.4])
    np.testing.assert_allclose(system.difference(q, system.retract(q, cube=step, arm=0.3), "cube"), step, atol=1e-14)
    np.testing.assert_allclose(system.difference(q, system.retract(q, arm=0.3), "arm"), [0.3], atol=1e-15)
    # also where nothing moves, and of a small step: the Jacobian is the identity
    for size in (0.0, 1e-5):
        around = jax.jacfwd(lambda x: system.difference(q, system.retract(q, cube=x), "cube"))(size * step)
        np.testing.assert_allclose(around, np.eye(6), atol=2 * size + 1e-12)


def bar(start, end):
    return spatial.capsule(start, end, 0.05, mass=1.0)


def test_a_loop_has_the_same_motion_wherever_it_is_cut():
    """Three bars and the ground, on hinges, a ball and a universal joint: which of these are coordinates follows from
    the order of the parts."""
    corners = [(0, 0, 0), (0, 0.1, 1), (1, 0.3, 1.2), (1.2, 0, 0)]
    bodies = {name: bar(corners[i], corners[i + 1]) for i, name in enumerate(("crank", "coupler", "rocker"))}
    parts = [
        spatial.Hinge("crank", at=corners[0], axis=(0, 1, 0)),
        spatial.Ball("coupler", "crank", at=corners[1]),
        spatial.Universal("rocker", "coupler", at=corners[2], axes=((0, 1, 0.2), (1, 0, 0))),
        spatial.Hinge("rocker", at=corners[3], axis=(0, 1, 0.1)),
    ]
    found = []
    for order in ([0, 1, 2, 3], [0, 3, 2, 1]):
        system = spatial.System(bodies, [parts[i] for i in order])
        # 5 of a hinge, 3 of a ball
        assert len(system.problem().joint_names) == {3: 5, 1: 3}[order[-1]]
        q, v = system.start(crank=1.0)
        found.append(jax.jit(lambda q, v, of: twists(of, bodies, q, v), static_argnums=2)(q, v, system))
    # also the velocity is one: that of least kinetic energy with the crank's rate
    np.testing.assert_allclose(*found, atol=1e-10)


@pytest.mark.slow
def test_a_four_bar_on_a_turntable_moves_alike_in_every_plane():
    """Closed by a hinge in an oblique plane, and by a ball joint in one along an axis of the world: three equations, or
    one, follow from the others, the same ones as the plane turns."""
    ends = []
    for angle, joint in ((0.3, spatial.Hinge), (0.0, spatial.Ball)):
        turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
        corners = [tuple(turn @ x) for x in ((0, 0, 0), (0, 0, 1), (1, 0, 1.2), (1.2, 0, 0))]
        across = {"axis": tuple(turn[:, 1])}
        names = ("crank", "coupler", "rocker")
        bodies = {name: bar(corners[i], corners[i + 1]) for i, name in enumerate(names)}
        parts = [
            spatial.Hinge("table", at=(0, 0, 0), axis=(0, 0, 1)),
            spatial.Hinge("crank", "table", at=corners[0], **across),
            spatial.Hinge("coupler", "crank", at=corners[1], **across),
            spatial.Hinge("rocker", "table", at=corners[3], **across),
            joint("rocker", "coupler", at=corners[2], **(across if joint is spatial.Hinge else {})),
        ]
        system = spatial.System({"table": spatial.ball((0, 0, -0.2), 0.2, mass=1.0), **bodies}, parts)
        start = system.start(table=0.7, crank=1.0)
        with pytest.warns(ji.JaximpactWarning, match="adds nothing to the joints before it"):
            motion = ji.solve(system.problem(), *start, t1=0.5, h=0.01, scheme=ji.MoreauJean(), save="final")
        assert motion.status == ji.Status.IMPULSES_NOT_UNIQUE
        ends.append(np.concatenate([motion.q[-1], motion.v[-1]]))
    np.testing.assert_allclose(*ends, atol=1e-12)  # round-off of 50 steps


def twists(system, bodies, q, v):
    """Velocities of bodies and their rates (2, n, 6)."""
    every = lambda q, v: jnp.stack([system.twist(q, v, name) for name in bodies])
    return jnp.stack(jax.jvp(every, (q, v), (v, jointed_acceleration(system, q, v))))


def jointed_acceleration(system, q, v):
    joints = lambda q: system.joints(0.0, q, None)
    rows = jax.jacfwd(joints)(q)
    turning = jax.jvp(lambda q: jax.jvp(joints, (q,), (v,))[1], (q,), (v,))[1]
    mass, none = system.mass(q, None), jnp.zeros((len(rows), len(rows)))
    right = jnp.concatenate([system.force(0.0, q, v, None), -turning])
    return jnp.linalg.solve(jnp.block([[mass, rows.T], [rows, none]]), right)[: len(q)]


def test_joints_are_zero_where_they_hold():
    others = [
        spatial.Slider("arm", "cube", at=(0.5, 0.1, 0.2), along=(1, 2, 0)),
        spatial.Weld("arm", "cube"),
        spatial.Rod("arm", ends=((1.1, 0.1, 0.2), (2.0, 0, 0))),
        spatial.Drive("arm", "cube", angle=lambda t, args: 2.0 * t),
    ]
    system = spatial.System(HINGED, [HINGE, *others])
    names = system.problem().joint_names
    assert len(names) == 5 + 6 + 1 + 1 and (names[0], names[-1]) == ("slider arm-cube across 1", "drive arm-cube")
    np.testing.assert_allclose(system.joints(0.0, system.q0, None), np.zeros(13), atol=1e-15)
    # both moved and turned together: joints between them hold; a drive by its angle
    q = system.retract(system.q0, cube=(0.3, 0.2, -0.1, 0.4, -0.5, 0.6))
    found = system.joints(0.1, q, None)
    np.testing.assert_allclose(np.delete(found, 11), [0] * 11 + [-0.2], atol=1e-15)
    assert abs(found[11]) > 0.01
    # turned about another axis than the weld and the guide allow
    assert np.all(np.abs(system.joints(0.0, system.retract(q, arm=0.3), None)[:11]).max() > 0.01)


def test_units_are_those_of_coordinates():
    body = {"a": spatial.ball((0, 0, 1), 0.2, mass=2.0)}
    parts = [spatial.Slider("a", at=(0, 0, 1), along=(1, 0, 0)), spatial.AngleStop("a", high=1.0)]
    problem = spatial.System(body, [*parts, spatial.Drive("a", angle=lambda t, args: t)]).problem()
    assert problem.units == {"a.length": "m", "a against ground": "m", "drive a-ground": "m"}
    problem = spatial.System(body, [spatial.Hinge("a", at=(0, 0, 0), axis=(1, 0, 0)), parts[1]]).problem()
    assert problem.units == {"a.angle": "rad", "a against ground": "rad"}


def test_equal_systems_have_the_same_functions():
    # of which programs are kept
    make = lambda: spatial.System({"a": spatial.ball((0, 0, 1), 0.2, 1.0)}, [spatial.Plane("a", at=(0, 0, 0))])
    assert make().problem().force == make().problem().force and make() == make()


def test_an_acceleration_of_gravity_is_a_number_a_vector_or_a_function():
    body = {"a": spatial.ball((0, 0, 1), 0.2, mass=2.0)}
    for gravity, expected in (
        (3.0, (0, 0, -6)),
        ((1.0, 2.0, 3.0), (2, 4, 6)),
        (lambda args: args["g"], (0, 0, -8)),
        (lambda args: jnp.stack([args["g"], 0.0, 1.0]), (8, 0, 2)),
    ):
        system = spatial.System(body, gravity=gravity)
        q = jnp.asarray(system.q0)
        force = jax.jit(lambda q, g: system.force(0.0, q, 0 * q, {"g": g}))(q, 4.0)  # noqa: B023
        np.testing.assert_allclose(force[:3], expected, atol=1e-15)


BALL = {"a": spatial.ball((0, 0, 1), 0.2, 1.0), "b": spatial.box((0, 0, 2), (1, 1, 1), 1.0)}


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: spatial.System({}), "bodies must be a dict"),
        (lambda: spatial.System({"ground": CUBE}), "'ground' is no name of a body"),
        (lambda: spatial.System({"a": 1.0}), r"bodies\['a'\] must be a spatial.Body.*a mesh is stated by"),
        (lambda: spatial.System(BALL, [spatial.Ball("c", at=(0, 0, 0))]), "parts\\[0\\], Ball: 'c' is no body; there "
            "are a, b, ground"),
        (lambda: spatial.System(BALL, [spatial.Weld("a", "a")]), "both bodies are 'a'"),
        (lambda: spatial.System(BALL, [lambda q: q]), r"parts\[0\] must be a spatial.Hinge"),
        (lambda: spatial.System({"a": CUBE}, [spatial.Weld("a")]), "none of them can move"),
        (lambda: spatial.System(BALL, [spatial.Motor("a", "b", torque=1.0)]), "no Hinge or Slider of 'a' and 'b'"),
        (lambda: spatial.System(BALL, [spatial.Contact("a")]), "Contact is of two bodies"),
        (lambda: spatial.System(BALL | {"c": CUBE}, [spatial.Contact("b", "c")]), "'b' and 'c' \\(box and "
            "box\\).*State others by points"),
        (lambda: spatial.System({"a": spatial.Body(1.0, (1, 1, 1), (0, 0, 0))}, [spatial.Plane("a", at=(0, 0, 0))]),
        "give points="), (
            lambda: spatial.System({"a": spatial.cylinder((0, 0, 0), (0, 0, 1), 0.1, 1.0)},
            [spatial.Plane("a", at=(0, 0, 0))]), "stands on its end.*three or more on its rim",
        ),
        (lambda: spatial.Plane("a", at=(0, 0)), "at must be a point"),
        (lambda: spatial.Plane("a", at=(0, 0, 0), normal=(0, 0, 0)), "normal must be a direction"),
        (lambda: spatial.Plane("a", at=(0, 0, 0), friction=-0.1), "friction must be >= 0"),
        (lambda: spatial.Plane("a", at=(0, 0, 0), restitution=1.1), r"restitution must be in \[0, 1\]"),
        (lambda: spatial.Plane("a", at=(0, 0, 0), rolling=-0.1), "rolling must be a radius >= 0"),
        (lambda: spatial.Universal("a", at=(0, 0, 0), axes=((1, 0, 0), (2, 0, 0))), "not parallel"),
        (lambda: spatial.Rod("a", ends=((1, 1, 0), (1, 1, 0))), "both ends are"),
        (lambda: spatial.Spring("a", ends=((1, 1, 0), (1, 1, 0)), stiffness=1.0), "it has no direction"),
        (lambda: spatial.AngleStop("a"), "low=, high= or both"),
        (lambda: spatial.capsule((0, 0, 0), (0, 0, 0), 0.1, 1.0), "one point"),
        (lambda: spatial.ball((0, 0, 0), -1.0, 1.0), "radius must be positive"),
        (lambda: spatial.box((0, 0, 0), (1, 0, 1), 1.0), "three positive lengths"),
        (lambda: spatial.box((0, 0, 0), (1, 1, 1), mass=0.0), "mass must be positive"),
        (lambda: spatial.Body(1.0, (1, 2, 4), (0, 0, 0)), "no body has the principal moments 1, 2, 4"),
        (lambda: spatial.Body(1.0, (0, 2, 2), (0, 0, 0)), "positive about every axis"),
        (lambda: spatial.Body(1.0, 2.0, (0, 0, 0)), "inertia must be three moments"),
        (lambda: spatial.System(BALL).start(three=1.0), "'three' is no body"),
        (lambda: spatial.System(BALL).start(a=(0, 0, 3)), "velocity of its centre of mass and its angular velocity"),
        (lambda: spatial.System(BALL).problem(friction=0.3), "not 'friction'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize("degrees", [0, 10, 120, 170])
def test_a_weld_holds_at_no_turn_but_none(degrees):
    """About (1, 1, 1) by a third of a turn the axes of a body lie along one another's: the equations are 2 sin(angle/2)
    of each component of the axis."""
    system = spatial.System(
        {"b": spatial.box((0, 0, 0), (0.2, 0.1, 0.05), mass=1.0)}, [spatial.Ball("b", at=(0, 0, 0)), spatial.Weld("b")]
    )
    half, axis = np.deg2rad(degrees) / 2, np.ones(3) / np.sqrt(3)
    found = system.joints(0.0, jnp.asarray([np.cos(half), *np.sin(half) * axis]), None)
    np.testing.assert_allclose(found, [0, 0, 0, *2 * np.sin(half) * axis], atol=1e-14)
