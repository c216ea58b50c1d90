"""Studies against `ensemble` and `solve` on the same lanes; designs, stores, refusals, single lanes."""

import itertools
import sys
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray

import jaximpact as ji
from jaximpact.study import Blocks
from support import study_systems
from support.breadth import slow
from support.study_systems import ARGS, Here, ball, digest, run_until, small

# a lane's numbers do not depend on how lanes are batched, beyond rounding: a hundred steps of a state of size 10
ROUNDING = {"rtol": 0, "atol": 1e-11}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small study, computed; the tests only read it."""
    study = small(tmp_path_factory.mktemp("study") / "small.zarr")
    study.run()
    return study


# designs


def test_grid_is_a_product():
    design = ji.Design.grid(e=[0.1, 0.2], **{"args.wall": [1.0, 2.0, 3.0]})
    assert (design.shape, design.size) == ((2, 3), 6)
    lanes = design.at((slice(0, 2), slice(1, 3)))
    assert list(zip(lanes["e"], lanes["args.wall"], strict=True)) == list(itertools.product([0.1, 0.2], [2.0, 3.0]))


def test_latin_hypercube_has_one_point_in_every_slice():
    design = ji.Design.latin_hypercube(50, seed=3, e=(0.2, 0.9), **{"q0[0]": (-1.0, 1.0)})
    for key, (low, high) in {"e": (0.2, 0.9), "q0[0]": (-1.0, 1.0)}.items():
        slices = np.floor((design.values[key] - low) / (high - low) * 50)
        assert sorted(slices) == list(range(50))
    again = ji.Design.latin_hypercube(50, seed=3, e=(0.2, 0.9), **{"q0[0]": (-1.0, 1.0)})
    assert np.array_equal(design.values["e"], again.values["e"])


@pytest.mark.parametrize("whole, most", [((101, 200), 4096), ((7,), 3), ((5, 1, 9), 4), ((3, 4), 100)])
def test_blocks_partition_the_lanes(whole, most):
    blocks = Blocks.of(whole, most)
    times = np.zeros(whole, int)
    for number in blocks.numbers():
        times[blocks.where(number)] += 1
        assert np.prod(blocks.sizes(number)) <= most
    assert np.all(times == 1)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: ji.Design.grid(), "at least one quantity"),
        (lambda: ji.Design.grid(frequency=[1.0]), "no quantity 'frequency'.*args.NAME"),
        (lambda: ji.Design.grid(e=[]), "e must be an array of at least one value"),
        (lambda: ji.Design.grid(e=[0.1, np.nan]), "e must be finite"),
        (lambda: ji.Design.grid(e=["a"]), "e must be an array of real numbers"),
        (lambda: ji.Design.grid(e=[0.1 + 1j]), "e must be an array of real numbers"),
        (lambda: ji.Design.grid(**{"h[0]": [0.1]}), "one number"),
        (lambda: ji.Design.grid(**{"q0": [[1.0]], "q0[0]": [1.0]}), "either q0 as a whole or its components"),
        (lambda: ji.Design.points(e=[0.1], h=[0.1, 0.2]), "one length"),
        (lambda: ji.Design.latin_hypercube(0, e=(0, 1)), "count"),
        (lambda: ji.Design.latin_hypercube(5, e=(1, 0)), "low < high"),
    ],
)
def test_design_refuses(make, words):
    with pytest.raises((ValueError, TypeError), match=words):
        make()


# what is computed


def test_grid_equals_ensemble(finished):
    design = finished.design
    lanes = design.at(tuple(slice(None) for _ in design.shape))
    batch = ji.ensemble(ball, lanes["q0[0]"][:, None], [0.0], t1=1.0, h=1e-2, args=ARGS, e=lanes["e"], save=[0.25, 0.5])
    found = finished.dataset()
    assert found.q.dims == ("e", "q0_0", "time", "coordinate")
    np.testing.assert_array_equal(found.time, [0.25, 0.5, 1.0])
    for name in ("q", "v", "z", "impulse", "energy", "penetration", "residual", "iterations", "status"):
        expected = np.asarray(getattr(batch, name))
        np.testing.assert_allclose(found[name].values.reshape(expected.shape), expected, **ROUNDING)
    assert np.all(found.done == 1)
    assert np.all(np.isnan(found.failed_at))


def test_lanes_have_the_keys_of_their_places(tmp_path):
    """Whatever the blocks: numbers of a study with noise are those of one ensemble, of a lane by itself, and of the
    arguments of some lanes."""
    design = ji.Design.grid(e=[0.3, 0.6, 0.9], **{"args.gravity": [5.0, 9.81]})
    given = {"q0": [1.0], "v0": [0.0], "args": ARGS, "t1": 1.0, "h": 0.01, "scheme": ji.MoreauJean(), "key": 5}
    study = ji.Study(tmp_path / "noise.zarr", study_systems.shaken, design, chunk=2, **given)
    study.run()
    found = study.solution().v[:, -1]
    assert len(np.unique(found)) == 6
    np.testing.assert_allclose(study.lane((1, 1), save="final").v[-1], found[3], **ROUNDING)
    own = ji.ensemble(study.problem, **study.arguments(slice(2, 5))).v[:, -1]
    np.testing.assert_allclose(own, found[2:5], **ROUNDING)
    whole = ji.ensemble(study.problem, **study.arguments() | {"key": 5}).v[:, -1]
    np.testing.assert_allclose(whole, found, **ROUNDING)


def test_points_of_every_kind_of_quantity(tmp_path):
    """Whole vectors, components, parameters and h against `ensemble`, and one lane against `solve`."""
    lanes = 4
    random = np.random.default_rng(0)
    varied = {
        "v0[1]": random.random(lanes),
        "args.floor": -random.random(lanes),
        "args.gravity": 9 + random.random(lanes),
    }
    design = ji.Design.points(q0=0.5 + random.random((lanes, 2)), h=[1e-2, 5e-3, 1e-2, 5e-3], **varied)
    given = {"v0": [0.1, 0.2], "t1": 0.7, "h": 1.0, "args": ARGS | {"unused": None}, "e": 0.5}
    study = ji.Study(tmp_path / "s.zarr", "support.study_systems:ball", design, **given)
    study.run()
    found = study.dataset()
    assert found.q.dims == ("lane", "time", "coordinate")
    assert set(found.coords) == {"q0", "h", "v0_1", "floor", "gravity", "time"}
    assert found.q0.dims == ("lane", "coordinate")
    point = design.values
    args = {"gravity": point["args.gravity"], "floor": point["args.floor"]}
    v0 = np.stack([np.full(lanes, 0.1), point["v0[1]"]], 1)
    batch = ji.ensemble(ball, point["q0"], v0, t1=0.7, h=point["h"], args=args, args_axes=0, e=0.5)
    np.testing.assert_allclose(found.q, batch.q, **ROUNDING)
    np.testing.assert_allclose(found.impulse, batch.impulse, **ROUNDING)
    args = {key: column[2] for key, column in args.items()}
    call = {"t1": 0.7, "h": 1e-2, "args": args, "e": 0.5, "save": "final", "sensitivity": "none"}
    np.testing.assert_allclose(study.lane(2).q, ji.solve(ball, point["q0"][2], v0[2], **call).q, **ROUNDING)


def test_whole_vectors_on_a_grid(tmp_path):
    design = ji.Design.grid(q0=[[1.0, 1.0], [1.5, 2.0]], t1=[0.5, 0.8])
    study = ji.Study(tmp_path / "s.zarr", ball, design, v0=[0.0, 0.0], h=1e-2, args=ARGS, e=0.5)
    study.run()
    found = study.dataset()
    assert dict(found.sizes) == {"q0_index": 2, "t1": 2, "time": 1, "coordinate": 2, "constraint": 1}
    np.testing.assert_array_equal(found.t[0, :, 0], found.t1)
    single_backend = study.lane({"q0_index": 1, "t1": 0})
    assert float(single_backend.t[-1]) == 0.5
    np.testing.assert_allclose(found.q[1, 0], single_backend.q, **ROUNDING)


def test_values_of_a_save_function_are_variables(tmp_path):
    save = ji.Save(every=25, function=study_systems.observed)
    study = small(tmp_path / "s.zarr", save=save)
    study.run()
    found = study.dataset()
    names = {"values_height", "values_pair_0", "values_pair_1"}
    assert names <= set(found)
    assert found.q.dims == ("e", "q0_0", "coordinate")  # the final state only
    np.testing.assert_allclose(found.time, [0.0, 0.25, 0.5, 0.75, 1.0])
    single_backend = study.lane((1, 2))
    np.testing.assert_allclose(found.values_height[1, 2], single_backend.values["height"], **ROUNDING)
    np.testing.assert_allclose(found.values_pair_1[1, 2], single_backend.values["pair"][1], **ROUNDING)
    again = ji.Study.open(study.path)
    assert again.lane((1, 2)).values["height"].shape == (5,)


def test_catalogue_problem_and_case(tmp_path):
    design = ji.Design.grid(**{"args.frequency": [2.2, 2.3]})
    study = ji.Study(tmp_path / "s.zarr", "shaw-holmes", design, case="damped", t1=5.0, h=1e-2)
    study.run()
    exact, _ = ji.catalogue.get("shaw-holmes").case("damped").exact(np.array([5.0]))
    # order 1 (theory): with 500 steps of 1e-2 and two impacts the error is a few h
    assert abs(float(study.dataset().q[0, -1, 0]) - exact[0, 0]) < 5e-2


ENDS = [
    # at the second impact, 1 + 2 e flights of a fall from 1, sqrt(2) under a gravity of 1
    (
        'scheme = "event-driven"\nuntil = { impact = 0, number = 2 }',
        np.sqrt(2) * (1 + 2 * np.array([0.5, 0.8])),
        1e-8,
        {"impact": 0},
        "until.number: 2 → 1",
    ),
    # half a second after it rests: bounces accumulate at sqrt(2) (1 + e)/(1 - e), 4.24 and 12.7 s; the scheme is of
    # first order, after some twenty impacts
    (
        'h = 1e-2\nscheme = "moreau-jean"\nuntil = { at_rest = 1e-3, time = 0.5 }',
        np.array([3 * np.sqrt(2) + 0.5, 9.0]),
        20 * 1e-2,
        {"at_rest": 1e-3},
        "until.function.time: 0.5 → None",
    ),
]


@pytest.mark.parametrize(("text", "ends", "within", "other", "words"), ENDS, ids=["surface", "rest"])
def test_motions_end_before_t1(tmp_path, text, ends, within, other, words):
    """A ball that falls from a height of 1; said in Python and in TOML, kept on disk, and compared."""
    table = tomllib.loads(f'problem = "bouncing-ball"\nt1 = 9.0\ndesign.e = [0.5, 0.8]\n{text}')
    study = ji.Study.from_table(table, tmp_path / "s.zarr")
    study.run()
    found = ji.Study.open(tmp_path / "s.zarr").solution()
    np.testing.assert_allclose(found.t[:, -1], ends, rtol=0, atol=within)
    assert found.stopped.tolist() == (ends < 9.0).tolist() and study.lane(1).stopped == (ends[1] < 9.0)
    with pytest.raises(ValueError, match=words):
        ji.Study.from_table(table | {"until": other}, tmp_path / "s.zarr")
    with pytest.raises(ValueError, match="give one of function, impact, apex"):
        ji.Study.from_table(table | {"until": {"number": 2}}, tmp_path / "other.zarr")


# the store


def test_read_by_plain_xarray_without_a_remark(finished):
    xarray.testing.assert_identical(finished.dataset(), xarray.open_zarr(finished.path))
    about = finished.dataset()
    assert about.failed_at.attrs["units"] == "s"
    assert about.attrs["problem"] == "support.study_systems:ball"
    assert about.attrs["jax"] == jax.__version__
    assert "PaoliSchatzman" in about.attrs["scheme"]
    assert about.attrs["settings_of_jax"].startswith("enable_x64=True")


def test_unfinished_lanes_are_fill_values(tmp_path):
    study = run_until(small(tmp_path / "s.zarr"), 2)
    found = study.dataset()
    done = found.done.values == 1
    assert (done.sum(), done.size) == (6, 12)
    assert np.all(np.isnan(found.q.values[~done]))
    assert np.all(np.isfinite(found.q.values[done]))
    summary = study.summary()
    assert (summary.computed, summary.finished, summary.steps) == (6, 2, 600)
    assert np.isnan(study.wall_time()).sum() == 2


def test_continued_study_is_bit_identical(finished, tmp_path):
    path = tmp_path / "s.zarr"
    for count in (1, 2):
        run_until(small(path), count)
    summary = ji.Study.open(path).run()
    assert summary.finished == summary.chunks == 4
    assert digest(path) == digest(finished.path)


def test_finished_study_computes_nothing_again(finished):
    executor = Here()
    assert ji.Study.open(finished.path).run(executor).computed == 12
    assert executor.submitted == 0


def test_old_name_of_the_store(finished):
    with pytest.warns(DeprecationWarning, match="path is called store now"):
        assert ji.Study.open(path=finished.path).shape == (4, 3)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"h": 2e-2}, "h: 0.01 → 0.02"),
        ({"e": 0.5}, "e: None → 0.5"),
        ({"t1": 2.0}, "t1: 1.0 → 2.0"),
        ({"args": ARGS | {"gravity": 1.6}}, "args.gravity: 9.81 → 1.6"),
        ({"scheme": ji.MoreauJean()}, r"scheme: PaoliSchatzman\(.*\) → MoreauJean\("),
        ({"scheme": ji.PaoliSchatzman(force="mean")}, "scheme.force: explicit → mean"),
        ({"projection": ji.ActiveSet(tolerance=1e-10)}, "projection.tolerance: None → 1e-10"),
        ({"save": [0.25]}, r"save.times: \[0.25, 0.5\] → \[0.25\]"),
        ({"chunk": 6}, r"chunk: \[1, 3\] → \[2, 3\]"),
        ({"design": study_systems.grid((5, 3))}, r"design.quantities.e: \[.*\] .* → 5 values in \[0.2, 0.9\]"),
    ],
)
def test_another_study_is_refused(finished, change, words):
    with pytest.raises(ValueError, match=words):
        small(finished.path, **change)


def test_other_settings_of_jax_are_refused_and_those_of_the_store_used(finished):
    assert ji.Study.open(finished.path).dataset().q.dtype == np.float64
    with jax.enable_x64(False):
        with pytest.raises(ValueError, match=r"settings\.enable_x64: True → False"):
            small(finished.path)
        assert ji.Study.open(finished.path).lane((0, 0)).q.dtype == np.float64


def test_progress_and_summary(finished, capsys):
    """Quiet where stderr is no terminal, as here."""
    again = ji.Study.open(finished.path)
    again.run()
    assert capsys.readouterr().err == ""
    again.run(progress=True)
    told = capsys.readouterr().err
    assert "12.0/12.0" in told and "12 of 12 lanes computed (4 of 4 chunks)\n0 failed\n1200 steps" in told


def test_without_constraints_and_in_float32(tmp_path):
    """No impulses are stored; the store has the precision of jax. Free fall of g t^2/2, to first order in h at most."""
    design = ji.Design.grid(**{"args.gravity": [1.0, 9.81]})
    with jax.enable_x64(False):
        study = small(tmp_path / "s.zarr", design, "support.study_systems:free", q0=[0.0], save="final")
        study.run()
    found = ji.Study.open(study.path).dataset()
    assert "impulse" not in found and found.q.dtype == np.float32
    np.testing.assert_allclose(found.q[:, 0, 0], [-0.5, -9.81 / 2], rtol=2e-2)


# lanes that fail


def test_failed_lanes_are_found_and_explained(tmp_path):
    """Of six lanes one becomes NaN at t = 0.5, one starts below the floor; the other lanes are as without them."""
    limit, height = np.full(6, 9.0), np.full(6, 1.0)
    limit[1], height[4] = 0.5, -0.1
    design = ji.Design.points(**{"args.limit": limit, "q0[0]": height})
    common = {"v0": [0.0], "t1": 1.0, "h": 1e-2, "e": 0.5}
    args = {"limit": 9.0, "floor": 0.0}
    study = ji.Study(tmp_path / "s.zarr", "support.study_systems:fragile", design, q0=[1.0], args=args, **common)
    summary = study.run()
    assert summary.failed == 2
    # where the state is NaN the projection does not converge either
    assert summary.causes == {"CONTACTS_NOT_SOLVED": 1, "NON_FINITE": 1, "INPUT_INVALID": 1}
    assert "1 NON_FINITE, 1 INPUT_INVALID" in str(summary)

    first, second = study.failed()
    assert (first.index, first.values["args.limit"]) == ((1,), 0.5)
    assert "NON_FINITE" in first.status
    assert 0.5 < first.failed_at < 0.5 + 3e-2  # the first node after 0.5 has no force, the next one no state
    assert np.isnan(eval(first.rerun, {"jaximpact": ji}).q[-1, 0])
    assert (second.index, second.status) == ((4,), "INPUT_INVALID")
    assert "constraint 0 has gap -0.1" in second.reason
    with pytest.raises(ValueError, match="not admissible"):
        study.lane(4)

    found = study.dataset()
    assert found.done.values.tolist() == [1, 1, 1, 1, 2, 1]
    assert np.isnan(found.q.values[[1, 4]]).all()
    good = ji.solve(study_systems.fragile, [1.0], args=args, save="final", sensitivity="none", **common)
    np.testing.assert_allclose(found.q.values[[0, 2, 3, 5]], np.broadcast_to(good.q, (4, 1, 1)), **ROUNDING)


def test_results_that_do_not_fit_the_store(tmp_path):
    """A worker with another version of the problem, say: nothing of it is written."""

    class Other(Here):
        def submit(self, function, given, /):
            future = super().submit(function, given)
            arrays = future.result().arrays
            arrays["q"] = arrays["q"].astype(np.float32)
            return future

    study = small(tmp_path / "s.zarr")
    with pytest.raises(RuntimeError, match=r"chunk 0: q came out as .*float32.*same versions"):
        study.run(Other(), outstanding=1)
    assert study.summary().finished == 0


def test_block_without_any_admissible_start(tmp_path):
    design = ji.Design.points(**{"q0[0]": [1.0, 1.0, -1.0, -1.0]})
    study = small(tmp_path / "s.zarr", design, chunk=2, e=0.5)
    assert study.run().causes == {"INPUT_INVALID": 2}
    assert np.isnan(study.dataset().q.values[2:]).all()
    assert study.dataset().status.values.tolist() == [0, 0, 0, 0]


# bad input


@pytest.mark.parametrize(
    "change, words",
    [
        ({"design": ji.Design.grid(**{"args.flor": [0.0]})}, "args has no 'flor'; did you mean 'floor'"),
        ({"design": ji.Design.grid(**{"q0[3]": [0.0]})}, r"q0 has shape \(1,\)"),
        ({"design": ji.Design.grid(q0=[0.0, 1.0])}, r"q0.*shape \(1,\).*written q0\[0\]"),
        ({"design": ji.Design.grid(e=[0.5, 1.5])}, r"restitution must lie in \[0, 1\]"),
        ({"scheme": ji.Maury()}, "Maury"),
        ({"design": ji.Design.grid(h=[0.01, 3.0])}, "h must not exceed t1 - t0"),
        ({"design": ji.Design.grid(h=[0.01, 0.02]), "save": 5}, "save: lanes of different h"),
        ({"design": ji.Design.grid(t1=[0.5, 2.0])}, r"save: with t0 or t1 in the design"),
        ({"design": {"e": [0.5]}}, "design must be a Design"),
        ({"q0": None}, "q0 is missing"),
        ({"q0": [[1.0]]}, r"q0 must have shape \(d,\)"),
        ({"args": {"gravity": 9.81}}, "constraints.*failed"),
        ({"chunk": 0}, "chunk must be"),
        ({"case": "e=1"}, "only problems of the catalogue"),
        ({"save": ji.Save(every=1, function=lambda t, q, v, args: q)}, "save.function.*cannot be imported"),
    ],
)
def test_study_refuses(tmp_path, change, words):
    design = change.pop("design", study_systems.grid())
    with pytest.raises((ValueError, TypeError), match=words):
        small(tmp_path / "s.zarr", design, **change)
    assert not (tmp_path / "s.zarr").exists()


def test_problem_must_have_a_name(tmp_path):
    for problem, error, words in (
        (ball.replace(restitution=0.3), ValueError, "not importable by name"),
        ("bouncing-bal", ValueError, "did you mean 'bouncing-ball'"),
        ("nowhere:ball", ModuleNotFoundError, "no module 'nowhere'"),
    ):
        with pytest.raises(error, match=words):
            small(tmp_path / "s", problem=problem)


def test_module_beside_a_script_is_found_again(tmp_path, monkeypatch):
    """The study remembers the folder of a module that is not installed."""
    source = Path(study_systems.__file__).read_text()
    (tmp_path / "beside_a_script.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    study = run_until(small(tmp_path / "s", problem="beside_a_script:ball", h=0.1), 0)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    monkeypatch.delitem(sys.modules, "beside_a_script")
    assert ji.Study.open(study.path).lane((0, 0), save="final").q.shape == (1, 1)
    assert sys.modules["beside_a_script"].__file__ == str(tmp_path / "beside_a_script.py")


def test_place_of_a_lane(finished):
    for index in (3, (4, 0), (0, 0, 0), {"e": 1}):
        with pytest.raises((IndexError, ValueError), match="lane"):
            finished.lane(index)


def test_a_directory_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("data")
    with pytest.raises(FileExistsError, match="is no study"):
        small(tmp_path).run()
    with pytest.raises(FileNotFoundError, match="is no study"):
        ji.Study.open(tmp_path)


def test_missing_packages_are_named(finished, monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match="a study needs xarray: pip install xarray"):
        finished.dataset()


DESIGNS = [(ji.Design.grid(e=[0.5, 0.8]), 1.0), slow(ji.Design.points(t1=[1.0, 2.0]), None)]


@pytest.mark.parametrize(("design", "t1"), DESIGNS, ids=["restitution", "end"])
def test_a_scheme_that_chooses_its_steps_asks_for_no_h(tmp_path, design, t1):
    options = {"q0": [1.0], "v0": [0.0], "args": ARGS, "scheme": ji.EventDriven()}
    study = ji.Study(tmp_path / f"{design.kind}.zarr", ball, design, t1=t1, e=None if t1 else 0.5, **options)
    study.run()
    found = study.solution()
    given = {"t1": t1, "e": [[0.5], [0.8]]} if t1 else {"t1": np.array([1.0, 2.0]), "e": 0.5}
    expected = ji.ensemble(ball, **options, **given)
    # the tolerance: other rows, other substeps
    np.testing.assert_allclose(found.q, expected.q, rtol=0, atol=1e-8)
    with pytest.raises(ValueError, match=r"h is missing: .*EventDriven\(\) needs none"):
        small(tmp_path / "other.zarr", problem=ball, scheme=ji.MoreauJean(), h=None)
