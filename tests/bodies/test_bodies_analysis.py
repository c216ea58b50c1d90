"""What analyses see of listed bodies: the same as of dense constraints,
and exact motions of the catalogue stated by lists."""

import warnings

import numpy as np
import pytest

import jaximpact as ji
from jaximpact import analysis, bodies, catalogue

TIGHT = bodies.ConjugateGradients(tolerance=1e-12)


def pile(lists):
    """Seven disks that fall into a box, every step kept."""
    rng = np.random.default_rng(1)
    radii = 0.1 * rng.uniform(0.8, 1.2, 7)
    places = np.stack(np.divmod(np.arange(7), 4), axis=1)
    q0 = (0.26 * (places + 0.5) + 0.005 * rng.uniform(-1, 1, (7, 2))).ravel()
    problem = bodies.disks(radii, walls=[(0, 1.04), (0, None)], gravity=9.81, lists=lists)
    options = {"scheme": ji.Maury(), "projection": TIGHT if lists else ji.ActiveSet(), "execution": "xla"}
    return problem, ji.solve(problem, q0, 0 * q0, t1=0.6, h=4e-3, **options)


@pytest.fixture(scope="module")
def both():
    return pile(True), pile(False)


def named(found, pairs):
    """(pair or obstacle, time) of records, in order."""
    return sorted((*map(int, pair), float(t)) for pair, t in zip(pairs, found, strict=True))


def dense_pairs(contact):
    """The bodies of the pile's dense constraints."""
    i, j = np.triu_indices(7, 1)
    walls = np.stack([np.repeat(np.arange(7), 3), -1 - np.tile(np.arange(3), 7)], axis=1)
    return np.concatenate([np.stack([i, j], axis=1), walls])[contact]


# solved to 1e-12 m/s by two solvers: what differs is their error times the steps, and what impacts make of it
SAME = 1e-7


@pytest.mark.slow
def test_impacts_are_those_of_dense_constraints(both):
    (listed, found), (dense, reference) = both
    a, b = analysis.impacts(listed, found), analysis.impacts(dense, reference)
    assert len(a) == len(b) > 20 and len(a.lasting) == len(b.lasting) > 10
    for one, other in ((a, b), (a.lasting, b.lasting)):
        times = (one.t, other.t) if one is a else (one.start, other.start)
        mine, theirs = named(times[0], one.pairs), named(times[1], dense_pairs(other.contact))
        assert [x[:2] for x in mine] == [x[:2] for x in theirs]
        assert np.allclose([x[2] for x in mine], [x[2] for x in theirs], rtol=0, atol=SAME)
    assert np.allclose(np.sort(a.impulse), np.sort(b.impulse), rtol=0, atol=SAME)
    assert np.allclose(np.sort(a.before), np.sort(b.before), rtol=0, atol=1e-5)
    assert np.array_equal(found.impacts(listed).pairs, a.pairs)


@pytest.mark.slow
def test_balances_are_those_of_dense_constraints(both):
    (listed, found), (dense, reference) = both
    a, b = analysis.balance(listed, found), analysis.balance(dense, reference)
    for name in ("kinetic", "work", "loss", "driven", "energy", "momentum"):
        assert np.allclose(getattr(a, name), getattr(b, name), rtol=0, atol=SAME), name


@pytest.mark.slow
def test_hypotheses_are_those_of_dense_constraints(both):
    (listed, found), (dense, reference) = both
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ji.JaximpactWarning)
        a, b = (ji.check_hypotheses(*one) for one in ((listed, found), (dense, reference)))
    assert a.active.sum() == b.active.sum() > 100
    assert np.array_equal(a.rank_deficit, b.rank_deficit)
    assert np.allclose(a.cosine, b.cosine, rtol=0, atol=1e-6) and len(a.worst) == len(b.worst) > 0
    assert len(a.failures) == len(b.failures) == 1 and "obtuse corner" in a.failures[0]
    assert a.pairs.shape == (a.active.shape[1], 2)


@pytest.mark.slow
def test_dependent_contacts_between_listed_bodies():
    # a body between two walls as far apart as it is wide, and two bodies side by side between the same: 2 contacts, 3
    # contacts
    problem = bodies.disks([0.5, 0.25, 0.25], walls=[(0, 1), None], lists=True)
    q0 = [0.5, 0.0, 0.25, 2.0, 0.75, 2.0]
    found = ji.solve(problem, q0, np.zeros(6), t1=0.1, h=1e-2)
    with pytest.warns(ji.JaximpactWarning, match="dependent active gradients .*0-obstacle 0, 0-obstacle 1"):
        seen = ji.check_hypotheses(problem, found)
    # the gradients of the three are (0, 1, -1), (1, 0) and (0, -1): one is dependent on the others, as in the first
    assert np.all(seen.rank_deficit == 2)


@pytest.mark.slow
def test_a_cradle_is_warned_of():
    count = 5
    q0 = np.stack([np.append(-1.5, np.arange(1.0, count)), np.zeros(count)], axis=1).ravel()
    v0 = np.zeros(2 * count)
    v0[0] = 1.0
    problem = bodies.disks(np.full(count, 0.5), lists=True, restitution=1.0)
    found = ji.solve(problem, q0, v0, t1=3.0, h=1e-2, scheme=ji.MoreauJean(), projection=TIGHT)
    assert int(found.status) & ji.Status.IMPULSES_COUPLED
    with pytest.warns(ji.JaximpactWarning, match=r"e > 0 .*not orthogonal .*\(0-1, 1-2\), \(1-2, 2-3\), \(2-3, 3-4\)"):
        seen = ji.check_hypotheses(problem, found)
    # equal disks in a row: the gradients of neighbouring contacts share a body, with opposite signs
    assert np.allclose([corner[3] for corner in seen.worst], -0.5, rtol=0, atol=1e-12)
    # momentum and energy are kept all the same: MoreauJean's projection takes all impacts at once
    whole = analysis.balance(problem, found)
    assert whole.energy_error < 1e-12 and whole.momentum_error < 1e-12


def listed_case(name, case):
    """A problem of the catalogue's spheres, stated by lists."""
    case = catalogue.get(name).case(case)
    args = case.args
    options = {"growth": args["growth"]} if "growth" in args else {}
    return bodies.spheres(args["radii"], masses=args["masses"], lists=True, **options), case


def errors(name, case, scheme, counts):
    """Largest errors of the final position, for each number of steps."""
    problem, case = listed_case(name, case)
    options = {"t1": case.t1, "e": case.restitution, "scheme": scheme, "projection": TIGHT, "save": "final"}
    found = (ji.solve(problem, case.q0, case.v0, steps=steps, **options) for steps in counts)
    exact, _ = case.exact(np.array([case.t1]))
    return np.array([np.max(np.abs(np.asarray(one.q) - exact)) for one in found])


@pytest.mark.slow
def test_a_row_of_growing_spheres_is_exact():
    # distances are affine along the row, so that linearised constraints are the constraints: round-off of the solver
    assert errors("growing-spheres", "row", ji.Maury(), [500])[0] < 1e-9


@pytest.mark.parametrize(
    ("name", "case", "scheme"),
    [
        pytest.param("growing-spheres", "scattered", ji.Maury(), marks=pytest.mark.slow),
        pytest.param("spheres", "e=1/2", ji.MoreauJean(), marks=pytest.mark.slow),
        pytest.param("spheres", "e=0", ji.Maury(), marks=pytest.mark.slow),
        pytest.param("spheres", "e=1", ji.MoreauJean(), marks=pytest.mark.slow),
    ],
)
def test_spheres_converge_at_first_order(name, case, scheme):
    # an impact falls anywhere in its step: means over several numbers of steps
    few, many = (np.mean(errors(name, case, scheme, n + np.arange(0, n // 5, n // 40))) for n in (400, 6400))
    # order 1 by theory; the mean of eight errors that scatter by their own size is known to a third, the order to a
    # tenth
    assert 0.8 < np.log(few / many) / np.log(16) < 1.2


@pytest.mark.slow
def test_rows_that_are_not_all_steps(both):
    (problem, found), _ = both
    some = ji.solve(problem, np.asarray(found.q[0]), 0 * np.asarray(found.q[0]), t1=0.1, h=4e-3, save=5)
    for look in (analysis.impacts, analysis.balance):
        with pytest.raises(ValueError, match="every step"):
            look(problem, some)


@pytest.mark.slow
def test_solutions_of_other_problems(both):
    (listed, found), (dense, reference) = both
    with pytest.raises(ValueError, match="solution is of listed bodies"):
        analysis.balance(dense, found)
    with pytest.raises(ValueError, match="does not say which pairs"):
        analysis.balance(listed, reference)
    with pytest.raises(ValueError, match="14 coordinates, the problem 9 bodies"):
        analysis.balance(bodies.disks(np.ones(9), lists=True), found)


@pytest.mark.slow
def test_a_section_chooses_a_solver_of_lists():
    problem = bodies.disks(np.array([0.1, 0.1]), walls=[None, (0, None)], gravity=1.0, lists=True)
    q0, scheme = np.array([0.0, 0.3, 0.0, 0.6]), ji.Maury()
    section = analysis.stroboscopic(problem, q0, 0 * q0, period=0.5, steps=50, cycles=2, scheme=scheme)
    motion = ji.solve(problem, q0, 0 * q0, t1=1.0, steps=100, scheme=scheme, save=50)
    # one run of equal steps, through one lane and through a batch: rounding
    np.testing.assert_allclose(section.q[0], motion.q[1:], rtol=0, atol=1e-12)
