"""A planar system as a `Problem`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from ..jaxtools.argument_checks import is_traced, real_number
from ..jaxtools.jaxpr_tools import replay_jaxpr
from ..mechanics.problem import Problem
from ..mechanics.problem_parts import RestitutionLike
from ..plots.style import COLOURS, DARK
from ..simulation.assemble import assemble
from .body import Body
from .mechanism import Kinds, check_options, check_system, first_equal, friction_at_speeds, friction_of, state_problem
from .parts import Part, Pin, Rod, Spring, Wall
from .pose import Pose
from .quantities import GROUND, Number, Point, point_of, value_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COORDINATES = ("x", "m"), ("y", "m"), ("angle", "rad")  # of a body, and their units


@dataclass(frozen=True)
class System:
    """A planar system: rigid bodies, and the joints, forces and contacts between them.

    Attributes:
        bodies: `Body` by name, a mapping.
        parts: joints, springs, motors, stops, walls.
        gravity: acceleration of gravity, which acts downwards, along -y [m/s^2].
    """

    bodies: Any
    parts: Sequence[Part] = ()
    gravity: Number = 9.81

    def __post_init__(self) -> None:
        bar = "{'crank': planar.bar(...)}"
        body, part = (
            "a planar.Body, by planar.bar, disk, block or plate, got {}",
            "a planar.Pin, Spring, Wall or the like",
        )
        check_system(self.bodies, self.parts, Kinds(Body, Part, bar, body, part))
        object.__setattr__(self, "bodies", tuple(self.bodies.items()))
        object.__setattr__(self, "parts", tuple(self.parts))

    def pose(self, q: Array) -> Pose:
        """Where the bodies are at coordinates q (d,)."""
        return Pose({name: (i, body.centre) for i, (name, body) in enumerate(self.bodies)}, q)

    def problem(self, restitution: RestitutionLike = 0.0, **options: Any) -> Problem:
        """The `Problem`, with names of coordinates, contacts and joint equations;
        its functions are the same for equal systems.

        Args:
            restitution: as in `Problem`.
            options: ``switches``, ``reset`` and ``static_friction`` as there.
        """
        check_options(options)
        same = first_equal(self)
        gaps, joints = (
            [x for part in self.parts for x in getattr(part, kind)] for kind in ("gap_names", "joint_names")
        )
        coordinates = [(f"{name}.{x}", unit) for name, _ in self.bodies for x, unit in COORDINATES]
        return state_problem(same, restitution, coordinates, gaps, joints, lambda: same.slip, options)

    def _is_jointed(self) -> bool:
        return any(part.joint_names for part in self.parts)

    @property
    def q0(self) -> np.ndarray:
        """Coordinates (d,) at the start: the bodies as they were stated."""
        return np.concatenate([[*body.centre, 0.0] for _, body in self.bodies])

    def start(self, args: object = None, t0: float = 0.0, **spins: float) -> tuple[Array, Array]:
        """Position and velocity (d,) at the start, consistent with the joints.

        Args:
            args: parameters handed to functions.
            t0: time of the start [s].
            spins: angular velocities of some bodies by name [rad/s]. All other velocities are those of least kinetic
                energy that joints allow. The result can be differentiated by spins and args.

        Raises:
            ValueError: a name is that of no body, or no velocity has these spins.
        """
        names = [name for name, _ in self.bodies]
        for name in spins:
            if name not in names:
                raise ValueError(f"start: {name!r} is no body; there are {', '.join(names)}")
        given = [3 * names.index(name) + 2 for name in spins]
        rates = [spin if is_traced(spin) else real_number(name, spin) for name, spin in spins.items()]
        q, v = self.q0, jnp.zeros(3 * len(self.bodies))
        for place, rate in zip(given, rates, strict=True):
            v = v.at[place].set(rate)
        if not self._is_jointed():
            return jnp.asarray(q), v
        free = [i for i in range(len(q)) if i not in given]
        return assemble(self.problem(), q, v, t0=t0, args=args, free=free)

    # functions of the problem

    def mass(self, q: Array, args: object) -> Array:
        """Diagonal (d,) of the mass matrix."""
        found = [(value_at(b.mass, args), value_at(b.mass, args), value_at(b.inertia, args)) for _, b in self.bodies]
        return jnp.stack([jnp.asarray(x, q.dtype) for body in found for x in body])

    def joints(self, t: ArrayLike, q: Array, args: object) -> Array:
        """Joint equations (j,), zero where they hold."""
        return self._stack("joints", t, q, args)

    def gaps(self, t: ArrayLike, q: Array, args: object) -> Array:
        """Gaps (m,)."""
        return _recorded_gaps(self)(t, q, args)

    def _stack(self, kind: str, t: ArrayLike, q: Array, args: object) -> Array:
        pose = self.pose(q)
        found = [jnp.asarray(x, q.dtype) for part in self.parts for x in getattr(part, kind)(pose, t, args)]
        return jnp.concatenate([jnp.atleast_1d(x) for x in found])

    def slip(self, t: ArrayLike, q: Array, v: Array, args: object) -> Array:
        """Slip velocities (m,) of the contacts; zero except at walls, since other contacts have no friction."""
        pose = self.pose(q)
        return jnp.stack([jnp.asarray(x, q.dtype) for part in self.parts for x in part.slips(pose, v, args)])

    def friction(self, args: object) -> Array:
        """Coefficients of friction (m,)."""
        return friction_of(self.parts, args)

    def friction_at(self, speeds: Array, args: object) -> Array:
        """Coefficients of friction (m,) of contacts with the slip ``speeds`` (m,)."""
        return friction_at_speeds(self.parts, speeds, args)

    def force(self, t: ArrayLike, q: Array, v: Array, args: object) -> Array:
        """Generalised force (d,)."""
        weight = jnp.zeros_like(q).at[1::3].set(-jnp.asarray(value_at(self.gravity, args), q.dtype))
        found = weight * self.mass(q, args)
        parts = [part for part in self.parts if type(part).coordinates is not Part.coordinates]
        if not parts:
            return found
        along = lambda q: [[jnp.asarray(x, q.dtype) for x in part.coordinates(self.pose(q))] for part in parts]
        s, rate = jax.jvp(along, (q,), (v,))
        push = [
            [jnp.asarray(x, q.dtype) for x in part.forces(a, b, t, args)]
            for part, a, b in zip(parts, s, rate, strict=True)
        ]
        return found + jax.vjp(along, q)[1](push)[0]

    def energy(self, t: ArrayLike, q: Array, v: Array, args: object) -> Array:
        """Kinetic energy, and potential energy of weights and springs [J]."""
        pose, mass = self.pose(q), self.mass(q, args)
        stored = [part.potential(part.coordinates(pose), args) for part in self.parts]
        height = jnp.asarray(value_at(self.gravity, args), q.dtype) * (mass[1::3] @ q[1::3])
        return 0.5 * v @ (mass * v) + height + jnp.asarray(sum(stored), q.dtype)

    # to be drawn

    def position(self, q: ArrayLike, body: str, point: Point) -> Array:
        """Position (2,), at coordinates q (d,), of the point of a body that was at ``point`` at the start."""
        return self.pose(jnp.asarray(q)).point(body, point_of("point", point))

    def draw(self, ax: Axes, t: float, q: np.ndarray) -> None:
        """Draws the system at coordinates q (d,): for ``solution.animate(draw=system.draw)``."""
        place = lambda body, p: np.asarray(self.pose(jnp.asarray(q)).point(body, p))
        for i, (name, body) in enumerate(self.bodies):
            points = np.array([place(name, p) for p in body.outline or (body.centre,)])
            if len(points) > 2:
                ax.fill(*points.T, color=COLOURS[i % len(COLOURS)], alpha=0.35)
            ax.plot(
                *points.T,
                "o-" if len(points) < 2 else "-",
                lw=2.5,
                color=COLOURS[i % len(COLOURS)],
                solid_capstyle="round",
            )
        for part in self.parts:
            if isinstance(part, Pin):
                ax.plot(*place(part.a, part.at), "s" if part.b == GROUND else "o", ms=6, color=DARK)
            elif isinstance(part, Wall):
                across = np.array([-part.normal[1], part.normal[0]])
                ends = [place(part.b, tuple(part.at + side * across)) for side in (-0.3, 0.3)]
                ax.plot(*np.array(ends).T, "-", lw=3, color=DARK)
            elif isinstance(part, Rod | Spring):
                ends = [place(part.a, part.ends[0]), place(part.b, part.ends[1])]
                ax.plot(*np.array(ends).T, ":" if isinstance(part, Spring) else "-", lw=1.5, color=DARK)


@lru_cache
def _recorded_gaps(system: System) -> Callable:
    # a step asks for them many times, of parts in Python
    return replay_jaxpr(lambda t, q, args: system._stack("gaps", t, q, args))
