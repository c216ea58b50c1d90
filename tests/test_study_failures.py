"""Whatever stops a study - a kill, Ctrl-C, a full disk, damaged files - it continues to the same bits."""

import contextlib
import errno
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import xarray
from study_systems import digest, small

import jaximpact as ji
from jaximpact.study import store, task, work

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


def with_call(monkeypatch, number, act):
    """Call ``act`` while block number ``number`` of a run is computed."""
    left = [number]

    def compute(given):
        left[0] -= 1
        if left[0] < 0:
            act()
        return task.compute(given)

    monkeypatch.setattr(work, "compute", compute)


# Ctrl-C


def test_interrupt_finishes_the_chunk_and_says_how_to_continue(finished, tmp_path, monkeypatch, capsys):
    study = small(tmp_path / "s.zarr", save=1)
    usual = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        with_call(patched, 1, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            study.run()
    assert signal.getsignal(signal.SIGINT) is usual
    assert study.summary().finished == 2  # the one before, and the one in work
    told = capsys.readouterr().err
    assert "2 of 4 chunks finished" in told and f"jaximpact.Study.open({study.path!r}).run()" in told
    small(study.path, save=1).run()
    assert digest(study.path) == digest(finished.path)


def test_second_interrupt_stops_at_once(tmp_path, monkeypatch):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    study = small(tmp_path / "s.zarr", save=1)
    with_call(monkeypatch, 1, twice)
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


def test_no_room_for_data(finished, tmp_path, monkeypatch):
    """The limit comes while the second chunk is computed: the first is kept, and the study continues later."""
    study = small(tmp_path / "s.zarr", save=1)
    limit = contextlib.ExitStack()
    with monkeypatch.context() as patched, limit:
        with_call(patched, 1, lambda: limit.enter_context(files_up_to(1000)))
        with pytest.raises(OSError, match=r"chunk 1 \(e 1:2, q0_0 0:3\).*finished chunks are safe; free space"):
            study.run()
    assert study.summary().finished == 1
    study.run()
    assert digest(study.path) == digest(finished.path)


def test_full_disk_when_flushing(finished, tmp_path, monkeypatch):
    """ENOSPC from any flush of the second chunk, the mark's included: that chunk is not finished, the others are."""
    study = small(tmp_path / "s.zarr", save=1)
    with monkeypatch.context() as patched:
        with_call(patched, 1, lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            study.run()
    flush, calls = os.fsync, []

    def full(file):
        if not calls.pop():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(file)

    for good in (0, 7, 22):  # the first file, one of the middle, the mark behind 11 files and their directories
        calls[:] = [False] + [True] * good
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(OSError, match=r"chunk 1 .*No space left on device") as caught:
                study.run()
        assert caught.value.errno == errno.ENOSPC
        assert study.summary().finished == 1
    study.run()
    assert digest(study.path) == digest(finished.path)


def test_no_room_for_the_study_itself(tmp_path):
    study = small(tmp_path / "s.zarr", save=1)
    with files_up_to(400), pytest.raises(OSError, match="could not be created: File too large; free space"):
        study.run()
    study.run()
    assert study.summary().finished == 4


def test_directory_that_cannot_be_written(finished, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot be written.*choose a directory you may write to"):
        small(tmp_path / "file" / "s.zarr").run()

    def read_only(path, *mode, **more):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(store.os, "open", read_only)
    with pytest.raises(OSError, match="cannot be written: Read-only file system"):
        small(finished.path, save=1).run()


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
        with pytest.raises(RuntimeError, match=r"chunk 2 \(e 2:3, q0_0 0:3\) is damaged.*run\(repair=True\)"):
            broken.run()
    broken.run(repair=True)
    assert broken.verify() == []
    assert digest(broken.path) == digest(finished.path)


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

MANY = """
import sys
import jax
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
from study_systems import grid, small
print("begin", flush=True)
small(sys.argv[1], grid((int(sys.argv[2]), 3)), save="final").run()
print("end", flush=True)
"""


def start(path, blocks, cache):
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(ROOT)]),
        "JAX_COMPILATION_CACHE_DIR": str(cache),
    }
    command = [sys.executable, "-c", MANY, str(path), str(blocks)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def check_readable(path, reference):
    """What a reader sees after a kill: lanes that are done, and right, and others that are not there."""
    if not (Path(path) / ".study" / "study.json").exists():
        return 0
    found = xarray.open_zarr(path)
    done = found.done.values == 1
    np.testing.assert_array_equal(found.q.values[done], reference[done])
    return int(done.sum())


def killed_again_and_again(tmp_path, kills, blocks):
    """A study killed so many times, at random instants from before its creation to its end, against an undisturbed one."""
    with start(tmp_path / "whole.zarr", blocks, tmp_path / "cache") as process:
        assert process.wait() == 0
    reference = xarray.open_zarr(tmp_path / "whole.zarr").q.values
    path, draw, during = tmp_path / "killed.zarr", random.Random(1), 0
    for _ in range(kills):
        with start(path, blocks, tmp_path / "cache") as process:
            process.stdout.readline()
            time.sleep(draw.uniform(0.0, 1.5))
            during += process.poll() is None
            process.kill()
        check_readable(path, reference)
    assert during >= kills // 2
    with start(path, blocks, tmp_path / "cache") as process:
        assert process.wait() == 0
    assert check_readable(path, reference) == blocks * 3
    assert digest(path) == digest(tmp_path / "whole.zarr")


def test_killed_four_times(tmp_path):
    killed_again_and_again(tmp_path, 4, 16)


@pytest.mark.slow
def test_killed_fifty_times(tmp_path):
    killed_again_and_again(tmp_path, 50, 400)
