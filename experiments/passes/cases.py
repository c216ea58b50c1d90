"""Motions with impacts whose final state and Jacobian are known exactly: by a formula, or by `reference`.

    case = cases.get("dpend")
    q0, v0, e, args = case.start(case.theta)          # differentiable in theta, the vector of case.parameters
    case.exact().jacobian                             # d(q, v)(t1) / d(theta), (2d, p)
    steps, ends = case.phases(h=1e-3)                 # the same motion on eight slightly different grids

The start is smooth in theta and t1 is no impact time, so every Jacobian exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaximpact import Problem

from .reference import reference

PHASE = 0.53  # steps by which neighbouring grids differ at t1: irregular with respect to most t*/t1


class Exact(NamedTuple):
    """State (q, v) at the end (2d,) and its Jacobian (2d, p)."""

    state: np.ndarray
    jacobian: np.ndarray


@dataclass(frozen=True, eq=False)
class Case:
    """One motion and the parameters its final state is differentiated with respect to.

    ``parameters``: name -> value, the columns of the Jacobian in this order. ``position`` and ``velocity`` name those
    that make q0 and v0; "e" is the restitution; all others are the problem's args. ``formula(parameters, t)`` is the
    state (2d,) near t1, where it has a closed form. ``about`` says what the case tests, or where it is known from.
    """

    name: str
    about: str
    problem: Problem
    parameters: dict[str, float]
    t1: float
    position: tuple[str, ...]
    velocity: tuple[str, ...]
    formula: Callable | None = None

    @cached_property
    def theta(self) -> np.ndarray:
        """The parameters' values (p,)."""
        return np.array(list(self.parameters.values()))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the Jacobian's columns."""
        return tuple(self.parameters)

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of the Jacobian's rows."""
        d = len(self.position)
        return tuple(f"{x}{i}" for x in "qv" for i in range(1, d + 1)) if d > 1 else ("q", "v")

    def start(self, theta):
        """(q0, v0, e, args) from the vector of parameters: what `jaximpact.solve` is given."""
        values = dict(zip(self.parameters, theta, strict=True))
        q0, v0 = (jnp.stack([values[name] for name in names]) for names in (self.position, self.velocity))
        rest = {k: x for k, x in values.items() if k != "e" and k not in self.position + self.velocity}
        return q0, v0, values["e"], rest

    @property
    def e(self) -> float:
        return self.parameters["e"]

    @property
    def q0(self) -> np.ndarray:
        return np.array([self.parameters[name] for name in self.position])

    @property
    def v0(self) -> np.ndarray:
        return np.array([self.parameters[name] for name in self.velocity])

    @property
    def args(self) -> dict[str, float]:
        return {k: x for k, x in self.parameters.items() if k != "e" and k not in self.position + self.velocity}

    @cache  # noqa: B019 - the cases live as long as the module
    def exact(self, t1: float | None = None) -> Exact:
        """State and Jacobian at t1, the case's own by default; another must have the same impacts before it."""
        t1 = self.t1 if t1 is None else float(t1)
        if self.formula is None:
            return self.by_events(t1)
        state = lambda theta: jnp.stack(self.formula(dict(zip(self.parameters, theta, strict=True)), t1))
        theta = jnp.asarray(self.theta)
        return Exact(np.asarray(state(theta)), np.asarray(jax.jacfwd(state)(theta)))

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
        ``exact(end)``; the number of steps is one, so that all share one compilation.
        """
        steps = round(self.t1 / h)
        return steps, self.t1 * (1 + PHASE * np.arange(count) / steps)


def relative_error(jacobian, exact) -> float:
    """max |J - J_exact| / max |J_exact|; NaN where J has one."""
    exact = np.asarray(exact)
    return float(np.max(np.abs(np.asarray(jacobian) - exact)) / np.max(np.abs(exact)))


# problems -------------------------------------------------------------------------------------------------------------


def gravity(t, q, v, args):
    return -args["g"] * jnp.ones_like(q)


def floor(t, q, args):
    return q - args["wall"]


def free(t, q, v, args):
    return jnp.zeros_like(q)


def inside(t, q, args):
    return jnp.stack([(args["R"] ** 2 - q @ q) / (2 * args["R"])])


def drag_and_gravity(t, q, v, args):
    # |v| has no derivative at rest; no case comes to rest with drag
    down = jnp.stack([jnp.zeros_like(q[0]), jnp.ones_like(q[0])])
    return -args["g"] * down - args["c"] * v * jnp.sqrt(v @ v)


def fall_in_disc(t, q, v, args):
    return -args["g"] * jnp.stack([jnp.zeros_like(q[0]), jnp.ones_like(q[0])])


def pendulum_mass(q, args):
    c = ROD * args["m2"] * jnp.cos(q[0] - q[1])
    return jnp.stack([jnp.stack([1 + args["m2"], c]), jnp.stack([c, ROD**2 * args["m2"]])])


def pendulum_potential(q, args):
    return -args["g"] * ((1 + args["m2"]) * jnp.cos(q[0]) + ROD * args["m2"] * jnp.cos(q[1]))


def pendulum_wall(t, q, args):
    return jnp.stack([args["xw"] - jnp.sin(q[0]) - ROD * jnp.sin(q[1])])


ROD = 0.8  # length of the second rod; the first has length and mass 1

BALL = Problem(gravity, floor)
OSCILLATOR = Problem(lambda t, q, v, args: -args["w2"] * (q - args["qeq"]), floor)
TABLE = Problem(gravity, lambda t, q, args: q - args["A"] * jnp.sin(args["Om"] * t))
BILLIARD = Problem(drag_and_gravity, inside)
PENDULUM = Problem.from_potential(pendulum_potential, pendulum_wall, pendulum_mass)
SHAKEN = Problem(lambda t, q, v, args: (-args["g"] - args["B"] * jnp.sin(args["Om"] * t)) * jnp.ones_like(q), floor)
BOWL = Problem(fall_in_disc, inside)
HOP = Problem(lambda t, q, v, args: args["f"] * jnp.ones_like(q), floor)
CORNER = Problem(
    lambda t, q, v, args: -jnp.stack([args["gx"], args["gy"]]),
    lambda t, q, args: q - jnp.stack([args["wx"], args["wy"]]),
)
# the second coordinate is the integral of the first over time
INTEGRAL = Problem(lambda t, q, v, args: jnp.stack([-args["g"], v[0]]), lambda t, q, args: q[:1] - args["wall"])
DISC = Problem(free, lambda t, q, args: jnp.stack([jnp.sqrt(q @ q) - args["R"]]))
TWO_BALLS = Problem(free, lambda t, q, args: jnp.stack([q[1] - q[0] - 2 * args["r"]]))
WALL = Problem(free, floor)


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


def off_wall(p, t):
    late = t - (p["wall"] - p["y0"]) / p["v0"]
    return p["wall"] - p["e"] * p["v0"] * late, -p["e"] * p["v0"]


# the cases ------------------------------------------------------------------------------------------------------------

_BALL = {"position": ("y0",), "velocity": ("v0",)}
_POINT = {"position": ("x0", "y0"), "velocity": ("vx", "vy")}
_PENDULUM = {"position": ("p1", "p2"), "velocity": ("w1", "w2")}
_FALL = {"y0": 1.0, "v0": -1.3, "e": 0.7, "g": 9.81, "wall": 0.05}
_SWING = {"p1": 0.3, "p2": -0.6, "w1": 0.5, "w2": 1.0, "e": 0.6, "xw": 0.45, "g": 9.81, "m2": 0.7}
_DROP = {"y0": 1.0, "v0": 0.0, "e": 0.8, "g": 9.81, "wall": 0.0}

_ALL = (
    Case("grav1d", "a ball falls on a floor and bounces twice", BALL, _FALL, 1.3, **_BALL, formula=ball(2)),
    Case(
        "grav1d-once",
        "the same after one bounce: dv/dy0 = (1 + e) g/|v-|, which a plain derivative of the steps loses",
        BALL,
        _FALL,
        0.9,
        **_BALL,
        formula=ball(1),
    ),
    Case(
        "harm1d",
        "an oscillator against a wall, five bounces",
        OSCILLATOR,
        {"q0": 1.0, "v0": 0.2, "e": 0.8, "w2": 4.0, "wall": 0.1, "qeq": -0.5},
        4.7,
        ("q0",),
        ("v0",),
    ),
    Case(
        "moving1d",
        "a ball on a vibrating table, two bounces",
        TABLE,
        {"y0": 1.0, "v0": 0.3, "e": 0.6, "g": 3.0, "A": 0.1, "Om": 4.0},
        2.2,
        **_BALL,
    ),
    Case(
        "billiard",
        "a point in a disc, two bounces; the force is zero, its derivatives are not",
        BILLIARD,
        {"x0": 0.1, "y0": -0.2, "vx": 0.9, "vy": 0.5, "e": 1.0, "R": 1.0, "g": 0.0, "c": 0.0},
        3.6,
        **_POINT,
    ),
    Case("dpend", "the tip of a double pendulum hits a wall: M(q)", PENDULUM, _SWING, 1.5, **_PENDULUM),
    Case("dpend-plastic", "the same with e = 0", PENDULUM, _SWING | {"e": 0.0}, 1.5, **_PENDULUM),
    Case(
        "stick1d",
        "a body lands on a floor (e = 0), stays, and is lifted off",
        SHAKEN,
        {"y0": 0.5, "v0": 0.0, "e": 0.0, "g": 5.0, "B": 14.0, "Om": 2.0, "wall": 0.1},
        3.0,
        **_BALL,
    ),
    Case(
        "bowl",
        "a point drops into a bowl (e = 0) and slides along it",
        BOWL,
        {"x0": 0.4, "y0": 0.1, "vx": 0.3, "vy": 0.0, "e": 0.0, "R": 1.0, "g": 3.0},
        1.5,
        **_POINT,
    ),
    Case(
        "hop1d",
        "a body hits a floor (e = 0) and a force lifts it off at once",
        HOP,
        {"y0": 0.5, "v0": -2.0, "e": 0.0, "f": 3.0, "wall": 0.05},
        1.0,
        **_BALL,
        formula=hop,
    ),
    Case(
        "corner",
        "a point hits two perpendicular walls at the same instant, t = 0.6",
        CORNER,
        {"x0": 0.66, "y0": 0.6, "vx": -0.5, "vy": 0.2, "e": 0.7, "gx": 2.0, "gy": 4.0, "wx": 0.0, "wy": 0.0},
        1.0,
        **_POINT,
        formula=corner,
    ),
    Case(
        "zeno",
        "a ball comes to rest after infinitely many bounces; the second coordinate is the integral of its height",
        INTEGRAL,
        {"y0": 1.0, "s0": 0.0, "v0": 0.0, "e": 0.5, "g": 9.81, "wall": 0.1},
        2.0,
        ("y0", "s0"),
        ("v0", "y0"),
        zeno,
    ),
    Case("ball-e0.8", "the bouncing ball of many examples, one bounce", BALL, _DROP, 1.0, **_BALL, formula=ball(1)),
    Case("ball-e0.5", "the same, two bounces", BALL, _DROP | {"e": 0.5}, 1.0, **_BALL, formula=ball(2)),
    Case(
        "outside-disc",
        "a point bounces off a disc, e = 1, no force",
        DISC,
        {"x0": -2.0, "y0": 0.3, "vx": 1.3, "vy": 0.1, "e": 1.0, "R": 1.0},
        2.0,
        **_POINT,
    ),
    Case(
        "two-balls",
        "central impact of equal balls, e = 1: d(x2)/d(x1, x2, v1, v2) = (1, 0, t1, 0); nimblephysics issue 97",
        TWO_BALLS,
        {"x1": 0.0, "x2": 0.52, "v1": 1.0, "v2": 0.0, "e": 1.0, "r": 0.1},
        1.0,
        ("x1", "x2"),
        ("v1", "v2"),
        two_balls,
    ),
    Case(
        "off-wall",
        "a body bounces off a wall without force, e = 1: the slope of its last height is -1; brax issue 317",
        WALL,
        {"y0": 1.0, "v0": -2.0, "e": 1.0, "wall": 0.0},
        0.9,
        **_BALL,
        formula=off_wall,
    ),
)
CASES = {case.name: case for case in _ALL}


def get(name: str) -> Case:
    """The case of that name."""
    if name not in CASES:
        raise KeyError(f"no case {name!r}; there are {', '.join(CASES)}")
    return CASES[name]
