"""`EventDriven` with friction in the plane: stops, breaks, reversals, frictional impacts and jams,
to its tolerance in states and Jacobians.

Exact motions are closed forms, or located by code that shares nothing with the library,
to 1e-11 in states and 1e-10 in Jacobians.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from support.breadth import slow_but
from support.experiments.friction import ALL, call_of, exact_of, jacobian
from support.static_friction import MOTIONS as STATIC
from support.static_friction import errors, exact

G = 9.81
TIGHT = ji.EventDriven(1e-11, 1e-11)
IN_PLANE = [name for name in ALL if "space" not in name]


@pytest.mark.parametrize("name", slow_but(("bounces, slips, sticks",), IN_PLANE))
def test_states_and_jacobians_have_the_digits_of_the_tolerance(name):
    system = ALL[name]
    expected = exact_of(system)
    state, slopes, status = jacobian(system, TIGHT, h=np.array([system.t1 / 20]))
    assert status[0] & ~int(ji.Status.FRICTION_JAMMED) == 0  # the remark on Painleve's rod
    # some tens of tolerances of substeps, as the motions amplify them
    np.testing.assert_allclose(state[0], expected.state, rtol=0, atol=1e-9)
    np.testing.assert_allclose(
        slopes[0], expected.jacobian, rtol=0, atol=1e-9 * (1 + np.max(np.abs(expected.jacobian)))
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", STATIC)
def test_several_events_in_a_row(name):
    """Static friction above that of slip: where a contact breaks away, its force jumps."""
    (of_state, of_slopes), found = errors(name, TIGHT, 20)
    assert found.status == 0 and of_state < 1e-9
    # those of differences
    assert of_slopes < 1e-7 * (1 + np.max(np.abs(exact(name)[-1])))


@pytest.mark.slow
def test_rows_tell_modes_impulses_and_work():
    """A sticking block takes no work, whatever its table does; friction of a slipping one takes mu N times its way."""
    system = ALL["sticks to a shaken table, and slides"]
    start, options = call_of(system)
    found = ji.solve(*start, **options, steps=400, scheme=TIGHT)
    slips = found.slips(start[0], args=options["args"])
    assert list(slips.kind) == ["break", "stop"] * 5
    load = options["args"]["mu"] * options["args"]["g"]
    way = np.abs(slips.velocity[:, 0, 0])
    np.testing.assert_allclose(-slips.work[-1, 0], load * np.trapezoid(way, slips.times), rtol=1e-3)  # of trapezia
    np.testing.assert_allclose(found.impulse[-1, 0], options["args"]["g"] * system.t1, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [TIGHT, ji.EventCorrected(), ji.MoreauJean()], ids=lambda s: type(s).__name__)
def test_two_blocks_that_stop_or_turn_round_together(scheme):
    """Each at its own time with other data: had the second block the time of the first, its derivatives had been those
    of the first, off by .74 of its own, trusted."""
    blocks = ji.Problem(
        lambda t, q, v, args: jnp.stack([args["pull"], 0 * t - G, args["pull"], 0 * t - G]),
        lambda t, q, args: q[1::2],
        slip=lambda t, q, v, args: v[::2],
        friction=0.3,
    )
    start = np.zeros((2, 4)), np.array([[2.0, 0.0, 2.0, 0.0], [3.0, 0.0, 3.0, 0.0]])
    call = {"args": {"pull": np.array([0.0, -5.0])}, "args_axes": 0, "t1": 1.0, "steps": 400, "scheme": scheme}
    found = ji.sensitivities(blocks, *start, **call, wrt="v0")
    own = np.array([0.0, (5 - 0.3 * G) / (5 + 0.3 * G)])
    # steps of MoreauJean are of first order
    digits = 5e-3 if scheme == ji.MoreauJean() else 1e-9
    slopes = found.jacobian["v"]["v0"][:, ::2, ::2]
    assert found.trusted[0]
    for lane in np.flatnonzero(found.trusted):
        np.testing.assert_allclose(slopes[lane], own[lane] * np.eye(2), rtol=0, atol=digits)


@pytest.mark.slow
def test_a_block_that_is_lifted_off_within_its_cone():
    """Force and room in the cone vanish together: straight up, or along a line inside the cone; for mu above 1 too.

    With y'' = k t - G = k s, s = t - G/k: y = k s^3/6, and x = share y.
    """
    force = lambda t, q, v, args: (args["lift"] * t - G) * jnp.stack([args["share"], jnp.ones_like(t)])
    block = ji.Problem(force, lambda t, q, args: q[1:], slip=lambda t, q, v, args: v[:1], friction=0.3)
    share, mu = np.array([0.0, 0.0, 1e-9, 0.1, 2.0]), np.array([0.3, 3.0, 0.3, 0.3, 3.0])
    found = ji.sensitivities(
        block, np.zeros((5, 2)), [0.0, 0.0], t1=2.0, steps=4, e=0.0, args={"lift": 8.0, "share": share},
        friction=mu[:, None], args_axes={"lift": None, "share": 0}, wrt="args",
        scheme=ji.EventDriven(1e-11, 1e-11, order=5), progress=False,
    )  # fmt: skip
    begun = G / 8.0
    s = 2.0 - begun
    height, by_lift = 8.0 * s**3 / 6, s**2 * (2.0 + 2 * begun) / 6
    assert found.trusted.all()
    np.testing.assert_allclose(found.value["q"], height * np.stack([share, share**0], axis=1), rtol=0, atol=1e-11)
    expected = by_lift * np.stack([share, share**0], axis=1)
    np.testing.assert_allclose(found.jacobian["q"]["args"]["lift"].reshape(5, 2), expected, rtol=0, atol=1e-10)
