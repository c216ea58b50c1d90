"""Global indices of a ball after one bounce, whose integrals can be done by hand; what fails is left out and counted.

The speed at a time T between the first impact and the second is v = (1 + e) u - g T, u = sqrt(2 g H): a product of a
function of e and one of H, with e uniform in (a, b) and H in (c, d).
"""

import sys

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import indices
from jaximpact.study import MemoryStore
from support import study_systems

G, END = 9.81, 0.7
(A, B), (C, D) = (0.4, 0.8), (1.0, 1.5)
RANGES = {"q0[0]": (C, D), "e": (A, B)}

EU, EU2 = np.sqrt(2 * G) * (2 / 3) * (D**1.5 - C**1.5) / (D - C), G * (C + D)
EF, VF, VU = 1 + (A + B) / 2, (B - A) ** 2 / 12, EU2 - EU**2
VARIANCE = VF * VU + VF * EU**2 + VU * EF**2
S1 = np.array([VU * EF**2, VF * EU**2]) / VARIANCE
ST = np.array([VU * (EF**2 + VF), VF * EU2]) / VARIANCE
NU = np.array([(EF**2 + VF) * G / 2 * np.log(D / C) / (D - C), EU2])
BOUND = NU * np.array([D - C, B - A]) ** 2 / np.pi**2 / VARIANCE


def study_of(plan, t1=END, h=0.05, **more):
    options = {"q0": [1.0], "v0": [0.0], "args": {"gravity": G, "floor": 0.0}, "scheme": ji.EventCorrected()} | more
    study = ji.Study(MemoryStore(), study_systems.ball, plan.design(), t1=t1, h=h, **options)
    study.run(progress=False)
    return study


def speed(solution):
    return solution.v[-1, 0]


def test_sobol_indices_are_those_of_the_integrals():
    plan = indices.Sobol(256, RANGES)
    found = plan.indices(study_of(plan), speed)
    assert found.outputs == ("y",) and found.inputs == ("q0[0]", "e") and found.used == found.blocks == 256
    for kind, exact in (("S1", S1), ("ST", ST)):
        # within the interval that is claimed, which holds for 95 %, and at a fixed seed
        assert np.all(np.abs(found.index[kind][0] - exact) <= found.confidence[kind][0])
    assert np.all(np.concatenate(list(found.confidence.values())) < 0.2)
    np.testing.assert_allclose(found.variance, VARIANCE, rtol=0.05)
    assert list(found.to_pandas().columns) == ["output", "input", "S1", "S1 ±", "ST", "ST ±"]


def test_sobol_indices_of_pairs():
    plan = indices.Sobol(128, RANGES, second=True)
    # e and H act as a product of which V_e V_H / V is the interaction, 0.2 %
    assert plan.indices(study_of(plan), speed).second[0, 0, 1] == pytest.approx(VF * VU / VARIANCE, abs=0.1)


def test_morris_effects_are_those_of_the_levels():
    """In e the output is linear: its effect over the range is (b - a) u(H), on four levels of H."""
    plan = indices.Morris(60, RANGES)
    found = plan.indices(study_of(plan), speed)
    effect = (B - A) * np.sqrt(2 * G * np.linspace(C, D, 4))
    value, half = found.index["mu_star"][0, 1], found.confidence["mu_star"][0, 1]
    assert abs(value - effect.mean()) < half < 0.05
    assert abs(found.index["sigma"][0, 1] - effect.std()) < 2 * found.confidence["sigma"][0, 1]
    assert found.index["mu"][0, 1] == value  # all effects have one sign


def test_dgsm_by_derivatives_across_the_impact():
    plan = indices.DGSM(128, RANGES)
    found = plan.indices(study_of(plan), speed)
    # a scrambled Sobol' sequence of n points integrates smooth functions to about 1/n
    np.testing.assert_allclose(found.index["nu"][0], NU, rtol=1 / 128)
    np.testing.assert_allclose(found.index["bound"][0], BOUND, rtol=4 / 128)
    assert np.all(found.index["bound"][0] > ST)
    assert not found.remarks


def test_dgsm_says_where_the_output_jumps():
    """At T = 0.5 some balls have bounced and some have not: the speed jumps from -u to e u,
    which no derivative sees."""
    plan = indices.DGSM(64, RANGES)
    found = plan.indices(study_of(plan, t1=0.5, h=0.002), speed)
    assert any("jump" in text for text in found.remarks)
    assert found.causes["DERIVATIVE_AT_END"] == found.blocks - found.used > 0
    assert np.sum(found.index["bound"]) < 1


@pytest.mark.slow
def test_names_and_units_of_the_problem():
    """Elementary effects have the unit of the output, nu that of (output/input)^2;
    shares and their bounds have none."""
    ranges, units = RANGES | {"args.gravity": (9.0, 10.0)}, {"args.gravity": "m/s^2"}
    options = {"q0": [1.0], "v0": [0.0], "args": {"gravity": G, "floor": 0.0}, "scheme": ji.EventCorrected()}
    rows = {}
    for plan in (indices.Morris(8, ranges), indices.DGSM(8, ranges)):
        study = ji.Study(MemoryStore(), study_systems.named_ball, plan.design(), t1=END, h=0.05, **options)
        study.run(progress=False)
        found = plan.indices(study, units=units)
        assert found.outputs == ("q[height]", "v[height]") and found.output_units == ("m", "m/s")
        assert found.inputs == ("q0[height]", "e", "args.gravity") and found.input_units == ("m", "1", "m/s^2")
        assert found.unit("ST", 1) == "1"
        rows[type(plan)] = found.to_pandas()
        label = found.plot(output="v[height]").get_xlabel()
        assert ("of v[height] [m/s]" in label) == isinstance(plan, indices.Morris)
        with pytest.raises(ValueError, match="units: 'gravity' is none of"):
            plan.indices(study, units={"gravity": "m/s^2"})
    assert rows[indices.Morris]["unit"].tolist() == ["m"] * 3 + ["m/s"] * 3
    assert rows[indices.DGSM]["unit"].tolist() == [
        "1",
        "m^2",
        "(m/(m/s^2))^2",
        "(1/s)^2",
        "(m/s)^2",
        "(m/s/(m/s^2))^2",
    ]


def test_failed_lanes_spoil_their_blocks_only():
    """Balls that start below the floor cannot start; indices of the rest, and how many are lost."""
    ranges = RANGES | {"q0[0]": (-0.05, 1.5)}
    for plan, size in ((indices.Sobol(64, ranges), 4), (indices.Morris(20, ranges), 3)):
        study = study_of(plan)
        found = plan.indices(study, speed)
        bad = plan.sample()[:, 0] < 0
        lost = bad.reshape(-1, size).any(axis=1).sum()
        assert found.blocks - found.used == lost > 0 and found.causes == {"INPUT_INVALID": bad.sum()}
        assert "left out" in found.remarks[0] and np.all(np.isfinite(found.index[found.shown[0]]))
    plan = indices.DGSM(64, ranges)
    found = plan.indices(study_of(plan), speed)
    assert found.causes["INPUT_INVALID"] == np.sum(plan.sample()[:, 0] < 0)
    hopeless = indices.Sobol(8, RANGES | {"q0[0]": (-1.5, -1.0)})
    with pytest.raises(ValueError, match=r"0 of 8 blocks of lanes are left.*INPUT_INVALID"):
        hopeless.indices(study_of(hopeless), speed)


def test_all_outputs_by_default_and_those_that_do_not_vary():
    plan = indices.Sobol(16, RANGES)
    study = study_of(plan)
    assert plan.indices(study).outputs == ("q[0]", "v[0]")
    found = plan.indices(study, lambda solution: {"v": solution.v[-1], "zero": 0.0 * solution.q[-1]})
    assert np.all(np.isnan(found.index["ST"][1])) and "zero[0]: does not vary" in found.remarks[0]
    with pytest.raises(ValueError, match="none of the outputs varies"):
        plan.indices(study, lambda solution: jnp.zeros(()))


def test_a_study_as_one_solution():
    """The lanes of a study, of any shape, are those of `ensemble`; statuses of refused lanes included."""
    design = ji.Design.grid(**{"e": [0.5, 0.8], "q0[0]": [1.0, -1.0, 2.0]})
    options = {"q0": [1.0], "v0": [0.0], "t1": 1.0, "h": 0.01, "args": {"gravity": G, "floor": 0.0}}
    study = ji.Study(
        MemoryStore(), study_systems.ball, design, save=ji.Save(every=50, function=study_systems.observed), **options
    )
    with pytest.raises(FileNotFoundError):
        study.solution()
    study.run(progress=False)
    found, good = study.solution(), np.array([0, 2, 3, 5])
    direct = ji.ensemble(study.problem, **study.arguments(good))
    np.testing.assert_array_equal(found[good].q, direct.q)
    np.testing.assert_array_equal(found[good].values["pair"][1], direct.values["pair"][1])
    np.testing.assert_array_equal(found[good].t, direct.t)
    assert np.all(found.status[[1, 4]] == ji.Status.INPUT_INVALID) and np.all(np.isnan(found.q[[1, 4]]))
    assert found.timing == direct.timing


def test_what_cannot_be_is_named(monkeypatch):
    plan = indices.Sobol(16, RANGES)
    other = study_of(indices.Sobol(16, RANGES, seed=1))
    with pytest.raises(ValueError, match="another design than this plan makes"):
        plan.indices(other)
    with pytest.raises(TypeError, match=r"study must be a jaximpact\.Study"):
        plan.indices(other.solution())
    own = study_of(plan)
    with pytest.raises(ValueError, match=r"output\(solution\) failed: AttributeError"):
        plan.indices(own, lambda solution: solution.height)
    with pytest.raises(TypeError, match="output must be a function"):
        plan.indices(own, "v")
    for make, message in (
        (lambda: indices.Sobol(100, RANGES), "power of two"),
        (lambda: indices.Morris(10, RANGES, levels=3), "even"),
        (lambda: indices.DGSM(64, {"h": (0.1, 0.2)}), "no derivative by h"),
        (lambda: indices.Sobol(16, {"e": (0.9, 0.5)}), "low < high"),
        (lambda: indices.Sobol(16, {}), "bounds must be a dict"),
        (lambda: indices.Sobol(16, {"height": (0, 1)}), "no quantity 'height'"),
        (lambda: indices.Sobol(2, RANGES), ">= 4"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    monkeypatch.setitem(sys.modules, "SALib.sample.sobol", None)
    with pytest.raises(ImportError, match="pip install SALib"):
        plan.sample()
