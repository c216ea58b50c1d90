"""Stationary density of a linear oscillator beside a wall under white noise, from its Fokker-Planck equation:
no random numbers.

q'' + 2 zeta q' + q = sigma W' for q > 0, with impacts v -> -e v at q = 0. Finite volumes of second order: fluxes along
q upwind from two cells, along v after J. S. Chang, G. Cooper, J. Comput. Phys. 6 (1970); what leaves through the wall
with -v comes back with e v, shared by the two nearest cells.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array, csc_array
from scipy.sparse.linalg import spsolve


def stationary(e: float, zeta: float, sigma: float, cells: int, reach: float) -> tuple[np.ndarray, ...]:
    """Middles of the cells q (n,) in [0, reach] and v (n,) in [-reach, reach], and the density there (n, n)."""
    n, hq, hv, noise = cells, reach / cells, 2 * reach / cells, sigma**2 / 2
    q, v = (np.arange(n) + 0.5) * hq, (np.arange(n) + 0.5) * hv - reach
    index, rows, columns, rates = np.arange(n * n).reshape(n, n), [], [], []

    def flow(start, end, rate, of):
        """Adds a flow of ``rate`` times the density in the cells ``of``."""
        for cell, sign in ((end, 1), (start, -1)):
            every = np.broadcast_arrays(cell, of, sign * rate)
            for parts, x in zip((rows, columns, rates), every, strict=True):
                parts.append(np.ravel(x))

    for side, chosen in ((1, v > 0), (-1, v < 0)):
        cell, rate = index[::side, chosen], np.abs(v[chosen]) / hq  # in the order in which it flows
        flow(cell[:1], cell[1:2], rate / 2, cell[:1])
        flow(cell[:1], cell[1:2], rate / 2, cell[1:2])
        flow(cell[1:-1], cell[2:], 1.5 * rate, cell[1:-1])
        flow(cell[1:-1], cell[2:], -0.5 * rate, cell[:-2])
    # impacts: `rate` and `cell` are those of v < 0
    place = np.maximum((e * np.abs(v[chosen]) + reach) / hv - 0.5, n // 2)
    lower = place.astype(int)
    for end, share in ((lower, 1 - place % 1), (lower + 1, place % 1)):
        flow(cell[-1], end, 1.5 * rate * share, cell[-1])
        flow(cell[-1], end, -0.5 * rate * share, cell[-2])
    drift = (-q[:, None] - 2 * zeta * (v[:-1] + hv / 2)) * hv / noise
    drift = np.where(np.abs(drift) < 1e-8, 1e-8, drift)
    flow(index[:, :-1], index[:, 1:], noise / hv**2 * drift / -np.expm1(-drift), index[:, :-1])
    flow(index[:, 1:], index[:, :-1], noise / hv**2 * drift / np.expm1(drift), index[:, 1:])

    balance = coo_array((np.concatenate(rates), (np.concatenate(rows), np.concatenate(columns))), (n * n, n * n))
    # one of the equations follows from the others: in its place, that all is one
    middle, right = index[n // 4, n // 2], np.zeros(n * n)
    keep = np.ones(n * n)
    keep[middle] = 0
    whole = coo_array((np.full(n * n, hq * hv), (np.full(n * n, middle), np.arange(n * n))), (n * n, n * n))
    right[middle] = 1
    matrix = csc_array(balance.multiply(keep[:, None]) + whole)
    return q, v, spsolve(matrix, right).reshape(n, n)
