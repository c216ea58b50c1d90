"""The command line on the bouncing ball and the free oscillator: what it prints, what it writes, how it refuses.

Step counts are small; runs share shapes so that few programs are compiled.
"""

from __future__ import annotations

import io
import json
import sys

import numpy as np
import pytest

import jaximpact
from jaximpact import EventCorrected, EventDriven, Maury, MoreauJean, PaoliSchatzman
from jaximpact.catalogue import entries, get
from jaximpact.cli import main
from jaximpact.mechanics.method_names import METHODS, PROJECTIONS, SCHEMES, projection_from_name, scheme_from_name
from jaximpact.study.plain import CLASSES

H = 0.01
BALL = ["run", "bouncing-ball", "--case", "e=1", "--h", str(H)]
IMPACTS = np.asarray(get("bouncing-ball").cases["e=1"].impacts)
# Position error over h of the elastic ball, to first order: with U+ = -U_ twice in a row, each impact comes late by at
# most 2 h at speed w = sqrt(2), and puts the ball at -U with its speed kept: the energy changes by at most 2 g w h/2,
# the speed by g h, which the rest of the motion integrates. Measured: 12 of these 29.
RATE = np.sum(2 * np.sqrt(2.0) + (10.0 - IMPACTS))
BOUND = RATE * H


def call(*argv) -> int:
    return main([str(x) for x in argv])


def table(path) -> dict[str, np.ndarray]:
    header, *_ = path.read_text().splitlines()
    values = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
    return dict(zip(header.split(","), values.T, strict=True))


@pytest.fixture(scope="module")
def ball(tmp_path_factory):
    """One run of the elastic ball: exit status and folder."""
    out = tmp_path_factory.mktemp("ball")
    status = call(*BALL, "--out", out)
    return status, out


def test_names_make_schemes_and_projections():
    kinds = {
        "paoli-schatzman": PaoliSchatzman,
        "maury": Maury,
        "moreau-jean": MoreauJean,
        "event-corrected": EventCorrected,
        "event-driven": EventDriven,
    }
    for name, make in SCHEMES.items():
        assert isinstance(make(), next(kind for stem, kind in kinds.items() if name.startswith(stem)))
        assert scheme_from_name(name) == make()
    assert SCHEMES["paoli-schatzman-explicit"]().normal == "explicit"
    assert SCHEMES["maury-half-kick"]().half_kick
    assert scheme_from_name("paoli-schatzman", "mean").force == "mean"
    assert {projection_from_name(name) for name in PROJECTIONS} == {make() for make in PROJECTIONS.values()}
    with pytest.raises(ValueError, match="did you mean 'maury'"):
        scheme_from_name("maurie")
    with pytest.raises(ValueError, match="moreau-jean"):
        scheme_from_name("moreau-jean", "mean")


def test_list_has_every_problem_once(capsys):
    assert call("list") == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["id", "name", "title", "cases", "schemes"]
    assert [row.split()[:2] for row in rows] == [[entry.id, entry.name] for entry in entries()]
    column = header.index("schemes")
    schemes = {row.split()[1]: row[column:] for row in rows}
    assert schemes["bouncing-ball"] == "maury at e=0 only"
    assert schemes["free-oscillator"] == "not maury"
    assert schemes["bowl"] == "all"
    assert schemes["four-bar"] == "moreau-jean, event-corrected, event-driven"
    assert schemes["rocking-block"] == "maury, maury-half-kick, moreau-jean, event-corrected, event-driven"


def test_verbose_list_has_every_case(capsys):
    assert call("list", "--verbose") == 0
    _, *rows = capsys.readouterr().out.splitlines()
    assert len(rows) == sum(len(entry.cases) for entry in entries())
    assert rows[0].split() == ["B01", "bouncing-ball", "e=1/2", "1", "1", "0.5", "5", "yes", "52", "not", "maury"]


@pytest.mark.parametrize("name", ["bouncing-ball", "B01", "b01"])
def test_show_states_the_problem_and_what_theory_predicts(capsys, name):
    assert call("show", name) == 0
    text = capsys.readouterr().out
    entry = get("B01")
    assert entry.statement in " ".join(text.split())
    assert all(f"case {case}: " in text for case in entry.cases)
    inelastic = text[text.index("case e=0") :]
    rows = {line.split()[0]: line.split()[1:] for line in inelastic.splitlines() if line.startswith("  ")}
    assert rows["paoli-schatzman"] == ["exact", "1", "1"]
    assert rows["moreau-jean"] == ["-", "-", "-"]
    assert set(SCHEMES) < set(rows)
    assert "maury" not in text[text.index("case e=1/2") : text.index("case e=4/5")]


def test_run_writes_a_motion_close_to_the_exact_one(ball):
    status, out = ball
    assert status == 0
    assert {path.name for path in out.iterdir()} == {"motion.npz", "motion.csv", "motion.png", "run.json"}
    case = get("bouncing-ball").cases["e=1"]
    arrays = np.load(out / "motion.npz")
    t, q = arrays["t"], arrays["q"]
    assert q.dtype == np.float64
    assert t.shape == (1001,) and q.shape == arrays["v"].shape == arrays["z"].shape == (1001, 1)
    assert np.max(np.abs(q - case.exact(t)[0])) <= BOUND
    assert np.abs(arrays["impulse"][-1] - case.impulse) <= BOUND
    assert np.all(arrays["energy"][-1] <= 1.0 + H) and arrays["status"] == 0

    columns = table(out / "motion.csv")
    assert list(columns) == ["t", "q[0]", "v[0]", "z[0]", "impulse[0]", "energy"]
    for name, values in columns.items():
        stem = name.partition("[")[0]
        assert np.array_equal(values, arrays[stem].reshape(len(t)))


def test_run_records_what_was_done(ball):
    _, out = ball
    record = json.loads((out / "run.json").read_text())
    assert record["command"].startswith("jaximpact run bouncing-ball --case e=1 --h 0.01")
    assert record["versions"]["jaximpact"] == jaximpact.__version__
    settings = {"problem": "bouncing-ball", "case": "e=1", "h": H, "t1": 10.0, "e": 1.0, "steps": 1000, "save": 1}
    settings |= {"scheme": "paoli-schatzman", "projection": "active-set", "dtype": "float64", "q0": [1.0]}
    assert settings.items() <= record["settings"].items()
    assert 0 < record["results"]["position error"] <= BOUND
    assert record["results"]["status"] == "OK"
    assert record["seconds"]["compile"] >= 0 and record["seconds"]["run"] > 0
    assert [path.rpartition("/")[2] for path in record["files"]][-1] == "run.json"


def test_run_prints_a_summary(tmp_path, capsys):
    assert call(*BALL, "--out", tmp_path) == 0
    text = capsys.readouterr().out
    for label in ("final position", "position error", "worst penetration", "KKT residual", "energy change", "status"):
        assert label in text
    assert str(tmp_path / "motion.npz") in text


def test_save_keeps_every_kth_step_and_the_last(tmp_path):
    assert call(*BALL, "--save", 300, "--out", tmp_path) == 0
    assert np.allclose(table(tmp_path / "motion.csv")["t"], [0.0, 3.0, 6.0, 9.0, 10.0])


def test_changed_restitution_has_no_exact_motion(tmp_path, capsys):
    assert call(*BALL, "--e", 0.5, "--out", tmp_path) == 0
    assert "exact motion not known: it is for e = 1" in capsys.readouterr().out
    assert "position error" in json.loads((tmp_path / "run.json").read_text())["results"]
    # at rest by the end, as at e = 1/2 from the same height
    assert abs(table(tmp_path / "motion.csv")["q[0]"][-1]) <= 1e-9


def test_float32_gives_rows_in_float32(tmp_path):
    assert call(*BALL, "--float32", "--out", tmp_path) == 0
    arrays = np.load(tmp_path / "motion.npz")
    assert arrays["q"].dtype == np.float32
    assert np.max(np.abs(arrays["q"] - get("B01").cases["e=1"].exact(arrays["t"].astype(float))[0])) <= BOUND


def test_ensemble_is_seeded_admissible_and_summarised(tmp_path, capsys):
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    many = [*BALL, "--ensemble", 64, "--spread", 0.5]
    assert call(*many, "--out", first) == call(*many, "--out", second) == call(*many, "--seed", 1, "--out", other) == 0
    assert {path.name for path in first.iterdir()} == {"ensemble.npz", "summary.csv", "ensemble.png", "run.json"}
    assert "final position, 50% quantile" in capsys.readouterr().out
    arrays = np.load(first / "ensemble.npz")
    assert np.array_equal(arrays["q"], np.load(second / "ensemble.npz")["q"])
    assert not np.array_equal(arrays["q"], np.load(other / "ensemble.npz")["q"])
    # of 64 heights of mean 1 and deviation 1/2 some are drawn below the floor, and drawn again
    assert json.loads((first / "run.json").read_text())["results"]["initial positions redrawn"] > 0
    assert np.all(arrays["q0"] >= 0) and np.std(arrays["q0"]) > 0.3
    assert arrays["q"].shape == (64, 101, 1)
    columns = table(first / "summary.csv")
    names = ["motion", "q0[0]", "v0[0]", "q[0]", "v[0]", "impulse[0]", "energy"]
    assert list(columns) == [*names, "penetration", "residual", "status", "failed_at"]
    assert np.array_equal(columns["q[0]"], arrays["q"][:, -1, 0])
    # at e = 1 an impact changes the energy by at most g w h; there are T g/(2 w) + 1 of them in T = 10 s, w < 3
    start = 0.5 * columns["v0[0]"] ** 2 + columns["q0[0]"]
    calm = np.all(np.diff(arrays["impulse"][:, -3:, 0], axis=1) == 0, axis=1)  # not in the middle of an impact
    assert calm.sum() > 50
    assert np.all(np.abs(columns["energy"] - start)[calm] <= 10 * H)


def test_converge_tabulates_errors_and_orders(tmp_path, capsys):
    steps = [503, 1009, 2003]
    assert call("converge", "bouncing-ball", "--case", "e=1", "--steps", *steps, "--graph", "--out", tmp_path) == 0
    text = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line}
    assert rows["order"] == ["observed", "expected"] and rows["position"][1] == "1"
    assert {path.name for path in tmp_path.iterdir()} == {"convergence.csv", "convergence.json", "convergence.png"}
    columns = table(tmp_path / "convergence.csv")
    assert list(columns) == ["steps", "h", "position", "velocity", "impulse", "graph", "penetration", "residual"]
    assert list(columns["steps"]) == steps
    assert np.allclose(columns["h"], 10.0 / np.array(steps))
    assert np.all(columns["position"] <= RATE * columns["h"])
    record = json.loads((tmp_path / "convergence.json").read_text())
    assert record["orders"]["expected"] == {"position": "1", "velocity": "1", "impulse": "1", "graph": "-"}
    assert record["orders"]["observed"]["position"] == pytest.approx(float(rows["position"][0]), abs=0.005)
    assert record["orders"]["observed"]["position"] > 0.7
    assert record["reference"] == "the exact motion"


def test_problems_with_joints_take_a_scheme_that_keeps_them(tmp_path):
    assert call("run", "pendulum-by-a-joint", "--t1", "0.5", "--out", tmp_path) == 0
    recorded = json.loads((tmp_path / "run.json").read_text())
    # free up to .64 s: of second order, h = 1e-3
    assert recorded["settings"]["scheme"] == "moreau-jean" and recorded["results"]["position error"] < 1e-5


def test_an_ensemble_with_joints_starts_where_they_hold(tmp_path):
    assert call("run", "four-bar", "--ensemble", "3", "--t1", "0.05", "--h", "0.01", "--out", tmp_path) == 0
    found = np.load(tmp_path / "ensemble.npz")
    entry = get("four-bar")
    for q in found["q0"]:
        assert np.max(np.abs(entry.problem.joints(0.0, q, next(iter(entry.cases.values())).args))) < 1e-12
    assert np.ptp(found["q0"], axis=0).min() > 0


def test_converge_recognises_nodes_that_are_exact(tmp_path, capsys):
    assert call("converge", "B01", "--case", "e=0", "--steps", 503, 1009, 2003, "--out", tmp_path) == 0
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line}
    assert rows["position"] == ["exact", "exact"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["run", "bouncing-bal"], "did you mean 'bouncing-ball'?"),
        (["show", "B99"], "no catalogue problem 'B99'"),
        (["run", "bouncing-ball", "--case", "e=3/4"], "did you mean 'e="),
        (["run", "bouncing-ball", "--scheme", "paoli-schatzmann"], "did you mean 'paoli-schatzman'?"),
        (["converge", "bouncing-ball", "--projection", "active_set"], "did you mean 'active-set'?"),
        (["run", "bouncing-ball", "--scheme", "maury"], "inelastic impacts only"),
        (["run", "bouncing-ball", "--scheme", "moreau-jean", "--force", "mean"], "one discretisation"),
        (["run", "bouncing-ball", "--h", "-1"], "h must be positive"),
        (["run", "bouncing-ball", "--h", "nan"], "h must be finite"),
        (["run", "bouncing-ball", "--t1", "inf"], "t1 must be finite"),
        (["run", "bouncing-ball", "--e", "1.5"], "restitution must lie in [0, 1]"),
        (["run", "bouncing-ball", "--ensemble", "0"], "--ensemble 0"),
        (["run", "bouncing-ball", "--ensemble", "2", "--spread", "-1"], "--spread -1"),
        (["run", "bouncing-ball", "--seed", "1"], "--seed belongs to --ensemble"),
        (["show", "."], "holds no study"),
        (["run", "bouncing-ball", "--save", "0"], "--save 0"),
        (["converge", "bouncing-ball", "--steps", "20", "10"], "increasing whole numbers"),
        (["run"], "required: problem"),
        (["frobnicate"], "invalid choice"),
        ([], "required: COMMAND"),
    ],
)
def test_wrong_usage_exits_2_and_says_why(argv, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call(*argv) == 2
    captured = capsys.readouterr()
    assert "error: " in captured.err and said in captured.err
    assert "Traceback" not in captured.err and captured.out == ""


def test_unwritable_folder_exits_2(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert call(*BALL, "--out", tmp_path / "file") == 2
    assert "error: " in capsys.readouterr().err


def test_failed_motion_exits_1_with_its_cause(tmp_path, capsys):
    # h times the frequency, 1 rad/s, is far above 2: the explicit scheme is unstable, up to the largest number
    assert call("run", "free-oscillator", "--h", 50, "--t1", 20000, "--out", tmp_path) == 1
    captured = capsys.readouterr()
    assert "1 of 1 trajectories failed" in captured.err and "h is too large" in captured.err
    assert "NON_FINITE" in captured.out
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["results"]["final energy"] is None and "NON_FINITE" in record["results"]["status"]
    assert (tmp_path / "motion.png").exists()


@pytest.mark.parametrize("command", ["list", "show", "run", "converge"])
def test_help_teaches_by_example(command, capsys):
    assert call(command, "--help") == 0
    text = capsys.readouterr().out
    assert "example" in text and f"  jaximpact {command}" in text
    if command in ("run", "converge"):
        assert all(name in text for name in (*SCHEMES, *PROJECTIONS))


def test_version(capsys):
    assert call("--version") == 0
    assert capsys.readouterr().out.strip() == f"jaximpact {jaximpact.__version__}"


def test_without_matplotlib_numbers_are_written_all_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert call(*BALL, "--out", tmp_path) == 0
    assert "pip install matplotlib" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"motion.npz", "motion.csv", "run.json"}


def test_the_command_line_takes_a_contact_solver_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "own_solver.py").write_text(
        "import jax, jaximpact as ji\nfrom dataclasses import dataclass\n"
        "@jax.tree_util.register_dataclass\n@dataclass(frozen=True)\nclass Mine(ji.ActiveSet):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    assert type(projection_from_name("own_solver:Mine")).__name__ == "Mine"
    ball = ("run", "bouncing-ball", "--h", "0.01", "--t1", "0.6")
    for name in ("own_solver:Mine", "active-set"):
        assert call(*[*ball, "--projection", name, "--out", name[:3]]) == 0
    own, ours = (json.loads((tmp_path / name / "run.json").read_text())["results"] for name in ("own", "act"))
    assert own == ours
    with pytest.raises(ValueError, match="module:name"):
        projection_from_name("own_solver:Missing")


def test_a_terminal_that_knows_ascii_alone_is_enough(tmp_path, monkeypatch):
    study = jaximpact.Study(tmp_path / "s.zarr", "bouncing-ball", jaximpact.Design.grid(e=[0.5], h=[0.1]), t1=0.5)
    study.run()
    told = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", told)
    monkeypatch.setattr(sys, "argv", ["jaximpact", "show", study.path])
    assert main() == 0
    assert b"e 1 ? h 1; 1 of 1 chunks finished" in told.buffer.getvalue()


def test_names_and_stores_read_one_table():
    made = {type(make()) for make in (*SCHEMES.values(), *PROJECTIONS.values())}
    assert made <= set(METHODS) and set(METHODS) < set(CLASSES.values())
