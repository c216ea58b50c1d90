"""The exact states and Jacobians of jaximpact/conformance/cases.json, from its formulas, with 30 digits.

    python experiments/conformance/exact_numbers.py            # compare with what is recorded
    python experiments/conformance/exact_numbers.py --write    # record

No code of jaximpact takes part but the reading of formulas, and no saltation matrix: motions are integrated by
extrapolation (order 20) between events, events are located by Newton's method to 28 digits, and Jacobians are central
differences of whole motions with a change of 1e-10, whose error is about 1e-18. Needs mpmath and sympy.
"""

import argparse
import json
from pathlib import Path

import mpmath
import numpy as np
import sympy
from mpmath import mpf

FILE = Path(__file__).parents[2] / "jaximpact" / "conformance" / "cases.json"
DIGITS, CHANGE = 30, mpf(10) ** -10
STAGES = tuple(range(2, 22, 2))  # of the extrapolation: order 20
STEP = mpf(1) / 16  # [s], at most
ROOT = mpf(10) ** -26  # of a gap, at its event
NEAR = mpf(10) ** -20  # gaps that are hit at the same instant
APART = mpf(1) / 1024  # [s] that no two events fall into, but for those of one instant
mpmath.mp.dps = DIGITS


class System:
    """The formulas of a case as functions of (t, q, v, parameters) with 30 digits."""

    def __init__(self, entry: dict) -> None:
        d = len(entry["position"])
        t, q, v = sympy.Symbol("t"), sympy.symbols(f"q:{d}"), sympy.symbols(f"v:{d}")
        names = list(entry["parameters"])
        symbols = {name: sympy.Symbol(f"p_{name}") for name in names}

        def read(text: str):
            for i in range(d):
                text = text.replace(f"q[{i}]", f"Q{i}_").replace(f"v[{i}]", f"V{i}_")
            local = {f"Q{i}_": q[i] for i in range(d)} | {f"V{i}_": v[i] for i in range(d)} | symbols | {"t": t}
            return sympy.sympify(text, locals=local)

        mass = (
            sympy.eye(d) if entry["mass"] is None else sympy.Matrix([[read(x) for x in row] for row in entry["mass"]])
        )
        gaps = sympy.Matrix([read(x) for x in entry["gaps"]])
        slopes = gaps.jacobian(q)
        rate = gaps.diff(t) + slopes * sympy.Matrix(v)
        bend = rate.diff(t) + rate.jacobian(q) * sympy.Matrix(v)
        force = sympy.Matrix([read(x) for x in entry["force"]])
        function = lambda x: sympy.lambdify((t, q, v, list(symbols.values())), x, modules="mpmath", cse=True)
        self.names, self.d, self.m = names, d, len(entry["gaps"])
        parts = (mass, force, gaps, slopes, rate, bend)
        self.parts = function([list(x.tolist()) for x in parts])

    def at(self, t, x, p):
        """M, h, gaps, G, rates, and the part of the gaps' accelerations that is not G a."""
        mass, force, gaps, slopes, rate, bend = self.parts(t, x[: self.d], x[self.d :], p)
        column = lambda c: [row[0] for row in c]
        return mass, column(force), column(gaps), slopes, column(rate), column(bend)

    def acceleration(self, t, x, p, closed):
        """Accelerations, and the multipliers of the contacts that are held closed."""
        mass, force, _, slopes, _, bend = self.at(t, x, p)
        a = solve(mass, force)
        if not closed:
            return a, {}
        responses = {c: solve(mass, slopes[c]) for c in closed}
        matrix = [[dot(slopes[i], responses[j]) for j in closed] for i in closed]
        found = dict(zip(closed, solve(matrix, [-dot(slopes[i], a) - bend[i] for i in closed]), strict=True))
        return [y + sum(found[c] * responses[c][i] for c in closed) for i, y in enumerate(a)], found

    def field(self, t, x, p, closed):
        return [*x[self.d :], *self.acceleration(t, x, p, closed)[0]]


def dot(x, y):
    return mpmath.fsum(a * b for a, b in zip(x, y, strict=True))


def solve(matrix, right):
    """One or two equations."""
    if len(right) == 1:
        return [right[0] / matrix[0][0]]
    (a, b), (c, d) = matrix
    det = a * d - b * c
    return [(d * right[0] - b * right[1]) / det, (a * right[1] - c * right[0]) / det]


def leap(system, t, x, h, p, closed):
    """A step of Gragg, Bulirsch and Stoer."""
    if h == 0:
        return x
    table: list = []
    for k, n in enumerate(STAGES):
        s = h / n
        old, new = x, [a + s * b for a, b in zip(x, system.field(t, x, p, closed), strict=True)]
        for i in range(1, n):
            slope = system.field(t + i * s, new, p, closed)
            old, new = new, [a + 2 * s * b for a, b in zip(old, slope, strict=True)]
        row = [[(a + b + s * c) / 2 for a, b, c in zip(old, new, system.field(t + h, new, p, closed), strict=True)]]
        for j in range(k):
            ratio = (mpf(n) / STAGES[k - j - 1]) ** 2 - 1
            row.append([a + (a - b) / ratio for a, b in zip(row[j], table[j], strict=True)])
        table = row
    return table[-1]


def crossing(system, t, x, h, p, closed, value, low, tries=60):
    """The part of a step, between ``low`` and h, after which a function value(t, x) is zero:
    a secant within a bracket."""
    high = h
    f_low, f_high = (value(t + s, leap(system, t, x, s, p, closed)) for s in (low, high))
    if f_low < 0:
        raise RuntimeError(f"two events of one contact within {mpmath.nstr(low, 3)} s of t = {mpmath.nstr(t, 8)}")
    for _ in range(tries):
        s = high - f_high * (high - low) / (f_high - f_low)
        if not min(low, high) < s < max(low, high):
            s = (low + high) / 2
        f = value(t + s, leap(system, t, x, s, p, closed))
        if abs(f) < ROOT:
            return s
        # keep the bracket, and halve the value that stays (Illinois)
        if (f > 0) == (f_high > 0):
            high, f_high, f_low = s, f, f_low / 2
        else:
            low, f_low, f_high = high, f_high, f_high
            high, f_high = s, f
    raise RuntimeError(f"no event found near t = {mpmath.nstr(t, 8)}")


def strike(system, t, x, p, e, hit, closed):
    """Newton's law at one contact, with the contacts that stay closed; which are closed then."""
    mass, _, _, slopes, rate, _ = system.at(t, x, p)
    pushed = [*closed, hit]
    responses = [solve(mass, slopes[c]) for c in pushed]
    matrix = [[dot(slopes[i], r) for r in responses] for i in pushed]
    impulses = solve(matrix, [-(1 + e) * rate[hit] if c == hit else mpf(0) for c in pushed])
    v = [y + sum(s * r[i] for s, r in zip(impulses, responses, strict=True)) for i, y in enumerate(x[system.d :])]
    x = [*x[: system.d], *v]
    if e != 0:
        return x, closed
    _, push = system.acceleration(t, x, p, [*closed, hit])
    return x, [c for c in (*closed, hit) if push[c] > 0]


def motion(system, entry, values):
    """The state at t1, and the number of impacts, of one-contact or orthogonal impacts and lasting contact."""
    p = [values[name] for name in system.names]
    t, t1, e = mpf(0), mpf(str(entry["t1"])), values["e"]
    x = [values[name] for name in (*entry["position"], *entry["velocity"])]
    closed: list = []
    fresh: set = set()  # contacts struck or opened a moment ago: their gaps are zero, and grow
    impacts = 0
    while t < t1:
        h = min(STEP, t1 - t)
        y = leap(system, t, x, h, p, closed)
        gaps, events = system.at(t + h, y, p)[2], []
        for c in range(system.m):
            push = lambda s, z, c=c, held=tuple(closed): system.acceleration(s, z, p, held)[1][c]
            gap = lambda s, z, c=c: system.at(s, z, p)[2][c]
            low = min(APART, h / 2) if c in fresh else mpf(0)
            if c in closed and push(t + h, y) < 0:
                events.append((crossing(system, t, x, h, p, closed, push, low), c, "release"))
            elif c not in closed and gaps[c] < 0:
                events.append((crossing(system, t, x, h, p, closed, gap, low), c, "hit"))
        if not events:
            t, x, fresh = t + h, y, set()
            continue
        s, c, kind = min(events)
        x, t = leap(system, t, x, s, p, closed), t + s
        fresh = {c} if s >= APART else fresh | {c}
        if kind == "release":
            closed = [k for k in closed if k != c]
            continue
        _, _, gaps, _, rates, _ = system.at(t, x, p)
        others = [k for k in range(system.m) if k not in (c, *closed) and abs(gaps[k]) < NEAR and rates[k] < 0]
        for k in (c, *others):
            x, closed = strike(system, t, x, p, e, k, closed)
            impacts += 1
        fresh |= {*others}
    return x, impacts


def accumulated(entry, values):
    """Cases in which impacts accumulate, by formula: flights of speed u last 2 u/g and
    enclose the area 2 u^3 / (3 g^2)."""
    p = values
    if entry["name"] == "zeno":
        height, v = p["y0"] - p["wall"], p["v0"]
        u = mpmath.sqrt(v**2 + 2 * p["g"] * height)
        fall = (v + u) / p["g"]
        area = height * fall + v * fall**2 / 2 - p["g"] * fall**3 / 6
        area += 2 * u**3 / (3 * p["g"] ** 2) * p["e"] ** 3 / (1 - p["e"] ** 3)
        t1 = mpf(str(entry["t1"]))
        return [p["wall"], p["s0"] + area + p["wall"] * t1, mpf(0), p["wall"]]
    late = mpf(str(entry["t1"])) - p["g"] / p["k"]  # after the force has grown to lift it
    return [p["wall"] + p["k"] * late**3 / 6, p["k"] * late**2 / 2]


def numbers(entry: dict) -> tuple[list, list, int | None]:
    """State (2d,), Jacobian (2d, p) and number of impacts of a case."""
    values = {name: mpf(str(x)) for name, x in entry["parameters"].items()}
    endless = "accumulation" in entry["tags"]
    system = None if endless else System(entry)
    end = (lambda at: (accumulated(entry, at), None)) if endless else (lambda at: motion(system, entry, at))
    state, impacts = end(values)
    columns = []
    for name, x in values.items():
        if name == "e" and x == 0:
            # bounces of height e^2 that last e: of a contact that lasts the motion knows e to second order only
            if "lasting contact" in entry["tags"]:
                columns.append([mpf(0)] * len(state))
                continue
            ends = [end(values | {name: x + k * CHANGE})[0] for k in (0, 1, 2)]
            columns.append([(4 * b - 3 * a - c) / (2 * CHANGE) for a, b, c in zip(*ends, strict=True)])
            continue
        ends = [end(values | {name: x + sign * CHANGE})[0] for sign in (1, -1)]
        columns.append([(a - b) / (2 * CHANGE) for a, b in zip(*ends, strict=True)])
    return state, [list(row) for row in zip(*columns, strict=True)], impacts


def rounded(x) -> float:
    """As a float; 0 for what is nothing but the error of the differences."""
    return 0.0 if abs(x) < mpf(10) ** -14 else float(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--cases", nargs="+", metavar="NAME")
    options = parser.parse_args()
    data = json.loads(FILE.read_text())
    for entry in data["cases"]:
        if options.cases and entry["name"] not in options.cases:
            continue
        state, jacobian, impacts = numbers(entry)
        found = [rounded(x) for x in state], [[rounded(x) for x in row] for row in jacobian]
        if "state" in entry:
            error = max(
                np.max(np.abs(np.array(a) - b)) for a, b in zip(found, (entry["state"], entry["jacobian"]), strict=True)
            )
            print(f"{entry['name']:15} differs by {error:.1e}, {impacts} impacts", flush=True)
        if options.write:
            entry["impacts"], entry["state"], entry["jacobian"] = impacts, *found
    if options.write:
        FILE.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
