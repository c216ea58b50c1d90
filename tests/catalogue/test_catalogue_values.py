"""Exact motions of the catalogue: against tabulated values, and against the equation and the law they must obey.

`catalogue_values.json` was computed independently of the catalogue, mostly in 30 to 40 digits, rounded to 16 or 17.
The tests of the second half use no table: they read force, mass and constraints off the entry itself.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaximpact import catalogue

TABLES = {table["id"]: table for table in json.loads((Path(__file__).parent / "catalogue_values.json").read_text())}
LONG = {("rattleback", "reverses")}  # motions that take seconds to compute
CASES = [
    pytest.param(entry, name, id=f"{entry.name}-{name}", marks=[pytest.mark.slow] if (entry.name, name) in LONG else [])
    for entry in catalogue.entries()
    for name in entry.cases
]
every_case = pytest.mark.parametrize(("entry", "name"), CASES)
TABLE_OF = {"B28": "B27"}  # entries whose table is a variant of another problem's
SAME_DATA = {  # start of "params" where variants, or cases, share restitution, initial data and duration
    ("billiard", "disk"): "a=b=1",
    ("billiard", "ellipse"): "a=2,b=1",
    ("falling-block", "rod"): "H^2=0",
    ("falling-block", "orthogonal"): "H^2=2",
    ("falling-block", "tall"): "H^2=6",
    ("non-uniqueness", "rest"): "q=0",  # no table: the only one is of the bouncing motion
}
UNTABULATED = {  # motions with no table: only the second half of this file checks them
    ("non-uniqueness", "rest"),
    ("groove", "e=0"),
    ("hypercube", "d=3"),
    ("cradle", "touching"),
    *((entry.name, name) for entry in catalogue.entries() if entry.id[0] in "SJFR" for name in entry.cases),
}

# those that a table confirms, and those of many coordinates, in the slow suite
FEW = [
    p
    for p in CASES
    for entry, name in [p.values]
    if (entry.name, name) in UNTABULATED - LONG and len(entry.cases[name].q0) <= 30
]
every_law = pytest.mark.parametrize(
    ("entry", "name"),
    [pytest.param(*p.values, id=p.id, marks=() if p in FEW else pytest.mark.slow) for p in CASES],
)

# Both sides are good to a few rounding units (2e-16) times the conditioning of the impact times: times up to 60,
# velocities up to 20 and up to seven impacts in a row make 1e-13 at worst, against 16 digits printed.
VALUE = 1e-11
IMPULSE = 1e-9
IMPACT_TIME = 1e-10


def same_start(variant: dict, case) -> bool:
    """Does the variant start as the case does? Long data are tabulated by size only: d, N, or n for n + 1 nodes."""
    if isinstance(variant["q0"], str):  # "see statement"
        letter, size = re.match(r"(\w)=(\d+)", variant["params"]).groups()
        return len(case.q0) == int(size) + (letter == "n")
    if len(variant["q0"]) != len(case.q0):
        return False
    return all(np.allclose(variant[key], getattr(case, key), rtol=0.0, atol=1e-12) for key in ("q0", "v0"))


def tabulated(entry, name) -> dict | None:
    """The variant that tabulates a case, if there is one and only one."""
    case = entry.cases[name]
    found = [
        variant
        for variant in TABLES.get(TABLE_OF.get(entry.id, entry.id), {"variants": ()})["variants"]
        if same_start(variant, case)
        and case.t1 == variant["T"]
        and (variant["params"].startswith("any e") or variant["e"] == case.restitution)
        and variant["params"].startswith(SAME_DATA.get((entry.name, name), ""))
    ]
    return found[0] if len(found) == 1 else None


def cases_with(key: str):
    """Parametrisation over the cases whose table has that key."""
    return pytest.mark.parametrize(("entry", "name"), [p for p in CASES if (tabulated(*p.values) or {}).get(key)])


def impact_times(events) -> tuple[list[float], list[float], bool]:
    """Tabulated impacts, other events (ends of contact, breaks of slope), and whether each constraint has its list."""
    impacts, others, nested = [], [], False
    for event in events:
        if isinstance(event[0], list):
            impacts += [float(time) for time, *_ in event]
            nested = True
        elif event[0] == "imp":
            impacts.append(float(event[1]))
        elif event[0] == "contact":
            others.append(float(event[2]))
        elif event[1] in ("brk", "release"):
            others.append(float(event[0]))
        else:
            impacts.append(float(event[0]))
    return impacts, others, nested


def test_cases_and_tables_match():
    """Every case has its table but the untabulated ones, and every table its case."""
    tables = {(p.values[0].name, p.values[1]): tabulated(*p.values) for p in CASES}
    assert {case for case, variant in tables.items() if variant is None} == UNTABULATED
    variants = [variant for table in TABLES.values() for variant in table["variants"]]
    assert [variant["params"] for variant in variants if variant not in tables.values()] == []


@cases_with("values")
def test_motion_equals_table(entry, name):
    exact = entry.cases[name].exact
    for row in tabulated(entry, name)["values"]:
        q, v = (x[0, row["comps"]] for x in exact(np.array([float(row["t"])])))
        np.testing.assert_allclose(q, np.array(row["q"], float), rtol=0.0, atol=VALUE, err_msg=f"q({row['t']})")
        np.testing.assert_allclose(v, np.array(row["v"], float), rtol=0.0, atol=VALUE, err_msg=f"v({row['t']})")


@cases_with("total_impulse_multipliers")
def test_impulse_equals_table(entry, name):
    impulse = np.array(tabulated(entry, name)["total_impulse_multipliers"], float)
    np.testing.assert_allclose(entry.cases[name].impulse[: len(impulse)], impulse, rtol=0.0, atol=IMPULSE)


@cases_with("events_first")
def test_impacts_equal_table(entry, name):
    """Each tabulated impact is one of the case, and the case has no other up to the last of them."""
    expected, others, nested = impact_times(tabulated(entry, name)["events_first"])
    times = entry.cases[name].impacts
    for time in expected:
        assert np.min(np.abs(times - time)) < IMPACT_TIME, f"no impact at {time}"
    if not nested:
        for time in times[times <= max(expected)]:
            assert np.min(np.abs(np.array(expected + others) - time)) < IMPACT_TIME, f"untabulated impact at {time}"


# Properties that need no table.


def mass_matrix(problem, q, args):
    mass = problem.mass(q, args) if callable(problem.mass) else problem.mass
    mass = jnp.asarray(1.0 if mass is None else mass, q.dtype)
    return mass if mass.ndim == 2 else jnp.diag(jnp.broadcast_to(mass, q.shape))


@cache
def compiled(problem):
    """Gaps; and mass, force, gradients of gaps, joints and slips, time derivatives of the gaps, slips;
    each over times (k,)."""

    def gaps(t, q, args):
        return problem.constraints(t, q, args)

    def dynamics(t, q, v, args):
        rate, gradient = jax.jacfwd(gaps, argnums=(0, 1))(t, q, args)
        rods = problem.joints or (lambda t, q, args: q[:0])
        stated = problem.slip or (lambda t, q, v, args: v[:0])
        slip = lambda *at: (found := stated(*at)).reshape(len(found), -1 if len(found) else 1)
        return (
            mass_matrix(problem, q, args),
            problem.force(t, q, v, args),
            gradient,
            jax.jacfwd(rods, 1)(t, q, args),
            jax.jacfwd(slip, 2)(t, q, v, args),
            rate,
            slip(t, q, v, args),
        )

    return jax.jit(jax.vmap(gaps, (0, 0, None))), jax.jit(jax.vmap(dynamics, (0, 0, 0, None)))


def evaluated(entry, case, t, q, v):
    """(gaps, mass, force, gradients, gradients of joints, of slips, rates, slips) as numpy arrays."""
    gaps, dynamics = compiled(entry.problem)
    # of one number of times there is one program, which takes longer to compile than to run where coordinates are few:
    # the last time is repeated
    size = next(size for size in (8, 200, 1000) if size >= len(t) and (size == 1000 or q.shape[1] > 30))
    same = lambda x: np.concatenate([x, np.repeat(x[-1:], size - len(x), axis=0)])
    found = (gaps(same(t), same(q), case.args), *dynamics(same(t), same(q), same(v), case.args))
    return tuple(np.asarray(x)[: len(t)] for x in found)


def reaction(gradient, joints, slips, resultant):
    """Multipliers of contacts and of their slips whose gradients sum to the resultant with those of joints,
    and what all leave of it."""
    rows = np.concatenate([gradient, joints, slips.reshape(-1, gradient.shape[1])])
    multipliers, *_ = np.linalg.lstsq(rows.T, resultant, rcond=None)
    normal, _, along = np.split(multipliers, [len(gradient), len(gradient) + len(joints)])
    return normal, along, np.max(np.abs(resultant - rows.T @ multipliers))


def coulomb(case, normal, along, slip):
    """How far friction (n,) is from Coulomb's law for normal forces (n / k,) and slips (n / k, k): in sum, as two feet
    that stick share theirs in any way."""
    if not len(along):
        return 0.0
    pushed, along = np.sum(normal), along.reshape(slip.shape)
    sizes = np.linalg.norm(slip, axis=1)
    if np.all(sizes < STILL):
        bound = case.args.get("static_friction", case.args["friction"])
        return max(0.0, np.sum(np.linalg.norm(along, axis=1)) - bound * pushed)
    fastest = np.argmax(sizes)
    return np.linalg.norm(np.sum(along, axis=0) + case.args["friction"] * pushed * slip[fastest] / sizes[fastest])


def derivative(x, t, width):
    """Central difference of x (extrapolated from two widths), and the difference of the two as a bound of its error."""
    wide, narrow = ((x(t + s) - x(t - s)) / (2.0 * s) for s in (width, 0.5 * width))
    return narrow + (narrow - wide) / 3.0, np.max(np.abs(narrow - wide), axis=1)


CONTACT = 1e-8  # a gap below is a contact
WIDTH = 1e-5  # of the differences: truncation 1e-11 x''' and rounding 1e-16 / 1e-5
STILL = 1e-9  # a slip below is none
ROUNDING = 1e-8  # of a difference, relative to the range of what is differenced: a thousand units over the width


def sampled(case, count: int, margin: float) -> np.ndarray:
    """Random times, none within the margin of an end or of an impact."""
    t = np.random.default_rng(20).uniform(margin, case.t1 - margin, count)
    distance = np.abs(t[:, None] - np.append(case.impacts, 0.0)).min(axis=1)
    return np.sort(t[distance > margin])


@every_case
def test_starts_at_its_initial_data(entry, name):
    case = entry.cases[name]
    q, v = case.exact(np.zeros(1))
    assert q.dtype == v.dtype == np.float64 and q.shape == v.shape == (1, len(case.q0))
    np.testing.assert_allclose(q[0], case.q0, rtol=0.0, atol=1e-13)
    np.testing.assert_allclose(v[0], case.v0, rtol=0.0, atol=1e-13)


@every_case
def test_is_admissible(entry, name):
    case = entry.cases[name]
    t = np.random.default_rng(10).uniform(0.0, case.t1, 1000)
    gaps, _ = compiled(entry.problem)
    assert np.min(gaps(t, case.exact(t)[0], case.args)) >= -1e-10


@every_law
def test_obeys_its_equation_of_motion(entry, name):
    """dq/dt = v; M dv/dt - force is a nonnegative combination of the gradients of the contacts, 0 without contact."""
    case = entry.cases[name]
    t = sampled(case, 200, 2.0 * WIDTH)
    q, v = case.exact(t)
    rate, rate_error = derivative(lambda s: case.exact(s)[0], t, WIDTH)
    acceleration, error = derivative(lambda s: case.exact(s)[1], t, WIDTH)
    speed, size = 1.0 + np.max(np.abs(v)), 1.0 + np.max(np.abs(acceleration))
    # differences are meaningful where the two widths agree; the others (near a change of contact) must be rare
    smooth = (rate_error <= 1e-4 * speed) & (error <= 1e-4 * size)
    assert np.mean(smooth) > 0.9 and len(t) > 100
    left = np.max(np.abs(rate - v), axis=1) - rate_error
    assert np.max(left[smooth]) <= ROUNDING * (1.0 + np.max(np.abs(q)))

    gaps, mass, force, gradient, joints, tangents, _, slips = evaluated(entry, case, t, q, v)
    inertia = np.max(np.sum(np.abs(mass), axis=2))
    for n in np.flatnonzero(smooth):
        at = np.flatnonzero(gaps[n] <= CONTACT)
        rubs = at[: len(slips[n])]
        resultant = mass[n] @ acceleration[n] - force[n]
        multipliers, along, left = reaction(gradient[n][at], joints[n], tangents[n][rubs], resultant)
        tolerance = inertia * (error[n] + ROUNDING * speed)
        assert left <= tolerance, f"t = {t[n]}: {left}"
        tolerance /= np.min(np.linalg.norm(gradient[n], axis=1))
        assert np.min(multipliers, initial=0.0) >= -tolerance
        assert coulomb(case, multipliers, along, slips[n][rubs]) <= 2 * tolerance, f"friction at t = {t[n]}"


def percussions(entry, case):
    """At each impact 1e-6 or more apart from the others: (time, active (m,), impulses of the active, what they leave of
    the jump of momentum, relative normal velocities of Proj(v-) for the active, tolerance,
    how far friction is from its law).

    v- and v+ are extrapolated from three times on either side; if the law holds, Proj(v-) is (v+ + e v-)/(1 + e).
    """
    times = case.impacts[np.diff(case.impacts, prepend=0.0) > 1e-12]  # simultaneous to rounding: one impact
    gap = np.diff(times, prepend=0.0, append=np.inf)
    times = times[(gap[:-1] > 1e-6) & (gap[1:] > 1e-6)]
    if not len(times):
        return
    step, e = 1e-8, case.restitution
    before, after = ([case.exact(times + sign * k * step)[1] for k in (1, 2, 3)] for sign in (-1.0, 1.0))
    arrival, departure = (2.0 * x[0] - x[1] for x in (before, after))
    bend = sum(np.max(np.abs(x[0] - 2.0 * x[1] + x[2]), axis=1) for x in (before, after))
    at = case.exact(times)[0]
    gaps, mass, _, gradient, joints, tangents, rate, _ = evaluated(entry, case, times, at, arrival)
    slips = evaluated(entry, case, times, at, departure)[-1]
    projected = (departure + e * arrival) / (1.0 + e)
    for n, time in enumerate(times):
        active = gaps[n] <= 1e-12  # tighter than CONTACT, under which a ball may still bounce near its accumulation
        jump = mass[n] @ (departure[n] - arrival[n])
        rubs = np.flatnonzero(active)[: len(slips[n])]
        impulses, along, left = reaction(gradient[n][active], joints[n], tangents[n][rubs], jump)
        normal = rate[n][active] + gradient[n][active] @ projected[n]
        scale = np.max(np.sum(np.abs(mass[n]), axis=1)) * max(1.0, np.max(np.abs(gradient[n])))
        tolerance = scale * (bend[n] + 1e-9 * (1.0 + np.max(np.abs(arrival[n]))))
        still = np.where(np.abs(slips[n][rubs]) <= tolerance, 0.0, slips[n][rubs])
        yield time, active, impulses, left, normal, tolerance, coulomb(case, impulses, along, still)


@every_law
def test_impacts_obey_the_law(entry, name):
    """v+ = -e v- + (1 + e) Proj(v-), Proj being the projection on admissible velocities in the kinetic metric: what it
    adds is M^-1 times nonnegative impulses along active gradients, each complementary to its normal velocity; with
    friction the law is that of each normal velocity, and Coulomb's."""
    for time, active, impulses, left, normal, tolerance, friction in percussions(entry, entry.cases[name]):
        assert np.any(active) and np.max(impulses) > 0.0, f"nothing is hit at {time}"
        assert left <= tolerance, f"the impulse at {time} is not along active gradients"
        assert np.min(impulses) >= -tolerance and np.min(normal) >= -tolerance, f"inadmissible at {time}"
        assert np.max(np.minimum(impulses, np.abs(normal))) <= tolerance, f"not complementary at {time}"
        assert friction <= 2 * tolerance, f"not Coulomb's friction at {time}"


@every_law
def test_impulse_is_that_of_the_motion(entry, name):
    """The total impulse is the sum over impacts plus the integral of the contact reactions, by the midpoint rule."""
    case, count = entry.cases[name], 1000
    total = np.zeros(len(case.impulse))
    for _, active, impulses, *_ in percussions(entry, case):
        total[active] += impulses
    t = (np.arange(count) + 0.5) * case.t1 / count
    q, v = case.exact(t)
    touching = np.min(np.asarray(compiled(entry.problem)[0](t, q, case.args)), axis=1) <= CONTACT
    largest = 0.0
    if np.any(touching):
        t, q, v = t[touching], q[touching], v[touching]
        acceleration, error = derivative(lambda s: case.exact(s)[1], t, WIDTH)
        gaps, mass, force, gradient, joints, tangents, _, slips = evaluated(entry, case, t, q, v)
        size = np.maximum(np.max(np.abs(acceleration), axis=1), np.max(np.abs(force)))
        for n in np.flatnonzero(error <= 1e-4 * (1.0 + size)):
            active = gaps[n] <= CONTACT
            rubs = np.flatnonzero(active)[: len(slips[n])]
            resultant = mass[n] @ acceleration[n] - force[n]
            multipliers, *_ = reaction(gradient[n][active], joints[n], tangents[n][rubs], resultant)
            total[active] += multipliers * case.t1 / count
            largest = max(largest, np.max(multipliers))
    # each of at most four changes of contact is misplaced by half a panel; 1e-4 for impacts too close to be told apart
    tolerance = 2.0 * largest * case.t1 / count + 1e-4
    np.testing.assert_allclose(case.impulse, total, rtol=0.0, atol=tolerance)


# Looking problems up.


def test_entries_are_sound():
    entries = catalogue.entries()
    assert len({entry.id for entry in entries}) == len(entries) == len(set(catalogue.names()))
    labels = {"paoli-schatzman", "paoli-schatzman-explicit", "maury", "maury-half-kick"}
    for entry in entries:
        for case in entry.cases.values():
            assert np.all(np.diff(case.impacts, prepend=0.0) >= 0.0) and np.all(case.impacts <= case.t1)
            assert set(case.orders) <= labels
            assert case.restitution == 0.0 or not {"maury", "maury-half-kick"} & set(case.orders)


def test_get_finds_by_name_and_by_id():
    for entry in catalogue.entries():
        assert catalogue.get(entry.name) is catalogue.get(entry.id) is catalogue.get(entry.id.lower()) is entry


def test_get_suggests_the_closest_name():
    with pytest.raises(KeyError, match="did you mean 'bouncing-ball'"):
        catalogue.get("bouncingball")
    with pytest.raises(KeyError, match="there are bouncing-ball, free-oscillator"):
        catalogue.get("zzz")
