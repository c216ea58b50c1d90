"""Bodies that come to rest or jam: where the motion ends, what is computed and stored behind the end,
and that forces balance there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import analysis, bodies
from support.breadth import slow

GRAVITY, H, SPEED = 9.81, 2e-3, 1e-3
LONG = 100 * SPEED / GRAVITY  # as the time for which a pile has to be at rest, by default
AT_REST = ji.Until.at_rest(SPEED)
TIGHT = bodies.ConjugateGradients(tolerance=1e-12)
SAME = {"rtol": 0, "atol": 1e-9}  # programs that round apart: 630 steps solved to 1e-12 m/s
BALL = ji.Problem(lambda t, q, v, args: jnp.full_like(q, -GRAVITY), lambda t, q, args: q, restitution=0.5)


def falling(count=12, **options):
    """Disks of several sizes above a box, and where they start."""
    rng = np.random.default_rng(2)
    radii = 0.1 * rng.uniform(0.8, 1.2, count)
    centres = 0.25 * (np.stack(np.divmod(np.arange(count), 3)[::-1], axis=1) + 0.5)
    centres += 0.01 * rng.uniform(-1, 1, centres.shape)
    return bodies.disks(radii, walls=[(0, 0.8), (0, None)], gravity=GRAVITY, **options), centres.ravel()


def solved(until, save=1):
    problem, q0 = falling()
    return ji.solve(problem, q0, 0 * q0, t1=2.0, h=H, save=save, until=until, projection=TIGHT)


@pytest.fixture(scope="module")
def whole():
    return solved(None)


@pytest.fixture(scope="module")
def ended():
    return solved(AT_REST)


def first_rest(v, count, speed, time):
    """Number of the first row of all at which speeds and changes of speeds have been small for a time."""
    norms = lambda v: np.linalg.norm(np.reshape(v, (len(v), count, -1)), axis=2).max(axis=1)
    calm = (norms(v[1:]) <= speed) & (norms(np.diff(v, axis=0)) * time <= speed * H)
    needed = int(np.ceil(time / H - 0.5))
    return next(k for k in range(needed, len(v)) if np.all(calm[k - needed : k]))


def test_a_pile_ends_when_its_rows_say_that_it_rests(whole, ended):
    k = first_rest(np.asarray(whole.v), 12, SPEED, max(10 * H, LONG))
    assert ended.stopped and ended.status == 0 and 100 < k < 900
    assert ended.t[-1] == whole.t[k]
    rows = np.minimum(np.arange(len(whole.t)), k)  # those behind the end repeat it
    for name in ("q", "v", "z", "impulse", "pairs"):
        # before the pile rests impacts amplify what programs round apart, by the thousand in velocities
        part = slice(0 if name in "qz" else k, None)
        assert np.allclose(getattr(ended, name)[part], np.asarray(getattr(whole, name))[rows][part], **SAME), name
    assert np.array_equal(ended.t, whole.t[rows])
    assert "stopped" in repr(ended) and ended.iterations < whole.iterations


def test_forces_balance_where_a_pile_ends(ended):
    problem, _ = falling()
    found = analysis.packing(problem, ended, h=H, least=0.0, needed=2)
    # by definition of the end a body, of mass 1, is accelerated by at most speed / time
    assert np.max(np.linalg.norm(found.net, axis=1)) <= SPEED / max(10 * H, LONG)
    floor = found.ends[:, 1] == -3
    assert np.isclose(found.push[floor, 1].sum(), 12 * GRAVITY, rtol=1e-2)  # a hundredth of the weight
    assert found.unbalance < 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("save", ["final", 7, np.array([0.1, 0.5033, 1.5, 1.9])], ids=["final", "every 7th", "times"])
def test_rows_of_all_kinds_repeat_the_end(ended, save):
    found, end = solved(AT_REST, save), ended.t[-1]
    wanted = {"final": [2.0], 7: np.append(np.arange(0, 1000, 7) * H, 2.0)}.get(save if np.ndim(save) == 0 else None)
    times = np.minimum(np.append(save, 2.0) if wanted is None else wanted, end)
    assert np.allclose(found.t, times, rtol=0, atol=1e-12)
    # affine between steps, as rows at times are
    at = np.minimum(np.arange(len(ended.t)) * H, end)
    live = np.arange(len(at)) * H <= end
    x = np.stack([np.interp(times, at[live], column[live]) for column in np.asarray(ended.q).T], axis=1)
    assert np.allclose(found.q, x, **SAME) and np.allclose(found.impulse[-1], ended.impulse[-1], **SAME)


def test_what_never_rests_runs_to_its_end_and_says_so():
    """Thrown up: its speed is small about the apex, for a time that forces make short."""
    options = {"t1": 2.0, "h": 1e-4, "save": "final", "scheme": ji.MoreauJean(), "e": 1.0}
    found = ji.solve(BALL, [1.0], [0.0], until=ji.Until.at_rest(0.05), **options)
    assert not found.stopped and found.t[-1] == 2.0 and "not stopped" in repr(found)


@pytest.mark.slow
def test_lanes_end_at_their_own_times(ended):
    problem, q0 = falling()
    v0 = np.stack([0 * q0, np.tile([0.3, 0.0], 12)])
    found = ji.ensemble(problem, np.stack([q0, q0]), v0, t1=2.0, h=H, until=AT_REST, save=50, projection=TIGHT)
    one = ji.solve(problem, q0, v0[1], t1=2.0, h=H, until=AT_REST, save="final", projection=TIGHT)
    assert found.t[:, -1].tolist() == [ended.t[-1], one.t[-1]] and found.t[0, -1] != found.t[1, -1]
    assert np.allclose(found.q[:, -1], np.stack([ended.q[-1], one.q[-1]]), **SAME)
    assert found.stopped.all() and np.all(np.diff(found.t, axis=1)[:, -1] == 0)


def test_a_run_on_disk_ends_too(tmp_path):
    options = {"t1": 3.0, "h": H, "scheme": ji.MoreauJean(), "save": 50}
    run = lambda until: ji.study.Run(tmp_path / "ball.zarr", BALL, [1.0], [0.0], until=until, block=4, **options)
    found, expected = run(AT_REST).run(), ji.solve(BALL, [1.0], [0.0], until=AT_REST, **options)
    assert found.stopped and found.t[-1] < 2.0 and found.status == 0
    assert np.array_equal(found.t, expected.t) and np.allclose(found.q, expected.q, **SAME)
    assert run(AT_REST).solution(slice(-1, None)).stopped
    with pytest.raises(ValueError, match="differs in until"):
        run(ji.Until.at_rest(2 * SPEED))


@pytest.mark.parametrize("execution", ["native", slow("xla")])
def test_few_coordinates_come_to_rest_too(execution):
    options = {"t1": 3.0, "h": H, "scheme": ji.MoreauJean(), "execution": execution, "until": AT_REST}
    found = ji.solve(BALL, [1.0], [0.0], **options)
    full = ji.solve(BALL, [1.0], [0.0], **options | {"until": None})
    k = first_rest(np.asarray(full.v), 1, SPEED, max(10 * H, LONG))
    assert found.stopped and found.t[-1] == full.t[k] and np.allclose(found.q[k:], full.q[k], rtol=0, atol=1e-15)
    last = ji.solve(BALL, [1.0], [0.0], **options, save="final")
    assert last.t[-1] == full.t[k] and np.allclose(last.impulse[-1], full.impulse[k], rtol=1e-12)
    if execution == "xla":
        times = np.array([0.5011, 2.9])
        traced = jax.jit(lambda q: ji.solve(BALL, q, [0.0], **options, save=times))(jnp.ones(1))
        assert traced.t.tolist() == [0.5011, full.t[k], full.t[k]]
        wanted = np.interp(traced.t, full.t, full.q[:, 0])  # affine between steps
        assert np.allclose(traced.q[:, 0], wanted, rtol=0, atol=1e-12)


# jamming


def growing(count, seed=0):
    """Disks of two sizes that grow in a periodic box, braked, and where they start; they would cover 90 % at t = 4."""
    rng = np.random.default_rng(seed)
    side = int(np.ceil(np.sqrt(count)))
    places = np.stack(np.divmod(rng.permutation(side**2)[:count], side), axis=1)
    sizes = np.where(np.arange(count) % 2, 1.4, 1.0)
    radii = sizes * np.sqrt(0.90 / (np.pi * np.sum(sizes**2)))
    problem = bodies.disks(0.7 * radii, growth=0.075 * radii, periodic=(1.0, 1.0), force=lambda t, q, v, args: -20 * v)
    return problem, ((places + 0.5 + 0.05 * rng.uniform(-1, 1, places.shape)) / side).ravel()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_disks_that_grow_end_where_a_packing_holds_them(seed):
    problem, q0 = growing(16, seed)
    solver = bodies.ConjugateGradients(tolerance=1e-8, max_iterations=4000)
    options = {"t1": 4.0, "h": 1e-3, "projection": solver, "save": "final"}
    found = ji.solve(problem, q0, 0 * q0, until=ji.Until.jammed(), **options)
    assert found.stopped and found.status == 0 and found.penetration < 1e-6
    packing = analysis.packing(problem, found, h=1e-3)
    held = np.sum(~packing.rattles)
    # isostatic, and one more for the pressure: Goodrich, Liu, Nagel (2012)
    assert held >= 12 and len(packing) == 2 * held - 1
    assert packing.unbalance < 1e-2 and np.all(packing.force > 0)
    if seed > 0:
        # without the end the very next step has no solution
        after = ji.solve(problem, q0, 0 * q0, **options)
        assert np.isclose(after.failed_at, found.t[-1] + 1e-3, rtol=0, atol=1e-9)


def test_what_is_refused():
    problem, q0 = falling(4)
    call = lambda until, **options: ji.solve(problem, q0, 0 * q0, t1=0.01, h=H, until=until, **options)
    with pytest.raises(ValueError, match="seen at the ends of steps, and EventDriven"):
        ji.solve(BALL, [1.0], [0.0], t1=1.0, until=AT_REST, scheme=ji.EventDriven())
    with pytest.raises(ValueError, match="near pairs are listed"):
        ji.solve(BALL, [1.0], [0.0], t1=1.0, h=H, until=ji.Until.jammed())
    with pytest.raises(ValueError, match="whose time has no derivative"):
        ji.solve(BALL, [1.0], [0.0], t1=1.0, h=H, until=AT_REST, sensitivity="corrected")
    with pytest.raises(ValueError, match="whose time has no derivative"):
        ji.sensitivities(BALL, [1.0], [0.0], t1=1.0, h=H, until=AT_REST, wrt="q0")
    with pytest.raises(ValueError, match=r"Until.at_rest\(speed=...\) must be a positive"):
        call(ji.Until.at_rest(0.0))
    with pytest.raises(ValueError, match=r"Until.jammed\(balance=...\)"):
        call(ji.Until.jammed(2.0))
    with pytest.raises(ValueError, match="does not locate events"):
        call(lambda t, q, v, args: v[0])
