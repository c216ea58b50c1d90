"""`EventDriven`: as accurate as its tolerance, in positions and derivatives, across impacts, rest,
releases and grazing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

import jaximpact as ji
from jaximpact import Status, analysis
from support import spring
from support.breadth import slow
from support.spring import MEETS, SPRING, TIMES, once, struck

SCHEME = ji.EventDriven()
FACTOR = 30  # of the tolerance: errors of substeps add up, and impacts make more of them

fall = lambda t, q, v, args: jnp.full_like(q, -args["g"])
BALL = ji.Problem(fall, lambda t, q, args: q)


# values


def test_release_while_nothing_moves():
    """q'' = sin t - 1/2, e = 0: at rest the state has no error, whatever the substep; the force must be watched.

    Released at pi/6; q = t/2 ... integrated: with s = t - pi/6, v = cos(pi/6) - cos t - s/2.
    """
    problem, c = ji.Problem(lambda t, q, v, args: jnp.sin(t)[None] - 0.5, lambda t, q, args: q), np.cos(np.pi / 6)
    flight = lambda t, s: c * s - (np.sin(t) - 0.5) - s**2 / 4
    assert flight(6.0, 6.0 - np.pi / 6) < 0  # it has landed before it is released again, at pi/6 + 2 pi
    for steps, t1, released in ((1, 3.0, np.pi / 6), (4, 3.0, np.pi / 6), (4, 9.0, 13 * np.pi / 6)):
        found = ji.solve(problem, [0.0], [0.0], t1=t1, steps=steps, scheme=SCHEME, save="final")
        assert found.q[-1, 0] == pytest.approx(flight(t1, t1 - released), abs=FACTOR * 1e-9)


def test_table_that_shakes_below_a_flight():
    """A ball above a table .46 sin 60 t: a flight is exact whatever the substep, so that gaps must be watched."""
    problem = ji.Problem(fall, lambda t, q, args: q - 0.46 * jnp.sin(60 * t), restitution=0.5)
    options = {"t1": 1.0, "args": {"g": 9.81}, "save": "final"}
    found, finer = (
        ji.solve(problem, [3.0], [0.0], steps=steps, scheme=ji.EventDriven(tol, tol), **options)
        for steps, tol in ((1, 1e-9), (7, 1e-12))
    )
    assert not found.failed and found.impulse[-1, 0] > 0
    # impacts multiply errors by 60 or more each
    np.testing.assert_allclose(found.q[-1], finer.q[-1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("depth", [1e-2, 1e-5, 1e-8])
def test_dips_are_seen(depth):
    """(t - 1)^2 (per 2) above a wall that it enters by ``depth`` between two rows: it rebounds from there."""
    problem = ji.Problem(lambda t, q, v, args: jnp.ones(1), lambda t, q, args: q, restitution=1.0)
    found = ji.solve(problem, [0.5 - depth], [-1.0], t1=2.0, steps=1, scheme=SCHEME, save="final")
    speed = np.sqrt(2 * depth)  # of the impact, at 1 - speed
    left = 1 + speed
    assert found.q[-1, 0] == pytest.approx(speed * left + left**2 / 2, abs=FACTOR * 1e-9 / speed**0.5)


# derivatives


def test_oscillator_has_the_exact_jacobian():
    """One impact against a wall that is off centre; the Jacobian's error is up to a hundred times the value's."""

    def run(x):
        args = {"w": x[3], "wall": x[4]}
        s = ji.solve(SPRING, x[:1], x[1:2], t1=1.7, steps=1, args=args, e=x[2], scheme=SCHEME, save="final")
        return jnp.concatenate([s.q[-1], s.v[-1]])

    x = jnp.array([1.0, 0.0, 0.8, 2.0, 0.3])
    (slopes, found), (right, expected) = (
        jax.jit(jax.jacfwd(lambda x, f=f: (f(x),) * 2, has_aux=True))(x) for f in (run, lambda x: struck(x, 1.7))
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=FACTOR * 1e-9)
    np.testing.assert_allclose(slopes, right, rtol=0, atol=100 * FACTOR * 1e-9)


@pytest.mark.slow
def test_derivatives_of_what_the_motion_does_not_show():
    """At rest, on top of a hill and in a hollow, pushed by an amplitude of zero; substeps of a motion that stands still
    could be of any length."""
    stiffness = jnp.array([4.0, -4.0])

    def force(t, q, v, args):
        return args["mass"] * (stiffness * q + args["push"] * jnp.sin(9 * t))

    problem = ji.Problem(force, lambda t, q, args: q + 1.0, lambda q, args: args["mass"] * jnp.eye(2))

    def run(x):
        args = {"mass": x[2], "push": x[3]}
        return ji.solve(problem, x[:2], jnp.zeros(2), args=args, t1=4.0, steps=1, scheme=SCHEME, save="final").q[-1]

    found = jax.jit(jax.jacfwd(run))(jnp.array([0.0, 0.0, 3.0, 0.0]))
    # q'' = k q + p sin 9t; no motion depends on the mass, whose derivative is rounding
    c, s, drive = np.cosh(8.0), np.sinh(8.0), np.sin(36.0)
    by_push = np.array([(4.5 * s - drive) / 85, (4.5 * np.sin(8.0) - drive) / 77])
    exact = np.column_stack([np.diag([c, np.cos(8.0)]), np.zeros(2), by_push])
    np.testing.assert_allclose(found, exact, rtol=FACTOR * SCHEME.rtol, atol=1e-12)


CORNERED = [SCHEME, *map(slow, (ji.MoreauJean(), ji.EventCorrected(), ji.PaoliSchatzman(), ji.Maury()))]
SPIN = np.array([[0.0, 2.0], [-2.0, 0.0]])  # of a charged particle: its acceleration by its velocity


def flow(s):
    """Of positions and velocities, over a time s of free flight of the charged particle."""
    return expm(s * np.block([[np.zeros((2, 2)), np.eye(2)], [np.zeros((2, 2)), SPIN]]))


def corner():
    """The particle, and the start from which it is in the corner after 0.4 s, with velocity (-1, -1)."""
    problem = ji.Problem(lambda t, q, v, args: jnp.asarray(SPIN, q.dtype) @ v, lambda t, q, args: q)
    return problem, flow(-0.4) @ np.array([0.0, 0.0, -1.0, -1.0])


@pytest.mark.parametrize("scheme", CORNERED, ids=lambda s: type(s).__name__)
def test_impacts_at_once_whose_order_matters_have_no_derivative(scheme):
    """In the corner of two walls, orthogonal ones: with a force that turns velocities;
    but each by itself without one."""
    turns, start = corner()
    problem = ji.Problem(lambda t, q, v, args: args * turns.force(t, q, v, None), turns.constraints)
    starts = np.array([start, [0.4, 0.4, -1.0, -1.0]])
    e = 0.0 if isinstance(scheme, ji.Maury) else 0.5
    options = {"e": e, "t1": 0.7, "steps": 500, "scheme": scheme, "sensitivity": "corrected"}
    turned, straight = (
        Status(int(ji.solve(problem, start[:2], start[2:], args=turn, **options).status))
        for start, turn in zip(starts, (1.0, 0.0), strict=True)
    )
    assert Status.DERIVATIVE_EVENTS in turned and not any(x.name.startswith("DERIVATIVE") for x in straight)


@pytest.mark.slow
def test_derivatives_on_either_side_of_impacts_at_once():
    """The product of the saltation matrices in the order of that side; half a batch each."""
    problem, start = corner()

    def impact(matrix, v, wall):
        """The saltation matrix of a wall, behind another ``matrix``, and the velocity behind it."""
        law = np.eye(2)
        law[wall, wall] = -0.5
        after = law @ v
        rates, later = np.concatenate([v, SPIN @ v]), np.concatenate([after, SPIN @ after])
        jump = np.block([[np.eye(2), np.zeros((2, 2))], [np.zeros((2, 2)), law]])
        return (jump + np.outer(later - jump @ rates, np.eye(4)[wall]) / v[wall]) @ matrix, after

    sides = np.eye(4)[:2]
    options = {"t1": 0.7, "steps": 1, "e": 0.5, "scheme": SCHEME}
    starts = np.stack([start, start])
    found = ji.sensitivities(problem, starts[:, :2], starts[:, 2:], direction={"q0": sides[:, :2]}, **options)
    assert found.trusted.all()
    of = lambda x: np.concatenate([found.jacobian[x]["q0"], found.jacobian[x]["v0"]], axis=2)
    for aside, jacobian in zip(sides, np.concatenate([of("q"), of("v")], axis=1), strict=True):
        first = int(np.argmin((flow(0.4) @ aside)[:2]))  # nearer to its wall
        matrix, v = impact(flow(0.4), np.array([-1.0, -1.0]), first)
        matrix, v = impact(matrix, v, 1 - first)
        np.testing.assert_allclose(jacobian, flow(0.3) @ matrix, atol=FACTOR * SCHEME.rtol)
    np.testing.assert_array_equal(found.inputs["q0"], starts[:, :2])


@pytest.mark.parametrize(
    ("direction", "said"),
    [
        ({"q0": [0.0, 0.0]}, "is zero"),
        ({"q": 1.0}, "names 'q'"),
        ({"args": 1.0}, "no number for"),
        ({"q0": [1.0, 2.0, 3.0]}, "shape"),
        ({"e": 1e6, "q0": [np.nan, 0.0]}, "finite"),
        (3.0, "dict of changes"),
    ],
)
def test_directions_that_are_none(direction, said):
    problem, start = corner()
    options = {"t1": 0.7, "steps": 1, "direction": direction}
    with pytest.raises((ValueError, TypeError), match=said):
        ji.sensitivities(problem, start[:2], start[2:], scheme=SCHEME, **options)
    if said == "is zero":
        with pytest.raises(ValueError, match=r"EventDriven\(\)"):
            ji.sensitivities(problem, start[:2], start[2:], scheme=ji.MoreauJean(), **options)


@pytest.mark.parametrize(("scheme", "steps"), [(SCHEME, 3), slow(ji.EventCorrected(), 37)], ids=["driven", "corrected"])
def test_release_has_the_exact_jacobian(scheme, steps):
    """A force t - c holds a resting ball until t = c: q = (t - c)^3 / 6; round-off,
    and what the search leaves of the time."""
    problem = ji.Problem(lambda t, q, v, args: jnp.stack([t - args]), lambda t, q, args: q, restitution=0.5)

    def run(c):
        s = ji.solve(problem, [0.0], [0.0], t1=2.0, steps=steps, args=c, scheme=scheme, save="final")
        return jnp.stack([s.q[-1, 0], s.v[-1, 0], s.impulse[-1, 0]])

    c = 0.83
    slopes, found = jax.jit(jax.jacfwd(lambda c: (run(c),) * 2, has_aux=True))(c)
    np.testing.assert_allclose(found, [(2 - c) ** 3 / 6, (2 - c) ** 2 / 2, c**2 / 2], rtol=0, atol=1e-11)
    np.testing.assert_allclose(slopes, [-((2 - c) ** 2) / 2, -(2 - c), c], rtol=0, atol=1e-10)


ONCE = spring.ONCE | {"scheme": SCHEME, "t1": 1.2}


@pytest.mark.parametrize("execution", ["native", slow("xla")])
@pytest.mark.parametrize(("save", "rows"), [("final", 1), ("all", 201), (TIMES, 7)], ids=["final", "all", "times"])
def test_rows_without_steps(save, rows, execution):
    """Rows say how often the motion is looked at; each is as accurate as the motion,
    just before and behind the impact too."""
    found = ji.solve(SPRING, [1.0], [0.0], save=save, execution=execution, **ONCE)
    assert len(found.t) == rows and found.t[-1] == 1.2
    np.testing.assert_allclose(found.q[:, 0], once(np.asarray(found.t))[0], rtol=0, atol=FACTOR * 1e-9)


@pytest.mark.slow
def test_many_motions_without_steps():
    many = ji.ensemble(SPRING, [[1.0], [0.9]], [0.0], **ONCE)
    assert many.q[0, -1, 0] == pytest.approx(once(1.2)[0], abs=FACTOR * 1e-9)
    one = ji.sensitivities(SPRING, [1.0], [0.0], wrt=["t1", "e"], **ONCE)
    by_e = np.sqrt(1 - 0.3**2) * np.sin(2 * (1.2 - MEETS))
    found = [one.jacobian["q"][x].item() for x in ("t1", "e")]
    np.testing.assert_allclose(found, [once(1.2)[1], by_e], rtol=0, atol=1e-7)
    assert one.status == 0


def orbit(*start, t1, **options):
    return analysis.periodic_orbit(*start, period=t1, steps=2, **options)


@pytest.mark.parametrize(
    ("call", "options", "words"),
    [
        (ji.solve, {"scheme": ji.EventCorrected()}, "EventCorrected goes by steps: give h, their size, or steps"),
        (ji.solve, {"save": 3}, "keeps every k-th step: give h or steps"),
        (ji.solve, {"scheme": ji.EventDriven(rtol=0.0)}, "rtol and atol above 0"),
        (ji.solve, {"scheme": ji.EventDriven(order=6)}, r"order=\.\.\.\) must be 8, 5 or 2, got 6"),
        (orbit, {"extrapolate": True}, "smaller rtol"),  # which goes by powers of h
    ],
)
def test_what_cannot_be_is_said(call, options, words):
    with pytest.raises(ValueError, match=words):
        call(SPRING, [1.0], [0.0], **ONCE | options)


def test_stiff_motion_and_events_without_end_are_told():
    """A rate of 1e4 asks for substeps of 3e-4 whatever the tolerance: more than the trials that are left to a step."""
    stiff = ji.Problem(lambda t, q, v, args: -1e8 * q - 1e4 * v + jnp.sin(t))
    found = ji.solve(stiff, [0.0], [0.0], t1=10.0, steps=2, scheme=ji.EventDriven(trials=1000), save="final")
    assert Status(int(found.status)) == Status.TRIALS_EXHAUSTED and found.failed
    with pytest.raises(RuntimeError, match=r"(?s)no event in this step.*MoreauJean for a stiff force"):
        found.raise_if_failed()
    # 1000 trials of about 3e-4, and the state of that time: sin t over the stiffness, to the decay that is over
    assert 0.1 < float(found.failed_at) < 1
    np.testing.assert_allclose(found.q[-1, 0], np.sin(float(found.failed_at)) / 1e8, atol=1e-9)


def test_the_event_at_which_trials_ended_is_named():
    """Of bounces without a loss more than the trials that a step may make, and of crossings in single precision;
    by lane, and under jit."""
    scheme, gaps = ji.EventDriven(1e-6, 1e-6, trials=100), lambda t, q, args: jnp.concatenate([9.0 - q, q])
    ball = ji.Problem(lambda t, q, v, args: args + 0 * q, gaps, contacts=["roof", "floor"])
    call = {"t1": 60.0, "steps": 1, "e": 1.0, "args": -9.81, "scheme": scheme}
    run = lambda q0: ji.solve(ball, q0, [0.0], **call)
    with pytest.raises(RuntimeError, match=r"trajectory 0 at t = [\d.]+, last at gap 1 \(floor\)\)\n"):
        run([0.1]).raise_if_failed()
    assert int(jax.jit(run)(jnp.array([0.1])).failed_by) == 1
    pushes, starts = np.array([-9.81, 0.0, 9.81]), np.array([[0.1], [5.0], [8.9]])
    lanes = ji.ensemble(ball, starts, 0 * starts, **call | {"args": pushes}, args_axes=0, progress=False)
    assert lanes.failed_by.tolist() == [1, -1, 0]
    words = r"trajectory 0 at .* gap 1 \(floor\); trajectory 2 at .* gap 0 \(roof\)\)\n"
    with pytest.raises(RuntimeError, match=words):
        lanes.raise_if_failed()
    swings = ji.Problem(lambda t, q, v, args: -jnp.sign(q))
    with pytest.raises(RuntimeError, match="last at switch of the force, level 0"):
        ji.solve(swings, jnp.array([0.1], jnp.float32), [0.0], t1=1e3, steps=1, scheme=scheme).raise_if_failed()


@pytest.mark.parametrize("scheme", [SCHEME, slow(ji.EventCorrected())], ids=lambda s: type(s).__name__)
def test_borders_without_end_are_told(scheme):
    """A force in steps of 1/floor(1/t) for t > 0, from t = 0: it was left out, with a clean status; and steps of fixed
    length, before as after."""
    force = lambda t, q, v, args: -jnp.where(t > 0, 1 / jnp.floor(args / jnp.where(t > 0, t, 1.0)), 0.0) + 0 * q
    call = {"args": 1.0, "t1": 0.8, "steps": 40, "scheme": scheme, "save": "final"}
    run = lambda t0: ji.solve(ji.Problem(force), [0.0], [1.0], t0=t0, **call)
    assert int(run(0.0).status) == Status.NON_FINITE
    assert int(run(0.3).status) == Status.OK


def test_an_impact_near_the_end_is_told_within_its_own_time():
    """Not within steps, which are of any length: a thousandth after it the derivative is trusted, at it not."""
    for after, told in ((1e-3, False), (1e-10, True)):
        options = ONCE | {"t1": MEETS + after}
        found = ji.solve(SPRING, [1.0], [0.0], steps=1, sensitivity="corrected", save="final", **options)
        assert bool(int(found.status) & int(Status.DERIVATIVE_AT_END)) == told


def test_float32_has_the_tolerance_of_its_rounding():
    found = ji.solve(SPRING, np.float32([1.0]), np.float32([0.0]), **ONCE)
    assert found.q.dtype == np.float32 and not found.failed
    # 32 roundings
    np.testing.assert_allclose(found.q[:, 0], once(np.asarray(found.t, float))[0], rtol=0, atol=FACTOR * 4e-6)


# orders of derivatives, and reverse mode

MANY = ji.Problem(lambda t, q, v, args: -(args[0] ** 2) * q + jnp.sum(args[1:]), lambda t, q, args: q - 0.3)


def last(args, trials=20_000):
    scheme = ji.EventDriven(trials=trials)
    return ji.solve(MANY, [1.0], [0.0], t1=1.2, e=0.8, args=args, scheme=scheme, save="final").q[-1, 0]


@pytest.mark.parametrize(("trials", "lanes"), [(20_000, False), slow(20_000, True), slow(32, False)])
def test_reverse_mode_is_forward_mode(trials, lanes):
    """Of 100 numbers: by directions, and back through a scan of a fixed number of trials; in lanes,
    which share numbers or have their own."""
    args, along = jnp.zeros(100).at[0].set(2.0), jnp.arange(1.0, 101.0)
    gradient = jax.grad(lambda args: last(args, trials))(args)
    forward = lambda f, x, along: float(jax.jvp(f, (x,), (along,))[1])
    assert gradient @ along == pytest.approx(forward(last, args, along), rel=1e-12)
    if lanes:
        own, both, starts = jnp.stack([args, 1.1 * args]), jnp.stack([along, along]), jnp.array([1.0, 1.1])
        each = lambda x: jnp.sum(jax.vmap(last)(x) ** 2)
        same = lambda x: jnp.sum(jax.vmap(lambda q: last(x.at[1].add(q)) ** 2)(starts))
        assert jnp.sum(jax.grad(each)(own) * both) == pytest.approx(forward(each, own, both), rel=1e-12)
        assert jax.grad(same)(args) @ along == pytest.approx(forward(same, args, along), rel=1e-12)


def test_second_derivatives_have_the_digits_of_the_motion():
    """By the stiffness, across the impact; of the closed form. A search leaves 1e-5 of a substep to the impact, which
    counts in second derivatives unless it is made up for: 1e-8 of them at any tolerance."""

    exact = lambda w: struck((1.0, 0.0, 0.8, w, 0.3), 1.2)[0]
    tolerance, w = 1e-12, jnp.linspace(1.9, 2.4, 64)
    options = {"t1": 1.2, "e": 0.8, "save": "final", "scheme": ji.EventDriven(rtol=tolerance, atol=tolerance)}
    end = lambda w: ji.solve(SPRING, [1.0], [0.0], args={"w": w, "wall": 0.3}, **options).q[-1, 0]
    found, right = jax.jit(jax.vmap(jax.jacfwd(jax.jacfwd(end))))(w), jax.vmap(jax.grad(jax.grad(exact)))(w)
    np.testing.assert_allclose(found, right, rtol=0, atol=FACTOR * tolerance)


def test_forces_that_jump_between_two_rows_are_located():
    """In again and out again: a step from row to row sees neither, the substeps end there;
    a force with a kink alike."""
    for force, work in (
        (lambda q: jnp.where(jnp.abs(q) < 0.5, 1.0, 0.0), 1.0),
        (lambda q: jnp.maximum(0.5 - jnp.abs(q), 0.0), 0.25),
    ):
        problem = ji.Problem(lambda t, q, v, args, force=force: force(q))
        options = {"t1": 3.0, "steps": 1, "scheme": SCHEME, "save": "final"}
        found = ji.solve(problem, [-1.0], [1.0], sensitivity="corrected", **options)
        assert found.status == 0 and found.iterations < 60
        # on [-1/2, 1/2] the force does the work 1, or 1/4
        assert found.v[-1, 0] == pytest.approx(np.sqrt(1 + 2 * work), abs=1e-9)


def test_between_rows():
    """Cubics between the rows, of fourth order, and parabolas beside the impact, of third:
    (w h)^4/384 and a part of (w h)^3."""
    found = ji.solve(SPRING, [1.0], [0.0], **ONCE)
    times = np.linspace(0.0, 1.2, 997)
    h = 1.2 / 200
    error = np.abs(found.at(times).q[:, 0] - once(times)[0])
    near = np.abs(times - MEETS) < 2 * h
    assert np.max(error[~near]) < (2 * h) ** 4 / 300 and np.max(error[near]) < (2 * h) ** 3


def test_float32_rests_without_many_trials():
    """Rounding of forces is above a tolerance of 1e-9: a ball that has come to rest would
    take ever shorter substeps."""
    options = {"t1": 5.0, "args": {"g": np.float32(9.81)}, "e": 0.5, "scheme": SCHEME, "save": "final"}
    found = ji.solve(BALL, np.float32([1.0]), np.float32([0.0]), **options)
    assert not found.failed and found.iterations < 200
    assert found.q[-1, 0] == 0 and found.impulse[-1, 0] == pytest.approx(5 * 9.81, rel=1e-6)


def test_a_flight_over_a_disk_between_two_rows_is_no_way_through_it():
    """Substeps look at the gap themselves: a straight line from row to row is no part of the motion."""
    disk = ji.Problem(lambda t, q, v, args: jnp.array([0.0, -9.81]), lambda t, q, args: (jnp.sqrt(q @ q) - 1)[None])
    found = ji.solve(disk, [-2.0, 0.0], [2.0, 9.81], t1=2.0, steps=1, scheme=ji.EventDriven())
    assert ji.Status(int(found.status)) == ji.Status.OK
    np.testing.assert_allclose(found.q[-1], [2.0, 0.0], atol=1e-12)  # a parabola


# more contacts than a body needs

CORNERS = jnp.array([[0.1, 0.05], [0.1, -0.05], [-0.1, 0.05], [-0.1, -0.05]])


def heights(t, q, args):
    """Heights of the corners of a plate, q = (height, two small tilts, angle about the vertical)."""
    c, s = jnp.cos(q[3]), jnp.sin(q[3])
    return q[0] + CORNERS @ jnp.stack([c * q[1] - s * q[2], s * q[1] + c * q[2]])


@pytest.mark.parametrize("spin", [0.0, 1.0])
def test_a_plate_turns_on_four_corners(spin):
    """Three would hold it: the four impulses are not unique, and no rounding of theirs may ask for short substeps. It
    turns on, at its height."""
    plate = ji.Problem(lambda t, q, v, args: jnp.zeros(4).at[0].set(-9.81), heights)
    found = ji.solve(plate, jnp.zeros(4), jnp.zeros(4).at[3].set(spin), t1=1.0, scheme=SCHEME, save="final")
    assert found.status == 0 and found.iterations < 100
    assert np.allclose(found.q[-1], [0, 0, 0, spin], rtol=0, atol=1e-12)
    # together they carry the weight
    assert jnp.sum(found.impulse[-1]) == pytest.approx(9.81, abs=1e-8)
