"""The conformance suite: its numbers, its runner against adapters that are right, wrong, slow, broken and dead,
its report."""

import json
import math

import jax
import numpy as np
import pytest

from jaximpact import conformance
from jaximpact.conformance import COARSE, FINE, Adapter, Cell, own
from jaximpact.conformance import __main__ as command
from jaximpact.conformance.cases import relative_error
from support.experiments.conformance import cases

CLOSED = [name for name, case in cases.CASES.items() if case.formula]
REFERENCE = [name for name in cases.CASES if name not in CLOSED]
QUICK = ["off-wall", "unit-flight"]


# numbers


@pytest.mark.parametrize("name", CLOSED)
def test_recorded_numbers_are_the_closed_forms(name):
    case = cases.get(name)
    found = case.exact_at()
    # rounding of a formula of some tens of operations
    np.testing.assert_allclose(found.state, case.exact.state, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.jacobian, case.exact.jacobian, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", REFERENCE)
def test_recorded_numbers_are_those_of_saltation_matrices(name):
    case = cases.get(name)
    found = case.by_events()
    # the integrator's tolerance of 1e-12, through Jacobians of order 20
    np.testing.assert_allclose(found.state, case.exact.state, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.jacobian, case.exact.jacobian, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in cases.CASES]
)
def test_recorded_numbers_are_those_of_thirty_digits(name):
    from support.experiments.exact_numbers import exact_numbers as exact

    entry = next(x for x in json.loads(exact.FILE.read_text())["cases"] if x["name"] == name)
    state, jacobian, impacts = exact.numbers(entry)
    np.testing.assert_allclose([float(x) for x in state], entry["state"], rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose([[float(x) for x in row] for row in jacobian], entry["jacobian"], rtol=1e-13, atol=1e-13)
    assert impacts == entry["impacts"]


def test_drag_by_hand():
    """The explicit solution, its impact by bisection, and dv/dc by central differences of that."""
    case = conformance.get("drag")

    def end(c):
        p = case.parameters
        rise = lambda y, v, t: y - p["g"] / c * t + (v + p["g"] / c) / c * (1 - math.exp(-c * t))
        speed = lambda v, t: (v + p["g"] / c) * math.exp(-c * t) - p["g"] / c
        low, high = 0.1, case.t1
        for _ in range(200):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if rise(p["y0"], p["v0"], middle) > p["wall"] else (low, middle)
        after = -p["e"] * speed(p["v0"], low)
        return np.array([rise(p["wall"], after, case.t1 - low), speed(after, case.t1 - low)])

    c = case.parameters["c"]
    np.testing.assert_allclose(end(c), case.exact.state, rtol=1e-12)
    slope = (end(c + 1e-5) - end(c - 1e-5)) / 2e-5
    # the square of the change, and rounding over it
    np.testing.assert_allclose(slope, case.exact.jacobian[:, case.columns.index("c")], atol=1e-8)


def test_cases_are_complete():
    for case in conformance.cases().values():
        d, p = len(case.position), len(case.parameters)
        assert case.exact.state.shape == (2 * d,) and case.exact.jacobian.shape == (2 * d, p)
        assert np.all(np.isfinite(case.exact.jacobian)) and case.title and len(case.force) == d == len(case.velocity)
        assert set(case.position + case.velocity + ("e",)) <= set(case.parameters)
        # what the formulas state is a problem whose start is admissible
        gap = case.problem.constraints(0.0, jax.numpy.asarray(case.q0), case.args)
        assert gap.shape == (len(case.gaps),) and np.all(gap > 0)
    traps = " ".join(case.source for case in conformance.cases().values())
    for issue in ("729", "4388", "1447", "3257"):
        assert issue in traps


@pytest.mark.parametrize("text", ["__import__('os')", "q[0].real", "lambda: 0", "exp(t)", "q[0] +", "[1]"])
def test_formulas_are_arithmetic(text):
    from jaximpact.conformance.formulas import parse

    with pytest.raises(ValueError, match="no formula"):
        parse(text)


# runner

RIGHT = """
import time, os

HOW = "by hand"
STEPS = False
PACKAGES = ("numpy",)


def final_state(case, theta, steps):
    time.sleep(3600 if case.name == "harm1d" else {nap})
    if case.name == "drag":
        os._exit(3)
    if case.name == "lift":
        raise ArithmeticError("no lift\\nat all")
    if case.name == "struck":
        return [0.0]
    if case.name not in ("off-wall", "unit-flight"):
        raise NotImplementedError
    print("noise on the output")
    y, v, e, wall = theta
    late = case.t1 - (wall - y) / v
    return [wall - e * v * late, -e * v]


def jacobian(case, theta, steps):
    if case.name == "struck":
        return [[0.0]]
    y, v, e, wall = theta
    hit = (wall - y) / v
    wrong = 0.0 if case.name == "off-wall" else {wrong}
    return [[-e + wrong, -e * case.t1, -v * (case.t1 - hit), 1 + e], [0, -e, -v, 0]]
"""


@pytest.fixture
def adapter(tmp_path):
    def write(wrong=0.0, name="mine", nap=0.0):
        path = tmp_path / f"{name}.py"
        path.write_text(RIGHT.replace("{wrong}", str(wrong)).replace("{nap}", str(nap)))
        return path

    return write


def test_right_and_wrong_and_unstated(adapter):
    names = ["off-wall", "unit-flight", "corner"]
    report = conformance.run([adapter(), adapter(0.3, "wrong")], names, limit=60)
    right, wrong = report.columns
    assert list(right.cells) == ["off-wall", "unit-flight"]  # the corner cannot be stated
    assert right.summary == "2 of 2 pass" and wrong.summary == "1 of 2 pass"
    # 0.3 in a Jacobian whose largest entry is 1 + e = 1.5
    assert wrong.cells["unit-flight"].errors[FINE] == pytest.approx(0.3 / 1.5)
    assert right.about["how"] == "by hand" and right.about["versions"]["numpy"] == np.__version__
    text = report.markdown()
    assert "| unit-flight | pass" in text and "| FAIL 2.0e-01 |" in text and "| corner | – | – |" in text


def test_errors_crashes_and_time_limits_cost_their_case_alone(adapter):
    first = conformance.run([adapter()], ["off-wall", "lift", "struck", "drag", "unit-flight"], limit=60).columns[0]
    assert first.cells["off-wall"].passes
    assert first.cells["lift"].message == "ArithmeticError: no lift"
    assert first.cells["struck"].message == "the answer has another shape: (1,) in place of (2,)"
    assert first.cells["drag"].message.startswith("exit code 3")
    assert first.cells["unit-flight"].passes  # in a process that was begun anew


@pytest.mark.slow
def test_the_time_limit_is_one_of_each_case(adapter):
    """Two cases of 0.8 s pass within 1.4 s each; the one that hangs is told, and what comes behind it is asked."""
    names = ["off-wall", "unit-flight", "harm1d", "lift"]
    slow = conformance.run([adapter(nap=0.8)], names, limit=1.4).columns[0]
    assert slow.cells["off-wall"].passes and slow.cells["unit-flight"].passes
    assert slow.cells["harm1d"].message == "time limit of 1.4 s" and slow.cells["harm1d"].text == "error"
    assert slow.cells["lift"].message == "ArithmeticError: no lift"
    # a process that hangs before its first case is told once
    path = adapter(name="never")
    path.write_text("import time\ntime.sleep(3600)")
    assert conformance.run([path], names, limit=0.5).columns[0].summary == "time limit of 0.5 s"


def test_missing_simulators_and_files_are_told(tmp_path, capsys):
    path = tmp_path / "absent.py"
    path.write_text("import a_simulator_that_is_not_installed")
    column = conformance.run([path], ["off-wall"]).columns[0]
    assert "a_simulator_that_is_not_installed" in column.summary and not column.cells
    # on the command line: said, and no picture of nothing
    assert command.main(["--adapter", str(path), "--cases", "off-wall", "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().out.startswith("- absent: not run: No module named 'a_simulator_that_is_not_installed'")
    assert not (tmp_path / "out" / "picture.png").exists()
    with pytest.raises(FileNotFoundError, match="no adapter"):
        conformance.run([tmp_path / "nothing.py"], ["off-wall"])
    with pytest.raises(KeyError, match="no case 'ball'"):
        conformance.run([], ["ball"])


@pytest.mark.parametrize(
    ("fine", "coarse", "passes"),
    [
        (1e-8, None, True),
        (1e-3, 1e-2, True),
        (1e-3, 2e-3, False),
        (0.2, 2.0, False),
        (math.nan, None, False),
        (1e-3, None, False),
    ],
)
def test_what_passes(fine, coarse, passes):
    assert Cell({FINE: fine} | ({COARSE: coarse} if coarse else {})).passes == passes


def test_a_case_that_was_stopped_on_its_way_has_no_verdict():
    stopped = Cell({FINE: 1e-3}, message="time limit of 60 s")
    assert stopped.text == "error" and stopped._replace(errors={FINE: 0.2}).text == "FAIL 2.0e-01"


OWN = "jaximpact.conformance.own"


@pytest.mark.slow
def test_own_schemes():
    """In a process of its own, as other simulators."""
    adapters = [Adapter("corrected", OWN, "PaoliSchatzman corrected")]
    assert conformance.run(adapters, ["grav1d-once"], limit=120).columns[0].cells["grav1d-once"].passes


def test_own_schemes_as_adapters():
    """The corrected derivative passes; Maury states plastic impacts alone."""
    case, corrected = conformance.get("grav1d-once"), own.adapter("PaoliSchatzman corrected")
    error = lambda n: relative_error(corrected.jacobian(case, case.theta, n), case.exact.jacobian)
    assert Cell({h: float(np.median([error(n) for n in case.steps(h)])) for h in (COARSE, FINE)}, {}).passes
    with pytest.raises(NotImplementedError, match="grav1d-once"):
        own.adapter("Maury corrected").jacobian(case, case.theta, 10)


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "at_1e3"), [("PaoliSchatzman", 0.11), ("MoreauJean", 0.046)])
def test_derivatives_through_accumulation_converge_with_a_large_constant(scheme, at_1e3):
    """What the manual says of `zeno`: first order over two decades, medians over eight numbers of steps;
    less a tenth for phases."""
    adapter, case = own.SchemeAdapter(scheme, "corrected"), conformance.get("zeno")
    theta = tuple(case.parameters.values())
    error = {}
    for h in (1e-2, 1e-3, 1e-4):
        _, found = adapter._compute("zeno", theta, case.steps(h))
        error[h] = np.median([relative_error(x, case.exact.jacobian) for x in found])
    assert error[1e-3] == pytest.approx(at_1e3, rel=0.05)
    assert 0.8 < np.log(error[1e-2] / error[1e-4]) / np.log(100) < 1.1


@pytest.mark.slow
@pytest.mark.parametrize("name", list(cases.CASES))
def test_event_driven_has_every_jacobian_to_eight_digits(name):
    """With its own tolerance of 1e-9, in four rows."""
    case = conformance.get(name)
    _, found = own.adapter("EventDriven corrected")._compute(name, tuple(case.parameters.values()), (4,))
    assert relative_error(found[0], case.exact.jacobian) < 1e-8


@pytest.mark.slow
def test_plain_derivatives_fail():
    """dv/dy0 = 3.7 is lost entirely, beside a largest entry of 4.5."""
    adapters = [Adapter(x, OWN, x) for x in ("PaoliSchatzman discrete", "EventCorrected corrected")]
    plain, located = conformance.run(adapters, ["grav1d-once"], limit=120).columns
    assert plain.cells["grav1d-once"].errors[FINE] == pytest.approx(3.698792 / 4.508769, rel=0.01)
    assert located.cells["grav1d-once"].errors[FINE] < 1e-10  # constant forces: exact


def test_report_is_table_and_picture(adapter, tmp_path, capsys):
    assert command.main(["--adapter", str(adapter()), "--cases", "off-wall", "--out", str(tmp_path / "out")]) == 0
    assert "| off-wall | pass" in capsys.readouterr().out
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"table.md", "table.csv", "picture.png"}
    assert command.main(["--list"]) == 0 and "zeno" in capsys.readouterr().out
    assert command.main(["--show", "off-wall"]) == 0 and "q[0] - wall" in capsys.readouterr().out
    for wrong, message in (
        (["--cases", "ball", "--own"], "no case 'ball'"),
        ([], "give --adapter"),
        (["--adapter", "no.py"], "no file"),
    ):
        with pytest.raises(SystemExit):
            command.main(wrong)
        assert message in capsys.readouterr().err
