"""Does the ratio of successive flights depend on speed, and does the fitted model say why?"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import theilslopes

from .fit import Fit
from .model import GRAVITY


@dataclass(frozen=True)
class Trend:
    """Ratios of successive flights of one ball against the speed of the impact between them.

    Slopes are Theil and Sen's medians, which forgive outliers, with 95 % intervals: (slope, low, high) [s/m].
    """

    speed: np.ndarray  # of impact, from the simulated flight before it [m/s]
    measured: np.ndarray  # ratios
    simulated: np.ndarray
    slope: tuple[float, float, float]  # of the logarithm of the measured ratios
    left: tuple[float, float, float]  # of the logarithm of measured over simulated ratios


def trend_of(fit: Fit, ball: int) -> Trend | None:
    """The trend of a ball from contacts that were recorded three in a row;
    None where there are fewer than 10 ratios."""
    members = np.flatnonzero(fit.ball == ball)
    rows = [ratios_of(fit.times[d] + fit.offset[d], fit.index[d], fit.model[d]) for d in members]
    rows = np.concatenate(rows)
    if len(rows) < 10:
        return None
    speed, measured, simulated = rows.T

    def slope(y):
        middle, _, low, high = theilslopes(y, speed)
        return middle, low, high

    return Trend(speed, measured, simulated, slope(np.log(measured)), slope(np.log(measured / simulated)))


def ratios_of(times: np.ndarray, index: np.ndarray, model: np.ndarray) -> np.ndarray:
    """Rows (speed, ratio, simulated ratio) of the impacts recorded together with their neighbours: (impacts, 3).

    The speed of the impact [m/s] is that of the simulation. Arguments: measured
    contacts (contacts,) [s], the contact number of each, -1 where it is out, and simulated contacts (count,) [s].
    """
    rows = [np.zeros((0, 3))]
    kept = np.flatnonzero(index >= 0)
    number, times = index[kept], times[kept]
    for i in np.flatnonzero((np.diff(number)[:-1] == 1) & (np.diff(number)[1:] == 1)):
        flights, simulated = np.diff(times[i : i + 3]), np.diff(model[number[i : i + 3]])
        ratios = flights[1] / flights[0], simulated[1] / simulated[0]
        rows.append(np.array([[GRAVITY * simulated[0] / 2, *ratios]]))
    return np.concatenate(rows)
