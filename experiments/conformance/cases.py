"""The cases of `jaximpact.conformance` with what tests ask besides: closed forms, other end times,
the event-driven `reference`.

    case = cases.get("dpend")
    case.exact_at(end).jacobian                       # of another end with the same impacts before it
    steps, ends = case.phases(h=1e-3)                 # the same motion on eight slightly different grids

The start is smooth in theta and t1 is no impact time, so every Jacobian exists. The numbers that the package ships are
made by `exact_numbers.py`, which shares nothing with what is here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaximpact import conformance
from jaximpact.conformance.cases import Exact, relative_error

from .reference import reference

__all__ = ["BALL", "CASES", "WALL", "Case", "bouncing", "get", "relative_error"]

PHASE = 0.53  # steps by which neighbouring grids differ at t1: irregular with respect to most t*/t1


@dataclass(frozen=True, eq=False)
class Case(conformance.Case):
    """A case, with its motion near t1."""

    @property
    def formula(self):
        """``formula(parameters, t)``, the state (2d,) near t1, where it has a closed form; else None."""
        return FORMULAS.get(self.name)

    @cache  # noqa: B019 - the cases live as long as the module
    def exact_at(self, t1: float | None = None) -> Exact:
        """State and Jacobian at t1, the case's own by default; another must have the same impacts before it."""
        t1 = self.t1 if t1 is None else float(t1)
        if self.formula is None:
            return self.by_events(t1)
        return Exact(*map(np.asarray, closed(self.formula, tuple(self.parameters), self.theta, t1)))

    def by_events(self, t1: float | None = None) -> Exact:
        """The same from `reference`, for every case."""
        t1 = self.t1 if t1 is None else float(t1)
        found = reference(self.problem, self.q0, self.v0, t1, self.args, self.e)
        # ravelling sorts args by name, as the reference does
        by_theta = jax.jacfwd(lambda theta: ravel_pytree(self.start(theta))[0])(jnp.asarray(self.theta))
        by_start = np.hstack([found.jacobian[name] for name in ("q0", "v0", "e", *sorted(self.args))])
        return Exact(np.concatenate([found.q, found.v]), by_start @ np.asarray(by_theta))

    def phases(self, h: float, count: int = 8) -> tuple[int, np.ndarray]:
        """A number of steps about t1/h, and ``count`` end times (count,) within 4 h of t1.

        `solve(..., t1=end, steps=steps)` of each end meets the impacts in another phase of its step, where the error of
        a derivative varies by its own size: compare medians over them. Each end has its own exact Jacobian,
        ``exact_at(end)``; the number of steps is one, so that all share one compilation.
        """
        steps = round(self.t1 / h)
        return steps, self.t1 * (1 + PHASE * np.arange(count) / steps)


@partial(jax.jit, static_argnums=(0, 1))
def closed(formula, names, theta, t1):
    """State and Jacobian by a formula."""
    state = lambda theta: jnp.stack(formula(dict(zip(names, theta, strict=True)), t1))
    return state(theta), jax.jacfwd(state)(theta)


# closed forms ---------------------------------------------------------------------------------------------------------


def bouncing(y, v, e, g, wall, t, bounces: int):
    """Height and velocity at t of a ball under gravity, after so many bounces."""
    for _ in range(bounces):
        speed = jnp.sqrt(v**2 + 2 * g * (y - wall))
        t, y, v = t - (v + speed) / g, wall, e * speed
    return y + v * t - 0.5 * g * t**2, v - g * t


def ball(bounces: int):
    return lambda p, t: bouncing(p["y0"], p["v0"], p["e"], p["g"], p["wall"], t, bounces)


def hop(p, t):
    # a plastic impact, and the force at once lifts the body off; for e > 0 the same with speed e v
    speed = jnp.sqrt(p["v0"] ** 2 - 2 * p["f"] * (p["y0"] - p["wall"]))
    left = t - (-p["v0"] - speed) / p["f"]
    return p["wall"] + p["e"] * speed * left + 0.5 * p["f"] * left**2, p["e"] * speed + p["f"] * left


def corner(p, t):
    x, vx = bouncing(p["x0"], p["vx"], p["e"], p["gx"], p["wx"], t, 1)
    y, vy = bouncing(p["y0"], p["vy"], p["e"], p["gy"], p["wy"], t, 1)
    return x, y, vx, vy


def zeno(p, t):
    """After all bounces: the ball rests; flights of speed u enclose the area 2 u^3/(3 g^2) above the floor."""
    e, g, v, height = p["e"], p["g"], p["v0"], p["y0"] - p["wall"]
    speed = jnp.sqrt(v**2 + 2 * g * height)
    fall = (v + speed) / g
    area = height * fall + v * fall**2 / 2 - g * fall**3 / 6 + 2 * speed**3 / (3 * g**2) * e**3 / (1 - e**3)
    return p["wall"], p["s0"] + area + p["wall"] * t, 0 * p["wall"], p["wall"]


def two_balls(p, t):
    closing = p["v1"] - p["v2"]
    late = t - (p["x2"] - p["x1"] - 2 * p["r"]) / closing
    jump = 0.5 * (1 + p["e"]) * closing
    v1, v2 = p["v1"] - jump, p["v2"] + jump
    return p["x1"] + p["v1"] * t - jump * late, p["x2"] + p["v2"] * t + jump * late, v1, v2


def struck(p, t):
    """The wall w0 + c t meets the body; Newton's law in the frame of the wall gives it (1 + e) c - e v0."""
    hit, speed = (p["y0"] - p["w0"]) / (p["c"] - p["v0"]), p["c"] + p["e"] * (p["c"] - p["v0"])
    return p["y0"] + p["v0"] * hit + speed * (t - hit), speed


def unit_flight(p, t):
    late = t - (p["wall"] - p["y0"]) / p["v0"]
    return p["wall"] - p["e"] * p["v0"] * late, -p["e"] * p["v0"]


def lift(p, t):
    """From rest on the floor, released when the force k t - g is zero."""
    late = t - p["g"] / p["k"]
    return p["wall"] + p["k"] * late**3 / 6, p["k"] * late**2 / 2


def polar(p, t):
    """A straight line, reflected at x = wall, in polar coordinates."""
    x, y = p["r0"] * jnp.cos(p["a0"]), p["r0"] * jnp.sin(p["a0"])
    vx = p["vr"] * jnp.cos(p["a0"]) - p["r0"] * p["va"] * jnp.sin(p["a0"])
    vy = p["vr"] * jnp.sin(p["a0"]) + p["r0"] * p["va"] * jnp.cos(p["a0"])
    y = y + vy * t
    x, vx = p["wall"] - p["e"] * vx * (t - (p["wall"] - x) / vx), -p["e"] * vx
    r = jnp.sqrt(x**2 + y**2)
    return r, jnp.arctan2(y, x), (x * vx + y * vy) / r, (x * vy - y * vx) / r**2


def oblique_corner(p, t):
    """In s1 = q1, s2 = q1/2 + q2, which M makes orthogonal, two balls; M^-1 = ((1, -1/2), (-1/2, 2)) / 1.75."""
    a1, a2 = (p["fx"] - 0.5 * p["fy"]) / 1.75, (-0.5 * p["fx"] + 2 * p["fy"]) / 1.75
    s1, w1 = bouncing(p["x0"], p["vx"], p["e"], a1, p["w1"], t, 1)
    s2, w2 = bouncing(0.5 * p["x0"] + p["y0"], 0.5 * p["vx"] + p["vy"], p["e"], 0.5 * a1 + a2, p["w2"], t, 1)
    return s1, s2 - 0.5 * s1, w1, w2 - 0.5 * w1


def late(p, t):
    y, vy = bouncing(p["y0"], p["vy"], p["e"], p["g"], 0.0, t, 1)
    x, vx = unit_flight({"y0": p["x0"], "v0": p["vx"], "e": p["e"], "wall": p["wall"]}, t)
    return y, x, vy, vx


def off_wall(p, t):
    late = t - (p["wall"] - p["y0"]) / p["v0"]
    return p["wall"] - p["e"] * p["v0"] * late, -p["e"] * p["v0"]


FORMULAS = {
    "grav1d": ball(2), "grav1d-once": ball(1), "ball-e0.8": ball(1), "ball-e0.5": ball(2), "hop1d": hop,
    "corner": corner,
    "zeno": zeno, "two-balls": two_balls, "off-wall": off_wall, "struck": struck, "unit-flight": unit_flight,
    "lift": lift, "zeno-lift": lift, "polar": polar, "oblique-corner": oblique_corner, "late": late,
}  # fmt: skip
CASES = {
    name: Case(**{field.name: getattr(case, field.name) for field in fields(case)})
    for name, case in conformance.cases().items()
}


def get(name: str) -> Case:
    """The case of that name."""
    if name not in CASES:
        raise KeyError(f"no case {name!r}; there are {', '.join(CASES)}")
    return CASES[name]


BALL, WALL = get("grav1d").problem, get("off-wall").problem
