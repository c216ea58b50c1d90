"""What every store must do, by the two that are there; stores written by earlier versions."""

import sys
import threading
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import xarray

import jaximpact as ji
from jaximpact.study import MemoryStore, Reading, ZarrStore
from support import study_systems
from support.study_systems import ball, begun, run_until, small
from support.symplectic_euler import SymplecticEuler

STORES = {"zarr": lambda folder: ZarrStore(folder / "s.zarr"), "memory": lambda folder: MemoryStore()}
# two chunks of two lanes, one of which cannot start; the first chunk is computed
OLD = Path(__file__).parent / "stores"


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    return STORES[request.param](tmp_path)


def test_a_store_from_nothing_to_the_end(store):
    assert not store.exists and store.finished() == set()
    with pytest.raises(FileNotFoundError, match="is no study"):
        ji.Study.open(store)
    study = begun(store)
    assert store.exists and store.finished() == set()
    assert np.isnan(study.dataset().q.values).all() and study.summary().computed == 0
    run_until(study, 2)
    assert store.finished() == {0, 1} and store.facts(1)["lanes"] == 3
    store.forget(1)
    assert store.finished() == {0}
    summary = ji.Study.open(store).run()
    assert (summary.finished, summary.failed) == (4, 0)
    assert study.verify() == [] and study.failed() == []
    assert np.all(Reading.open(store).dataset().done == 1)


def test_both_stores_hold_the_same(tmp_path):
    found = []
    for make in STORES.values():
        study = small(make(tmp_path), save=ji.Save(every=50))
        study.run()
        found.append(study.dataset().load().drop_attrs())
        assert {"units": "s", "long_name": "time"}.items() <= study.dataset().time.attrs.items()
    xarray.testing.assert_identical(*found)


def test_blank_data_have_the_form_of_what_is_written(store):
    study = begun(store)
    names = ["q", "status"]
    for chunk in study.blocks.numbers():
        found = store.blank(chunk, names)
        assert {name: (x.shape, x.dtype.name) for name, x in found.items()} == {
            "q": ((3, 3, 1), "float64"),
            "status": ((3,), "int32"),
        }
        assert np.isnan(found["q"]).all() and not found["status"].any()


def test_one_writes_at_a_time(store):
    begun(store)
    seen = []

    def other():
        try:
            ji.Study.open(store).run()
        except RuntimeError as error:
            seen.append(str(error))

    with store.lock():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(seen) == 1 and "is being computed by" in seen[0]
    with store.lock():
        pass


TABLE = {
    "problem": "support.study_systems:ball",
    "q0": [1.0],
    "v0": [0.0],
    "t1": 1.0,
    "h": 1e-2,
    "args": {"gravity": 9.81, "floor": 0.0},
    "save": [0.25, 0.5],
    "chunk": 3,
    "design": {"e": {"from": 0.2, "to": 0.9, "count": 4}, "q0[0]": {"from": 0.5, "to": 1.5, "count": 3}},
}


def test_a_study_is_the_same_from_arguments_a_table_and_its_store(store):
    given = begun(store)
    found = [ji.Study.from_table(TABLE, store), ji.Study.open(store), ji.Study.from_table(TABLE, MemoryStore())]
    for study in found:
        for name in ("problem", "base", "scheme", "projection", "save", "folder"):
            assert getattr(study.spec, name) == getattr(given.spec, name)
        assert study.blocks == given.blocks
        for key, values in given.design.values.items():
            assert np.array_equal(study.design.values[key], values)
    with pytest.raises(ValueError, match=r"differs in\n  h: 0\.01 → 0\.02$"):
        ji.Study.from_table(TABLE | {"h": 0.02}, store)


class Full(MemoryStore):
    """Has room for so many chunks."""

    room = 0

    def write(self, chunk, arrays, facts):
        if len(self.finished()) >= self.room:
            raise OSError("no room")
        super().write(chunk, arrays, facts)


def test_a_store_that_fails_at_every_write_in_turn():
    store = Full("attic")
    study = small(store)
    for room in range(4):
        store.room = room
        with pytest.raises(
            OSError, match=rf"chunk {room} \(e .*\) could not be written to attic: no room; the finished"
        ):
            study.run()
        assert study.summary().finished == room
    store.room = 4
    assert study.run().finished == 4


def test_what_is_no_store_is_named():
    for make in (small, ji.Study.open):
        with pytest.raises(TypeError, match="store must be the path of a directory, or a Store, got 3"):
            make(3)


@pytest.mark.parametrize("number", [1, 2])
def test_stores_of_earlier_versions(tmp_path, number, monkeypatch):
    monkeypatch.setitem(sys.modules, "study_systems", study_systems)  # its name at that time
    path = tmp_path / "old.zarr"
    with zipfile.ZipFile(OLD / f"format_{number}.zip") as packed:
        packed.extractall(path)
    study = ji.Study.open(path)
    assert (study.shape, study.summary().computed, study.verify()) == ((2, 2), 2, [])
    assert study.describe()["design e"].startswith("[0.3, 0.8]")
    (failed,) = study.failed()
    assert (failed.index, failed.status) == ((0, 1), "INPUT_INVALID")
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always")
        assert study.run().computed == 4
    (remark,) = (str(x.message) for x in remarks)
    assert "was begun with" in remark and ("was made by an earlier version" in remark) == (number == 1)
    e = np.array([0.3, 0.8])
    args = {"gravity": 9.81, "floor": 0.0}
    common = {"t1": 1.0, "h": 1e-2, "args": args, "save": [0.25, 0.5], "scheme": ji.PaoliSchatzman(force="mean")}
    expected = ji.ensemble(ball, np.ones((2, 1)), [0.0], e=e, **common)
    # a hundred steps of a state of size 10, to rounding
    np.testing.assert_allclose(study.dataset().q.values[:, 0], expected.q, rtol=0, atol=1e-11)


def test_a_study_takes_a_scheme_of_ones_own(tmp_path):
    study = small(tmp_path / "s.zarr", problem="bouncing-ball", args=None, e=None, scheme=SymplecticEuler())
    study.run()
    again = ji.Study.open(study.path)
    assert again.arguments()["scheme"] == SymplecticEuler() and again.verify() == []
    single_backend = again.lane((0, 0))
    np.testing.assert_allclose(again.dataset().q.values.reshape(12, -1)[0], np.ravel(single_backend.q), rtol=1e-12)
