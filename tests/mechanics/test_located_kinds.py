"""`save=Events(kinds=...)`: times and states of stops, reversals, breaks and releases,
with the derivatives of the motion.

Motions of these tests are polynomials between events, whose times are roots in closed form or of Newton's method:
tolerances are some tens of those of the scheme, 1e-11.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from support.static_friction import BLOCK, NUMBERS, located
from support.static_friction import MOTIONS as STATIC

KINDS = ("impact", "stop", "reversal", "break", "release")
TIGHT = ji.EventDriven(1e-11, 1e-11, order=5)
G = 9.81
OPTIONS = {"t1": 1.9, "steps": 5, "scheme": TIGHT, "save": ji.Events(impacts=5, kinds=KINDS)}
NEAR = {"rtol": 1e-10, "atol": 1e-10}

# pulled by k t (c - t): harder and harder, then less, and the other way
PULLED = ji.Problem(
    lambda t, q, v, args: jnp.stack([args["k"] * t * (args["c"] - t), -G + 0 * t]), lambda t, q, args: q[1:],
    slip=lambda t, q, v, args: v[:1], friction=lambda args: args["mu"], static_friction=lambda args: args["rests"],
)  # fmt: skip
AT = (8.0, 1.5, 0.3, 0.4)


def pulled(x, **options):
    x = jnp.asarray(x)
    args = dict(zip(("k", "c", "mu", "rests"), x, strict=True))
    return ji.solve(PULLED, jnp.zeros(2, x.dtype), jnp.zeros(2, x.dtype), args=args, **OPTIONS | options).events


def exact_times(x):
    """It breaks away where the pull is that of static friction, stops where its speed is zero again,
    and breaks away to the other side."""
    k, c, mu, rests = x
    half = 0.5 * c
    first = half - jnp.sqrt(half**2 - rests * G / k)
    speed = lambda t: k * (c * t**2 / 2 - t**3 / 3) - mu * G * t
    stop = jnp.asarray(1.6)
    for _ in range(8):
        stop = stop - (speed(stop) - speed(first)) / (k * stop * (c - stop) - mu * G)
    return jnp.stack([first, stop, half + jnp.sqrt(half**2 + rests * G / k)])


def test_a_block_breaks_away_and_stops_at_exact_times_with_exact_derivatives():
    x = jnp.asarray(AT)
    jacobian, found = jax.jacfwd(lambda x: ((found := pulled(x)).t[:3], found), has_aux=True)(x)
    np.testing.assert_allclose(found.t[:3], exact_times(x), **NEAR)
    assert [KINDS[k] for k in found.kind[:3]] == ["break", "stop", "break"] and found.count == 3
    assert found.contact.tolist() == [0, 0, 0, -1, -1] and found.kind.tolist()[3:] == [-1, -1]
    assert found.of("stop").tolist() == [False, True, False, False, False]
    np.testing.assert_allclose(found.before[:3], 0, atol=1e-10)
    np.testing.assert_array_equal(found.impulse[:3], 0)
    np.testing.assert_allclose(jacobian, jax.jacfwd(exact_times)(x), rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", STATIC)
def test_several_events_in_a_row_are_those_of_another_method(name):
    """Of a shaken block and an oscillator: all events of friction in the order of time,
    and their slopes by differences."""
    changes, (x, v), t1, events = STATIC[name]
    args = {key: jnp.asarray(value) for key, value in (NUMBERS | changes).items()}
    save = ji.Events(impacts=8, kinds=KINDS)

    def kept(mu):
        options = {"t1": t1, "steps": 20, "args": args | {"mu": mu}, "scheme": TIGHT, "save": save}
        found = ji.solve(BLOCK, [x, 0.0], [v, 0.0], **options).events
        return found.t[: len(events)], found

    slope, found = jax.jacfwd(kept, has_aux=True)(args["mu"])
    assert [KINDS[k] for k in found.kind if k >= 0] == events

    def expected(mu):
        times: list = []
        located(NUMBERS | changes | {"mu": mu}, x, v, t1, times)
        return np.array(times)

    mu = float(args["mu"])
    np.testing.assert_allclose(found.t[: len(events)], expected(mu), rtol=0, atol=1e-9)
    # those of differences
    slopes = (expected(mu + 1e-6) - expected(mu - 1e-6)) / 2e-6
    np.testing.assert_allclose(slope, slopes, rtol=0, atol=1e-6 * (1 + np.max(np.abs(slopes))))


@pytest.mark.slow
def test_second_derivatives():
    second, right = (jax.jacfwd(jax.jacfwd(f))(jnp.asarray(AT)) for f in (lambda x: pulled(x).t[:3], exact_times))
    np.testing.assert_allclose(second, right, rtol=0, atol=1e-8 * np.max(np.abs(right)))


@pytest.mark.slow
@pytest.mark.parametrize("rubs", [False, True])
def test_a_release_has_the_time_at_which_the_force_vanishes(rubs):
    """Lifted by k t against its weight, after a drop from a height without a bounce; it slips all the while."""
    friction = {"slip": lambda t, q, v, args: v[:1], "friction": 0.3} if rubs else {}
    problem = ji.Problem(
        lambda t, q, v, args: jnp.stack([0 * t, args["k"] * t - G]), lambda t, q, args: q[1:], **friction
    )
    kinds = KINDS if rubs else ("impact", "release")

    def numbers(k):
        options = OPTIONS | {"t1": 2.0, "save": ji.Events(impacts=3, kinds=kinds)}
        start = jnp.stack([0 * k, 0.05 + 0 * k]), jnp.asarray([3.0, 0.0])
        found = ji.solve(problem, *start, args={"k": k}, **options).events
        return jnp.stack([found.t[1], found.q[1, 1], found.before[1, 1], *found.before[1, :1]]), found

    slope, found = jax.jacfwd(numbers, has_aux=True)(jnp.asarray(8.0))
    assert [KINDS[k] for k in found.kind[:2]] == ["impact", "release"] and found.count == 2
    np.testing.assert_allclose(found.t[1], G / 8, **NEAR)
    np.testing.assert_allclose(found.q[1, 1], 0, atol=1e-10)
    # the impulse of friction is mu (g t - k t^2 / 2) from the start on, g^2 / 2k mu in all; the height is at rest,
    # whenever it leaves
    friction = 0.3 * G**2 / 2 if rubs else 0.0
    np.testing.assert_allclose(found.before[1], [3 - friction / 8, 0], atol=1e-10)
    np.testing.assert_allclose(slope, [-G / 64, 0, 0, friction / 64], rtol=0, atol=1e-9)
    second = jax.jacfwd(jax.jacfwd(lambda k: numbers(k)[0][0]))(jnp.asarray(8.0))
    np.testing.assert_allclose(second, 2 * G / 8**3, rtol=0, atol=1e-8)


@pytest.mark.slow
def test_contacts_that_stop_at_one_instant_have_derivatives_of_their_own():
    """Two blocks without a link, the same by chance: v / (mu g) is when each stops."""
    blocks = ji.Problem(
        lambda t, q, v, args: jnp.concatenate([jnp.zeros(2), -G + jnp.zeros(2)]), lambda t, q, args: q[2:],
        slip=lambda t, q, v, args: v[:2, None], friction=0.3,
    )  # fmt: skip
    started = lambda v: ji.solve(blocks, jnp.zeros(4), jnp.concatenate([v, jnp.zeros(2)]), **OPTIONS).events
    jacobian, found = jax.jacfwd(lambda v: ((found := started(v)).t[:2], found), has_aux=True)(jnp.ones(2))
    assert [KINDS[k] for k in found.kind[:2]] == ["stop", "stop"] and found.contact.tolist() == [0, 1, -1, -1, -1]
    np.testing.assert_allclose(found.t[:2], 1 / (0.3 * G), **NEAR)
    np.testing.assert_allclose(jacobian, np.eye(2) / (0.3 * G), rtol=0, atol=1e-9)


@pytest.mark.slow
def test_contacts_that_open_at_one_instant_have_derivatives_of_their_own():
    """Two masses without a link, the same by chance: g / k is when each leaves; and a third that stays."""
    masses = ji.Problem(lambda t, q, v, args: args * t - G, lambda t, q, args: q)
    save = ji.Events(impacts=3, kinds="release")
    lifted = lambda k: ji.solve(masses, jnp.zeros(3), jnp.zeros(3), args=k, **OPTIONS | {"save": save}).events
    k = jnp.asarray([8.0, 0.0, 8.0])
    jacobian, found = jax.jacfwd(lambda k: ((found := lifted(k)).t[:2], found), has_aux=True)(k)
    assert found.contact.tolist() == [0, 2, -1]
    np.testing.assert_allclose(found.t[:2], G / 8, **NEAR)
    np.testing.assert_allclose(jacobian, np.array([[1, 0, 0], [0, 0, 1]]) * -G / 64, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_a_reversal_is_no_stop():
    """Pulled back harder than friction holds: slip turns round at v / (f + mu g)."""
    block = ji.Problem(
        lambda t, q, v, args: jnp.stack([-args, -G + 0 * args]), lambda t, q, args: q[1:],
        slip=lambda t, q, v, args: v[:1], friction=0.3,
    )  # fmt: skip

    def turned(f):
        return ji.solve(block, [0.0, 0.0], jnp.stack([2 + 0 * f, 0 * f]), args=f, **OPTIONS).events

    found = turned(jnp.asarray(5.0))
    assert [KINDS[k] for k in found.kind[:1]] == ["reversal"] and found.count == 1
    np.testing.assert_allclose(found.t[0], 2 / (5 + 0.3 * G), **NEAR)
    slope = jax.jacfwd(lambda f: turned(f).t[0])(jnp.asarray(5.0))
    np.testing.assert_allclose(slope, -2 / (5 + 0.3 * G) ** 2, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_kinds_as_tables():
    args = dict(zip(("k", "c", "mu", "rests"), AT, strict=True))
    found = ji.solve(PULLED, [0.0, 0.0], [0.0, 0.0], args=args, **OPTIONS)
    assert found.events.to_pandas()["kind"].tolist() == ["break", "stop", "break"]
    assert found.events.to_xarray().kind.dims == ("impact",)
    one = ji.solve(PULLED, [0.0, 0.0], [0.0, 0.0], args=args, **OPTIONS | {"save": ji.Events(impacts=5)})
    assert one.events.kind is None and one.events.count == 0 and not one.events.of("impact").any()


def test_what_cannot_be_kept_is_said():
    ball = ji.Problem(lambda t, q, v, args: -G + 0 * q, lambda t, q, args: q)
    with pytest.raises(ValueError, match="asks for stop of a problem without friction"):
        ji.solve(ball, [1.0], [0.0], **OPTIONS | {"save": ji.Events(kinds=("impact", "stop"))})
    for kinds in (("slide",), ()):
        with pytest.raises(ValueError, match="takes some of impact, stop, reversal, break, release"):
            ji.solve(ball, [1.0], [0.0], **OPTIONS | {"save": ji.Events(kinds=kinds)})
    with pytest.raises(ValueError, match=r"MoreauJean .* scheme=EventDriven"):
        pulled(AT, scheme=ji.MoreauJean())
