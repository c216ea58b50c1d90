"""An elastic bar dropped on a rigid wall, discretised in space by finite elements (dynamic Signorini problem)."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq

from ..mechanics.problem import Problem
from .base import Case, Entry, Motion, Orders


def _dx(q, args):
    return args["length"] / (q.size - 1)


def _mass(q, args):
    lumped = jnp.ones_like(q).at[jnp.array([0, -1])].set(0.5)
    return jnp.diag(args["density"] * _dx(q, args) * lumped)


def _tension(q, args):
    return args["modulus"] / _dx(q, args) * (q[1:] - q[:-1])


def _elastic(t, q, v, args):
    tension = _tension(q, args)
    return jnp.pad(tension, (0, 1)) - jnp.pad(tension, (1, 0))


def _wall(t, q, args):
    return q[:1]


def _energy(t, q, v, args):
    return 0.5 * v @ (_mass(q, args) @ v) + 0.5 * _tension(q, args) @ (q[1:] - q[:-1])


def modal(shapes, frequencies, weights, q, v) -> Motion:
    """Free vibration from the state (q, v), as a sum of modes: a function of times s (k,) to
    positions and velocities (k, d).

    ``shapes``: modes (d, n), orthogonal in the scalar product with the ``weights`` (d,); ``frequencies`` (n,) [rad/s],
    zero for a rigid mode.
    """
    norms = weights @ shapes**2
    a, b = ((shapes.T @ (weights * x)) / norms for x in (q, v))

    def motion(s):
        phase = np.multiply.outer(np.asarray(s, float), frequencies)
        cos, sin = np.cos(phase), np.sin(phase)
        duration = np.asarray(s, float)[..., None] * np.sinc(phase / np.pi)  # sin(w s)/w, and s where w = 0
        return (cos * a + duration * b) @ shapes.T, (cos * b - frequencies * sin * a) @ shapes.T

    return motion


def bar_bounce(
    n: int, height: float, speed: float, speed_of_sound: float, length: float
) -> tuple[float, float, Motion]:
    """Impact of a bar of n finite elements on the wall, e = 0; returns (impact time, release time, motion).

    The bar arrives from the ``height`` above the wall with constant ``speed``.

    The modes of the lumped uniform bar are sampled sines (end node clamped by the wall) and cosines (free bar), with
    frequencies (2 c/dx) sin(wavenumber dx/2). The wall force -k q_1 vanishes at the release, the first root of q_1.
    """
    dx, i, modes = length / n, np.arange(n + 1.0), np.arange(n + 1.0)
    weights = np.where((i == 0) | (i == n), 0.5, 1.0)
    t_hit = height / speed

    def dispersion(wavenumber_dx):
        return 2.0 * speed_of_sound / dx * np.sin(0.5 * wavenumber_dx)

    clamped, free = (modes[1:] - 0.5) * np.pi / n, modes * np.pi / n
    arrested = np.where(i == 0, 0.0, -speed)
    contact = modal(np.sin(np.outer(i, clamped)), dispersion(clamped), weights, np.zeros(n + 1), arrested)

    def next_to_wall(s):
        return contact(s)[0][..., 1]

    # three times the travel time of a wave along the bar; the continuous bar leaves after two
    s = np.arange(1, 60 * n) * (0.05 * dx / speed_of_sound)
    first = np.flatnonzero(next_to_wall(s) >= 0.0)[0]
    duration = brentq(next_to_wall, s[first - 1], s[first], xtol=1e-15, rtol=1e-15)
    t_off = t_hit + duration
    rebound = modal(np.cos(np.outer(i, free)), dispersion(free), weights, *contact(duration))

    def motion(t):
        t = np.asarray(t, float)
        q = np.repeat(height - speed * t[:, None], n + 1, axis=1)
        v = np.full(q.shape, -speed)
        for start, end, piece in ((t_hit, t_off, contact), (t_off, np.inf, rebound)):
            inside = (start <= t) & (t < end)
            q[inside], v[inside] = piece(t[inside] - start)
        return q, v

    return t_hit, t_off, motion


def _bar(n: int) -> Case:
    height, speed, density, modulus, length, t1 = 5.0, 10.0, 1.0, 900.0, 10.0, 2.0
    t_hit, _, exact = bar_bounce(n, height, speed, np.sqrt(modulus / density), length)
    masses = density * length / n * np.where(np.isin(np.arange(n + 1), (0, n)), 0.5, 1.0)
    q0, v0 = np.full(n + 1, height), np.full(n + 1, -speed)
    impulse = np.array([masses @ (exact(np.array([t1]))[1][0] - v0)])  # momentum: the wall is the only external force
    args = {"density": density, "modulus": modulus, "length": length}
    labels = ("paoli-schatzman", "paoli-schatzman-explicit", "maury")
    # velocities: until h is far below dx/c their error is the phase of the highest wave, between orders 1 and 2
    orders = dict.fromkeys(labels, Orders(position=2.0, velocity=None, impulse=2.0))
    note = f"semi-discrete, n = {n}; of the continuous bar: contact for 2/3, wall force 300, impulse 200"
    return Case(q0, v0, t1, 0.0, args, exact, impulse, np.array([t_hit]), orders, note)


BAR = Entry(
    id="B25",
    name="elastic-bar",
    title="Elastic bar dropped on a wall",
    statement="A bar of n linear elements with lumped mass falls from height 5 at speed 10, its lower end hits "
    "a rigid wall; q are the displacements of the n+1 nodes, q_0 >= 0; no gravity. args: density, modulus, length.",
    problem=Problem(_elastic, _wall, _mass, energy=_energy),
    cases={"n=20": _bar(20), "n=100": _bar(100)},
    hypotheses="One linear constraint, e = 0 (Paoli I, Bernicot-Lefebvre-Lepot, Adly-Thieu in the kinetic metric); "
    "stiff: h < dx/c for explicit forces.",
    source="Doyen, Ern and Piperno, SIAM J. Sci. Comput. 33 (2011) 223-249; semi-discrete motion by modal expansion.",
)


ENTRIES: tuple[Entry, ...] = (BAR,)
