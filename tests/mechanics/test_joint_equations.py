"""Joints as equations, against the same systems in minimal coordinates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaximpact as ji
from support.breadth import slow, slow_but
from support.symplectic_euler import SymplecticEuler

G, WALL = 9.81, 0.3
FINE = ji.EventDriven(rtol=1e-13, atol=1e-13)
SCHEMES = [ji.MoreauJean(), ji.EventCorrected(), ji.EventDriven()]


# a pendulum beside a wall at x = -.3: by a rod of length args["L"] in the plane, and by its angle


def gravity(t, q, v, args):
    return jnp.array([0.0, -G], q.dtype)


def rod(t, q, args):
    return jnp.stack([(q @ q - args["L"] ** 2) / 2])


def beside(t, q, args):
    return jnp.stack([q[0] + WALL])


FREE = ji.Problem(gravity, joints=rod)
PENDULUM = ji.Problem(gravity, beside, joints=rod)
ANGLE = ji.Problem(lambda t, q, v, args: -G / args["L"] * jnp.sin(q), lambda t, q, args: args["L"] * jnp.sin(q) + WALL)


@jax.jit
def in_plane(angle, rate, length):
    s, c = jnp.sin(angle), jnp.cos(angle)
    return length * jnp.stack([s, -c]), length * rate * jnp.stack([c, s])


def swing(x, problem=PENDULUM, t1=0.8, **options):
    """State at t1 by angle, rate, length and restitution."""
    found = ji.solve(problem, *in_plane(*x[:3]), t1=t1, args={"L": x[2]}, e=x[3], save="final", **options)
    return jnp.concatenate([found.q[-1], found.v[-1]])


def swing_by_angle(x, t1=0.8):
    found = ji.solve(ANGLE, x[:1], x[1:2], t1=t1, steps=8, args={"L": x[2]}, e=x[3], scheme=FINE, save="final")
    return jnp.concatenate(in_plane(found.q[-1, 0], found.v[-1, 0], x[2]))


BEGIN = np.array([1.2, 0.0, 1.0, 0.5])  # strikes the wall once in .8


def errors(scheme, steps, x=BEGIN, **options):
    """Of the state and of its Jacobian, for each number of steps."""
    of_time = {name: options[name] for name in ("t1",) if name in options}
    right, slope = swing_by_angle(x, **of_time), jax.jacfwd(lambda x: swing_by_angle(x, **of_time))(jnp.array(x))
    found = []
    for n in steps:
        run = lambda x, n=n: swing(x, scheme=scheme, steps=n, **options)
        found.append([np.max(np.abs(run(x) - right)), np.max(np.abs(jax.jacfwd(run)(jnp.array(x)) - slope))])
    return np.array(found).T


STEPS, H = (400, 6400), 0.8 / 6400
DRIVEN = ji.EventDriven(rtol=1e-11, atol=1e-11)
BOTH = [{"execution": "native"}, {"execution": "xla"}]
# scheme, options, steps, bounds of the finest's state and Jacobian, and the range of their orders
SWINGS = [
    # free: 2.0 within what the next order leaves of a step of 1/400
    *((scheme, {"problem": FREE, "t1": 0.5}, (200, 800), np.inf, (1.9, 2.1)) for scheme in SCHEMES[:2]),
    # of some tens of substeps, each right to 1e-11; a Jacobian is ten times that
    *((DRIVEN, options, (8,), (1e-9, 1e-8), None) for options in BOTH),
    # of first order: 5.7 h in the angle's own coordinate, and 20 h in its Jacobian
    *((SCHEMES[0], options, STEPS, (7 * H, 20 * H), (0.9, np.inf)) for options in BOTH),
    *((SCHEMES[1], options, STEPS, np.inf, (1.9, np.inf)) for options in BOTH),
    # inelastic schemes of positions stop at the wall and leave it as gravity bids: 3.9 h in velocity, that of chords
    *((scheme, {"x": BEGIN * np.array([1, 1, 1, 0])}, STEPS, (6 * H, 30 * H), (0.9, np.inf))
      for scheme in (ji.PaoliSchatzman(), ji.Maury(), ji.Maury(half_kick=True))),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "options", "steps", "bounds", "orders"), SWINGS)
def test_a_pendulum_by_a_joint_moves_and_strikes_a_wall_as_its_angle_does(scheme, options, steps, bounds, orders):
    found = errors(scheme, steps, **options)
    assert np.all(found[:, -1] < bounds)
    if orders:
        found = np.log(found[:, 0] / found[:, 1]) / np.log(steps[1] / steps[0])
        assert orders[0] < found.min() and found.max() < orders[1]


@pytest.mark.parametrize("scheme", slow_but(SCHEMES[:1], SCHEMES), ids=repr)
def test_joints_hold_to_round_off_and_their_impulses_account_for_all_momentum(scheme):
    q0, v0 = in_plane(1.2, 0.0, 1.0)
    found = ji.solve(PENDULUM, q0, v0, t1=8.0, steps=8000, args={"L": 1.0}, e=0.5, scheme=scheme)
    assert found.status == 0 and found.joint_residual < 1e-14
    np.testing.assert_array_less(np.abs(np.sum(np.asarray(found.q) ** 2, axis=1) - 1), 1e-14)
    assert found.joint_impulse.shape == (8001, 1) and found.impulse[-1, 0] > 0
    # M dv = g dt + J' dl + G' dL, J = q' within a step: of second order
    joint = np.diff(found.joint_impulse, axis=0) * (found.q[1:] + found.q[:-1]) / 2
    wall = np.diff(found.impulse, axis=0) * np.array([1.0, 0.0])
    change = np.diff(found.v, axis=0) - 1e-3 * np.array([0.0, -G]) - joint - wall
    # but within the step of an impact, where the joint's part of it is at another place, h times its size
    assert np.quantile(np.abs(change), 0.99) < 1e-6 and np.max(np.abs(change)) < 0.02


def test_without_joints_a_solution_has_none_of_theirs():
    problem = ji.Problem(gravity, beside)
    found = ji.solve(problem, [0.0, 0.0], [0.0, 0.0], t1=0.1, steps=10)
    assert found.joint_impulse is None and found.joint_residual is None and "joints" not in repr(problem)


@pytest.mark.slow  # as test_frictional_saltation asks of an impact that rubs
@pytest.mark.parametrize("scheme", [SCHEMES[0], SCHEMES[2]], ids=repr)
def test_derivatives_of_joint_impulses_are_those_of_the_motion(scheme):
    """Across an impact, by angle, rate, length and restitution: of `MoreauJean`, corrected, and of `EventDriven`,
    against differences of the latter."""

    def impulse(x, scheme, steps):
        at, args = in_plane(*x[:3]), {"L": x[2]}
        run = lambda: ji.solve(PENDULUM, *at, t1=0.8, steps=steps, args=args, e=x[3], scheme=scheme, save="final")
        return run().joint_impulse[-1, 0]

    differences = [(impulse(BEGIN + x, DRIVEN, 8) - impulse(BEGIN - x, DRIVEN, 8)) / 2e-5 for x in 1e-5 * np.eye(4)]
    # round-off 1e-11 over 2e-5; first order, 13 h at N = 400
    scheme, steps, allowed = (DRIVEN, 8, 1e-5) if scheme == SCHEMES[2] else (scheme, 3200, 20 * 0.8 / 3200)
    slopes = jax.jit(jax.jacfwd(lambda x: impulse(x, scheme, steps)))(jnp.array(BEGIN))
    np.testing.assert_allclose(slopes, differences, atol=allowed)


def test_an_ensemble_finds_what_one_motion_finds():
    options = {"t1": 0.8, "scheme": ji.MoreauJean(), "e": 0.5, "save": "final"}
    angles = np.linspace(1.0, 1.3, 3)
    starts = np.asarray(jax.vmap(lambda a: in_plane(a, 0.0, 1.0)[0])(angles))
    lanes = ji.ensemble(PENDULUM, starts, np.zeros((3, 2)), h=0.01, args={"L": 1.0}, progress=False, **options)
    for lane, start in zip(lanes, starts, strict=True):
        one = ji.solve(PENDULUM, start, np.zeros(2), h=0.01, args={"L": 1.0}, **options)
        for name in ("q", "v", "impulse", "joint_impulse", "joint_residual", "status"):
            np.testing.assert_array_equal(getattr(lane, name), getattr(one, name))


@pytest.mark.slow
def test_jacobians_of_large_linkages_have_a_lane_for_each_direction():
    """So many that a program of all would be large, by numbers that nothing depends on:
    the same as of few directions in one program."""
    starts = [np.asarray(x) for x in jax.vmap(lambda a: in_plane(a, 0.0, 1.0))(jnp.array([1.0, 1.2]))]
    options = {"t1": 0.8, "steps": 80, "e": 0.5, "scheme": ji.MoreauJean(), "save": 40, "mode": "forward"}
    run = lambda args: ji.sensitivities(PENDULUM, *starts, args=args, wrt="args", progress=False, **options)
    few, many = run({"L": 1.0, "n": 3}), run({"L": 1.0, "n": 3, "other": np.zeros(120)})
    assert not np.any(many.jacobian["q"]["args"].pop("other")) and not np.any(many.jacobian["v"]["args"].pop("other"))
    assert jax.tree.structure(many.jacobian) == jax.tree.structure(few.jacobian)
    for x, y in zip(jax.tree.leaves(many.jacobian), jax.tree.leaves(few.jacobian), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-12)  # round-off of sums in another order
    assert np.all(many.status == few.status) and many.jacobian["v"]["args"]["L"].shape == (2, 3, 2)


def test_single_precision_stays_and_holds_its_joints():
    start = (x.astype(np.float32) for x in in_plane(1.2, 0.0, 1.0))
    found = ji.solve(PENDULUM, *start, t1=0.8, steps=400, args={"L": 1.0}, e=0.5, scheme=ji.MoreauJean(), save="final")
    assert found.q.dtype == found.joint_impulse.dtype == found.joint_residual.dtype == np.float32
    assert found.status == 0 and found.joint_residual < 4 * np.finfo(np.float32).eps
    np.testing.assert_allclose(np.append(found.q, found.v), swing(BEGIN, scheme=ji.MoreauJean(), steps=400), atol=1e-5)


@pytest.mark.parametrize("scheme", [ji.Maury(), slow(ji.Maury(half_kick=True)), slow(ji.PaoliSchatzman())], ids=repr)
def test_rounding_of_positions_does_not_wander_into_velocities(scheme):
    """Velocities of chords have the rounding of a position over h, 16001 steps after the start as after the first. With
    that of every step added up, positions in single precision were 1 to 2 % off."""
    x, n = np.array([1.2, 0.0, 1.0, 0.0]), 16001
    some, fine = (np.asarray(swing(x, FREE, steps=n, scheme=scheme)) for x in (x.astype(np.float32), x))
    apart = np.abs(some - fine)
    rounding = np.finfo(np.float32).eps * n / 0.8
    assert np.max(apart[2:]) < rounding and np.max(apart[:2]) < 0.1 * rounding


def test_files_tables_and_interpolation_take_what_is_told_of_joints(tmp_path):
    found = ji.solve(PENDULUM, *in_plane(1.2, 0.0, 1.0), t1=0.1, steps=10, args={"L": 1.0}, scheme=ji.MoreauJean())
    again = ji.load(found.save(tmp_path / "motion.npz"))
    np.testing.assert_array_equal(again.joint_impulse, found.joint_impulse)
    assert again.joint_residual == found.joint_residual and found.to_xarray()["joint_impulse"].dims == ("time", "joint")
    assert "joint_impulse[0]" in found.to_pandas()
    middle = found.at(0.025).joint_impulse
    np.testing.assert_allclose(middle[0], found.joint_impulse[2:4].mean(axis=0), rtol=1e-12)


def shaken(t, q, v, args):
    return jnp.stack([3 * jnp.cos(3 * t), -G]) - 0.3 * v


def around(p):
    return jnp.concatenate([jnp.sin(p), -jnp.cos(p)])


def shaken_angle(t, p, w, args):
    q, v = jax.jvp(around, (p,), (w,))
    return jax.vjp(around, p)[1](shaken(t, q, v, args))[0]


PERIOD = 2 * np.pi / 3
BY_ROD = ji.Problem(
    shaken, lambda t, q, args: q[:1] + 0.1, restitution=0.6, joints=lambda t, q, args: (q @ q - 1)[None]
)
BY_ANGLE = ji.Problem(shaken_angle, lambda t, p, args: jnp.sin(p) + 0.1, restitution=0.6)


@pytest.mark.slow
def test_multipliers_and_exponents_on_joints_are_those_by_the_angle():
    """A pendulum shaken against a wall at x = -.1, settled from rest: two of each,
    none of the directions that the joint forbids."""
    options = {"steps": 200, "scheme": ji.EventCorrected()}
    settled = ji.solve(BY_ANGLE, [0.3], [0.0], t1=40 * PERIOD, h=PERIOD / 200, scheme=ji.EventCorrected(), save="final")
    p, w = settled.q[-1], settled.v[-1]
    right = ji.analysis.periodic_orbit(BY_ANGLE, p, w, period=PERIOD, **options)
    found = ji.analysis.periodic_orbit(BY_ROD, *jax.jvp(around, (p,), (w,)), period=PERIOD, **options)
    assert found.converged and found.status == 0 and found.monodromy.shape == (4, 4)
    # of second order, as two discretisations of one motion differ
    np.testing.assert_allclose(found.multipliers, right.multipliers, atol=5e-4)
    np.testing.assert_allclose(found.q, around(right.q), atol=1e-4)
    start = {"interval": PERIOD, "intervals": 10, "blocks": 2, "skip": 30, **options}
    exponents = ji.analysis.lyapunov(BY_ROD, *ji.assemble(BY_ROD, found.q, found.v), **start).exponents
    # of an orbit that closes their sum is that of the logarithms of its multipliers, over its period; each by itself
    # turns with the pair of them
    assert exponents.shape == (2,)
    np.testing.assert_allclose(np.sum(exponents), np.sum(np.log(np.abs(found.multipliers))) / PERIOD, atol=1e-6)


LENGTHENED = ji.Problem(shaken, joints=lambda t, q, args: (q @ q - args["L"] ** 2)[None])


@pytest.mark.parametrize("analysis", [slow("continue_orbit"), "bifurcation"])
def test_analyses_put_their_own_starts_on_the_joints(analysis):
    """A shaken rod whose length changes: starts that an analysis predicts are off the joints, by the tolerance of
    orbits or by what a length differs from the one before; they were refused as the user's q0. No speed of the user's
    is projected with a warning either."""
    given = {"args": {"L": 1.0}, "period": PERIOD, "steps": 20, "parameter": "L", "scheme": ji.EventCorrected()}
    given |= {"bounds": (0.9, 1.5), "points": 3, "tol": 1e-4} if analysis == "continue_orbit" else {
        "values": np.array([1.0, 1.2, 1.8]), "sweep": "up", "cycles": 1}  # fmt: skip
    found = getattr(ji.analysis, analysis)(LENGTHENED, [0.0, -1.0], [0.3, 0.0], **given)
    if analysis == "continue_orbit":
        q, v, lengths, exact = found.q, found.v, found.parameter, 1e-14  # starts, to round-off
    else:  # ends of motions, to a step's own projection
        q, v, lengths, exact = found.q[:, 0, 0], found.v[:, 0, 0], given["values"], 1e-8
    assert len(lengths) == 3
    np.testing.assert_allclose(np.sum(q * q, axis=1), lengths**2, rtol=exact)
    np.testing.assert_allclose(np.sum(q * v, axis=1), 0, atol=exact)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES[1:], ids=repr)
def test_second_derivatives_across_an_impact_are_those_by_the_angle(scheme):
    """By angle, rate, length and restitution; of the angle by `EventDriven` at 1e-13, whose second derivatives are
    exact in its own tests."""
    right = jax.jacfwd(jax.jacfwd(swing_by_angle))(jnp.array(BEGIN))
    located = not isinstance(scheme, ji.EventCorrected)
    for steps in (8,) if located else (400, 1600):
        run = lambda x, steps=steps: swing(x, scheme=scheme, steps=steps)
        off = np.max(np.abs(jax.jacfwd(jax.jacfwd(run))(jnp.array(BEGIN)) - right))
        # of steps an error h^2 f(theta) of first derivatives, where theta, the impact's time in steps, changes by 1/h:
        # of first order. Largest .15 h (6400 steps)
        assert off < (1e-8 if located else 0.3 * 0.8 / steps)
    if located:
        return
    slope = jax.jacfwd(lambda x: swing(x, FREE, scheme=scheme, steps=8))
    backwards, forwards = (jax.jit(mode(slope))(jnp.array(BEGIN)) for mode in (jax.jacrev, jax.jacfwd))
    np.testing.assert_allclose(backwards, forwards, atol=1e-12)  # round-off of sums in another order


# two rods in a chain, whose tip is blown onto a wall, slides along it and is held; and by their angles


def tips(p):
    first, second = (jnp.stack([jnp.sin(a), -jnp.cos(a)]) for a in p)
    return jnp.concatenate([first, first + second])


def links(t, q, args):
    across = q[2:] - q[:2]
    return jnp.stack([q[:2] @ q[:2] - 1, across @ across - 1]) / 2


def of_angles(t, p, w, args):
    q, v = jax.jvp(tips, (p,), (w,))
    return 0.5 * v @ v - G * (q[1] + q[3]) - 4 * (q[0] + q[2])


def drag(t, p, w, args):
    return jax.vjp(tips, p)[1](-0.5 * jax.jvp(tips, (p,), (w,))[1])[0]


CHAIN = ji.Problem(
    lambda t, q, v, args: np.array([-4.0, -G, -4.0, -G]) - 0.5 * v, lambda t, q, args: q[2:3] + WALL, joints=links
)
BY_ANGLES = ji.Problem.from_lagrangian(of_angles, lambda t, p, args: tips(p)[2:3] + WALL, force=drag)


SLIDES = [(scheme, 0.0) for scheme in (ji.PaoliSchatzman(), ji.Maury(), *SCHEMES)]
SLIDES += [(scheme, 0.6) for scheme in SCHEMES]


@pytest.mark.parametrize(("scheme", "e"), [x if x == (SCHEMES[0], 0.0) else slow(*x) for x in SLIDES], ids=repr)
def test_a_tip_that_slides_along_a_wall_does_so_as_by_angles(scheme, e):
    start = np.array([0.6, 0.2])
    end = ji.solve(BY_ANGLES, start, [0.0, 0.0], t1=3.0, steps=20, scheme=FINE, e=e, save="final")
    found = ji.solve(CHAIN, tips(start), np.zeros(4), t1=3.0, h=1e-3, scheme=scheme, e=e, save="final")
    # of first order, h times speeds of up to 3; of second, 5e-6; by a tolerance of 1e-9
    bound = {ji.EventCorrected: 1e-5, ji.EventDriven: 1e-8}.get(type(scheme), 3e-3)
    np.testing.assert_allclose(found.q[-1], tips(end.q[-1]), atol=bound)
    np.testing.assert_allclose(found.impulse[-1], end.impulse[-1], atol=10 * bound)
    assert not found.failed and found.joint_residual < 1e-14 and end.impulse[-1, 0] > 10


# two rods, their lengths and the mass of the tip free: by joints, and by their angles without jax, whose complex steps
# are exact derivatives

SWING = np.array([0.9, -0.4, 0.3, 1.0, 1.0, 0.8, 0.7])  # two angles, their rates, two lengths, a mass


def swing_of_two(x, t1=1.5):
    lengths, m = x[4:6], x[6]
    first, second = lengths

    def rate(t, y):
        difference = y[0] - y[1]
        along, across = m * first * second * np.cos(difference), m * first * second * np.sin(difference)
        mass = np.array([[(1 + m) * first**2, along], [along, m * second**2]])
        weights = G * np.array([1 + m, m]) * lengths * np.sin(y[:2])
        return np.concatenate([y[2:], np.linalg.solve(mass, across * np.array([-(y[3] ** 2), y[2] ** 2]) - weights)])

    y = solve_ivp(rate, (0, t1), x[:4], method="DOP853", rtol=1e-13, atol=1e-13).y[:, -1]
    s, c = lengths * np.sin(y[:2]), lengths * np.cos(y[:2])
    places, rates = np.stack([s, -c], 1), y[2:, None] * np.stack([c, s], 1)
    return np.concatenate([np.cumsum(places, axis=0), np.cumsum(rates, axis=0)], axis=None)


def squares(t, q, args):
    return jnp.sum(jnp.diff(q.reshape(2, 2), axis=0, prepend=0) ** 2, axis=1) - args["lengths"] ** 2


TWO_RODS = ji.Problem(
    lambda t, q, v, args: -G * jnp.stack([0.0, 1.0, 0.0, args["mass"]]),
    mass=lambda q, args: jnp.stack([1.0, 1.0, args["mass"], args["mass"]]),
    joints=squares,
)


def by_two_joints(x, scheme, steps):
    """The same; what is behind the seven numbers of x plays no part."""
    args = {"lengths": x[4:6], "mass": x[6], "other": x[7:]}
    turn = lambda p: jnp.cumsum(args["lengths"][:, None] * jnp.stack([jnp.sin(p), -jnp.cos(p)], 1), axis=0).ravel()
    start = jax.jvp(turn, (x[:2],), (x[2:4],))
    found = ji.solve(TWO_RODS, *start, t1=1.5, steps=steps, args=args, scheme=scheme, save="final")
    return jnp.concatenate([found.q[-1], found.v[-1]])


@pytest.mark.parametrize(
    ("scheme", "steps", "bound"),
    [
        (DRIVEN, 8, 1e-9),  # 6e-11 found
        *(slow(scheme, 400, 6e-4) for scheme in SCHEMES[:2]),  # 4.3e-4, a sixteenth of it at 1600 steps
    ],
    ids=["driven", "stepped", "corrected"],
)
def test_a_double_pendulum_has_the_jacobian_of_its_angles_forwards_and_backwards(scheme, steps, bound):
    right = np.stack([swing_of_two(SWING + 1e-30j * e).imag / 1e-30 for e in np.eye(7)], 1)
    forward = jax.jit(jax.jacfwd(lambda x: by_two_joints(x, scheme, steps)))(jnp.array(SWING))
    np.testing.assert_allclose(forward, right, atol=bound)
    if scheme.traits.order is None:
        return
    # of more than 32 numbers, which makes reverse mode run backwards through the steps
    weights, many = jnp.arange(1.0, 9.0), jnp.concatenate([SWING, jnp.zeros(40)])
    back = jax.grad(lambda x: weights @ by_two_joints(x, scheme, steps))(many)
    np.testing.assert_allclose(back[:7], weights @ forward, atol=1e-11)  # round-off of sums in another order
    assert not np.any(back[7:])


@pytest.mark.parametrize(("h", "steps"), [(2e-3, 100_000), slow(1e-3, 1_000_000)], ids=["fast", "long"])
def test_the_energy_of_a_free_double_pendulum_does_not_drift(h, steps):
    """Over 200 s by no more than h^2, and over 1000 s; by the gradients of the predicted midpoint it is 9e-4 off,
    200 h^2 and 900 h^2."""
    free = ji.Problem(lambda t, q, v, args: jnp.array([0.0, -G, 0.0, -G]), joints=links)
    found = ji.solve(
        free, [1.0, 0.0, 1.6, 0.8], np.zeros(4), t1=steps * h, steps=steps, scheme=ji.MoreauJean(), save=100
    )
    energy = np.sum(np.asarray(found.v) ** 2, axis=1) / 2 + G * (found.q[:, 1] + found.q[:, 3])
    assert found.status == 0 and found.joint_residual < 1e-14
    assert np.max(np.abs(energy - energy[0])) < h**2


@pytest.mark.slow
def test_least_impulses_of_a_rod_stated_twice_are_told_alike_everywhere():
    """By native code, XLA, for lanes, and for numbers that are traced: (1, a) / (1 + a^2) of those of one rod, whose
    first row has them else."""
    twice = FREE.replace(joints=lambda t, q, args: jnp.concatenate([rod(t, q, args), 2 * rod(t, q, args)]))
    options = {"args": {"L": 1.0}, "t1": 0.1, "h": 0.01, "scheme": ji.MoreauJean(), "save": "final"}
    start = [np.asarray(x) for x in in_plane(1.2, 0.0, 1.0)]
    one = ji.solve(FREE, *start, **options).joint_impulse[-1, 0]
    with pytest.warns(ji.JaximpactWarning, match="adds nothing"):
        native, xla = (ji.solve(twice, *start, **options, execution=x) for x in ("native", "xla"))
    with pytest.warns(ji.JaximpactWarning, match="adds nothing"):
        lanes = ji.ensemble(twice, np.stack([start[0]] * 2), np.zeros((2, 2)), progress=False, **options)
    traced = jax.jit(lambda q: ji.solve(twice, q, start[1], **options).joint_impulse)(start[0])
    np.testing.assert_array_equal(lanes[1].joint_impulse, native.joint_impulse)
    for found in (native.joint_impulse, xla.joint_impulse, traced):
        np.testing.assert_allclose(found[-1], one * np.array([1.0, 2.0]) / 5, rtol=1e-12)


# starts


CIRCLE = ji.Problem(gravity, joints=lambda t, q, args: jnp.stack([q @ q - 1, jnp.sqrt(q @ q) - 1]))
AWAY, RADIUS = np.array([2.0, 1.0]), np.sqrt(5)
ACROSS = np.eye(2) - np.outer(AWAY, AWAY) / RADIUS**2


def test_assemble_gives_the_nearest_start_and_its_derivative():
    """Of a circle, stated twice: the point towards the centre, and the velocity along it."""
    both = lambda q: (ji.assemble(CIRCLE, q, jnp.ones(2)),) * 2
    slope, (q0, v0) = jax.jacfwd(both, has_aux=True)(jnp.array(AWAY))
    np.testing.assert_allclose(q0, AWAY / RADIUS, atol=1e-15)
    np.testing.assert_allclose(v0, ACROSS @ np.ones(2), atol=1e-15)
    np.testing.assert_allclose(slope[0], ACROSS / RADIUS, atol=1e-14)


CLOSE = [0.3, np.sqrt(0.91)]


def test_assemble_takes_a_row_whose_terms_cancel_for_kept():
    """As of a planar linkage in space across its plane: a row of zeros, whose value, here 2^-55, is round-off."""
    across = lambda q: (0.1 + q[0]) - q[0] - 0.1
    joints = lambda t, q, args: jnp.stack([q @ q - 1, across(q)])
    assert across(np.array(CLOSE)) != 0
    problem = ji.Problem(gravity, joints=joints)
    q0, v0 = ji.assemble(problem, CLOSE, [0.0, 0.0])
    np.testing.assert_allclose(q0, CLOSE, atol=1e-15)
    with pytest.warns(UserWarning, match=r"joints\(t0, q0, args\)\[1\] adds nothing"):
        ji.solve(problem, q0, v0, t1=0.01, steps=2, scheme=ji.MoreauJean())  # raises where a start is refused


@pytest.mark.slow
def test_assemble_in_a_metric_with_held_coordinates_backwards_and_for_many():
    q0, _ = ji.assemble(CIRCLE.replace(mass=np.array([1.0, 50.0])), AWAY, [1.0, 1.0])
    pull = np.array([1.0, 50.0]) * (AWAY - q0)  # M (q - q0) along the gradient
    assert abs(pull[0] * q0[1] - pull[1] * q0[0]) < 1e-12 and abs(q0 @ q0 - 1) < 1e-14
    held = ji.assemble(CIRCLE.replace(coordinates=("x", "y")), [0.6, 0.5], [1.0, 0.0], free=["y"])
    np.testing.assert_allclose(held, [[0.6, 0.8], [1.0, -0.75]], atol=1e-14)
    place = lambda q: ji.assemble(CIRCLE, q, jnp.ones(2))[0]
    np.testing.assert_allclose(jax.jacrev(place)(jnp.array(AWAY)), ACROSS / RADIUS, atol=1e-14)
    many = jax.vmap(place)(jnp.stack([AWAY, 3 * AWAY]))
    np.testing.assert_allclose(many, np.stack([AWAY, AWAY]) / RADIUS, atol=1e-14)


def test_starts_off_the_joints_are_refused_or_told_and_rates_projected():
    options = {"t1": 0.1, "steps": 10, "args": {"L": 1.0}, "scheme": ji.MoreauJean(), "save": "final"}
    with pytest.raises(ValueError, match=r"joints\(t0, q0, args\)\[0\] is 0.00805 .*assemble"):
        ji.solve(FREE, [0.6, -0.81], [0.0, 0.0], **options)
    with pytest.raises(ValueError, match="of trajectory 1 does not satisfy the joints"):
        ji.ensemble(FREE, [[0.6, -0.8], [0.6, -0.81]], np.zeros((2, 2)), progress=False, **options)
    with pytest.warns(ji.JaximpactWarning, match="v0 breaks the joints"):
        found = ji.solve(FREE, [0.6, -0.8], [0.8, 0.7], **options)
    assert found.status == ji.Status.START_VELOCITY_PROJECTED
    traced = jax.jit(lambda q: ji.solve(FREE, q, jnp.zeros(2), **options).status)
    assert traced(jnp.array([0.6, -0.81])) == ji.Status.JOINTS_NOT_MET and traced(jnp.array([0.6, -0.8])) == 0


@pytest.mark.parametrize(
    ("joints", "error", "words"),
    [
        (3, TypeError, "joints must be a function"),
        (lambda t, q, args: q @ q - 1, ValueError, r"joints\(t, q, args\) must return shape \(j,\)"),
        (lambda t, q, args: q[:0], ValueError, r"joints\(t, q, args\) must return shape \(j,\)"),
        (lambda t, q, args: q.astype(int), TypeError, "real numbers"),
        (lambda t, q, args: jnp.stack([q[0], q[1], q[0] + t]), ValueError, "joints contradict each other"),
    ],
)
def test_joints_that_cannot_be_are_refused_in_words(joints, error, words):
    with pytest.raises(error, match=words):
        ji.solve(ji.Problem(gravity, joints=joints), [0.0, 0.0], [0.0, 0.0], t1=1.0, steps=10, scheme=ji.MoreauJean())


def test_what_takes_no_joints_says_so():
    length = {"args": {"L": 1.0}}
    run = lambda **options: ji.solve(PENDULUM, [0.6, -0.8], [0, 0], t1=1.0, steps=10, save="final", **length, **options)
    for call, words in (
        (lambda: run(scheme=SymplecticEuler()), "SymplecticEuler takes no joints: use MoreauJean"),
        (lambda: run(e=0.5, scheme=ji.PaoliSchatzman()), "PaoliSchatzman keeps joints in inelastic impacts only"),
        (lambda: run(scheme=ji.PaoliSchatzman(metric="geodesic")), r"metric='geodesic'\) takes no joints"),
        (lambda: ji.assemble(ji.Problem(gravity), [0.0, 0.0], [0.0, 0.0]), "no joints to assemble"),
        (lambda: ji.assemble(FREE, [3.0, 0.0], [0.0, 0.0], free=[1], **length), "no position near q0"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    assert run(e=0.5).timing.scheme == "MoreauJean"
    traced = jax.jit(lambda e: run(e=e, scheme=ji.PaoliSchatzman()).status)(0.5)
    assert ji.Status.INPUT_INVALID & int(traced)
