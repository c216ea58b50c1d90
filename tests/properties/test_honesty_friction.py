"""A clean status means that the result is right: random systems with Coulomb friction against
event-located motions that share no code.

How near is right is told as in `test_honesty`. Contacts that one body rests on in more ways than it has, and motions
beyond the bound of Painleve that have several continuations or none, have no right motion.
"""

from __future__ import annotations

import collections
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import jaximpact as ji
from support import random_bodies
from support.honesty import DELTA, STEPS, T1, Exact, H, batch, located, moved, shakes, tolerances
from support.random_friction import IN_SPACE, PROBLEM, SCALED, Motion, draw, draw_in_space
from support.random_systems import Excluded

SCHEME = ji.MoreauJean()
# fewer trials a step than by default: motions that exhaust these mostly exhaust any number, told the same after minutes
BY_TOLERANCE = ji.EventDriven(1e-10, 1e-10, trials=4000)
CORRECTED = ji.EventCorrected(trials=4000)
SCHEMES = {"moreau-jean": SCHEME, "maury": ji.Maury(), "event-corrected": CORRECTED}
ALL = SCHEMES | {"by tolerance": BY_TOLERANCE}
INSIDE = 0.98  # of Painleve's bound: steps are O(h) from the motion
JAM = int(ji.Status.FRICTION_JAMMED)


@cache
def exact(seed: int, d: int, walls: int) -> Exact | str:
    """The exact motion of a seed; or why it has none, or none within O(h)."""
    return located(draw(seed, d, walls), Motion)


def covered(name: str, systems) -> list:
    """Those of the systems, each with its seed, whose restitution the scheme covers."""
    return [x for x in systems if not (name == "maury" and x.e > 0)]


def refined_errors(problem: Any, name: str, d: int, walls: int, seed: int, motion: Motion) -> np.ndarray:
    """Errors of position and velocity with 16 times the steps: what is merely far off at a coarse step is
    an eighth at most, or told."""
    data = batch([draw(seed, d, walls)])
    data["e"] = data["e"][:, None]
    run = ji.ensemble(problem, **data, h=H / 16, scheme=SCHEMES[name])
    errors = np.abs([run.q[0, -1], run.v[0, -1]] - motion.x.reshape(2, d)).max(axis=1)
    return 0 * errors if run.status[0] else errors


def check_values(d: int, walls: int, seeds, name: str = "moreau-jean", problem: Any = PROBLEM) -> collections.Counter:
    counts, wrong, ratios = collections.Counter(), [], []
    systems = covered(name, [draw(seed, d, walls) for seed in seeds])
    seeds, data = [x.seed for x in systems], batch(systems)
    data["e"] = data["e"][:, None]
    runs = [ji.ensemble(problem, **data, h=T1 / steps, scheme=SCHEMES[name]) for steps in STEPS]
    order = 2 if name == "event-corrected" else 1
    for lane, seed in enumerate(seeds):
        found, status = exact(seed, d, walls), int(runs[1].status[lane])
        if isinstance(found, str):
            counts[f"reference: {found}"] += 1
            continue
        motion = found.motion
        counts.update(kind for *_, kind in motion.passages)
        counts["impacts"] += len(motion.impacts)
        if status & JAM and motion.jam < INSIDE:
            wrong.append(f"seed={seed}: FRICTION_JAMMED at {motion.jam:.3f} of Painleve's bound")
        if status:
            counts[str(ji.Status(status))] += 1
            continue
        counts["clean"] += 1
        ends = np.array([[run.q[lane, -1], run.v[lane, -1]] for run in runs])
        # and twice Richardson's estimate of the error, as events lie anywhere within their steps
        estimate = np.max(np.abs(ends[0] - ends[1]), axis=-1) / ((STEPS[1] / STEPS[0]) ** order - 1)
        allowed = tolerances(name, found) + 2 * estimate
        errors = np.max(np.abs(ends - motion.x.reshape(2, d)), axis=-1)
        last = motion.impacts[-1] if motion.impacts else None
        late = last and last.t > T1 - 4 * H - allowed[0] / last.speed
        far = not errors[1, 0] <= allowed[0] or not (errors[1, 1] <= allowed[1] or late)
        if far and np.any(refined_errors(problem, name, d, walls, seed, motion) > 0.25 * allowed):
            wrong.append(
                f"{name} d={d} walls={walls} seed={seed} e={motion.e:.3g}: errors of q {errors[:, 0]}, of v "
                f"{errors[:, 1]}, allowed {allowed}; "
                f"{len(motion.impacts)} impacts, {len(motion.releases)} releases, {[p[2] for p in motion.passages]}, "
                f"jam {motion.jam:.2f}"
            )
        if errors[1, 0] > 1e-10:
            ratios.append(errors[1, 0] / errors[0, 0])
    found_order = -np.log(np.median(ratios)) / np.log(STEPS[1] / STEPS[0])
    print(
        f"\n{name}, d={d}, up to {walls} walls: {len(seeds)} systems, {dict(counts)}, disagreements {len(wrong)}, "
        f"order {found_order:.2f}"
    )
    assert not wrong, "\n".join(wrong)
    return counts


def test_clean_is_right():
    assert check_values(2, 2, range(4))["clean"] > 2


@pytest.mark.slow
@pytest.mark.parametrize(("d", "walls", "count"), [(2, 1, 400), (2, 3, 600), (3, 2, 400), (3, 4, 200)])
def test_clean_is_right_of_many(d, walls, count):
    assert check_values(d, walls, range(count))["clean"] > count / 2


@pytest.mark.slow
@pytest.mark.parametrize(("d", "walls"), [(2, 2), (3, 3)])
def test_clean_is_right_to_second_order(d, walls):
    assert check_values(d, walls, range(100), "event-corrected")["clean"] > 50


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
def test_clean_is_right_whatever_the_scale_of_gaps(name):
    assert check_values(2, 2, range(150), name, SCALED)["clean"] > 40


def check_by_tolerance(d: int, walls: int, count: int, problem: Any = PROBLEM) -> None:
    """`EventDriven`: what is clean is right to a millionth, which is what the located motions leave out of accumulating
    impacts; most to a hundred tolerances."""
    systems = [draw(seed, d, walls) for seed in range(count)]
    data = batch(systems)
    data["e"] = data["e"][:, None]
    runs = ji.ensemble(problem, **data, scheme=BY_TOLERANCE)
    errors, remarks = {}, collections.Counter()
    for seed, (system, status) in enumerate(zip(systems, runs.status, strict=True)):
        try:
            motion = Motion(system, T1)
        except Excluded as reason:
            remarks[str(reason)] += 1
            continue
        if status:
            remarks[str(ji.Status(int(status)))] += 1
            assert not status & JAM or motion.jam >= INSIDE, seed
        else:
            ends = np.concatenate([runs.q[seed, -1], runs.v[seed, -1]])
            errors[seed] = np.max(np.abs(ends - motion.x))
    found = np.array(list(errors.values()))
    print(
        f"\nby tolerance, d={d}, up to {walls} walls: {count} systems, {dict(remarks)}, median error "
        f"{np.median(found):.1e}"
    )
    assert len(found) > 0.75 * count
    assert np.max(found) < 1e-6, {seed: error for seed, error in errors.items() if error >= 1e-6}
    assert np.quantile(found, 0.9) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize(("d", "walls", "count"), [(2, 1, 200), (2, 2, 200), (3, 3, 200), (3, 4, 150), (2, 4, 100)])
def test_clean_is_right_by_a_tolerance(d, walls, count):
    check_by_tolerance(d, walls, count)


@pytest.mark.slow
def test_clean_is_right_by_a_tolerance_whatever_the_scale_of_gaps():
    check_by_tolerance(2, 2, 100, SCALED)


@pytest.mark.slow
@pytest.mark.parametrize(("d", "walls"), [(2, 1), (2, 3), (3, 2)])
def test_trusted_derivatives_by_a_tolerance(d, walls):
    """As digits of motions located to 1e-11 at data DELTA apart go."""
    seeds = [seed for seed in range(60) if not isinstance(exact_derivative(seed, d, walls), str)]
    found, trusted = along_direction(BY_TOLERANCE, d, walls, seeds, 1)
    right = np.stack([exact_derivative(seed, d, walls)[1] for seed in seeds])
    errors = np.max(np.abs(found - right), axis=1) / (1 + np.max(np.abs(right), axis=1))
    print(
        f"\nby tolerance, d={d}, up to {walls} walls: {len(seeds)} derivatives, {trusted.sum()} trusted, largest error "
        f"{errors[trusted].max():.1e}"
    )
    assert trusted.sum() > 30
    assert np.all(errors[trusted] < 1e-5), np.array(seeds)[trusted & (errors >= 1e-5)]


def end_of(name: str, seed: int, d: int, walls: int):
    """State (2, d) at the end, status, and whether the motion failed, of one system."""
    data = batch([draw(seed, d, walls)])
    data["e"] = data["e"][:, None]
    run = ji.ensemble(PROBLEM, **data, h=H, scheme=SCHEMES[name])
    return np.array([run.q[0, -1], run.v[0, -1]]), int(run.status[0]), run.failed[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
def test_of_several_motions_the_present_one_goes_on(name):
    """A contact sticks, with others beside it, where the law would let it open as well:
    q is then off by .27 at every h."""
    end, status, _ = end_of(name, 1071, 3, 4)
    # of two impacts 4e-4 s apart, which friction couples
    assert not status & ~int(ji.Status.IMPULSES_COUPLED)
    np.testing.assert_allclose(end[0], Motion(draw(1071, 3, 4), T1).x[:3], rtol=0, atol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("seed", [59, 1142])
def test_rest_in_a_corner_is_told(seed, name):
    """Two contacts that rub hold a body of two coordinates: how they share the load, and so how long they hold it,
    is not determined. Where it rests to the end, reactions can hold it; else it goes on as the located motion does."""
    end, status, failed = end_of(name, seed, 2, 3)
    system, told = draw(seed, 2, 3), status & int(ji.Status.IMPULSES_NOT_UNIQUE)
    # `Maury`, which keeps gaps open, and a located scheme may hold the body with one of them alone
    assert (told or name in ("maury", "event-corrected")) and not failed
    if np.max(np.abs(end[1])) < 1e-12:
        at = jnp.asarray(T1), jnp.asarray(end[0]), system.args
        gap, normal = PROBLEM.gaps(*at), jax.jacfwd(PROBLEM.gaps, 1)(*at)
        tangent = jax.jacfwd(lambda v: PROBLEM.slip(*at[:2], v, at[2]))(jnp.zeros(2))
        closed, along = gap < 1e-8, PROBLEM.friction(at[2])[:, None] * tangent
        edges = np.concatenate([(normal + along)[closed], (normal - along)[closed]])
        load = PROBLEM.force(*at[:2], jnp.zeros(2), at[2])
        assert np.sum(closed) == 2 and optimize.nnls(edges.T, -np.asarray(load))[1] < 1e-10  # rounding
    elif name == "event-corrected" or not told:  # of second order, with the forces that change least; or of one contact
        np.testing.assert_allclose(end, Motion(system, T1).x.reshape(2, 2), rtol=0, atol=1e-4)


@cache
def exact_derivative(seed: int, d: int, walls: int):
    """A random direction, the exact derivative (2d,) along it, and its spread over data O(h) away;
    or why there is none."""
    found = exact(seed, d, walls)
    if isinstance(found, str):
        return found
    system = draw(seed, d, walls)
    sizes = [d, d, 1, d, walls]
    along = np.random.default_rng([seed, 1]).uniform(-1, 1, sum(sizes)) * np.repeat(
        [1, 1, 0 < system.e < 1, 1, 1], sizes
    )

    def central(system, tolerance):
        ends = [Motion(moved(system, sign * DELTA * along), T1, tolerance).x for sign in (1, -1)]
        return (ends[0] - ends[1]) / (2 * DELTA)

    try:
        value = central(system, 1e-11)
        shaken = [central(moved(system, by), 1e-10) for by in shakes(system, found.motion)]
    except Excluded as reason:
        return str(reason)
    return along, value, np.max(np.abs(shaken - value))


def along_direction(scheme: Any, d: int, walls: int, seeds, steps) -> tuple[np.ndarray, np.ndarray]:
    """Derivatives (B, 2d) along the direction of each seed, and whether they are trusted."""
    data = batch([draw(seed, d, walls) for seed in seeds])
    data["e"] = data["e"][:, None]
    found = ji.sensitivities(PROBLEM, **data, h=T1 / steps, scheme=scheme, wrt=("q0", "v0", "e", "args"))
    rows = []
    for output in ("q", "v"):
        by = found.jacobian[output]
        parts = [by["q0"], by["v0"], by["e"].reshape(len(seeds), d, 1), by["args"]["push"], by["args"]["offset"]]
        rows.append(np.concatenate(parts, axis=-1))
    ways = np.stack([exact_derivative(seed, d, walls)[0] for seed in seeds])
    return np.einsum("bij,bj->bi", np.concatenate(rows, axis=1), ways), np.asarray(found.trusted)


def check_derivatives(d: int, walls: int, seeds, name: str = "moreau-jean") -> int:
    counts = collections.Counter()
    seeds = [x.seed for x in covered(name, [draw(seed, d, walls) for seed in seeds])]
    known = {seed: found for seed in seeds if not isinstance(found := exact_derivative(seed, d, walls), str)}
    seeds, wrong = list(known), []
    (coarse, _), (some, trusted) = (along_direction(SCHEMES[name], d, walls, seeds, steps) for steps in STEPS)
    for lane in np.flatnonzero(trusted):
        seed = seeds[lane]
        _, value, spread = known[seed]
        motion = exact(seed, d, walls).motion
        rate = max(1 / T1, motion.scale[2] / motion.scale[1])
        largest = np.max(np.abs(value))
        order = 2 if name == "event-corrected" else 1
        first = (spread + H * rate * largest) * (H * rate if order == 2 else 1) + 1e-5 * (1 + largest)
        allowed = first + 2 / (4**order - 1) * np.max(np.abs(coarse[lane] - some[lane]))
        error = np.max(np.abs(some[lane] - value))
        counts["trusted"] += 1
        if error > allowed:
            again, sure = along_direction(SCHEMES[name], d, walls, [seed], 16 * STEPS[1])
            if sure[0] and np.max(np.abs(again[0] - value)) > 0.25 * allowed:
                wrong.append(
                    f"d={d} walls={walls} seed={seed} e={motion.e:.3g}: {error:.2e} off, allowed {allowed:.2e}, value "
                    f"{largest:.2e}"
                )
    print(f"\nd={d}, up to {walls} walls: {len(seeds)} derivatives, {dict(counts)}, disagreements {len(wrong)}")
    assert not wrong, "\n".join(wrong)
    return counts["trusted"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize(("d", "walls"), [(2, 1), (2, 3), (3, 2)])
def test_trusted_derivatives(name, d, walls):
    assert check_derivatives(d, walls, range(60), name) > 12


FINER = 6  # times the steps of what stands for a motion in space
WAYS = 4  # pairs of data O(h) away
SEVERAL = int(
    ji.Status.IMPULSES_NOT_UNIQUE | ji.Status.IMPULSES_COUPLED
)  # what is told of motions that need not be the only ones


def check_in_space(d: int, walls: int, seeds, name: str = "moreau-jean") -> collections.Counter:
    systems = covered(name, [draw_in_space(seed, d, walls) for seed in seeds])
    return against_finer(IN_SPACE, systems, SCHEMES[name], f"{name}, in space, d={d}, up to {walls} walls")


def against_finer(problem: Any, systems: list, scheme: Any, what: str) -> collections.Counter:
    """Of steps against finer ones of `MoreauJean` of the same data, and of data O(h) away:
    what is told to be right is what they tend to."""
    d, walls = systems[0].q0.size, systems[0].args["offset"].size
    run = lambda some, steps, save="final", scheme=SCHEME: ji.ensemble(
        problem, **with_seeds(some), h=T1 / steps, scheme=scheme, save=save
    )
    coarse, some = (run(systems, steps, scheme=scheme) for steps in STEPS)
    fine = run(systems, FINER * STEPS[1], save=FINER * STEPS[1] // 100)
    rates = np.linalg.norm(np.diff(fine.v, axis=1), axis=2) * 100 / T1
    usual = np.quantile(rates, 0.9, axis=1)  # without impacts
    change = np.quantile(np.abs(np.diff(rates, axis=1)), 0.9, axis=1) * 100 / T1
    speed = np.linalg.norm(fine.v, axis=2).max(axis=1)
    shaken = []
    for i, system in enumerate(systems):
        size = H * np.repeat([speed[i], usual[i], 0, change[i], 2 * speed[i]], [d, d, 1, d, walls])
        size = np.where(speed[i] < 30, size, 0)  # far away
        signs = np.random.default_rng(system.seed).choice([-1, 1], (WAYS, size.size))
        for by in (sign * size * way for way in signs for sign in (1, -1)):
            by[-walls:] = np.abs(by[-walls:])  # a wall may be near
            by[:d] = 0
            shaken.append(moved(system, by))
    beside = run(shaken, 2 * STEPS[1])
    counts, wrong = collections.Counter(), []
    for i, system in enumerate(systems):
        own = slice(2 * WAYS * i, 2 * WAYS * (i + 1))
        status = int(some.status[i])
        if status & ~SEVERAL or np.any(beside.failed[own]) or fine.failed[i] or speed[i] >= 30:
            counts[str(ji.Status(status)) if status else "far away, or finer steps fail"] += 1
            continue
        ends = np.array([[r.q[i, -1], r.v[i, -1]] for r in (coarse, some, fine)])
        spread = np.max(np.abs(np.stack([beside.q[own, -1], beside.v[own, -1]], 1) - ends[2]), axis=(0, 2))
        apart = np.max(np.abs(ends[:2] - ends[2]), axis=2)
        allowed = spread + 1e-9 + np.array([0, H * usual[i]]) + 2 * np.max(np.abs(ends[0] - ends[1]), axis=1) / 3
        near = np.all(apart[1] <= allowed)
        counts["clean" if not status else "one of several, the same" if near else "one of several, another"] += 1
        if not status and not near:
            wrong.append(f"{what}, seed={system.seed}: {apart[:, 0]} of q, {apart[:, 1]} of v apart, allowed {allowed}")
    print(f"\n{what}: {len(systems)} systems, {dict(counts)}, disagreements {len(wrong)}")
    assert not wrong, "\n".join(wrong)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize(("d", "walls", "count"), [(3, 1, 200), (3, 2, 150), (4, 4, 50)])
def test_clean_is_right_in_space(name, d, walls, count):
    # among four walls `Maury` has remarks on a little more than half
    assert check_in_space(d, walls, range(count), name)["clean"] > 0.4 * count


# bodies with several contacts at once


def with_seeds(systems, **more) -> dict:
    """Arguments of `ensemble` for systems, each with one restitution for all its contacts."""
    data = batch(systems)
    return data | {"e": data["e"][:, None]} | more


@pytest.mark.slow
@pytest.mark.parametrize("kind", random_bodies.KINDS)
@pytest.mark.parametrize("scaled", [False, True], ids=["distances", "scaled gaps"])
@pytest.mark.parametrize(
    ("scheme", "steps"),
    [(SCHEME, 100), (SCHEME, 1000), (ji.Maury(), 100), (CORRECTED, 100), (BY_TOLERANCE, 5)],
    ids=["moreau-jean", "moreau-jean, fine", "maury", "event-corrected", "by tolerance"],
)
def test_what_reactions_can_hold_rests(kind, scaled, scheme, steps):
    """A fifth of every cone is left: bodies stay to the round-off of a second's forces. Of steps nothing fails; located
    motions may, but none is wrong."""
    systems = [random_bodies.draw(kind, seed) for seed in range(100)]
    found = ji.ensemble(
        random_bodies.problem(kind, scaled), **with_seeds(systems), steps=steps, scheme=scheme, save="final"
    )
    remarks = collections.Counter(str(ji.Status(int(x))) for x in found.status if x)
    moved = np.max(np.abs(np.concatenate([found.q[:, -1], found.v[:, -1]], axis=1)), axis=1)
    # of a block whose friction exceeds Painleve's bound that is told, too
    clean = found.status & ~(int(ji.Status.IMPULSES_NOT_UNIQUE) | JAM) == 0
    print(
        f"\nrest, {kind}: {len(systems)} systems, {dict(remarks)}, largest motion of clean ones "
        f"{np.max(moved[clean], initial=0):.1e}"
    )
    if not scheme.traits.locates:
        assert np.all(clean), np.flatnonzero(~clean)
    # forces of order 10 over a second, of which a light turn makes 50 times as much; located motions to what is right
    # above, by EventCorrected, of second order, to some hundredths of h^2
    most = 1e-9 if not scheme.traits.locates else 1e-6 if scheme is BY_TOLERANCE else 3e-6
    # located motions may tell of one whose load runs along the edge of a cone
    assert np.sum(~clean) <= 1 and np.max(moved[clean]) < most, np.flatnonzero(clean & (moved >= most))


@pytest.mark.slow
@pytest.mark.parametrize("kind", random_bodies.KINDS)
@pytest.mark.parametrize("scaled", [False, True], ids=["distances", "scaled gaps"])
@pytest.mark.parametrize("name", [*SCHEMES, "by tolerance"])
def test_clean_is_right_of_dropped_bodies(name, scaled, kind):
    scheme = ALL[name]
    systems = covered(name, [random_bodies.drop(kind, seed) for seed in range(60)])
    counts = against_finer(random_bodies.problem(kind, scaled), systems, scheme, f"{name}, dropped, {kind}")
    # bodies with more contacts than they need have few clean motions; of those that need not be the only ones, most are
    # found by each scheme
    same, another = counts["one of several, the same"], counts["one of several, another"]
    share = 0.6 if scheme.traits.locates else 0.15 if kind == "block in a corner" else 0.3
    assert counts["clean"] + same >= share * len(systems) and same >= 3 * another


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["wedge", "three legs"]
)  # not more contacts than they need: else no derivative is trusted
@pytest.mark.parametrize("name", [*SCHEMES, "by tolerance"])
def test_without_friction_the_law_of_friction_is_none(name, kind):
    """All coefficients exactly zero and all slips too: values and derivatives of the problem that knows no friction."""
    systems = [random_bodies.draw(kind, seed, reach=0.0) for seed in range(40)]
    for system in systems:
        system.args["mu"][:] = 0
    found, right = (
        ji.sensitivities(
            random_bodies.problem(kind, rough=rough),
            **with_seeds(systems),
            steps=100,
            scheme=ALL[name],
            wrt=("q0", "v0", "args"),
        )
        for rough in (True, False)
    )
    rows = lambda s: np.concatenate(
        [np.concatenate([s.jacobian[x][w].reshape(40, systems[0].q0.size, -1)
        for w in ("q0", "v0")] + [s.jacobian[x]["args"]["push"]], axis=2) for x in ("q", "v")], axis=1,
    )  # fmt: skip
    both = np.asarray(found.trusted) & np.asarray(right.trusted)
    apart = np.max(np.abs(rows(found) - rows(right)), axis=(1, 2))
    print(
        f"\n{name}, {kind} without friction: trusted {np.sum(found.trusted)}, without the law {np.sum(right.trusted)} "
        f"of 40, apart {np.max(apart[both], initial=0):.1e}"
    )
    assert np.sum(right.trusted) > 30 and np.max(apart[both], initial=0) < 1e-6, np.flatnonzero(both & (apart >= 1e-6))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["block in a corner", "three legs", "four legs"])
@pytest.mark.parametrize("name", [*SCHEMES, "by tolerance"])
def test_a_level_body_lands_and_slides(name, kind):
    """Dropped from a small height, flat: it loses mu times its speed of fall along the floor, then mu g, and stops,
    or at the wall."""
    gravity, count = 9.81, 40
    systems, right = [], []
    for seed in range(count):
        system = random_bodies.draw(kind, seed, regular=True)
        rng = np.random.default_rng([seed, 5])
        mu, height, speed, wall = (
            rng.uniform(0.02, 0.3),
            rng.uniform(1e-3, 0.02),
            rng.uniform(0.2, 1),
            rng.uniform(0.01, 0.5),
        )
        d, angle = system.q0.size, rng.uniform(0, 2 * np.pi)
        down, way = np.eye(d)[1 if d == 3 else 2], -np.eye(d)[0]
        if d == 6:
            wall, way = np.inf, np.cos(angle) * np.eye(d)[0] + np.sin(angle) * np.eye(d)[1]
        q0 = height * down + (wall if d == 3 else 0) * -way
        args = system.args | {"mu": np.full_like(system.args["mu"], mu), "load": np.tile(-gravity * down, (2, 1))}
        systems.append(system._replace(q0=q0, v0=speed * way, args=args))
        # flight, the impact, and sliding; or the wall on the way
        falls = np.sqrt(2 * height / gravity)
        flown, after = speed * falls, max(0.0, speed - mu * np.sqrt(2 * gravity * height))
        lasts = min(after / (mu * gravity), T1 - falls)
        gone = flown + after * lasts - 0.5 * mu * gravity * lasts**2
        still = after - mu * gravity * lasts
        if gone >= wall:
            gone, still = wall, 0.0
        right.append(np.array([q0 + gone * way - height * down, max(still, 0.0) * way]))
    problem = random_bodies.problem(kind)
    run = ji.ensemble(problem, **with_seeds(systems), h=H, scheme=ALL[name], save="final")
    errors = np.max(np.abs(np.stack([run.q[:, -1], run.v[:, -1]], axis=1) - right), axis=(1, 2))
    remarks = collections.Counter(str(ji.Status(int(x))) for x in run.status if x)
    clean = run.status & ~SEVERAL == 0  # there is one motion, whatever the impulses of the feet
    print(
        f"\n{name}, level, {kind}: {dict(remarks)}, largest error of clean ones {np.max(errors[clean], initial=0):.1e}"
    )
    # an impact is a step late, at most, and its place off by a step's way
    most = {"event-corrected": 1e-4, "by tolerance": 1e-6}.get(name, 2 * H * 1.5)
    assert np.mean(clean) > 0.5 and np.max(errors[clean]) < most, [
        (i, errors[i]) for i in np.flatnonzero(clean & (errors >= most))
    ]
