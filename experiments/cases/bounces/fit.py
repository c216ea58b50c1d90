"""Restitution e and release height H of one drop from the contact times of its simulated lanes."""

from collections.abc import Callable

import numpy as np
from scipy.optimize import OptimizeResult, least_squares

from .data import NEEDED, Drop
from .matching import HUBER, match
from .simulation import GRAVITY

FIRST_SCALE = 20e-3  # scale of the loss far from the best pair: by this the best lane's first flights are off [s]
FEW = 8  # contacts that round 1 fits: later ones are too close together for a rough pair
# round 1 fits its surface to lanes whose log e is this close to the best one's: some 80 of 240, enough against noise
NEAR = 0.12
START = 5  # contacts that a fit starts with: two more than numbers fitted
AGAIN = 4  # times that a fit matches all contacts anew in the end: by SHRINK from FIRST_SCALE to the jitter
SHRINK = 0.5  # the scale falls at most by this factor at a time, so that contacts left out can come back
SEEN = 0.6  # share of the lanes that must have a flight: its coefficients then rest on many lanes
GROUPS = 6  # disjoint groups of lanes: enough to tell the numerical error
FEWEST = 10 * GROUPS  # lanes, so that a group has several times as many as coefficients
SIGMA = 1.48  # standard deviation / median absolute deviation of normal errors
REJECTED = 1 / 3  # share of rejected contacts beyond which a fit is poor: the others might agree by chance
POOR = 15e-3  # a fit of a larger timing misfit is poor: three times the usual one of the measured drops [s]


def surface(e, height, contacts, centre) -> Callable:
    """Contact times as a function of p = (log e / e0, log H / H0, ...): log-linear flights, as in vacuo,
    fitted to lanes.

    The phase noise of the impacts averages out over the lanes.
    """
    design = np.stack([np.ones_like(e), np.log(e / centre[0]), np.log(height / centre[1])], axis=1)
    rows = []
    for flight in np.log(np.diff(contacts, axis=1)).T:
        seen = np.isfinite(flight)
        if seen.sum() < SEEN * len(e):
            break
        rows.append(np.linalg.lstsq(design[seen], flight[seen], rcond=None)[0])
    coefficients = np.reshape(rows, (-1, 3))
    return lambda p: np.concatenate([[0.0], np.cumsum(np.exp(coefficients @ [1, p[0], p[1]]))])


def refine(times, model: Callable, start, index, scale: float) -> OptimizeResult:
    """Minimise Huber's loss over p, p[2] being the timing error of the first contact; the matching is held fixed."""
    used = index >= 0
    residual = lambda p: (times[used] + p[2] - model(p)[index[used]]) / scale
    return least_squares(residual, start, loss="huber", f_scale=HUBER)


def follow(times, model: Callable, jitter: float) -> tuple[OptimizeResult, np.ndarray, float]:
    """Match and refine in turn: the first few contacts, then ever more. Returns optimum, contact numbers and scale.

    Matched all at once, a slightly wrong e would pair late contacts, which are close together, with their neighbours.
    The scale of the loss follows the spread of the residuals down to the jitter of the trigger.
    """
    p, following = np.zeros(3), FIRST_SCALE
    for n in [*range(START, len(times)), *[len(times)] * AGAIN]:
        now, scale = times[:n], following
        index = match(now + p[2], model(p)[None], scale)[1]
        found = refine(now, model, p, index, scale)
        p = found.x
        # the median over all measured contacts: a scale that knew only those matched would lock onto a few of them
        off = np.abs(now + p[2] - model(p)[:, None]).min(axis=0)
        following = np.clip(SIGMA * np.median(off), max(jitter, SHRINK * scale), FIRST_SCALE)
    return found, index, scale


def locate(drop: Drop, e, height, contacts, jitter: float) -> np.ndarray:
    """Round 1: the pair (e, H) of the best lane, refined with the lanes around it."""
    times = drop.times[:FEW]
    best = np.argmin(match(times, contacts, FIRST_SCALE)[0])
    near, centre = np.abs(np.log(e / e[best])) < NEAR, (e[best], height[best])
    found = follow(times, surface(e[near], height[near], contacts[near], centre), jitter)[0]
    return centre * np.exp(found.x[:2])


def fit_drop(drop: Drop, e, height, contacts, by_step, steps, centre, jitter: float) -> dict | None:
    """Round 2: the pair (e, H) from contacts at h = 0, and for comparison from those at each of the steps [s].

    Returns the fields of the drop and the results, in s and m but where a name tells another unit; None where too few
    contacts match.
    """
    model = surface(e, height, contacts, centre)
    found, index, scale = follow(drop.times, model, jitter)
    if np.sum(index >= 0) < NEEDED:
        return None
    used, times, (best_e, best_height) = index >= 0, model(found.x), centre * np.exp(found.x[:2])
    residual = drop.times[used] + found.x[2] - times[index[used]]
    rms, rejected, last = np.sqrt(np.mean(residual**2)), np.sum(~used), index.max()

    def refit(contacts, part=slice(None)):
        other = surface(e[part], height[part], contacts[part], centre)
        known = np.where(index < len(other(np.zeros(3))), index, -1)
        return centre * np.exp(refine(drop.times, other, np.zeros(3), known, scale).x[:2])

    by_step = np.array([[h, *refit(one)] for h, one in zip(steps, by_step, strict=True)])
    # timing: inverse of the Gauss-Newton Hessian of the loss; its (e, H) block has the offset profiled out
    spread = max(jitter, np.sqrt(np.sum(residual**2) / max(len(residual) - 3, 1)))
    natural = np.diag([best_e, best_height]) * spread / scale
    timing = natural @ np.linalg.pinv(found.jac.T @ found.jac)[:2, :2] @ natural
    # what is left of the phase noise: fits to disjoint groups of lanes scatter with it
    phase = np.cov([refit(contacts, slice(k, None, GROUPS)) for k in range(GROUPS)], rowvar=False) / GROUPS
    e_error, height_error = np.sqrt(np.diag(timing + phase))

    doubts = []
    if rms > POOR:
        doubts.append(f"rms {1e3 * rms:.0f} ms")
    if rejected > REJECTED * len(index):
        doubts.append(f"{rejected} of {len(index)} contacts rejected")
    if not (e.min() < best_e < e.max() and height.min() < best_height < height.max()):
        doubts.append("outside the box of round 2")
    in_vacuo = np.cumsum(2 * np.sqrt(2 * best_height / GRAVITY) * best_e ** np.arange(1, last + 1))
    return (
        vars(drop)
        | {
            "status": f"poor: {', '.join(doubts)}" if doubts else "ok",
            "contacts": len(index),
            "rejected": rejected,  # recorded, not simulated
            "missed": last + 1 - np.sum(used),  # simulated before the last match, not recorded
            "e": best_e,
            "e_error": e_error,
            "height_cm": 100 * best_height,
            "height_error_cm": 100 * height_error,
            "rms_ms": 1e3 * rms,
            "scale_ms": 1e3 * scale,
            "e_round1": centre[0],
            "height_round1_cm": 100 * centre[1],
            "e_moved_by_extrapolation": best_e - by_step[-1, 1],
            "closed_form_difference_ms": 1e3 * np.abs(times[1 : last + 1] - in_vacuo).max(initial=0),
            "covariance": timing + phase,  # of e and H
            "by_step": by_step,  # rows (h, e, H): fits to the contact times at one step each
            "index": index,  # contact number of each measured contact, -1 where it was rejected
            "residual": residual,  # measured minus simulated time of every contact that was not rejected
        }
    )
