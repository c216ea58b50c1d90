"""Systems that are not at hand, by their answers: what `operating_system` asks is answered as Windows and macOS do, in
processes of their own."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaximpact.jaxtools import operating_system

# what Windows has not got, and what it has in place of it
WINDOWS = """
import os, sys, types
import jax, numpy, pandas, xarray, zarr  # know this system
jax.config.update("jax_enable_x64", True)
for name in ("O_NOFOLLOW", "O_NONBLOCK", "sched_getaffinity", "geteuid", "register_at_fork", "sysconf", "pread", "pwrite", "killpg"):
    delattr(os, name)
sys.modules["fcntl"] = None
held = set()
def locking(file, mode, count):
    place = os.fstat(file).st_ino, os.lseek(file, 0, os.SEEK_CUR)
    if place in held:
        raise PermissionError(13, "Permission denied")
    held.add(place)
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
sys.platform = "win32"
"""  # noqa: E501
MACOS = """
import os, sys
import jax, jaximpact, llvmlite.binding, urllib.request  # these modules know this system
jax.config.update("jax_enable_x64", True)
del os.sched_getaffinity
sys.platform = "darwin"
"""
BALL = """
import jaximpact as ji
ball = ji.Problem(lambda t, q, v, args: -9.81 + 0 * q, lambda t, q, args: q, restitution=0.8)
found = ji.ensemble(ball, [[1.0], [1.5]], [0.0], t1=1.0, h=1e-2).raise_if_failed()
print("clean", found.q.shape[0], found.q[0, -1, 0] > 0)
"""
STUDY = """
from jaximpact.study.store import Store
from jaximpact.study.zarr_store import ZarrStore
store = ZarrStore(sys.argv[1])
with store.lock():
    try:
        with ZarrStore(sys.argv[1]).lock():
            print("both")
    except RuntimeError as error:
        print("locked", str(os.getpid()) in str(error))
"""
NATIVE = """
try:
    ji.ensemble(ball, [[1.0], [1.5]], [0.0], t1=1.0, h=1e-2, execution="native")
except ValueError as error:
    print(error)
"""


def run(program, *args):
    environment = os.environ | {"JAXIMPACT_CACHE": "off"}
    found = subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, env=environment)
    assert found.returncode == 0, found.stderr
    return found.stdout.splitlines()


@pytest.mark.slow
def test_windows_computes_by_xla_and_locks_studies(tmp_path):
    pytest.importorskip("zarr")
    lines = run(WINDOWS + BALL + STUDY + NATIVE, str(tmp_path / "study"))
    assert lines[:2] == ["clean 2 True", "locked True"]
    assert "nobody has tried native code on Windows" in lines[2] and "execution='xla'" in lines[2]


@pytest.mark.slow
def test_macos_computes():
    assert run(MACOS + BALL) == ["clean 2 True"]  # natively, where llvmlite is


def test_cores_are_those_of_this_process(monkeypatch):
    assert operating_system.core_count() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delattr(os, "process_cpu_count", raising=False)  # which calls it, from Python 3.13 on
    assert operating_system.core_count() == os.cpu_count()
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    monkeypatch.setattr(os, "process_cpu_count", lambda: None, raising=False)
    assert operating_system.core_count() == 1


def test_free_memory_is_at_most_that_of_the_machine(monkeypatch):
    everything = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    lines = Path("/proc/meminfo").read_text().splitlines()
    swap = sum(int(line.split()[1]) for line in lines if line.startswith("SwapTotal")) * 1024
    assert 0 < operating_system.free_host_memory() <= everything + swap
    # Windows fills a structure in
    monkeypatch.setattr(sys, "platform", "win32")
    assert operating_system.free_host_memory() > 0  # no windll here: unknown, but for a container's limit

    class Kernel:
        @staticmethod
        def GlobalMemoryStatusEx(status):
            status._obj.available_page = 123
            return status._obj.length == 64

    windows = type("windll", (), {"kernel32": Kernel})
    monkeypatch.setattr(ctypes, "windll", windows, raising=False)
    assert operating_system.free_host_memory() == 123
    monkeypatch.setattr(Kernel, "GlobalMemoryStatusEx", lambda status: 0)
    assert operating_system._available_on_windows() == np.inf
