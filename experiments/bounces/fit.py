"""Restitution e and release height H of one drop from the contact times of its simulated lanes."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import OptimizeResult, least_squares

from .data import Drop
from .matching import HUBER, match
from .simulation import GRAVITY

FIRST_SCALE = 20e-3  # scale of the loss while the pair is only roughly known: what a wide box leaves open [s]
FEW = 8  # contacts that round 1 fits: later ones are too close together for a rough pair
NEAR = 0.12  # round 1 fits its surface to lanes whose log e is this close to the best one's: some 50 of 240
ROUGH = 5  # round 1 needs no scale below this many times the jitter
START, AGAIN = 5, 4  # a fit starts with this many contacts, and matches all of them anew this often
SHRINK = 0.5  # the scale falls at most by this factor at a time, so that contacts can come back
SEEN = 0.6  # a flight is used if this share of the lanes has it: 6 coefficients then rest on many lanes
GROUPS = 6  # disjoint groups of lanes: enough to tell the numerical error, 40 lanes in each
SIGMA = 1.48  # standard deviation / median absolute deviation of normal errors
POOR = 15e-3  # a drop of a larger timing misfit is reported: three times the usual one of the measured drops [s]


@dataclass
class Fit:
    """Best pair of one drop; times in s, heights in m."""

    drop: Drop
    e: float
    height: float
    covariance: np.ndarray  # of (e, height)
    index: np.ndarray  # contact number of each measured contact, -1 where it was rejected
    residual: np.ndarray  # measured minus simulated time of every contact that was not rejected
    scale: float  # of the loss
    outside: bool  # the optimum lies outside the lanes of round 2
    closed_form: float  # largest difference of a contact time from that of a ball in vacuo with the same e and H
    by_step: np.ndarray  # rows (h, e, H): fits to the contact times at one step each
    first: np.ndarray  # the pair (e, H) of round 1

    @property
    def rms(self) -> float:
        return float(np.sqrt(np.mean(self.residual**2)))

    @property
    def errors(self) -> np.ndarray:
        """Standard errors of e and H."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def rejected(self) -> int:
        return int(np.sum(self.index < 0))

    @property
    def missed(self) -> int:
        """Simulated contacts between the matched ones that were not recorded."""
        return int(self.index.max() + 1 - np.sum(self.index >= 0))

    @property
    def trouble(self) -> str:
        """Why the fit should not be trusted; empty where nothing speaks against it."""
        n, reasons = len(self.index), []
        if self.rms > POOR:
            reasons.append(f"rms {1e3 * self.rms:.0f} ms")
        if 3 * self.rejected > n:
            reasons.append(f"{self.rejected} of {n} contacts rejected")
        if self.outside:
            reasons.append("outside the box of round 2")
        return ", ".join(reasons)


class Surface:
    """Flight times as log-quadratic functions of x = log(e / e0) and y = log(H / H0), fitted to lanes.

    The phase noise of the impacts averages out over the lanes.
    """

    def __init__(self, e, height, contacts, centre):
        self.centre = np.array(centre)
        design = self.basis(np.log(e / centre[0]), np.log(height / centre[1])).T
        rows = []
        for flight in np.log(np.diff(contacts, axis=1)).T:
            seen = np.isfinite(flight)
            if seen.sum() < SEEN * len(e):
                break
            rows.append(np.linalg.lstsq(design[seen], flight[seen], rcond=None)[0])
        self.coefficients = np.array(rows).reshape(-1, 6)

    @staticmethod
    def basis(x, y):
        return np.stack([np.ones_like(x), x, y, x**2, x * y, y**2])

    def pair(self, p) -> np.ndarray:
        return self.centre * np.exp(p[:2])

    def times(self, p) -> np.ndarray:
        """Contact times from the first contact."""
        return np.concatenate([[0.0], np.cumsum(np.exp(self.coefficients @ self.basis(p[0], p[1])))])


def refine(times, surface: Surface, start, index, scale: float) -> OptimizeResult:
    """Minimise Huber's loss over p = (x, y, timing error of the first contact), the matching held fixed."""
    used = index >= 0

    def residual(p):
        return (times[used] + p[2] - surface.times(p)[index[used]]) / scale

    return least_squares(residual, start, loss="huber", f_scale=HUBER, x_scale=1e-3)


def follow(times, surface: Surface, jitter: float) -> tuple[OptimizeResult, np.ndarray, float]:
    """Match and refine in turn: the first few contacts, then ever more. Returns optimum, contact numbers and scale.

    Matched all at once, a slightly wrong e would pair late contacts, which are close together, with their neighbours.
    The scale of the loss follows the spread of the residuals down to the jitter of the trigger.
    """
    p, following = np.zeros(3), FIRST_SCALE
    for n in [*range(START, len(times)), *[len(times)] * AGAIN]:
        now, scale = times[:n], following
        index = match(now + p[2], surface.times(p)[None], scale)[1]
        found = refine(now, surface, p, index, scale)
        p = found.x
        # the median over all measured contacts: a scale that knew only those matched would lock onto a few of them
        off = np.abs(now + p[2] - surface.times(p)[:, None]).min(axis=0)
        following = float(np.clip(SIGMA * np.median(off), max(jitter, SHRINK * scale), FIRST_SCALE))
    return found, index, scale


def locate(drop: Drop, e, height, contacts, jitter: float) -> np.ndarray:
    """Round 1, the pair (e, H) to look closer at: that of the best lane, refined with the lanes around it."""
    times = drop.times[:FEW]
    best = np.argmin(match(times, contacts, FIRST_SCALE)[0])
    near = np.abs(np.log(e / e[best])) < NEAR
    surface = Surface(e[near], height[near], contacts[near], (e[best], height[best]))
    return surface.pair(follow(times, surface, ROUGH * jitter)[0].x)


def fit_drop(drop: Drop, e, height, contacts, by_step, steps, first, jitter: float) -> Fit:
    """Round 2: the pair (e, H) from contacts extrapolated to h = 0, and from ``by_step``, those at each of ``steps`` [s]."""
    surface = Surface(e, height, contacts, first)
    found, index, scale = follow(drop.times, surface, jitter)
    best, times, used = surface.pair(found.x), surface.times(found.x), index >= 0
    residual = drop.times[used] + found.x[2] - times[index[used]]

    def refit(contacts, part=slice(None)):
        other = Surface(e[part], height[part], contacts[part], first)
        known = np.where(index <= len(other.coefficients), index, -1)
        return other.pair(refine(drop.times, other, np.zeros(3), known, scale).x)

    # timing: inverse of the Gauss-Newton Hessian of the loss; its (e, H) block has the offset profiled out
    spread = max(jitter, np.sqrt(np.sum(residual**2) / max(len(residual) - 3, 1)))
    timing = np.linalg.pinv(found.jac.T @ found.jac)[:2, :2] * (spread / scale) ** 2 * np.outer(best, best)
    # what is left of the phase noise: fits to disjoint groups of lanes scatter with it
    phase = np.cov([refit(contacts, slice(k, None, GROUPS)) for k in range(GROUPS)], rowvar=False) / GROUPS

    flights = 2 * np.sqrt(2 * best[1] / GRAVITY) * best[0] ** np.arange(1, index.max() + 1)
    closed_form = np.abs(times[1 : index.max() + 1] - np.cumsum(flights)).max(initial=0)
    outside = not (e.min() < best[0] < e.max() and height.min() < best[1] < height.max())
    fits = np.array([[h, *refit(one)] for h, one in zip(steps, by_step, strict=True)])
    return Fit(drop, *best, timing + phase, index, residual, scale, outside, closed_form, fits, first)
