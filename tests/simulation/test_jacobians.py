"""`sensitivities`: both modes and `jax.jacfwd` agree, a batch is its lanes, and bad arguments are named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from support.breadth import slow

BALL = ji.Problem(lambda t, q, v, args: -args["g"] * jnp.ones_like(q), lambda t, q, args: q - args["wall"])
ARGS = {"g": 9.81, "wall": 0.05}
MOTION = {"q0": [1.0], "v0": [-1.3], "t1": 1.3, "e": 0.7, "args": ARGS}


def last(solution):
    return {"q": solution.q[-1], "impulse": solution.impulse[-1]}


def same(one, other):
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-10)  # sums of some hundred rounded terms, in another order


@pytest.mark.slow
def test_solve_has_the_same_jacobian():
    direct = jax.jacfwd(
        lambda x: last(ji.solve(BALL, x["q0"], [-1.3], t1=1.3, h=1e-2, e=x["e"], args=x["args"], save="final"))
    )({"q0": jnp.array([1.0]), "e": 0.7, "args": jax.tree.map(jnp.asarray, ARGS)})
    same(ji.sensitivities(BALL, **MOTION | {"h": 1e-2, "wrt": ("q0", "e", "args"), "output": last}).jacobian, direct)


@pytest.mark.parametrize("other", [{"mode": "reverse", "execution": "native"}, slow({"execution": "xla"})])
def test_modes_agree(other):
    given = MOTION | {"h": 1e-2, "wrt": ("q0", "e", "args"), "output": last}
    # four inputs, two outputs: reverse is cheaper, but for native code
    found, back = ji.sensitivities(BALL, **given), ji.sensitivities(BALL, **given, **other)
    assert (found.mode, back.mode) == ("forward", "reverse") and found.trusted and back.trusted
    same(found.jacobian, back.jacobian)
    assert found.jacobian["impulse"]["args"]["wall"].shape == (1,)


@pytest.mark.slow
def test_batch_is_its_lanes_and_chunks_change_nothing():
    heights, steps = np.array([[0.9], [1.0], [1.1], [1.2], [1.3]]), np.array([1e-2, 1e-2, 7e-3, 1e-2, 7e-3])
    call = lambda q0, h, **more: ji.sensitivities(BALL, **(MOTION | {"q0": q0}), h=h, wrt=("e", "q0"), **more)
    batch = call(heights, steps)
    assert batch.jacobian["v"]["q0"].shape == (5, 1, 1)
    again = call(heights, steps, chunk=3)
    assert jax.tree.all(jax.tree.map(lambda x, y: bool(np.array_equal(x, y)), again.jacobian, batch.jacobian))
    one = call(heights[2], steps[2])
    # other vector lengths may round differently
    assert jax.tree.all(jax.tree.map(lambda x, y: bool(np.allclose(x, y[2], rtol=1e-12)), one.jacobian, batch.jacobian))


def test_times():
    found = ji.sensitivities(BALL, **MOTION, h=1e-3, wrt=("t0", "t1"))
    # an autonomous system: d/dt1 = -d/dt0 is (v, a), v = -1.0226569 by hand; impacts are up to 2 h late, each bounce: 4
    # g h
    assert np.isclose(found.jacobian["q"]["t1"], -1.0226569, atol=0.04)
    assert np.isclose(found.jacobian["v"]["t1"], -9.81, rtol=0.04)
    assert np.allclose(found.jacobian["q"]["t0"], -found.jacobian["q"]["t1"], rtol=1e-9)


@pytest.mark.parametrize(("save", "row"), [([0.1, 0.2], 1), slow(100, 2)], ids=["times", "every"])
def test_saved_rows_give_the_tangent_along_the_motion(save, row):
    given = MOTION | {"h": 1e-3, "wrt": ("q0", "e")}
    found = ji.sensitivities(BALL, **given, save=save)
    assert found.jacobian["q"]["q0"].shape == (*found.value["q"].shape, 1)
    # up to 0.2, before the first impact, a ball raised by dq flies dq higher
    assert np.allclose(found.jacobian["q"]["q0"][: row + 1, 0, 0], 1, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("save", [[0.1, 0.2], 100], ids=["times", "every"])
def test_saved_rows_through_xla(save):
    """The same steps, rounded otherwise."""
    given = MOTION | {"h": 1e-3, "wrt": ("q0", "e")}
    found = ji.sensitivities(BALL, **given, save=save)
    xla = ji.sensitivities(BALL, **given, save=save, execution="xla")
    for name in ("jacobian", "value"):
        for x, y in zip(*(jax.tree.leaves(getattr(each, name)) for each in (found, xla)), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)


def test_status_names_a_motion_that_ends_at_an_impact():
    fall = (-1.3 + np.sqrt(1.3**2 + 2 * 9.81 * 0.95)) / 9.81  # v0 = -1.3 from 0.95 above the wall
    found = ji.sensitivities(BALL, **(MOTION | {"t1": fall}), h=1e-3, wrt="q0")
    assert not found.trusted
    assert "DERIVATIVE_AT_END" in found.describe_status()


@pytest.mark.parametrize(
    "scheme",
    [ji.PaoliSchatzman(), pytest.param(ji.EventCorrected(), marks=pytest.mark.slow)],
    ids=lambda s: type(s).__name__,
)
def test_trusted_is_finite(scheme):
    """Quadratic drag |v| v written with a norm, whose derivative at rest is 0/0:
    from rest no Jacobian is to be trusted."""
    force = lambda t, q, v, args: jnp.array([0.0, -9.81]) - 0.1 * jnp.sqrt(v @ v) * v
    ball = ji.Problem(force, lambda t, q, args: q[1:])
    v0 = np.array([[0.0, 0.0], [1.0, 0.0]])
    found = ji.sensitivities(ball, [0.0, 1.0], v0, t1=0.2, h=0.05, wrt="v0", scheme=scheme)
    finite = np.all(np.isfinite(found.jacobian["q"]["v0"]), axis=(1, 2))
    assert list(finite) == list(found.trusted) == [False, True]
    assert "DERIVATIVE_NOT_FINITE" in found.describe_status()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"wrt": "mass"}, "wrt="),
        ({"wrt": ()}, "wrt="),
        ({"wrt": "args", "args": None}, "args is None"),
        ({"mode": "backward"}, "mode="),
        ({"sensitivity": "none"}, "sensitivity="),
    ],
)
def test_bad_arguments_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        ji.sensitivities(BALL, **(MOTION | {"h": 1e-2} | change))
