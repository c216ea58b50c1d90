"""Bodies that stay where they are, or are carried along: whatever walls, legs or springs hold them, they stay,
and no failure is told.

Depths, velocities and sums of forces are round-off there; a test that compares two of them
must not take them for motion.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaximpact as ji
from support import random_bodies, random_systems
from support.breadth import slow
from support.honesty import batch

G = 9.81
SQUARE = np.array([[0.2, 0.2], [0.2, -0.2], [-0.2, 0.2], [-0.2, -0.2]])
TRIPOD = np.array([[0.2, 0.0], [-0.2, 0.2], [-0.2, -0.2]])


def push(t):
    return jnp.sin(7 * t)


def corner(way):
    """Point between a rough wall and a rough floor, pushed towards the wall or away from it,
    less than friction holds."""
    return ji.Problem(
        lambda t, q, v, args: jnp.stack([way * t, -G]),
        lambda t, q, args: q,
        slip=lambda t, q, v, args: v[::-1],
        friction=jnp.array([0.4, 0.3]),
    ), [0.0, 0.0]


def wedge(angle):
    """Point between two rough walls that rise at an angle to both sides."""
    normal = np.array([[-np.sin(angle), np.cos(angle)], [np.sin(angle), np.cos(angle)]])
    across = np.array([[np.cos(angle), np.sin(angle)], [np.cos(angle), -np.sin(angle)]])
    return ji.Problem(
        lambda t, q, v, args: jnp.stack([push(t), -G]),
        lambda t, q, args: normal.astype(q.dtype) @ q,
        slip=lambda t, q, v, args: across.astype(v.dtype) @ v,
        friction=0.3,
    ), [0.0, 0.0]


def block():
    """Block of width .4 and height .2 on two rough corners, its side at a rough wall."""
    corners = np.array([[-0.2, -0.1], [0.2, -0.1], [0.2, -0.1], [0.2, 0.1]])

    def places(q):
        c, s = jnp.cos(q[2]), jnp.sin(q[2])
        return q[None, :2] + corners.astype(q.dtype) @ jnp.array([[c, s], [-s, c]])

    def gaps(t, q, args):
        x, y = places(q).T
        return jnp.stack([y[0], y[1], 0.2 - x[2], 0.2 - x[3]])

    def slip(t, q, v, args):
        x, y = jax.jvp(places, (q,), (v,))[1].T
        return jnp.stack([x[0], x[1], y[2], y[3]])

    force = lambda t, q, v, args: jnp.stack([2 + push(t), -G, 0])
    return ji.Problem(force, gaps, np.array([1.0, 1.0, 0.02]), slip=slip, friction=0.4), [0.0, 0.1, 0.0]


def stool(feet, inertia, mu):
    """Stool of height .1, whose feet are pushed sideways, less than friction holds;
    q = (x, y, z, tilts about x and y)."""
    arms = np.concatenate([feet, np.full((len(feet), 1), -0.1)], axis=1)

    def places(q):
        (ca, cb), (sa, sb) = jnp.cos(q[3:]), jnp.sin(q[3:])
        turn = jnp.array([[cb, sb * sa, sb * ca], [0.0, ca, -sa], [-sb, cb * sa, cb * ca]])
        return q[None, :3] + arms.astype(q.dtype) @ turn.T

    return ji.Problem(
        lambda t, q, v, args: jnp.stack([push(t), 0, -G, 0, 0]),
        lambda t, q, args: places(q)[:, 2],
        np.array([1.0, 1.0, 1.0, inertia, inertia]),
        slip=lambda t, q, v, args: jax.jvp(places, (q,), (v,))[1][:, :2],
        friction=mu,
    ), [0.0, 0.0, 0.1, 0.0, 0.0]


def spokes(inertia):
    """Light wheel without a rim that stands on two of its six spokes, of length 1."""
    angles = np.pi * np.arange(6) / 3

    def tips(q):
        turned = q[2] + angles.astype(q.dtype)
        return jnp.stack([q[0] + jnp.sin(turned), q[1] - jnp.cos(turned)])

    return ji.Problem(
        lambda t, q, v, args: jnp.stack([push(t), -G, 0]),
        lambda t, q, args: tips(q)[1],
        np.array([1.0, 1.0, inertia]),
        slip=lambda t, q, v, args: jax.jvp(lambda q: tips(q)[0], (q,), (v,))[1],
        friction=0.8,
    ), [0.0, float(np.cos(np.pi / 6)), float(np.pi / 6)]


def springs():
    """Two bodies hung from springs, the upper one cubic, at rest."""

    def force(t, q, v, args):
        pull = 50 * (q[0] - q[1] + 1)
        return jnp.stack([-pull - G, pull - 1e3 * (q[1] - 2) ** 3]) - 10 * v

    upper = 2 - (1e-3 * G) ** (1 / 3)
    return ji.Problem(force), [upper - 1 - G / 50, upper]


RESTING = {
    "corner": lambda: corner(1.0),
    "corner, pulled": lambda: corner(-1.0),
    "wedge": lambda: wedge(0.5),
    "steep wedge": lambda: wedge(1.3),
    "block": block,
    "tripod": lambda: stool(TRIPOD, 0.02, 0.3),
    "four feet": lambda: stool(SQUARE, 0.02, 0.6),
    "light four feet": lambda: stool(SQUARE, 2e-4, 0.6),
    "spokes": lambda: spokes(1e-2),
    "light spokes": lambda: spokes(1e-4),
    "springs": springs,
}
RESTS = [(name, h, jnp.float64) for name in RESTING for h in (1e-2, 3e-3, 1e-3, 1e-4)]
RESTS += [(name, 1e-2, jnp.float32) for name in RESTING if name != "springs"]
FEW = [(name, 1e-3, jnp.float64) for name in ("corner", "light spokes", "springs")]


@pytest.mark.parametrize(("name", "h", "dtype"), [x if x in FEW else slow(*x) for x in RESTS])
def test_what_rests_stays_and_has_not_failed(name, h, dtype):
    """Places change by no more than round-off: of 20,000 steps that each lose an eps, or of 200 steps of impulses a
    hundred times as large."""
    problem, q0 = RESTING[name]()
    own = {name: getattr(problem, name) for name in ("mass", "friction")}
    problem = problem.replace(**{name: jnp.asarray(x, dtype) for name, x in own.items() if x is not None})
    start, t1 = (jnp.asarray(q0, dtype), jnp.zeros(len(q0), dtype)), 10.0 if name == "springs" else 2.0
    s = ji.solve(problem, *start, t1=t1, h=h, scheme=ji.MoreauJean(), save="final")
    assert not s.failed, s.describe_status()
    assert np.max(np.abs(np.asarray(s.q[-1]) - np.asarray(q0))) < 2e4 * float(jnp.finfo(dtype).eps)


def test_a_body_on_a_shaken_table_does_not_fail_where_the_table_turns_round():
    """Its velocity vanishes there while it lies h A w / 2 deep, which is no depth beside a radius:
    the table is flat."""
    size, rate = 0.1, 9.0
    table = ji.Problem(
        lambda t, q, v, args: jnp.array([0.0, -G]),
        lambda t, q, args: q[1:] + size * jnp.sin(rate * t),
        slip=lambda t, q, v, args: v[:1],
        friction=0.3,
    )
    for h in (1e-2, 1e-3):
        s = ji.solve(table, [0.0, 0.0], [0.0, -size * rate], t1=3.0, h=h, scheme=ji.MoreauJean(), save="final")
        assert not s.failed
        # a step behind the table, and half a step from the start
        assert abs(s.q[-1, 1] + size * np.sin(3 * rate)) < 1.5 * h * size * rate


def test_past_a_kink_newtons_method_ends_on_the_solution_in_two_iterations():
    """Of a piecewise linear force the second iteration is exact: ten of them give the same motion,
    which has not failed."""
    force = lambda t, q, v, args: jnp.interp(t, jnp.array([0.0, 0.3, 0.9, 2.0]),
        jnp.array([0.0, 9.0, -7.0, 0.0])) - 2e3 * jnp.maximum(v, 0) - 10 * q  # fmt: skip
    run = lambda newton: ji.solve(ji.Problem(force), [0.0], [0.0], t1=2.0, h=1e-2, scheme=ji.MoreauJean(newton=newton))
    two, ten = run(2), run(10)
    assert not two.failed and not ten.failed
    np.testing.assert_allclose(two.q, ten.q, rtol=0, atol=1e-13)


def test_a_light_wheel_without_a_rim_turns_about_its_spoke():
    """An inverted pendulum, phi'' (1 + J) = g sin(phi + alpha), phi the angle of the spoke from the vertical:
    errors are of first order."""
    problem, _ = spokes(1e-4)
    slope = 0.1
    problem = problem.replace(force=lambda t, q, v, args: G * jnp.array([np.sin(slope), -np.cos(slope), 0.0]))
    phi, w = -0.3, 2.0  # leans back, turns forwards
    q0, v0 = [np.sin(phi), np.cos(phi), -phi], [w * np.cos(phi), -w * np.sin(phi), -w]
    rate = lambda t, y: [y[1], G * np.sin(y[0] + slope) / (1 + 1e-4)]
    y = solve_ivp(rate, (0, 0.3), [phi, w], rtol=1e-11, atol=1e-12).y[:, -1]
    errors = []
    for h in (1e-3, 5e-4, 2.5e-4):
        s = ji.solve(problem, q0, v0, t1=0.3, h=h, scheme=ji.MoreauJean(), save="final")
        assert not s.failed, s.describe_status()
        errors.append(abs(-s.q[-1, 2] - y[0]))
    assert errors[0] < 0.02 and errors[2] < 0.7 * errors[1] < 0.5 * errors[0]


@pytest.mark.slow
def test_without_friction_rounding_is_no_slip():
    """Points pressed to smooth walls and pulled off: exactly the derivatives and statuses of the
    problem that knows no friction."""
    angles, pulls = np.linspace(0.1, 6, 16), np.repeat([-0.7, -1.9], 8)  # the last eight points leave their walls
    normal = lambda args: jnp.array([jnp.cos(args["angle"]), jnp.sin(args["angle"])])
    smooth = ji.Problem(
        lambda t, q, v, args: -3 * (1 + args["pull"] * jnp.sin(2.3 * t) ** 2) * normal(args),
        lambda t, q, args: (normal(args) @ q)[None],
    )
    across = lambda args: normal(args)[::-1] * np.array([-1.0, 1.0])
    rough = smooth.replace(slip=lambda t, q, v, args: (across(args) @ v)[None], friction=0.0)
    args = {"angle": angles, "pull": pulls}
    call = {"args": args, "args_axes": 0, "t1": 1.0, "steps": 100, "scheme": ji.EventCorrected(), "wrt": "v0"}
    found, right = (ji.sensitivities(p, np.zeros((16, 2)), np.zeros((16, 2)), **call) for p in (rough, smooth))
    np.testing.assert_array_equal(found.status, right.status)
    assert np.all(found.trusted)
    by = lambda s: np.array([s.jacobian[x]["v0"] for x in ("q", "v")])
    np.testing.assert_allclose(by(found), by(right), atol=1e-13)
    along = np.stack([-np.sin(angles), np.cos(angles)], axis=-1)[:8]
    # over one second at rest, q = v0 and v = v0 along the wall
    np.testing.assert_allclose(by(found)[:, :8], 2 * [along[:, :, None] * along[:, None, :]], atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["three legs", slow("four legs")])
@pytest.mark.parametrize("scheme", [slow(ji.EventCorrected(trials=200)), ji.EventDriven(trials=400)], ids=repr)
def test_stools_that_slide_and_spin_stop_on_all_feet_at_once(scheme, kind):
    """The first foot to stop took the slip of the others, which went on to slip without velocity: of other such
    stools on three feet 34 of 40 exhausted all trials."""
    data = batch([random_bodies.slide(kind, seed) for seed in range(40)]) | {"e": 0.0, "t1": 1.5}
    steps = {"h": 0.01} if isinstance(scheme, ji.EventCorrected) else {}
    found = ji.ensemble(random_bodies.problem(kind), **data, **steps, scheme=scheme, save="final")
    assert np.all(found.status & ~int(ji.Status.IMPULSES_NOT_UNIQUE) == 0)
    assert np.max(np.abs(found.v)) < 1e-9  # the absolute tolerance of `EventDriven`


def test_points_in_rough_wedges_rest_under_loads_that_shift_by_events():
    """The forces of both walls are not unique, and those that are followed leave a cone in turn: a contact that breaks
    away while the other holds slips by rounding alone, which no trial has to stop."""
    data = batch([random_bodies.draw("wedge", seed) for seed in (4, 24, 31, 32, 35, 54, 58, 63)])
    data |= {"e": 0.0, "t1": 0.2, "steps": 20, "scheme": ji.EventCorrected(trials=200), "save": "final"}
    found = ji.ensemble(random_bodies.problem("wedge"), **data)
    assert not np.any(found.status & int(ji.Status.TRIALS_EXHAUSTED))
    # forces of order 10 over .2 s
    assert np.max(np.abs(np.concatenate([found.q[:, -1], found.v[:, -1]], axis=1))) < 1e-12


@pytest.mark.parametrize("kind", ["block in a corner", slow("wedge"), slow("four legs")])
def test_derivatives_of_bodies_that_never_moved_take_few_trials(kind):
    """Where contacts hold all, a change of the load changes nothing but the rounding of forces that are not unique,
    which have half of the digits: a stool took all its trials, a minute and a half for a tenth of a second."""
    problem, data = random_bodies.problem(kind), batch([random_bodies.draw(kind, seed) for seed in range(16)])
    held = np.sum(data["args"]["mu"] > 0, axis=1) > 1

    @jax.jit
    @jax.vmap
    def found(q0, v0, args):
        def motion(q):
            s = ji.solve(problem, q, v0, t1=1.0, args=args, steps=1, scheme=ji.EventDriven(trials=64), save="final")
            return s.q[-1], s.status

        return jax.jacfwd(motion, has_aux=True)(q0)

    jacobian, status = found(data["q0"], data["v0"], data["args"])
    exhausted = np.asarray(status & int(ji.Status.TRIALS_EXHAUSTED) != 0)
    assert np.sum(held) >= 8 and not np.any(exhausted)
    # the start is led back onto the walls that touch, and stays there; along them it is where it was
    for seed in np.flatnonzero(held):
        q0, args = data["q0"][seed], jax.tree.map(lambda x, seed=seed: jnp.asarray(x[seed]), data["args"])
        own = random_systems.real(args)
        rows = np.einsum("mn,mnd->md", own["normal"], random_bodies.rows_at_rest(q0, own["points"]))
        rows = rows[np.asarray(random_bodies.gaps(0.0, jnp.asarray(q0), args)) < 1]
        along = np.eye(rows.shape[1]) - np.linalg.pinv(rows) @ rows
        # ten times the tolerance of the motion
        np.testing.assert_allclose(rows @ jacobian[seed], 0 * rows, atol=1e-8)
        # forces of order 10 with half of the digits, over a second
        np.testing.assert_allclose(jacobian[seed] @ along, along, atol=1e-7)
        if len(rows) == 1:  # it falls back along the load, which one contact holds alone
            back = (own["load"][0] / random_bodies.MASSES[len(q0)])[:, None]
            stays = np.eye(len(q0)) - back @ rows / (rows @ back)
            np.testing.assert_allclose(jacobian[seed], stays, atol=1e-8)


def test_a_ball_that_leaves_is_not_held_by_a_flight_too_short_to_follow():
    """It touches a beam on two feet beyond one of them, slowly, while a force lifts it ever more. The other foot rises
    by 2.5e-10 and lands when the ball has gone: with feet and ball all held, the ball was, too."""
    feet = {"slip": lambda t, q, v, args: jnp.stack([v[0], v[0], 0 * v[0]]), "friction": np.array([0.3, 0.3, 0.0])}
    slow, arrives, t1 = 1e-4, 0.1, 0.5
    lift = lambda t, q, v, args: jnp.stack([0 * t, -G + 0 * t, 0 * t, 200 * t])
    gaps = lambda t, q, args: jnp.stack([q[1] + q[2], q[1] - q[2], q[3] - q[1] - 2 * q[2]])
    beam = ji.Problem(lift, gaps, np.array([1.0, 1.0, 1 / 3, 1.0]), 0.0, **feet)
    # the ball's velocity is v0 + 100 t^2, -slow where it arrives; the beam turns about a foot with it, as 1 to 4/3
    v0, after = -slow - 100 * arrives**2, -slow * 3 / 7
    place = -(v0 * arrives + 100 / 3 * arrives**3)
    scheme = ji.EventDriven(1e-9, 1e-9)
    found = ji.solve(beam, [0, 0, 0, place], [0, 0, 0, v0], t1=t1, scheme=scheme, save="final")
    fall, height = after + 100 * (t1**2 - arrives**2), (after - 100 * arrives**2) * (t1 - arrives)
    # the time of a slow impact is known to rounding over its speed, 1e-12
    np.testing.assert_allclose(found.v[-1], [0, 0, 0, fall], rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.q[-1, 3], height + 100 / 3 * (t1**3 - arrives**3), rtol=0, atol=1e-9)
