"""Statistics over lanes: the same as numpy's on the lanes that count, failed ones left out and counted."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact.analysis import statistics

BALL = ji.Problem(
    lambda t, q, v, args: jnp.where(q > args["limit"], jnp.nan, -9.81 * jnp.ones_like(q)),
    lambda t, q, args: q,
    energy=lambda t, q, v, args: 0.5 * v @ v + 9.81 * jnp.sum(q),
)
LANES = 24
TIMES = [0.2, 0.4, 0.6]


@pytest.fixture(scope="module")
def batch():
    """Three restitutions, eight heights; two lanes rise into a force that is not finite."""
    heights = np.tile(np.linspace(1.0, 1.7, 8), 3)[:, None]
    v0 = np.zeros((LANES, 1))
    v0[[3, 11]] = 20.0
    e = np.repeat([0.2, 0.5, 0.8], 8)
    return ji.ensemble(BALL, heights, v0, t1=0.8, h=0.01, e=e, args={"limit": 3.0}, save=TIMES), e


def test_groups_are_statistics_of_their_lanes(batch):
    solution, e = batch
    found = statistics(solution, groups=e, values={"height": solution.q[:, :, 0]})
    assert np.array_equal(found.groups, [0.2, 0.5, 0.8])
    assert found.count.tolist() == [7, 7, 8] and found.failed.tolist() == [1, 1, 0]
    assert np.allclose(found.t, [*TIMES, 0.8])
    for i, value in enumerate(found.groups):
        kept = (e == value) & ~solution.failed
        for name in ("q", "v", "impulse", "energy"):
            x = getattr(solution, name)[kept]
            np.testing.assert_array_equal(found.mean[name][i], x.mean(axis=0))
            np.testing.assert_array_equal(found.std[name][i], x.std(axis=0, ddof=1))
            np.testing.assert_array_equal(found.quantile[name][:, i], np.quantile(x, found.levels, axis=0))
    np.testing.assert_array_equal(found.mean["height"], found.mean["q"][..., 0])
    # free fall until the first impact: the median height falls by g t^2 / 2
    median = found.quantile["q"][2, 2, :, 0]
    # scheme of first order at most: g t h / 2 = 0.01
    assert np.isclose(median[0], np.quantile(np.linspace(1.0, 1.7, 8), 0.5) - 0.5 * 9.81 * 0.2**2, atol=0.02)


def test_without_groups_there_is_no_axis_for_them(batch):
    solution, _ = batch
    found = statistics(solution, quantiles=[0.5])
    assert found.groups is None and found.count == 22 and found.failed == 2
    assert found.quantile["q"].shape == (1, 4, 1) and found.mean["energy"].shape == (4,)
    assert all(np.isfinite(x).all() for x in found.mean.values())


def test_a_group_of_failures_is_nan_and_a_single_lane_has_no_deviation(batch):
    solution, _ = batch
    groups = np.zeros(LANES)
    groups[[3, 11]], groups[0] = 1, 2
    found = statistics(solution, groups=groups)
    assert found.count.tolist() == [21, 0, 1]
    assert np.isnan(found.mean["q"][1]).all() and np.isnan(found.quantile["q"][:, 1]).all()
    assert np.isnan(found.std["q"][2]).all() and np.isfinite(found.mean["q"][2]).all()


def test_values_of_a_save_function(batch):
    solution, _ = batch
    # with Save(function=...) the state is there in the final row only
    last = {name: getattr(solution, name)[:, -1:] for name in ("q", "v", "z", "impulse", "energy")}
    found = statistics(replace(solution, **last), values={"speed": solution.v[:, :, 0]})
    assert set(found.mean) == {"speed"} and found.mean["speed"].shape == (4,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": [1, 2]}, "groups must have one value for each lane"),
        ({"quantiles": [0.5, 1.5]}, "quantiles must be"),
        ({"quantiles": []}, "quantiles must be"),
        ({"values": {"x": np.zeros(3)}}, r"values\['x'\] must have shape"),
    ],
)
def test_bad_arguments_are_refused_by_name(batch, change, message):
    with pytest.raises(ValueError, match=message):
        statistics(batch[0], **change)


def test_one_motion_is_no_batch_and_rows_must_share_their_times(batch):
    solution, _ = batch
    with pytest.raises(ValueError, match="must be a batch"):
        statistics(jax.tree.map(lambda x: x[0], solution))
    with pytest.raises(ValueError, match="different times"):
        statistics(replace(solution, t=solution.t * np.linspace(1, 2, LANES)[:, None]))


def test_the_pictures(batch, tmp_path):
    solution, e = batch
    for name, found in (("one", statistics(solution)), ("groups", statistics(solution, groups=e))):
        assert found.plot(tmp_path / f"{name}.png", label="e").stat().st_size > 5000
    with pytest.raises(ValueError, match="name='x'"):
        found.plot(tmp_path / "none.png", name="x")
    with pytest.raises(ValueError, match="component=1"):
        found.plot(tmp_path / "none.png", component=1)
