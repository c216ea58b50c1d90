"""Cases of the suite as data: statements in words and formulas, and exact answers to 15 digits."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from ..mechanics.problem import Problem
from ..results.safe_reading import JsonObject
from .formulas import evaluate, parse

# numbers of steps, in thousandths, over which an error is taken: impacts then lie in many phases of their steps
SHIFTS = (0, 7, 17, 29, 43, 61, 79, 97)


class Exact(NamedTuple):
    """Exact final state (q, v), (2d,), and its Jacobian (2d, p)."""

    state: np.ndarray
    jacobian: np.ndarray


@dataclass(frozen=True, eq=False)
class Case:
    """One motion to compute: M(q) dv/dt = force + sum of gap gradients times impulses, gaps >= 0,
    Newton's law at impacts.

    Attributes:
        name, title: the case, and what it tests.
        tags: what a simulator needs for it: "M(q)", "moving wall", "lasting contact", "simultaneous", "accumulation",
            "plastic".
        source: the publication or report in which simulators fail at such a motion, or "".
        mass: formulas (d, d), or None for the unit matrix; force: (d,), with the velocity terms (Coriolis, centrifugal)
            of a mass that varies; gaps: (m,). They may contain ``t``, ``q[i]``, ``v[i]`` and the parameters.
        parameters: name -> value, the columns of the Jacobian in this order.
        position, velocity: which parameters are q and v at t = 0; "e" is the restitution of all contacts.
        t1: the end, at no impact [s].
        impacts: how many there are before t1; None where they are infinitely many.
        exact: final state (q, v) and its derivative by the parameters.
        slip: with friction, formulas of the slip velocities of every contact, (m, 1) in the plane and (m, 2) in space;
            else ().
        friction: formulas of the coefficients of friction (m,), of parameters.
    """

    name: str
    title: str
    tags: tuple[str, ...]
    source: str
    mass: tuple[tuple[str, ...], ...] | None
    force: tuple[str, ...]
    gaps: tuple[str, ...]
    parameters: dict[str, float]
    position: tuple[str, ...]
    velocity: tuple[str, ...]
    t1: float
    impacts: int | None
    exact: Exact
    slip: tuple[tuple[str, ...], ...] = ()
    friction: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: JsonObject) -> Case:
        """Makes a case from its entry in the file."""
        exact = Exact(np.array(data["state"], float), np.array(data["jacobian"], float))
        rest: JsonObject = {key: _as_tuples(x) for key, x in data.items() if key not in ("state", "jacobian")}
        return cls(**rest, exact=exact)

    @cached_property
    def theta(self) -> np.ndarray:
        """Values of the parameters (p,)."""
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

    @property
    def q0(self) -> np.ndarray:
        return np.array([self.parameters[name] for name in self.position])

    @property
    def v0(self) -> np.ndarray:
        return np.array([self.parameters[name] for name in self.velocity])

    @property
    def e(self) -> float:
        return self.parameters["e"]

    @property
    def args(self) -> dict[str, float]:
        """Parameters that occur in the problem's functions."""
        return {k: x for k, x in self.parameters.items() if k != "e" and k not in self.position + self.velocity}

    def start(self, theta: Any) -> tuple[Any, Any, Any, JsonObject]:
        """Arguments (q0, v0, e, args) of `jaximpact.solve` from the values ``theta`` (p,) of the parameters."""
        values = dict(zip(self.parameters, theta, strict=True))
        q0, v0 = (jnp.stack([values[name] for name in names]) for names in (self.position, self.velocity))
        return q0, v0, values["e"], {name: values[name] for name in self.args}

    @cached_property
    def problem(self) -> Problem:
        """The motion as a `jaximpact.Problem`, from the formulas."""
        force, gaps = list(map(parse, self.force)), list(map(parse, self.gaps))
        mass = None if self.mass is None else [list(map(parse, row)) for row in self.mass]

        def vector(formulas: list, like: Any, names: dict) -> Array:
            # numbers that are constant take the dtype of the others
            zero = jnp.zeros_like(like[0])
            return jnp.stack([evaluate(formula, names, jnp) + zero for formula in formulas])

        def forces(t: ArrayLike, q: Array, v: Array, args: dict[str, ArrayLike]) -> Array:
            return vector(force, q, {"t": t, "q": q, "v": v, **args})

        def constraints(t: ArrayLike, q: Array, args: dict[str, ArrayLike]) -> Array:
            return vector(gaps, q, {"t": t, "q": q, **args})

        def matrix(q: Array, args: dict[str, ArrayLike]) -> Array:
            assert mass is not None
            return jnp.stack([vector(row, q, {"q": q, **args}) for row in mass])

        if not self.slip:
            return Problem(forces, constraints, matrix if mass else None)
        slip, friction = [list(map(parse, row)) for row in self.slip], list(map(parse, self.friction))

        def slips(t: ArrayLike, q: Array, v: Array, args: dict[str, ArrayLike]) -> Array:
            return jnp.stack([vector(row, q, {"t": t, "q": q, "v": v, **args}) for row in slip])

        def coefficients(args: dict[str, ArrayLike]) -> Array:
            return vector(friction, list(args.values()), args)

        return Problem(forces, constraints, matrix if mass else None, slip=slips, friction=coefficients)

    def steps(self, h: float) -> tuple[int, ...]:
        """Several step counts near t1/h, so that impacts fall into different phases of their steps."""
        count = round(self.t1 / h)
        return tuple(count + round(count * shift / 1000) for shift in SHIFTS)


def _as_tuples(x: object) -> Any:
    """Nested lists as nested tuples."""
    return tuple(map(_as_tuples, x)) if isinstance(x, list) else x


def relative_error(found: ArrayLike, exact: ArrayLike) -> float:
    """max |x - x_exact| / max |x_exact|; NaN if x contains NaN. ValueError if shapes differ."""
    found, exact = np.asarray(found), np.asarray(exact)
    if found.shape != exact.shape:
        raise ValueError(f"{found.shape} in place of {exact.shape}")
    return float(np.max(np.abs(found - exact)) / np.max(np.abs(exact)))


@cache
def cases() -> dict[str, Case]:
    """All cases without friction, by name."""
    return _of_file("cases.json")


@cache
def frictional_cases() -> dict[str, Case]:
    """The cases with friction, by name."""
    return _of_file("friction.json")


def _of_file(name: str) -> dict[str, Case]:
    data = json.loads(files(__package__).joinpath(name).read_text())
    return {entry["name"]: Case.of(entry) for entry in data["cases"]}


def get(name: str) -> Case:
    """The case with a given name.

    Raises:
        KeyError: there is no such case.
    """
    known = cases() | frictional_cases()
    if name not in known:
        raise KeyError(f"no case {name!r}; there are {', '.join(known)}")
    return known[name]
