"""What an output owes to each input: rankings and covariances by exact derivatives, held against sampled motions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji

G, E, HEIGHT, END = 9.81, 0.7, 1.0, 0.6
BALL = ji.Problem(
    lambda t, q, v, args: -args["g"] * jnp.ones_like(q),
    lambda t, q, args: q,
    coordinates=("y",),
    units="m",
)
MOTION = {
    "t1": END,
    "h": 0.02,
    "e": E,
    "args": {"g": G},
    "scheme": ji.EventCorrected(),
    "wrt": ("q0", "v0", "e", "args"),
}


def exact(height, v0, e, g):
    """(q, v) at END after one bounce, for v0 = 0 and near it."""
    speed = jnp.sqrt(v0**2 + 2 * g * height)
    left = END - (v0 + speed) / g
    return jnp.stack([e * speed * left - 0.5 * g * left**2, e * speed - g * left])


JACOBIAN = np.asarray(jax.jit(jax.jacfwd(lambda x: exact(*x)))(np.array([HEIGHT, 0.0, E, G])))
COLUMNS = dict(zip(("q0[y]", "v0[y]", "e", "args.g"), JACOBIAN.T, strict=True))


@pytest.fixture(scope="module")
def found():
    return ji.sensitivities(BALL, [HEIGHT], [0.0], **MOTION)


def test_ranking_is_exact_and_ordered(found):
    """By hand: forces are constant, and the scheme is exact to rounding."""
    table = found.ranking(units={"args.g": "m/s^2"}).to_pandas()
    values = dict(zip(("q[y]", "v[y]"), np.asarray(exact(HEIGHT, 0.0, E, G)), strict=True))
    at = {"q0[y]": HEIGHT, "v0[y]": 0.0, "e": E, "args.g": G}
    for row in table.itertuples():
        i = list(values).index(row.output)
        derivative = COLUMNS[row.input][i]
        np.testing.assert_allclose(row.derivative, derivative, rtol=1e-9)
        if row.input == "v0[y]":
            assert np.isnan(row.relative)  # of zero there is no percent
        else:
            np.testing.assert_allclose(row.relative, derivative * at[row.input] / values[row.output], rtol=1e-9)
    for _, group in table.groupby("output"):
        sizes = group.relative.abs().to_numpy()
        assert np.isnan(sizes[-1]) and np.all(np.diff(sizes[:-1]) <= 0)
    units = table.set_index(["output", "input"]).unit
    assert units["q[y]", "q0[y]"] == "1" and units["v[y]", "e"] == "m/s" and units["q[y]", "args.g"] == "m/(m/s^2)"
    absolute = found.ranking(by="absolute")
    for name in ("q[y]", "v[y]"):
        assert np.all(np.diff(np.abs(absolute.derivative[absolute.output == name])) <= 0)


def test_relative_sensitivities_obey_the_scaling_of_lengths(found):
    """With every length c times as long, g among them, so are position and velocity:
    d ln y/d ln H + d ln y/d ln g = 1."""
    found = found.ranking()
    for name in ("q[y]", "v[y]"):
        mine = dict(zip(found.input[found.output == name], found.relative[found.output == name], strict=True))
        np.testing.assert_allclose(mine["q0[y]"] + mine["args.g"], 1.0, rtol=1e-9)


def test_covariance_is_the_delta_method(found):
    spread = {"q0": 0.01, "e": 0.02, "args": {"g": 0.05}}
    result = found.covariance(spread)
    J = np.stack([COLUMNS["q0[y]"], COLUMNS["e"], COLUMNS["args.g"]], axis=1)
    expected = J @ np.diag([0.01**2, 0.02**2, 0.05**2]) @ J.T
    np.testing.assert_allclose(result.matrix, expected, rtol=1e-9)
    np.testing.assert_allclose(result.deviation, np.sqrt(np.diag(expected)), rtol=1e-9)
    np.testing.assert_allclose(result.shares.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(np.diag(result.correlation), 1, rtol=1e-12)
    # by components, as a joint matrix, and correlated: var(a + b) of fully correlated inputs is the square of a sum
    same = found.covariance({"q0[y]": [0.01], "e": 0.02, "args.g": 0.05})
    np.testing.assert_array_equal(same.matrix, result.matrix)
    s = np.array([0.05, 0.02, 0.01, 0.0])  # args.g, e, q0, v0: the order of the table
    assert tuple(dict.fromkeys(found.to_pandas().input)) == result.inputs == ("args.g", "e", "q0[y]", "v0[y]")
    joint = found.covariance(np.outer(s, s))
    one = sum(COLUMNS[name] * x for name, x in zip(result.inputs, s, strict=True))
    np.testing.assert_allclose(joint.deviation, np.abs(one), rtol=1e-9)


def test_a_small_spread_is_linear_and_a_wide_one_is_told(found):
    narrow = found.covariance({"q0": 0.005, "e": 0.01}).check(100)
    assert narrow.holds.all() and narrow.sound.all()
    # the standard deviation of 100 samples is known to 7 %, three of these
    np.testing.assert_allclose(narrow.sampled, narrow.deviation, rtol=0.21)
    # second order: the part off the tangent shrinks with the spread
    wide = found.covariance({"q0": 0.05, "e": 0.1}).check(100)
    np.testing.assert_allclose(wide.error / narrow.error, 10, rtol=0.35)
    # samples that start below the floor, have e > 1, or end near an impact are told by their bits
    wild = found.covariance({"q0": 0.5, "e": 0.2}).check(100)
    assert not wild.holds.any() and not wild.sound.all() and wild.doubtful.any()
    text = repr(wild)
    assert "FAILS" in text and "INPUT_INVALID" in text and "INPUT_INVALID" in text and "DERIVATIVE_AT_END" in text
    below = (wild.sample[:, 2] < 0) | (wild.sample[:, 1] > 1) | (wild.sample[:, 1] < 0)
    np.testing.assert_array_equal(np.isnan(wild.value[:, 0]), below)
    for result in (narrow, wild):
        assert len(result.to_pandas()) == 100


@pytest.mark.slow
def test_grazing_is_seen():
    """A point that passes a disc: some samples touch it, some do not. At grazing the motion is
    continuous and has no derivative."""
    disc = ji.Problem(
        lambda t, q, v, args: 0 * q, lambda t, q, args: jnp.stack([jnp.sqrt(q @ q) - 1.0]), restitution=1.0
    )
    motion = ji.sensitivities(disc, [-2.0, 1.02], [1.0, 0.0], t1=4.0, h=0.02, wrt="q0", scheme=ji.EventCorrected())
    assert motion.trusted
    found = motion.covariance({"q0": [0.0, 0.05]}).check(60)
    assert not found.holds.all() and np.nanmax(found.off) > 3
    # the exact share of motions that touch lies below y = 1
    assert np.mean(np.max(found.off, axis=1) > 1e-6) == pytest.approx(np.mean(found.sample[:, 1] < 1.0), abs=0.05)


def test_lanes_and_refusals(found):
    batch = ji.sensitivities(BALL, np.array([[1.0], [1.1]]), [0.0], **MOTION)
    one = batch[0]
    np.testing.assert_allclose(one.ranking().derivative, found.ranking().derivative, rtol=1e-12)
    assert batch[[1, 0]][1].inputs["q0"] == HEIGHT
    for name in ("ranking", "covariance"):
        with pytest.raises(ValueError, match=rf"found\[0\]\.{name}"):
            getattr(batch, name)(*([{}] if name == "covariance" else []))
    with pytest.raises(ValueError, match="check needs the motion"):
        one.covariance({"e": 0.1}).check()
    with pytest.raises(TypeError, match="no lane axis"):
        found[0]


@pytest.mark.slow
def test_many_outputs_print_in_twenty_lines():
    found = ji.sensitivities(BALL, [HEIGHT], [0.0], **MOTION, save=list(np.linspace(0.01, 0.5, 60)))
    spread = found.covariance({"e": 0.01})
    for result in (found, found.ranking(), spread, spread.check(5)):
        assert len(repr(result).splitlines()) <= 20 and len(repr(result)) < 2200


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mass": 0.1}, "'mass' is none of"),
        ({"q0": -0.1}, "must not be negative"),
        ({"q0": np.nan}, "finite"),
        ({"q0": [0.1, 0.1]}, "one number, 1 standard deviations"),
        ({"q0": 0.1, "q0[y]": 0.1}, "given a spread before"),
        (np.eye(3), r"shape \(4, 4\)"),
        (np.triu(np.ones((4, 4))), "symmetric"),
        (np.diag([1.0, 1.0, 1.0, -1.0]), "negative eigenvalue"),
    ],
)
def test_spreads_that_cannot_be_are_named(found, given, message):
    with pytest.raises(ValueError, match=message):
        found.covariance(given)


def test_other_bad_arguments(found):
    with pytest.raises(ValueError, match="by must be"):
        found.ranking(by="size")
    with pytest.raises(ValueError, match="units: 'height' is none of"):
        found.ranking(units={"height": "m"})
    with pytest.raises(ValueError, match="samples must be"):
        found.covariance({"e": 0.1}).check(1)
    with pytest.raises(ValueError, match="no input varies"):
        found.covariance({}).check()
