"""A dask scheduler that dies while a study runs: the run ends and says how to go on; one that comes back is used again."""

import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from study_systems import begun, digest, grid, small

import jaximpact as ji
from jaximpact.study import task, work
from jaximpact.study.provenance import provenance

FOLDERS = (Path(__file__).parent, Path(ji.__file__).parents[1])


def stub(given):
    """A block without computing: lanes that cannot start."""
    count = len(next(iter(given.lanes.values())))
    return task.Result(given.number, None, np.ones(count, bool), 0, 0.0, {}, provenance())


class Dask(Executor):
    """As the executor of a dask client whose scheduler is lost at the third task, and comes back after ``away`` seconds."""

    def __init__(self, away):
        scheduler = SimpleNamespace(address="tcp://there:8786")
        self._client = SimpleNamespace(status="running", scheduler=scheduler, nthreads=lambda: {"w": 1})
        self.away, self.submitted, self.lost = away, 0, []

    def submit(self, function, given, /):
        assert self._client.status == "running", "asked for something while there is no scheduler"
        self.submitted += 1
        future: Future = Future()
        if self.submitted == 3:
            self._client.status = "connecting"
            threading.Timer(self.away, setattr, (self._client, "status", "running")).start()
        if self._client.status == "connecting":
            self.lost.append(future)  # nothing is ever heard of it
        else:
            future.set_result(stub(given))
        return future


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(work, "POLL", 0.02)
    monkeypatch.setattr(work, "PATIENCE", 0.3)


def test_a_scheduler_that_is_gone_ends_the_run(tmp_path, quick):
    study = begun(tmp_path / "s.zarr")
    executor = Dask(away=2.0)
    begin = time.monotonic()
    words = r"scheduler tcp://there:8786 is gone.*On disk: .*; 2 of 4 chunks finished\); continue with jaximpact\.Study\.open"
    with pytest.raises(RuntimeError, match=words):
        study.run(executor, outstanding=1)
    assert time.monotonic() - begin < 2.0
    assert study.summary().finished == 2
    # the lock is free again
    assert begun(study.path).summary().finished == 2


def test_a_scheduler_that_comes_back_is_asked_again(tmp_path, quick):
    study = begun(tmp_path / "s.zarr")
    executor = Dask(away=0.1)
    assert study.run(executor, outstanding=2).finished == 4
    assert executor.lost and executor.submitted == 4 + len(executor.lost)


def test_a_closed_client_is_told_at_once(tmp_path):
    executor = Dask(away=0.0)
    executor._client.status = "closed"
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match=r"is gone: start one, connect a new client"):
        begun(tmp_path / "s.zarr").run(executor)
    assert time.monotonic() - begin < 5.0 and executor.submitted == 0


# with dask itself


@pytest.fixture
def start(tmp_path):
    """Start a scheduler or a worker of dask in a process of its own."""
    running = []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def begin(kind):
        address = f"tcp://127.0.0.1:{port}"
        options = {
            "scheduler": ["--host", "127.0.0.1", "--port", str(port), "--no-dashboard"],
            "worker": [
                address,
                "--no-nanny",
                "--nthreads",
                "1",
                "--no-dashboard",
                "--local-directory",
                str(tmp_path / "w"),
            ],
        }[kind]
        paths = os.pathsep.join(map(str, FOLDERS))
        process = subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.dask_{kind}", *options],
            env=os.environ | {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"},
            stderr=subprocess.DEVNULL,
        )
        running.append(process)
        return process, address

    yield begin
    for process in running:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_scheduler_of_dask_dies(tmp_path, start):
    distributed = pytest.importorskip("distributed")
    study = small(tmp_path / "s.zarr")
    scheduler, address = start("scheduler")
    with distributed.Client(address, timeout=30) as client:
        threading.Timer(2.0, scheduler.kill).start()
        begin = time.monotonic()
        with pytest.raises(RuntimeError, match=r"0 of 4 chunks finished\); continue with jaximpact\.Study\.open"):
            study.run(client.get_executor())
        assert time.monotonic() - begin < 60


@pytest.mark.slow
def test_scheduler_of_dask_dies_and_comes_back(tmp_path, start):
    distributed = pytest.importorskip("distributed")
    study = small(tmp_path / "s.zarr", grid((10, 3)))
    scheduler, address = start("scheduler")
    worker, _ = start("worker")
    with distributed.Client(address, timeout=30) as client:

        def restart():
            while not study.store.exists or not study._finished():
                time.sleep(0.02)
            scheduler.kill()
            worker.kill()
            scheduler.wait()
            time.sleep(2.0)
            start("scheduler")
            start("worker")

        thread = threading.Thread(target=restart)
        thread.start()
        summary = study.run(client.get_executor(), outstanding=2)
        thread.join()
    assert summary.finished == 10
    small(tmp_path / "alone.zarr", grid((10, 3))).run()
    assert digest(study.path) == digest(tmp_path / "alone.zarr")
