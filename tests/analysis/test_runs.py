"""Runs of steps with an impulse: impacts and lasting contact told apart, seams, the threshold,
and one answer everywhere."""

import numpy as np
import pytest

import jaximpact as ji
from jaximpact import catalogue
from jaximpact.analysis import impacts, runs

ONE, TWO = ji.MoreauJean(), ji.PaoliSchatzman()  # an impact takes one step, and two


def timing(scheme):
    """Timing that a solution by this scheme has."""
    fall = ji.Problem(lambda t, q, v, args: -q / q, lambda t, q, args: q)
    return ji.solve(fall, [1.0], [0.0], t1=0.2, steps=2, scheme=scheme).timing


def accumulated(steps, dtype=float):
    """Accumulated impulses (1, k, 1) at the rows, from the impulses of the steps."""
    return np.concatenate([[0.0], np.cumsum(steps)]).astype(dtype)[None, :, None]


def summary(found):
    return list(zip(found.first.tolist(), found.last.tolist(), found.lasting.tolist(), strict=True))


def test_impacts_and_lasting_contact():
    """Contact lasts when it pushes in more than two steps beyond those of an impact;
    a hard push at its start is an impact."""
    steps = np.zeros(24)
    steps[[0, 2, 3, 5, 6, 7]] = 1.0
    steps[9:13], steps[14:19], steps[20:24] = 1.0, 0.1, 0.1
    steps[14] = 2.0
    expected = [(0, 0), (2, 3), (5, 7), (9, 12), (14, 18), (20, 23)]
    # an impact of two steps may be followed by another one at once
    for scheme, lasting in ((ONE, [0, 0, 0, 1, 1, 1]), (TWO, [0, 0, 0, 0, 1, 0])):
        found = runs(accumulated(steps), timing(scheme))
        assert [x[:2] for x in summary(found)] == expected
        assert found.lasting.tolist() == [bool(x) for x in lasting]
        np.testing.assert_array_equal(found.length, [1, 2, 3, 4, 5, 4])
        assert not found.lane.any() and not found.contact.any() and len(found) == 6
    assert found.impact.all()
    # the last contact begins without an impact
    assert runs(accumulated(steps), timing(ONE)).impact.tolist() == [True, True, True, False, True, False]
    # a scheme that is not known may take two steps
    assert summary(runs(accumulated(steps))) == summary(found)
    np.testing.assert_array_equal(np.flatnonzero(found.inside[0]), [3, 6, 7, 10, 11, 12, 21, 22, 23])


def test_runs_across_the_seam():
    """Of a periodic motion the last step is followed by the first; a contact that never opens is one run."""
    steps = np.zeros(12)
    steps[[11, 0, 3, 4]] = [1.0, 2.0, 3.0, 4.0]
    both = np.concatenate([accumulated(steps), accumulated(np.ones(12)), accumulated(np.zeros(12))], axis=2)
    found = runs(np.concatenate([both, 0 * both]), timing(TWO), periodic=True)
    assert summary(found) == [(3, 4, False), (11, 0, False), (0, 11, True)]
    np.testing.assert_array_equal(found.length, [2, 2, 12])
    np.testing.assert_array_equal(found.contact, [0, 0, 1])
    assert not found.lane.any()
    assert summary(runs(both, timing(TWO))) == [(0, 0, False), (3, 4, False), (11, 11, False), (0, 11, True)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_is_no_impulse(dtype):
    """Sums of 1e6 that go up by half a unit of rounding and by 1e-10 of the largest impulse: none of them is a push."""
    one = np.array([1e6], dtype)
    steps = np.zeros(9)
    steps[1] = one[0]
    rows = accumulated(steps, dtype)
    rows[0, 4:] = np.nextafter(one, 2 * one)
    assert summary(runs(rows)) == [(1, 1, False)]
    steps[5] = 1e-10 * steps[1]
    assert summary(runs(accumulated(steps, dtype))) == [(1, 1, False)]
    # ten units are a push, of every size of the sum
    steps[5] = 10 * (np.nextafter(one, 2 * one) - one)[0]
    steps[5] = max(steps[5], 1e-8 * steps[1])
    assert summary(runs(accumulated(steps, dtype))) == [(1, 1, False), (5, 5, False)]


def test_motions_without_impulses_or_numbers():
    assert len(runs(np.zeros((2, 5, 0)))) == len(runs(np.zeros((2, 5, 3)))) == len(runs(np.zeros((2, 1, 3)))) == 0
    blown = accumulated([0.0, 1.0, 0.0, np.inf, np.nan])
    assert summary(runs(blown)) == [(1, 1, False)]
    with pytest.raises(ValueError, match="impulse must be accumulated impulses"):
        runs(np.zeros((5, 1)))


def test_the_table_has_the_same_runs():
    """A ball with e = 1/2: every impact of the table, and the lasting contact that ends them,
    is a run and the other way round."""
    ball = catalogue.get("bouncing-ball")
    case = ball.case("e=1/2")
    motion = ji.solve(ball.problem, case.q0, case.v0, t1=case.t1, steps=1009, args=case.args, e=0.5)
    found = runs(np.asarray(motion.impulse)[None], motion.timing)
    records = impacts(ball.problem, motion, args=case.args)
    np.testing.assert_array_equal(records.row, found.first[found.impact] + 1)
    assert len(records.lasting) == found.lasting.sum() == 1


def test_the_old_names_say_the_new_ones():
    ball = catalogue.get("bouncing-ball")
    case = ball.case("e=1/2")
    motion = ji.solve(ball.problem, case.q0, case.v0, t1=case.t1, steps=211, args=case.args, e=0.5)
    records = impacts(ball.problem, motion, args=case.args)
    with pytest.warns(DeprecationWarning, match="called lasting now"):
        assert records.sticking is records.lasting
    with pytest.warns(DeprecationWarning, match="called accumulations now"):
        assert records.chattering is records.accumulations
