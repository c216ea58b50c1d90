"""Results other than motions: kept in files bit for bit, and as datasets with named dimensions."""

import dataclasses
import hashlib
import json
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import jaximpact as ji
from support.breadth import slow
from support.sample_results import BALL, CASE, OPTIONS, samples, undrawn

Result = ji.Solution.__mro__[-2]


class Pair(NamedTuple):
    one: Any
    other: Any


@pytest.fixture(scope="module")
def results():
    found = samples()
    return found | undrawn(found)


def alike(one, other):
    """Whether two results have the same classes, texts and numbers, bit for bit."""
    if isinstance(one, np.ndarray | np.generic | jax.Array):
        assert isinstance(other, np.generic if isinstance(one, np.generic) else np.ndarray)
        assert other.dtype == one.dtype and other.shape == one.shape and other.tobytes() == np.asarray(one).tobytes()
        return
    assert type(one) is type(other)
    if isinstance(one, Result):
        assert repr(one) == repr(other) and one._repr_html_() == other._repr_html_()
        for field in dataclasses.fields(one):
            if field.compare:
                alike(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, dict):
        assert list(one) == list(other)
        alike(list(one.values()), list(other.values()))
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for x, y in zip(one, other, strict=True):
            alike(x, y)
    else:
        assert one == other or (one != one and other != other)


SUFFIXES = [".npz", ".nc", ".zarr"]
OTHERS = [
    "sensitivities", "ranking", "covariance", "linearity", "indices", "impacts", "slips", "balance", "statistics",
    "section", "crossings",
    "impact section", "bifurcation", "map", "orbit", "convergence", "basins", "exponents", "branch", "curve",
    "hypotheses", "runs", "intervals", "attractor", "event", "located impacts",
]  # fmt: skip


def test_every_kind_of_result_is_in_a_file(results):
    """But a report of conformance, which is written as a table and a picture."""
    assert set(OTHERS) | {"motion", "batch", "report"} == set(results)


# of nested results, of masks, texts and complex numbers
DATASETS = ("sensitivities", "statistics", "orbit", "branch", "basins")


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        (name, suffix) if suffix == ".npz" or name in DATASETS else slow(name, suffix)
        for name in OTHERS
        for suffix in SUFFIXES
    ],
)
def test_files_keep_other_results(name, suffix, results, tmp_path):
    result, path = results[name], tmp_path / f"result{suffix}"
    assert result.save(path) == path
    found = ji.load(path)
    alike(result, found)
    old = dataclasses.replace(found, made=(("jax", "0.1"),))
    assert found.provenance == result.provenance
    assert ji.load(old.save(path)).provenance == {"jax": "0.1"}
    with pytest.raises(ValueError, match=r"must end in \.npz, \.nc"):
        result.save(path.with_suffix(".csv"))


@pytest.mark.parametrize("name", ["motion", "orbit"])
def test_statuses_in_files_of_before_are_read_in_the_bits_of_today(name, results, tmp_path):
    """A file of format 1 says nothing of its bits: each cause had its own, a mass that is not symmetric 32768,
    impacts that accumulate 512."""
    old = np.full_like(np.asarray(results[name].status), 32768 | 512)
    path = dataclasses.replace(results[name], status=old).save(tmp_path / "old.npz")
    with np.load(path) as file:
        kept = dict(file)
    about = json.loads(str(kept["jaximpact"])) | {"format": 1}
    del about["status"]
    np.savez_compressed(path, **kept | {"jaximpact": np.array(json.dumps(about))})
    assert np.all(ji.load(path).status == ji.Status.MASS_INVALID | ji.Status.DERIVATIVE_EVENTS)


def test_results_in_files_keep_names_float32_and_nested_outputs(tmp_path):
    named = ji.Problem(
        lambda t, q, v, args: -q, lambda t, q, args: q, coordinates=("x",), contacts=("floor",), units="m"
    )
    found = ji.sensitivities(
        named, np.float32([[0.5], [1.0]]), np.zeros((2, 1), np.float32), t1=1.0, h=0.1, wrt=("q0", "t1"), output=nested
    )
    again = ji.load(found.save(tmp_path / "found.npz"))
    alike(found, again)
    assert again.naming == named.naming and again.value["pair"][1].dtype == np.float32
    alike(found[1], again[1])
    assert dataclasses.replace(again, made=(("jax", "0.1"),))[0].provenance == {"jax": "0.1"}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_names_that_look_like_paths_or_one_another(suffix, results, tmp_path):
    """Keys of an output of one's own: with a slash, which is a group in such files, or alike once joined."""
    one = np.linspace(0, 1, 3)
    value = {"a/b": one, "a_b": 2 * one, "a.b": 3 * one, "a": {"b": 4 * one}}
    jacobian = jax.tree.map(lambda x: {"e": -x}, value)
    found = dataclasses.replace(results["sensitivities"], value=value, jacobian=jacobian, inputs={"e": np.float64(0.5)})
    path = found.save(tmp_path / f"found{suffix}")
    alike(ji.load(path).value, value)
    save = ji.Save(every=20, function=lambda t, q, v, args: {"a/b": q[0], "../b": v[0]})
    motion = ji.solve(BALL.problem, CASE.q0, CASE.v0, steps=100, save=save, **OPTIONS)
    alike(ji.load(motion.save(path)).values, jax.tree.map(np.asarray, motion.values))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_datasets_of_results_open_without_jaximpact(suffix, results, tmp_path):
    """What `to_xarray` gives is there under its names; numbers are not written twice."""
    xarray = pytest.importorskip("xarray")
    options = {"engine": "h5netcdf"} if suffix == ".nc" else {"engine": "zarr", "consolidated": False}
    for name in ("batch", "sensitivities", "statistics", "bifurcation", "orbit", "map"):
        path, data = results[name].save(tmp_path / f"{name}{suffix}"), results[name].to_xarray()
        with xarray.open_dataset(path, decode_timedelta=False, **options) as found:
            for key, x in data.variables.items():
                if x.dtype.kind in "biufc" or suffix == ".nc":
                    assert found[key].dims == x.dims
                    np.testing.assert_array_equal(found[key].values, x.values)
            again = [key for key in found.variables if str(key).removeprefix("field.") in data.variables]
            assert {str(key).removeprefix("field.") for key in again} <= set(data.variables), name
            if name in ("orbit", "map"):
                assert not [key for key in found.variables if str(key).startswith("field.")], name
            assert found.attrs["made_with_jax"] == jax.__version__


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_a_damaged_dataset_of_a_result_is_told(suffix, results, tmp_path):
    """Numbers changed by whoever opened it, an attribute lost, a file of others, one cut short."""
    xarray = pytest.importorskip("xarray")
    path, refused = tmp_path / f"found{suffix}", rf"found\{suffix} is damaged or no file of a result: "
    engine = {".nc": {"engine": "h5netcdf"}, ".zarr": {"engine": "zarr", "consolidated": False}}[suffix]

    def written(data):
        if suffix == ".nc":
            data.to_netcdf(path, engine="h5netcdf")
        else:
            data.to_zarr(path, mode="w", zarr_format=3, consolidated=False)

    results["orbit"].save(path)
    with xarray.open_dataset(path, decode_timedelta=False, **engine) as data:
        data = data.load()
    for changed, match in (
        (data.assign(q=data.q + 1), "its numbers are not those"),
        (data.drop_vars("monodromy"), "it has no 'monodromy'"),
        (data.drop_attrs(), "holds .*, but no attribute jaximpact"),
    ):
        written(changed)
        with pytest.raises(ValueError, match=refused + f".*{match}"):
            ji.load(path)
    if suffix == ".nc":
        path.write_bytes(results["orbit"].save(path).read_bytes()[:3000])
        with pytest.raises(ValueError, match=refused):
            ji.load(path)


def nested(solution):
    return {"z": solution.z[-1], "pair": (solution.q[-1], solution.v[-1])}


def test_what_a_result_keeps_in_no_file_is_said(results, tmp_path):
    spread = results["covariance"]
    again = ji.load(spread.save(tmp_path / "spread.npz"))
    assert spread.again is not None and again.again is None
    with pytest.raises(ValueError, match="one from a file has none"):
        again.check(8)
    found = results["sensitivities"]
    for odd, match in ((Pair(1.0, 2.0), "a Pair"), (abs, "a function"), ({1: 2.0}, "names as keys"), (b"x", "a bytes")):
        with pytest.raises(TypeError, match=rf"value\.q: .*{match}"):
            dataclasses.replace(found, value={"q": odd}).save(tmp_path / "odd.npz")
    with pytest.raises(TypeError, match="section: a object"):
        dataclasses.replace(results["bifurcation"], section=object()).save(tmp_path / "odd.npz")
    assert not (tmp_path / "odd.npz").exists()


def test_a_damaged_file_of_a_result_is_told(results, tmp_path):
    path = results["ranking"].save(tmp_path / "ranking.npz")
    whole = path.read_bytes()
    with np.load(path) as file:
        arrays = dict(file)
    good = json.loads(str(arrays.pop("jaximpact")))
    refused = r"ranking\.npz is damaged or no file of a result: "
    for place in np.linspace(0, len(whole) - 1, 9).astype(int):
        path.write_bytes(whole[:place])
        with pytest.raises(ValueError, match=refused):
            ji.load(path)
    kind, fields = good["result"]["result"]
    bad = {
        "numbers": good,
        "this version does not know": {**good, "result": {"result": ["Popen", fields]}},
        "'shell', which": {**good, "result": {"result": [kind, fields | {"shell": None}]}},
        "numbers are not": {**good, "result": {"result": [kind, fields | {"by": {"plain": "absolute"}}]}},
        "it holds a float": {**good, "result": {"plain": 1.0}},
        "missing 1 required": {**good, "result": {"result": [kind, {k: x for k, x in fields.items() if k != "by"}]}},
        "does not know": {**good, "result": {"exec": "1"}},
    }  # fmt: skip
    for match, about in bad.items():
        changed = {name: x + 1 for name, x in arrays.items()} if about is good else arrays
        if match.startswith("numbers are not") or about is good:
            digest = good["digest"]
        else:
            digest = digest_of(arrays, about["result"])
        np.savez(path, **changed, jaximpact=np.array(json.dumps(about | {"digest": digest})))
        with pytest.raises(ValueError, match=refused + f".*{match}"):
            ji.load(path)


def digest_of(arrays, form):
    """Digest as a forger would compute it."""
    digest = hashlib.sha256(json.dumps(form).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].shape} {arrays[name].dtype.name};".encode() + arrays[name].tobytes())
    return digest.hexdigest()


# what the dimensions of each result are
DIMENSIONS = {
    "located impacts": {"t": ("impact",), "before": ("impact", "coordinate"), "count": ()},
    "sensitivities": {"derivative": ("output", "input"), "trusted": ()},
    "covariance": {"matrix": ("output", "output_"), "shares": ("output", "input")},
    "linearity": {"value": ("sample", "output"), "at": ("sample", "input")},
    "ranking": {"derivative": ("place",)},
    "indices": {"index_ST": ("output", "input"), "variance": ("output",)},
    "impacts": {"before": ("impact",)},
    "slips": {"t": ("slip",), "modes": ("time", "constraint"), "velocity": ("time", "constraint", "tangent")},
    "balance": {"energy": ("time",), "momentum": ("time", "coordinate")},
    "statistics": {"mean_q": ("time", "coordinate"), "quantile_impulse": ("level", "time", "constraint"), "count": ()},
    "section": {"q": ("lane", "row", "coordinate"), "status": ("lane",)},
    "crossings": {"q": ("crossing", "coordinate")},
    "impact section": {"phase": ("impact",)},
    "bifurcation": {"q": ("value", "start", "row", "coordinate"), "status": ("value", "start")},
    "map": {"period": ("y", "x")},
    "orbit": {"q": ("lane", "coordinate"), "monodromy": ("lane", "component", "of")},
    "convergence": {"position": ("steps",)},
    "basins": {"labels": ("y", "x")},
    "exponents": {"exponents": ("direction",), "blocks": ("block", "direction"), "t": ()},
    "branch": {"q": ("point", "coordinate"), "multipliers": ("point", "multiplier")},
    "curve": {"x": ("point",), "q": ("point", "coordinate"), "multipliers": ("point", "multiplier")},
    "hypotheses": {"active": ("row", "constraint")},
    "runs": {"active": ("motion", "step", "constraint")},
    "intervals": {"start": ("interval",)},
    "attractor": {"q": ("row", "coordinate")},
}  # fmt: skip


def test_results_as_datasets(results):
    pytest.importorskip("xarray")
    assert set(DIMENSIONS) == set(OTHERS) - {"event"}
    for name, dimensions in DIMENSIONS.items():
        data = results[name].to_xarray()
        assert {key: data[key].dims for key in dimensions} == dimensions, name
        assert data.attrs["title"] == type(results[name]).__name__ and data.attrs["made_with_jax"] == jax.__version__
    found = results["sensitivities"]
    derivative = found.to_xarray().derivative.sel(output="q[0]", input="e")
    assert derivative == found.jacobian["q"]["e"][0]
    assert results["convergence"].to_xarray().position.sel(steps=20) == 0.05
    np.testing.assert_array_equal(results["balance"].to_xarray().time, results["balance"].t)
    values = results["bifurcation"].to_xarray().q.sel(value=2.0)
    np.testing.assert_array_equal(values[0], results["bifurcation"].section.q[1])
    with pytest.raises(TypeError, match="arrays of a BranchEvent have no named dimensions"):
        results["event"].to_xarray()
