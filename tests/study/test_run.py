"""One long motion on disk: killed anywhere, it goes on to the same end."""

import signal
import subprocess
import sys
import time
from contextlib import suppress

import jax.numpy as jnp
import numpy as np
import pytest
import xarray

import jaximpact as ji
from jaximpact.study import Run
from support import study_systems
from support.breadth import slow
from support.study_systems import long_run

ALL = ("t", "q", "v", "z", "impulse", "energy", "pairs", "penetration", "residual", "iterations", "status")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = long_run(tmp_path_factory.mktemp("run") / "whole.zarr")
    return run, run.run()


def test_rows_are_those_of_solve(whole):
    run, found = whole
    q0 = found.q[0]
    problem = ji.bodies.disks(np.full(16, 0.1), force=lambda t, q, v, args: -args["k"] * q)
    expected = ji.solve(problem, q0, 0 * q0, t1=0.7, h=1e-3, args={"k": 20.0}, save=2)
    assert np.sum(found.impulse[-1] > 0) > 10
    assert np.allclose(found.energy, expected.energy, rtol=1e-12)  # of sums in another order
    for name in ("t", "q", "v", "z", "residual", "iterations", "status"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    assert found.impulse.shape == (351, 40) and np.isclose(found.impulse.sum(), np.sum(expected.impulse), rtol=1e-12)
    on_disk = xarray.open_zarr(run.store.path)
    assert np.array_equal(on_disk.q, found.q) and np.all(on_disk.done == 1)


def test_some_rows(whole):
    run, found = whole
    for rows in (slice(-1, None), slice(5, 300, 45)):
        some = run.solution(rows)
        for name in ("t", "q", "impulse", "pairs"):
            assert np.array_equal(getattr(some, name), getattr(found, name)[rows]), name
        assert some.residual == found.residual
    for rows in (3, slice(400, None), slice(None, None, -1)):
        with pytest.raises(ValueError, match=r"rows=.*: give a slice of the 351 rows"):
            run.solution(rows)
    assert run.run(rows=slice(-1, None)).t == found.t[-1:]


def killed(path):
    """A run in another process, which is killed after some blocks."""
    marks = path / ".study" / "blocks"
    with subprocess.Popen([sys.executable, study_systems.__file__, str(path)]) as process:
        while not (marks / "4.json").exists():
            assert process.poll() is None
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)


def interrupted(path):
    """A run that is interrupted where it is about to write another block."""
    run = long_run(path)
    write = run.store.write

    def until(block, *given):
        if block == 6:
            raise KeyboardInterrupt
        write(block, *given)

    run.store.write = until
    with suppress(KeyboardInterrupt):
        run.run()


@pytest.mark.parametrize("stopped", [slow(killed), interrupted])
def test_stopped_in_the_middle_and_continued(whole, tmp_path, stopped):
    path = tmp_path / "stopped.zarr"
    run = long_run(path)
    stopped(path)
    done = len(run.store.finished())
    assert 5 <= done < len(run.blocks)
    # what is there can be read, the rest is not passed for rows
    assert int(xarray.open_zarr(path).done.sum()) >= 5 * 20
    with pytest.raises(RuntimeError, match="not complete"):
        run.solution()
    found = long_run(path).run(progress=True)
    for name in ALL:
        assert np.array_equal(getattr(found, name), getattr(whole[1], name)), name


def test_runs_without_lists_too(tmp_path):
    ball = ji.Problem(lambda t, q, v, args: jnp.full_like(q, -9.81), lambda t, q, args: q)
    options = {"t1": 1.0, "h": 1e-3, "e": 0.5, "save": 7}
    found = Run(tmp_path / "ball.zarr", ball, [1.0], [0.0], block=11, **options).run()
    expected = ji.solve(ball, [1.0], [0.0], execution="xla", **options)
    for name in ("t", "q", "v", "z", "impulse"):
        # two programs of XLA, which contracts products and sums as it likes
        assert np.allclose(getattr(found, name), getattr(expected, name), rtol=0, atol=1e-13), name


@pytest.mark.parametrize(
    ("changes", "differs"),
    [({"args": {"k": 21.0}}, "args"), ({"save": 4}, "every"), ({"scheme": ji.MoreauJean()}, "scheme")],
)
def test_another_run_at_the_same_place(whole, changes, differs):
    with pytest.raises(ValueError, match=f"holds another run.* differs in {differs}"):
        long_run(whole[0].store.path, **changes)


@pytest.mark.slow
def test_a_run_with_other_friction_is_another_run(tmp_path):
    """Friction is part of what identifies a run, stated as a number or as a function, and so is the law of impact."""

    def rubbing(friction, sideways=1.0, law="newton"):
        problem = ji.Problem(
            lambda t, q, v, args: jnp.array([0.0, -9.81]),
            lambda t, q, args: q[1:],
            slip=lambda t, q, v, args: sideways * v[:1],
            friction=friction,
            impact_law=law,
        )
        start = {"t1": 0.02, "h": 1e-3, "scheme": ji.MoreauJean()}
        return Run(tmp_path / "rubbing.zarr", problem, [0.0, 0.0], [1.0, 0.0], **start)

    found = rubbing(0.3).run()
    assert np.isclose(found.v[-1, 0], 1 - 0.3 * 9.81 * 0.02, rtol=1e-12)  # exact for a constant force
    others = (
        (rubbing, "friction"),
        (lambda mu: rubbing(mu, -2.0), "slip"),
        (lambda mu: rubbing(mu, 1.0, "poisson"), "impact_law"),
    )
    for other, part in others:
        with pytest.raises(ValueError, match=f"holds another run.* differs in {part}"):
            other(0.4 if part == "friction" else 0.3)


def test_bad_arguments_and_damage(whole, tmp_path):
    with pytest.raises(ValueError, match="every k-th step"):
        long_run(tmp_path / "x.zarr", save=np.array([0.1, 0.2]))
    with pytest.raises(ValueError, match="block must be"):
        long_run(tmp_path / "x.zarr", block=0)
    run = long_run(tmp_path / "y.zarr", t1=0.02)
    run.run()
    (run.store.path / ".study" / "carry.npz").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"carry\.npz is damaged"):
        run.run()
    run.store.path.joinpath(".study", "carry.npz").unlink()
    assert run.run().q.shape == (11, 32)  # from the beginning
