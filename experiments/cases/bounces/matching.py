"""Which measured contact is which simulated one, where some were missed and others are no contacts at all."""

import numpy as np
from scipy.special import huber

HUBER = 1.345  # scales at which the loss turns from quadratic to linear: 95 % efficient for normal errors
EXTRA = 8.0  # cost of leaving a measured contact out: Huber's loss at 6.6 scales, so no match is further off
MISSED = 4.1  # cost of leaving a simulated contact out: two of them are just dearer than one extra


def match(measured: np.ndarray, model: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Cheapest ordered matching of measured contacts (n,) with those of lanes (lanes, m), by dynamic programming.

    Returns the cost of each lane (lanes,), and of the cheapest lane the contact number of each measured contact (n,),
    -1 where left out. The first measured contact is the first simulated one; a match costs Huber's loss of the
    difference over ``scale``. Leaving contacts out costs a constant, so outliers pull neither e nor H. Were misses
    free, contacts so dense that some lie near every measured one (e -> 1, small H) would win. Two misses cost more than
    one extra, so that a gap of two or more does not explain a lone late contact. Simulated contacts after the last
    match are free: recording stops there.
    """
    lanes, m = model.shape
    skip = MISSED * np.arange(m)
    best = skip + np.zeros((lanes, 1))  # [lane, j]: cheapest way to have dealt with contacts 0..i and 0..j
    moves = np.full((len(measured), lanes, m), 2, np.int8)  # 0: match, 1: leave out measured, 2: leave out simulated
    moves[0, :, 0] = 0
    for i in range(1, len(measured)):
        off = np.where(np.isnan(model), np.inf, np.abs(model - measured[i]))
        matched = np.pad(best[:, :-1], ((0, 0), (1, 0)), constant_values=np.inf) + huber(HUBER, off / scale)
        direct = np.minimum(matched, best + EXTRA)
        moves[i] = np.where(matched <= best + EXTRA, 0, 1)
        best = np.minimum.accumulate(direct - skip, axis=1) + skip
        moves[i][direct > best + 1e-9] = 2  # more than round-off
    end = np.argmin(best, axis=1)
    costs = best[np.arange(lanes), end]
    lane = np.argmin(costs)
    index = np.full(len(measured), -1)
    i, j = len(measured) - 1, end[lane]
    while i >= 0 and j >= 0:
        move = moves[i, lane, j]
        if move == 0:
            index[i] = j
        i, j = i - (move != 2), j - (move != 1)
    return costs, index
