"""A clean status means that the result is right: random linkages in the plane, trees and loops, with stops."""

import jax
import numpy as np
import pytest

import jaximpact as ji
from support import random_linkages as linkages
from support.random_linkages import End, Linkage, Motion

T1, STEPS, E = 1.0, 2000, 0.6
H = T1 / STEPS
LOOP = Linkage(3, ((0, -1), (1, 0), (2, 1)), (2,))  # a four-bar
TREE = Linkage(3, ((0, -1), (1, 0), (2, 0)), ())  # two bars at the end of one
SHAKE, DIRECTIONS = 1e-7, 4  # of a start, to see how far motions part

# scheme, options, error beside which motions part, its part of the variation of accelerations (what a step of second
# order leaves out is h^2 times that: a loop that snaps through within two steps is far off), and parts of late impacts
SCHEMES = {
    "MoreauJean": (ji.MoreauJean(), {"steps": STEPS}, 20 * H, 0, 2),
    "EventCorrected": (ji.EventCorrected(), {"steps": STEPS}, 0, 10 * H**2, 0),
    "EventDriven": (ji.EventDriven(rtol=1e-10, atol=1e-10), {"steps": 8}, 1e-9, 0, 0),
}


def right_end(motion: Motion, q: np.ndarray, v: np.ndarray) -> tuple[End, float, float]:
    """The right end of a start; by how much more motions part that start beside each other, inf where that tells
    nothing; and how far those lead away whose impacts are late, by up to a step each,
    as those of a scheme that locates none."""
    rng, end, apart, spread = np.random.default_rng(5), motion.end(q, v, T1, E), 0.0, 0.0
    for _ in range(DIRECTIONS):
        by = SHAKE * rng.normal(size=(2, v.size))
        beside = motion.end(*motion.on_joints(q + by[0], v + by[1]), T1, E)
        same = end.impacts == beside.impacts and min(end.softest, beside.softest) > 0
        apart = max(apart, np.max(np.abs([end.q - beside.q, end.v - beside.v])) if same else np.inf)
        late = motion.end(q, v, T1, E, lambda: H * rng.random()) if end.impacts else end
        spread = max(spread, np.max(np.abs(end.q - late.q)))
    return end, 1 + apart / SHAKE, spread


def right_ends(linkage: Linkage, starts: list) -> tuple[list, np.ndarray, np.ndarray]:
    """The same of each start."""
    ends, growths, spreads = zip(*(right_end(Motion(linkage, args), q, v) for args, q, v in starts), strict=True)
    return list(ends), np.array(growths), np.array(spreads)


def distances(linkage: Linkage, starts: list, ends: list, name: str) -> tuple[np.ndarray, np.ndarray]:
    """How far positions of a scheme are off at the end, and whether its status says anything, (B,) each."""
    scheme, options, *_ = SCHEMES[name]
    args, q, v = jax.tree.map(lambda *x: np.stack(x), *starts)
    options = {"t1": T1, "e": E, **options, "scheme": scheme, "progress": False}
    found = ji.ensemble(linkage.problem(), q, v, args=args, args_axes=0, **options)
    off = np.max(np.abs(np.reshape(found.q, q.shape) - np.array([end.q for end in ends])), axis=1)
    return off, found.status != 0


def check(linkage: Linkage, seeds: range, names: list[str]) -> int:
    """Number of motions with a clean status, which are right."""
    starts = [linkages.start(linkage, seed) for seed in seeds]
    ends, growths, spreads = right_ends(linkage, starts)
    variations = np.array([end.variation for end in ends])
    clean = 0
    for name in names:
        off, told = distances(linkage, starts, ends, name)
        *_, beside, varied, late = SCHEMES[name]
        wrong = ~told & ~(off <= (beside + varied * variations) * growths + late * spreads)
        told_of = [x[wrong] for x in (np.array(seeds), off, growths, spreads, variations)]
        assert not np.any(wrong), (name, linkage, *told_of)
        clean += int(np.sum(~told & np.isfinite(growths)))
    return clean


@pytest.mark.slow
def test_four_bars_with_stops_are_right():
    assert check(LOOP, range(2), ["MoreauJean"]) == 2


@pytest.mark.slow
def test_linkages_that_make_much_of_late_impacts_or_of_a_start_are_right():
    """A bar that turns at 21 rad/s behind its first impact, .47 off by MoreauJean, as by impacts late by a step; and
    bars that part by other directions than a first one tells."""
    assert check(TREE, range(97, 98), ["MoreauJean"]) + check(LOOP, range(20, 21), ["EventCorrected"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(17))
def test_random_linkages_with_stops_are_right_if_they_are_clean(seed):
    """Six motions of each linkage; at least half of them are claimed to be right, and seen to be."""
    assert check(linkages.draw(seed), range(1000 * seed, 1000 * seed + 6), list(SCHEMES)) >= 9
