"""Runs of many bodies: lists that run out of room, ensembles and studies of them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact.bodies import Bodies, disks
from jaximpact.study import MemoryStore

APART = 0.5 * (np.array(list(itertools.product(range(4), repeat=2))) + 0.5).ravel() - 1.0
TIME = {"t1": 0.7, "h": 2e-3}


def gathering(**options):
    """Sixteen disks far apart that a force gathers; in the end each touches others."""
    return disks(np.full(16, 0.1), force=lambda t, q, v, args: -20.0 * q, **options)


def pushing(pairs, impulse):
    """Impulses by pair."""
    return {tuple(p): x for p, x in zip(np.asarray(pairs).tolist(), np.asarray(impulse).tolist(), strict=True) if x > 0}


@pytest.fixture(scope="module")
def ample():
    return ji.solve(gathering(), APART, 0 * APART, save=25, **TIME).raise_if_failed()


def test_a_run_goes_on_with_larger_lists(ample):
    found = ji.solve(gathering(pairs=12, members=1), APART, 0 * APART, save=25, **TIME).raise_if_failed()
    assert len(pushing(found.pairs[-1], found.impulse[-1])) > 20
    assert found.impulse.shape[1] < ample.impulse.shape[1]  # it has grown by what it needed
    # the same pairs in the same order, on every row, before the lists grew and behind. XLA may round gap velocities
    # otherwise in a program of lists of another size: some last digits of speeds of order 1, as lasting contacts begin
    # within the tolerance, and iterate no more
    for name in ("t", "q", "v", "z", "energy", "penetration"):
        np.testing.assert_allclose(getattr(found, name), getattr(ample, name), rtol=0, atol=1e-14, err_msg=name)
    for row in range(len(found.t)):
        here, there = pushing(found.pairs[row], found.impulse[row]), pushing(ample.pairs[row], ample.impulse[row])
        for pair in here | there:
            assert abs(here.get(pair, 0) - there.get(pair, 0)) < 1e-14


def test_under_a_transformation():
    options = {"t1": 0.7, "steps": 70, "save": "final", "sensitivity": "none"}
    end = lambda q: ji.solve(gathering(pairs=1, members=1), q, 0 * q, **options).status
    traced = jax.jit(end).trace(jnp.asarray(APART))
    # other devices take no native code
    assert "jaximpact_" not in traced.lower(lowering_platforms=("cuda",)).as_text()
    here = traced.lower()
    assert "jaximpact_" in here.as_text()
    # lists cannot grow: of disks that gather, and of disks that are near each other at the start
    call = here.compile()
    for q0 in (APART, 0.45 * APART):
        assert int(call(jnp.asarray(q0))) & ji.Status.NEIGHBOURS_LOST


@pytest.mark.slow
def test_derivatives_asked_for_outside_survive_the_growth(ample):
    options = {"save": "final", "sensitivity": "corrected"} | TIME
    found = ji.solve(gathering(pairs=1), APART, 0 * APART, **options)
    reference = ji.solve(gathering(), APART, 0 * APART, **options)
    assert np.array_equal(found.q[-1], ample.q[-1]) and found.status == reference.status


@pytest.mark.slow
def test_a_failure_is_told_by_its_first_step_also_with_larger_lists():
    force = lambda t, q, v, args: jnp.where(t < args, -20.0, jnp.nan) * q
    small, large = (disks(np.full(16, 0.1), force=force, **room) for room in ({"pairs": 20}, {}))
    starts, until = np.stack([APART] * 3), np.array([0.1, 0.601, 1.0])
    options = {"args": until, "args_axes": 0} | TIME
    found = ji.ensemble(small, starts, 0 * starts, **options)
    # no number is the force in the step from 0.1 on, before any list is full, and in that from 0.6 on
    assert np.allclose(found.failed_at, [0.102, 0.602, np.nan], rtol=0, atol=1e-12, equal_nan=True)
    assert np.array_equal(found.status, ji.ensemble(large, starts, 0 * starts, **options).status)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["solve", "ensemble", "run"])
def test_lists_do_not_grow_without_end(way, monkeypatch, tmp_path):
    count = 3000
    reach = lambda t, args: jnp.where(
        t > 0.015, 1e3, 0.2
    )  # from the second step on all are near all: 4.5 million pairs
    gap = lambda a, b, x, y: jnp.sqrt(jnp.sum((a - b) ** 2)) - 0.2
    room = 800_000 if way == "ensemble" else None  # which doubles its room
    problem = ji.Problem(lambda t, q, v, args: 0 * q, Bodies(count, gap, reach, pairs=room))
    q0 = 0.5 * np.stack(np.divmod(np.arange(count), 60), axis=1).ravel()
    options = {"t1": 0.04, "h": 1e-2}
    monkeypatch.setattr("jaximpact.jaxtools.argument_checks.free_memory", lambda: 4e8)
    with pytest.raises(ValueError, match=r"room for \d{7} pairs of 3000 bodies .* takes .* GiB of memory"):
        if way == "run":
            ji.study.Run(tmp_path / "run.zarr", problem, q0, 0 * q0, save=2, **options).run()
        elif way == "solve":
            ji.solve(problem, q0, 0 * q0, save="final", **options)
        else:
            ji.ensemble(problem, np.stack([q0]), np.stack([0 * q0]), **options)


@pytest.mark.slow
def test_lanes_whose_lists_are_full_are_computed_again(ample):
    starts = np.stack([APART, 1.4 * APART, APART])  # the second gathers too, the first and the last sooner
    found = ji.ensemble(gathering(pairs=20), starts, 0 * starts, save=25, **TIME).raise_if_failed()
    reference = ji.ensemble(gathering(), starts, 0 * starts, save=25, **TIME)
    assert np.array_equal(found.q, reference.q)
    assert np.allclose(found.q[0], ample.q, rtol=0, atol=1e-9)  # the same arithmetic, in another order
    for lane in range(3):
        pairs = [pushing(x.pairs[lane, -1], x.impulse[lane, -1]) for x in (found, reference)]
        assert pairs[0] == pairs[1]


@pytest.mark.slow
def test_studies_of_bodies(ample):
    strengths = np.array([5.0, 20.0])
    common = {"q0": APART, "v0": 0 * APART, "args": {"k": 1.0}, "save": 25} | TIME
    design = ji.Design.grid(**{"args.k": strengths})
    study = ji.Study(MemoryStore(), "support.study_systems:GATHERING", design, **common)
    study.run()
    found = study.dataset()
    assert np.all(found.status == 0) and found.impulse.shape[-1] == 40
    assert np.allclose(found.q[1], ample.q, rtol=0, atol=1e-9)  # the same arithmetic, in another order
    kept = pushing(found.pairs.values[1, -1], found.impulse.values[1, -1])
    assert kept.keys() == pushing(ample.pairs[-1], ample.impulse[-1]).keys()


@pytest.mark.slow
def test_a_study_says_that_lists_are_too_short():
    design = ji.Design.grid(**{"args.k": np.array([5.0, 20.0])})
    common = {"q0": APART, "v0": 0 * APART, "args": {"k": 1.0}, "save": 25} | TIME
    crowded = ji.Study(MemoryStore(), "support.study_systems:CROWDED", design, **common)
    with pytest.raises(
        RuntimeError, match=r"2\d pairs of bodies push at once, and there is room for 12 .* Bodies\(pairs"
    ):
        crowded.run()
