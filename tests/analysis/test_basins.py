"""Attractors recognised from made data of which all is known, and basins against exact flights."""

import warnings

import numpy as np
import pytest

import jaximpact as ji
from jaximpact.analysis import Basins, Section, basins, recognise
from support.experiments.gallery import (
    CYCLES,
    DAMPING,
    FREQUENCY,
    PROBLEM,
    SKIP,
    STEPS,
    WALL,
    E,
    args_of,
    compute,
    exact_section,
    forcing_period,
)

N = 32
UNSETTLED, FORBIDDEN, FAILED = -1, -2, -3  # labels of starts that reach no attractor


def section(rows):
    """A section of unit period with positions (B, n); a row of NaN is a failed motion."""
    q = np.asarray(rows)[..., None]
    failed = ~np.isfinite(q).all(axis=(1, 2))
    return Section(
        np.tile(np.arange(q.shape[1]), (len(q), 1)), q, 0 * q, np.full(len(q), 1.0), np.where(failed, 8, 0),
        np.where(failed, 0.5, np.nan),
    )  # fmt: skip


def logistic(x, r, n=N, skip=200):
    rows = []
    for k in range(skip + n):
        x = r * x * (1 - x)
        if k >= skip:
            rows.append(x)
    return np.stack(rows, axis=-1)


def test_made_data_is_recognised():
    """Orbits of period 3, seen from any of their points and up to small noise; two of period 1; chaos at two places;
    the rest."""
    rng = np.random.default_rng(5)
    three = np.stack([np.resize(np.roll([0.1, 0.9, 0.5], rng.integers(3)), N) for _ in range(40)])
    still = np.concatenate([np.full((20, N), 0.3), np.full((10, N), 0.7)])
    noise = 1e-7 * rng.normal(size=(70, N))
    chaos = np.concatenate([logistic(rng.uniform(0.1, 0.9, 60), 3.9), 5 + logistic(rng.uniform(0.1, 0.9, 30), 3.9)])
    slow = 0.3 + 1e-4 * 0.8 ** np.arange(N)[None]  # still on its way to 0.3, nearer than the radius
    away = np.linspace(-9, -8, N)[None]
    broken = np.full((1, N), np.nan)
    rows = np.concatenate([np.concatenate([three, still]) + noise, chaos, slow, away, broken])
    shuffle = rng.permutation(len(rows))
    labels, attractors = recognise(section(rows[shuffle]))
    back = np.empty_like(labels)
    back[shuffle] = labels
    expected = np.repeat([1, 3, 4, 0, 2, 3, UNSETTLED, FAILED], [40, 20, 10, 60, 30, 1, 1, 1])
    np.testing.assert_array_equal(back, expected)
    assert [(a.period, a.lanes) for a in attractors] == [(0, 60), (3, 40), (0, 30), (1, 21), (1, 10)]
    shown = Basins(
        (("q", 0), ("v", 0)), np.zeros(1), np.zeros(1), np.zeros((1, 1), int), attractors[:2], np.zeros((1, 1))
    )
    assert "no period, 60 motions; period 3, 40 motions" in repr(shown)
    np.testing.assert_allclose(np.sort(attractors[1].q[:, 0]), [0.1, 0.5, 0.9], atol=1e-6)


def test_a_slow_flip_is_no_second_attractor():
    """Alternating ever more closely around a point: found with period 2, but no other attractor than the point."""
    flip = 0.5 + 2e-5 * (-1.0) ** np.arange(N) * 0.999 ** np.arange(N)
    for rows in ([np.full(N, 0.5), flip], [flip, flip]):
        labels, attractors = recognise(section(np.stack(rows)))
        assert labels.tolist() == [0, 0] and [a.period for a in attractors] == [1]


def test_too_many_attractors_are_reported():
    rows = np.repeat(np.arange(150.0)[:, None], 4, axis=1)
    with pytest.warns(ji.JaximpactWarning, match="radius=.* is too small"):
        labels, attractors = recognise(section(rows), tolerance=1e-9)
    assert len(attractors) == 100 and (labels == UNSETTLED).sum() == 50


def test_basins_of_the_forced_oscillator():
    """Three attractors, one free of impacts; starts agree with exact flights, but near fractal boundaries."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compute(14)
    assert sorted(a.period for a in found.attractors) == [1, 4, 4]
    inside = np.broadcast_to(found.x < WALL, found.labels.shape)
    np.testing.assert_array_equal(found.labels == FORBIDDEN, inside)
    assert not np.isin(found.labels, (UNSETTLED, FAILED)).any()
    assert found.shares().sum() == pytest.approx(1)

    h = forcing_period(args_of(FREQUENCY)) / STEPS
    size = (1 - FREQUENCY**2) ** 2 + (2 * DAMPING * FREQUENCY) ** 2
    free = next(a for a in found.attractors if a.period == 1)
    # the oscillation that never meets the wall, in closed form
    np.testing.assert_allclose(free.q, [[(1 - FREQUENCY**2) / size]], atol=h**2)
    np.testing.assert_allclose(free.v, [[2 * DAMPING * FREQUENCY**2 / size]], atol=FREQUENCY * h**2)

    rng = np.random.default_rng(1)
    agree = []
    for j, i in zip(rng.integers(14, size=24), rng.integers(1, 14, size=24), strict=True):
        args = args_of(FREQUENCY, DAMPING, WALL)
        q, *_ = exact_section(args, E, found.x[i], found.y[j], skip=SKIP, cycles=4)
        attractor = found.attractors[found.labels[j, i]]
        ends = np.sort(q) - np.sort(np.resize(attractor.q[:, 0], 4))
        agree.append(np.max(np.abs(ends)) < 10 * h**2)
    # errors of O(h^2) change the label of starts near the fractal boundary: 5 % of them between this step and half of
    # it
    assert np.mean(agree) > 0.7


def test_bad_input_is_named():
    good = {"x": [0.0, 1.0], "y": [0.0], "period": 1.0, "steps": 9, "cycles": CYCLES, "skip": 1, "args": args_of(2.0)}
    with pytest.raises(ValueError, match=r"\('p', 0\) must be \('q', i\) or \('v', i\) with i < 1"):
        basins(PROBLEM, **good, coordinates=(("p", 0), ("v", 0)))
    with pytest.raises(ValueError, match="every start of the grid violates a constraint"):
        basins(PROBLEM, **good | {"x": [-2.0, -1.0]})
    with pytest.raises(ValueError, match="x must be finite numbers of shape"):
        basins(PROBLEM, **good | {"x": 1.0})
