"""The cases with friction of the conformance suite, jaximpact/conformance/friction.json: statements, and exact numbers
by closed forms with 40 digits.

    python experiments/conformance/frictional_numbers.py            # compare with what is recorded
    python experiments/conformance/frictional_numbers.py --write    # record

Jacobians are central differences of the closed forms with a change of 1e-12, whose error is about 1e-23: no derivative
of an event enters. Needs mpmath.
"""

import argparse
import json
from pathlib import Path

import mpmath
import numpy as np
from mpmath import cos, mpf, sin, sqrt

FILE = Path(__file__).parents[2] / "jaximpact" / "conformance" / "friction.json"
CHANGE = mpf(10) ** -12
mpmath.mp.dps = 40


def landing(height, v, g):
    """Time and speed at which a body that rises at v meets a floor ``height`` below it."""
    u = sqrt(v**2 + 2 * g * height)
    return (v + u) / g, u


def disk(p, t):
    """A disk of mass 1 bounces once: friction acts on the slip vx + R w, to its end (sticks) or not."""
    hit, u = landing(p["y0"] - p["R"], p["vy"], p["g"])
    slip, pushed = p["vx"] + p["R"] * p["w"], (1 + p["e"]) * u
    stops = slip / (1 + p["R"] ** 2 / p["I"])
    along = -min(p["mu"] * pushed, stops)
    vx, vy, w, left = p["vx"] + along, p["e"] * u, p["w"] + p["R"] * along / p["I"], t - hit
    q = (
        p["x0"] + p["vx"] * hit + vx * left,
        p["R"] + vy * left - p["g"] * left**2 / 2,
        p["a0"] + p["w"] * hit + w * left,
    )
    return (*q, vx, vy - p["g"] * left, w)


def incline(p, t):
    """A block lands on an incline without rebound, slides up, turns round without a rest, and slides down."""
    down, into = p["g"] * sin(p["alpha"]), p["g"] * cos(p["alpha"])
    hit, u = landing(p["y0"], p["vy"], into)
    x, v = p["x0"] + p["vx"] * hit - down * hit**2 / 2, p["vx"] - down * hit - p["mu"] * u
    up, back = down + p["mu"] * into, down - p["mu"] * into
    turn = v / up
    left = t - hit - turn
    return x + v * turn / 2 - back * left**2 / 2, 0 * x, -back * left, 0 * x


def pulled(p, t):
    """A block lands, slides to rest, sticks until the pull F t exceeds mu g, and slides away."""
    hit, u = landing(p["y0"], p["vy"], p["g"])
    x, v = p["x0"] + p["vx"] * hit + p["F"] * hit**3 / 6, p["vx"] + p["F"] * hit**2 / 2 - p["mu"] * u
    # v + F (s^2 - hit^2) / 2 - mu g (s - hit) = 0
    friction, pull = p["mu"] * p["g"], p["F"]
    stop = (friction - sqrt(friction**2 - 2 * pull * (v + friction * hit - pull * hit**2 / 2))) / pull
    far = lambda a, b, v: v * (b - a) + pull * ((b**3 - a**3) / 6 - a**2 * (b - a) / 2) - friction * (b - a) ** 2 / 2
    begin = friction / pull
    x = x + far(hit, stop, v) + far(begin, t, 0)
    return x, 0 * x, pull * (t**2 - begin**2) / 2 - friction * (t - begin), 0 * x


def sphere(p, t):
    """A sphere of mass 1 bounces once: friction is against the slip (vx - R wy, vy + R wx),
    whose direction an impact keeps."""
    hit, u = landing(p["z0"] - p["R"], p["vz"], p["g"])
    sx, sy, pushed = p["vx"] - p["R"] * p["wy"], p["vy"] + p["R"] * p["wx"], (1 + p["e"]) * u
    size = sqrt(sx**2 + sy**2)
    along = min(p["mu"] * pushed, size / (1 + p["R"] ** 2 / p["I"]))
    px, py, left = -along * sx / size, -along * sy / size, t - hit
    old = (p["vx"], p["vy"], None, p["wx"], p["wy"])
    new = (p["vx"] + px, p["vy"] + py, None, p["wx"] + p["R"] * py / p["I"], p["wy"] - p["R"] * px / p["I"])
    start = (p["x0"], p["y0"], None, p["a0"], p["b0"])
    q = [None if v is None else x + v * hit + w * left for x, v, w in zip(start, old, new, strict=True)]
    v = list(new)
    q[2], v[2] = p["R"] + p["e"] * u * left - p["g"] * left**2 / 2, p["e"] * u - p["g"] * left
    return (*q, *v)


def block(name, title, force, parameters, t1, **more):
    """A block in the plane above the floor or incline y = 0."""
    start = {"x0": 0.1, "y0": 0.05, "vx": 2.0, "vy": -0.2, "e": 0.0}
    return {
        "name": name, "title": title, "tags": ["friction", "lasting contact"], "source": "", "mass": None,
        "force": force, "gaps": ["q[1]"],
        "parameters": start | parameters, "position": ["x0", "y0"], "velocity": ["vx", "vy"], "t1": t1, "impacts": 1,
        "slip": [["v[0]"]], "friction": ["mu"], **more,
    }  # fmt: skip


def spinning(name, title, mu):
    """A disk that falls with spin."""
    parameters = {"x0": 0.1, "y0": 1.0, "a0": 0.2, "vx": 1.0, "vy": -0.3, "w": 6.0}
    return {
        "name": name, "title": title, "tags": ["friction"], "source": "",
        "mass": [["1", "0", "0"], ["0", "1", "0"], ["0", "0", "I"]], "force": ["0", "-g", "0"], "gaps": ["q[1] - R"],
        "parameters": parameters | {"e": 0.7, "mu": mu, "g": 9.81, "R": 0.2, "I": 0.02}, "position": ["x0", "y0", "a0"],
        "velocity": ["vx", "vy", "w"], "t1": 0.8, "impacts": 1, "slip": [["v[0] + R*v[2]"]], "friction": ["mu"],
    }  # fmt: skip


UNIT = [["1" if i == j else "0" for j in range(5)] for i in range(5)]
UNIT[3][3] = UNIT[4][4] = "I"
SPHERE = {
    "name": "sphere-slips", "title": "a spinning sphere bounces on a rough floor, and slips in the impact",
    "tags": ["friction", "space"], "source": "", "mass": UNIT, "force": ["0", "0", "-g", "0", "0"],
    "gaps": ["q[2] - R"], "parameters": {
        "x0": 0.1, "y0": -0.2, "z0": 1.0, "a0": 0.0, "b0": 0.3, "vx": 1.0, "vy": 0.5, "vz": -0.3, "wx": 4.0, "wy": -5.0,
        "e": 0.7, "mu": 0.08, "g": 9.81, "R": 0.2, "I": 0.016,
    },
    "position": ["x0", "y0", "z0", "a0", "b0"], "velocity": ["vx", "vy", "vz", "wx", "wy"], "t1": 0.8, "impacts": 1,
    "slip": [["v[0] - R*v[4]", "v[1] + R*v[3]"]], "friction": ["mu"],
}  # fmt: skip
CASES = [
    (spinning("disk-slips", "a spinning disk bounces on a rough floor, and slips in the impact", 0.06), disk),
    (spinning("disk-sticks", "the same with more friction: slip ends within the impact", 0.4), disk),
    (
        block("turns-back", "a block lands on an incline, slides up, turns round and slides down",
        ["-g*sin(alpha)", "-g*cos(alpha)"],
              {"mu": 0.3, "alpha": 0.6, "g": 9.81}, 0.7),
        incline,
    ),
    (
        block("stick-slip", "a block lands, slides to rest, sticks, and is pulled away", ["F*t", "-g"],
        {"vx": 1.0, "mu": 0.3, "F": 4.0, "g": 9.81}, 1.2), pulled,
    ),
    (SPHERE, sphere),
]  # fmt: skip


def numbers(entry: dict, form) -> tuple[list, list]:
    """State (2d,) and Jacobian (2d, p) with 40 digits."""
    p, t1 = {key: mpf(repr(x)) for key, x in entry["parameters"].items()}, mpf(repr(entry["t1"]))
    state = form(p, t1)
    # no rebound: derivatives by e at 0 are zero, as bounces of e u last for a time of order e and together push as the
    # weight does
    sides = {
        key: None if key == "e" and x == 0 else [form(p | {key: x + s * CHANGE}, t1) for s in (1, -1)]
        for key, x in p.items()
    }
    slope = lambda i, pair: mpf(0) if pair is None else (pair[0][i] - pair[1][i]) / (2 * CHANGE)
    return list(state), [[slope(i, pair) for pair in sides.values()] for i in range(len(state))]


def recorded() -> list[dict]:
    """All cases with their numbers, as they are recorded."""
    found = []
    for entry, form in CASES:
        state, jacobian = numbers(entry, form)
        found.append(
            entry | {"state": [float(x) for x in state], "jacobian": [[float(x) for x in row] for row in jacobian]}
        )
    return found


ABOUT = (
    "As cases.json, with Coulomb friction: slip are the tangential velocities of every contact, one in the plane and "
    "two in space, along which friction acts by virtual "
    "power; friction are its coefficients mu. state = (q, v) at t1; jacobian[i][j] = d state[i] / d parameter j."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="record the numbers")
    if parser.parse_args().write:
        FILE.write_text(json.dumps({"format": 1, "about": ABOUT, "cases": recorded()}, indent=1) + "\n")
        return
    for old, new in zip(json.loads(FILE.read_text())["cases"], recorded(), strict=True):
        apart = max(np.max(np.abs(np.subtract(old[name], new[name]))) for name in ("state", "jacobian"))
        print(f"{new['name']:15} {apart:.1e}")


if __name__ == "__main__":
    main()
