"""The benchmark's machinery at tiny sizes: rows, accuracy beside every time, tables, pictures; no time is asserted."""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from benchmarks import (
    accelerator,
    contacts,
    contenders,
    peers,
    reference,
    report,
    run,
    timing,
    without_device,
    work_precision,
    works,
)
from benchmarks.accuracy import Accuracy
from benchmarks.baselines import native
from benchmarks.baselines.siconos_pile import SiconosPile

from support.breadth import slow_but

# timing ---------------------------------------------------------------------------------------------------------------


def where(cores):
    """What a program sees: its process, and the cores that it may use."""
    return os.getpid(), timing.all_cores()


def two():
    return [contenders.Contender("a", where), contenders.Contender("b", where, parallel=True)]


@pytest.mark.slow
def test_one_core_and_all_are_timed_in_processes_that_have_these_from_their_start():
    cores = sorted({1 if timing.CAN_PIN else timing.all_cores(), timing.all_cores()})
    measured = timing.measure(two, 10, 5, rounds=2, budget=np.inf)
    assert [(row["contender"], row["cores"]) for row, _ in measured] == [("a", cores[0]), *(("b", n) for n in cores)]
    processes = {}
    for row, (process, seen) in measured:
        assert seen == row["cores"] and len(row["seconds"]) == 2 and row["compile_s"] >= 0
        assert row["ns_per_step"] == pytest.approx(1e9 * min(row["seconds"]) / 50)
        assert process == processes.setdefault(seen, process) != os.getpid()
    assert len(set(processes.values())) == len(cores)


def test_contenders_run_in_turn_within_their_budget():
    calls = []

    def make():
        return [contenders.Contender(x, lambda cores, x=x: calls.append(x) or time.sleep(0.03)) for x in "ab"]

    for rounds, budget in ((2, np.inf), (3, 0.0)):
        calls.clear()
        measured = timing.measure(make, 1, 1, rounds, budget, apart=False)
        made = rounds if budget else 1
        assert [len(row["seconds"]) for row, _ in measured] == [made, made]
        assert calls == ["a", "b"] * (1 + made)


@pytest.mark.skipif(native.compiler() is None, reason="needs a C++ compiler")
def test_what_is_compiled_is_loaded_again_in_another_process(tmp_path):
    libraries = native.Native(tmp_path)
    again = pickle.loads(pickle.dumps(libraries))
    q0, v0 = works.BALL.initial(3)
    np.testing.assert_array_equal(again.run(works.BALL, q0, v0), libraries.run(works.BALL, q0, v0))


def test_contenders_are_made_in_any_process():
    make = pickle.loads(pickle.dumps(partial(contenders.make, "values", "ball", 2, None, False)))
    q, v = next(contender for contender in make() if contender.label == "plain JAX").run(1)
    assert q.shape == v.shape == (2, 1)


@pytest.mark.skipif(not timing.CAN_PIN, reason="threads can be pinned on Linux only")
def test_one_core_pins_all_threads_and_lets_go():
    before = os.sched_getaffinity(0)
    with timing.one_core():
        assert len(os.sched_getaffinity(0)) == 1
        for thread in Path("/proc/self/task").iterdir():
            assert os.sched_getaffinity(int(thread.name)) == os.sched_getaffinity(0)
    assert os.sched_getaffinity(0) == before


# contenders and accuracy ----------------------------------------------------------------------------------------------


def test_values_agree_and_know_their_error():
    """All programs of a scheme at h = 1e-3 make one error: late by 2 h at an impact of some 4 m/s, so near 1e-2."""
    work, lanes = works.BALL, 3
    accuracy = Accuracy(work, lanes)
    errors = {}
    for contender in contenders.values(work, lanes, None, full=False):
        found = accuracy.of("forward", contender.run(1))
        errors[contender.label, contender.dtype] = found["error"]
        assert found["difference"] < (1e-10 if contender.dtype == "float64" else 4 * work.h * 5)
    assert {label for label, _ in errors} >= {"plain JAX", "ensemble, native", "ensemble, xla"}
    assert all(1e-5 < error < 3e-2 for error in errors.values())


@pytest.mark.slow
def test_derivatives_know_their_error():
    """Those of solve converge; plain JAX differentiates the discrete map, which is wrong by O(1) across an impact."""
    work = works.BALL
    accuracy = Accuracy(work, 2)
    found = {}
    for contender in contenders.derivatives(work, 2, full=False):
        if contender.mode != "value":
            result = contender.run(1)
            assert result.shape == (2, 1 if contender.mode == "jvp" else 2)
            found[contender.label, contender.mode] = accuracy.of(contender.mode, result)["error"]
            assert contender.memory is None or contender.memory() >= 0
    for mode in ("jvp", "vjp"):
        assert found["solve, native", mode] < 0.02
        assert found["plain JAX", mode] > 0.2


# the table ------------------------------------------------------------------------------------------------------------


def row(**changes):
    usual = {"work": "ball", "lanes": 10, "steps": 5, "mode": "forward", "contender": "a", "dtype": "float64",
        "cores": 1,
             "seconds": [1.0], "ns_per_step": 2.0, "compile_s": 0.25, "difference": 0.0, "error": None}  # fmt: skip
    return usual | changes


def test_ratios_are_within_a_work_its_lanes_and_cores():
    rows = [row(), row(ns_per_step=3.0), row(cores=2, ns_per_step=1.0), row(lanes=20, ns_per_step=8.0),
            row(mode="value", ns_per_step=4.0), row(mode="vjp", ns_per_step=20.0),
            row(section="peers", ns_per_step=200.0)]  # fmt: skip
    assert [r["ratio"] for r in report.with_ratios(rows)] == [1, 1.5, 1, 1, 1, 5, 100]


def test_table_has_a_section_for_every_kind_of_row():
    rows = [row(), row(contender="b", difference=3e-13, error=0.0123),
        row(mode="vjp", bytes_per_step=27.4, error=1e-3)]  # fmt: skip
    missing = {"section": "peers", "work": "ball", "lanes": 1, "mode": "forward", "contender": "x", "dtype": "float64",
               "remark": "not installed: no module"}  # fmt: skip
    text = report.table([*rows, missing])
    assert "| ball | 10 | b | float64 | 1 | 2 | 1 | 3e-13 | 1.2e-02 | 0.2 s |" in text
    assert "| ball | 10 | vjp | a | float64 | 1 | 2 | 1 | 1.0e-03 | 0.2 s | 27.4 |" in text
    assert "not installed: no module" in text
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## Values",
        "## Derivatives",
        "## Other simulators",
    ]
    for part in text.split("## ")[1:]:
        assert len({line.count("|") for line in part.splitlines() if line.startswith("|")}) == 1


# other simulators -----------------------------------------------------------------------------------------------------


def test_a_missing_simulator_says_so():
    assert peers.ask("siconos", [], python="/no/such/interpreter") == ("not installed: no /no/such/interpreter", [])
    remark, answers = peers.ask("siconos", [], python=sys.executable)
    assert remark.startswith("not installed") and not answers


@pytest.mark.parametrize("key", slow_but(["siconos"], peers.TITLES))
def test_a_simulator_bounces_a_ball(key):
    """Where it is installed; the soft contacts of some are wrong by a tenth of a metre,
    so only that there is an answer."""
    job = {"work": "ball", "q0": [[1.0], [0.5]], "v0": [[0.0], [0.1]], "e": 0.8, "args": {"g": 9.81}, "h": 1e-3,
           "steps": 600, "rounds": 1, "tolerance": 1e-8, "longest": 0.1}  # fmt: skip
    remark, answers = peers.ask(key, [job])
    if not answers:
        assert remark.startswith("not installed")
        pytest.skip(remark)
    fall = np.sqrt(2 / 9.81)
    exact = 0.8 * 9.81 * fall * (0.6 - fall) - 0.5 * 9.81 * (0.6 - fall) ** 2
    tolerance = {"siconos": 2e-2, "diffrax": 1e-6}.get(key, 0.3)
    assert abs(answers[0]["q"][0][0] - exact) < tolerance
    assert np.shape(answers[0]["q"]) == (2, 1) and len(answers[0]["seconds"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("key", ["siconos", "diffrax"])
def test_a_simulator_swings_a_double_pendulum(key):
    """Where it is installed, against event location: the error of diffrax's tolerance, a hundred times, and O(h)."""
    work = works.DOUBLE
    q0, v0 = work.initial(2)
    job = {"work": work.name, "q0": q0.tolist(), "v0": v0.tolist(), "e": work.restitution, "args": work.args,
           "h": work.h, "steps": work.steps, "rounds": 1, "tolerance": 1e-8, "longest": 0.05}  # fmt: skip
    remark, answers = peers.ask(key, [job, job])
    if not answers:
        assert remark.startswith("not installed")
        pytest.skip(remark)
    exact, _ = reference.event_located(work.problem, q0, v0, np.array([work.t1]), work.restitution, work.args)
    for answer in answers:
        assert np.abs(np.array(answer["q"]) - exact[:, 0]).max() < {"siconos": 3e-2, "diffrax": 1e-6}[key]


# many
# contacts ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_siconos_makes_the_motion_of_a_pile(tmp_path):
    """Where it is installed. The scheme, normals and active contacts are the same, so only rounding differs, which
    stays small until it first moves the closing of a contact by a step: 50 steps see ten contacts close. Residuals are
    of a direct solver, some eps times velocities of 0.5 m/s, and of ours within its tolerance of 1e-12,
    or its round-off."""
    try:
        siconos = SiconosPile(tmp_path)
    except RuntimeError as missing:
        pytest.skip(str(missing))
    work = replace(works.pile(16), steps=50)
    q0, (every, near) = work.initial(1)[0][0], contacts.sets(work).values()
    mine = contacts.ours(works.with_pairs(work, near))()
    assert np.sum(mine.impulse[-1] > 0) >= 10 and mine.residual < 2e-12
    for pairs in (every, near):
        q, v, seconds, residual = siconos.run(work, q0, pairs)
        np.testing.assert_allclose(mine.q[-1], q, rtol=0, atol=1e-12)
        np.testing.assert_allclose(mine.v[-1], v, rtol=0, atol=1e-10)
        assert 0 < residual < 1e-13 and seconds > 0
    with pytest.raises(RuntimeError, match="failed: input is incomplete"):
        siconos.run(work, q0, near[:, :1])


@pytest.mark.slow
def test_near_pairs_are_enough_for_a_pile():
    """A settling pile keeps its neighbours: the other pairs, which are not seen, stay apart."""
    work = works.pile(16)
    every, near = contacts.sets(work).values()
    assert len(near) < len(every) == 16 * 15 // 2
    settled = contacts.ours(works.with_pairs(work, near))()
    gaps = work.problem.gaps(0.0, settled.q[-1], work.args)
    assert gaps.min() >= -settled.penetration
    np.testing.assert_array_equal(works.with_pairs(work, every).problem.gaps(0.0, settled.q[-1], work.args), gaps)


@pytest.mark.slow
def test_contacts_are_timed_without_siconos():
    work, pairs = replace(works.WORKS["pile-16"], steps=20), np.array([[0, 1]])
    theirs, mine = contacts.measure(work, pairs, "pile-16, one pair", None, "not installed: test", 2)
    assert theirs["remark"] == "not installed: test" and "ns_per_step" not in theirs
    assert mine["constraints"] == 1 + 64 and len(mine["seconds"]) == 2 and mine["residual"] < 1e-11
    assert "| pile-16, one pair | 65 | Siconos, MoreauJean | 1 | not installed: test |" in report.table([theirs, mine])


# error against cost ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", slow_but(["ball"], ["ball", "oscillator"]))
def test_exact_motions_are_those_of_the_problems(name):
    """Closed forms against event location, to the integrator's tolerance of 1e-12 and its growth along the motion."""
    motion = work_precision.MOTIONS[name](3)
    for lane in range(3):
        args = {key: x[lane] if key in motion.per_lane else x for key, x in motion.args.items()}
        some, problem = slice(lane, lane + 1), work_precision.problem_of(motion.work)
        q, _ = reference.event_located(problem, motion.q0[some], motion.v0[some], np.array([motion.t1]), motion.e, args)
        np.testing.assert_allclose(q[0, 0], motion.exact[lane], atol=1e-9)


@pytest.mark.slow
def test_pictures(tmp_path):
    """Exact positions of every other lane are compared with those lanes;
    what is not installed is left out of a picture."""
    pytest.importorskip("matplotlib")
    lanes = 2 * work_precision.CHECKED
    assert work_precision.ball(lanes).exact.shape == (lanes // 2, 1)
    nowhere = {"siconos": "/no", "diffrax": "/no"}
    points = work_precision.measure("ball", False, nowhere, (lanes, (997, 3989), (1e-6,), 1))
    others = [point for point in points if "remark" in point]
    coarse, fine = [point for point in points if point["method"] == "PaoliSchatzman"]
    (located,) = [point for point in points if point["method"] == work_precision.SCIPY]
    # polynomials of degree two have no error but that of the event's location, which scipy ends at 4 eps
    assert located["error"] < 1e-12 and located["us_per_trajectory"] > 0
    assert fine["error"] < coarse["error"] < 0.05 and fine["us_per_trajectory"] > 0
    assert all(point["remark"].startswith("not installed") for point in others) and len(others) == 3
    work_precision.pictures(points, tmp_path)
    assert (tmp_path / "error-against-cost-ball.png").stat().st_size > 10_000


# all of it ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_writes_its_parts_and_the_table_that_it_prints(tmp_path, capsys):
    parts = ["--parts", "values", "peers", "accelerator", "--python", *(f"{key}=/no" for key in peers.TITLES)]
    run.main(["--out", str(tmp_path), "--only", "ball:2", "--rounds", "1", *parts, "--lanes", "3"])
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["about"]["cpu"] is not None and results["about"]["jax"] == jax.__version__
    assert {report.section(row) for row in results["rows"]} == {"values", "peers", "accelerator"}
    assert all(
        row["remark"] == "not measured" for row in results["rows"] if "ns_per_step" not in row and "device" in row
    )
    assert (tmp_path / "table.md").read_text() in capsys.readouterr().out


@pytest.mark.slow
def test_accelerator_rows_on_any_device():
    options = SimpleNamespace(
        works=["ball"], lanes=[20], any_device=True, bandwidth=1e9, flops64=1e9, flops32=2e9, rounds=1, budget=1.0,
        others=20,
    )  # fmt: skip
    *rows, _, _, jacobians, _, _, _, rubbing = accelerator.rows(options)
    others, rows = ([row for row in rows if row["contender"].startswith("ensemble") is own] for own in (False, True))
    assert [row["dtype"] for row in others if row["contender"] == "arrays on the device"] == ["float64", "float32"]
    assert (jacobians["lanes"], rubbing["work"]) == (2, "spinning ball")
    assert [(row["dtype"], row["contender"][10:]) for row in rows] == [
        ("float64", "one kernel"), ("float64", "XLA"), ("float32", "one kernel"), ("float32", "XLA")
    ]  # fmt: skip
    double, _, single, _ = rows
    # 4 numbers are moved in a step, and 6 operations made
    assert double["bytes_limit_ns"] == pytest.approx(32) and double["flops_limit_ns"] == pytest.approx(6)
    assert single["bytes_limit_ns"] == pytest.approx(16) and single["flops_limit_ns"] == pytest.approx(3)
    for found in rows:
        if found["contender"].endswith("XLA"):
            assert found["ns_per_step"] > 0 and found["error"] < 3e-2
        else:
            assert "needs a GPU" in found["remark"] or found["ns_per_step"] > 0
    assert "limit by bytes" in report.table(rows)


@pytest.mark.parametrize("wrong", [["--only", "ball"], ["--only", "moon:3"], ["--rounds", "0"], ["--python", "mjx"]])
def test_bad_arguments(wrong, tmp_path):
    with pytest.raises(SystemExit):
        run.main(["--out", str(tmp_path), *wrong])


# compiled, not run ----------------------------------------------------------------------------------------------------

VIRTUAL = """
.visible .entry body(
{
	add.rn.f64 	%rd1, %rd1, %rd2;
$L__BB0_1:
	mul.rn.f64 	%rd1, %rd1, %rd2;
	@%p1 bra 	$L__BB0_3;
	add.rn.f64 	%rd1, %rd1, %rd2;
	div.rn.f64 	%rd1, %rd1, %rd2;
	bra.uni 	$L__BB0_3;
$L__BB0_3:
	fma.rn.f64 	%rd1, %rd1, %rd2, %rd3;
	add.s32 	%r1, %r1, 1;
	@%p2 bra 	$L__BB0_1;
	ret;
}
"""
MACHINE = """
//--------------------- .text.body --------------------------
.text.body:
        /*0000*/                   DADD R2, R2, R4 ;
.L_x_1:
        /*0010*/                   DMUL R2, R2, R4 ;
        /*0020*/               @P0 BRA `(.L_x_2) ;
        /*0030*/                   DADD R2, R2, R4 ;
        /*0040*/                   MUFU.RCP64H R3, R5 ;
.L_x_2:
        /*0050*/                   DFMA R2, R2, R4, R6 ;
        /*0060*/                   IADD3 R1, R1, 0x1, RZ ;
        /*0070*/               @P1 BRA `(.L_x_1) ;
        /*0080*/                   EXIT ;
"""


@pytest.mark.parametrize(
    ("code", "weigh", "expected"),
    [
        # the shortest way leaves out a sum and a division, which the whole loop has
        (without_device.virtual_code(VIRTUAL), lambda x: 2 if x.startswith("fma") else x.endswith("f64"), (3, 5)),
        (without_device.machine_code(MACHINE), lambda x: x.startswith(("D", "MUFU")), (2, 4)),
    ],
    ids=["virtual", "machine"],
)
def test_what_a_step_takes_is_read_from_code(code, weigh, expected):
    assert without_device.step_of(without_device.blocks(code), weigh) == expected
