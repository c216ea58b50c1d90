"""Analyses take a study: what it knows need not be said again, and the answers are those of the solution."""

import numpy as np
import pytest

import jaximpact as ji
from jaximpact import analysis
from jaximpact.study import MemoryStore
from support import study_systems

OPTIONS = {"q0": [1.0], "v0": [0.0], "t1": 1.0, "h": 0.01, "args": {"gravity": 9.81, "floor": 0.0}}


@pytest.fixture(scope="module")
def study():
    design = ji.Design.grid(**{"e": [0.3, 0.6, 0.9], "args.gravity": [9.0, 9.81]})
    made = ji.Study(MemoryStore(), study_systems.ball, design, save=1, **OPTIONS)
    made.run(progress=False)
    return made


def test_impacts_and_statistics_of_a_study(study):
    solution, arguments = study.solution(), study.arguments()
    found = analysis.impacts(study)
    direct = analysis.impacts(study.problem, solution, args=arguments["args"], args_axes=arguments["args_axes"])
    np.testing.assert_array_equal(found.t, direct.t)
    np.testing.assert_array_equal(found.lane, direct.lane)
    assert set(found.lane) == set(range(6))
    by_e = analysis.statistics(study, groups="e")
    np.testing.assert_array_equal(by_e.groups, [0.3, 0.6, 0.9])
    np.testing.assert_allclose(by_e.mean["q"][1], solution.q[2:4].mean(axis=0), rtol=1e-15)
    assert analysis.statistics(study, groups="gravity").count.tolist() == [3, 3]


def test_one_motion_of_a_study(study):
    """The energy that impacts take: the balance of one lane, with its own e and gravity."""
    found = analysis.balance(study, lane={"e": 1, "gravity": 0})
    motion = study.lane((1, 0), save="all")
    direct = analysis.balance(study.problem, motion, args={"gravity": 9.0, "floor": 0.0}, e=0.6)
    np.testing.assert_array_equal(found.energy, direct.energy)
    assert analysis.check_hypotheses(study, lane=(2, 1)) is not None
    with pytest.raises(TypeError, match="say which lane of the study"):
        analysis.balance(study)


def test_sections_from_the_starts_of_a_study():
    design = ji.Design.grid(**{"args.frequency": [2.6, 2.8]})
    study = ji.Study(MemoryStore(), "shaw-holmes", design, case="damped", t1=1.0, h=0.05)
    options = {"period": lambda args: 2 * np.pi / args["frequency"], "steps": 40, "cycles": 3}
    found = analysis.stroboscopic(study, **options)
    known = study.arguments()
    for name in ("t0", "t1", "h", "save"):
        del known[name]
    direct = analysis.stroboscopic(study.problem, known.pop("q0"), known.pop("v0"), **known, **options)
    np.testing.assert_array_equal(found.q, direct.q)


def test_what_cannot_be_is_named(study):
    with pytest.raises(ValueError, match="does not vary 'height'"):
        analysis.statistics(study, groups="height")
    with pytest.raises(TypeError, match="takes the study alone by its place"):
        analysis.impacts(study, study.solution())
    begun = ji.Study(MemoryStore(), study_systems.ball, study.design, save=1, **OPTIONS)
    with pytest.raises(FileNotFoundError, match="call run"):
        analysis.impacts(begun)


SHAW = {"case": "damped", "t1": 1.0, "h": 0.05}
FORCED = {"period": lambda args: 2 * np.pi / args["frequency"], "steps": 40, "cycles": 4}


def small_study(**values):
    return ji.Study(MemoryStore(), "shaw-holmes", ji.Design.grid(**values), **SHAW)


def test_a_diagram_of_a_study():
    """The values that it varies, in order; what else it varies are starts. Lane by lane the section of its starts."""
    study = small_study(**{"args.frequency": [2.8, 2.6], "q0[0]": [0.5, 0.6, 0.7]})
    found = analysis.bifurcation(study, parameter="frequency", skip=2, **FORCED)
    np.testing.assert_array_equal(found.values, [2.6, 2.8])
    assert found.parameter == "frequency" and found.q.shape == (2, 3, 4, 1)
    direct = analysis.stroboscopic(study, skip=2, **FORCED)
    np.testing.assert_array_equal(found.q.reshape(6, 4, 1), direct.q[[3, 4, 5, 0, 1, 2]])
    with pytest.raises(ValueError, match="give problem, q0, v0 and values"):
        analysis.bifurcation(study, parameter="frequency", sweep="up", **FORCED)
    uneven = ji.Study(MemoryStore(), "shaw-holmes", ji.Design.points(**{"args.frequency": [2.8, 2.6, 2.6]}), **SHAW)
    with pytest.raises(ValueError, match="between 1 and 2 lanes of one value"):
        analysis.bifurcation(uneven, parameter="frequency", **FORCED)


@pytest.mark.slow
def test_a_map_and_basins_of_a_study():
    study = small_study(**{"args.frequency": [2.6, 2.8], "e": [0.5, 0.6, 0.7]})
    scheme = ji.EventCorrected()  # which can be started again; the study's own cannot
    found = analysis.two_parameter_map(study, skip=30, scheme=scheme, **FORCED)
    assert found.parameters == ("frequency", "e") and found.period.shape == (3, 2)
    known = study.arguments([0])
    args = {name: x if np.ndim(x) == 0 else np.asarray(x)[0] for name, x in known["args"].items()}
    direct = analysis.two_parameter_map(
        study.problem, known["q0"][0] if np.ndim(known["q0"]) == 2 else known["q0"],
        known["v0"][0] if np.ndim(known["v0"]) == 2 else known["v0"], parameters=("frequency", "e"),
        values=([2.6, 2.8], [0.5, 0.6, 0.7]), skip=30, args=args, scheme=scheme, projection=known["projection"],
        **FORCED,
    )  # fmt: skip
    np.testing.assert_array_equal(found.period, direct.period)
    np.testing.assert_array_equal(found.impacts, direct.impacts)

    starts = small_study(**{"v0[0]": [-0.5, 0.5], "q0[0]": [0.2, 0.6, 1.0]})
    basins = analysis.basins(starts, skip=30, scheme=scheme, **FORCED)
    assert basins.coordinates == (("v", 0), ("q", 0)) and basins.labels.shape == (3, 2)
    with pytest.raises(ValueError, match="a grid of two initial numbers"):
        analysis.basins(study, skip=30, **FORCED)
    with pytest.raises(ValueError, match="a grid of two parameters"):
        analysis.two_parameter_map(starts, skip=30, scheme=scheme, **FORCED)


PERIOD = 2 * np.pi / 2.6


def saved_study(periods=8, every=40, **values):
    """40 steps of 2 pi/2.6/40 a period; what is varied leaves the period alone."""
    h = PERIOD / 40
    study = ji.Study(
        MemoryStore(),
        "shaw-holmes",
        ji.Design.grid(**values),
        case="damped",
        t1=periods * PERIOD,
        h=h,
        save=ji.Save(every=every),
    )
    study.run(progress=False)
    return study


def test_diagrams_maps_and_basins_of_saved_rows():
    """Without steps: the states of the study's own rows, as computed anew by as many steps from the same starts."""
    study = saved_study(**{"args.frequency": [2.6], "e": [0.7, 0.5, 0.6]})
    options = {"period": lambda args: 2 * np.pi / args["frequency"], "cycles": 4}
    found = analysis.bifurcation(study, parameter="e", **options)
    direct = analysis.bifurcation(study, parameter="e", steps=40, skip=4, **options)
    np.testing.assert_array_equal(found.values, [0.5, 0.6, 0.7])
    # the same steps; one begins at t0 and counts them, the other from row to row
    np.testing.assert_allclose(found.q, direct.q, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.section.t, direct.section.t, rtol=1e-14)
    earlier = analysis.bifurcation(study, parameter="e", skip=3, **options)
    np.testing.assert_array_equal(earlier.q[:, :, 1:], found.q[:, :, :-1])

    flat = analysis.two_parameter_map(study, **options)
    assert flat.parameters == ("frequency", "e") and flat.period.shape == (3, 1)
    np.testing.assert_array_equal(flat.period[[1, 2, 0]], found.periods())
    assert np.all(np.isnan(flat.impacts))

    starts = saved_study(**{"q0[0]": [-9.0, 0.6], "v0[0]": [0.0, 0.5, 0.7]})
    basins = analysis.basins(starts, period=PERIOD, cycles=4)
    assert basins.labels.shape == (3, 2) and np.all(basins.labels[:, 0] == -2)  # behind the wall
    assert np.all(basins.labels[:, 1] != -2)


def test_rows_that_a_study_has_not_are_named():
    study = saved_study(every=30, **{"e": [0.5, 0.6]})
    for options, message in (
        ({"cycles": 4}, "has no row at t = "),
        ({"cycles": 9}, "have 8 forcing periods"),
        ({"cycles": 4, "skip": 5}, "have 8 forcing periods"),
    ):
        with pytest.raises(ValueError, match=message):
            analysis.bifurcation(study, parameter="e", period=PERIOD, **options)
    with pytest.raises(TypeError, match="scheme: without steps"):
        analysis.bifurcation(study, parameter="e", period=PERIOD, cycles=4, scheme=ji.EventCorrected())


def test_orbits_and_orders_of_a_study():
    study = small_study(**{"args.frequency": [2.6, 2.8]})
    found = analysis.periodic_orbit(study, period=FORCED["period"], steps=100, t0=0.5)
    np.testing.assert_allclose(found.period, 2 * np.pi / np.array([2.6, 2.8]))
    with pytest.raises(TypeError, match="a branch begins at one orbit"):
        analysis.continue_orbit(study, parameter="e", bounds=(0.1, 0.5), period=1.0, steps=10)
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'bounds'"):
        analysis.continue_orbit(study, lane=0, parameter="e", period=1.0, steps=10)
    orders = analysis.convergence(study, lane=1, steps=[101, 211])
    assert orders.steps.tolist() == [101, 211]
    with pytest.raises(TypeError, match="say which lane"):
        analysis.convergence(study, steps=[101, 211])


@pytest.mark.slow
def test_a_branch_from_a_lane_of_a_study():
    """The lane's start, args and method, and the values that the study varies as bounds:
    the branch of the same arguments by hand."""
    orbit = analysis.periodic_orbit(
        small_study(**{"args.frequency": [2.6]}), period=FORCED["period"], steps=100, t0=0.5
    )
    study = ji.Study(
        MemoryStore(),
        "shaw-holmes",
        ji.Design.grid(**{"args.frequency": [2.6, 2.65]}),
        q0=orbit.q[0],
        v0=orbit.v[0],
        **SHAW,
    )
    options = {"period": FORCED["period"], "steps": 100, "t0": 0.5, "scheme": ji.EventCorrected()}
    found = analysis.continue_orbit(study, lane=0, parameter="args.frequency", **options)
    assert found.name == "frequency" and found.ended == "bounds"
    assert found.parameter[0] == 2.6 and found.parameter[-1] == pytest.approx(2.65, abs=1e-9)
    args = {name: x if np.ndim(x) == 0 else x[0] for name, x in study.arguments([0])["args"].items()}
    direct = analysis.continue_orbit(
        study.problem, orbit.q[0], orbit.v[0], parameter="frequency", bounds=(2.6, 2.65), args=args,
        e=study.arguments([0])["e"], **options,
    )  # fmt: skip
    np.testing.assert_array_equal(found.q, direct.q)
    other = analysis.continue_orbit(study, lane=1, parameter="frequency", bounds=(2.6, 2.7), points=2, **options)
    assert other.parameter[0] == 2.65
