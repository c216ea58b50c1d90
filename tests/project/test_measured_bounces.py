"""The experiment on measured bounces: what it says of bad files, and what it recovers from good ones."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from bounces.data import read_drops
from bounces.matching import match
from measured_bounces import main

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT.parent / "shared" / "data" / "bounce_times.csv"

HEADER = "ball,drop_height_cm,drop,bounce,time_s\n"


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def file_of(folder, text):
    path = folder / "drops.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("", 1, "ball", "missing column"),
        ("ball,drop_height_cm,drop,bounce\na,10,1,0\n", 1, "time_s", "missing column"),
        (HEADER + "a,10,1,0,0.0\na,10,1,1,soon\n", 3, "time_s", "expected a number, got 'soon'"),
        (HEADER + "a,10,1,0,0.0\na,10,1,1\n", 3, "time_s", "expected a number, got None"),
        (HEADER + "a,high,1,0,0.0\n", 2, "drop_height_cm", "expected a number, got 'high'"),
        (HEADER + "a,10,1,0,0.0\na,10,1,1,nan\n", 3, "time_s", "expected a finite number"),
        (HEADER + "a,inf,1,0,0.0\n", 2, "drop_height_cm", "expected a finite number"),
        (HEADER + "a,-10,1,0,0.0\n", 2, "drop_height_cm", "must be positive"),
        (HEADER + "a,10,1,0,-0.1\n", 2, "time_s", "must not be negative"),
        (HEADER + "a,10,1,0,0.0\na,10,1,1,0.4\na,10,1,2,0.4\n", 4, "time_s", "0.4 does not come after 0.4"),
        (HEADER + "a,10,1,0.5,0.0\n", 2, "bounce", "whole number"),
        (HEADER + ",10,1,0,0.0\n", 2, "ball", "empty name"),
    ],
)
def test_bad_rows_are_named_by_file_line_and_column(tmp_path, text, line, column, words):
    with pytest.raises(ValueError) as error:
        read_drops(file_of(tmp_path, text))
    for part in ("drops.csv", f"line {line}", f"'{column}'", words):
        assert part in str(error.value)


PLAIN = HEADER + "a,10.5,1,0,2.0\na,10.5,1,1,2.25\na,10.5,1,2,2.5\n"


@pytest.mark.parametrize(
    "text",
    [
        PLAIN.replace(",", ";"),
        PLAIN.replace(",", "\t"),
        PLAIN.replace(",", ";").replace(".", ","),
        PLAIN.replace(",", "\t").replace(".", ","),
        PLAIN.replace("ball,drop_height_cm", "Ball, Drop height [cm]").replace("time_s", "Time (s)"),
        "time_s,bounce,drop,drop_height_cm,note,BALL\n2.0,0,1,10.5,,a\n2.25,1,1,10.5,x,a\n2.5,2,1,10.5,,a\n",
        PLAIN.replace("time_s", "time_ms").replace("2.0", "2000").replace("2.25", "2250").replace("2.5\n", "2500\n"),
        PLAIN.replace("_cm", "_mm").replace("10.5", "105"),
        "\ufeff" + PLAIN.replace("\n", "\r\n") + "\r\n",
        PLAIN + ",,,,\n",
    ],
)
def test_files_as_people_have_them(tmp_path, text):
    """Separators, decimal commas, headers, units, a byte-order mark and a path with spaces: the same three contacts."""
    folder = tmp_path / "my measurements"
    folder.mkdir()
    path = folder / "drop times.csv"
    path.write_bytes(text.encode())
    (drop,), unusable = read_drops(path)
    assert (drop.ball, drop.drop, unusable) == ("a", "1", [])
    np.testing.assert_allclose(drop.drop_height_cm, 10.5, rtol=1e-15)
    np.testing.assert_allclose(drop.times, [0.0, 0.25, 0.5], rtol=1e-15)


def test_reading_keeps_every_drop(tmp_path):
    text = HEADER + "a,10,1,0,2.0\nb,10,1,0,0.0\na,10,1,1,2.3\na,10,1,2,2.5\nb,10,1,1,0.2\n"
    drops, unusable = read_drops(file_of(tmp_path, text))
    assert [drop.label for drop in drops] == ["a 10 cm drop 1"]
    np.testing.assert_allclose(drops[0].times, [0, 0.3, 0.5])
    assert [(drop.label, why) for drop, why in unusable] == [("b 10 cm drop 1", "only 2 contacts, 3 are needed")]


@pytest.mark.parametrize(
    ("text", "words"), [(None, "No such file"), (HEADER, "no rows"), (HEADER + "a,10,1,0,0\n", "3 contacts")]
)
def test_nothing_to_fit_ends_with_a_message(tmp_path, capsys, text, words):
    path = tmp_path / "absent.csv" if text is None else file_of(tmp_path, text)
    with pytest.raises(SystemExit) as end:
        main(["--data", str(path), "--out", str(tmp_path / "out")])
    assert end.value.code == 2
    assert words in capsys.readouterr().err


def test_matching_skips_missed_and_extra_contacts():
    model = np.concatenate([[0], np.cumsum(0.5 * 0.9 ** np.arange(12))])
    measured = np.insert(np.delete(model[:10], 4), 7, model[7] + 0.1) + 0.002
    measured[0] = 0
    _, index = match(measured, model[None], 5e-3)
    assert index.tolist() == [0, 1, 2, 3, 5, 6, 7, -1, 8, 9]


def test_matching_prefers_the_truth_to_dense_contacts():
    truth = np.concatenate([[0], np.cumsum(0.5 * 0.9 ** np.arange(10))])
    dense = 0.01 * np.arange(500)  # a contact within 5 ms of anything
    model = np.full((2, len(dense)), np.nan)
    model[0], model[1, : len(truth)] = dense, truth + 0.015 * np.sin(np.arange(11))
    cost, index = match(truth, model, 20e-3)
    assert cost[1] < cost[0]
    assert index.tolist() == list(range(11))


def test_matching_leaves_a_lone_late_contact_out():
    model = np.concatenate([[0], np.cumsum(0.5 * 0.9 ** np.arange(12))])
    _, index = match(np.append(model[:8], model[10]), model[None], 5e-3)  # by chance where contact 10 was
    assert index.tolist() == [*range(8), -1]


@pytest.mark.slow
def test_recovers_the_truth_of_synthetic_drops(tmp_path, capsys):
    source = ROOT / "experiments" / "cases" / "data"
    text = (source / "synthetic_bounces.csv").read_text() + "stone,50,1,0,0.0\nstone,50,1,1,0.1\n"
    data, out = tmp_path / "synthetic_bounces.csv", tmp_path / "out"
    data.write_text(text)
    (tmp_path / "synthetic_truth.csv").write_text((source / "synthetic_truth.csv").read_text())
    main(["--data", str(data), "--out", str(out), "--drops", "8"])

    printed = capsys.readouterr()
    assert "not used: stone 50 cm drop 1: only 2 contacts" in printed.out
    assert "error/s.e." in printed.out  # recovered against true
    assert printed.err == ""
    truth = {(row["ball"], row["drop_height_cm"], row["drop"]): row for row in rows(source / "synthetic_truth.csv")}
    fits = rows(out / "fits.csv")
    assert fits.pop()["status"].startswith("not used")
    assert len(fits) == 8 and {row["ball"] for row in fits} == {row["ball"] for row in truth.values()}
    for row in fits:
        true = truth[row["ball"], row["drop_height_cm"], row["drop"]]
        # 4 standard errors: one drop in 16,000 by chance; 0.0005 in e and 0.5 % in H: the errors of the errors, which a
        # drop of 6 contacts estimates from its own 3 degrees of freedom
        assert abs(float(row["e"]) - float(true["e"])) < 4 * float(row["e_error"]) + 5e-4, row
        height = float(true["height_cm"])
        assert abs(float(row["height_cm"]) - height) < 4 * float(row["height_error_cm"]) + 5e-3 * height, row
        # the standard errors themselves: 1 ms of jitter on at least 6 contacts
        assert float(row["e_error"]) < 2e-3, row
        # extrapolated contact times: phase noise left over by 240 lanes at h <= 1 ms, 0.3 ms in the median
        assert float(row["closed_form_difference_ms"]) < 5, row
        assert row["status"] == "ok"
    archive = np.load(out / "results.npz")
    np.testing.assert_allclose(archive["e"], [float(row["e"]) for row in fits], rtol=1e-5)
    assert archive["by_step"].shape == (8, 3, 3)
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason="the measured bounce times are not part of the project")
def test_measured_balls(tmp_path, capsys):
    main(["--data", str(REAL), "--out", str(tmp_path)])
    assert "pingpong: e falls" in capsys.readouterr().out  # air drag
    fits = rows(tmp_path / "fits.csv")
    assert len(fits) == 85
    # around the ratio of successive intervals in the data: 0.897, 0.884, 0.758, 0.947
    expected = {"golf": (0.885, 0.91), "rubber": (0.87, 0.895), "tennis": (0.745, 0.775), "pingpong": (0.93, 0.955)}
    for ball, (low, high) in expected.items():
        e = np.median([float(row["e"]) for row in fits if row["ball"] == ball])
        assert low < e < high, (ball, e)
    assert sum(row["status"] != "ok" for row in fits) <= 4
