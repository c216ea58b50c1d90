"""Studies from the command line: a file in, a store out; what is printed, and how wrong files are refused."""

import os
import signal
import textwrap
from pathlib import Path

import numpy as np
import pytest

import jaximpact as ji
from jaximpact.cli import main
from support import study_systems
from support.study_systems import ARGS, begun, digest, fragile, grid, small

FILE = """
store = "{path}"
problem = "support.study_systems:fragile"
q0 = [1.0]
v0 = [0.0]
t1 = 1.0
h = 0.01
args = {{ limit = 9.0, floor = 0.0 }}
scheme = {{ name = "paoli-schatzman", normal = "explicit" }}

[design]
kind = "points"
e = [0.5, 0.6, 0.7]
args.limit = [9.0, 0.5, 9.0]
"q0[0]" = [1.0, 1.0, -0.1]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A study computed from a file: three lanes, one becomes NaN, one cannot start."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "three.toml").write_text(FILE.format(path=folder / "three.zarr"))
    assert main(["study", str(folder / "three.toml")]) == 1
    return folder


def test_study_computes_what_the_file_says(folder):
    found = ji.Study.open(folder / "three.zarr").dataset()
    scheme = ji.PaoliSchatzman(normal="explicit")
    args = {"limit": 9.0, "floor": 0.0}
    single_backend = ji.solve(fragile, [1.0], [0.0], t1=1.0, h=0.01, args=args, e=0.5, scheme=scheme, save="final")
    # alone and in a batch a lane differs by rounding only
    np.testing.assert_allclose(found.q[0], single_backend.q, rtol=0, atol=1e-11)
    assert found.done.values.tolist() == [1, 1, 2]


def test_show_tells_progress_definition_and_failed_lanes(folder, capsys):
    assert main(["show", str(folder / "three.zarr")]) == 0
    told = capsys.readouterr().out
    for words in (
        "lane 3; 1 of 1 chunks finished",
        "support.study_systems:fragile",
        "PaoliSchatzman(",
        "2 failed",
        "INPUT_INVALID",
        "lane((1,), save='all')",
    ):
        assert words in told
    assert main(["show", "bouncing-ball"]) == 0  # a name of the catalogue, as before


def test_resume_refuses_a_damaged_chunk_unless_it_is_to_repair(tmp_path, capsys):
    study = small(tmp_path / "s.zarr")
    study.run()
    before = digest(study.path)
    os.truncate(tmp_path / "s.zarr" / "q" / "c.1.0.0.0", 5)
    assert main(["resume", study.path]) == 1
    assert "chunk 1" in capsys.readouterr().err
    assert main(["resume", study.path, "--repair"]) == 0
    assert "12 of 12 lanes computed (4 of 4 chunks)" in capsys.readouterr().out
    assert digest(study.path) == before


def test_interrupt_gives_the_usual_status(tmp_path):
    path = begun(tmp_path / "s.zarr", problem="support.study_systems:moody", args=ARGS, chunk=12).path
    study_systems.TRACED.append(lambda: signal.raise_signal(signal.SIGINT))
    try:
        assert main(["resume", path]) == 130
    finally:
        study_systems.TRACED.clear()


def test_no_study_there(tmp_path, capsys):
    assert main(["resume", str(tmp_path)]) == 2
    assert "is no study" in capsys.readouterr().err


def test_example_is_shipped_and_described(monkeypatch, tmp_path, capsys):
    file = Path(__file__).parents[2] / "experiments" / "gallery" / "studies" / "impact_oscillator.toml"
    monkeypatch.chdir(tmp_path)
    study = ji.Study.from_file(file)
    assert (study.dims, study.shape) == (("e", "frequency"), (15, 20))
    assert main(["study", "--help"]) == 0
    assert textwrap.indent(file.read_text(), "  ") in capsys.readouterr().out


def test_kinds_of_designs(tmp_path):
    top = (
        FILE.partition("[design]")[0]
        .format(path=tmp_path / "s.zarr")
        .replace('"support.study_systems:fragile"', '"support.study_systems:ball"')
    )
    top = top.replace("limit", "gravity")

    def design(text):
        (tmp_path / "some.toml").write_text(top + "[design]\n" + text)
        return ji.Study.from_file(tmp_path / "some.toml").design

    assert np.array_equal(design("e = { from = 0.2, to = 0.9, count = 4 }").values["e"], grid().values["e"])
    log = design('kind = "grid"\nargs.gravity = { from = 1.0, to = 100.0, count = 3, spacing = "log" }')
    np.testing.assert_allclose(log.values["args.gravity"], [1.0, 10.0, 100.0], rtol=1e-14)
    found = design('kind = "latin-hypercube"\ncount = 7\nseed = 2\ne = [0.0, 1.0]')
    assert np.array_equal(found.values["e"], ji.Design.latin_hypercube(7, seed=2, e=(0, 1)).values["e"])
