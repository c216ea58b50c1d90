"""`solve`: what is saved, how it is interpolated, how often it is traced, what differentiates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji

ALL = [ji.PaoliSchatzman(), ji.Maury(), ji.MoreauJean()]
SCHEMES = pytest.mark.parametrize("scheme", ALL, ids=lambda s: type(s).__name__)
# what the loop does, whatever the scheme: the others in the slow suite
FIRST_SCHEME = pytest.mark.parametrize(
    "scheme",
    [ALL[0], *(pytest.param(scheme, marks=pytest.mark.slow) for scheme in ALL[1:])],
    ids=lambda s: type(s).__name__,
)


def force(t, q, v, args):
    return jnp.stack([-args["g"] - 0.1 * v[0]])


BALL = ji.Problem(
    force, lambda t, q, args: q - args["floor"], energy=lambda t, q, v, args: 0.5 * v @ v + args["g"] * q[0]
)
ARGS = {"g": 9.81, "floor": 0.1}


def run(scheme, **options):
    options = {"t1": 1.0, "h": 0.01, "e": 0.0, "args": ARGS, **options}
    return ji.solve(BALL, [1.0], [0.3], scheme=scheme, **options)


@FIRST_SCHEME
def test_every_kth_step_and_final_are_rows_of_all(scheme):
    everything = run(scheme)
    assert everything.t.shape == (101,)
    for every in (1, 7, 1000):
        kept = run(scheme, save=every)
        rows = [*range(0, 100, every), 100]
        np.testing.assert_array_equal(kept.t, everything.t[np.array(rows)])
        for name in ("q", "v", "z", "impulse", "energy"):
            # another program for another plan: roundings differ by units in the last place, carried over 100 steps
            np.testing.assert_allclose(
                getattr(kept, name), getattr(everything, name)[np.array(rows)], rtol=1e-13, atol=1e-14
            )
    final = run(scheme, save="final")
    assert final.q.shape == (1, 1)
    np.testing.assert_allclose(final.q[0], everything.q[-1], rtol=1e-13)
    assert float(final.t[0]) == 1.0


@SCHEMES
def test_given_times_are_interpolated_affinely(scheme):
    everything = run(scheme)
    times = np.sort(np.random.default_rng(0).uniform(0, 1, 300))  # several in one step
    kept = run(scheme, save=times)
    assert kept.t.shape == (301,)  # the final state is always the last row
    np.testing.assert_allclose(kept.t[:-1], times, atol=1e-15)
    t, q = np.asarray(everything.t), np.asarray(everything.q)[:, 0]
    np.testing.assert_allclose(kept.q[:-1, 0], np.interp(times, t, q), atol=1e-13)
    impulse = np.asarray(everything.impulse)[:, 0]
    np.testing.assert_allclose(kept.impulse[:-1, 0], np.interp(times, t, impulse), atol=1e-12)


@FIRST_SCHEME
def test_last_row_is_t1_though_no_multiple_of_h(scheme):
    fine = run(scheme, t1=1.01)
    kept = run(scheme, t1=1.0037)
    assert kept.t.shape == (102,)  # the last step lands beyond t1
    assert float(kept.t[-1]) == 1.0037
    np.testing.assert_allclose(kept.q[-1], fine.q[100] + 0.37 * (fine.q[101] - fine.q[100]), atol=1e-13)
    np.testing.assert_allclose(kept.q[:-1], fine.q[:-1], rtol=1e-13)


def test_times_on_steps_and_at_the_ends():
    everything = run(None)
    kept = run(None, save=[0.0, 0.25, 0.5, 1.0])
    assert kept.t.shape == (4,)  # t1 itself is asked for once
    np.testing.assert_allclose(kept.q, everything.q[np.array([0, 25, 50, 100])], atol=1e-14)


def test_function_of_the_state():
    everything = run(None)
    speed = lambda t, q, v, args: {"t": t, "height": q[0] - args["floor"], "speed": jnp.abs(v[0])}
    kept = run(None, save=ji.Save(every=10, function=speed))
    assert kept.q.shape == (1, 1)
    np.testing.assert_allclose(kept.values["t"], everything.t[::10])
    np.testing.assert_allclose(kept.values["height"], everything.q[::10, 0] - 0.1)
    np.testing.assert_array_equal(kept.values["speed"], jnp.abs(everything.v[::10, 0]))
    timed = run(None, save=ji.Save(times=[0.105, 0.5], function=speed))
    np.testing.assert_allclose(
        timed.values["height"], np.interp([0.105, 0.5, 1.0], everything.t, everything.q[:, 0]) - 0.1
    )


@FIRST_SCHEME
def test_one_trace_for_all_numbers(scheme):
    """The force is called to check the arguments of each call; a trace of the motion would call it more often."""
    calls = []

    def counted(t, q, v, args):
        calls.append(t)
        return force(t, q, v, args)

    ball = ji.Problem(counted, lambda t, q, args: q - args["floor"])
    counts = []
    for k, h in enumerate([0.01, 0.02, 0.03, 0.005]):
        for number in (float, np.float64):
            calls.clear()
            options = {"t1": 100 * h, "h": number(h), "e": number(0.0), "args": {"g": number(1 + k), "floor": 0.0}}
            ji.solve(ball, [1.0], [0.3], scheme=scheme, save="final", **options)
            counts.append(len(calls))
    assert set(counts[1:]) == {min(counts)} and min(counts) < 0.3 * counts[0]


@FIRST_SCHEME
@pytest.mark.parametrize(
    "projection",
    [ji.ActiveSet(), *(pytest.param(x, marks=pytest.mark.slow) for x in (ji.ProjectedGradient(), ji.ADMM()))],
    ids=lambda p: type(p).__name__,
)
def test_discrete_derivative(scheme, projection):
    """Derivative of the computed map, forward and reverse, against differences, through persistent contact."""

    def end(x):
        found = ji.solve(
            BALL, x[:1], x[1:2], t1=1.0, steps=60, e=0.0, args={"g": x[2], "floor": x[3]}, scheme=scheme,
            projection=projection, save="final", sensitivity="discrete",
        )  # fmt: skip
        return jnp.concatenate([found.q[0], found.v[0], found.impulse[0]])

    x = jnp.array([1.0, 0.3, 9.81, 0.1])
    forward, reverse = jax.jit(jax.jacfwd(end))(x), jax.jit(jax.jacrev(end))(x)
    h = 1e-6
    differences = np.stack([(end(x + h * e) - end(x - h * e)) / (2 * h) for e in jnp.eye(4)], axis=1)
    np.testing.assert_allclose(forward, reverse, atol=1e-9)
    np.testing.assert_allclose(forward, differences, atol=1e-5)  # round-off 1e-12 over 2h
    assert np.any(np.abs(forward) > 0.5)


def test_problem_without_constraints():
    """Free flight of the position scheme is exact for a constant force at the nodes; energy is reported."""
    free = ji.Problem(lambda t, q, v, args: jnp.array([0.0, -1.0]))
    found = ji.solve(free, [0.0, 0.0], [1.0, 2.0], t1=2.0, h=0.01).raise_if_failed()
    assert found.impulse.shape == (201, 0)
    t = np.asarray(found.t)
    np.testing.assert_allclose(found.q, np.stack([t, 2 * t - t**2 / 2], axis=1), atol=1e-12)


@pytest.mark.parametrize("execution", ["native", pytest.param("xla", marks=pytest.mark.slow)])
@pytest.mark.parametrize("e", [0.0, 0.9])
def test_the_energy_of_every_row_is_that_before_or_behind_an_impact(e, execution):
    """Also within the two steps of one, whose velocity between the two is that of no time."""
    g, h, schemes = 9.81, 1e-3, [ji.PaoliSchatzman()] if e else [ji.PaoliSchatzman(), ji.Maury()]
    ball = ji.Problem.from_potential(lambda q, args: g * q[0], lambda t, q, args: q, restitution=e)
    for scheme in schemes:
        found = ji.solve(ball, [1.0], [0.0], t1=0.6, h=h, scheme=scheme, execution=execution, save="all")
        energy = np.asarray(found.energy)
        hit = np.flatnonzero(np.diff(found.impulse[:, 0]))[0] + 1
        # of first order: h g times the speed of the impact, for the velocity and for the position
        allowed = 2 * h * g * np.sqrt(2 * g)
        np.testing.assert_allclose(energy[: hit + 1], g, rtol=0, atol=allowed)
        np.testing.assert_allclose(energy[hit + 2 :], e**2 * g, rtol=0, atol=allowed)
        assert min(abs(energy[hit + 1] - g), abs(energy[hit + 1] - e**2 * g)) < allowed


class Taken(Exception):
    """Raised by the way of execution that a motion takes."""


@pytest.mark.parametrize(("contacts", "way"), [(74_999, "native"), (75_000, "xla")])
def test_one_motion_of_many_contacts_goes_through_xla(contacts, way, monkeypatch):
    """From 150,000 entries of the gradients on, of two coordinates here, and with no trace for native code."""

    def take(way):
        def call(*_, **__):
            raise Taken(way)

        return call

    monkeypatch.setattr("jaximpact.simulation.backends.as_native", lambda *_: take("native"))
    monkeypatch.setattr("jaximpact.simulation.backends.one_lane", take("xla"))
    problem = ji.Problem(lambda t, q, v, args: -q, lambda t, q, args: 1 + 0 * jnp.tile(q[:1], contacts))
    for execution, taken in {"auto": way, "xla": "xla", "native": "native"}.items():
        with pytest.raises(Taken, match=taken):
            ji.solve(problem, [0.0, 0.0], [0.0, 0.0], t1=1.0, h=0.1, execution=execution)


BOUNCING = ji.Problem(lambda t, q, v, args: jnp.full(1, -9.81), lambda t, q, args: q, restitution=0.8)


def height(x):
    """Height at t = 1.2, after two bounces, of a ball that falls from x."""
    once = jnp.sqrt(2 * x / 9.81)
    left = 1.2 - once * (1 + 2 * 0.8)
    return 0.8**2 * 9.81 * once * left - 0.5 * 9.81 * left**2


def test_without_steps_the_motion_is_located_to_nine_digits():
    found = ji.solve(BOUNCING, [1.0], [0.0], t1=1.2)
    assert "EventDriven" in repr(found) and found.q.shape == (201, 1)
    # ten times the tolerance of 1e-9
    assert found.q[-1, 0] == pytest.approx(float(height(1.0)), abs=1e-8)
    disks = ji.bodies.disks(np.full(2, 0.1), lists=True)
    with pytest.raises(ValueError, match="bodies in lists go by steps: give h"):
        ji.solve(disks, [0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0], t1=1.0)


@pytest.mark.slow
def test_derivatives_and_ensembles_need_no_steps_either():
    """Derivatives have up to a hundred times the tolerance."""
    slope = float(jax.grad(height)(1.0))
    found = jax.grad(lambda q0: ji.solve(BOUNCING, q0, jnp.zeros(1), t1=1.2).q[-1, 0])(jnp.ones(1))
    assert found[0] == pytest.approx(slope, abs=1e-7)
    many = ji.ensemble(BOUNCING, [[1.0], [0.95]], [0.0], t1=1.2)
    assert np.allclose(many.q[:, -1, 0], [height(1.0), height(0.95)], rtol=0, atol=1e-8)
    by = ji.sensitivities(BOUNCING, [1.0], [0.0], t1=1.2, wrt="q0")
    assert by.trusted and by.jacobian["q"]["q0"][0, 0] == pytest.approx(slope, abs=1e-7)
