"""Planar systems: bodies, parts and their problem, against formulas of mechanics and motions in one coordinate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import planar

G = 9.81
PENDULUM = planar.System(
    {"bar": planar.bar((0, 0), (1.2, 0), mass=lambda args: args["m"])}, [planar.Pin("bar", at=(0, 0))]
)
FREE = {"one": planar.block((0.3, 0.1), 0.4, 0.2, mass=2.0), "two": planar.disk((1.0, 0.5), 0.3, mass=1.5)}
ENDS = ((0.4, 0.2), (1.1, 0.4))
PIN_OF_NONE = planar.Pin("three", at=(0, 0))


def random_state(seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=6), random.normal(size=6)


@pytest.mark.parametrize(
    "body, inertia, centre",
    [
        (planar.bar((1, 1), (4, 5), mass=3.0), 3 * 25 / 12, (2.5, 3)),
        (planar.disk((1, 2), 0.5, mass=4.0), 4 * 0.25 / 2, (1, 2)),
        (planar.block((1, 2), 3.0, 2.0, mass=6.0), 6 * (9 + 4) / 12, (1, 2)),
        # an isosceles triangle of base b and height h: m (3 b^2 / 4 + h^2) / 18
        (planar.plate([(0, 0), (4, 0), (2, 3)], mass=2.0), 2 * (3 * 16 / 4 + 9) / 18, (2, 1)),
        (planar.plate([(0, 0), (2, 3), (4, 0)], mass=2.0), 2 * (3 * 16 / 4 + 9) / 18, (2, 1)),
    ],
    ids=["bar", "disk", "block", "triangle", "triangle clockwise"],
)
def test_bodies_are_uniform(body, inertia, centre):
    np.testing.assert_allclose([body.inertia, *body.centre], [inertia, *centre], rtol=1e-14)


def test_a_pinned_bar_swings_as_a_pendulum():
    """And its derivative by a mass that is a function of args is zero, that by gravity not."""
    problem = PENDULUM.problem()
    q0, v0 = PENDULUM.start(args={"m": 2.0}, bar=0.3)
    end = lambda m: ji.solve(problem, q0, v0, t1=1.5, args={"m": m}, scheme=ji.EventDriven(), save="final").q[-1]
    q, slope = jax.jvp(end, (2.0,), (1.0,))
    one = ji.Problem(lambda t, q, v, args: -1.5 * G / 1.2 * jnp.cos(q))
    angle = ji.solve(one, [0.0], [0.3], t1=1.5, scheme=ji.EventDriven(), save="final").q[-1, 0]
    # tolerances 1e-9 a substep, of some ten
    np.testing.assert_allclose(q, [0.6 * np.cos(angle), 0.6 * np.sin(angle), angle], atol=1e-7)
    np.testing.assert_allclose(slope, 0, atol=1e-7)


@pytest.mark.parametrize(
    "part, power",
    [
        (planar.Spring("one", "two", ends=ENDS, stiffness=30.0, length=0.4), lambda rate, turn: 0.0),
        (planar.Spring("one", ends=ENDS, stiffness=30.0, damping=2.0), lambda rate, turn: -2.0 * rate**2),
        (planar.AngleSpring("one", "two", stiffness=5.0, damping=0.7, angle=0.2), lambda rate, turn: -0.7 * turn**2),
        (planar.Motor("one", "two", torque=3.0), lambda rate, turn: 3.0 * turn),
        (planar.Motor("one", torque=lambda t, angle, rate, args: 2 * t - rate), lambda rate, turn: (1.0 - turn) * turn),
    ],
    ids=["spring", "spring to the ground", "torsion spring", "motor", "motor to the ground"],
)
def test_energy_changes_by_the_power_of_what_is_not_elastic(part, power):
    system = planar.System(FREE, [part])
    (q, v), t = random_state(), 0.5
    apart = lambda q: (
        system.position(q, part.a, ENDS[0])
        - (system.position(q, part.b, ENDS[1]) if part.b != "ground" else jnp.array(ENDS[1]))
    )

    @jax.jit
    def rates(q, v):
        a = system.force(t, q, v, None) / system.mass(q, None)
        _, rate = jax.jvp(lambda q, v: system.energy(t, q, v, None), (q, v), (v, a))
        return rate, jax.jvp(lambda q: jnp.linalg.norm(apart(q)), (q,), (v,))[1]

    rate, stretch = rates(q, v)
    turn = v[2] - (v[5] if part.b != "ground" else 0)
    np.testing.assert_allclose(rate, power(stretch, turn), rtol=1e-12, atol=1e-12)


def test_a_force_acts_at_its_point():
    pushed = planar.System(FREE, [planar.Force("two", at=(1.3, 0.5), force=lambda t, args: (0.0, 2.0))], gravity=0.0)
    turned = np.array([0.3, 0.1, 0.0, 1.0, 0.5, np.pi / 2])
    # an arm of .3 to the right is now upwards: no torque of a force that points there
    force = jax.jit(lambda q: pushed.force(0.0, q, 0 * q, None))
    np.testing.assert_allclose(force(turned), [0, 0, 0, 0, 2, 0], atol=1e-15)
    np.testing.assert_allclose(force(pushed.q0), [0, 0, 0, 0, 2, 0.6], atol=1e-15)


def test_joints_are_zero_where_they_hold():
    parts = [
        planar.Pin("one", "two", at=(0.7, 0.3)),
        planar.Slot("one", at=(0.4, 0.2), along=(1, 2)),
        planar.Slider("two", "one", at=(1.0, 0.5), along=(0, -3)),
        planar.Rod("one", "two", ends=ENDS),
        planar.Drive("two", angle=lambda t, args: 2.0 * t),
    ]
    system = planar.System(FREE, parts)
    np.testing.assert_allclose(system.joints(0.0, system.q0, None), np.zeros(7), atol=1e-15)
    first, *_, last = names = system.problem().joint_names
    assert len(names) == 7 and (first, last) == ("pin one-two x", "drive two-ground")
    # all moved and turned together: those between bodies hold; the slot by the distance from its line, the drive by the
    # angle
    c, s = np.cos(0.6), np.sin(0.6)
    q = np.concatenate([[c * x - s * y + 1, s * x + c * y, 0.6] for x, y in ((0.3, 0.1), (1.0, 0.5))])
    found = np.asarray(system.joints(0.1, q, None))
    np.testing.assert_allclose(np.delete(found, [2, 6]), 0, atol=1e-15)
    place = np.array([c * 0.4 - s * 0.2 + 1, s * 0.4 + c * 0.2]) - [0.4, 0.2]
    np.testing.assert_allclose(found[[2, 6]], [place @ [-2, 1] / np.sqrt(5), 0.6 - 0.2], rtol=1e-12)


def test_gaps_are_distances():
    parts = [
        planar.Wall("two", point=(1.0, 0.5), at=(0, 0), normal=(0, 2), radius=0.3, name="floor"),
        planar.Wall("one", "two", point=(0.3, 0.1), at=(1.0, 0.5), normal=(-1, 0)),
        planar.Bumper("one", "two", ends=((0.3, 0.1), (1.0, 0.5)), distance=lambda args: 0.8),
        planar.Clearance("one", "two", ends=((0.7, 0.3), (0.7, 0.3)), play=0.01),
        planar.AngleStop("one", low=-0.1, high=0.2),
    ]
    system = planar.System(FREE, parts)
    problem = system.problem()
    limits = "one against ground low", "one against ground high"
    assert problem.contacts == ("floor", "one on two", "one at two", "one in two", *limits)
    assert problem.units["one against ground low"] == "rad" and problem.units["floor"] == "m"
    distance = np.hypot(0.7, 0.4)
    # those of round ends are their squares over twice the distance of contact
    expected = [0.2, 0.7, (distance**2 - 0.64) / 1.6, 0.005, 0.1, 0.2]
    np.testing.assert_allclose(problem.gaps(0.0, jnp.asarray(system.q0), None), expected, rtol=1e-12)


@pytest.fixture(scope="module")
def four_bar():
    bars = {"crank": ((0, 0), (0, 1)), "coupler": ((0, 1), (2, 1.5)), "rocker": ((2, 1.5), (2, 0))}
    pinned = [("crank", (0, 0)), ("crank", "coupler", (0, 1)), ("coupler", "rocker", (2, 1.5)), ("rocker", (2, 0))]
    pins = [planar.Pin(*names, at=at) for *names, at in pinned]
    stop = planar.Wall("rocker", point=(2, 1.5), at=(2.3, 0), normal=(-1, 0), name="stop")
    return planar.System({name: planar.bar(*ends, mass=1.0) for name, ends in bars.items()}, [*pins, stop])


@pytest.mark.slow
def test_a_four_bar_keeps_its_loop_and_its_energy_between_impacts(four_bar):
    q0, v0 = four_bar.start(crank=-2.0)
    # the velocity is linear in what is given of it
    np.testing.assert_allclose(-2 * jax.jacfwd(lambda spin: four_bar.start(crank=spin)[1])(-2.0), v0, atol=1e-12)
    assert v0[2] == -2.0
    found = ji.solve(four_bar.problem(restitution=1.0), q0, v0, t1=1.0, scheme=ji.EventDriven(), steps=10)
    assert found.status == 0 and found.impulse[-1, 0] > 0 and found.joint_residual < 1e-12
    # e = 1: impacts keep it too; 1e-9 a substep
    np.testing.assert_allclose(found.energy, found.energy[0], rtol=1e-7)
    np.testing.assert_allclose([four_bar.position(q, "crank", (0, 0)) for q in found.q], 0, atol=1e-12)


def test_a_four_bar_is_drawn(four_bar):
    from matplotlib.figure import Figure

    ax = Figure().add_subplot()
    four_bar.draw(ax, 0.0, four_bar.q0)
    drawn = [np.array(line.get_data()).T for line in ax.lines]
    np.testing.assert_allclose(drawn[0], [[0, 0], [0, 1]], atol=1e-15)
    assert len(drawn) == 3 + 4 + 1


def test_equal_systems_have_the_same_functions():
    # of which programs are kept
    spring = lambda: planar.Spring("a", ends=((0, 1), (0, 2)), stiffness=3.0)
    make = lambda: planar.System({"a": planar.disk((0, 1), 0.2, 1.0)}, [spring()])
    assert make().problem().force == make().problem().force and make() == make()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: planar.System({}), "bodies must be a dict"),
        (lambda: planar.System({"ground": FREE["one"]}), "'ground' is no name of a body"),
        (lambda: planar.System({"a": 1.0}), r"bodies\['a'\] must be a planar.Body"),
        (
            lambda: planar.System(FREE, [PIN_OF_NONE]),
            r"parts\[0\], Pin: 'three' is no body; there are one, two, ground",
        ),
        (lambda: planar.System(FREE, [planar.Pin("one", "one", at=(0, 0))]), "both bodies are 'one'"),
        (lambda: planar.System(FREE, [lambda q: q]), r"parts\[0\] must be a planar.Pin"),
        (lambda: planar.Pin("one", at=(0, 0, 1)), "at must be a point"),
        (lambda: planar.Wall("one", point=(0, 0), at=(0, 0), normal=(0, 0)), "normal must be a direction"),
        (lambda: planar.Rod("one", ends=((1, 1), (1, 1))), "both ends are"),
        (lambda: planar.AngleStop("one"), "low=, high= or both"),
        (lambda: planar.bar((0, 0), (0, 0), 1.0), "one point"),
        (lambda: planar.disk((0, 0), -1.0, 1.0), "radius must be positive"),
        (lambda: planar.block((0, 0), 1.0, 1.0, mass=0.0), "(mass|inertia) must be positive"),
        (lambda: planar.plate([(0, 0), (1, 1), (2, 2)], 1.0), "no area"),
        (lambda: planar.System(FREE).start(three=1.0), "'three' is no body"),
        (lambda: planar.System(FREE).problem(friction=0.3), "not 'friction'"),
        (lambda: planar.Wall("one", point=(0, 0), at=(0, 0), normal=(0, 1), friction=-0.1), "friction must be >= 0"),
        (lambda: PENDULUM.start(args={"m": 1.0}, bar=float("nan")), "bar must be one finite number"),
    ],
)
def test_what_cannot_be_is_said(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_a_disk_thrown_along_a_rough_floor_rolls_at_two_thirds_of_its_speed():
    """Angular momentum about a point of the floor is kept: v = 2/3 v0 (m r^2/2 of inertia),
    once slip has ended at v0/(3 mu g)."""
    radius, speed, mu = 0.2, 3.0, 0.4
    floor = {"at": (0, 0), "normal": (0, 1), "radius": radius, "friction": lambda args: args["mu"]}
    stop = planar.AngleStop("disk", low=-1e3)  # without friction
    parts = [planar.Wall("disk", point=(0, radius), name="floor", **floor), stop]
    problem = planar.System({"disk": planar.disk((0, radius), radius, mass=2.0)}, parts, gravity=G).problem()
    ends = speed / (3 * mu * G)
    start = {"q0": [0.0, radius, 0.0], "v0": [speed, 0.0, 0.0], "args": {"mu": mu}}
    motion = ji.solve(problem, **start, t1=2 * ends, steps=500, save="all")
    slides = int(np.searchsorted(motion.t, 0.9 * ends))
    # constant forces, which the steps take exactly
    np.testing.assert_allclose(motion.v[slides, 0], speed - mu * G * motion.t[slides], rtol=1e-9)
    np.testing.assert_allclose(motion.v[-1], [2 * speed / 3, 0, -2 * speed / (3 * radius)], atol=1e-9)
    assert motion.status == 0
    slips = motion.slips(problem, args=start["args"])
    (stop,) = [t for t, kind in zip(slips.t, slips.kind, strict=True) if kind == "stop"]
    np.testing.assert_allclose(stop, ends, atol=2 * ends / 500 * 2)  # to the order of the scheme


def test_a_rocking_block_loses_what_housner_says():
    """Of its angular velocity 1 - 3/2 sin^2 of its slenderness is left behind each impact (Housner 1963)."""
    floor = {"at": (0, 0), "normal": (0, 1), "friction": 0.6}
    corners = [planar.Wall("block", point=(side * 0.2, 0), **floor) for side in (-1, 1)]
    system = planar.System({"block": planar.block((0, 0.5), 0.4, 1.0, mass=10.0)}, corners)
    problem = system.problem()
    motion = ji.solve(problem, system.q0, [-0.5, 0.2, 1.0], t1=1.2, h=1e-3, save="all")
    struck = motion.impacts(problem)
    speeds = np.abs(struck.before[np.argsort(struck.t)])
    left = 1 - 1.5 * 0.2**2 / (0.2**2 + 0.5**2)
    # speeds are known to g h
    np.testing.assert_allclose(speeds[1:] / speeds[:-1], left, atol=2 * G * 1e-3 / np.min(speeds))
    assert len(speeds) == 3 and motion.status & ~int(ji.Status.IMPULSES_NOT_UNIQUE) == 0


def test_slip_is_the_velocity_of_points_that_touch():
    """Between two bodies that both move: the gap's gradient turns with the wall, and slip is along it."""
    wall = planar.Wall("one", "two", point=(0.5, 0.2), at=(0.8, 0.3), normal=(-1, 0.4), radius=0.05, friction=0.1)
    system = planar.System(FREE, [wall])
    q, v = random_state(3)
    q, v = jnp.asarray(system.q0 + 0.3 * q), jnp.asarray(v)
    pose = system.pose(q)
    normal = pose.direction("two", wall.normal)
    touch = pose.point("one", wall.point) - wall.radius * normal

    def rides(body, q0):  # a point of a body, by its coordinates in it
        i = 3 * list(FREE).index(body)
        turn = lambda angle: jnp.array([[jnp.cos(angle), -jnp.sin(angle)], [jnp.sin(angle), jnp.cos(angle)]])
        inside = turn(-q[i + 2]) @ (touch - q[i : i + 2])
        return q0[i : i + 2] + turn(q0[i + 2]) @ inside

    apart = jax.jvp(lambda x: rides("one", x) - rides("two", x), (q,), (v,))[1]
    across = jnp.array([normal[1], -normal[0]])
    np.testing.assert_allclose(system.slip(0.0, q, v, None), [across @ apart], atol=1e-14)


def test_friction_of_a_wall_may_depend_on_the_speed():
    """A block on two ends, slowed by g (k + a v) as long as it slides."""
    k, a, g = 0.2, 0.15, 9.81
    floor = {"at": (0, 0), "normal": (0, 1), "friction": lambda s, args: args["k"] + a * s}
    parts = [planar.Wall("block", point=(x, 0.0), **floor) for x in (-0.5, 0.5)]
    body = planar.System({"block": planar.Body(1.0, 0.1, (0.0, 0.1))}, parts, gravity=g)
    q0, v0 = np.array([0.0, 0.1, 0.0]), np.array([2.0, 0.0, 0.0])
    found = ji.solve(body.problem(restitution=0.0), q0, v0, t1=0.3, args={"k": k}, steps=3000, scheme=ji.MoreauJean())
    assert np.isclose(found.v[-1, 0], (2 + k / a) * np.exp(-a * g * 0.3) - k / a, atol=1e-3)  # first order
