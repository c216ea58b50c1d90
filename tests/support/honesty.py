"""How near a right result has to be: the exact motion's spread over data O(h) away, and tolerances from it.

A scheme of first order follows, by backward error analysis, an exact motion whose data are O(h) away.
So the tolerance is how far the exact motions go whose data are: positions off by h |v|, velocities by h |a|, forces by
h |da/dt| and walls by 2 h |v| (an impact of `PaoliSchatzman` is 2 h late), all at once and with random signs. Near
grazing, and where the order of impacts matters within h, those motions part by themselves: no exception has to be made.
A scheme of second order has h times that, for each rate of change of the acceleration; a derivative has the spread of
the exact derivatives over the same data.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .random_systems import SLOW, Excluded, Motion, System, whole_numbers

T1 = 1.0


STEPS = 200, 800
H = T1 / STEPS[1]
SHAKES = 6  # pairs of data O(h) away
DELTA = 1e-5  # of central differences; the motions they are taken of are located to 1e-11


class Exact(NamedTuple):
    """An event-located motion, and how far those from data O(h) away end from it, in position and velocity."""

    motion: Motion
    spread: np.ndarray


def moved(system: System, by: np.ndarray) -> System:
    """The system with q0, v0, e, push and offset changed by a vector, in this order."""
    d = system.q0.size
    q, v, e, push, offset = np.split(by, [d, 2 * d, 2 * d + 1, 3 * d + 1])
    args = system.args | {"push": system.args["push"] + push, "offset": system.args["offset"] + offset}
    return system._replace(q0=system.q0 + q, v0=system.v0 + v, e=system.e + float(e[0]), args=args)


def shakes(system: System, motion: Motion):
    """Changes of the data of order h, in pairs of opposite ones."""
    d, (speed, acceleration, change) = system.q0.size, motion.scale
    size = H * np.repeat([speed, acceleration, 0, change, 2 * speed], [d, d, 1, d, len(system.args["offset"])])
    rng = np.random.default_rng(system.seed)
    return [sign * size * signs for signs in rng.choice([-1, 1], (SHAKES, size.size)) for sign in (1, -1)]


def located(system: System, motion_of=Motion) -> Exact | str:
    """The exact motion of a system by a class of motions, and its spread; or why it has none."""
    try:
        motion = motion_of(system, T1)
        ends = [motion_of(moved(system, by), T1, 1e-6).x for by in shakes(system, motion)]
    except Excluded as reason:
        return str(reason)
    return Exact(motion, np.max(np.abs(ends - motion.x), axis=0).reshape(2, -1).max(axis=1))


def batch(systems: list[System]) -> dict:
    """Systems stacked into the arguments of `ensemble` and `sensitivities`."""
    args = [whole_numbers(system.args) for system in systems]
    stacked = {name: np.stack([one[name] for one in args]) for name in args[0]}
    data = {name: np.stack([np.asarray(getattr(s, name)) for s in systems]) for name in ("q0", "v0", "e")}
    return data | {"args": stacked, "args_axes": 0, "t1": T1, "progress": False}


def tolerances(name: str, found: Exact) -> np.ndarray:
    """Tolerances of position and velocity at the finer step."""
    _, acceleration, change = found.motion.scale
    if name == "event-corrected":
        # bounces slower than SLOW are left out, here
        rate = max(1 / T1, change / acceleration)
        slow = any(impact.speed < 10 * SLOW for impact in found.motion.impacts)
        # through an accumulation of impacts its velocity is of first order
        return H * rate * found.spread * np.array([1, 1 / (H * rate) if slow else 1]) + (4 * SLOW if slow else 1e-9)
    # velocities are those of the middle of a step
    return found.spread + np.array([0, H * acceleration])
