"""Random bodies that bounce, beside the reference of `experiments/cases/tumbling_bodies.py`,
which shares nothing with the package."""

import numpy as np
import pytest

import jaximpact as ji
from support.experiments import tumbling

COUNT = 50  # motions of each of six kinds


def motions(body, rough, count):
    draws = [tumbling.draw(body, rough, seed) for seed in range(count)]
    return draws, tumbling.answer(body, draws)


def test_ellipsoids_bounce_as_the_reference_says():
    found = tumbling.compare("ellipsoid", False, *motions("ellipsoid", False, 6), "EventDriven")
    # of a tolerance of 1e-9 a substep and some ten impacts
    assert found["clean"].sum() >= 4 and found["error"][found["clean"]].max() < 1e-7


@pytest.mark.slow
@pytest.mark.parametrize(("body", "rough"), tumbling.KINDS)
def test_no_clean_motion_of_a_random_body_is_wrong(body, rough):
    draws, answers = motions(body, rough, COUNT)
    for scheme, (_, most) in tumbling.SCHEMES.items():
        found = tumbling.compare(body, rough, draws, answers, scheme)
        wrong = found["clean"] & (found["error"] > most)
        assert not np.any(wrong), (scheme, np.flatnonzero(wrong), found["error"][wrong])
        assert found["known"].sum() > 0.7 * COUNT and found["clean"].sum() > 0.8 * found["known"].sum()


@pytest.mark.slow
@pytest.mark.parametrize(("body", "rough"), tumbling.KINDS)
def test_derivatives_of_random_bodies_are_those_of_differences(body, rough):
    draws, _ = motions(body, rough, 10)
    found, right, moved, status = tumbling.slopes(body, rough, draws)
    clean = ~np.isnan(right[:, 0] + moved[:, 0]) & ((status & ~int(ji.Status.ENERGY_GAINED)) == 0)
    size = 1 + np.abs(right).max(axis=1, keepdims=True)
    # differences are off by the square of their step, a third of what the double step changes; by the 1e-12 that each
    # side of the reference errs, times what makes the derivative large, over a step of 2e-6, here twenty times; and
    # EventDriven by its 1e-8 in some twenty substeps
    allowed = moved + 1e-5 * size
    assert clean.sum() >= 5 and np.all((np.abs(found - right) <= allowed)[clean])
    # differences of use to tell: most motions are known to 1e-4 of their derivative
    assert np.median((moved / size)[clean].max(axis=1)) < 1e-4
