"""Sections against exact orbits and an event-by-event reference; lanes, groups of lanes, failures, bad input."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact.analysis import Section, impact_section, period_of, periodic_orbit, stroboscopic
from jaximpact.catalogue import oscillators
from support.experiments.gallery import COMPARED, PROBLEM, args_of, compare, forcing_period

AXES = {"damping": None, "amplitude": None, "frequency": 0, "shift": 0, "wall": None}
NOT_SETTLED = -2  # in place of a period
FREQUENCIES = np.array([2.2, 2.3, 2.4])
DAMPING, WALL, E = 0.05, -0.1, 0.8


def orbits():
    """Exact orbits with one impact a period, one for each frequency: motions, parameters, starts."""
    exact = [oscillators.periodic_orbit(DAMPING, w, WALL, E) for w in FREQUENCIES]
    args = args_of(FREQUENCIES, DAMPING, WALL) | {"shift": np.array([shift for _, shift, _ in exact])}
    v0 = np.array([[speed] for _, _, speed in exact])
    return [motion for motion, _, _ in exact], args, np.full((3, 1), WALL), v0


def test_impacts_and_states_of_exact_orbits():
    """States half a period off the impacts, the impacts' phase and speed, of second order: errors below 10 h^2."""
    motions, args, q0, v0 = orbits()
    # a quarter of a period later by the clock of the forcing: impacts at phase 1/4
    quarter = 0.25 * forcing_period(args)
    args = args | {"shift": args["shift"] - quarter}
    found = impact_section(
        PROBLEM, q0 + 0.3, v0, period=forcing_period, steps=200, cycles=8, skip=92, args=args, args_axes=AXES, e=E
    )
    h = 2 * np.pi / 2.2 / 200
    assert not found.section.failed.any()
    np.testing.assert_array_equal(period_of(found.section), 1)
    np.testing.assert_allclose(found.per_period, 1.0)
    np.testing.assert_allclose(found.phase, 0.25, atol=10 * h**2)
    np.testing.assert_allclose(found.impacts.after, v0[found.impacts.lane, 0], atol=10 * h**2)
    np.testing.assert_allclose(found.impacts.before, -v0[found.impacts.lane, 0] / E, atol=10 * h**2)
    for lane, motion in enumerate(motions):
        q, v = motion(0.75 * forcing_period(args)[lane : lane + 1])
        np.testing.assert_allclose(found.section.q[lane], np.repeat(q, 8, axis=0), atol=10 * h**2)
        np.testing.assert_allclose(found.section.v[lane], np.repeat(v, 8, axis=0), atol=10 * h**2)
    np.testing.assert_allclose(found.section.t[:, -1], 100 * forcing_period(args))


def largest_differences(steps):
    """What `compare` finds, after the checks that hold at any h: equal periods, equal impacts, states within 4 h^2."""
    rows = compare(steps=steps)
    assert [row["period"] for row in rows] == [row["period_exact"] for row in rows]
    assert {row["period"] for row in rows} == {1, 2, 3, 4} and len(COMPARED) == 6
    for row in rows:
        assert row["impacts"] == pytest.approx(row["impacts_exact"])
        # second order, with a constant measured to be below 2.5
        assert row["difference"] < 4 * (2 * np.pi / row["frequency"] / steps) ** 2
    return np.array([row["difference"] for row in rows])


def test_periods_impacts_and_states_of_the_reference():
    largest_differences(100)


@pytest.mark.slow
def test_states_are_of_second_order():
    """Half the step, a quarter of the difference, at six frequencies in the geometric mean;
    3 leaves room for phases."""
    assert np.exp(np.mean(np.log(largest_differences(100) / largest_differences(200)))) > 3


def test_a_linear_oscillator_meets_its_own_solution():
    """Away from the wall: q = a cos w t + b sin w t once the transient, exp(-0.3 t), is gone; states at a phase."""
    w, z, phase = 3.0, 0.3, 0.25
    args = args_of(w, z, -10.0)
    found = stroboscopic(
        PROBLEM,
        [0.0],
        [0.0],
        period=2 * np.pi / w,
        steps=200,
        cycles=3,
        skip=37,
        phase=phase,
        args=args,
        scheme=ji.MoreauJean(),
    )
    size = (1 - w**2) ** 2 + (2 * z * w) ** 2
    a, b, angle = (1 - w**2) / size, 2 * z * w / size, 2 * np.pi * phase
    h = 2 * np.pi / w / 200
    # the midpoint rule, of second order: its frequency is off by w^3 h^2/24 at least
    np.testing.assert_allclose(found.q[0, :, 0], a * np.cos(angle) + b * np.sin(angle), atol=h**2)
    np.testing.assert_allclose(found.v[0, :, 0], w * (b * np.cos(angle) - a * np.sin(angle)), atol=w * h**2)
    np.testing.assert_allclose(found.t[0], (phase + np.arange(38, 41)) * 2 * np.pi / w)


@pytest.mark.slow
def test_ways_to_say_the_same():
    """A period may be a function, an array or, for equal lanes, a number;
    a section goes on where a shorter one ended."""
    args = args_of(np.linspace(2.0, 3.0, 7), 0.05)
    axes = AXES | {"shift": None}
    options = {
        "steps": 60,
        "cycles": 4,
        "skip": 3,
        "args": args,
        "args_axes": axes,
        "e": 0.5,
        "scheme": ji.MoreauJean(),
    }
    whole = stroboscopic(PROBLEM, [0.5], [0.1], period=forcing_period, **options)
    same = stroboscopic(PROBLEM, [0.5], [0.1], period=forcing_period(args), **options)
    for name in ("t", "q", "v", "status"):
        np.testing.assert_allclose(getattr(same, name), getattr(whole, name), rtol=1e-12, atol=1e-14)
    seen, unseen = (
        impact_section(PROBLEM, [0.5], [0.1], period=forcing_period, **options | {"cycles": 3, "skip": skip})
        for skip in (3, 0)
    )
    assert sorted(set(seen.impacts.lane)) == list(range(7))
    # the motions went on from where they were: `MoreauJean` may have moved some onto the wall, by O(h)
    np.testing.assert_allclose(seen.section.q[:, 0], whole.q[:, 0], atol=2 * 2 * np.pi / 2.0 / 60)
    np.testing.assert_allclose(unseen.section.t[:, 0], forcing_period(args))


@pytest.mark.slow
def test_groups_of_lanes():
    """Lanes too many for one group, of 256 MB of rows, give what a few do: far from the wall,
    where round-off dies out."""
    args = args_of(np.linspace(2.0, 3.0, 7), 0.05, -100.0)
    few = {"steps": 6, "cycles": 50, "skip": 50, "scheme": ji.MoreauJean(), "args_axes": AXES | {"shift": None}}
    lanes = np.arange(7 * 24000) % 7
    assert len(lanes) * 100 * 2 * 8 > 256 * 2**20
    one, many = (
        stroboscopic(PROBLEM, [0.5], [0.1], period=forcing_period(some), **few, args=some)
        for some in (args, args | {"frequency": args["frequency"][lanes]})
    )
    for name in ("t", "q", "v", "status"):
        np.testing.assert_allclose(getattr(many, name), getattr(one, name)[lanes], rtol=1e-12, atol=1e-14)
    # with impacts, of which rows of every step are held; a few of them magnify round-off a little
    few = {"steps": 60, "cycles": 5, "scheme": ji.MoreauJean(), "args_axes": AXES | {"shift": None}, "e": 0.5}
    lanes = np.arange(7 * 4000) % 7
    assert len(lanes) * 60 * 5 * 5 * 8 > 256 * 2**20
    args |= {"wall": 0.0}
    one, many = (
        impact_section(PROBLEM, [0.5], [0.1], period=forcing_period(some), **few, args=some)
        for some in (args, args | {"frequency": args["frequency"][lanes]})
    )
    np.testing.assert_allclose(many.section.q, one.section.q[lanes], rtol=1e-9, atol=1e-9)
    for lane in (0, 6, len(lanes) - 1):
        ours, theirs = many.impacts.of(lane), one.impacts.of(lane % 7)
        np.testing.assert_allclose(ours.t, theirs.t, rtol=1e-9)
        np.testing.assert_allclose(ours.before, theirs.before, rtol=1e-8)


def sections_of(orbit, n=24, lanes=1):
    q = np.tile(np.resize(np.asarray(orbit, float), n), (lanes, 1))[..., None]
    return Section(
        np.tile(np.arange(n), (lanes, 1)), q, 0 * q, np.ones(lanes), np.zeros(lanes, int), np.full(lanes, np.nan)
    )


@pytest.mark.parametrize(
    ("orbit", "period"), [([1.0], 1), ([1, 2.0], 2), ([1, 2, 1, 3.0], 4), (np.sqrt(np.arange(24)), 0)]
)
def test_the_least_period_is_found(orbit, period):
    assert period_of(sections_of(orbit)) == period


def test_a_period_is_asked_for_lane_by_lane():
    """A period that mixes the parameters of a lane: the sum of two, which would mix two lanes if asked for at once."""
    free = ji.Problem(lambda t, q, v, args: jnp.zeros(1), on_the_floor)
    parts = np.array([[0.25, 0.5], [0.5, 1.0]])
    options = {"steps": 4, "cycles": 2, "args": {"parts": parts}, "args_axes": 0, "scheme": ji.MoreauJean()}
    for period in (lambda args: args["parts"][0] + args["parts"][1], lambda args: float(np.sum(args["parts"]))):
        found = stroboscopic(free, [1.0], [1.0], period=period, **options)
        np.testing.assert_allclose(found.period, [0.75, 1.5])
        np.testing.assert_allclose(found.q[..., 0], 1 + found.period[:, None] * [1, 2], rtol=1e-12)
        # at rest it is periodic, whatever the period
        orbit = periodic_orbit(free, [1.0], [0.0], period=period, **options)
        np.testing.assert_allclose(orbit.period, 2 * found.period)


def made(orbit, left, multiplier, n=32):
    """Sections of orbits (p,) with states left + what is left of a transient,
    `left` * multiplier^k of one complex mode."""
    k = np.arange(n)
    z = np.resize(np.asarray(orbit, complex), n) + left * np.power(complex(multiplier), k / len(orbit))
    t, one = k[None].astype(float), np.ones(1)
    return Section(
        t, z.real[None, :, None], z.imag[None, :, None], 2 * np.pi * one, np.zeros(1, int), np.full(1, np.nan)
    )


@pytest.mark.parametrize("orbit", [[1.0], [1.0, 2.0], [1.0, 2.0, 2j]])
def test_a_slow_transient_is_no_period(orbit):
    """Every answer is the orbit's period, or that the motion has not settled, and the latter only while it has not.

    Amplitudes from far above to far below the tolerance of 2e-5; multipliers whose powers come back near one before the
    transient has died out.
    """
    p = len(orbit)
    for modulus in (0.9, 0.99, 0.999):
        for angle in (0.0, np.pi, 2 * np.pi / 3, 6 * np.pi / 7, 1.0):
            for left in 10.0 ** np.arange(-9, 0):
                answer = period_of(made(orbit, left, modulus * np.exp(1j * angle)))[0]
                assert answer in (p, NOT_SETTLED), (modulus, angle, left, answer)
                # changes within the tolerance, and the end within 100 tolerances
                if left < 1e-6:
                    assert answer == p, (modulus, angle, left, answer)
                if left > 1e-2:
                    assert answer == NOT_SETTLED, (modulus, angle, left, answer)


def test_an_oscillator_that_touches_nothing_has_period_one():
    """Its transient flips sign once a period and loses 3 % of its size:
    two periods later it seems to have come back."""
    args = args_of(2.0, 0.01, -100.0)
    options = {"period": forcing_period, "steps": 30, "cycles": 16, "args": args, "scheme": ji.MoreauJean()}
    early, late = (period_of(stroboscopic(PROBLEM, [0.5], [0.0], skip=skip, **options)) for skip in (310, 900))
    assert early == NOT_SETTLED and late == 1


def test_rounding_of_float32_does_not_hide_a_period():
    t = 2.86 * np.arange(120.0, 150.0)[None]
    q = 1 + 3e-4 * np.random.default_rng(0).standard_normal((1, 30, 1))
    for dtype, period in ((np.float32, 1), (np.float64, 0)):
        section = Section(
            t, q.astype(dtype), 0 * q.astype(dtype), np.array([2.86]), np.zeros(1, int), np.full(1, np.nan)
        )
        assert period_of(section) == period


def test_period_of_limits():
    long = sections_of(np.arange(13.0))
    assert period_of(long) == 0  # more than half of 24
    for wrong in (-1.0, float("nan"), "small"):
        with pytest.raises((ValueError, TypeError), match="tolerance must"):
            period_of(long, tolerance=wrong)
    nearly = sections_of([1.0, 1.0 + 1e-7])
    assert period_of(nearly) == 1 and period_of(nearly, tolerance=1e-9) == 2
    with pytest.raises(ValueError, match="most=13: periods up to half of the 24"):
        period_of(long, most=13)


def blows_up(t, q, v, args):
    return args["k"] * jnp.exp(args["k"] * t) * jnp.ones(1)


def on_the_floor(t, q, args):
    return q


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_failed_lane_is_flagged_and_spoils_no_other():
    problem = ji.Problem(blows_up, on_the_floor, restitution=0.5)
    args, scheme = {"k": np.array([0.0, 1e4, 0.0])}, ji.MoreauJean()
    options = {"period": 1.0, "steps": 20, "args": args, "args_axes": 0, "scheme": scheme}
    found = stroboscopic(problem, [1.0], [0.5], cycles=4, **options)
    assert found.failed.tolist() == [False, True, False]
    assert period_of(found)[1] == -1
    np.testing.assert_allclose(found.q[0, :, 0], 1 + 0.5 * np.arange(1, 5))
    through = impact_section(problem, [1.0], [0.5], cycles=2, skip=2, **options)
    assert through.section.failed.tolist() == [False, True, False]
    assert np.isnan(through.section.q[1]).all() and np.isnan(through.per_period[1])
    np.testing.assert_allclose(through.section.q[2, :, 0], [2.5, 3.0])
