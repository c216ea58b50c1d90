"""Results one can hold: they print short, are indexed, looked at between rows, converted,
animated and kept in files."""

import dataclasses
import io
import json
import pickle
import shutil
import warnings
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import jaximpact as ji
from jaximpact import plots
from support.breadth import slow
from support.sample_results import BALL, CASE, OPTIONS, samples, undrawn

Result = ji.Solution.__mro__[-2]
LINES, CHARACTERS = 20, 2200
TIMES = np.linspace(0, CASE.t1, 23)


def values(t, q, v, args):
    return {"height": q[0], "pair": (v, [t, q > 0.1])}


def moved(dtype=np.float64, **options):
    """A motion of the ball."""
    return ji.solve(BALL.problem, dtype(CASE.q0), dtype(CASE.v0), **OPTIONS | options)


@pytest.fixture(scope="module")
def results():
    found = samples()
    found |= undrawn(found)
    starts = np.array(CASE.q0) + np.linspace(0, 0.1, 5)[:, None]
    options = OPTIONS | {"h": CASE.t1 / 100, "save": ji.Save(every=20, function=values)}
    found["valued"] = ji.ensemble(BALL.problem, starts, np.zeros((5, 1)), **options)
    return found


# print


def kinds(cls):
    return {cls}.union(*map(kinds, cls.__subclasses__()))


def with_arrays(result, function):
    """The result with ``function`` applied to each of its arrays."""
    if isinstance(result, Result):
        fields = {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}
        return dataclasses.replace(result, **{name: with_arrays(x, function) for name, x in fields.items()})
    if isinstance(result, dict):
        return {name: with_arrays(x, function) for name, x in result.items()}
    return function(result) if isinstance(result, np.ndarray | jax.Array) and result.dtype.kind in "biufc" else result


def check_print(result):
    for text in (repr(result), str(result)):
        assert 1 <= len(text.splitlines()) <= LINES and len(text) <= CHARACTERS
    html = result._repr_html_()
    assert html.startswith("<table>") and html.count("<tr>") <= LINES and type(result).__name__ in html


def test_every_kind_of_result_is_looked_at(results):
    assert {type(x) for x in results.values()} | {Result, *Result.__subclasses__()} >= kinds(Result)


def test_no_result_prints_more_than_twenty_lines(results):
    """Nor arrays: with a thousand times the numbers the text grows by the digits of shapes alone."""
    for name, result in results.items():
        check_print(result)
        if name in ("covariance", "linearity", "indices"):
            continue  # matrices, which cannot grow along one axis: test_ranking has larger ones
        larger = with_arrays(result, lambda x: np.repeat(np.asarray(x), 1000, axis=0) if np.ndim(x) else x)
        check_print(larger)
        assert len(repr(larger)) <= len(repr(result)) + 400


def test_no_result_fails_to_print_on_traced_numbers(results):
    """Inside jit, where no number is known."""
    for name, result in results.items():
        leaves = []
        with_arrays(result, lambda x, leaves=leaves: leaves.append(np.asarray(x)) or x)

        def look(traced, result=result):
            numbers = iter(traced)
            check_print(with_arrays(result, lambda x: next(numbers)))
            return 0

        jax.make_jaxpr(look)(leaves)
        assert leaves or name in ("hypotheses", "report")


# lanes


def same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def test_lanes_are_indexed(results):
    batch = results["batch"]
    assert len(batch) == 5 and len(list(batch)) == 5
    one = batch[3]
    np.testing.assert_array_equal(one.q, batch.q[3])
    assert one.penetration.shape == () and one.timing == batch.timing
    same(batch[-2], one)
    same(batch[1:4][2], one)
    same(batch[[3, 0]][0], one)
    same(batch[np.arange(5) == 3], batch[3:4])
    same(jax.jit(lambda i: batch[i])(3), jax.tree.map(jnp.asarray, one))
    np.testing.assert_array_equal(results["valued"][2].values["pair"][0], results["valued"].values["pair"][0][2])


def test_what_is_no_lane_is_refused(results):
    batch, one = results["batch"], results["motion"]
    for use in (lambda: one[0], lambda: len(one), lambda: list(one), lambda: batch[0][0]):
        with pytest.raises(TypeError, match="one motion and has no lane axis"):
            use()
    assert one
    for which, error, words in (
        *((x, IndexError, r"there are lanes 0 \.\.\. 4") for x in (5, -6, [0, 7])),
        (np.ones(4, bool), IndexError, r"mask must have shape \(5,\)"),
        (1.5, TypeError, "number of a lane"),
    ):
        with pytest.raises(error, match=words):
            batch[which]


# between rows


@pytest.mark.parametrize("scheme", [ji.PaoliSchatzman(), ji.MoreauJean()], ids=lambda x: type(x).__name__)
def test_between_rows_as_saved_there(scheme):
    """Exactly what `solve` keeps at those times, up to rounding: positions affine, impulses spread, t0,
    t1 and steps included."""
    options = {"h": CASE.t1 / 100.3, "scheme": scheme}
    motion = moved(**options)
    times = np.sort([*TIMES, float(motion.t[7]), float(motion.t[-2])])
    found, saved = motion.at(times), moved(save=times, **options)
    for name in ("t", "q", "v", "z", "impulse"):
        # steps times rounding of the largest value
        np.testing.assert_allclose(getattr(found, name), getattr(saved, name), rtol=0, atol=100 * 1e-15 * 30)
    assert found.energy is None and found.status == motion.status


def test_between_rows_of_located_impacts():
    """Of second order at least, and not behind the impact where the time is before it."""
    errors, times = [], TIMES[TIMES <= 3.0]  # where flights are long against the longest h
    for steps in (40, 80, 160):
        motion = moved(steps=steps, scheme=ji.EventCorrected(), t1=3.0)
        q, v = CASE.exact(times)
        found = motion.at(times)
        errors.append(max(np.max(np.abs(found.q - q)), np.max(np.abs(found.v - v))))
        np.testing.assert_array_equal(motion.at(np.asarray(motion.t)).q, motion.q)
        records = motion.impacts(BALL.problem, args=CASE.args)
        around = motion.at(np.sort([*(records.t - 1e-6), *(records.t + 1e-6)]))
        # impulse and velocity jump there, as far as the motion has an impact (args scale neither)
        np.testing.assert_allclose(np.diff(around.impulse[:, 0])[::2], records.impulse, rtol=1e-6)
        assert np.all(around.v[::2] < 0) and np.all(around.v[1::2] > 0)
    # free flight under constant force is integrated exactly, and a cubic holds a parabola
    assert max(errors) < 1e-9


def test_between_rows_of_a_batch_and_in_float32(results):
    batch = results["batch"]
    t = 0.5 * (batch.t[0, 3] + batch.t[0, 4])
    found = batch.at(t)
    assert found.q.shape == (5, 1, 1)
    same(found[2], batch[2].at(t))
    single = moved(np.float32, steps=20)
    assert single.at(0.1).q.dtype == np.float32 and single.at(0.1).q.shape == (1, 1)


def test_between_rows_what_cannot_be_is_refused(results):
    motion = results["motion"]
    outside, no_number = r"outside the motion, \[t0, t1\] = \[0, ", "t must be one finite number"
    given = [(-0.1, outside), (CASE.t1 + 0.1, outside), ([0.1, 99.0], outside)]
    for t, words in (*given, (np.nan, no_number), (np.ones((2, 2)), no_number)):
        with pytest.raises(ValueError, match=words):
            motion.at(t)
    coarse = moved(steps=503, save=10)
    for rows in (coarse, motion.at(TIMES), results["valued"]):
        with pytest.raises(ValueError, match=r"needs every step.*save='all' \(ensemble: save=1\)"):
            rows.at(0.1)
    with pytest.raises(TypeError, match="save=t"):
        jax.jit(motion.at)(0.1)


def test_impacts_of_a_solution(results):
    found = results["motion"].impacts(BALL.problem, args=CASE.args)
    np.testing.assert_array_equal(found.t, results["impacts"].t)


# tables


def test_a_motion_as_dataset(results):
    motion, batch, valued = (results[name] for name in ("motion", "batch", "valued"))
    one, many = motion.to_xarray(), batch.to_xarray()
    assert one.q.dims == ("time", "coordinate") and many.impulse.dims == ("lane", "time", "constraint")
    assert one.time.attrs["units"] == "s" and one.penetration.ndim == 0 and "q" in one and many.sizes["lane"] == 5
    np.testing.assert_array_equal(many.q.sel(lane=3, time=batch.t[3, 7]), batch.q[3, 7])
    assert one.attrs["scheme"] == "PaoliSchatzman" and one.attrs["made_with_jax"] == jax.__version__
    final = valued.to_xarray()
    assert final.q.dims == ("lane", "coordinate") and final["values_height"].dims == ("lane", "time")
    # lanes of their own times
    other = dataclasses.replace(batch, t=batch.t + np.arange(5.0)[:, None]).to_xarray()
    assert other.t.dims == ("lane", "time") and "time" not in other.coords


def test_results_as_tables(results):
    motion, batch = results["motion"].to_pandas(), results["batch"].to_pandas()
    assert list(motion.columns[:4]) == ["q[0]", "v[0]", "z[0]", "impulse[0]"] and motion.index.name == "t"
    assert batch.loc[3, "q[0]"].iloc[7] == results["batch"].q[3, 7, 0] and batch.index.names == ["lane", "t"]
    names = ["values_height", "values_pair_0[0]", "values_pair_1_0", "values_pair_1_1[0]"]
    assert list(results["valued"].to_pandas().columns) == names
    rows = {
        "impacts": len(results["impacts"]), "balance": len(results["balance"].t), "convergence": 2, "section": 14,
        "bifurcation": 14, "statistics": 102, "map": 9, "basins": 9, "branch": 3, "curve": 3, "orbit": 1,
        "exponents": 2, "hypotheses": 0, "impact section": len(results["impact section"].impacts),
    }  # fmt: skip
    for name, count in rows.items():
        table = results[name].to_pandas()
        assert len(table) == count and table.shape[1] >= 2, name
    np.testing.assert_array_equal(results["map"].to_pandas()["w"], np.tile(results["map"].x, 3))
    with pytest.raises(TypeError, match="a BranchEvent is no table"):
        results["event"].to_pandas()


def test_sensitivities_as_table(results):
    found = results["sensitivities"]
    table = found.to_pandas().set_index(["output", "input"])
    assert table.loc[("q[0]", "e"), "derivative"] == found.jacobian["q"]["e"][0]
    assert table.loc[("v[0]", "q0[0]"), "derivative"] == found.jacobian["v"]["q0"][0, 0]
    assert table["trusted"].all() and table.loc[("v[0]", "e"), "value"] == found.value["v"][0]


# files

SUFFIXES = [".npz", ".nc", ".zarr"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_keep_everything(suffix, results, tmp_path):
    path = tmp_path / f"motion{suffix}"
    single = moved(np.float32, steps=20)
    unconstrained = ji.solve(ji.Problem(lambda t, q, v, args: -q), [1.0], [0.0], t1=1.0, h=0.1)
    ragged = dataclasses.replace(results["batch"], t=results["batch"].t + np.arange(5.0)[:, None])
    by_hand = dataclasses.replace(results["motion"], timing=None)
    # until an event, with impacts and releases of their own
    kinds = ji.Events(impacts=6, kinds=("impact", "release"))
    stopped = moved(scheme=ji.EventDriven(), save=kinds, until=ji.Until.impact(0, 3))
    assert stopped.stopped and stopped.events.count == 2  # it ends before the third
    kept = [results["motion"], results["valued"], results["valued"][1]]
    for solution in (*kept, single, unconstrained, ragged, by_hand, stopped):
        assert solution.save(path) == path
        found = ji.load(path)
        same(found, solution)
        assert found.timing == solution.timing and found.provenance == solution.provenance
    # who wrote it, not who reads it
    old = dataclasses.replace(single, origin=dataclasses.replace(single.origin, made=(("jax", "0.1"),)))
    old.save(path)
    assert ji.load(path).provenance == {"jax": "0.1"} == ji.load(ji.load(path).save(path)).provenance


@pytest.mark.parametrize(
    "scheme", [ji.EventDriven(), ji.EventCorrected(), ji.MoreauJean()], ids=lambda scheme: type(scheme).__name__
)
def test_files_of_earlier_versions_name_their_scheme_alone(scheme, tmp_path):
    """Their timing has three entries; whether the scheme locates impacts follows from its name."""
    motion = moved(steps=20, scheme=scheme)
    path = motion.save(tmp_path / "motion.npz")
    with np.load(path) as file:
        arrays = dict(file)
    about = json.loads(str(arrays["jaximpact"]))
    assert len(about["timing"]) == 5
    about["timing"] = about["timing"][:3]
    np.savez(path, **{**arrays, "jaximpact": np.array(json.dumps(about))})
    assert ji.load(path).timing == motion.timing


# h5netcdf closes a file that it could not open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("suffix", [".npz", ".nc"])
def test_a_damaged_file_is_told(suffix, results, tmp_path):
    """Cut short anywhere, or with a byte changed, it is an error that names it, or has lost nothing."""
    path = results["motion"].save(tmp_path / f"motion{suffix}")
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    refused = 0
    for kind in ("cut", "changed"):
        for place in random.integers(0, len(whole), 12):
            other = bytearray(whole)
            other[place] ^= 0xFF
            path.write_bytes(whole[:place] if kind == "cut" else other)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = ji.load(path)
            except ValueError as error:
                refused += 1
                assert str(path) in str(error)
            else:
                np.testing.assert_array_equal(found.q, results["motion"].q)
                assert kind == "changed"
    assert refused >= 20


def test_a_damaged_directory_is_told(results, tmp_path):
    path = results["motion"].save(tmp_path / "motion.zarr")
    results["motion"].save(path)
    shutil.rmtree(path / "q" / "c")
    with pytest.raises(ValueError, match=r"motion\.zarr is damaged.*numbers are not those"):
        ji.load(path)
    results["motion"].save(path)
    shutil.move(path / "q", tmp_path / "elsewhere")
    (path / "q").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a link"):
        ji.load(path)
    other = tmp_path / "other.zarr"
    other.mkdir()
    (other / "letter.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is no result"):
        results["motion"].save(other)
    with pytest.raises(ValueError, match=r"other\.zarr is damaged or no file of a result"):
        ji.load(other)


class Trap:
    """Object whose unpickling would run code."""

    def __reduce__(self):
        return (open, ("/dev/null/pickled", "w"))


def test_strange_files_are_refused_and_nothing_is_unpickled(results, tmp_path):
    path = tmp_path / "motion.npz"

    def refused(match):
        with pytest.raises(ValueError, match=rf"motion\.npz is damaged or no file of a result: .*{match}"):
            ji.load(path)

    np.savez(path, q=np.ones(3))
    refused("holds q, but no text")
    np.savez(path, jaximpact=np.array(Trap(), object))
    refused("allow_pickle")
    buffer = io.BytesIO()
    np.save(buffer, np.ones(3))
    for content in (pickle.dumps({"q": 1}), buffer.getvalue()):
        path.write_bytes(content)
        refused("")
    # texts of every wrong form
    results["motion"].save(path)
    with np.load(path) as file:
        arrays = dict(file)
    good = json.loads(str(arrays["jaximpact"]))
    wrong = {
        "format": 99, "timing": [1], "values": {"exec": ["q"]}, "arrays": {"q": [[3], "object"]}, "digest": "0",
        "every_step": "yes", "provenance": [],
    }  # fmt: skip
    texts = [json.dumps({**good, name: value}) for name, value in wrong.items()]
    for text in (*texts, "[]", "null", "1", "{", "[" * 5000):
        np.savez(path, **{**arrays, "jaximpact": np.array(text)})
        refused("")
    with pytest.raises(FileNotFoundError, match=r"nothing\.npz"):
        ji.load(tmp_path / "nothing.npz")
    for use in (ji.load, results["motion"].save):
        with pytest.raises(ValueError, match=r"'motion\.csv' must end in \.npz, \.nc"):
            use(tmp_path / "motion.csv")


class Pair(NamedTuple):
    one: Any
    other: Any


def test_what_no_file_keeps_is_said(results, tmp_path):
    for odd in (Pair(jnp.ones(3), jnp.ones(3)), {1: jnp.ones(3)}):
        with pytest.raises(TypeError, match="values: "):
            dataclasses.replace(results["motion"], values=odd).save(tmp_path / "motion.npz")
    with pytest.raises(TypeError, match="values: files hold real and complex numbers, not bfloat16"):
        dataclasses.replace(results["motion"], values=jnp.ones(3, jnp.bfloat16)).save(tmp_path / "motion.npz")
    with pytest.raises(TypeError, match="known numbers"):
        jax.jit(lambda x: x.save(tmp_path / "motion.npz"))(results["motion"])


# moving pictures


def pair(q):
    return np.array([[0.0, 0.0], [q[0], 0.5]])


@pytest.mark.parametrize(
    "draw",
    [plots.particles(), slow(plots.disks(0.1)), slow(plots.linkage([1.0])), plots.linkage(joints=pair)],
    ids=range(4),
)
def test_a_motion_moves(draw, results, tmp_path):
    path = results["motion"].animate(tmp_path / "motion.gif", draw=draw, fps=4 / CASE.t1, title="ball")
    with Image.open(path) as found:
        assert found.n_frames == 5
        frames = [np.asarray((found.seek(k), found.convert("L"))[1]) for k in range(5)]
    assert all(np.any(one != other) for one, other in pairwise(frames))


def test_moving_pictures_refuse(results, tmp_path, monkeypatch):
    motion, draw = results["motion"], plots.particles()
    for options, match in (
        ({"draw": 3}, None),
        ({"draw": draw, "speed": 1e-6}, "frames are more than"),
        ({"draw": draw, "fps": 0}, "fps and speed must be positive"),
        ({"draw": plots.particles(positions=lambda q: q)}, r"must return points of shape \(n, 2\)"),
        ({"draw": plots.linkage([1.0, 1.0])}, "lengths has 2 entries for 1 angles"),
        ({"draw": plots.disks([1.0, 1.0])}, "radius has 2 entries for 1 disks"),
    ):
        with pytest.raises(TypeError if match is None else ValueError, match=match):
            motion.animate(**options)
    monkeypatch.setenv("PATH", str(tmp_path))
    for of, path, error, match in (
        ("batch", None, ValueError, r"take a lane, solution\[0\]\.animate"),
        ("motion", tmp_path / "motion.avi", ValueError, r"must end in \.gif or \.mp4"),
        ("motion", tmp_path / "motion.mp4", ImportError, r"motion\.mp4 needs ffmpeg: install ffmpeg"),
    ):
        with pytest.raises(error, match=match):
            results[of].animate(path, draw=draw)


# the entry points


def test_entry_points_are_found_by_name_and_warn_who_calls():
    assert pickle.loads(pickle.dumps(ji.solve)) is ji.solve
    with pytest.warns(ji.JaximpactWarning, match="points out") as records:
        ji.solve(BALL.problem, [0.0], [-1.0], t1=0.1, h=0.05, args=CASE.args)
    assert records[0].filename == __file__
