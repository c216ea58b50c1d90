"""The conformance cases with friction: recorded numbers, the motion that the formulas state, and who is asked them."""

import json

import numpy as np
import pytest

import jaximpact as ji
from jaximpact import conformance
from jaximpact.conformance import Adapter, own, report
from jaximpact.conformance import __main__ as command
from jaximpact.conformance.cases import relative_error

NAMES = list(conformance.frictional_cases())
FRICTIONLESS = """
def final_state(case, theta, steps):
    return [0.0] * (2 * len(case.position))
"""


def test_recorded_numbers_are_the_closed_forms():
    from support.experiments.exact_numbers import frictional_numbers as exact

    assert json.loads(exact.FILE.read_text())["cases"] == exact.recorded()
    assert not set(NAMES) & set(conformance.cases()) and len(conformance.cases()) == 25


@pytest.mark.parametrize(
    "name", [x if x in ("disk-sticks", "stick-slip") else pytest.param(x, marks=pytest.mark.slow) for x in NAMES]
)
def test_motions_tend_to_the_recorded_states(name):
    case = conformance.get(name)
    run = lambda n: ji.solve(
        case.problem, case.q0, case.v0, t1=case.t1, steps=n, e=case.e, args=case.args, scheme=ji.MoreauJean(),
        save="final"
    )  # fmt: skip
    errors = []
    for h in (1e-3, 1e-4):
        # the error of one run scatters with the phase of its impacts: means over eight
        ends = [run(n) for n in case.steps(h)]
        assert all(int(end.status) == 0 for end in ends)
        errors.append(
            np.mean([relative_error(np.concatenate([end.q[-1], end.v[-1]]), case.exact.state) for end in ends])
        )
    assert errors[0] < 2e-2 and errors[1] < 0.2 * errors[0]  # first order: a tenth


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_located_events_leave_rounding(name):
    """Paths between events are polynomials of the second degree, which `EventCorrected` follows exactly."""
    case = conformance.get(name)
    found = own.SchemeAdapter("EventCorrected", "corrected").jacobian(case, case.theta.tolist(), case.steps(1e-2)[0])
    assert relative_error(found, case.exact.jacobian) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_jacobians_tend_to_the_recorded_ones(name):
    case = conformance.get(name)
    adapter = own.SchemeAdapter("MoreauJean", "corrected")
    errors = []
    for h in (1e-2, 1e-3):
        found = [adapter.jacobian(case, case.theta.tolist(), n) for n in case.steps(h)]
        errors.append(np.median([relative_error(x, case.exact.jacobian) for x in found]))
    assert errors[1] <= report.SMALL and report.SHRINK * errors[1] <= errors[0]


def test_who_knows_no_friction_is_not_asked(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(FRICTIONLESS)
    (tmp_path / "rough.py").write_text(FRICTIONLESS + "FRICTION = True\n")
    found = conformance.run([file, Adapter("rough", str(tmp_path / "rough.py"))], ["turns-back"])
    assert [len(column.cells) for column in found.columns] == [0, 1]
    with pytest.raises(NotImplementedError):
        own.SchemeAdapter("PaoliSchatzman", "corrected").jacobian(
            conformance.get("turns-back"), conformance.get("turns-back").theta, 10
        )
    assert command.main(["--list"]) == 0 and "stick-slip" in capsys.readouterr().out
    assert command.main(["--show", "sphere-slips"]) == 0
    assert "slip = [['v[0] - R*v[4]', 'v[1] + R*v[3]']], friction mu = ['mu']" in capsys.readouterr().out


def test_derivatives_of_an_impact_in_space_are_those_of_the_impact_law():
    """dv/dmu of a sphere that slips: the impulse times the direction of slip."""
    case = conformance.get("sphere-slips")
    p = case.parameters
    column = list(p).index("mu")
    slip = np.array([p["vx"] - p["R"] * p["wy"], p["vy"] + p["R"] * p["wx"]])
    pushed = (1 + p["e"]) * np.sqrt(p["vz"] ** 2 + 2 * p["g"] * (p["z0"] - p["R"]))
    np.testing.assert_allclose(case.exact.jacobian[5:7, column], -pushed * slip / np.linalg.norm(slip), rtol=1e-12)
