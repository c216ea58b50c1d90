"""Values: what theory and independent prototypes lead one to expect of the schemes, number by number."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import catalogue
from support.breadth import slow
from support.methods import SCHEMES

TAYLOR, EULER, FULL = (ji.PaoliSchatzman(start=start) for start in ("taylor", "euler", "full"))


def run(name, case=None, *, steps, scheme=None, **options):
    entry = catalogue.get(name)
    case = entry.case(case)
    options = {"t1": case.t1, "e": case.restitution, "args": case.args, **options}
    return case, ji.solve(entry.problem, case.q0, case.v0, steps=steps, scheme=scheme, **options).raise_if_failed()


def position_error(case, solution):
    return float(np.max(np.abs(np.asarray(solution.q) - case.exact(np.asarray(solution.t))[0])))


# Sup-norm errors that independent prototypes of the same schemes showed at these numbers of steps; half as much again
# covers the phase of the impacts within their steps.
OBSERVED = [
    ("bouncing-ball", "e=1/2", "paoli-schatzman", 50_000, 1.4e-4),
    ("bouncing-ball", "e=0", "maury", 50_000, 7.1e-5),
    ("resonant-oscillator", "e=1/2", "paoli-schatzman", 200_000, 3.8e-4),
    ("resonant-oscillator", "e=1", "paoli-schatzman", 200_000, 4.8e-3),
    ("skew-balls", "d=40", "paoli-schatzman", 12_500, 1.0e-3),
    ("polar-particle", "e=0.9", "paoli-schatzman", 18_750, 2.9e-3),
    ("polar-particle", "e=0", "maury", 18_750, 3.8e-3),
    ("cylinder", "e=0", "paoli-schatzman", 30_000, 1.4e-4),
    ("cylinder", "e=0", "paoli-schatzman-explicit", 30_000, 6.7e-9),
    ("cylinder", "e=0", "maury", 30_000, 1.5e-8),
    ("bowl", "e=0", "paoli-schatzman", 3_200, 1.4e-2),
    ("bowl", "e=0", "paoli-schatzman-explicit", 3_200, 8e-6),
    ("elastic-bar", "n=20", "paoli-schatzman", 20_000, 1.5e-5),
]


QUICK = ("bouncing-ball",)  # `test_convergence` has the orders of the others


@pytest.mark.parametrize(
    ("name", "case", "label", "steps", "error"),
    [pytest.param(*row, marks=() if row[0] in QUICK else pytest.mark.slow) for row in OBSERVED],
    ids=lambda x: str(x),
)
def test_observed_errors(name, case, label, steps, error):
    case, solution = run(name, case, steps=steps, scheme=SCHEMES[label].scheme)
    assert position_error(case, solution) <= 1.5 * error


def test_summed_form_keeps_round_off():
    """e = 0 is exact at the nodes: 1e-13 is left at h = 1e-4, where the three-term recurrence loses 3e-9."""
    case, solution = run("bouncing-ball", "e=0", steps=50_000)
    assert position_error(case, solution) < 1e-12


@pytest.mark.parametrize(
    ("scheme", "h", "error"),
    [
        # 4e-5 from prototypes, where the three-term recurrence loses everything
        (ji.PaoliSchatzman(), 1e-4, 1e-3),
        # h times the impact speed, plus rounding
        *(slow(x, 1e-3, 5e-3) for x in (ji.Maury(), ji.MoreauJean(), ji.PaoliSchatzman(force="centred"))),
    ],
)
def test_values_agree_in_float32(scheme, h, error):
    entry, case = catalogue.get("bouncing-ball"), catalogue.get("bouncing-ball").case("e=0")
    start = np.array([1.0], np.float32), np.array([0.0], np.float32)
    found = ji.solve(entry.problem, *start, t1=5.0, h=h, e=0.0, args=case.args, scheme=scheme).raise_if_failed()
    assert found.q.dtype == jnp.float32
    assert position_error(case, found) < error


@pytest.mark.parametrize("e", [0.1, 0.5, 0.8, 1.0])
def test_isolated_impact_takes_two_steps_and_delays_by_two(e):
    """Force-free flat wall: (U^{n-1}, U^n) maps to -e (U^{n-1}, U^n) in two active steps:
    late by 2h for every e > 0."""
    wall = ji.Problem(lambda t, q, v, args: jnp.zeros(1), lambda t, q, args: q, restitution=e)
    h = 0.01
    solution = ji.solve(wall, [0.137], [-1.0], t1=0.5, h=h).raise_if_failed()
    q = np.asarray(solution.q)[:, 0]
    t = np.asarray(solution.t)
    active = np.flatnonzero(np.diff(np.asarray(solution.impulse)[:, 0]) > 1e-12)
    assert len(active) == 2
    n = active[0]  # steps n -> n+1 and n+1 -> n+2 are active
    np.testing.assert_allclose(q[n + 1 : n + 3], -e * q[n - 1 : n + 1], atol=1e-14)
    late = e * (t - 0.137 - 2 * h)
    np.testing.assert_allclose(q[n + 3 :], late[n + 3 :], atol=1e-13)


@pytest.mark.parametrize("e", [0.0, 0.3, 0.7, 1.0])
def test_penetration_bound(e):
    """U leaves the set by at most 2e/(1+e) h |v|, attained over the phases; Z never does beyond the tolerance."""
    wall = ji.Problem(lambda t, q, v, args: jnp.zeros(1), lambda t, q, args: q, restitution=e)
    h, speed = 0.01, 1.3
    starts = 0.3 + np.linspace(0, speed * h, 101)[:, None]
    found = ji.ensemble(wall, starts, [-speed], t1=0.6, h=h, save="all")
    bound = 2 * e / (1 + e) * h * speed
    assert np.max(found.penetration) <= bound + 1e-14
    assert np.max(found.penetration) >= 0.98 * bound
    assert np.min(found.z) >= -1e-12 * h


def test_start_matters_at_grazing():
    """Exact grazing, e = 1, h = 1e-3: the Taylor start is worth three to five digits."""
    errors = [position_error(*run("grazing-oscillator", "e=1", steps=10_000, scheme=s)) for s in (TAYLOR, EULER, FULL)]
    assert errors[0] <= 1.5 * 4e-7
    assert errors[1] == pytest.approx(4e-4, rel=0.5)
    assert errors[2] == pytest.approx(7e-2, rel=0.5)


def test_energy_of_flat_billiard_is_exact():
    _, solution = run("hypercube", "d=3", steps=10_007)
    energy = 0.5 * np.sum(np.asarray(solution.v) ** 2, axis=1)
    # during an impact's two steps the chord is no velocity; before and after it is
    settled = np.all(np.diff(np.asarray(solution.impulse), axis=0, append=np.inf) < 1e-12, axis=1)
    settled &= np.all(np.diff(np.asarray(solution.impulse), axis=0, prepend=np.inf) < 1e-12, axis=1)
    assert settled.sum() > 5000
    np.testing.assert_allclose(energy[settled], energy[0], rtol=1e-12)


def test_magnetic_drift():
    """e = 1 over T = 100 at h = 1e-2: the backward velocity gains exp(hT/2) - 1 in speed over time in flight and
    contact (36 % in prototypes), the centred velocity loses 0.07 %."""
    speed = {}
    for force in ("explicit", "centred"):
        _, solution = run("magnetic-skipping", "e=1", steps=10_000, t1=100.0, scheme=ji.PaoliSchatzman(force=force))
        speeds = np.linalg.norm(np.asarray(solution.v)[-200:], axis=1)
        speed[force] = np.max(speeds) / np.linalg.norm(solution.v[0])
    assert speed["explicit"] - 1 == pytest.approx(0.36, abs=0.08)
    assert abs(speed["centred"] - 1) < 0.01


def test_richardson_gives_order_two():
    """Where the wall force vanishes at impacts, 2 U_{h/2} - U_h is second order away from them (B03)."""
    errors, steps = [], (1009, 2003, 4001)
    times = np.array([1.0, 7.0, 20.0])  # pi k - 1 are the impact times
    for n in steps:
        case, coarse = run("resonant-oscillator", "e=1/2", steps=n, save=times)
        _, fine = run("resonant-oscillator", "e=1/2", steps=2 * n, save=times)
        errors.append(np.max(np.abs(2 * fine.q - coarse.q - case.exact(times)[0])))
    order = np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert -order > 1.7


def test_obtuse_corner_has_several_limits():
    """B27: Moreau's law gives v+ = 0; Maury leaves with (-6/25, 3/25), the Euler start with (6/25, 3/25)."""
    for scheme, limit in ((TAYLOR, (0.0, 0.0)), (ji.Maury(), (-6 / 25, 3 / 25)), (EULER, (6 / 25, 3 / 25))):
        _, solution = run("obtuse-corner", steps=20_011, scheme=scheme, t1=1.002)
        np.testing.assert_allclose(solution.v[-1], limit, atol=0.01)


def test_two_motions_from_the_same_data():
    """B26: started at rest the scheme rests; a start perturbed by O(h) finds the bouncing motion (both are exact)."""
    entry = catalogue.get("non-uniqueness")
    rest, bouncing = entry.case("rest"), entry.case("bouncing")
    # with no tolerance nothing is left unprojected: pulses smaller than it would be perturbations
    strict = ji.ActiveSet(tolerance=0.0)
    run_with = lambda start: ji.solve(
        entry.problem, rest.q0, rest.v0, t1=1.2, steps=5003, e=0.5, args=rest.args, projection=strict,
        scheme=ji.PaoliSchatzman(start=start),
    )  # fmt: skip
    perturbed = run_with(lambda h, q0, v0, args: h * jnp.ones_like(q0))
    exact = bouncing.exact(np.asarray(perturbed.t))[0]
    assert np.max(np.abs(perturbed.q - exact)) < 5e-3
    assert np.max(np.abs(run_with("euler").q)) < 1e-6


def test_cradle_touching_follows_moreau():
    """Three touching balls at e = 1: Moreau's law gives (-1/3, 2/3, 2/3)."""
    balls = ji.Problem(lambda t, q, v, args: jnp.zeros(3), lambda t, q, args: jnp.diff(q), restitution=1.0)
    solution = ji.solve(balls, [-0.5, 0.0, 0.0], [1.0, 0.0, 0.0], t1=1.0, steps=10_007)
    np.testing.assert_allclose(solution.v[-1], [-1 / 3, 2 / 3, 2 / 3], atol=1e-10)
