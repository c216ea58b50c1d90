"""Threads, signals and forks: a long run is interrupted, a forked process says that it cannot compute,
nothing is left behind."""

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji

ROOT = Path(ji.__file__).parents[1]
BALL = ji.Problem(lambda t, q, v, args: -args["g"] * jnp.ones(1), lambda t, q, args: q, restitution=0.5)
BATCH = {"q0": np.linspace(1.0, 2.0, 6)[:, None], "v0": [0.0], "t1": 1.0, "h": 0.01, "args": {"g": 1.0}}
posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

START = """
import os, signal, sys, threading, time
import jax, jax.numpy as jnp, jaximpact as ji

def force(t, q, v, args):  # dear: a step takes microseconds
    return -jnp.ones(1) + jax.lax.fori_loop(0, 1000, lambda i, x: jnp.sin(x + 1.0), q)

ball = ji.Problem(force, lambda t, q, args: q)
"""
LONG = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background of a shell ignores it

def interrupt():
    print("signal", flush=True)
    os.kill(os.getpid(), signal.SIGINT)

timer = threading.Timer(6.0, interrupt)
timer.daemon = True
timer.start()
try:
    {call}
    print("finished")
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
CALLS = {
    "solve": "jax.block_until_ready(ji.solve(ball, [1.0], [0.0], t1=1e5, steps=20_000_000, save='final'))",
    "one lane": "ji.ensemble(ball, [[1.0]], [0.0], t1=1e5, h=0.005)",
    "chunks": "ji.ensemble(ball, [[1.0], [2.0], [3.0], [4.0]], [0.0], t1=1e5, h=0.005, chunk=1)",
}


def python(script, limit=120):
    """Output of a script in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    run = [sys.executable, "-c", textwrap.dedent(script)]
    return subprocess.run(run, env=environment, capture_output=True, text=True, timeout=limit, check=False)


@posix
@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_ctrl_c_gets_through(call):
    """Uninterrupted each takes minutes; the process, too, ends at once."""
    begin = time.monotonic()
    found = python(START + LONG.format(call=CALLS[call]))
    assert found.stdout.split() == ["signal", "interrupted"], found.stderr
    assert found.returncode == 0
    assert time.monotonic() - begin < 40


FORK = """
import warnings, numpy as np
warnings.simplefilter("ignore")  # jax says that threads and forks do not go together
ball = ji.Problem(lambda t, q, v, args: -jnp.ones(1), lambda t, q, args: q)

def compute(call):
    try:
        call(ball, [[1.0]] if call is ji.ensemble else [1.0], [0.0], t1=0.1, h=0.01)
        return "computed"
    except RuntimeError as error:
        return str(error)

for calls in (ji.solve,), (ji.solve, ji.ensemble, ji.sensitivities):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        for call in calls:
            print(compute(call), flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    print(compute(ji.solve), flush=True)
"""


@posix
def test_a_forked_child_refuses_once_jax_has_been_used():
    """Before any use a child computes; after it, it refuses. The parent goes on either way."""
    found = python(START + FORK)
    before, parent, *after, again = found.stdout.splitlines()
    assert before == parent == again == "computed", found.stderr
    assert len(after) == 3 and all("forked" in line and "'spawn'" in line for line in after)


def test_settings_of_a_thread_reach_all_chunks():
    """In float32 by a setting of this thread alone every chunk is; in another thread nothing of it is left."""
    with jax.enable_x64(False):
        single = {name: x.astype(np.float32) if isinstance(x, np.ndarray) else x for name, x in BATCH.items()}
        assert ji.ensemble(BALL, chunk=2, **single).q.dtype == np.float32
    assert ji.ensemble(BALL, chunk=2, **BATCH).q.dtype == np.float64


@pytest.mark.slow
def test_eight_threads_give_what_one_gives_and_leave_nothing_behind():
    batch = BATCH | {"v0": [-0.5]}

    def work(i):
        g = {"g": 1.0 + i % 2}
        one = {**batch, "q0": [1.0], "args": g}
        return [
            ji.solve(BALL, **one, save="final").q,
            ji.ensemble(BALL, **{**batch, "args": g}, chunk=3, progress=False).q,
            ji.sensitivities(BALL, **one, wrt="q0").jacobian["q"]["q0"],
        ]

    single_backend = [work(i) for i in range(2)]
    filters, hook, running = list(warnings.filters), warnings.showwarning, threading.active_count()
    with ThreadPoolExecutor(8) as pool:
        for i, found in enumerate(pool.map(work, range(16))):
            for value, expected in zip(found, single_backend[i % 2], strict=True):
                np.testing.assert_array_equal(value, expected)
    assert warnings.filters == filters
    assert warnings.showwarning is hook
    assert threading.active_count() <= running


def test_under_a_transformation_solve_stays_in_its_thread():
    """A long motion whose numbers are traced, or are closed over, is part of the program around it."""
    steps = 10_000

    def end(g, q0=(1.0,)):
        problem = ji.Problem(lambda t, q, v, args: -g * jnp.ones(1))
        return ji.solve(problem, jnp.asarray(q0), [0.0], t1=1.0, steps=steps, save="final").q[-1, 0]

    # q = 1 - g t (t - h) / 2 or with t + h, by the scheme's start: affine in g
    ends = np.array([end(1.0), end(2.0)])
    np.testing.assert_allclose(jax.jit(end)(1.0), ends[0], rtol=1e-12)
    np.testing.assert_allclose(jax.jacfwd(end)(1.0), ends[1] - ends[0], rtol=1e-9)
    # rounding of 10,000 steps, where the end is at 0
    np.testing.assert_allclose(jax.jit(jax.vmap(end))(np.array([1.0, 2.0])), ends, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_as_before(collects):
    """None is looked for while programs are traced; then it is as the user had it."""
    usual, thresholds = gc.isenabled(), gc.get_threshold()
    gc.set_threshold(0)  # of the garbage of other tests none is to be looked for here
    (gc.enable if collects else gc.disable)()
    try:
        ji.ensemble(ji.Problem(lambda t, q, v, args: -q), [[1.0], [2.0]], [[0.0], [0.0]], t1=0.1, h=0.1)
        assert gc.isenabled() == collects
    finally:
        (gc.enable if usual else gc.disable)()
        gc.set_threshold(*thresholds)
