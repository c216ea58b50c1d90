"""The contact network of packings whose forces statics gives."""

import numpy as np
import pytest

import jaximpact as ji
from jaximpact import analysis, bodies

TIGHT = bodies.ConjugateGradients(tolerance=1e-12)
G, H = 9.81, 1e-3
# of statics: the solver's 1e-12 of velocities by h g, and what the bodies still move after the fall of 1e-9 that they
# begin with
SAME = 1e-6


def at_rest(q0, radius=0.5, **options):
    q0 = np.asarray(q0, float)
    problem = bodies.disks(np.full(len(q0), radius), lists=True, gravity=G, **options)
    return problem, ji.solve(problem, q0.ravel(), np.zeros(q0.size), t1=0.02, h=H, projection=TIGHT)


@pytest.fixture(scope="module")
def column():
    return at_rest(np.stack([np.zeros(5), 0.5 + np.arange(5)], axis=1), walls=[None, (0, None)])


def test_a_column_carries_its_weight(column):
    count, (problem, motion) = 5, column
    found = analysis.packing(problem, motion, h=H, volume=2.0, needed=1)
    carried = {(int(i), int(j)): f for (i, j), f in zip(found.ends, found.force, strict=True)}
    assert carried.keys() == {(0, -1), (0, 1), (1, 2), (2, 3), (3, 4)}
    for (i, j), force in carried.items():
        assert np.isclose(force, (count - max(i, j)) * G, rtol=SAME)
    # forces 4, 3, 2, 1 times m g along branches of one diameter
    assert np.allclose(found.stress, [[0, 0], [0, 10 * G / 2.0]], atol=SAME) and np.isclose(found.pressure, 2.5 * G)
    assert np.allclose(found.fabric, [[0, 0], [0, 1]], atol=SAME)
    # two contacts each, but the topmost has one
    assert not found.rattles.any() and np.isclose(found.coordination, 9 / 5)
    assert len(found) == 5 == len(found.to_pandas())


@pytest.mark.slow
def test_what_is_not_held_rattles_and_what_rests_on_it_too():
    # a disk in the wedge of two that are held apart by walls, and a column of two beside the floor's only contact
    half = 0.5 * np.sqrt(3)
    places = [[0.5, 0.5], [1.5, 0.5], [1.0, 0.5 + half], [3.0, 0.5], [3.0, 1.5]]
    walls = [(0, None), (0, None)]
    stop = lambda t, q, v, args: np.array([0, 0, -50.0, 0, 0, 0, 0, 0, 0, 0.0])  # presses the second disk to the left
    problem, motion = at_rest(places, walls=walls, force=stop)
    found = analysis.packing(problem, motion, h=H, needed=2)
    assert found.rattles.tolist() == [False, False, False, True, True]
    # the wedge: one with wall, floor and two disks, one with floor and two disks, one with two disks
    assert np.isclose(found.coordination, (4 + 3 + 2) / 3)
    held = {tuple(x): f for x, f in zip(found.ends.tolist(), found.force, strict=True)}
    assert np.isclose(held[0, 2], G / np.sqrt(3), rtol=SAME) and np.isclose(held[1, 2], G / np.sqrt(3), rtol=SAME)


@pytest.mark.slow
def test_contacts_reach_through_a_periodic_border():
    """Two disks whose growth presses them apart, at .2 m/s each against a drag of 100 N s/m, so by 20 N."""
    drag = lambda t, q, v, args: -100.0 * v
    problem = bodies.disks([0.13, 0.13, 0.05], growth=[0.2, 0.2, 0.0], periodic=(1.0, 1.0), lists=True, force=drag)
    motion = ji.solve(problem, [0.05, 0.5, 0.77, 0.5, 0.3, 0.1], np.zeros(6), t1=0.15, h=H, projection=TIGHT)
    found = analysis.packing(problem, motion, h=H, needed=1)
    assert found.ends.tolist() == [[0, 1]] and found.rattles.tolist() == [False, False, True]
    # radii have grown to .16 each; admissible to the linearisation, exact along a line of centres
    assert np.allclose(found.branch, [[0.32, 0.0]], atol=1e-9) and np.allclose(found.push, [[20.0, 0.0]], rtol=SAME)
    assert np.allclose(found.stress, [[6.4, 0], [0, 0]], rtol=SAME, atol=SAME)  # the box has the area 1


def test_what_cannot_be_a_packing_is_refused(column):
    problem, motion = column
    for wrong, message in (({"h": 0.0}, "h and volume must be positive"), ({"h": H, "row": 99}, "row=99"),
                           ({"h": H, "volume": -1.0}, "h and volume must be positive")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            analysis.packing(problem, motion, **wrong)
    dense = bodies.disks([0.5], gravity=G, walls=[None, (0, None)])
    with pytest.raises(ValueError, match="lists=True"):
        analysis.packing(dense, ji.solve(dense, [0.0, 0.5], [0.0, 0.0], t1=0.1, h=H), h=H)


@pytest.mark.slow
def test_a_motion_is_kept_in_the_disk_cache_whatever_its_solver_states(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXIMPACT_CACHE", str(tmp_path))
    _, motion = at_rest([[0.0, 0.5], [1.5, 0.5]], walls=[None, (0, None)])
    assert motion.status == 0 and any(tmp_path.iterdir())
