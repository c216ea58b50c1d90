"""Friction that depends on the slip speed: against closed forms and an integrator of another kind,
by every scheme that knows friction."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaximpact as ji
from support.breadth import slow_but

G = 9.81
SCHEMES = {
    "EventDriven": (ji.EventDriven(1e-10, 1e-10, order=5), {}, 1e-8),  # a hundred times its tolerance
    "EventCorrected": (ji.EventCorrected(), {"steps": 200}, 2e-5),  # second order
    "MoreauJean": (ji.MoreauJean(), {"steps": 2000}, 2e-3),  # first order
    "Maury": (ji.Maury(), {"steps": 2000}, 2e-3),
}


def block(mu, **more):
    """A point on a rough floor, pushed by f."""
    push = lambda t, q, v, args: jnp.array([args["f"], -G])
    return ji.Problem(push, lambda t, q, args: q[1:], slip=lambda t, q, v, args: v[:1], friction=mu, **more)


viscous = block(lambda s, args: args["k"] + args["a"] * s, restitution=0.0)


def sliding(k, a, v0, t):
    """Way and speed of a block that is slowed by g (k + a v), before it stops and after."""
    c = G * a
    t = jnp.minimum(t, jnp.log(1 + v0 * a / k) / c)
    v = (v0 + k / a) * jnp.exp(-c * t) - k / a
    return jnp.stack([(v0 - v - G * k * t) / c, v])


@pytest.mark.parametrize("name", slow_but(["EventDriven"], SCHEMES))
def test_a_block_that_slides_and_stops(name):
    """Its way and speed, and their derivatives by both coefficients and the start, while it slides and at rest."""
    scheme, steps, tolerance = SCHEMES[name]
    numbers, times = jnp.array([0.2, 0.15, 2.0]), (0.3, 0.8)  # it stops at .62 s

    def motion(x, t1):
        args = {"k": x[0], "a": x[1], "f": 0.0}
        start = jnp.stack([x[2], jnp.zeros(())])
        found = ji.solve(viscous, jnp.zeros(2), start, t1=t1, args=args, scheme=scheme, save="final", **steps)
        end = jnp.stack([found.q[-1, 0], found.v[-1, 0]])
        return end, (end, found.status)

    both = jax.jit(jax.jacfwd(motion, has_aux=True))
    for t1 in times:
        slope, (value, status) = both(numbers, t1)
        assert not status
        exact = lambda x, t1=t1: sliding(*x, t1)
        np.testing.assert_allclose(value, exact(numbers), atol=tolerance)
        if name == "Maury":  # its derivatives across stops are not its own
            continue
        np.testing.assert_allclose(slope, jax.jacfwd(exact)(numbers), atol=5 * tolerance)


@pytest.mark.slow
def test_at_rest_it_is_the_value_at_zero():
    """A block sticks up to mu(0) and slips beyond, with the acceleration f - g mu(v)."""
    falling = block(lambda s, args: 0.2 + 0.2 * jnp.exp(-s / 0.5))
    for f, moves in ((0.399 * G, False), (0.401 * G, True)):
        for scheme, steps, tolerance in (SCHEMES["EventDriven"], SCHEMES["MoreauJean"]):
            found = ji.solve(falling, [0.0, 0.0], [0.0, 0.0], t1=0.5, args={"f": f}, scheme=scheme, **steps)
            slope = lambda t, y, f=f: [y[1], f - G * (0.2 + 0.2 * np.exp(-y[1] / 0.5))]
            exact = solve_ivp(slope, [0, 0.5], [0, 0], rtol=1e-11, atol=1e-13).y[:, -1] * moves
            np.testing.assert_allclose([found.q[-1, 0], found.v[-1, 0]], exact, atol=tolerance)
            assert not found.failed


@pytest.mark.parametrize("name", slow_but(["EventDriven"], ["EventDriven", "EventCorrected", "MoreauJean"]))
def test_stick_and_slip_on_a_belt(name):
    """A mass on a spring, taken along by a belt and let go where friction falls with speed:
    against scipy between the events."""
    belt, mu = 0.2, lambda s, xp: 0.2 + 0.3 * xp.exp(-s / 0.2)
    system = ji.Problem(
        lambda t, q, v, args: jnp.array([-q[0], -1.0]), lambda t, q, args: q[1:], restitution=0.0,
        slip=lambda t, q, v, args: v[:1] - belt, friction=lambda s, args: mu(s, jnp),
    )  # fmt: skip
    t, x = 2.5, np.array([0.5, belt])  # it sticks from 0 to .5
    back = lambda t, y: y[1] - belt
    back.terminal, back.direction = True, 1
    slope = lambda t, y: [y[1], -y[0] + mu(abs(y[1] - belt), np)]
    found = solve_ivp(slope, [t, 12.0], x - [0, 1e-13], events=back, rtol=1e-12, atol=1e-13)
    t, x = found.t[-1], found.y[:, -1]
    assert t < 12
    x = x + np.array([belt * (min(12.0, t + (0.5 - x[0]) / belt) - t), 0])  # sticks again
    t = min(12.0, t + (0.5 - found.y[0, -1]) / belt)
    if t < 12:
        x = solve_ivp(slope, [t, 12.0], np.array([0.5, belt - 1e-13]), rtol=1e-12, atol=1e-13).y[:, -1]
    scheme, steps, tolerance = SCHEMES[name]
    motion = ji.solve(system, [0.0, 0.0], [belt, 0.0], t1=12.0, scheme=scheme, **(steps and {"steps": 12_000}))
    np.testing.assert_allclose([motion.q[-1, 0], motion.v[-1, 0]], x, atol=tolerance)


@pytest.mark.slow
def test_bodies_in_lists_take_it_too():
    """Two disks that slide on the floor and do not turn, in lists of near pairs."""
    law = lambda s, args: args["k"] + args["a"] * s
    pair = ji.bodies.disks([0.1, 0.1], walls=[None, (0, None)], gravity=G, friction=law, lists=True)
    q0, v0 = np.array([0.0, 0.1, 5.0, 0.1]), np.array([2.0, 0.0, 1.5, 0.0])
    found = ji.solve(pair, q0, v0, t1=0.3, steps=2000, args={"k": 0.2, "a": 0.15}, scheme=ji.MoreauJean(), save="final")
    for i in (0, 2):
        x = [found.q[-1, i] - q0[i], found.v[-1, i]]
        np.testing.assert_allclose(x, sliding(0.2, 0.15, v0[i], 0.3), atol=SCHEMES["MoreauJean"][2])


def test_what_does_not_fit_is_refused():
    given = {"q0": [0.0, 0.0], "v0": [1.0, 0.0], "t1": 0.1, "h": 1e-3, "args": {"f": 0.0}}
    with pytest.raises(ValueError, match="at all slip speeds"):
        ji.solve(block(lambda s, args: 0.3 - 0.1 * s), **given)
    with pytest.raises(ValueError, match=r"friction\(s, args\) must return one number or one per contact"):
        ji.solve(block(lambda s, args: jnp.ones(3)), **given)
    with pytest.raises(TypeError, match="let friction\\(s, args\\) depend"):
        block(lambda s, args: 0.3, static_friction=lambda s, args: 0.4)
    # where args are traced nothing is known before
    fast = jax.jit(
        lambda a: ji.solve(block(lambda s, args: 0.3 - args["a"] * s), **given | {"args": {"f": 0.0, "a": a}})
    )
    assert ji.Status(int(fast(1.0).status)) & ji.Status.NON_FINITE and not fast(0.1).failed


def test_it_is_part_of_the_statement():
    """Replaced by a number in a call, kept by copies, closed over in a traced function."""
    given = {"q0": np.zeros(2), "v0": np.array([2.0, 0.0]), "t1": 0.3, "steps": 2000, "scheme": ji.MoreauJean()}
    args, tolerance = {"k": 0.2, "a": 0.15, "f": 0.0}, SCHEMES["MoreauJean"][2]
    plain = ji.solve(viscous, **given, args=args, friction=0.2)
    np.testing.assert_allclose(plain.v[-1, 0], 2 - 0.3 * G * 0.2, atol=1e-9)
    closed = jax.jit(lambda k: ji.solve(block(lambda s, args: k + 0.15 * s), **given, args={"f": 0.0}).v[-1, 0])
    np.testing.assert_allclose(closed(0.2), sliding(0.2, 0.15, 2.0, 0.3)[1], atol=tolerance)
    copied = pickle.loads(pickle.dumps(OF_MODULE))
    assert copied.friction == OF_MODULE.friction
    np.testing.assert_allclose(ji.solve(copied, **given).v[-1, 0], sliding(0.2, 0.15, 2.0, 0.3)[1], atol=tolerance)


def _weight(t, q, v, args):
    return jnp.array([0.0, -G])


def _height(t, q, args):
    return q[1:]


def _along(t, q, v, args):
    return v[:1]


def _viscous(s, args):
    return 0.2 + 0.15 * s


OF_MODULE = ji.Problem(_weight, _height, slip=_along, friction=_viscous)
