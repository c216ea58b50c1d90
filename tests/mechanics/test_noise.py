"""White forces: the numbers, the laws of what they move, first passages, and derivatives with the noise held fixed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy.integrate import quad
from scipy.special import gamma, hyp2f1

import jaximpact as ji
from jaximpact import analysis
from support.breadth import slow
from support.experiments.gallery import stationary

SCHEMES = (ji.MoreauJean(), ji.PaoliSchatzman(), ji.Maury(), ji.EventCorrected(), ji.EventDriven())
FREE = ji.Problem(lambda t, q, v, args: 0 * q, noise=lambda t, q, v, args: jnp.eye(len(q), dtype=q.dtype))
STRONG = 0.5  # noise of the oscillator


def oscillator(restitution, damping=0.5):
    """Beside a wall at its equilibrium; of noise and damping in the ratio of Einstein its temperature is 1/2."""
    return ji.Problem(
        lambda t, q, v, args: -q - 2 * damping * v,
        lambda t, q, args: q,
        restitution=restitution,
        noise=lambda t, q, v, args: jnp.full((1, 1), (4 * damping * STRONG) ** 0.5, q.dtype),
    )


def normal(key, n, r):
    """Normal numbers (r,) of step n: threefry of jax, and the logarithm and cosine of numpy."""
    words = [threefry_2x32(jax.random.key_data(key), jnp.array([n, pair], jnp.uint32)) for pair in range((r + 1) // 2)]
    bits, turns = np.array(words).T
    size, angle = np.sqrt(-2 * np.log((bits | 1) * 2.0**-32)), 2 * np.pi * turns.view(np.int32) * 2.0**-32
    return np.stack([size * np.cos(angle), size * np.sin(angle)], axis=1).ravel()[:r]


@pytest.mark.parametrize("scheme", [SCHEMES[0], *map(slow, SCHEMES[1:])], ids=lambda s: type(s).__name__)
def test_impulses_are_those_of_the_key(scheme):
    """A free body has the sum of the impulses of all steps, counted from t = 0, whatever the scheme; polynomials of the
    numbers are exact to 4e-9."""
    key, h, steps = jax.random.key(7), 0.25, 4
    numbers = np.array([normal(key, n, 3) for n in range(8, 8 + steps)])
    found = ji.solve(FREE, np.zeros(3), np.ones(3), t0=2.0, t1=3.0, steps=steps, scheme=scheme, key=key)
    np.testing.assert_allclose(found.v[1:], 1 + h**0.5 * np.cumsum(numbers, axis=0), atol=1e-8)


@pytest.mark.parametrize("scheme", [SCHEMES[3], *map(slow, SCHEMES[:3] + SCHEMES[4:])], ids=lambda s: type(s).__name__)
def test_noise_that_depends_on_the_state_is_of_ito(scheme):
    """dv = v dW: each step multiplies v by 1 + sqrt(h) xi, of mean 1; in the sense of
    Stratonovich the mean would grow."""
    grows = FREE.replace(noise=lambda t, q, v, args: v[:, None])
    key, h = jax.random.key(1), 0.01
    numbers = np.array([normal(key, n, 1)[0] for n in range(20)])
    found = ji.solve(grows, np.zeros(1), np.ones(1), t1=0.2, steps=20, scheme=scheme, key=key, save="final")
    assert found.v[-1, 0] == pytest.approx(np.prod(1 + h**0.5 * numbers), rel=1e-8)


@pytest.mark.parametrize("scheme", [SCHEMES[0], slow(SCHEMES[1]), slow(SCHEMES[3])], ids=lambda s: type(s).__name__)
def test_elastic_oscillator_has_the_law_of_gibbs(scheme):
    """Density exp(-(v^2 + q^2)/2D) for q > 0 whatever the impacts: the means of v^2 and q are exact, to four standard
    errors and the order of h."""
    lanes, h = 20_000, 0.01
    start = np.zeros((lanes, 1)) + 0.5
    found = ji.ensemble(oscillator(1.0), start, np.zeros(1), t1=12.0, h=h, scheme=scheme, key=3)
    assert not found.failed.any()
    energy = found.v[:, -1, 0] ** 2 / STRONG
    place = found.q[:, -1, 0] / np.sqrt(2 * STRONG / np.pi)
    for x in (energy, place):
        assert abs(x.mean() - 1) < 4 * x.std() / lanes**0.5 + h


def test_inelastic_impacts_balance_the_energy_of_noise():
    """For e = 0.6: sigma^2/2 = 2 zeta E v^2 + E (1 - e)/(1 + e) p^2/2 per unit of time, p the impulses, to four
    standard errors and the order of h."""
    e, damping, h, begin, end = 0.6, 0.1, 0.005, 10.0, 20.0
    problem = oscillator(e, damping)
    lanes = 500
    given = {"t1": end, "h": h, "scheme": ji.MoreauJean(), "key": 5, "save": "all"}
    found = ji.ensemble(problem, np.full((lanes, 1), 0.3), np.zeros(1), **given)
    late = found.t[0] >= begin
    v, p = found.v[:, late, 0], np.diff(found.impulse[:, late, 0], axis=1)
    lost = 2 * damping * np.mean(v**2, axis=1) + np.sum(p**2, axis=1) * (1 - e) / (1 + e) / 2 / (end - begin)
    gained = 2 * damping * STRONG - (
        v[:, -1] ** 2 + found.q[:, -1, 0] ** 2 - v[:, 0] ** 2 - found.q[:, late, 0][:, 0] ** 2
    ) / 2 / (end - begin)
    assert abs(np.mean(lost - gained)) < 4 * np.std(lost - gained) / lanes**0.5 + 0.05 * 2 * damping * STRONG


def shares(e, damping, sigma, reach=6.0):
    """E v^2, E q, and the shares of fast and near states, of the Fokker-Planck equation: two grids, extrapolated."""
    found = []
    for cells in (60, 120):  # whose edges meet 0.8 and 1.2
        q, v, density = stationary(e, damping, sigma, cells, reach)
        part = density * (q[1] - q[0]) * (v[1] - v[0])
        q, v = np.meshgrid(q, v, indexing="ij")
        found.append([np.sum(f * part) for f in (v**2, q, v > 1.2, v < -1.2, q < 0.8, (q < 0.8) & (v < -1.2))])
    return (4 * np.array(found[1]) - found[0]) / 3


def test_density_of_the_reference_is_that_of_gibbs():
    """Fluxes of second order, extrapolated: errors of fourth order, of a width of 0.05 and deviations of 0.7."""
    np.testing.assert_allclose(shares(1.0, 0.5, 1.0)[:2], [0.5, 1 / np.pi**0.5], rtol=1e-3)


@pytest.mark.parametrize("scheme", [SCHEMES[0], slow(SCHEMES[1]), slow(SCHEMES[3])], ids=lambda s: type(s).__name__)
def test_inelastic_oscillator_has_the_density_of_fokker_and_planck(scheme):
    """The oscillator of path integration by H. T. Sykora, R. Kuske, D. Yurchenko (Nonlinear Dyn. 2024), e = 0.7, zeta =
    0.1, sigma = 1: to four standard errors and the order of h."""
    lanes, h = 20_000, 0.01
    start = np.full((lanes, 1), 0.5)
    problem = oscillator(0.7, 0.1).replace(noise=lambda t, q, v, args: jnp.ones((1, 1)))
    found = ji.ensemble(problem, start, np.zeros(1), t1=25.0, h=h, scheme=scheme, key=3)
    q, v = found.q[:, -1, 0], found.v[:, -1, 0]
    samples = np.array([v**2, q, v > 1.2, v < -1.2, q < 0.8, (q < 0.8) & (v < -1.2)])
    error = np.abs(samples.mean(axis=1) - shares(0.7, 0.1, 1.0))
    assert np.all(error < 4 * samples.std(axis=1) / lanes**0.5 + h)


def test_speed_of_the_first_return_has_the_density_of_mckean():
    """Accelerated at random from a wall with speed 1: 3/(2 pi) u^(3/2)/(1 + u^3), J. Math. Kyoto Univ. 2 (1963); to
    four standard errors, of which later returns than t1 = 100 are a tenth."""
    wall = FREE.replace(constraints=lambda t, q, args: q)
    lanes = 1000
    given = {"t1": 100.0, "h": 0.05, "key": 1, "scheme": ji.EventDriven(order=5), "until": ji.Until.impact(0)}
    found = ji.ensemble(wall, np.zeros((lanes, 1)), np.ones(1), **given)
    speed = np.where(found.stopped, -found.v[:, -1, 0], np.inf)
    for most in (0.5, 1.0):
        exact = quad(lambda u: 1.5 / np.pi * u**1.5 / (1 + u**3), 0, most)[0]
        assert abs(np.mean(speed < most) - exact) < 4 * (exact / lanes) ** 0.5


@pytest.mark.slow
def test_mean_first_passage_of_random_acceleration():
    """Out of [0, 1] from rest at x: the formula of Masoliver and Porra, Phys. Rev. Lett. 75 (1995),
    to four standard errors."""
    x, lanes = 0.2, 4000
    shape = (x * (1 - x)) ** (1 / 6) * sum(hyp2f1(1, -1 / 3, 7 / 6, y) for y in (x, 1 - x))
    exact = 2 ** (2 / 3) * 3 ** (-1 / 6) / gamma(7 / 3) * shape
    leaves = lambda t, q, v, args: q[0] * (1 - q[0])
    given = {"t1": 20.0, "h": 0.02, "scheme": ji.EventDriven(), "until": leaves, "key": 2}
    found = ji.ensemble(FREE, np.full((lanes, 1), x), np.zeros(1), **given)
    times = found.t[:, -1]
    assert found.stopped.all() and abs(times.mean() - exact) < 4 * times.std() / lanes**0.5


def test_derivatives_with_the_noise_held_fixed():
    """Of a path with impacts and noise that depends on the place: differences of runs with one key, whose errors are
    those of `EventDriven`."""
    noise = lambda t, q, v, args: args * (1 + 0.3 * q[:, None])
    problem = oscillator(0.8).replace(noise=noise)

    def end(x):
        given = {"t1": 3.0, "steps": 60, "key": 3, "save": "final"}
        found = ji.solve(problem, x[:1], jnp.zeros(1), args=x[1], scheme=ji.EventDriven(1e-12, 1e-12), **given)
        return found.q[-1, 0], found.q[-1, 0]

    x, d = jnp.array([1.0, 0.5]), 1e-5
    both = jax.jit(jax.jacfwd(end, has_aux=True))  # one program
    expected = [(both(x + s)[1] - both(x - s)[1]) / (2 * d) for s in d * jnp.eye(2)]
    np.testing.assert_allclose(both(x)[0], expected, rtol=1e-6)


@pytest.mark.slow
def test_derivative_of_a_mean_is_the_mean_of_derivatives():
    """Each path has its own; both are unbiased: differences of means with the same keys,
    to four standard errors of their distance."""
    problem = oscillator(0.8).replace(noise=lambda t, q, v, args: jnp.full((1, 1), 0.5) * args)
    lanes, d = 4000, 0.1
    given = {"t1": 3.0, "steps": 60, "key": 3, "scheme": ji.EventCorrected()}
    start = np.ones((lanes, 1))
    exact = ji.sensitivities(problem, start, np.zeros(1), args=1.0, wrt="args", **given).jacobian["q"]["args"].ravel()
    runs = [ji.ensemble(problem, start, np.zeros(1), args=x, **given).q.ravel() for x in (1 - d, 1 + d)]
    differences = (runs[1] - runs[0]) / (2 * d)
    assert abs(np.mean(exact - differences)) < 4 * np.std(exact - differences) / lanes**0.5


def test_friction_under_noise():
    """A block on a floor that noise pushes along it: friction takes .3 g h of the velocity in a step, or all of it;
    located schemes refuse it."""
    block = ji.Problem(
        lambda t, q, v, args: jnp.array([0.0, -9.81]),
        lambda t, q, args: q[1:],
        slip=lambda t, q, v, args: v[:1],
        friction=0.3,
        noise=lambda t, q, v, args: jnp.array([[0.5], [0.0]]),
    )
    given = {"t1": 1.0, "h": 0.01, "key": 2, "save": "all"}
    found = ji.solve(block, [0.0, 0.0], [1.0, 0.0], scheme=ji.MoreauJean(), **given).raise_if_failed()
    kicks = ji.solve(
        ji.Problem(lambda t, q, v, args: 0 * q, noise=lambda t, q, v, args: jnp.array([[0.5]])),
        [0.0],
        [0.0],
        scheme=ji.MoreauJean(),
        **given,
    )
    v = [1.0]
    for kick in np.diff(kicks.v[:, 0]):
        free = v[-1] + kick
        v.append(free - np.clip(free, -0.3 * 9.81 * 0.01, 0.3 * 9.81 * 0.01))
    np.testing.assert_allclose(found.v[:, 0], v, atol=1e-12)
    for scheme in (ji.EventDriven(), ji.EventCorrected()):
        with pytest.raises(ValueError, match=r"noise: .* takes none with friction: use MoreauJean"):
            ji.solve(block, [0.0, 0.1], [1.0, 0.0], scheme=scheme, **given)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"key": None}, "key: the problem has noise.*give key=0"),
        ({"noise": None}, "key: the problem has no random numbers: state noise"),
        ({"noise": lambda t, q, v, args: jnp.ones(1)}, r"noise\(t, q, v, args\) must return sigma of shape \(1, r\)"),
        ({"h": None}, "noise: white forces are constant in a step.*give h"),
        ({"key": jax.random.split(jax.random.key(0), 3)}, "one key, got 3; for many motions use ensemble"),
        ({"key": 0.5}, "key must be an int, or a key of jax"),
        ({"sensitivity": "corrected"}, "noise: the derivative across an impact.*give scheme=EventCorrected"),
    ],
)
def test_what_is_refused(changes, word):
    call = {"t1": 1.0, "h": 0.1, "key": 0} | changes
    problem = oscillator(0.5)
    problem = problem.replace(noise=call.pop("noise", problem.noise))
    with pytest.raises((ValueError, TypeError), match=word):
        ji.solve(problem, [1.0], [0.0], **call)


FORCED = ji.Problem(
    lambda t, q, v, args: -q - 0.2 * v + 0.5 * jnp.cos(2 * t),
    lambda t, q, args: q + 0.1,
    restitution=0.7,
    noise=lambda t, q, v, args: jnp.full((1, 1), 0.1),
)
STROBED = {"period": np.pi, "steps": 50, "cycles": 4, "skip": 2, "key": 1}


def test_sections_are_states_of_the_ensemble():
    """The numbers go on through the restart after the transient: to the rounding of t0 + n h."""
    starts, scheme = [[0.3], [0.4]], ji.MoreauJean()
    rows = ji.ensemble(FORCED, starts, [0.0], t1=6 * np.pi, steps=300, save=50, key=1, scheme=scheme)
    for found in (
        analysis.stroboscopic(FORCED, starts, [0.0], scheme=scheme, **STROBED),
        analysis.impact_section(FORCED, starts, [0.0], scheme=scheme, **STROBED).section,
    ):
        np.testing.assert_allclose(found.q, rows.q[:, 3:], atol=1e-12)
        np.testing.assert_allclose(found.v, rows.v[:, 3:], atol=1e-12)


@pytest.mark.slow
def test_exponents_add_up_to_damping_and_impacts():
    """Of n impacts in the time T the sum is -.2 + 2 n log(e)/T, whatever the noise, to the second order of h = .06;
    one impact is .006."""
    intervals, e = 40, 0.7
    given = {"key": 1, "scheme": ji.EventCorrected()}
    found = analysis.lyapunov(FORCED, [0.3], [0.0], interval=np.pi, steps=50, intervals=intervals, **given)
    run = ji.solve(
        FORCED, [0.3], [0.0], t1=intervals * np.pi, steps=50 * intervals, save=ji.Events(impacts=99), **given
    )
    n = int(run.events.count)
    assert 0 < n < 99
    assert found.exponents.sum() == pytest.approx(-0.2 + 2 * n * np.log(e) / (intervals * np.pi), abs=3e-4)


def solved(scheme):
    return ji.solve(FORCED, [0.3], [0.0], t1=6.0, steps=60, key=1, scheme=scheme, save="all")


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda **more: analysis.periodic_orbit(FORCED, [0.3], [0.0], period=np.pi, **more), "no motion repeats"),
        (
            lambda **more: analysis.continue_orbit(
                FORCED, [0.3], [0.0], parameter="e", bounds=(0, 1), period=np.pi, **more
            ),
            "no motion repeats",
        ),
        (
            lambda **more: analysis.continue_curve(
                FORCED, [0.3], [0.0], kind="fold", parameters=("e", "f"), bounds=((0, 1), (0, 1)), period=np.pi, **more
            ),
            "no motion repeats",
        ),
        (
            lambda **more: analysis.basins(FORCED, x=[0.0], y=[0.0], period=np.pi, cycles=4, skip=2, **more),
            "no motion repeats",
        ),
        (
            lambda **more: analysis.two_parameter_map(
                FORCED, [0.3], [0.0], parameters=("e", "f"), values=([0.5], [0.5]), period=np.pi, cycles=4, **more
            ),
            "no motion repeats",
        ),
        (lambda **more: analysis.convergence(FORCED, [0.3], [0.0], t1=1.0, **more), "compare means over many keys"),
        (lambda **more: analysis.predict(FORCED, [0.3, 0.0], np.eye(2), 1.0, **more), "predict follows one motion"),
        (lambda **more: analysis.shoot(FORCED, [0.3], [0.0], [[1.0]], t1=1.0, **more), "shoot finds controls of one"),
        (lambda **_: analysis.balance(FORCED, solved(ji.MoreauJean())), "balance does not know what white forces add"),
        (lambda **more: solved(ji.EventCorrected()).at(0.55, FORCED, **more), "numbers of another step"),
        (lambda **_: analysis.impacts(FORCED, solved(ji.EventDriven())), "numbers of another step"),
        (
            lambda **_: jax.jvp(lambda t: solved(ji.EventCorrected()).at(t, FORCED, key=1).q, (0.55,), (1.0,)),
            "numbers of another step",
        ),
    ],
)
def test_analyses_without_a_meaning_under_noise_refuse(call, word):
    with pytest.raises(ValueError, match=f"noise: .*{word}"):
        call(key=1)
