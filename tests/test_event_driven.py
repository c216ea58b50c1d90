"""`EventDriven`: as accurate as its tolerance, in positions and derivatives, across impacts, rest, releases and grazing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import DOP853, RK45

import jaximpact as ji
from jaximpact import catalogue

SCHEME = ji.EventDriven()
FACTOR = 30  # of the tolerance: errors of substeps add up, and impacts make more of them

fall = lambda t, q, v, args: jnp.full_like(q, -args["g"])
BALL = ji.Problem(fall, lambda t, q, args: q)
SPRING = ji.Problem(lambda t, q, v, args: -(args["w"] ** 2) * q, lambda t, q, args: q - args["wall"])


def cases(names):
    return [(name, case) for name in names for case in catalogue.get(name).cases]


FEW = ("bouncing-ball", "shaw-holmes", "lift-off", "adly-thieu", "groove")
# chains and boxes of a hundred bodies go through XLA, and take minutes
LARGE = {("skew-balls", "d=40"), ("hypercube", "d=100"), ("inelastic-chain", "N=100"), ("inelastic-chain", "N=8")}
OTHERS = [
    (name, case)
    for name, case in cases(catalogue.names())
    if name not in (*FEW, "non-uniqueness")
    and catalogue.get(name).case(case).exact is not None
    and (name, case) not in LARGE
]


# values


@pytest.mark.parametrize("order", [5, 8])
def test_a_substep_is_that_of_the_method(order):
    """One step of a pendulum with friction, as scipy makes it; rounding of a dozen stages."""
    force = lambda t, q, v, args: jnp.sin(t) - jnp.sin(q) - 0.3 * v
    f = lambda t, y: np.array([y[1], np.sin(t) - np.sin(y[0]) - 0.3 * y[1]])
    other = {8: DOP853, 5: RK45}[order](f, 0.2, [0.5, -0.4], 0.9, first_step=0.7, rtol=1e3, atol=1e3)
    other.step()
    assert other.t == pytest.approx(0.9, abs=1e-15)
    scheme = ji.EventDriven(rtol=1e3, atol=1e3, order=order)
    found = ji.solve(ji.Problem(force), [0.5], [-0.4], t0=0.2, t1=0.9, steps=1, scheme=scheme, save="final")
    np.testing.assert_allclose([found.q[-1, 0], found.v[-1, 0]], other.y, rtol=0, atol=4e-15)


@pytest.mark.parametrize(("order", "steps"), [(5, [24, 96]), (8, [12, 36])])
def test_order_of_substeps(order, steps):
    """An anharmonic spring that keeps its energy, by one substep a step; the slope is that of the order, less a third of one."""
    scheme = ji.EventDriven(rtol=1e9, atol=1e9, order=order)
    problem = ji.Problem(lambda t, q, v, args: -(q**3))
    run = lambda n: ji.solve(problem, [1.0], [0.0], t1=6.0, steps=n, scheme=scheme, save="final").q[-1, 0]
    exact = ji.solve(problem, [1.0], [0.0], t1=6.0, steps=4, scheme=ji.EventDriven(1e-14, 1e-14), save="final").q[-1, 0]
    error = [abs(run(n) - exact) for n in steps]
    assert np.log(error[0] / error[1]) / np.log(steps[1] / steps[0]) > order - 1 / 3, error


def check_catalogue(name, label):
    entry = catalogue.get(name)
    case = entry.case(label)
    rtol = 1e-10
    found = ji.ensemble(
        entry.problem, case.q0, case.v0, t1=np.array([case.t1]), h=case.t1 / 16, e=case.restitution, args=case.args,
        scheme=ji.EventDriven(rtol, rtol), save=1,
    )  # fmt: skip
    q, _ = case.exact(np.asarray(found.t[0]))
    assert not np.any(found.failed)
    np.testing.assert_allclose(found.q[0], q, rtol=0, atol=FACTOR * rtol * max(1, np.max(np.abs(q))))
    if case.impulse is not None:
        np.testing.assert_allclose(found.impulse[0, -1], case.impulse, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("name", "label"), cases(FEW))
def test_catalogue(name, label):
    """Positions to thirty tolerances where the exact motion is known: flight, rest, releases, accumulation, two walls."""
    check_catalogue(name, label)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "label"), OTHERS)
def test_whole_catalogue(name, label):
    """The same of everything else: M(q), curved and moving walls, grazing, balls that meet at once, stiff bars."""
    check_catalogue(name, label)


def test_release_while_nothing_moves():
    """q'' = sin t - 1/2, e = 0: at rest the state has no error, whatever the substep; the force must be watched.

    Released at pi/6; q = t/2 ... integrated: with s = t - pi/6, v = cos(pi/6) - cos t - s/2.
    """
    problem = ji.Problem(lambda t, q, v, args: jnp.sin(t)[None] - 0.5, lambda t, q, args: q)
    for steps, t1 in ((1, 3.0), (4, 3.0)):
        found = ji.solve(problem, [0.0], [0.0], t1=t1, steps=steps, scheme=SCHEME, save="final")
        s, c = t1 - np.pi / 6, np.cos(np.pi / 6)
        assert found.q[-1, 0] == pytest.approx(c * s - (np.sin(t1) - 0.5) - s**2 / 4, abs=FACTOR * 1e-9)
    # released, landed, released again; the time of landing by bisection of the closed form
    again = ji.solve(problem, [0.0], [0.0], t1=9.0, steps=4, scheme=SCHEME, save="final")
    assert again.q[-1, 0] == pytest.approx(_second_flight(9.0), abs=FACTOR * 1e-9)


def _second_flight(t):
    """Of q'' = sin t - 1/2 from its second release at pi/6 + 2 pi, which comes after the first landing."""
    s = t - 2 * np.pi - np.pi / 6
    first = lambda t: np.cos(np.pi / 6) * (t - np.pi / 6) - (np.sin(t) - 0.5) - (t - np.pi / 6) ** 2 / 4
    assert first(6.0) < 0 and s > 0  # it has landed before
    return np.cos(np.pi / 6) * s - (np.sin(t) - 0.5) - s**2 / 4


def test_table_that_shakes_below_a_flight():
    """A ball above a table .46 sin 60 t: a flight is exact whatever the substep, so that gaps must be watched."""
    problem = ji.Problem(fall, lambda t, q, args: q - 0.46 * jnp.sin(60 * t), restitution=0.5)
    options = {"t1": 1.0, "args": {"g": 9.81}, "save": "final"}
    found, finer = (
        ji.solve(problem, [3.0], [0.0], steps=steps, scheme=ji.EventDriven(tol, tol), **options)
        for steps, tol in ((1, 1e-9), (7, 1e-12))
    )
    assert not found.failed and found.impulse[-1, 0] > 0
    # impacts multiply errors by 60 or more each
    np.testing.assert_allclose(found.q[-1], finer.q[-1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("depth", [1e-2, 1e-5, 1e-8])
def test_dips_are_seen(depth):
    """(t - 1)^2 (per 2) above a wall that it enters by ``depth`` between two rows: it rebounds from there."""
    problem = ji.Problem(lambda t, q, v, args: jnp.ones(1), lambda t, q, args: q, restitution=1.0)
    found = ji.solve(problem, [0.5 - depth], [-1.0], t1=2.0, steps=1, scheme=SCHEME, save="final")
    speed = np.sqrt(2 * depth)  # of the impact, at 1 - speed
    left = 1 + speed
    assert found.q[-1, 0] == pytest.approx(speed * left + left**2 / 2, abs=FACTOR * 1e-9 / speed**0.5)


# derivatives


def test_ball_has_the_exact_jacobian():
    """After two bounces, of initial data, restitution and gravity; round-off, as paths are polynomials."""

    def exact(x):
        y, v, e, g = x
        speed = jnp.sqrt(v * v + 2 * g * y)
        left = 1.2 - (v + speed + 2 * speed * e) / g
        up = e**2 * speed
        return jnp.stack([up * left - 0.5 * g * left**2, up - g * left])

    def run(x):
        s = ji.solve(BALL, x[:1], x[1:2], t1=1.2, steps=3, args={"g": x[3]}, e=x[2], scheme=SCHEME, save="final")
        return jnp.concatenate([s.q[-1], s.v[-1]])

    x = jnp.array([1.0, -0.4, 0.7, 9.81])
    np.testing.assert_allclose(run(x), exact(x), rtol=0, atol=1e-12)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(run))(x), jax.jacfwd(exact)(x), rtol=0, atol=1e-11)


def test_oscillator_has_the_exact_jacobian():
    """One impact against a wall that is off centre; the Jacobian's error is up to a hundred times the value's."""

    def exact(x):
        q, v, e, w, wall = x
        amplitude, phase = jnp.sqrt(q**2 + (v / w) ** 2), jnp.arctan2(v / w, q)
        left = 1.7 - (jnp.arccos(wall / amplitude) + phase) / w
        speed = e * w * jnp.sqrt(amplitude**2 - wall**2)
        c, s = jnp.cos(w * left), jnp.sin(w * left)
        return jnp.stack([wall * c + speed / w * s, speed * c - wall * w * s])

    def run(x):
        args = {"w": x[3], "wall": x[4]}
        s = ji.solve(SPRING, x[:1], x[1:2], t1=1.7, steps=1, args=args, e=x[2], scheme=SCHEME, save="final")
        return jnp.concatenate([s.q[-1], s.v[-1]])

    x = jnp.array([1.0, 0.0, 0.8, 2.0, 0.3])
    np.testing.assert_allclose(run(x), exact(x), rtol=0, atol=FACTOR * 1e-9)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(run))(x), jax.jacfwd(exact)(x), rtol=0, atol=100 * FACTOR * 1e-9)


def test_release_has_the_exact_jacobian():
    """A force t - c holds a resting ball until t = c: q = (t - c)^3 / 6; round-off, and what the search leaves of the time."""
    problem = ji.Problem(lambda t, q, v, args: jnp.stack([t - args]), lambda t, q, args: q, restitution=0.5)

    def run(c):
        s = ji.solve(problem, [0.0], [0.0], t1=2.0, steps=3, args=c, scheme=SCHEME, save="final")
        return jnp.stack([s.q[-1, 0], s.v[-1, 0], s.impulse[-1, 0]])

    c = 0.83
    np.testing.assert_allclose(run(c), [(2 - c) ** 3 / 6, (2 - c) ** 2 / 2, c**2 / 2], rtol=0, atol=1e-11)
    slopes = [-((2 - c) ** 2) / 2, -(2 - c), c]
    np.testing.assert_allclose(jax.jit(jax.jacfwd(run))(c), slopes, rtol=0, atol=1e-10)
