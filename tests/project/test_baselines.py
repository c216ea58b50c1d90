"""The baselines of the benchmark compute the same motions as jaximpact, step by step."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks import reference, works
from benchmarks.baselines import native, plain_jax

import jaximpact as ji
from jaximpact.catalogue.balls import bounces

# Both sides solve curved projections to a gap velocity of 2e-11 or better, flat ones to round-off; over these motions a
# difference grows by less than a factor of a hundred.
FLAT, CURVED = 1e-10, 1e-8

# The second link all but parallel to the wall: joint and tip hit it in one step.
FLAT_HIT = replace(
    works.DOUBLE,
    initial=lambda lanes: (
        np.tile([np.arcsin(0.3) - 0.02, -0.01], (lanes, 1)),
        np.stack([np.full(lanes, 2.0), np.linspace(0.8, 1.2, lanes)], axis=1),
    ),
)


def differences(run, work, lanes, steps):
    """Largest difference from jaximpact's positions and velocities, after a fourth of the steps and after all."""
    q0, v0 = work.initial(lanes)
    times = work.h * np.array([steps // 4, steps])
    numbers = {"h": work.h, "e": work.restitution, "args": work.args}
    exact = ji.ensemble(work.problem, q0, v0, t1=times[-1], save=times, **numbers)
    assert not np.any(exact.failed)
    assert np.all(np.any(exact.impulse[:, -1] > 0, axis=1)), "every lane is to meet a stop"
    worst = 0.0
    for i, count in enumerate((steps // 4, steps)):
        q, v = run(work, q0, v0, count)
        worst = max(worst, np.abs(q - exact.q[:, i]).max(), np.abs(v - exact.v[:, i]).max())
    return worst


@pytest.mark.parametrize("work", works.WORKS.values(), ids=works.WORKS.keys())
def test_starts_are_admissible(work):
    q0, v0 = work.initial(5)
    assert q0.shape == v0.shape and q0.dtype == v0.dtype == np.float64
    gaps = jax.jit(jax.vmap(lambda q: work.problem.gaps(0.0, q, work.args)))(jnp.asarray(q0))
    assert np.min(gaps) > 0
    np.testing.assert_array_equal(q0, work.initial(5)[0])


# handwritten SIMD -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    if native.compiler() is None:
        pytest.skip("no C++ compiler")
    return native.Native(tmp_path_factory.mktemp("native"))


@pytest.mark.parametrize(
    ("work", "tolerance"),
    [(works.BALL, FLAT), (works.OSCILLATOR, FLAT), (works.DOUBLE, CURVED), (FLAT_HIT, CURVED)],
    ids=["ball", "oscillator", "double", "flat hit"],
)
def test_the_native_baseline_makes_the_same_motion(compiled, work, tolerance):
    assert differences(compiled.run, work, 5, work.steps) < tolerance


@pytest.mark.parametrize("work", [works.BALL, works.OSCILLATOR, works.DOUBLE], ids=lambda work: work.name)
def test_native_lanes(compiled, work):
    """Blocks, threads and the scalar code for one lane give one motion, up to what the compiler fuses."""
    q0, v0 = work.initial(131)
    q, v = compiled.run(work, q0, v0)
    for x, y in zip(compiled.run(work, q0, v0, threads=2), (q, v), strict=True):
        np.testing.assert_array_equal(x, y)
    q1, v1 = compiled.run(work, q0[-1:], v0[-1:])
    assert max(np.abs(q1 - q[-1:]).max(), np.abs(v1 - v[-1:]).max()) < CURVED


@pytest.mark.parametrize("work", [works.BALL, works.OSCILLATOR, works.DOUBLE], ids=lambda work: work.name)
def test_native_float32(compiled, work):
    """1000 steps add up round-off of 6e-8 and grow it tenfold at most; where an impact moves by a step, so does q."""
    q0, v0 = work.initial(200)
    q, v = compiled.run(work, q0, v0)
    single, _ = compiled.run(work, q0.astype(np.float32), v0.astype(np.float32))
    error = np.abs(single - q).max(axis=1)
    assert single.dtype == np.float32
    assert np.median(error) < 1e-3
    assert np.max(error) < 4 * work.h * np.abs(v).max()


def test_native_bad_input(compiled):
    q0, v0 = works.BALL.initial(2)
    with pytest.raises(ValueError, match="links-2"):
        compiled.run(works.WORKS["links-2"], q0, v0)
    with pytest.raises(ValueError, match="dtype"):
        compiled.run(works.BALL, q0, v0.astype(np.float32))
    with pytest.raises(ValueError, match="shape"):
        compiled.run(works.BALL, q0[:, 0], v0[:, 0])
    with pytest.raises(ValueError, match="coordinates"):
        compiled.run(works.DOUBLE, q0, v0)


# numba ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loops():
    pytest.importorskip("numba")
    from benchmarks.baselines import numba_loops

    return numba_loops


# collisions of disks multiply a difference by the ratio of flight to radius: few of them
SHORT = [
    pytest.param(works.BALL, 1000, FLAT, id="ball"),
    pytest.param(works.OSCILLATOR, 1000, FLAT, id="oscillator"),
    pytest.param(works.DOUBLE, 1000, CURVED, id="double", marks=pytest.mark.slow),
    pytest.param(FLAT_HIT, 1000, CURVED, id="flat hit"),
    pytest.param(works.WORKS["links-2"], 1000, FLAT, id="links-2", marks=pytest.mark.slow),
    pytest.param(works.WORKS["links-4"], 300, CURVED, id="links-4", marks=pytest.mark.slow),
    pytest.param(works.WORKS["bar-64"], 1000, FLAT, id="bar-64"),
    pytest.param(works.WORKS["gas-16"], 100, CURVED, id="gas-16", marks=pytest.mark.slow),
    pytest.param(works.WORKS["pile-16"], 60, CURVED, id="pile-16", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("work", "steps", "tolerance"), SHORT)
def test_the_numba_baseline_makes_the_same_motion(loops, work, steps, tolerance):
    assert differences(loops.run, work, 2, steps) < tolerance


@pytest.mark.slow
def test_numba_pile_comes_to_rest(loops):
    """Inelastic disks on a floor end at rest, without overlap beyond the projection's 1e-11 times h, inside the box."""
    work = works.WORKS["pile-64"]
    q, v = loops.run(work, *work.initial(1))
    assert np.min(work.problem.gaps(0.0, jnp.asarray(q[0]), work.args)) > -1e-13
    assert np.abs(v).max() < 1e-9


@pytest.mark.slow
def test_numba_gas_keeps_its_energy(loops):
    """Every collision conserves it up to the rotation of the normal over a step; walls exactly."""
    work = works.WORKS["gas-64"]
    q0, v0 = work.initial(1)
    _, v = loops.run(work, q0, v0)
    assert not np.allclose(v, v0)
    np.testing.assert_allclose(np.sum(v**2), np.sum(v0**2), rtol=0.05)


@pytest.mark.slow
def test_numba_many_disks():
    pytest.importorskip("numba")
    from benchmarks.baselines import numba_bodies

    rng = np.random.default_rng(0)
    radii = 0.1 * rng.uniform(0.8, 1.2, 60)
    q0 = 0.26 * (np.stack(np.divmod(np.arange(60), 8)[::-1], axis=1) + 0.5) + rng.uniform(-0.005, 0.005, (60, 2))
    problem = ji.bodies.disks(radii, walls=[(0, 2.08), (0, None)], gravity=numba_bodies.GRAVITY)
    projection = ji.bodies.ConjugateGradients(tolerance=1e-12)
    found = ji.solve(problem, q0.ravel(), np.zeros(120), t1=0.4, h=4e-3, scheme=ji.Maury(), projection=projection)
    state, iterations, residual = numba_bodies.run(numba_bodies.start(q0, radii), radii, 2.08, 100, 4e-3, 1e-12)
    assert residual < 1e-12 and np.sum(state.impulse > 0) > 20
    np.testing.assert_allclose(state.q.ravel(), found.q[-1], rtol=0, atol=CURVED)
    # sums in another order end some solves an iteration sooner
    np.testing.assert_allclose(iterations, found.iterations, rtol=0.05)


def test_numba_bad_input(loops):
    with pytest.raises(ValueError, match="shape"):
        loops.run(works.BALL, np.ones(3), np.ones(3))


# plain JAX ------------------------------------------------------------------------------------------------------------


def plain(work, q0, v0, steps):
    return map(np.asarray, jax.jit(plain_jax.simulator(work, steps))(q0, v0))


@pytest.mark.parametrize(
    ("work", "tolerance"),
    [pytest.param(works.BALL, FLAT, marks=pytest.mark.slow), (works.DOUBLE, CURVED)],
    ids=["ball", "double"],
)
def test_plain_jax(work, tolerance):
    assert differences(plain, work, 2, work.steps) < tolerance


@pytest.mark.parametrize(("work", "steps", "tolerance"), SHORT)
def test_plain_jax_is_numba(loops, work, steps, tolerance):
    """Disks alone: in a batch their projection is worked out at every step, which takes minutes."""
    q0, v0 = work.initial(1 if work.name.startswith(("gas", "pile")) else 2)
    (q, v), (q1, v1) = plain(work, q0, v0, steps), loops.run(work, q0, v0, steps)
    assert max(np.abs(q - q1).max(), np.abs(v - v1).max()) < tolerance


# event location -------------------------------------------------------------------------------------------------------


def test_event_location_finds_the_bounces_of_a_ball():
    """Against the closed form, to the integrator's tolerance of 1e-12."""
    q0, v0 = works.BALL.initial(4)
    g, e, t1 = works.BALL.args["g"], works.BALL.restitution, works.BALL.t1
    times = np.array([0.1, 0.7, t1])
    q, v = reference.event_located(works.BALL.problem, q0, v0, times, e, works.BALL.args)
    for lane in range(4):
        exact, impacts = bounces(q0[lane, 0], v0[lane, 0], g, 0.0, e, t1)
        assert impacts.size > 0
        np.testing.assert_allclose(np.concatenate([q[lane], v[lane]]), np.concatenate(exact(times)), atol=1e-10)


def test_event_location_is_the_limit_of_the_scheme():
    """`PaoliSchatzman` is first order: an eighth of the step, less than a fourth of the error with its scatter."""
    work = works.DOUBLE
    q0, v0 = work.initial(4)
    q, _ = reference.event_located(work.problem, q0, v0, np.array([work.t1]), work.restitution, work.args)
    errors = []
    for h in (1e-3, 1.25e-4):
        found = ji.ensemble(work.problem, q0, v0, t1=work.t1, h=h, e=work.restitution, args=work.args)
        errors.append(np.abs(found.q[:, -1] - q[:, 0]).max())
    assert errors[1] < errors[0] / 4


def test_event_location_gives_derivatives():
    """d(y + v)/d(y0, v0) of a ball after one bounce, by hand: dv/dy0 = (1 + e) g/|v-| and so on."""
    g, e, t1 = 10.0, 0.5, 0.6
    ball = replace(works.BALL, args={"g": g})
    y0, v0 = 1.0, -1.0
    w = np.sqrt(v0**2 + 2 * g * y0)
    left = t1 - (v0 + w) / g
    assert 0 < left < 2 * e * w / g
    # y = e w s - g s^2/2, v = e w - g s, s = t1 - (v0 + w)/g, dw/dy0 = g/w, dw/dv0 = v0/w
    exact = []
    for dw, ds in ((g / w, -1 / w), (v0 / w, -(1 + v0 / w) / g)):
        exact.append(e * dw * left + (e * w - g * left) * ds + e * dw - g * ds)
    found = reference.derivative(ball.problem, np.array([[y0]]), np.array([[v0]]), t1, e, ball.args, np.eye(2))
    np.testing.assert_allclose(found[0], exact, atol=1e-5)  # differences of 1e-12/1e-6, and 1e-12 of truncation


def test_event_location_refuses_what_it_cannot_do():
    """A ball that comes to rest has more impacts than are followed: NaN, and the other lane is none the worse."""
    q, _ = reference.event_located(
        works.BALL.problem, np.array([[1.0], [200.0]]), np.zeros((2, 1)), np.array([5.0]), 0.2, works.BALL.args
    )
    assert np.isnan(q[0, 0, 0])
    np.testing.assert_allclose(q[1, 0, 0], 200 - 0.5 * 9.81 * 25, rtol=1e-12)
