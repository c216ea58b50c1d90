"""Restitution as a function of the approach speed: motions and derivatives against exact flights,
and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import Status, analysis
from jaximpact.bodies import disks
from jaximpact.study.fingerprint import sources
from support.breadth import slow, slow_but

FINE = ji.EventDriven(1e-12, 1e-12)
SCHEMES = [ji.MoreauJean(), ji.EventCorrected(), ji.EventDriven()]


def law(w, args):
    return args["a"] + args["b"] * w - args["c"] * w**2


MEASURED = {"a": 0.39, "b": 0.257, "c": 0.044}
OF_BALL = MEASURED | {"g": 9.81}
BALL = ji.Problem(lambda t, q, v, args: jnp.full_like(q, -args["g"]), lambda t, q, args: q, restitution=law)
SPRING = ji.Problem(lambda t, q, v, args: -q, lambda t, q, args: q, restitution=law)
FREE = lambda t, q, v, args: 0 * q
PUCK = ji.Problem(
    FREE, lambda t, q, args: jnp.stack([q[0], 1 - q[0]]), restitution=lambda w, args: 1 - args["c"] * w**0.2
)


def ball(x, t1):
    """Height and velocity of a ball, of x = (height, velocity, a, b, c, g), flight after flight."""
    y, u, a, b, c, g = x
    t = 0 * y
    while True:
        w = np.sqrt(u * u + 2 * g * y)
        flight = (u + w) / g
        if (t + flight).real > t1:
            s = t1 - t
            return np.stack([y + u * s - g * s * s / 2, u - g * s])
        t, y, u = t + flight, 0, (a + b * w - c * w * w) * w


def spring(x, t1):
    """The same of a spring that is at ease where it meets the wall, x = (place, velocity, a, b, c): flights take pi."""
    y, u, a, b, c = x
    t, w = np.pi / 2 + np.arctan(u / y), np.sqrt(y * y + u * u)
    while (t + np.pi).real < t1:
        t, w = t + np.pi, (a + b * w - c * w * w) * w
    u = (a + b * w - c * w * w) * w
    return np.stack([u * np.sin(t1 - t), u * np.cos(t1 - t)])


def with_jacobian(exact, x, t1):
    """Value and Jacobian, by complex steps."""
    step = 1e-30
    columns = [exact(x + 1j * step * unit, t1).imag / step for unit in np.eye(len(x))]
    return exact(x + 0j, t1).real, np.stack(columns, axis=1)


def end(problem, names, x, t1, steps, scheme):
    args = dict(zip(names, x[2:], strict=True))
    found = ji.solve(problem, x[:1], x[1:2], t1=t1, steps=steps, scheme=scheme, args=args, save="final")
    return jnp.concatenate([found.q[-1], found.v[-1]])


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [FINE, slow(ji.EventCorrected())])
def test_a_ball_against_its_flights(scheme):
    """Parabolas are exact for both: round-off of 8 flights, which the last bounces of a
    Jacobian magnify to some 1e3."""
    x, t1, names = np.array([1.2, -0.3, *OF_BALL.values()]), 1.4, tuple(OF_BALL)
    value, jacobian = with_jacobian(ball, x, t1)
    run = lambda x: end(BALL, names, x, t1, 50, scheme)
    np.testing.assert_allclose(run(x), value, rtol=0, atol=1e-10)
    np.testing.assert_allclose(jax.jacfwd(run)(x), jacobian, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("scheme", "order"), [(ji.EventCorrected(), 2), slow(ji.MoreauJean(), 1)])
def test_orders(scheme, order):
    """A spring against a wall, three impacts; errors at steps a factor of eight apart, the mean of sixteen neighbours
    each, known to .15 of an order."""
    x, t1 = np.array([1.0, 0.4, *MEASURED.values()]), 9.0
    value, jacobian = with_jacobian(spring, x, t1)
    errors = []
    for steps in (200, 1600):
        call = {"h": t1 / np.arange(steps, steps + 16), "args": MEASURED, "wrt": ("q0", "v0", "args")}
        found = ji.sensitivities(SPRING, x[:1], x[1:2], t1=t1, scheme=scheme, **call)
        state = np.concatenate([found.value["q"], found.value["v"]], axis=1)
        rows = lambda of: [of["q0"], of["v0"], *(of["args"][x][..., None] for x in MEASURED)]
        slopes = np.concatenate([np.concatenate(rows(of), axis=2) for of in found.jacobian.values()], axis=1)
        apart = np.max(np.abs(state - value), axis=1), np.max(np.abs(slopes - jacobian), axis=(1, 2))
        errors.append(np.mean(apart, axis=1))
    assert np.all(np.log(np.divide(*errors)) / np.log(8) > order - 0.15), errors


@pytest.mark.parametrize("scheme", slow_but(SCHEMES[1:2], SCHEMES))
def test_power_laws(scheme):
    """A puck between walls meets them at speeds w, (1 - c w^(1/5)) w, ...: exact for all, and so is its derivative,
    though w^(1/5) has none at the wall that is not met."""
    speed = lambda w, c: (1 - c * w**0.2) * w
    exact = lambda x: -speed(speed(speed(x[0], x[1]), x[1]), x[1])
    x = jnp.array([1.3, 0.2])
    options = {"t1": 2.9, "steps": 300, "scheme": scheme, "save": "final"}
    run = lambda x: ji.solve(PUCK, [0.4], x[:1], args={"c": x[1]}, **options).v[-1, 0]
    slope, value = jax.jit(jax.jacfwd(lambda x: (run(x),) * 2, has_aux=True))(x)
    right, rate = jax.jit(jax.value_and_grad(exact))(x)
    np.testing.assert_allclose(value, right, rtol=1e-12)
    np.testing.assert_allclose(slope, rate, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_law_for_each_contact(scheme):
    """At the wall on the right once: rounding."""
    problem = PUCK.replace(restitution=lambda w, args: jnp.stack([1.0, args["c"]]) * (1 - 0.1 * w))
    options = {"t1": 2.0, "h": 1e-2, "scheme": scheme, "save": "final"}
    found = ji.solve(problem, [0.4], [1.3], args={"c": 0.3}, **options)
    np.testing.assert_allclose(found.v[-1], [-0.3 * (1 - 0.13) * 1.3], rtol=1e-12)


def _disk():
    """A disk that falls onto a floor with spin, and friction there."""
    rubs = {"slip": lambda t, q, v, args: v[:1] + 0.2 * v[2:], "friction": 0.1}
    weight = lambda t, q, v, args: jnp.array([0.0, -9.81, 0.0])
    problem = ji.Problem(weight, lambda t, q, args: q[1:2] - 0.2, np.array([1.0, 1.0, 0.02]), **rubs)
    return problem, [0.0, 1.0, 0.0], [1.0, 0.0, 6.0], ji.MoreauJean()


def _heap():
    """Disks in a box, whose contacts come and go in a list."""
    problem = disks(np.full(4, 0.5), walls=[(0, 3), (0, None)], gravity=9.81, lists=True)
    return problem, np.array([0.7, 0.6, 1.9, 0.6, 1.2, 1.6, 1.5, 2.9]), np.zeros(8), ji.MoreauJean()


def _corner():
    """A puck in a corner that is not square, with weight, which bounces and comes to rest."""
    gaps = lambda t, q, args: jnp.stack([q[1], 0.8 * q[0] + 0.6 * q[1]])
    problem = ji.Problem(lambda t, q, v, args: jnp.array([-3.0, -9.81]), gaps)
    return problem, [0.5, 0.4], [0.3, 0.0], ji.EventDriven()


@pytest.mark.slow
@pytest.mark.parametrize("system", [_disk, _heap, _corner])
def test_a_constant_function_is_the_number(system):
    """The same operations but for a factor 1; with friction the derivative too."""
    problem, q0, v0, scheme = system()

    def run(v0, e):
        found = ji.solve(problem.replace(restitution=e), q0, v0, t1=1.1, h=2e-3, scheme=scheme, save="final")
        return found.q, found.v, found.status

    found, tangents = [], (jnp.array([1.0, 0.0, 2.0]),)
    for e in (0.6, lambda w, args: 0.6 + 0 * w):
        slope = jax.jvp(lambda v0, e=e: run(v0, e)[:2], (jnp.array(v0),), tangents)[1] if system is _disk else ()
        found.append((run(v0, e), slope))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9), *found)


def of_ball(restitution=law, scheme=SCHEMES[0], v0=0.0, of=OF_BALL, **options):
    """A ball dropped from 1, with a law or a number of its own."""
    options = {"t1": 0.9, "h": 1e-3, "save": "final", "scheme": scheme, "args": of} | options
    return ji.solve(BALL.replace(restitution=restitution), [1.0], [v0], **options)


def test_a_number_takes_its_place():
    """`e=` of a call is in place of the function; and a function may close over what is differentiated."""
    np.testing.assert_array_equal(of_ball(e=0.5).v, of_ball(0.5).v)
    with pytest.raises(ValueError, match="wrt names 'e', but restitution is a function"):
        ji.sensitivities(BALL, [1.0], [0.0], t1=0.9, h=1e-3, wrt="e", args=OF_BALL, scheme=SCHEMES[0])
    closed = lambda a: of_ball(lambda w, _: a + 0.1 * w).v[-1, 0]
    told = lambda a: of_ball(of={"a": a, "b": 0.1, "c": 0.0, "g": 9.81}).v[-1, 0]
    np.testing.assert_allclose(jax.jit(jax.jacfwd(closed))(0.4), jax.jit(jax.jacfwd(told))(0.4), rtol=1e-12)


def test_wrong_functions():
    shape, steep = r"restitution\(w, args\) must return one number or one per contact", lambda w, args: 0.7 * w
    for given, message in (
        ({"scheme": ji.PaoliSchatzman()}, "approach speed, and PaoliSchatzman takes numbers"),
        ({"scheme": ji.Maury()}, "approach speed, and Maury takes numbers"),
        ({"restitution": lambda w, args: jnp.ones(2)}, shape),
        ({"restitution": lambda w, args: jnp.ones((1, 1))}, shape),
        ({"restitution": steep}, r"restitution\(w, args\) must lie in \[0, 1\], got 1.4 at the speed 2 of contact 0"),
        # one that no speed would mend, though none is there yet
        ({"restitution": lambda w, args: 1.2, "v0": 0.0}, r"got 1\.2 at the speed 0 "),
    ):
        with pytest.raises(ValueError, match=message):
            of_ball(**{"v0": -2.0} | given)
    starts = [1.0], [[-1.0], [-2.0]]
    with pytest.raises(ValueError, match=r"got 1\.4 of trajectory 1 at the speed 2"):
        ji.ensemble(BALL.replace(restitution=steep), *starts, t1=0.9, h=1e-3, args=OF_BALL, scheme=SCHEMES[0])
    with pytest.raises(TypeError, match="restitution must be a number"):
        BALL.replace(restitution="0.5")


@pytest.mark.parametrize("scheme", slow_but(SCHEMES[:1], SCHEMES))
def test_values_out_of_range_on_the_way(scheme):
    """At the impact, 4.4 m/s, which no check of the start foresees; of what is traced, at the first one."""
    rising = lambda w, args: 0.5 + args["a"] * w
    run = lambda top: of_ball(rising, scheme, of={"a": top, "g": 9.81}, t1=0.6).status
    assert jax.jit(run)(0.1) == 0
    for top in (0.2, -0.2, np.nan):
        assert jax.jit(run)(top) & Status.INPUT_INVALID


def test_analyses():
    """What is lost in impacts, (1 - e(w)^2) w^2 / 2; impacts located; and the source that a study is known by."""
    motion = of_ball(t1=1.3, scheme=ji.EventCorrected(), save="all")
    w, lost, args = np.sqrt(2 * 9.81), [], OF_BALL
    found = analysis.impacts(BALL, motion, args=args)
    for before, after in zip(found.before, found.after, strict=True):
        np.testing.assert_allclose([before, after], [-w, law(w, args) * w], rtol=1e-8)
        lost.append((1 - law(w, args) ** 2) * w**2 / 2)
        w = law(w, args) * w
    assert len(lost) == 2
    # the row interval's impact is placed to second order
    np.testing.assert_allclose(analysis.balance(BALL, motion, args=args).loss[-1], sum(lost), rtol=1e-5)
    assert sources(BALL)["restitution"] != sources(SPRING.replace(restitution=lambda w, args: 0.5))["restitution"]
    assert sources(BALL)["restitution"] == sources(SPRING)["restitution"]


@pytest.mark.slow
def test_families_of_orbits():
    """Along a branch of an impact oscillator a constant function is the number,
    whose orbits have impacts of the same speed."""
    force = lambda t, q, v, args: -q + args["A"] * jnp.cos(2.2 * t) - 0.1 * v
    found = []
    for e in (0.6, lambda w, args: 0.6 + 0 * w):
        problem = ji.Problem(force, lambda t, q, args: q + 0.1, restitution=e)
        options = {"period": 2 * np.pi / 2.2, "args": {"A": 1.0}, "scheme": ji.EventDriven()}
        orbit = analysis.periodic_orbit(problem, [0.1], [0.88], **options)
        options |= {"parameter": "A", "bounds": (0.9, 1.1), "points": 3}
        branch = analysis.continue_orbit(problem, orbit.q, orbit.v, **options)
        found.append(np.concatenate([branch.q.ravel(), branch.v.ravel(), branch.impact_speed]))
    np.testing.assert_allclose(*found, rtol=1e-7)
