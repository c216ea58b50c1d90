"""Eight threads that compute at once: each gets what it gets alone, and the program's settings stay as they were."""

import signal
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
import zarr

import jaximpact as ji
from support import study_systems
from support.study_systems import ARGS, digest, small

COMMON = {"t1": 0.5, "h": 0.05, "args": ARGS}


def studied(name, path):
    """With a floor lanes start below it, or point into it, which is remarked to who calls `ensemble`."""
    points = ji.Design.points(**{"q0[0]": [1.0, -1.0, 0.0, 0.0]})
    study = ji.Study(path, f"support.study_systems:{name}", points, q0=[1.0], v0=[-1.0], chunk=2, e=0.5, **COMMON)
    with ThreadPoolExecutor(1) as pool:
        study.run(pool)
    return digest(path)


def solved(name, path):
    return np.asarray(ji.solve(getattr(study_systems, name), [1.0], [-1.0], e=0.5, **COMMON).q)


def batched(name, path):
    return ji.ensemble(getattr(study_systems, name), [[1.0], [0.1], [0.5]], [-1.0], e=0.5, **COMMON).q


def differentiated(name, path):
    problem = getattr(study_systems, name)
    found = ji.sensitivities(problem, [1.0], [-1.0], e=0.5, wrt=("v0",), **COMMON)
    return np.asarray(found.jacobian["q"]["v0"])


def state():
    """What belongs to the whole program."""
    return {
        "filters": list(warnings.filters),
        "shown by": warnings.showwarning,
        "zarr": repr(zarr.config.config),
        "jax": jax.config.values,
        "path": list(sys.path),
        "signal": signal.getsignal(signal.SIGINT),
    }


@pytest.mark.parametrize("name", ["free", pytest.param("ball", marks=pytest.mark.slow)])
def test_eight_threads_get_what_each_gets_alone(tmp_path, name):
    calls = [studied, solved, batched, differentiated] * 2
    before, together = state(), threading.Barrier(len(calls))

    def call(number):
        together.wait()
        return calls[number](name, tmp_path / f"together_{number}.zarr")

    with ThreadPoolExecutor(len(calls)) as pool:
        found = list(pool.map(call, range(len(calls))))
    assert state() == before
    for number, one in enumerate(calls):
        np.testing.assert_equal(found[number], one(name, tmp_path / f"alone_{number}.zarr"))


def test_settings_of_the_program_are_not_touched(tmp_path):
    """Even for a moment: another thread would see them, or put them back too late."""
    settings = {warnings.catch_warnings.__enter__.__code__, type(zarr.config).set.__code__}
    touched = []

    def watch(frame, event, _):
        if event == "call" and frame.f_code in settings:
            touched.append(frame.f_back.f_code)

    below = ji.Design.points(**{"q0[0]": [-1.0, -2.0]})
    small(tmp_path / "before.zarr", below, chunk=1).run()  # compiles
    study = small(tmp_path / "s.zarr", below, chunk=1)
    before = sys.getprofile()
    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        study.run()
        assert not touched
        with warnings.catch_warnings():  # is seen
            assert len(touched) == 1
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    assert study.verify() == []


@pytest.mark.parametrize("setting", [{"numpy_rank_promotion": "allow"}, {"debug_nans": True}, {"enable_x64": False}])
def test_settings_of_one_thread_reach_the_workers(tmp_path, setting):
    ((name, value),) = setting.items()
    seen = set()

    def look():
        if threading.current_thread() is not threading.main_thread():
            seen.add(getattr(jax.config, f"jax_{name}"))

    study_systems.TRACED.append(look)
    try:
        with getattr(jax, name)(value), ThreadPoolExecutor(1) as pool:
            below = ji.Design.points(**{"q0[0]": [-1.0]})
            small(tmp_path / "s.zarr", below, "support.study_systems:moody").run(pool)
    finally:
        study_systems.TRACED.clear()
    assert seen == {value} and getattr(jax.config, f"jax_{name}") != value
