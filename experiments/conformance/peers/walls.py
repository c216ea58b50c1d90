"""Cases of straight walls, in coordinates that the walls stand still in:
what a simulator of points before fixed planes can state.

Coordinate i of a case is replaced by r = sign (q - w(t)), where w is the wall's place: the wall is then the floor r =
0, its place and its motion are in the initial data and in the force, and a derivative by them needs no moving geometry.
Everything here is arithmetic on whatever numbers `theta` holds: floats, dual numbers, symbols.
"""

import ast
import cmath
import functools

import numpy as np

# coordinate -> (sign, place of its wall, velocity, acceleration)
STILL = {
    name: {0: (1, "wall", "0", "0")} for name in ("grav1d", "grav1d-once", "harm1d", "drag", "stick1d", "lift", "hop1d")
}
STILL |= {name: {0: (1, "wall", "0", "0")} for name in ("zeno", "zeno-lift", "off-wall", "ball-e0.8", "ball-e0.5")}
WALLS = STILL | {
    "moving1d": {0: (1, "A*sin(Om*t)", "A*Om*cos(Om*t)", "-A*Om**2*sin(Om*t)")},
    "struck": {0: (1, "w0 + c*t", "c", "0")},
    "unit-flight": {0: (-1, "wall", "0", "0")},
    "late": {0: (1, "0", "0", "0"), 1: (-1, "wall", "0", "0")},
    "corner": {0: (1, "wx", "0", "0"), 1: (1, "wy", "0", "0")},
}  # fmt: skip


@functools.cache
def parsed(text):
    return compile(ast.parse(text, mode="eval"), text, "eval")


class Motion:
    """A case of `WALLS`, for numbers `theta` of any kind; `functions` are their sin and cos,
    where force or wall want them.

    `start` (r, r') at t = 0, both lists; `force(t, r, v)` on the coordinates r, all of unit mass; `end(r, v)` is the
    answer (q, v); `bounded` are the coordinates that have a wall, r >= 0.
    """

    def __init__(self, case, theta, functions):
        if case.name not in WALLS:
            raise NotImplementedError(case.name)
        self.case, self.functions = case, functions
        self.values = dict(zip(case.parameters, theta, strict=True))
        self.walls = WALLS[case.name]
        self.bounded, self.d = tuple(self.walls), len(case.position)
        self.start = self._relative(
            [self.values[name] for name in case.position], [self.values[name] for name in case.velocity]
        )

    def _value(self, text, **names):
        return eval(parsed(text), {"__builtins__": {}}, {**self.functions, **self.values, **names})

    def _wall(self, i, t):
        sign, *formulas = self.walls.get(i, (1, "0", "0", "0"))
        return sign, [self._value(formula, t=t) for formula in formulas]

    def _relative(self, q, v):
        walls = [self._wall(i, 0.0) for i in range(self.d)]
        return [s * (x - w[0]) for x, (s, w) in zip(q, walls, strict=True)], [
            s * (x - w[1]) for x, (s, w) in zip(v, walls, strict=True)
        ]

    def absolute(self, t, r, v):
        """(q, v) of a place and a velocity before the walls."""
        walls = [self._wall(i, t) for i in range(self.d)]
        return [w[0] + s * x for x, (s, w) in zip(r, walls, strict=True)], [
            w[1] + s * x for x, (s, w) in zip(v, walls, strict=True)
        ]

    def force(self, t, r, v):
        q, u = self.absolute(t, r, v)
        walls = [self._wall(i, t) for i in range(self.d)]
        found = [self._value(formula, t=t, q=q, v=u) for formula in self.case.force]
        return [s * (f - w[2]) for f, (s, w) in zip(found, walls, strict=True)]

    def end(self, r, v):
        q, u = self.absolute(self.case.t1, r, v)
        return [*q, *u]


class Slopes:
    """Derivatives of a `Motion` by the parameters, for simulators that know those of their own steps alone.

    By complex steps of 1e-30, exact to rounding. States x are (2d,), their derivatives dx (2d, p).
    """

    def __init__(self, case, theta):
        functions = {"sin": cmath.sin, "cos": cmath.cos, "sqrt": cmath.sqrt}
        steps = 1e-30j * np.eye(len(theta))
        self.motions = [Motion(case, list(theta + step), functions) for step in steps]

    @property
    def start(self):
        """dx at t = 0."""
        return self._slope([np.concatenate(motion.start) for motion in self.motions])

    def force(self, t, x, dx):
        """Of the force (d, p) along the motion."""
        return self._slope([m.force(t, *np.split(x + 1e-30j * y, 2)) for m, y in zip(self.motions, dx.T, strict=True)])

    def end(self, x, dx):
        """Of the answer (2d, p)."""
        return self._slope([m.end(*np.split(x + 1e-30j * y, 2)) for m, y in zip(self.motions, dx.T, strict=True)])

    @staticmethod
    def _slope(columns):
        return np.imag(columns).T / 1e-30
