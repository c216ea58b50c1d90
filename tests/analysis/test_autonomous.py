"""Periodic orbits of autonomous systems, their return maps and branches, against closed forms derived here.

Oscillators that push themselves, x'' = 2 z x' - x (+ coupling), against a wall at x = -1: between impacts the flow is a
matrix exponential F(T), so that the orbit that starts behind its impact, x = -1, closes after any T that is chosen if

    F(T) s = s  in every component but the velocity u of x,   e = -u / u(T):

linear equations in the state, and a restitution e that belongs to that T. The monodromy matrix is S F(T) with the
saltation S = R + (A R s - R A s) n' / (n' A s), s = s(T), R = diag(1, .., -e, ..). For one coordinate det S F = e^2
exp(2 z T), one eigenvalue is 1, and the other that determinant.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm
from scipy.optimize import brentq, minimize_scalar

import jaximpact as ji
from jaximpact.analysis import bifurcation, continue_orbit, crossings, period_of, periodic_orbit, poincare_section
from support.breadth import slow

Z = 0.1
WALL = -1.0
ONE = {"z": Z}
TWO = ONE | {"damping": 0.02, "stiffness": 2.25, "coupling": 0.8}


def wall(t, q, args):
    return q[:1] - WALL


def push(t, q, v, args):
    return 2 * args["z"] * v - q


def coupled_push(t, q, v, args):
    spring = args["coupling"] * (q[1] - q[0])
    return jnp.stack([spring, -spring]) - jnp.stack(
        [q[0] - 2 * args["z"] * v[0], 2 * args["damping"] * v[1] + args["stiffness"] * q[1]]
    )


CLOCK, COUPLED = ji.Problem(push, wall), ji.Problem(coupled_push, wall)


def top(t, q, v, args):
    """Zero where the oscillator turns."""
    return v[0]


def fast(t, q, v, args):
    """Zero at a speed that is given."""
    return v[0] - args["speed"]


def system(args):
    """The matrix A of s' = A s between impacts."""
    if "coupling" not in args:
        return np.array([[0, 1], [-1, 2 * args["z"]]])
    k = args["coupling"]
    lower = [[-1 - k, k, 2 * args["z"], 0], [k, -args["stiffness"] - k, 0, -2 * args["damping"]]]
    return np.vstack([np.eye(4)[2:], lower])


def exact(period, args):
    """Restitution, multipliers but the one along the orbit, and the motion t -> s since the impact,
    of the orbit of that period."""
    a = system(args)
    flow, u = expm(a * period), len(a) // 2
    others = [i for i in range(len(a)) if i != u]
    free = [i for i in range(len(a)) if i != 0]
    closing = (flow - np.eye(len(a)))[others]
    start = np.insert(np.linalg.solve(closing[:, free], -closing[:, 0] * WALL), 0, WALL)
    end = flow @ start
    e = -start[u] / end[u]
    reset = np.eye(len(a))
    reset[u, u] = -e
    before = a @ end
    saltation = reset + np.outer(a @ reset @ end - reset @ before, np.eye(len(a))[0]) / before[0]
    multipliers = np.linalg.eigvals(saltation @ flow)
    along = np.argmin(np.abs(multipliers - 1))
    assert abs(multipliers[along] - 1) < 1e-9
    return e, np.delete(multipliers, along), lambda t: expm(a * t) @ start


def turn(motion, period):
    """When the motion turns on its way from the wall and back."""
    u = len(motion(0.0)) // 2
    return brentq(lambda t: motion(t)[u], 0.2 * period, 0.8 * period, xtol=1e-14)


def at_top(period, args=ONE):
    """Restitution, the state where it turns, as position and velocity, and when that is, of the orbit of a period."""
    e, _, motion = exact(period, args)
    later = turn(motion, period)
    return e, np.split(motion(later), 2), later


def period_at(e, args=ONE, bounds=(3.5, 5.2)):
    """The period that belongs to a restitution."""
    return brentq(lambda period: exact(period, args)[0] - e, *bounds)


def sorted_moduli(multipliers):
    return np.sort(np.abs(multipliers))


@pytest.mark.parametrize("args", [ONE, slow(TWO)], ids=["one", "two"])
def test_an_orbit_its_period_and_its_multipliers(args):
    """From a guess 3 % off, half way between impacts: state, period and multipliers of second order,
    and extrapolated."""
    problem, period = CLOCK if args is ONE else COUPLED, 4.4
    e, mu, motion = exact(period, args)
    state = motion(period / 2)
    d = len(state) // 2
    args = args | {"speed": state[d]}
    options = {"surface": fast, "steps": 400, "args": args, "e": e}
    found = periodic_orbit(problem, 1.03 * state[:d], state[d:], period=1.03 * period, extrapolate=True, **options)
    assert found.converged and found.status == 0
    assert found.multipliers.shape == (2 * d - 1,)
    # second order, extrapolated once: what is left is O(h^3), h = 0.011
    np.testing.assert_allclose([*found.q, *found.v], state, rtol=0, atol=5e-6)
    assert np.isclose(found.period, period, rtol=0, atol=5e-6)
    np.testing.assert_allclose(sorted_moduli(found.multipliers), sorted_moduli(mu), rtol=0, atol=1e-5)
    if d == 1:
        assert np.isclose(found.multipliers[0], e**2 * np.exp(2 * Z * period), rtol=0, atol=5e-6)
    for name in ("state", "monodromy", "period"):
        assert np.isclose(found.order[name], 2, atol=0.1), name
    # the return map ends on the surface
    np.testing.assert_allclose(found.monodromy[d], 0, atol=1e-12)


@pytest.mark.slow
def test_a_batch_holds_unstable_orbits_and_says_where_there_is_none():
    """Over the restitution on both sides of a Neimark-Sacker point; the last lane starts at rest,
    where every period closes."""
    periods = np.array([4.0, 4.1, 4.4, 4.4])
    es, states, _ = zip(*(at_top(period, TWO) for period in periods), strict=True)
    q, v = np.moveaxis(states, 1, 0) * np.array([1, 1, 1, 0])[:, None]
    found = periodic_orbit(COUPLED, q, v, period=periods, steps=400, surface=top, args=TWO, e=np.array(es))
    assert found.converged.tolist() == [True, True, True, False]
    assert found.stable.tolist() == [False, False, True, False]
    # second order at h = 0.01
    np.testing.assert_allclose(found.period[:3], periods[:3], rtol=0, atol=2e-4)
    for i in range(3):
        np.testing.assert_allclose(
            sorted_moduli(found.multipliers[i]), sorted_moduli(exact(periods[i], TWO)[1]), rtol=0, atol=1e-3
        )
    assert np.isnan(found.multipliers[3]).all()
    with pytest.raises(RuntimeError, match="no states of rest"):
        found.raise_if_failed()


@pytest.mark.slow
def test_two_passages_square_the_multiplier():
    e, (q, _), _ = at_top(4.5)
    options = {"period": 4.5, "steps": 80, "surface": top, "args": ONE, "e": e}
    once, twice = (periodic_orbit(CLOCK, q, [0.0], cycles=cycles, **options) for cycles in (1, 2))
    # the same discrete motion, twice
    assert np.isclose(twice.period, 2 * once.period, rtol=1e-9)
    # of which one step h is the unknown and not two, a difference of second order, h = 0.056, measured as 0.01 h^2
    assert np.isclose(twice.multipliers[0], once.multipliers[0] ** 2, rtol=0, atol=0.05 * 0.056**2)


@pytest.mark.slow
def test_a_branch_over_the_restitution():
    """Period and multiplier of every point from the closed form of its restitution, solved for the period."""
    e, start, _ = at_top(4.5)
    options = {"period": 4.5, "steps": 100, "surface": top, "args": ONE, "e": e, "step": 0.1}
    branch = continue_orbit(CLOCK, *start, parameter="e", bounds=(0.2, 0.6), **options)
    assert branch.ended == "bounds" and branch.parameter[-1] == pytest.approx(0.6, abs=1e-9)
    assert branch.multipliers.shape == (len(branch.parameter), 1) and branch.stable.all() and not branch.events
    for value, period, mu in zip(branch.parameter[::3], branch.period[::3], branch.multipliers[::3, 0], strict=True):
        known = period_at(value)
        # second order, h = 0.045; what the period owes to it measured as 0.2 h^2
        assert np.isclose(period, known, rtol=0, atol=0.5 * 0.045**2)
        assert np.isclose(mu, value**2 * np.exp(2 * Z * known), rtol=0, atol=0.5 * 0.045**2)


def scaled(t, q, v, args):
    return v[0] - args["z"] * (q[0] - 1.5)


@pytest.mark.slow
def test_a_branch_over_a_parameter_on_which_the_surface_depends():
    e, start, _ = at_top(4.2)
    options = {"period": 4.2, "steps": 100, "surface": scaled, "args": ONE, "e": e, "step": 0.1}
    branch = continue_orbit(CLOCK, *start, parameter="z", bounds=(0.05, 0.15), **options)
    assert branch.ended == "bounds"
    for z, period, q, v in zip(branch.parameter, branch.period, branch.q, branch.v, strict=True):
        assert np.isclose(period, period_at(e, {"z": z}, (3.5, 5.0)), rtol=0, atol=0.5 * 0.045**2)
        assert abs(v[0] - z * (q[0] - 1.5)) < 1e-9


@pytest.mark.slow
def test_neimark_sacker_and_fold_of_two_coupled_oscillators():
    """Where the closed form has a pair on the unit circle; where its restitution, a function of the period,
    has a minimum."""
    e, start, _ = at_top(4.4, TWO)
    options = {"steps": 200, "surface": top, "parameter": "e", "step": 0.1}
    branch = continue_orbit(COUPLED, *start, period=4.4, args=TWO, e=e, bounds=(0.3, 0.7), **options)
    (event,) = branch.events
    at = brentq(lambda period: np.max(np.abs(exact(period, TWO)[1])) - 1, 4.1, 4.3)
    assert event.kind == "Neimark-Sacker"
    # second order, h = 0.02
    assert np.isclose(event.parameter, exact(at, TWO)[0], rtol=0, atol=1e-3)

    args = ONE | {"damping": 0.05, "stiffness": 2.89, "coupling": 0.3}
    e, start, _ = at_top(3.1, args)
    options |= {"period": 3.1, "args": args, "e": e, "direction": -1}
    branch = continue_orbit(COUPLED, *start, bounds=(0.6, 0.72), **options)
    least = minimize_scalar(lambda period: exact(period, args)[0], bounds=(3.1, 3.4), method="bounded").fun
    folds = [event for event in branch.events if event.kind == "fold"]
    assert len(folds) == 1 and np.isclose(folds[0].parameter, least, rtol=0, atol=1e-3)
    assert np.min(np.abs(folds[0].multipliers - 1)) < 1e-4


@pytest.mark.slow
def test_crossings_are_located_to_the_order_of_the_scheme():
    """The first passage, behind an impact, of surfaces of position, of velocity and of time;
    and none where the velocity jumps."""
    (e, start, later), motion, args = at_top(4.5), exact(4.5, ONE)[2], ONE
    surfaces = {
        "turn": (top, -1, 4.5),
        "place": (lambda t, q, v, args: q[0], 1, None),
        "oblique": (lambda t, q, v, args: v[0] + 0.3 * q[0] - 0.2 * t, -1, None),
    }
    for name, (surface, direction, known) in surfaces.items():
        if known is None:
            on = lambda s, surface=surface: float(surface(s, *motion(s - (4.5 - later)).reshape(2, 1), args))
            times = 4.5 - later + np.linspace(1e-6, later, 200)
            values = np.array([on(t) for t in times])
            first = np.flatnonzero((direction * values[:-1] < 0) & (direction * values[1:] >= 0))[0]
            known = brentq(on, *times[first : first + 2], xtol=1e-14)
        for scheme, order, finest in ((ji.EventCorrected(), 2, 400), (ji.MoreauJean(), 1, 3200)):
            errors = []
            for steps in (finest // 8, finest):
                solved = ji.solve(CLOCK, *start, t1=5.5, h=4.5 / steps, args=args, e=e, scheme=scheme)
                found = crossings(solved, surface, direction=direction, args=args)
                errors.append(np.min(np.abs(found.t - known)))
                assert set(found.direction) == {direction}
            # over a factor of 8; where in its step the impact falls changes errors by a factor, of first order more
            # than of second
            assert np.log(errors[0] / errors[1]) / np.log(8) > order - 0.35, name
    both = crossings(solved, top, args=args)
    assert both.direction.tolist() == [-1] and len(both.to_pandas()) == 1


def test_a_section_of_many_motions():
    """All starts come to the one limit cycle; its state on the surface, and the time between two passages,
    to second order."""
    e, (q, _), _ = at_top(4.5)
    starts = np.linspace(0.4, 4.0, 5)[:, None]
    of, numbers = (CLOCK, starts, 0 * starts), {"args": ONE, "e": e}
    times = {"period": 4.2, "steps": 100, "cycles": 6, "skip": 34}
    found = poincare_section(*of, surface=top, direction=-1, **times, **numbers)
    assert not found.failed.any() and period_of(found).tolist() == [1] * 5
    h = 4.2 / 100
    np.testing.assert_allclose(found.q[..., 0], q[0], rtol=0, atol=0.5 * h**2)
    np.testing.assert_allclose(np.diff(found.t, axis=1), 4.5, rtol=0, atol=0.5 * h**2)
    # the same passages as those of one long motion
    whole = ji.ensemble(*of, t1=185.0, h=h, scheme=ji.EventCorrected(), save=1, **numbers)
    all_of_them = crossings(whole, top, direction=-1, args=ONE)
    for lane in range(5):
        # 32 periods of 4.2 s were run at once, and then others: passages 34 to 39
        np.testing.assert_allclose(all_of_them.of(lane).t[34:40], found.t[lane], rtol=0, atol=1e-9)


def test_a_ball_that_comes_to_rest_passes_no_more():
    ball = ji.Problem(lambda t, q, v, args: -jnp.ones(1), lambda t, q, args: q, restitution=0.5)
    found = poincare_section(ball, [1.0], [0.0], surface=top, direction=-1, period=1.0, steps=100, cycles=40)
    # tops e^2k of the height, as long as flights are seen by the steps
    np.testing.assert_allclose(found.q[0, :3, 0], 0.25 ** np.arange(1, 4), rtol=1e-9)
    assert np.isnan(found.q[0, -1]).all() and period_of(found).tolist() == [-1] and not found.failed.any()


def test_a_diagram_on_a_surface():
    """Over the restitution, and swept: the position at the top from the closed form at each value."""
    values = np.array([0.3, 0.4, 0.5])
    options = {"parameter": "e", "values": values, "period": 4.5, "steps": 80, "cycles": 6, "skip": 30, "args": ONE}
    options |= {"surface": top, "direction": -1}
    known = [at_top(period_at(value))[1][0] for value in values]
    for sweep in (None, "up"):
        found = bifurcation(CLOCK, [1.5], [0.0], sweep=sweep, **options)
        assert (found.periods() == 1).all()
        # second order, h = 0.056
        np.testing.assert_allclose(found.q[:, 0, :, 0], np.repeat(known, 6).reshape(3, 6), rtol=0, atol=3e-3)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"surface": 3}, TypeError, "surface must be a function"),
        ({"surface": lambda t, q, v, args: q}, ValueError, "surface must give one real number"),
        ({"surface": lambda t, q, v, args: args["nope"]}, ValueError, "surface failed on one state"),
        ({"period": None}, ValueError, "a guess, with surface"),
        ({"problem": ji.Problem(lambda t, q, v, args: -q + jnp.cos(t), wall)}, ValueError, "depend on t"),
        ({"problem": ji.Problem(push, lambda t, q, args: q - WALL + 0.1 * jnp.sin(t))}, ValueError, "depend on t"),
    ],
)
def test_what_is_no_section_is_named(change, error, message):
    given = {
        "problem": CLOCK,
        "q0": [1.5],
        "v0": [0.0],
        "period": 4.5,
        "steps": 20,
        "surface": top,
        "args": ONE,
        "e": 0.4,
    }
    with pytest.raises(error, match=message):
        periodic_orbit(**(given | change))


def test_rows_are_checked():
    with pytest.raises(ValueError, match="every step of a motion"):
        crossings(ji.solve(CLOCK, [1.0], [0.0], t1=1.0, h=0.1, args=ONE, save="final"), top)
    options = {"parameter": "e", "values": [0.4], "period": 4.5, "steps": 20, "cycles": 2, "args": ONE}
    with pytest.raises(ValueError, match="give surface"):
        bifurcation(CLOCK, [1.5], [0.0], direction=1, **options)


def test_a_force_of_no_amplitude_is_none():
    """A force that depends on time as it is written, and not in its numbers."""
    problem = ji.Problem(lambda t, q, v, args: push(t, q, v, args) + args["drive"] * jnp.cos(t), wall)
    e, start, _ = at_top(4.5)
    options = {"period": 4.5, "steps": 50, "surface": top, "e": e}
    assert periodic_orbit(problem, *start, args=ONE | {"drive": 0.0}, **options).converged
    with pytest.raises(ValueError, match="depend on t"):
        periodic_orbit(problem, *start, args=ONE | {"drive": 0.1}, **options)


@pytest.mark.slow
def test_an_orbit_in_float32_is_that_of_the_closed_form():
    e, (q, _), _ = at_top(4.5)
    start = q.astype(np.float32), np.zeros(1, np.float32)
    found = periodic_orbit(CLOCK, *start, period=4.5, steps=200, surface=top, args=ONE, e=e)
    assert found.converged and found.q.dtype == np.float32
    # second order, h = 0.02, and rounding of 200 steps
    assert np.isclose(found.period, 4.5, rtol=0, atol=1e-3)
