"""Whatever stops a study - a kill, Ctrl-C, a full disk, damaged files - it continues to the same bits."""

import contextlib
import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import xarray

import jaximpact as ji
from jaximpact.study import ZarrStore
from support.study_systems import Acting, Here, digest, grid, run_until, small

ROOT = Path(ji.__file__).parents[1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A study that nothing disturbed; every row kept, so that files are larger than marks."""
    study = small(tmp_path_factory.mktemp("study") / "s.zarr", save=1)
    study.run()
    return study


@pytest.fixture
def broken(tmp_path):
    """A finished copy to damage."""
    study = small(tmp_path / "s.zarr", save=1)
    study.run()
    return study


# Ctrl-C


def test_interrupt_finishes_the_chunk_and_says_how_to_continue(finished, tmp_path, capsys):
    study = small(Acting(tmp_path / "s.zarr", 1, lambda: signal.raise_signal(signal.SIGINT)), save=1)
    usual = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        study.run()
    assert signal.getsignal(signal.SIGINT) is usual
    assert study.summary().finished == 2  # the one before, and the one in work
    told = capsys.readouterr().err
    assert "2 of 4 chunks finished" in told and f"jaximpact.Study.open({study.path!r}).run()" in told
    small(study.path, save=1).run()
    assert digest(study.path) == digest(finished.path)


def test_second_interrupt_stops_at_once(tmp_path):
    def twice():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    study = small(Acting(tmp_path / "s.zarr", 1, twice), save=1)
    with pytest.raises(KeyboardInterrupt):
        study.run()
    assert study.summary().finished == 1


# disks


@contextlib.contextmanager
def files_up_to(size):
    """Writing more than ``size`` bytes to a file fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_no_room_for_data(finished, tmp_path):
    """The limit comes before the second chunk is written: the first is kept, and the study continues later."""
    with contextlib.ExitStack() as limit:
        study = small(Acting(tmp_path / "s.zarr", 1, lambda: limit.enter_context(files_up_to(1000))), save=1)
        with pytest.raises(OSError, match=r"chunk 1 \(e 1:2, q0_0 0:3\).*finished chunks are safe; free space"):
            study.run()
    assert study.summary().finished == 1
    small(study.path, save=1).run()
    assert digest(study.path) == digest(finished.path)


class Disk:
    """Flushes, until it is full after so many."""

    def __init__(self):
        self.room = sys.maxsize

    def flush(self, descriptor):
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= 1
        os.fsync(descriptor)


class Replay(Here):
    """Computes each chunk once, and gives the same result whenever it is asked again."""

    def __init__(self):
        super().__init__()
        self.known = {}

    def submit(self, function, given, /):
        self.known[given.number] = self.known.get(given.number) or super().submit(function, given)
        return self.known[given.number]


def test_full_disk_at_every_flush_in_turn(finished, tmp_path):
    """Of the second chunk, its mark included: that chunk is not finished, the others are, and readers see no more."""
    disk, executor = Disk(), Replay()
    study = run_until(small(ZarrStore(tmp_path / "s.zarr", flush=disk.flush), save=1), 1)
    for room in range(1000):
        disk.room = room
        try:
            study.run(executor, outstanding=1)
        except OSError as error:
            assert error.errno == errno.ENOSPC
            assert "No space left on device; the finished chunks are safe" in str(error)
            if "chunk 1 " not in str(error):
                break
            # at the last, of the directory that holds the mark, the chunk may be finished or not
            last = study.summary().finished == 2
            assert not last or "done/c.1.0" in study.store.facts(1)["files"]
    # every variable, its file and its directory, and the mark
    assert last and room > 2 * len(study.dataset().data_vars)
    disk.room = sys.maxsize
    study.run(executor)
    assert study.verify() == []
    assert digest(study.path) == digest(finished.path)


def test_no_room_for_the_study_itself(tmp_path):
    study = small(tmp_path / "s.zarr", save=1)
    with files_up_to(400), pytest.raises(OSError, match="could not be created: File too large; free space"):
        study.run()
    study.run()
    assert study.summary().finished == 4


def test_directory_that_cannot_be_written(broken, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot be written.*choose a directory you may write to"):
        small(tmp_path / "file" / "s.zarr").run()
    lock = Path(broken.path) / ".study" / "lock"
    lock.unlink()
    lock.mkdir()
    with pytest.raises(OSError, match="cannot be written: Is a directory; free space or permit writing"):
        small(broken.path, save=1).run()


# damaged files


def cut(file):
    os.truncate(file, file.stat().st_size // 2)


def change(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    "damage, words", [(cut, "bytes in place of"), (change, "contents changed"), (Path.unlink, "missing")]
)
def test_damaged_data_are_found_and_computed_again(broken, finished, damage, words):
    chunk = Path(broken.path) / "q" / "c.2.0.0.0"
    damage(chunk)
    (found,) = broken.verify()
    assert (found.block, found.file) == (2, "q/c.2.0.0.0")
    assert words in found.problem
    if damage is change:
        # size and date tell nothing: whoever reads is stopped by the checksum inside the chunk
        with pytest.raises(Exception, match=r"(?i)checksum|zstd"):
            xarray.open_zarr(broken.path).q.load()
    else:
        told = r"chunk 2 \(e 2:3, q0_0 0:3\) is damaged.*run\(repair=True\)"
        for read in (broken.run, broken.solution):
            with pytest.raises(RuntimeError, match=told):
                read()
        with pytest.warns(ji.JaximpactWarning, match=told):  # what is missing is NaN to xarray
            broken.dataset()
    with pytest.raises(RuntimeError, match=r"damaged.*run\(repair=True\)"):
        broken.solution()
    broken.run(repair=True)
    assert broken.verify() == []
    assert digest(broken.path) == digest(finished.path)


@pytest.mark.parametrize(
    "file, words",
    [("time/c.0", "values of time are missing"), ("e/c.0", "values of e are missing"), ("zarr.json", "no zarr.json")],
)
def test_lost_values_of_dimensions_are_told(broken, file, words):
    (Path(broken.path) / file).unlink()
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        ji.Study.open(broken.path).solution()


def test_damaged_mark(broken, finished):
    (Path(broken.path) / ".study" / "blocks" / "1.json").write_text('{"files"')
    assert [found.block for found in broken.verify()] == [1]
    with pytest.raises(RuntimeError, match=r"chunk 1 .* is damaged"):
        broken.run()
    broken.run(repair=True)
    assert digest(broken.path) == digest(finished.path)


# two processes


def test_second_process_is_refused(broken):
    with broken.store.lock():
        with pytest.raises(RuntimeError, match=f"is being computed by process {os.getpid()} on host"):
            ji.Study.open(broken.path).run()
        assert ji.Study.open(broken.path).dataset().done.size == 12  # reading is free
    ji.Study.open(broken.path).run()


def test_lock_left_by_the_dead(broken):
    lock = Path(broken.path) / ".study" / "lock"
    lock.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
    broken.run()
    lock.write_text('{"pid": 12')  # killed while writing it
    broken.run()
    lock.write_text(json.dumps({"pid": 1, "host": "elsewhere"}))
    with pytest.raises(RuntimeError, match=r"process 1 on host elsewhere.*run\(unlock=True\)"):
        broken.run()
    broken.run(unlock=True)
    assert lock.read_text() == ""


# kills

KILLED = """
import os, signal, sys
import jax
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
from jaximpact.study import ZarrStore
from support.study_systems import grid, small
left = int(sys.argv[2])
def flush(descriptor):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    os.fsync(descriptor)
small(ZarrStore(sys.argv[1], flush=flush), grid((int(sys.argv[3]), 3)), save=1).run()
"""


def killed(path, flush, lanes, cache):
    """A run in another process, which is killed at that flush; whether it got there."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), str(ROOT)]),
        "JAX_COMPILATION_CACHE_DIR": str(cache),
    }
    command = [sys.executable, "-c", KILLED, str(path), str(flush), str(lanes[0])]
    code = subprocess.run(command, env=environment).returncode
    assert code in (0, -signal.SIGKILL)
    return code != 0


def check_readable(path, reference):
    """What a reader sees after a kill: lanes that are done, and right, and others that are not there."""
    if not (Path(path) / ".study" / "study.json").exists():
        return 0
    found = xarray.open_zarr(path)
    done = found.done.values == 1
    assert (found.q.values[done] == reference[done]).all()
    return int(done.sum())


# in its creation; in a chunk, at each third flush; a chunk has some 23
@pytest.mark.parametrize("flushes", [[130], pytest.param([7, 40, *range(24, 48, 3)], marks=pytest.mark.slow)])
def test_killed_at_a_flush(tmp_path, flushes):
    """Killed again and again, each time as many flushes on from where it was begun."""
    lanes, path = (12, 3), tmp_path / "s.zarr"
    whole = small(tmp_path / "whole.zarr", grid(lanes), save=1)
    whole.run()
    reference = whole.dataset().q.values
    for flush in flushes:
        assert killed(path, flush, lanes, tmp_path / "cache")
        assert check_readable(path, reference) < 36
    small(path, grid(lanes), save=1).run()
    assert check_readable(path, reference) == 36
    assert digest(path) == digest(whole.path)
