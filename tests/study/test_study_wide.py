"""Studies computed by pools, a dask cluster and several jax processes: the same bits as by one process alone,
in memory that has a bound."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

import jaximpact as ji
from jaximpact.cli import main
from support import study_systems
from support.study_systems import Here, digest, grid, small

ROOT = Path(ji.__file__).parents[1]
FOLDER = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Compiled programs are kept on disk, so that other processes need not compile."""
    folder = str(tmp_path_factory.mktemp("cache"))
    settings = {"jax_compilation_cache_dir": folder, "jax_persistent_cache_min_compile_time_secs": 0}
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield folder
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def single_backend(tmp_path_factory, cache):
    """The study computed by this process."""
    study = small(tmp_path_factory.mktemp("study") / "s.zarr", grid((10, 3)))
    study.run()
    return study


@pytest.fixture
def paths(cache):
    """Other processes find the package and the systems, as installed packages are found."""
    settings = {
        "PYTHONPATH": os.pathsep.join([str(FOLDER), str(ROOT)]),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    with patch.dict(os.environ, settings):
        yield


class Later(Executor):
    """Computes in another thread, after ``act`` on the number of the submission; counts what is outstanding."""

    def __init__(self, act=lambda number: None):
        self.act, self.submitted, self.outstanding, self.most = act, 0, 0, 0
        self.pool, self.lock = ThreadPoolExecutor(1), threading.Lock()

    def submit(self, function, /, *args, **kwargs):
        with self.lock:
            number, self.submitted = self.submitted, self.submitted + 1
            self.outstanding += 1
            self.most = max(self.most, self.outstanding)

        def call():
            try:
                self.act(number)
                return function(*args, **kwargs)
            finally:
                with self.lock:
                    self.outstanding -= 1

        return self.pool.submit(call)


def test_threads(single_backend, tmp_path):
    study = small(tmp_path / "s.zarr", grid((10, 3)))
    with ThreadPoolExecutor(2) as pool:
        study.run(pool)
    assert digest(study.path) == digest(single_backend.path)


def test_processes_under_their_own_settings(single_backend, tmp_path, paths):
    """Spawned workers start with float32: the task brings the settings of the study."""
    study = small(tmp_path / "s.zarr", grid((10, 3)))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        study.run(pool)
    assert digest(study.path) == digest(single_backend.path)


def test_no_more_than_a_window_is_outstanding(single_backend, tmp_path):
    def fill(number):  # a task waits for the two behind it
        deadline = time.monotonic() + 60
        while executor.submitted < min(number + 3, 10) and time.monotonic() < deadline:
            time.sleep(1e-3)

    executor = Later(fill)
    study = small(tmp_path / "s.zarr", grid((10, 3)))
    study.run(executor, outstanding=3)
    assert (executor.submitted, executor.most) == (10, 3)
    with pytest.raises(ValueError, match="outstanding"):
        study.run(executor, outstanding=0)


def test_lost_tasks_are_repeated(single_backend, tmp_path):
    def lose(number):
        if number in (1, 2, 7):
            raise ConnectionError("the worker is gone")

    executor = Later(lose)
    study = small(tmp_path / "s.zarr", grid((10, 3)))
    study.run(executor, outstanding=1)
    assert executor.submitted == 13
    assert digest(study.path) == digest(single_backend.path)


def test_a_task_that_is_always_lost_stops_the_study(single_backend, tmp_path):
    def lose(number):
        if number >= 2:
            raise ConnectionError("the worker is gone")

    executor = Later(lose)
    study = small(tmp_path / "s.zarr", grid((10, 3)))
    with pytest.raises(RuntimeError, match=r"chunk 2 was lost with its worker 3 times.*finished chunks are safe"):
        study.run(executor, outstanding=1)
    assert executor.submitted == 2 + 3
    study.run()
    assert digest(study.path) == digest(single_backend.path)


def test_error_of_the_computation_is_told_at_once(tmp_path):
    """Here, that the worker does not have the problem: no repetition helps, and where it was is noted."""
    study_systems.passing = study_systems.ball
    study = small(tmp_path / "s.zarr", grid((10, 3)), "support.study_systems:passing")
    executor = Here(lambda number: delattr(study_systems, "passing") if number == 0 else None)
    with pytest.raises(RuntimeError, match=r"chunk 0 could not be computed: ValueError: .*has no 'passing'") as caught:
        study.run(executor, outstanding=1)
    assert executor.submitted == 1
    assert "Traceback" in caught.value.__notes__[0]


def test_killed_pool_is_a_clear_error(single_backend, tmp_path, paths):
    """A pool whose worker is killed is broken for good; what was finished is kept."""
    study = small(tmp_path / "s.zarr", grid((10, 3)))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        worker = pool.submit(os.getpid).result()
        threading.Timer(0.2, os.kill, (worker, signal.SIGKILL)).start()
        with pytest.raises(RuntimeError, match=r"executor is broken.*make a new one.*finished chunks are safe"):
            study.run(pool)
    study.run()
    assert digest(study.path) == digest(single_backend.path)


def test_interrupt_with_an_executor(single_backend, tmp_path):
    """What is in work is finished and kept, what waits is given back."""

    def interrupt(number):
        if number == 3:
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.2)

    study = small(tmp_path / "s.zarr", grid((10, 3)))
    executor = Later(interrupt)
    with pytest.raises(KeyboardInterrupt):
        study.run(executor, outstanding=2)
    assert 4 <= study.summary().finished < 10
    study.run()
    assert digest(study.path) == digest(single_backend.path)


# what `small` makes, in a file
TOML = """
store = "{path}"
problem = "support.study_systems:ball"
q0 = [1.0]
v0 = [0.0]
t1 = 1.0
h = 1e-2
args = {{ gravity = 9.81, floor = 0.0 }}
save = [0.25, 0.5]
chunk = 3

[design]
e = {{ from = 0.2, to = 0.9, count = 10 }}
"q0[0]" = {{ from = 0.5, to = 1.5, count = 3 }}
"""


@pytest.mark.slow
def test_dask_cluster_that_loses_a_worker(single_backend, tmp_path, paths):
    """Two worker processes, one killed when the first chunks are there."""
    distributed = pytest.importorskip("distributed")
    study = small(tmp_path / "s.zarr", grid((10, 3)))
    import dask

    options = {"temporary-directory": str(tmp_path), "distributed.logging.distributed": "critical"}
    with (
        dask.config.set(options),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        killed = []

        def kill():
            while not study.store.finished():
                time.sleep(0.02)
            (worker, *_) = client.run(os.getpid).values()
            os.kill(worker, signal.SIGKILL)
            killed.append(worker)

        thread = threading.Thread(target=kill)
        thread.start()
        summary = study.run(client.get_executor(), outstanding=4)
        thread.join()

        (tmp_path / "again.toml").write_text(TOML.format(path=tmp_path / "again.zarr"))
        assert main(["study", str(tmp_path / "again.toml"), "--dask", cluster.scheduler_address]) == 0
    assert killed and summary.computed == 30
    assert digest(study.path) == digest(tmp_path / "again.zarr") == digest(single_backend.path)


TOGETHER = """
import sys
import jax
jax.distributed.initialize(sys.argv[2], num_processes=2, process_id=int(sys.argv[3]))
jax.config.update("jax_enable_x64", True)
from support.study_systems import grid, small
study = small(sys.argv[1], grid((10, 3)))
summary = study.run()
assert summary.finished == 10, summary
"""


@pytest.mark.slow
def test_two_jax_processes(single_backend, tmp_path, paths):
    """Each takes every second chunk; process 0 makes the store."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    path = tmp_path / "s.zarr"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TOGETHER, str(path), address, str(i)], stderr=subprocess.PIPE, text=True
        )
        for i in range(2)
    ]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    assert digest(path) == digest(single_backend.path)


# memory


GROWTH = """
import resource, sys
import jax
jax.config.update("jax_enable_x64", True)
import numpy as np
import jaximpact as ji

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def study(name, lanes):
    design = ji.Design.grid(e=np.linspace(0.1, 0.9, lanes))
    args = {"gravity": 9.81, "floor": 0.0}
    common = {"q0": [1.0], "v0": [0.0], "t1": 1.0, "h": 1e-3, "args": args}
    return ji.Study(sys.argv[1] + name, "support.study_systems:ball", design, save=1, chunk=64, **common)

study("small", 64).run()
before = peak()
large = study("large", 64 * 40)
large.run()
print(peak() - before, large.dataset().nbytes)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_study(tmp_path):
    """40 blocks take no more memory than a few blocks; the store is many times larger."""
    paths = os.pathsep.join([str(FOLDER), str(Path(ji.__file__).parents[1])])
    environment = os.environ | {"PYTHONPATH": paths}
    run = subprocess.run(
        [sys.executable, "-c", GROWTH, str(tmp_path) + "/"], env=environment, capture_output=True, text=True, check=True
    )
    growth, size = map(int, run.stdout.split())
    block = size / 40
    # the bound that `Study` states, and the allocator's fragmentation
    assert growth < 4 * block + 32e6, f"grew by {growth / 1e6:.0f} MB, one block holds {block / 1e6:.1f} MB"
    assert size > 3 * growth
