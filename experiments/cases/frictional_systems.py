"""Systems with Coulomb friction or joints, and motions of theirs that share nothing with the library's schemes.

A motion is stated as its course: what every contact does, one after the other, and the event that ends it. Between
events the equations of motion are solved for accelerations and forces, and integrated by Runge-Kutta's method of order
4 in some thousand steps; an event's time is a root to rounding, and a step of Newton's method from it carries the
derivative by the implicit function theorem. States are known to about 1e-11, Jacobians to 1e-10.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq

import jaximpact as ji

G = 9.81
STEP = 5e-4  # of Runge-Kutta's method, or less [s]

# a piece of a course: modes of all contacts, a letter each, and the event that ends it. Modes: "o" open, "s" sticks,
# "+" and "-" slips that way, "d" slips in space
IMPACT = "impact"  # as an event: the piece has no length, its modes are those of the impact
Piece = tuple[str, str]


class System(NamedTuple):
    """A problem with args = numbers p, start(p) = (q0, v0), and the state (2d,) at t1 as a function of p, whose
    derivatives by the numbers ``by`` are known, all by default."""

    problem: ji.Problem
    p: dict[str, float]
    start: Callable[[Any], Any]
    t1: float
    exact: Callable[[Any], Any]
    e: Callable[[Any], Any] = lambda p: jnp.zeros(())
    by: tuple[str, ...] = ()


class Course:
    """State at t1 by the pieces of a course; events are "gap", "slip", "force" or "cone" of a contact, as in "slip 0";
    "" is the end."""

    def __init__(self, problem: ji.Problem, start: Callable, t1: float, pieces: list[Piece]):
        self.problem, self.start, self.t1, self.pieces = problem, start, t1, pieces

    def __call__(self, p):
        """The state, a function of p that can be differentiated at the values given."""
        known = {name: jnp.asarray(float(x)) for name, x in p.items()}
        lengths = self.located(known)
        return self.state(p, lengths)

    # the equations of motion

    def equations(self, t, q, v, p, modes):
        """Rows (r, d) that are held, their accelerations (r,) at constant velocity, and directions (r, d) along which
        forces act, friction included."""
        gap, slip = (lambda t, q: self.problem.constraints(t, q, p)), self.problem.slip
        one = jnp.ones(())
        held, bias, acts = [], [], []
        if self.problem.joints is not None:
            joints = lambda t, q: self.problem.joints(t, q, p)
            rows = jax.jacfwd(joints, argnums=1)(t, q)
            held, bias, acts = [rows], [second(joints, t, q, v)], [rows]
        if any(mode != "o" for mode in modes):
            normal, bend = jax.jacfwd(gap, argnums=1)(t, q), second(gap, t, q, v)
            along = jax.jacfwd(lambda v: jnp.reshape(slip(t, q, v, p), (len(modes), -1)))(v)
            swerve = jax.jvp(lambda t, q: jnp.reshape(slip(t, q, v, p), (len(modes), -1)), (t, q), (one, v))[1]
            ways = jnp.reshape(slip(t, q, v, p), (len(modes), -1))
            mu = jnp.broadcast_to(self.problem.friction(p), (len(modes),))
        for c, mode in enumerate(modes):
            if mode == "o":
                continue
            way = {"s": 0 * ways[c], "+": jnp.ones(1), "-": -jnp.ones(1)}.get(mode)
            way = ways[c] / jnp.linalg.norm(ways[c]) if way is None else way
            held, bias = [*held, normal[c : c + 1]], [*bias, bend[c : c + 1]]
            acts = [*acts, (normal[c] - mu[c] * way @ along[c])[None]]
            if mode == "s":
                held, bias, acts = [*held, along[c]], [*bias, swerve[c]], [*acts, along[c]]
        joined = lambda x, empty: jnp.concatenate(x) if x else jnp.zeros(empty)
        return joined(held, (0, len(q))), joined(bias, 0), joined(acts, (0, len(q)))

    def accelerations(self, t, q, v, p, modes):
        """Acceleration (d,) and forces (r,)."""
        inertia, force = self.inertia(q, p), self.problem.force(t, q, v, p)
        held, bias, acts = self.equations(t, q, v, p, modes)
        response = jnp.linalg.solve(inertia, acts.T)
        free = jnp.linalg.solve(inertia, force)
        push = jnp.linalg.solve(held @ response, -bias - held @ free)
        return free + response @ push, push

    def inertia(self, q, p):
        mass = jnp.ones(len(q)) if self.problem.mass is None else self.problem.mass(q, p)
        return jnp.diag(mass) if jnp.ndim(mass) == 1 else mass

    def struck(self, t, q, v, p, modes):
        """The velocity behind a plastic impact, in whose slip directions friction acts."""
        held, _, acts = self.equations(t, q, v, p, modes)
        own = [] if self.problem.joints is None else [jax.jvp(lambda t: self.problem.joints(t, q, p), (t,), (1.0,))[1]]
        for c, mode in enumerate(modes):
            if mode != "o":
                rate = jax.jvp(lambda t, c=c: self.problem.constraints(t, q, p)[c : c + 1], (t,), (1.0,))[1]
                own = [*own, rate, *([self.problem.slip(t, q, 0 * v, p)[c : c + 1]] if mode == "s" else [])]
        response = jnp.linalg.solve(self.inertia(q, p), acts.T)
        return v + response @ jnp.linalg.solve(held @ response, -held @ v - jnp.concatenate(own))

    # events

    def event(self, what, t, q, v, p, modes):
        """What vanishes at an event."""
        kind, c = what.split()
        c = int(c)
        if kind == "gap":
            return self.problem.constraints(t, q, p)[c]
        if kind == "slip":
            return self.problem.slip(t, q, v, p)[c]
        _, push = self.accelerations(t, q, v, p, modes)
        joints = 0 if self.problem.joints is None else len(self.problem.joints(t, q, p))
        at = joints + sum({"o": 0, "s": 2}.get(mode, 1) for mode in modes[:c])
        if kind == "force":
            return push[at]
        return jnp.abs(push[at + 1]) - self.problem.friction(p) * push[at]

    def walk(self, modes, t, q, v, p, length):
        """Time and state after a piece."""
        count = int(np.ceil(self.t1 / STEP))
        h = length / count
        slope = lambda t, q, v: (v, self.accelerations(t, q, v, p, modes)[0])

        def step(i, y):
            t, q, v = y
            a = slope(t, q, v)
            b = slope(t + h / 2, q + h / 2 * a[0], v + h / 2 * a[1])
            c = slope(t + h / 2, q + h / 2 * b[0], v + h / 2 * b[1])
            d = slope(t + h, q + h * c[0], v + h * c[1])
            mean = [h / 6 * (x + 2 * y + 2 * z + w) for x, y, z, w in zip(a, b, c, d, strict=True)]
            return t + h, q + mean[0], v + mean[1]

        return jax.lax.fori_loop(0, count, step, (t, q, v))

    @partial(jax.jit, static_argnums=(0, 1))
    def margin(self, piece, t, q, v, p, length):
        """What is left to the event of a piece that is so long."""
        modes, what = piece
        return self.event(what, *self.walk(modes, t, q, v, p, length), p, modes)

    @partial(jax.jit, static_argnums=(0, 1))
    def end(self, piece, t, q, v, p, length):
        """Time and state behind a piece, a step of Newton's method from its length at the event."""
        modes, what = piece
        if what == IMPACT:
            return t, q, self.struck(t, q, v, p, modes)
        if not what:
            return self.walk(modes, t, q, v, p, self.t1 - t)
        here = jax.lax.stop_gradient((t, q, v, p))
        rate = jax.jvp(lambda s: self.margin(piece, *here, s), (length,), (jnp.ones(()),))[1]
        return self.walk(modes, t, q, v, p, length - self.margin(piece, t, q, v, p, length) / rate)

    def begin(self, p):
        q, v = self.start(p)
        return jnp.zeros(()), q, v

    def located(self, p):
        """Lengths of all pieces that an event ends, else 0."""
        y, found = self.begin(p), []
        for piece in self.pieces:
            length = 0.0
            if piece[1] not in ("", IMPACT):
                left = lambda s, y=y, piece=piece: float(self.margin(piece, *y, p, s))
                times = np.linspace(0, self.t1 - float(y[0]), 65)[1:]
                signs = np.sign([left(s) for s in times])
                first = int(np.flatnonzero(signs[1:] != signs[:-1])[0])
                length = brentq(left, times[first], times[first + 1], xtol=1e-15, rtol=4e-15)
            found.append(length)
            y = self.end(piece, *y, p, length)
        return found

    def state(self, p, lengths):
        """State at t1."""
        y = self.begin(p)
        for piece, length in zip(self.pieces, lengths, strict=True):
            y = self.end(piece, *y, p, length)
        return jnp.concatenate(y[1:])


def second(function, t, q, v):
    """Second derivative of function(t, q) in time at constant velocity."""
    rate = lambda t, q: jax.jvp(function, (t, q), (jnp.ones(()), v))[1]
    return jax.jvp(rate, (t, q), (jnp.ones(()), v))[1]


def by_course(problem: ji.Problem, p: dict[str, float], start: Callable, t1: float, *pieces: Piece) -> System:
    return System(problem, p, start, t1, Course(problem, start, t1, list(pieces)))


def polar(angle):
    """Unit vectors along an angle and across it."""
    s, c = jnp.sin(angle), jnp.cos(angle)
    return jnp.stack([c, s]), jnp.stack([-s, c])


def down(t, q, v, p):
    """Gravity on x, y, and an angle if there is one."""
    return jnp.stack([0 * p["g"], -p["g"], 0 * p["g"]])[: len(q)]


def downhill(t, q, v, p):
    """In a frame whose x goes up a slope."""
    return p["g"] * jnp.stack([-jnp.sin(p["slope"]), -jnp.cos(p["slope"]), 0 * p["slope"]])[: len(q)]


def of_mass_one(inertia):
    return lambda q, p: jnp.stack([1.0 + 0 * p["g"], 1.0 + 0 * p["g"], inertia(p) + 0 * p["g"]])


# a block on a table that is shaken along x
SHAKEN = ji.Problem(
    down,
    lambda t, q, p: q[1:],
    slip=lambda t, q, v, p: v[:1] - p["reach"] * p["w"] * jnp.cos(p["w"] * t),
    friction=lambda p: p["mu"],
)

# a disk on a slope
RADIUS = 0.2
ROLLING = ji.Problem(
    downhill,
    lambda t, q, p: q[1:2] - RADIUS,
    of_mass_one(lambda p: RADIUS**2 / 2),
    slip=lambda t, q, v, p: v[:1] + RADIUS * v[2:],
    friction=lambda p: p["mu"],
)


# a ladder of half length l between floor and wall: foot at centre - l u, top at centre + l u, u = (-cos, sin) of its
# angle with the floor


def ladder_slips(t, q, v, p):
    s, c = jnp.sin(q[2]), jnp.cos(q[2])
    return jnp.stack([v[0] - p["l"] * s * v[2], v[1] + p["l"] * c * v[2]])


LADDER = ji.Problem(
    down,
    lambda t, q, p: jnp.stack([q[1] - p["l"] * jnp.sin(q[2]), q[0] - p["l"] * jnp.cos(q[2])]),
    of_mass_one(lambda p: p["l"] ** 2 / 3),
    slip=ladder_slips,
    friction=lambda p: jnp.stack([p["mu_floor"], p["mu_wall"]]),
)


def leaning(p):
    along, across = polar(p["angle"])
    return jnp.append(p["l"] * along, p["angle"]), jnp.append(p["l"] * p["w"] * across, p["w"])


# a block that is thrown across a slope in space
ACROSS = ji.Problem(
    lambda t, q, v, p: p["g"] * jnp.stack([0 * p["slope"], -jnp.sin(p["slope"]), -jnp.cos(p["slope"])]),
    lambda t, q, p: q[2:],
    slip=lambda t, q, v, p: v[None, :2],
    friction=lambda p: p["mu"],
)


# pendulums in Cartesian coordinates, held by rods; angles from the vertical
def hanging(*lengths):
    """Joints of a chain of pendulums whose lengths are named so."""

    def joints(t, q, p):
        links = jnp.diff(jnp.reshape(q, (-1, 2)), axis=0, prepend=0)
        return 0.5 * jnp.stack([link @ link - p[name] ** 2 for link, name in zip(links, lengths, strict=True)])

    return joints


def hung(lengths, angles, rates):
    def start(p):
        q = v = jnp.zeros(2)
        found = []
        for length, angle, rate in zip(lengths, angles, rates, strict=True):
            along, across = polar(p[angle] - jnp.pi / 2)
            q, v = q + p[length] * along, v + p[length] * p[rate] * across
            found.append((q, v))
        return tuple(map(jnp.concatenate, zip(*found, strict=True)))

    return start


PENDULUM = ji.Problem(down, joints=hanging("l"))
DOUBLE = ji.Problem(
    lambda t, q, v, p: -p["g"] * jnp.stack([0 * p["m"], 1 + 0 * p["m"], 0 * p["m"], p["m"]]),
    mass=lambda q, p: jnp.stack([1 + 0 * p["m"], 1 + 0 * p["m"], p["m"], p["m"]]),
    joints=hanging("l1", "l2"),
)

# a crank of radius .4 that a torque turns, a coupler of length 1 without mass, and a slider that has play in its guide;
# q = crank angle, slider (x, y)
CRANK = 0.4
SLIDER = ji.Problem(
    lambda t, q, v, p: jnp.stack([p["torque"], 0 * p["torque"], -p["m"] * p["g"]]),
    lambda t, q, p: jnp.stack([p["play"] + q[2], p["play"] - q[2]]),
    lambda q, p: jnp.stack([p["I"], p["m"], p["m"]]),
    joints=lambda t, q, p: 0.5 * (jnp.sum((q[1:] - CRANK * polar(q[0])[0]) ** 2) - 1)[None],
    slip=lambda t, q, v, p: jnp.stack([v[1], v[1]]),
    friction=lambda p: jnp.stack([p["mu"], p["mu"]]),
)


def cranked(p):
    """The slider starts at .3 of the play above the middle, without a velocity across its guide."""
    (pin, across), y = polar(p["angle"]), 0.3 * p["play"]
    pin, rate = CRANK * pin, CRANK * p["w"] * across
    reach = jnp.sqrt(1 - (y - pin[1]) ** 2)
    speed = rate[0] + (y - pin[1]) * rate[1] / reach
    return jnp.stack([p["angle"], pin[0] + reach, y]), jnp.stack([p["w"], speed, 0 * y])


# a block of width 2 b and height 2 h on two feet


def feet(q, p):
    """Places (2, 2) of the left and the right foot."""
    along, across = polar(q[2])
    return (q[:2] - p["h"] * across)[None] + jnp.stack([-1.0, 1.0])[:, None] * p["b"] * along[None]


ROCKING = ji.Problem(
    down,
    lambda t, q, p: feet(q, p)[:, 1],
    of_mass_one(lambda p: (p["b"] ** 2 + p["h"] ** 2) / 3),
    slip=lambda t, q, v, p: jax.jvp(lambda q: feet(q, p)[:, 0], (q,), (v,))[1],
    friction=lambda p: jnp.stack([p["mu"], p["mu"]]),
)


def tilted(p):
    """On its left foot, which stands at the origin."""
    angle = jnp.stack([0 * p["angle"], 0 * p["angle"], p["angle"]])
    return jnp.append(-feet(angle, p)[0], p["angle"]), 0 * angle


# a rod of half length 1 whose lower end slides on a floor, beyond Painleve's bound


def end_of_rod(q):
    along, _ = polar(q[2])
    return q[:2] - along


ROD = ji.Problem(
    down,
    lambda t, q, p: end_of_rod(q)[1:],
    of_mass_one(lambda p: 1 / 3),
    slip=lambda t, q, v, p: jax.jvp(end_of_rod, (q,), (v,))[1][:1],
    friction=lambda p: p["mu"],
)


def on_its_end(p):
    along, across = polar(p["angle"])
    return jnp.stack([0 * p["v"], along[1], p["angle"]]), jnp.stack([p["v"], across[1] * p["w"], p["w"]])


def slides_and_sticks(times):
    """A table that shakes: the block sticks, breaks away, slides one way and the other."""
    ways = "+-" * times
    course = [piece for way in ways[:times] for piece in (("s", "cone 0"), (way, "slip 0"))]
    return [*course, ("s", "")]


STACKED = lambda *x: jnp.stack(list(x))
SYSTEMS = {
    "sticks to a shaken table, and slides": by_course(
        SHAKEN, {"x": 0.0, "reach": 0.1, "w": 7.0, "mu": 0.35, "g": G},
        lambda p: (STACKED(p["x"], 0 * p["x"]), STACKED(p["reach"] * p["w"], 0 * p["x"])), 2.3, *slides_and_sticks(5),
    ),
    "slips down a slope until it rolls": by_course(
        ROLLING, {"v": 2.0, "w": 0.0, "mu": 0.35, "slope": 0.4, "g": G},
        lambda p: (STACKED(0 * p["v"], RADIUS + 0 * p["v"], 0 * p["v"]), STACKED(-p["v"], 0 * p["v"], p["w"])), 1.0,
        ("-", "slip 0"), ("s", ""),
    ),
    "ladder that leaves its wall": by_course(
        LADDER, {"angle": 1.0, "w": -0.3, "mu_floor": 0.2, "mu_wall": 0.15, "g": G, "l": 1.0}, leaning, 0.6,
        ("+-", "force 1"), ("+o", ""),
    ),
    "thrown across a slope in space": by_course(
        ACROSS, {"vx": 1.0, "vy": 0.4, "mu": 0.35, "slope": 0.5, "g": G},
        lambda p: (jnp.zeros(3), STACKED(p["vx"], p["vy"], 0 * p["vx"])), 1.2, ("d", ""),
    ),
    "pendulum by a joint": by_course(
        PENDULUM, {"angle": 1.2, "w": 0.5, "l": 0.9, "g": G}, hung(["l"], ["angle"], ["w"]), 2.0, ("", ""),
    ),
    "double pendulum by two joints": by_course(
        DOUBLE, {"a1": 0.9, "a2": -0.4, "w1": 0.3, "w2": 1.0, "l1": 1.0, "l2": 0.8, "m": 0.7, "g": G},
        hung(["l1", "l2"], ["a1", "a2"], ["w1", "w2"]), 1.5, ("", ""),
    ),
    "slider-crank with play": by_course(
        SLIDER, {"angle": 0.4, "w": 5.0, "I": 0.3, "m": 0.5, "torque": 0.5, "play": 0.02, "mu": 0.15, "g": G}, cranked,
        0.8, ("oo", "gap 0"), ("-o", IMPACT), ("-o", "slip 0"), ("+o", ""),
    ),
    "block that rocks": by_course(
        ROCKING, {"angle": 0.12, "b": 0.2, "h": 0.8, "mu": 0.7, "g": G}, tilted, 1.1, ("so", "gap 1"), ("os", IMPACT),
        ("os", ""),
    ),
    "Painleve's rod": by_course(
        ROD, {"angle": 1.0, "v": -3.0, "w": 0.5, "mu": 1.8, "g": G}, on_its_end, 0.3, ("s", IMPACT), ("s", ""),
    ),
}  # fmt: skip
