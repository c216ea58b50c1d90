"""The periodic orbits of one impact a period of the Shaw-Holmes oscillator: closed forms of motion,
monodromy and bifurcations.

For q'' = F(t, q, v), q >= wall, an impact at speed v- < 0 maps deviations by the saltation matrix
S = [[-e, 0], [(a+ + e a-)/v-, -e]], a-+ the accelerations before and after; the free flow of the damped oscillator is a
matrix Phi. One impact a period: monodromy S Phi(T), of determinant e^2 exp(-2 z T).
"""

import numpy as np
from scipy.optimize import brentq

from jaximpact import catalogue
from jaximpact.catalogue import oscillators

SHAW_HOLMES = catalogue.get("shaw-holmes").problem


def free_flow(z, t):
    wd = np.sqrt(1 - z**2)
    c, s = np.cos(wd * t), np.sin(wd * t) / wd
    return np.exp(-z * t) * np.array([[c + z * s, s], [-s, c - z * s]])


def closed_form(z, w, wall, e):
    """Exact motion, shift, and the monodromy matrix just after the impact, of the catalogue's family of orbits."""
    exact, shift, v = oscillators.periodic_orbit(z, w, wall, e)
    before = np.cos(w * shift) - wall + 2 * z * v / e
    after = np.cos(w * shift) - wall - 2 * z * v
    saltation = np.array([[-e, 0], [-(after + e * before) * e / v, -e]])
    return exact, shift, saltation @ free_flow(z, 2 * np.pi / w)


def arguments(z, w, wall, shift):
    return {"damping": z, "amplitude": 1.0, "frequency": w, "shift": shift, "wall": wall}


def by_modulus_and_phase(multipliers):
    return np.sort_complex(np.asarray(multipliers, complex))


Z, W, WALL, E = 0.05, 2.2, -0.1, 0.8


def period(args):
    return 2 * np.pi / args["frequency"]


def amplitude(w, z=Z):
    return 1 / np.hypot(1 - w**2, 2 * z * w)


def doubling_frequency():
    """A multiplier -1 where 1 + trace + determinant = 0 of the closed-form monodromy matrix."""

    def at_minus_one(w):
        monodromy = closed_form(Z, w, WALL, E)[2]
        return 1 + np.trace(monodromy) + np.linalg.det(monodromy)

    return brentq(at_minus_one, 2.3, 2.6, xtol=1e-14)
