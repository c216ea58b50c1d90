"""Random systems of pieces: straight walls with kinks, forces that jump, masses far apart, many impacts.

As in `random_systems` they are one problem, and all that is random is a number in its args. Between its events every
motion is a parabola, so the exact ones are put together of roots of quadratic equations, without jax and jaximpact.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import jaximpact as ji

from .random_systems import Excluded, System, complementary, real

TOUCH = 1e-10  # of a gap
SLOW = 1e-8  # rebounds below are none: a hundredth of what is asked of `EventDriven`
FAR = 50.0  # from a wall that is not there
KINDS = "moving walls with kinks", "terrain with kinks", "forces that jump", "masses far apart", "many impacts"
FLOATING = "push", "offset", "when", "switch", "place"  # coefficients to differentiate by
NODES = 5  # of tables


def mass(q, args):
    return jnp.diag(jnp.exp(real(args)["heavy"]))


def force(t, q, v, args):
    args = real(args)
    push = args["push"] + jnp.where(t > args["switch"], args["later"], jnp.zeros(2))
    push = push + jnp.where(q[1] > args["place"], args["beyond"], jnp.zeros(2))
    return push - args["friction"] * jnp.sign(v[0]) * jnp.array([1.0, 0.0])


def gaps(t, q, args):
    args = real(args)
    wall, ground = jnp.interp(t, args["when"], args["height"]), jnp.interp(q[0], args["where"], args["ground"])
    return args["offset"] + args["normal"] @ q - args["moves"] * wall - args["bends"] * ground


PROBLEM = ji.Problem(force, gaps, mass)


def draw(kind: int, seed: int) -> System:
    """Random system for a seed, of one of KINDS, with all walls open at the start."""
    rng = np.random.default_rng([seed, 10 + kind])
    normal, uniform = rng.standard_normal, rng.uniform
    law = rng.random()
    e = 0.0 if law < 0.35 else 1.0 if law < 0.45 else uniform(0.1, 0.95)
    flat = np.array([[0.0, 1.0], [1.0, uniform(-0.5, 0.5)], [-1.0, uniform(-0.5, 0.5)]])
    here = np.array([True, rng.random() < 0.5, rng.random() < 0.3])
    none = np.zeros(NODES)
    whole = {
        "heavy": uniform(-0.5, 0.5, 2),
        "later": np.zeros(2),
        "beyond": np.zeros(2),
        "friction": 0.0,
        "height": none,
        "where": np.linspace(-60, 60, NODES),
        "ground": none,
        "normal": flat,
        "moves": np.zeros(3),
        "bends": np.zeros(3),
    }
    args = {"when": np.linspace(-9, 9, NODES), "switch": 9.0, "place": 40.0}
    args["push"] = np.array([normal(), -uniform(3, 10)])
    q0, v0 = 0.3 * normal(2), np.array([normal(), -uniform(0, 2)])
    room = uniform(0.05, 0.5, 3)
    if kind == 0:
        args["when"] = np.array([-1.0, *np.sort(uniform(0.05, 0.95, NODES - 2)), 2.0])
        whole["height"] = np.cumsum([0, *(np.diff(args["when"]) * uniform(-2, 2, NODES - 1))])
        whole["moves"] = np.array([1.0, rng.choice([0.0, 0.5]), 0])
    elif kind == 1:
        whole["where"] = np.array([-20.0, *(q0[0] + np.sort(uniform(-1, 1, NODES - 2))), 20.0])
        whole["ground"] = np.cumsum([0, *(np.diff(whole["where"]) * uniform(-1, 1, NODES - 1))])
        whole["bends"] = np.array([1.0, 0, 0])
        here[1:] = False
    elif kind == 2:
        which = rng.integers(1, 8)
        if which & 1:
            args["switch"], whole["later"] = uniform(0.1, 0.9), 5 * normal(2)
        if which & 2:
            args["place"], whole["beyond"] = q0[1] + uniform(-0.4, 0.1), np.array([3 * normal(), uniform(-8, 8)])
        if which & 4:
            whole["friction"] = uniform(0.5, 4)
    elif kind == 3:
        whole["heavy"] = np.array([0.0, uniform(0, np.log(1e8))])
        args["push"] = np.zeros(2) if rng.random() < 0.6 else -uniform(1, 10) * np.exp(whole["heavy"])
        whole["normal"] = np.array([[1.0, 0.0], [-1.0, 1.0], [0.0, -1.0]])
        q0, v0, room = np.array([0.5, 1.0]), np.array([normal(), -uniform(0.2, 2)]), np.array([0.5, 0.5, 0.5])
        here = np.array([True, True, rng.random() < 0.5])
        e = 1.0 if law < 0.5 else e
    else:
        whole["normal"] = np.array([[0.0, 1.0], [0.0, -1.0], [1.0, 0.0]])
        here, e = np.array([True, True, rng.random() < 0.5]), 1.0 if law < 0.5 else uniform(0.9, 1)
        args["push"] = normal(2)
        room, v0 = uniform(0.02, 0.1, 3), np.array([normal(), rng.choice([-1, 1]) * uniform(0.3, 3)])
    unit = 2.0**-40
    args |= {name: np.rint(x / unit) * unit for name, x in whole.items()}
    ground = np.interp(q0[0], args["where"], args["ground"])
    wall = np.interp(0.0, args["when"], args["height"])
    start = args["normal"] @ q0 - args["moves"] * wall - args["bends"] * ground
    args["offset"] = np.where(here, room, FAR) - start
    return System(seed, q0, v0, e, {name: np.asarray(x, float) for name, x in args.items()})


def first_below(c: float, b: float, a: float) -> float:
    """First time at which c + b s + a s^2/2 falls below 0; c >= 0 up to round-off."""
    if c <= TOUCH / 100:
        return 0.0 if b < 0 else -2 * b / a if a < 0 else np.inf
    if a == 0:
        return -c / b if b < 0 else np.inf
    inside = b * b - 2 * a * c
    if inside < 0 or (b >= 0 and a > 0):
        return np.inf
    return (b + np.sqrt(inside)) / -a if b > 0 else 2 * c / (np.sqrt(inside) - b)


class Motion:
    """Exact motion, from event to event; ``impacts``: their number; ``scale``: the largest |v| and |a|,
    walls included."""

    def __init__(self, system: System, t1: float, most: int = 400):
        self.a, self.e, self.t = system.args, system.e, 0.0
        self.here = np.abs(self.a["offset"]) < FAR / 2
        self.q, self.v = system.q0.copy(), system.v0.copy()
        self.impacts, self.last, self.scale = 0, -1.0, np.zeros(2)
        self.heavy = np.exp(self.a["heavy"])
        self.held = np.zeros(len(self.here), bool)
        self.when = int(np.searchsorted(self.a["when"], 0.0)) - 1
        self.where = int(np.searchsorted(self.a["where"], self.q[0])) - 1
        self.late, self.beyond = self.a["switch"] < 0, self.q[1] > self.a["place"]
        self.way = np.sign(self.v[0])  # of friction; 0 where it holds
        for _ in range(6 * most):
            self.settle(most)
            if self.t >= t1:
                self.x = np.concatenate([self.q, self.v])
                return
            self.advance(t1)
        raise Excluded("accumulating: too many events")

    def contacts(self):
        """Gaps, their rates, and gradients, in the present piece."""
        a, i, j = self.a, self.when, self.where
        speed = (a["height"][i + 1] - a["height"][i]) / (a["when"][i + 1] - a["when"][i])
        slope = (a["ground"][j + 1] - a["ground"][j]) / (a["where"][j + 1] - a["where"][j])
        wall, ground = (
            a["height"][i] + speed * (self.t - a["when"][i]),
            a["ground"][j] + slope * (self.q[0] - a["where"][j]),
        )
        gradient = a["normal"] - np.outer(a["bends"], [slope, 0.0])
        gap = a["offset"] + a["normal"] @ self.q - a["moves"] * wall - a["bends"] * ground
        gap, rate = np.where(self.here, gap, FAR), gradient @ self.v - a["moves"] * speed
        self.scale[0] = max(self.scale[0], np.max(np.abs(self.v)), abs(speed) * np.max(a["moves"]))
        return gap, rate, gradient

    def settle(self, most: int):
        """Applies all impacts at this time, then finds the lasting contacts and the acceleration."""
        for _ in range(20):
            gap, rate, gradient = self.contacts()
            closed = gap < TOUCH
            if np.any(gap < -1e-8):
                raise Excluded("lost")
            strikes = closed & (rate < -1e-9)
            if not strikes.any():
                break
            self.strike(strikes, closed, rate, gradient)
            if self.impacts > most:
                raise Excluded("accumulating: too many impacts")
        else:
            raise Excluded("a corner")
        self.held = closed & (rate < 2 * SLOW)
        push = self.a["push"] + self.late * self.a["later"] + self.beyond * self.a["beyond"]
        friction = self.a["friction"]
        ways = [self.way] if friction == 0 or self.way else [1.0, -1.0, 0.0]
        for way in ways:
            inverse = 1 / self.heavy
            if friction and way == 0:
                inverse = inverse * np.array([0.0, 1.0])
            free = inverse * (push - np.array([friction * way, 0.0]))
            response = inverse[:, None] * gradient.T
            reaction = complementary(gradient @ response, gradient @ free, self.held)
            acceleration = free + response @ reaction
            if way == 0 or self.way or acceleration[0] * way > 0:
                break
        self.way, self.acceleration = way, acceleration
        self.held &= gradient @ acceleration < 1e-9
        self.scale[1] = max(self.scale[1], np.max(np.abs(acceleration)))

    def strike(self, strikes, closed, rate, gradient):
        response = gradient.T / self.heavy[:, None]
        delassus = gradient @ response
        if np.sum(strikes) > 1 and np.any(
            np.abs(delassus[np.ix_(strikes, strikes)][~np.eye(np.sum(strikes), dtype=bool)]) > 1e-12
        ):
            raise Excluded("simultaneous impacts")
        e = np.where(-self.e * rate > SLOW, self.e, 0.0)
        impulse = complementary(delassus, np.where(strikes, (1 + e) * rate, rate), closed)
        # a body that bounces ever faster before another has impacts at gaps that no number resolves
        between = closed & ~strikes & ~self.held & (impulse > 0)
        if np.any(e[strikes] > 0) and np.any(delassus[np.ix_(strikes, between)] != 0):
            raise Excluded("accumulating: an impact through a contact that has hardly opened")
        self.v = self.v + response @ impulse
        self.impacts, self.last = self.impacts + 1, self.t
        edge = self.a["where"][self.where : self.where + 2]
        if np.min(np.abs(edge - self.q[0])) < 1e-12 and self.a["bends"].any():
            self.where = int(np.argmin(np.abs(self.a["where"] - self.q[0]))) - (self.v[0] < 0)
        if self.a["friction"]:
            self.way = np.sign(self.v[0]) if abs(self.v[0]) > 1e-12 else 0.0

    def advance(self, t1: float):
        gap, rate, gradient = self.contacts()
        a, (q, v, acc) = self.a, (self.q, self.v, self.acceleration)
        bend = gradient @ acc
        places = a["where"][self.where : self.where + 2]
        events = [
            (t1 - self.t, "end", 0),
            (a["when"][self.when + 1] - self.t, "when", 1),
            (first_below(q[0] - places[0], v[0], acc[0]), "where", -1),
            (first_below(places[1] - q[0], -v[0], -acc[0]), "where", 1),
        ]
        if not self.late:
            events.append((max(a["switch"] - self.t, 0.0), "late", True))
        side = 1 if self.beyond else -1
        events.append((first_below(side * (q[1] - a["place"]), side * v[1], side * acc[1]), "beyond", not self.beyond))
        if a["friction"] and self.way and v[0] * acc[0] < 0:
            events.append((-v[0] / acc[0], "way", 0))
        for c in np.flatnonzero(self.here & ~self.held):
            touches = gap[c] < TOUCH and abs(rate[c]) < 1e-9
            events.append((first_below(*((0.0, 0.0) if touches else (gap[c], rate[c])), bend[c]), "impact", c))
        r, name, which = min(events, key=lambda event: event[0])
        self.q, self.v, self.t = q + r * v + r * r / 2 * acc, v + r * acc, self.t + r
        if name == "end":
            self.t = t1
        elif name in ("when", "where"):
            setattr(self, name, getattr(self, name) + which)
            if not 0 <= getattr(self, name) < NODES - 1:
                raise Excluded("far away")
            if name == "where":
                self.q[0] = a["where"][self.where + (which < 0)]
        elif name == "way":
            self.way, self.v[0] = 0.0, 0.0
        elif name in ("late", "beyond"):
            setattr(self, name, which)
