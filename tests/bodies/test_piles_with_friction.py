"""Piles of bodies with friction: the native sweeps obey Coulomb's law, and what a pile at rest has to be holds."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import analysis
from jaximpact.bodies import ConjugateGradients, disks

GRAVITY, MU, WIDTH, TOLERANCE = 9.81, 0.5, 0.8, 1e-9


def law_residual(h, b, x, mu):
    """Natural residuals (m,) of contacts with dense columns h (d, m, 1 + k): |y - P_K(y - w - mu |w_t| n)|, y the
    impulses x by the largest diagonal entries."""
    w = np.einsum("dmr,d->mr", h, np.einsum("dmr,mr->d", h, x)) + b
    y = np.max(np.sum(h**2, axis=0), axis=1)[:, None] * x
    worst = np.zeros(len(x))
    for c, coefficient in enumerate(mu):
        moved = y[c] - w[c] - coefficient * np.linalg.norm(w[c, 1:]) * np.eye(x.shape[1])[0]
        normal, slide = moved[0], np.linalg.norm(moved[1:])
        if slide <= coefficient * normal:
            nearest = moved
        elif coefficient * slide <= -normal:
            nearest = 0 * moved
        else:
            pushed = (normal + coefficient * slide) / (1 + coefficient**2)
            nearest = pushed * np.append(1, coefficient * moved[1:] / slide)
        worst[c] = np.max(np.abs(y[c] - nearest))
    return worst


def random_problem(rng, bodies=6, m=9, D=3, k=2):
    """Operands of the native solver, of contacts whose rows are neither orthogonal nor of unit length;
    and the dense columns."""
    i = rng.integers(0, bodies - 1, m)
    j = np.where(rng.random(m) < 0.3, bodies, rng.integers(i + 1, bodies))
    h = rng.standard_normal((m, 1 + k, 2, D)) * 10 ** rng.uniform(-1, 1, (m, 1, 1, 1))
    h[j == bodies, :, 1] = 0
    dense = np.zeros((bodies + 1, D, m, 1 + k))
    for end, at in enumerate((i, j)):
        for c in range(m):
            dense[at[c], :, c] += h[c, :, end].T
    dense = dense[:-1].reshape(-1, m, 1 + k)
    # of velocities of bodies: then there are impulses that obey the law
    b = np.einsum("dmr,d->mr", dense, rng.standard_normal(len(dense)))
    return (i, j, np.ones(m), h.reshape(m, 1 + k, 2 * D), b, rng.uniform(0, 1, m)), dense


@pytest.mark.parametrize("real", [np.float64, np.float32])
def test_native_sweeps_obey_the_law(real):
    pytest.importorskip("llvmlite")
    from jaximpact.bodies.cone_sweeps import solver

    problems = [random_problem(np.random.default_rng(seed)) for seed in range(20)]
    kinds = (np.int32, np.int32, np.int32, real, real, real)
    given = [np.stack([p[0][n] for p in problems]).astype(kind) for n, kind in enumerate(kinds)]
    lanes, m, rows = given[4].shape
    allowed = 1e-10 if real is np.float64 else 1e-4
    more = [np.zeros((lanes, m, rows), real), np.full((lanes, m), allowed, real), np.full((lanes, 1), 20000, np.int32)]
    impulse, sweeps = np.empty((lanes, m, rows), real), np.empty(lanes, np.int32)
    solver(3, 2, real, 6)([*given, *more], [impulse, sweeps])
    for lane, (_, dense) in enumerate(problems):
        if sweeps[lane] < 20000:
            b, mu = (given[n][lane].astype(float) for n in (4, 5))
            # single numbers: velocities of some 10 m/s, whose sums are rounded to 1e-5
            assert law_residual(dense, b, impulse[lane].astype(float), mu).max() <= 2 * allowed
    # no theorem says that sweeps converge
    assert np.mean(sweeps < 20000) >= 0.9


@pytest.fixture(scope="module")
def stalled():
    """Operands of the native solver, and dense columns, of contacts on which sweeps stall:
    a step of 40 disks in a box that nearly jam."""
    found = json.loads((Path(__file__).parent / "stalled_contacts.json").read_text())
    i, j = np.array(found["ends"], np.int32).T
    h, b = (np.array(found[name]) for name in ("columns", "velocity"))
    m, bodies = len(b), 40
    dense = np.zeros((bodies + 1, 3, m, 2))
    for end, at in enumerate((i, j)):
        dense[at, :, np.arange(m)] += np.swapaxes(h[:, :, 3 * end : 3 * end + 3], 1, 2)
    return (i, j, np.ones(m, np.int32), h, b, np.ones(m)), dense[:-1].reshape(-1, m, 2)


def solved(given, monkeypatch, rescue=True):
    """Impulses (m, 2) after at most 50,000 sweeps and steps, with what takes over from sweeps that stall or without."""
    pytest.importorskip("llvmlite")
    from jaximpact.bodies import cone_sweeps

    if not rescue:
        monkeypatch.setattr(cone_sweeps, "steps_where_sweeps_stall", lambda given, x, tries: (x.copy(), 0))
    m = len(given[0])
    impulse, count = np.empty((1, m, 2)), np.empty(1, np.int32)
    more = (np.zeros((m, 2)), np.full(m, TOLERANCE), np.array([50000], np.int32))
    cone_sweeps.solver(3, 1, np.float64, 40)([x[None] for x in (*given, *more)], [impulse, count])
    return impulse[0]


@pytest.mark.parametrize("rescue", [False, True])
def test_contacts_on_which_sweeps_stall_obey_the_law(stalled, rescue, monkeypatch):
    given, dense = stalled
    error = law_residual(dense, given[4], solved(given, monkeypatch, rescue), given[5]).max()
    # sweeps alone go round in circles at residuals of 1e-4
    assert (error <= TOLERANCE) if rescue else (error > 1e4 * TOLERANCE)


def test_sweeps_lose_nothing_of_what_steps_have_gained(stalled, monkeypatch):
    pytest.importorskip("llvmlite")
    from jaximpact.bodies import cone_sweeps

    given, dense = stalled
    right = solved(given, monkeypatch)
    near = (1 + 1e-9) * right
    # contacts that no sweep solves, and steps that end a hair from the solution
    monkeypatch.setattr(cone_sweeps, "steps_where_sweeps_stall", lambda given, x, tries: (near.copy(), 1))
    m = len(given[0])
    more = (np.zeros((m, 2)), np.full(m, 1e-16), np.array([cone_sweeps.LED + cone_sweeps.PLAIN + 500], np.int32))
    impulse, count = np.empty((1, m, 2)), np.empty(1, np.int32)
    cone_sweeps.solver(3, 1, np.float64, 40)([x[None] for x in (*given, *more)], [impulse, count])
    error = lambda x: law_residual(dense, given[4], x, given[5]).max()
    assert error(impulse[0]) <= error(near) * (1 + 1e-6)


@pytest.mark.parametrize("near", [False, True])
def test_paths_through_the_cones_end_at_the_law(stalled, near):
    from jaximpact.bodies.central_path import BodyMatrix, CentralPath
    from jaximpact.bodies.proximal_steps import ConeSystem, proximal_steps

    given, dense = stalled
    system = ConeSystem.of(np.stack(given[:2]), given[3], given[4], given[5], np.full(len(given[0]), TOLERANCE))
    matrix = BodyMatrix(system)
    path = CentralPath(system, matrix, 0.1, 0 * given[4]) if near else CentralPath(system, matrix, 0.3)
    steps = path.follow(200)
    x, more = proximal_steps(system, path.x)
    assert law_residual(dense, given[4], x / system.root, given[5]).max() <= TOLERANCE
    # the last digits are those of Newton's method: the path's end is known to the root of a product of impulse and
    # velocity
    assert law_residual(dense, given[4], path.x / system.root, given[5]).max() <= 1e-5
    assert steps < 100 and more < 10


def test_a_step_along_a_path_is_right_to_the_order_of_its_series():
    from jaximpact.bodies.central_path import ORDER, BodyMatrix, Curve, Linearised, product, times
    from jaximpact.bodies.proximal_steps import ConeSystem

    (i, j, _, h, b, mu), _ = random_problem(np.random.default_rng(3))
    system = ConeSystem.of(np.stack([i, j]), h, b, mu, np.full(len(i), TOLERANCE))
    curve = Curve(system, BodyMatrix(system), 0.1, 0 * b)
    lines = Linearised(curve, curve.start)
    terms = lines.series(lines.tangent())

    def error(step):
        at = curve.start
        for n, term in enumerate(terms, 1):
            at = at.plus(step**n, term)
        missing = product(times(lines.w, at.r), times(lines.inverse, at.s)) - at.share * curve.size**2 * curve.one
        return max(np.abs(missing).max() / curve.size**2, np.abs(curve.defect(at)).max() / curve.size)

    step = 0.2 * lines.reach(terms)
    assert 1e-10 < error(step) < 1e-2
    assert np.log2(error(step) / error(step / 2)) == pytest.approx(ORDER + 1, abs=0.5)


@pytest.mark.parametrize("rough", [1.0, 0.0])
def test_paths_in_space_end_at_the_law(rough):
    from jaximpact.bodies.central_path import central_paths
    from jaximpact.bodies.proximal_steps import ConeSystem

    for seed in range(2):
        (i, j, _, h, b, mu), dense = random_problem(np.random.default_rng(seed))
        mu = mu * np.where(np.arange(len(mu)) % 3, 1, rough)
        system = ConeSystem.of(np.stack([i, j]), h, b, mu, np.full(len(i), TOLERANCE))
        x, excess, _ = central_paths(system, 0 * b)
        assert excess <= 1 and law_residual(dense, b, x / system.root, mu).max() <= TOLERANCE


def test_where_all_paths_end_beside_the_solution_another_begins_at_the_nearest(monkeypatch):
    from jaximpact.bodies import central_path
    from jaximpact.bodies.proximal_steps import ConeSystem, proximal_steps

    whole, paths = central_path.CentralPath.follow, []

    def follow(path, limit):
        paths.append(path)
        found = whole(path, limit if len(paths) > 3 else 8)
        path.ended |= len(paths) <= 3
        return found

    monkeypatch.setattr(central_path.CentralPath, "follow", follow)
    last = lambda system, x: proximal_steps(system, x) if len(paths) > 3 else (x, 0)
    monkeypatch.setattr(central_path, "proximal_steps", last)
    (i, j, _, h, b, mu), dense = random_problem(np.random.default_rng(0))
    system = ConeSystem.of(np.stack([i, j]), h, b, mu, np.full(len(i), TOLERANCE))
    x, excess, _ = central_path.central_paths(system, 0 * b)
    assert min(path.least for path in paths[:3]) > 100 and len(paths) == 4
    assert excess <= 1 and law_residual(dense, b, x / system.root, mu).max() <= TOLERANCE


def test_proximal_steps_in_space_obey_the_law():
    from jaximpact.bodies.proximal_steps import ConeSystem, proximal_steps

    reached = 0
    for seed in range(20):
        (i, j, _, h, b, mu), dense = random_problem(np.random.default_rng(seed))
        system = ConeSystem.of(np.stack([i, j]), h, b, mu, np.full(len(i), TOLERANCE))
        x, _ = proximal_steps(system, 0 * b)
        error = law_residual(dense, b, x / system.root, mu).max()
        # what the steps take for solved is so by other sums
        assert np.isclose(error / TOLERANCE, system.excess(x), rtol=1e-6, atol=1e-3)
        reached += error <= TOLERANCE
    # no theorem says that they converge
    assert reached >= 18


@pytest.mark.slow
def test_a_pile_of_two_hundred_disks_is_solved_in_every_step():
    rng = np.random.default_rng(2)
    radii = 0.1 * rng.uniform(0.8, 1.2, 200)
    centres = 0.25 * (np.stack(np.divmod(np.arange(200), 10)[::-1], axis=1) + 0.5) + 0.01 * rng.uniform(-1, 1, (200, 2))
    problem = disks(radii, walls=[(0, 2.6), (0, None)], gravity=GRAVITY, friction=MU, inertias="solid")
    start = np.concatenate([centres, np.zeros((200, 1))], axis=1).ravel()
    found = ji.solve(problem, start, 0 * start, t1=2.0, h=2e-3, save=20)
    assert not found.failed and np.isfinite(found.q).all()


@pytest.fixture(scope="module")
def pile():
    """Disks that have fallen into a box, and come to rest; the problem, radii, rows while they fall,
    and rows at rest."""
    rng = np.random.default_rng(2)
    radii = 0.1 * rng.uniform(0.8, 1.2, 12)
    centres = 0.25 * (np.stack(np.divmod(np.arange(12), 3)[::-1], axis=1) + 0.5) + 0.01 * rng.uniform(-1, 1, (12, 2))
    problem = disks(radii, walls=[(0, WIDTH), (0, None)], gravity=GRAVITY, friction=MU, inertias="solid")
    solver = ConjugateGradients(tolerance=TOLERANCE)
    run = jax.jit(lambda q, v: ji.solve(problem, q, v, t1=1.5, h=5e-3, projection=solver))
    start = np.concatenate([centres, np.zeros((12, 1))], axis=1).ravel()
    rows = [run(start, 0 * start)]
    for _ in range(3):
        rows.append(run(rows[-1].q[-1], rows[-1].v[-1]))
    return problem, radii, *(jax.tree.map(np.asarray, rows[n]) for n in (0, -1))


def columns(radii, q, ends):
    """Gradients (d, m, 2) of gaps and slips of disks at q, of pairs (i, j) and obstacles (i, -1 - a),
    beside `bodies.disks`."""
    x, found = q.reshape(-1, 3), np.zeros((len(radii), 3, len(ends), 2))
    for c, (i, j) in enumerate(ends):
        if j >= 0:
            n = x[j, :2] - x[i, :2]
            n /= np.hypot(*n)
            found[j, :2, c, 0], found[j, :, c, 1] = n, [n[1], -n[0], radii[j]]
        else:
            n = np.array([[-1.0, 0], [1, 0], [0, -1]])[-1 - j]
        found[i, :2, c, 0], found[i, :, c, 1] = -n, [-n[1], n[0], radii[i]]
    return found.reshape(-1, len(ends), 2)


def test_steps_obey_coulombs_law(pile):
    _, radii, fallen, _ = pile
    mass = np.tile([1.0, 1, 0], len(radii))
    mass[2::3] = radii**2 / 2
    h = 5e-3
    worst, slips = 0.0, 0
    for n in range(20, 200, 6):
        ends, x = fallen.pairs[n], np.stack([fallen.impulse[n], fallen.friction_impulse[n][:, 0]], axis=1)
        acts = x[:, 0] > 0
        if not np.any(acts):
            continue
        before, after = fallen.v[n - 1], fallen.v[n]
        gaps = columns(radii, fallen.q[n - 1], ends[acts])
        # slip is that where the old velocity leads to
        slides = columns(radii, fallen.q[n - 1] + h * before, ends[acts])
        gaps[:, :, 1] = slides[:, :, 1]
        weight = np.tile([0, -GRAVITY * h, 0], len(radii))
        change = np.einsum("dmr,mr->d", gaps, x[acts]) / mass
        assert np.allclose(after, before + weight + change, rtol=0, atol=1e-12)  # round-off
        assert np.all(np.abs(x[:, 1]) <= MU * x[:, 0] * (1 + 1e-12))
        scaled = gaps / np.sqrt(mass)[:, None, None]
        w = np.einsum("dmr,d->mr", gaps, after)
        free = w - np.einsum("dmr,d->mr", scaled, np.einsum("dmr,mr->d", scaled, x[acts]))
        worst = max(worst, law_residual(scaled, free, x[acts], np.full(np.sum(acts), MU)).max())
        slips += np.sum(np.abs(w[:, 1]) > 1e-3)
    assert worst <= TOLERANCE and slips > 20


def test_a_pile_at_rest_stays_at_rest(pile):
    _, radii, _, rest = pile
    # half a second of steps solved to the tolerance, which lets impulses and so velocities be wrong by some of it
    assert np.max(np.abs(rest.v[-100:])) <= 10 * TOLERANCE
    assert np.max(np.abs(rest.q[-1] - rest.q[-100])) <= 10 * TOLERANCE
    ends, push, rub = (x[-1] for x in (rest.pairs, rest.impulse, rest.friction_impulse[..., 0]))
    force = lambda wall: (push[ends[:, 1] == -1 - wall].sum(), rub[ends[:, 1] == -1 - wall].sum())
    (left, up_left), (right, up_right), (floor, along) = map(force, range(3))
    # on the walls act what gravity asks of them: tolerances of all contacts
    assert np.isclose(floor + up_right - up_left, len(radii) * GRAVITY * 5e-3, rtol=0, atol=1e-7)
    assert np.isclose(left - right + along, 0, rtol=0, atol=1e-7)


@pytest.mark.slow
def test_what_contacts_of_a_pile_do(pile):
    problem, _, fallen, rest = pile
    found, kept = fallen.slips(problem), analysis.balance(problem, fallen)
    assert {"stop", "break"} <= set(found.kind) and found.modes.shape[1] == len(found.pairs)
    # friction takes what it takes from the energy; its slips are at places that differ by h^2 g, in a step that by h g
    # r of them
    assert np.isclose(found.lost, kept.friction[-1], rtol=2e-2)
    # those contacts of which most is to be seen, by their bodies
    assert len(found.plot().get_legend_handles_labels()[1]) <= 16
    late = rest.slips(problem)
    assert np.all(late.modes[-100:] != analysis.ContactMode.SLIP) and np.all(late.t < rest.t[-100])
    # gradients of gaps and slips of round bodies are orthogonal
    with pytest.warns(ji.JaximpactWarning):
        report = analysis.check_hypotheses(problem, rest)
    touched = np.isfinite(report.painleve)
    assert np.sum(touched) >= len(rest.q[0]) // 3 and np.all(report.painleve[touched] < 1e-12)
    assert "obstacle" in report.notes[0] and report.pairs.shape == (len(report.painleve), 2)


@pytest.mark.slow
def test_forces_of_a_packing_hold_every_body(pile):
    problem, radii, _, rest = pile
    found = analysis.packing(problem, rest, h=5e-3, least=0.0)
    total = np.tile([0, -GRAVITY], (len(radii), 1))
    for (i, j), push in zip(found.ends, found.push, strict=True):
        total[i] += push
        if j >= 0:
            total[j] -= push
    # what velocities are wrong by in a step, by the step
    assert np.max(np.abs(total)) <= 10 * TOLERANCE / 5e-3 and not np.all(found.rattles)
