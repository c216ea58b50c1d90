"""Analyses take a study: what it knows need not be said again, and the answers are those of the solution."""

import numpy as np
import pytest
import study_systems

import jaximpact as ji
from jaximpact import analysis
from jaximpact.study import MemoryStore

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
