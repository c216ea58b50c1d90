"""A study directory from somebody else: reading it runs nothing and follows nothing out of it;
computing it says what it imports."""

import errno
import fcntl
import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray

import jaximpact as ji
from jaximpact.cli import main
from jaximpact.results import safe_reading as guard
from jaximpact.study import ZarrStore, plain
from support.study_systems import begun, run_until, small

BELOW = ji.Design.grid(e=[0.2], **{"q0[0]": [-0.5, -1.5]})  # lanes that cannot start: nothing is compiled for them


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two lanes that could not start."""
    study = small(tmp_path_factory.mktemp("trust") / "s.zarr", BELOW, chunk=2)
    study.run()
    assert study.verify() == []
    return study


@pytest.fixture
def path(made, tmp_path):
    """A copy to tamper with."""
    return Path(shutil.copytree(made.path, tmp_path / "s.zarr"))


def rewrite(file, change):
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def read_all(path):
    """Everything that only reads."""
    study = ji.Study.open(path)
    found = (study.summary(), study.failed(), study.verify(), study.describe(), study.dataset().load(), repr(study))
    assert main(["show", str(path)]) == 0
    return found


# nothing is run


MARKER = "open({!r}, 'w').close()\n"


@pytest.mark.parametrize("place", ["scheme", "projection", "save", "base"])
def test_a_class_of_another_kind_is_not_made(path, tmp_path, place, capsys):
    ran = tmp_path / "ran"
    attack = {"$dataclass": "subprocess:Popen", "$fields": {"args": ["touch", str(ran)]}}
    changed = {"$dict": {"args": attack}} if place == "base" else attack
    rewrite(path / ".study" / "study.json", lambda x: x["compared"].update({place: changed}))
    read_all(path)
    assert main(["resume", str(path)]) == 2
    assert "subprocess:Popen is no scheme, projection or Save of jaximpact" in capsys.readouterr().err
    assert not ran.exists()


def test_only_known_classes_and_numbers_are_decoded():
    for value in (ji.MoreauJean(theta=0.75), ji.ActiveSet(), ji.Save(every=2), {"a": (np.float32(1.5), [2, None])}):
        assert plain.decode(plain.encode(value, "value")) == value
    # integers of numpy, which programs are looked up by
    for value in (ji.EventDriven(order=np.int64(5)), ji.Until.impact(np.int64(0), np.int64(2))):
        found = plain.decode(plain.encode(value, "value"))
        assert found == value and hash(found) == hash(value)
    written = plain.encode(ji.Until.impact(0, 2), "value")
    written["$dataclass"] = "jaximpact.mechanics.schemes.stops:Until"  # as version 0.6 wrote it
    assert plain.decode(written) == ji.Until.impact(0, 2)
    for attack in (
        {"$dataclass": "subprocess:Popen", "$fields": {"args": ["true"]}},
        {"$dataclass": "support.study_systems:grid", "$fields": {}},
        {"$dataclass": "jaximpact.study.study:Study", "$fields": {}},
        {"$array": ["x"], "dtype": "O"},
    ):
        with pytest.raises(ValueError, match=r"is no scheme|holds arrays of numbers"):
            plain.decode(attack, "bouncing-ball")


def test_a_module_is_imported_by_run_alone_which_says_from_where(path, tmp_path, capfd):
    ran, folder = tmp_path / "ran", tmp_path / "modules"
    folder.mkdir()
    (folder / "foreign_module.py").write_text(MARKER.format(str(ran)))

    def change(x):
        x["compared"]["problem"] = "foreign_module:ball"
        x["folder"] = str(folder)

    rewrite(path / ".study" / "study.json", change)
    read_all(path)
    assert not ran.exists() and "foreign_module" not in sys.modules
    capfd.readouterr()
    assert main(["resume", str(path)]) == 2
    told = capfd.readouterr().err
    assert f"{path} imports module foreign_module from {folder / 'foreign_module.py'}" in told
    assert ran.exists() and "has no 'ball'" in told
    sys.path.remove(str(folder))
    del sys.modules["foreign_module"]


@pytest.mark.parametrize("folder", ["relative", "{path}/evil", "{path}/../s.zarr"])
def test_no_module_is_taken_out_of_the_study_itself(path, folder):
    rewrite(path / ".study" / "study.json", lambda x: x.update(folder=folder.format(path=path)))
    with pytest.raises(ValueError, match="nothing is imported from there"):
        ji.Study.open(path)


class Pickled:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return open, (self.target, "w")


def test_pickles_in_the_design_are_not_loaded(path, tmp_path):
    ran = str(tmp_path / "ran")
    with np.load(path / ".study" / "design.npz") as values:
        columns = dict(values)
    columns["e"] = np.array([Pickled(ran)], object)
    np.savez(path / ".study" / "design.npz", **columns, allow_pickle=True)
    with pytest.raises(ValueError, match=r"design\.npz is damaged"):
        ji.Study.open(path)
    assert not os.path.exists(ran)


@pytest.mark.parametrize("where", ["array", "group"])
def test_codecs_that_could_run_code_are_refused(path, where):
    def change(x):
        array = x if where == "array" else x["consolidated_metadata"]["metadata"]["status"]
        array["codecs"].insert(0, {"name": "numcodecs.pickle", "configuration": {}})

    rewrite(path / "status" / "zarr.json" if where == "array" else path / "zarr.json", change)
    with pytest.raises(ValueError, match=r"numcodecs\.pickle is nothing that a study is written with"):
        ji.Study.open(path)


def test_an_older_format_of_arrays_which_may_hold_pickles_is_not_read(path, tmp_path):
    """Zarr 2 unpickles objects: without a description in format 3 there is no array."""
    import pickle

    ran = str(tmp_path / "ran")
    (path / "zarr.json").unlink()
    (path / "status" / "zarr.json").unlink()
    (path / ".zgroup").write_text('{"zarr_format": 2}')
    about = {"zarr_format": 2, "shape": [1, 2], "chunks": [1, 2], "dtype": "|O", "compressor": None, "fill_value": None}
    about |= {"order": "C", "filters": [{"id": "pickle"}]}
    (path / "status" / ".zarray").write_text(json.dumps(about))
    (path / "status" / "0.0").write_bytes(pickle.dumps(Pickled(ran)))
    for read in (ji.Study.open(path).failed, ji.Study.open(path).dataset):
        with pytest.raises((FileNotFoundError, KeyError, ValueError)):
            read()
    assert not os.path.exists(ran)


# nothing is followed


def test_the_target_of_a_link_in_place_of_the_lock_stays(path, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("data")
    (path / ".study" / "lock").unlink()
    (path / ".study" / "lock").symlink_to(precious)
    with pytest.raises(ValueError, match="lock is a link"):
        ji.Study.open(path)
    with pytest.raises(ValueError, match="lock is a link"):
        begun(path, BELOW, chunk=2)

    class Late(ZarrStore):
        def check(self):
            (self.path / ".study" / "lock").unlink()
            super().check()
            (self.path / ".study" / "lock").symlink_to(precious)

    # put there after the directory was looked at
    with pytest.raises(OSError, match="cannot be written") as caught, Late(path).lock():
        pass
    assert caught.value.errno == errno.ELOOP
    (path / ".study" / "lock").unlink()
    os.link(precious, path / ".study" / "lock")
    with pytest.raises(ValueError, match="not a regular file with a single name"), ZarrStore(path).lock():
        pass
    assert precious.read_text() == "data"


@pytest.mark.parametrize("place", ["q", ".study/blocks", ".study", "extra"])
def test_links_to_directories_are_refused(path, tmp_path, place):
    outside = tmp_path / "outside"
    target = path / place
    if target.exists():
        shutil.move(target, outside)
    else:
        outside.mkdir()
    (outside / "mine.partial").write_text("data")
    target.symlink_to(outside)
    before = sorted(file.name for file in outside.iterdir())
    for act in (lambda: ji.Study.open(path), lambda: begun(path, BELOW, chunk=2), ZarrStore(path).lock().__enter__):
        with pytest.raises(ValueError, match="is a link, which no study contains"):
            act()
    assert sorted(file.name for file in outside.iterdir()) == before


def test_pipes_do_not_block(path):
    os.mkfifo(path / "pipe")
    with pytest.raises(ValueError, match="is no plain file"):
        ji.Study.open(path)


def test_marks_name_no_file_outside(path, tmp_path):
    (tmp_path / "secret").write_text("data")
    for name in ("../secret", str(tmp_path / "secret"), "q/../../secret", ".study/lock"):
        rewrite(path / ".study" / "blocks" / "0.json", lambda x, name=name: x.update(files={name: [4, "?"]}))
        (found,) = ji.Study.open(path).verify()
        assert (found.block, found.file, found.problem) == (0, "0.json", "unreadable")


# nothing is obeyed


def test_escapes_reach_no_terminal(path, capsys):
    bad = "\x1b]0;title\x07\x1b[2Jnote\u202e"

    def change(x):
        x["compared"]["design"]["$dict"]["note"] = bad
        x["compared"]["problem"] = bad
        x["versions"]["python"] = bad

    rewrite(path / ".study" / "study.json", change)
    mark = path / ".study" / "blocks" / "0.json"
    rewrite(mark, lambda x: x.update(reasons={"0": bad, "1": bad}, bits={bad: 1}, versions={"jax": bad}))
    rewrite(path / "zarr.json", lambda x: x["attributes"].update(title=bad))
    *found, dataset, shown = read_all(path)
    assert dataset.attrs["title"] == guard.printable(bad)
    told = f"{found[0]}{found}{shown}{dataset}" + capsys.readouterr().out
    assert "note" in told and "\\x1b[2J" in told
    assert not {"\x1b", "\x07", "\u202e"} & set(told)


def test_printable_keeps_what_is_printable():
    assert guard.printable("h = 1e-3, e → 0.5 é ü") == "h = 1e-3, e → 0.5 é ü"
    assert guard.printable("a\nb\x9b") == "a\\nb\\x9b"


# what is damaged or newer says so


@pytest.mark.parametrize("number", [3, 0, "2", None])
def test_unknown_formats_are_refused(path, number):
    rewrite(path / ".study" / "study.json", lambda x: x.update(format=number))
    with pytest.raises(ValueError, match=r"format .*reads 1 to 2: install the version that wrote it"):
        ji.Study.open(path)


@pytest.mark.parametrize(
    "text",
    ["", '{"format": 1', "[]", '{"format": 2}', "[" * 100_000, '{"format": 2, "compared": {"design": 3}}', "\x00"],
)
def test_broken_json_is_told(path, text, capsys):
    (path / ".study" / "study.json").write_text(text)
    with pytest.raises(ValueError, match=r"study\.json (is damaged|has format None)"):
        ji.Study.open(path)
    assert main(["show", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", '{"lanes": 2', "[]", "{}", '{"lanes": 2, "files": {"q": 3}}'])
def test_broken_marks_are_told(path, text):
    (path / ".study" / "blocks" / "0.json").write_text(text)
    study = ji.Study.open(path)
    assert [found.problem for found in study.verify()] == ["unreadable"]
    for read in (study.summary, study.failed, study.wall_time):
        with pytest.raises(RuntimeError, match=r"chunk 0 .* is damaged.*run\(repair=True\)"):
            read()


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda x: x["compared"].pop("save"), "study.compared has no 'save'"),
        (lambda x: x["compared"].update(chunk=[0, 1]), "its chunks or variables"),
        (lambda x: x["compared"].update(chunk=[1]), "its chunks do not fit"),
        (lambda x: x["compared"].update(computes=[]), "study.compared.computes is no table"),
        (lambda x: x["compared"]["base"]["$dict"].update(nope=1), "study.base has 'nope'"),
        (lambda x: x["compared"]["design"]["$dict"]["quantities"].update(h="?"), "'h"),
        (lambda x: x.update(folder=3), "study.folder is a int"),
        (lambda x: x.update(variables=["../q"]), "its chunks or variables"),
        (lambda x: x["compared"]["settings"].update(log_compiles=True), "its settings"),
    ],
)
def test_a_record_that_is_none_says_where(path, change, words):
    rewrite(path / ".study" / "study.json", change)
    with pytest.raises(ValueError, match=rf"study\.json is damaged, it does not define a study .*{re.escape(words)}"):
        ji.Study.open(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"\x80\x04N."])
def test_a_broken_design_is_told(path, content):
    (path / ".study" / "design.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"design\.npz is damaged"):
        ji.Study.open(path)


# creation and lock


def test_creation_interrupted_at_any_flush_leaves_nothing_behind(tmp_path):
    """Stopped before its end there is no study; another one in that place is as if it were the first."""
    left = [0]

    def flush(descriptor):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        os.fsync(descriptor)

    path = tmp_path / "s.zarr"
    first = small(ZarrStore(path, flush=flush), save=[0.2, 0.4, 0.6])
    second = small(path, ji.Design.grid(**{"args.gravity": [1.0, 2.0]}), e=0.5, save="final")
    run_until(second, 0)
    fresh = second.dataset().load()
    flushes = 0
    while True:
        shutil.rmtree(path)
        left[0] = flushes
        run_until(first, 0)
        if first.store.exists:
            break
        with pytest.raises(FileNotFoundError, match="is no study"):
            ji.Study.open(path)
        run_until(second, 0)
        xarray.testing.assert_identical(xarray.open_zarr(path), fresh)
        flushes += 12
    assert flushes > 20


def test_who_holds_the_lock_is_read_once_it_is_ours(path, monkeypatch):
    """Another host takes the lock, is lost and leaves its name, between our look and our taking it."""
    usual = fcntl.flock

    def late(file, how):
        os.pwrite(file, b'{"pid": 7, "host": "elsewhere"}', 0)
        usual(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(RuntimeError, match="held by process 7 on host elsewhere"), ZarrStore(path).lock():
        pass


# on which processor and with which versions it was computed


ELSEWHERE = {"processor": "x86_64 Another CPU", "jaxlib": "99.0", "llvmlite": "none"}
POINTS = ji.Design.points(**{"q0[0]": [-1.0, -2.0]})  # lanes that cannot start, as above


def test_resumed_elsewhere_is_said_when_it_resumes_and_in_the_summary(tmp_path):
    """The record and the first chunk are made to say that they come from another machine."""
    path = tmp_path / "s.zarr"
    study = run_until(begun(path, POINTS, chunk=1), 1)
    assert "last bit" not in str(study.summary())
    home = path / ".study"
    rewrite(home / "blocks" / "0.json", lambda mark: mark["versions"].update(ELSEWHERE))
    rewrite(home / "study.json", lambda record: record["versions"].update(ELSEWHERE))
    words = r"begun with jaxlib 99\.0 → .*, llvmlite none → .*, processor x86_64 Another CPU → .*: .*not continue to the same bits"  # noqa: E501
    with pytest.warns(ji.JaximpactWarning, match=words):
        summary = ji.Study.open(path).run()
    assert sorted(summary.origins.values()) == [1, 1]
    told = str(summary)
    assert "agree to rounding and not to the last bit" in told
    assert told.count("1 chunks with") == 2 and "x86_64 Another CPU" in told


def test_the_processor_is_known(tmp_path):
    """Two studies of one program are of one provenance, which names the processor."""
    first, second = (begun(tmp_path / name, POINTS).describe() for name in ("a.zarr", "b.zarr"))
    assert first["processor"] == second["processor"] and len(first["processor"]) > 10
