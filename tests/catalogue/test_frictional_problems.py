"""Schemes on the catalogue's problems with friction: `EventCorrected` to second order, or to rounding where paths are polynomials, `MoreauJean` to first."""

import numpy as np
import pytest

import jaximpact as ji
from jaximpact import catalogue

CASES = [(entry.name, name) for entry in catalogue.entries() if entry.problem.slip is not None for name in entry.cases]
QUICK = [("belt-oscillator", "stick-slip")]
marked = [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow) for case in CASES]


def errors(problem, name, scheme, counts):
    entry = catalogue.get(problem)
    case = entry.case(name)
    found = []
    for steps in counts:
        run = ji.solve(
            entry.problem, case.q0, case.v0, t1=case.t1, steps=steps, e=case.restitution, args=case.args, scheme=scheme
        )
        assert run.status == 0
        found.append(np.max(np.abs(run.q - case.exact(np.asarray(run.t))[0])))
    return found


@pytest.mark.parametrize(("problem", "name"), marked)
def test_located_events_are_of_second_order(problem, name):
    coarse, fine = errors(problem, name, ji.EventCorrected(), (250, 1000))
    assert fine < max(coarse / 4**1.8, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "name"), CASES)
def test_fixed_steps_are_of_first_order(problem, name):
    """Medians over several numbers of steps, as impacts fall anywhere in their steps."""
    coarse, fine = (
        np.median(errors(problem, name, ji.MoreauJean(), [n + n * k // 50 for k in range(5)])) for n in (500, 4000)
    )
    assert fine < coarse / 8**0.85
