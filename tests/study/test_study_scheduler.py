"""A dask scheduler that dies while a study runs: the run ends and says how to go on;
one that comes back is used again."""

import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future
from pathlib import Path
from types import SimpleNamespace

import pytest

import jaximpact as ji
from support.study_systems import begun, digest, grid, small

FOLDERS = (Path(__file__).parents[1], Path(ji.__file__).parents[1])


BELOW = ji.Design.points(**{"q0[0]": [-1.0, -2.0, -3.0, -4.0]})  # lanes that cannot start, which is found at once


class Dask(Executor):
    """As the executor of a dask client whose scheduler is lost at the third task,
    and comes back after ``away`` seconds."""

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
            self.back = threading.Timer(self.away, setattr, (self._client, "status", "running"))
            self.back.start()
        if self._client.status == "connecting":
            self.lost.append(future)  # nothing is ever heard of it
        else:
            future.set_result(function(given))
        return future


def test_a_scheduler_that_is_gone_ends_the_run(tmp_path):
    study = small(tmp_path / "s.zarr", BELOW, chunk=1)
    executor = Dask(away=60.0)
    words = r"scheduler tcp://there:8786 is gone.*On disk: .*; 2 of 4 chunks finished\); continue with jaximpact\.Study\.open"  # noqa: E501
    with pytest.raises(RuntimeError, match=words):
        study.run(executor, outstanding=1, patience=0.3)
    executor.back.cancel()
    assert study.summary().finished == 2
    # the lock is free again
    assert begun(study.path, BELOW, chunk=1).summary().finished == 2


def test_a_scheduler_that_comes_back_is_asked_again(tmp_path):
    study = small(tmp_path / "s.zarr", BELOW, chunk=1)
    executor = Dask(away=0.5)
    assert study.run(executor, outstanding=2, patience=5.0).finished == 4
    assert executor.lost and executor.submitted == 4 + len(executor.lost)


def test_a_closed_client_is_told_at_once(tmp_path):
    executor = Dask(away=0.0)
    executor._client.status = "closed"
    with pytest.raises(RuntimeError, match=r"is gone: start one, connect a new client"):
        small(tmp_path / "s.zarr", BELOW).run(executor, patience=1e9)
    assert executor.submitted == 0


@pytest.mark.parametrize("patience", [0.0, -1.0, float("nan"), "long", True])
def test_patience_is_a_time(tmp_path, patience):
    with pytest.raises(ValueError, match="patience must be a number of seconds > 0"):
        small(tmp_path / "s.zarr", BELOW).run(patience=patience)


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
        with pytest.raises(RuntimeError, match=r"0 of 4 chunks finished\); continue with jaximpact\.Study\.open"):
            study.run(client.get_executor(), patience=5.0)


@pytest.mark.slow
def test_scheduler_of_dask_dies_and_comes_back(tmp_path, start):
    distributed = pytest.importorskip("distributed")
    study = small(tmp_path / "s.zarr", grid((10, 3)))
    scheduler, address = start("scheduler")
    worker, _ = start("worker")
    with distributed.Client(address, timeout=30) as client:

        def restart():
            while not study.store.finished():
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
