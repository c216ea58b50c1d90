"""A force that jumps or kinks, piece by piece: evaluated on one side of its switches until the motion reaches a border.

A piece is the smooth function that a force is as long as its switches (comparisons, signs, ...; see `switches`) keep
their sides. The level of a switch is a smooth function along the motion, positive on the side that is taken and zero on
its border, as a gap is for a contact. Trials find borders as they find the surfaces that end a motion (`stops`). Where
the forces of both sides push towards a border, the motion slides on it, under the convex combination of the two with
which it stays there (Filippov).

References:
    A. F. Filippov, Differential Equations with Discontinuous Righthand Sides, Kluwer (1988).
    M. A. Aizerman, F. R. Gantmakher, On the stability of periodic motions, J. Appl. Math. Mech. 22 (1958).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from ...jaxtools import linalg
from ...jaxtools.outlined import outlined
from ...switches.kinds import Sides
from ...switches.switches import (
    Switches,
    depends_on_data,
    depends_on_path,
    depends_on_place,
    force_switches,
    stated_switches,
)
from ...switches.walks import DATA, SPEED, STATE, TIME, Mark
from ..friction import FrictionInfo
from ..joints import MayDepend
from ..motion import By
from ..problem import Problem
from ..status import Status, as_status
from .trial import Hold, frozen, held

# largest number of levels that are located: with 8 a first answer takes 5 s, with 16, of a small network of relu, 18 s
MAX_LEVELS = 8
NEXT = 1e-6  # of the terms of a level: beyond it a level is not near zero
# (d level/dt)^2 over level times its second rate, near a zero: 1.5 of a third power, 2 of a square; of a slope without
# end
FLAT = 10
# roundings of the terms of a stated surface's function: distance from the surface at which the force is safely on one
# side of it
INSIDE = 64
Held = tuple[Array, Array, Array, Any]  # as `trial.held` gives
Pace = tuple[Array, Array, Array]  # time scale (), velocity and acceleration (d,) of a motion


def contact_velocities(problem: Problem, t: Array, q: Array, v: Array, args: object) -> Array:
    """Returns what a problem gives of the relative velocities of contacts in one array: slips (m, k), or (m, 1 + k),
    normal components first."""
    normal, along = problem.contact_velocity(t, q, v, args)
    return along if normal is None else jnp.concatenate([normal[:, None], along], axis=1)


def switching(
    problem: Problem,
    t: Array,
    q: Array,
    v: Array,
    args: object,
    reported: Mark = depends_on_place,
    levels: bool = False,
) -> dict[str, Callable]:
    """Returns the functions (t, q, v, args) of a problem that prescribe velocities, its joints and slips,
    which have switches, by name.

    ``reported``, ``levels``: which switches count, as of `Switches.of`.
    """
    functions: dict[str, Callable] = {}
    if problem.joints is not None:
        functions["joints"] = lambda t, q, v, args: problem.joint_values(t, q, args)
    if problem.slip is not None and problem.between is None:
        functions["slip"] = partial(contact_velocities, problem)
    marks = TIME, STATE, STATE | SPEED, DATA
    has = lambda of: Switches.of(of, (t, q, v, args), marks, reported, levels) is not None
    return {name: of for name, of in functions.items() if has(of)}


class Where(NamedTuple):
    """The piece of a force on which a motion is, carried in the state.

    ``sides``: the side of each switch on which the force is taken; ``across``: the sides beyond their nearest borders;
    ``roundoff`` (k,): how far below zero levels may be by round-off; ``slides`` (n, n), for the n levels that depend on
    the velocity: in the row of a level on whose border the motion slides, the mask of the levels that are zero on that
    border, as several levels may describe it; other rows are false. ``opposite`` (n, ...):
    all sides across the border of each row.
    """

    sides: Sides
    across: Sides
    roundoff: Array
    slides: Array
    opposite: Sides

    @classmethod
    def none(cls, dtype: DTypeLike) -> Where:
        """Returns the `Where` of a force that has no switches, all of its arrays empty."""
        return cls([], [], jnp.zeros(0, dtype), jnp.zeros((0, 0), bool), [])

    @property
    def of_forces(self) -> Array:
        """Which levels (k,) are forces of contacts: none, 0."""
        return jnp.zeros_like(self.roundoff)

    def of_step(self, impulse: Array, closed: Array) -> tuple[Array, FrictionInfo]:
        """Returns the normal impulses (m,) of a step, and its report on friction: none."""
        return impulse, FrictionInfo.none(len(impulse), 0, impulse.dtype)

    def without_impulses(self, m: int) -> FrictionInfo:
        """Returns the report on friction of a step without impulses."""
        return FrictionInfo.none(m, 0, self.roundoff.dtype)


class Pieces:
    """The force and the mass of a problem, on given sides of their switches.

    Attributes:
        count: number of levels, k.
        steep: numbers (n,) of the levels that depend on the velocity, so that the motion may slide on their borders.
        open: mask (k,) of levels that are zero at times which depend on the motion's data.
        stated: slice of the levels of surfaces that the problem states.
        only_stated: whether the switches are those of these surfaces alone, with the force and the mass as they are.
        smooth: whether the force and the mass have no switches, but velocities that are prescribed have.
        outlined: functions of these pieces that are compiled once for many calls, by name.
        ends: slice of the levels beyond whose borders a piece is continued from inside: those stated,
            or all if a piece may not be finite there.
        passes: mask of those of ``ends`` beyond whose borders the piece is finite, but for these borders themselves,
            as q/|q|.
        cancels: whether derivatives of the force may be rounding next to a border (`Switches.cancels`).
        pace: of the motion, for how far inside a border such a force is evaluated; None if not known.
        prescribes: names of the functions with switches that prescribe velocities, among "joints" and "slip".
    """

    def __init__(
        self,
        problem: Problem,
        switches: Switches,
        stated: Switches | None,
        *operands: Any,
        smooth: bool = False,
        prescribes: tuple[str, ...] = (),
        pace: Pace | None = None,
    ) -> None:
        self.problem, self.switches, self.only_stated = problem, switches, switches is stated
        self.prescribes, self.pace, self.smooth = prescribes, pace, smooth
        self.outlined: dict[str, Callable] = {}
        # stated switches come first; among their sides those of the surfaces are last, after the switches inside the
        # stated functions
        self._place = -1 if stated is None else len(jax.eval_shape(stated.sides, *operands)) - 1
        marks: list[int] = []

        def measured(*operands: Any) -> tuple[list, Sides]:
            sides = switches.definite(*operands)
            levels, _, found = switches.measured(sides, *operands)
            marks[:] = found
            return levels, sides

        self.shapes = [x.shape for x in jax.eval_shape(measured, *operands)[0]]
        sizes = [math.prod(shape) for shape in self.shapes]
        of_each = np.repeat(marks, sizes)
        self.count = len(of_each)
        before = sum(sizes[: max(self._place, 0)])
        self.stated = slice(before, before + (0 if stated is None else sizes[self._place]))
        ends, self.cancels = switches.may_end(), switches.cancels()
        # velocities that are prescribed are not continued
        self.ends = slice(0, self.count) if (ends or self.cancels) and not self.smooth else self.stated
        place = np.arange(self.count)[self.ends]
        self.passes = ~((place >= self.stated.start) & (place < self.stated.stop) | ends)
        self.steep = np.flatnonzero(of_each & SPEED)
        self.open = np.array([depends_on_data(int(mark)) for mark in of_each])

    @classmethod
    def of(
        cls,
        problem: Problem,
        t: Array,
        q: Array,
        v: Array,
        args: object,
        reported: Mark = depends_on_path,
        kinks: bool = True,
        prescribed: bool = False,
        pace: Pace | None = None,
    ) -> Pieces | None:
        """Finds the pieces of a problem's force for states of these shapes;
        None (decided at trace time) if it has no switch with levels.

        ``reported``: which switches count, by what they depend on; ``kinks``: whether those that only kink do;
        ``prescribed``: whether those of joints and slip velocities do, on place and time; ``pace``: of the motion, if
        known. With more than MAX_LEVELS
        levels these are left out, or all but the stated switches.
        """
        at = t, q, v, args
        stated = stated_switches(problem, *at, reported, kinks)
        kinked = switching(problem, *at, levels=True) if prescribed else {}
        found_beside = lambda of: force_switches(problem, *at, reported, levels=True, kinks=kinks, beside=of)
        own = found_beside(())
        for beside in [kinked, {}] if kinked else [{}]:
            switches = found_beside(tuple(beside.values())) if beside else own
            if switches is None:
                return None
            found = cls(problem, switches, stated, *at, smooth=own is None, prescribes=tuple(beside), pace=pace)
            if found.count <= MAX_LEVELS:
                return found
        return None if stated is None else cls(problem, stated, stated, *at, pace=pace)

    def start(self, t: Array, q: Array, v: Array, args: object) -> Where:
        """Returns the sides on which a motion begins, before borders at its start are treated."""
        sides = self.switches.definite(*frozen((t, q, v, args)))
        n = len(self.steep)
        opposite = [jnp.broadcast_to(side, (n, *side.shape)) for side in sides]
        return Where(sides, sides, jnp.zeros(self.count, q.dtype), jnp.zeros((n, n), bool), opposite)

    def moved_at_start(self, by: By | None, t: Array, q: Array, v: Array, args: object) -> np.ndarray:
        """Returns the mask (k,) of levels whose values at the start of a motion depend on
        what derivatives are taken by.

        Only on their borders a start may come to lie on the other side with other data. Where it is not known what
        derivatives are taken by, they are the levels that are ``open``. It is decided from jaxprs, so that level * 0
        depends on all that the level does.
        """
        if by is None:
            return self.open
        problem, q0, v0 = self.problem, by.q0, by.v0
        if problem.constraints is not None or problem.joints is not None:
            q0 = v0 = by.moves_start(problem, t, q, args)
        marks = self.switches.marks_of_levels((by.t0, q0, v0, *by.args), t, q, v, args)
        return np.repeat(np.array(marks, bool), [math.prod(shape) for shape in self.shapes])

    def on(self, sides: Sides) -> Problem:
        """Returns the problem whose force and mass are those of given sides,
        continued smoothly beyond their borders."""
        of = self.problem
        force, mass = self.functions(sides)
        left = of.switches
        if self.ends.stop > self.ends.start:
            force = self.continued(sides, force)
        if self.stated.stop > self.stated.start:
            left = None
        rubs: dict = {"friction": of.friction, "static_friction": of.static_friction}
        rubs["slip"] = None if of.between is not None else of.slip  # bodies state it
        joints = of.joints
        if "slip" in self.prescribes:
            rubs["slip"] = partial(self._contact_velocities, sides)
        if "joints" in self.prescribes:
            joints = lambda t, q, args: self._function_on("joints", sides, t, q, jnp.zeros_like(q), args)
            joints = MayDepend(joints) if isinstance(of.joints, MayDepend) else joints
        rubs |= {"joints": joints, "switches": left, "impact_law": of.impact_law, "noise": of.noise}
        return Problem(force, of.constraints, mass, of.restitution, **rubs)

    def _contact_velocities(self, sides: Sides, *operands: Any) -> Array | tuple[Array, Array]:
        found = self._function_on("slip", sides, *operands)
        whole = jax.eval_shape(self.problem.contact_velocity, *operands)[0] is not None
        return (found[:, 0], found[:, 1:]) if whole else found

    def _function_on(self, name: str, sides: Sides, *operands: Any) -> Array:
        """Returns the values of the "joints" or the "slip" on given sides."""

        def found(sides: Sides, *operands: Any) -> Array:
            values = self.switches.frozen(sides, *operands)
            return values[len(values) - len(self.prescribes) + self.prescribes.index(name)]

        return self.outlined.setdefault(name, outlined(found))(sides, *operands)

    def bound(self, sides: Sides) -> Problem:
        """Returns a problem whose joints and slips are evaluated on given sides of their switches; the problem itself
        if they have no switches."""
        return self.on(sides) if self.prescribes else self.problem

    def held_on(self, sides: Sides, t: Array, q: Array, v: Array, closed: Array, slack: Array, args: object) -> Held:
        """Returns the result of `trial.held`, whose other arguments these are, on given sides."""
        return held(self.on(sides), t, q, v, closed, slack, args)

    def functions(self, sides: Sides) -> tuple[Callable, Any]:
        """Returns force and mass on given sides of the switches found in them."""
        if self.smooth or self.only_stated:
            return self.problem.generalised_force, self.problem.mass
        frozen_at = lambda t, q, v, args: self.switches.frozen(sides, t, q, v, args)
        mass = self.problem.mass
        if callable(mass):
            mass = lambda q, args: frozen_at(jnp.zeros((), q.dtype), q, jnp.zeros_like(q), args)[1]
        return lambda t, q, v, args: frozen_at(t, q, v, args)[0], mass

    def prescribed_velocities(self, sides: Sides, t: Array, q: Array, v: Array, args: object) -> Array:
        """Returns the velocities (n,) that joints and slips with switches prescribe on given sides: with others the
        velocity v (d,) would jump."""
        if not self.prescribes:
            return jnp.zeros(0, q.dtype)
        along = lambda s: self._function_on("joints", sides, t + s, q + s * v, v, args)
        rate = lambda: jax.jvp(along, (jnp.zeros_like(t),), (jnp.ones_like(t),))[1]
        of = {"joints": rate, "slip": lambda: self._function_on("slip", sides, t, q, v, args).ravel()}
        return jnp.concatenate([of[name]() for name in self.prescribes])

    def continued(self, sides: Sides, force: Callable) -> Callable:
        """Returns a force on given sides of the borders of ``ends``: ``force`` itself inside, and beyond a border its
        linear extrapolation from inside; for ends that it ``passes`` that is so next to the border alone."""

        def found(t: Array, q: Array, v: Array, args: object) -> Array:
            d, fixed, eps = len(q), frozen(args), jnp.finfo(q.dtype).eps
            here = frozen(jnp.concatenate([jnp.asarray(t, q.dtype)[None], q, v]))
            surfaces = lambda x: self._levels_of_ends(sides, x[0], x[1 : d + 1], x[d + 1 :], fixed)
            # in proportions whose terms do not cancel
            parts = INSIDE * eps * jnp.concatenate([here[:1], 0.618 * q, 1.618 * v])
            if self.cancels and self.pace is not None:
                # there a slope errs by rounding over the distance, and the extrapolation by its square
                h, speed, a = self.pace
                parts += eps**0.5 * h * jnp.concatenate([jnp.ones(1, q.dtype), speed + 0.618 * h * a, a])
            level, inside = jax.jvp(surfaces, (here,), (frozen(parts),))
            inside = jnp.abs(inside) + jnp.finfo(q.dtype).tiny ** 0.5
            missing = inside - level
            beyond = (missing > 0) & jnp.isfinite(missing) & ~(self.passes & (level < -inside))

            def continued() -> Array:
                gradient = jnp.where(beyond[:, None], jax.jacfwd(surfaces)(here), 0)
                shift = linalg.solve_masked(gradient @ gradient.T, jnp.where(beyond, missing, 0), beyond) @ gradient
                at = lambda times: (t + times * shift[0], q + times * shift[1 : d + 1], v + times * shift[d + 1 :])
                return 2 * force(*at(1), args) - force(*at(2), args)

            return lax.cond(jnp.any(beyond), continued, lambda: force(t, q, v, args))

        return found

    def _levels_of_ends(self, sides: Sides, *operands: Any) -> Array:
        """Returns the levels of ``ends``."""
        if self.ends != self.stated:
            return self.levels(sides, *operands)[self.ends]
        return jnp.where(sides[self._place], 1, -1) * self.problem.switch_values(*operands)

    def status_of_sides(self, sides: Sides) -> Array:
        """Returns NON_FINITE if one of the sides is infinite, as of floor(1/t) at t = 0:
        near such a state there are borders without end."""
        infinite = [jnp.any(jnp.isinf(side)) for side in sides if jnp.issubdtype(side.dtype, jnp.floating)]
        return as_status(jnp.any(jnp.stack(infinite)), Status.NON_FINITE) if infinite else jnp.zeros((), jnp.int32)

    def levels(self, sides: Sides, *operands: Any) -> Array:
        """Returns the levels (k,) of given sides; 1 where a level is not finite."""
        found = self.switches.measured(sides, *operands)[0]
        flat = jnp.concatenate([x.ravel() for x in found])
        return jnp.where(jnp.isfinite(flat), flat, 1)

    def rates(self, sides: Sides, t: Array, q: Array, v: Array, a: Array, args: object) -> tuple[Array, Array]:
        """Returns the levels of given sides and their rates (k,) along the motion with acceleration a (d,)."""
        along = lambda s: self.levels(sides, t + s, q + s * v, v + s * a, args)
        level, rate = jax.jvp(along, (jnp.zeros_like(t),), (jnp.ones_like(t),))
        return level, jnp.where(jnp.isfinite(rate), rate, 0)

    def vanishing(self, where: Where, crossed: Array, t: Array, q: Array, v: Array, a: Array, args: object) -> Array:
        """Returns CONTACTS_NOT_SOLVED if one of the levels ``crossed`` (k,) has no slope where the motion crosses its
        border, as q^3 at q = 0, ().

        The time of the crossing is then not found. a (d,): acceleration.
        """

        def look() -> Array:
            along = lambda s: self.levels(where.sides, t + s, q + s * (v + 0.5 * s * a), v + s * a, args)
            zero, one = jnp.zeros_like(t), jnp.ones_like(t)
            first = lambda s: jax.jvp(along, (s,), (one,))
            (level, rate), (_, bend) = jax.jvp(first, (zero,), (one,))
            flat = (rate**2 <= FLAT * jnp.abs(level * bend)) & (bend != 0)
            # one that is below zero and does not fall is not crossed: the trial began behind it, by rounding
            met = crossed & ((rate < 0) | (level == 0))
            return as_status(jnp.any(met & (flat | (rate == 0))), Status.CONTACTS_NOT_SOLVED)

        t, q, v, a, args = frozen((t, q, v, a, args))
        return lax.cond(jnp.any(crossed), look, lambda: jnp.zeros((), jnp.int32))

    def sides_of(self, chosen: Array) -> list[Array]:
        """Returns for each side the mask of its entries that have one of the ``chosen`` levels (k,)."""
        found, start = [], 0
        for shape in self.shapes:
            size = math.prod(shape)
            found.append(jnp.any(chosen[start : start + size].reshape(shape), axis=-1))
            start += size
        return found

    def moved(self, where: Where, chosen: Array) -> Sides:
        """Returns the sides beyond the borders of the ``chosen`` levels (k,); the others are unchanged."""
        of = zip(self.sides_of(chosen), where.across, where.sides, strict=True)
        return [jnp.where(there, across, side) for there, across, side in of]

    def beyond(self, where: Where, chosen: Array, *operands: Any) -> Sides:
        """Returns the sides of `moved`, but evaluates switches anew, at ``operands`` (t, q, v, args),
        whose levels change with these sides.

        In a search in a table, for example, each comparison depends on the results of earlier ones; and of the chosen
        levels one may be zero on one side only, as x - 1, the remainder of x between 1 and 2,
        whose sign is no other between 0 and 1.
        """
        t, q, v, args = operands
        sides = self.moved(where, chosen)
        before = self.levels(where.sides, *operands)
        along = lambda t, q, v: self.levels(sides, t, q, v, args)
        after, terms = jax.jvp(along, (t, q, v), (t, 0.618 * q, 1.618 * v))
        own = chosen & (jnp.abs(after) <= 4 * jnp.abs(before) + where.roundoff + NEXT * jnp.abs(terms))
        of = zip(self.sides_of(own), self.sides_of(chosen | (after != before)), strict=True)
        return self.switches.chosen([given | ~other for given, other in of], sides, *operands)

    def at_sides(self, where: Where, sides: Sides, *operands: Any) -> Where:
        """Returns ``where`` with other sides, and those beyond their nearest borders at
        ``operands`` (t, q, v, args)."""
        return where._replace(sides=sides, across=self.switches.measured(sides, *operands)[1])

    def across_slides(self, where: Where, *operands: Any) -> Where:
        """Returns ``where`` with the sides ``opposite`` of its ``slides``,
        evaluated at ``operands`` (t, q, v, args)."""
        if len(self.steep) == 0:
            return where
        return where._replace(
            opposite=lax.map(lambda row: self.beyond(where, self.all_levels(row), *operands), where.slides)
        )

    def all_levels(self, steep: Array) -> Array:
        """Returns an array over all levels (k,) from the values ``steep`` (n,) of the levels of the velocity;
        false or zero for the others."""
        place = np.arange(self.count)[:, None] == self.steep[None, :]
        return (
            jnp.any(place & steep[None, :], axis=1)
            if steep.dtype == bool
            else jnp.sum(jnp.where(place, steep[None, :], 0), axis=1)
        )

    def accelerations(self, of: list[Sides], t: Array, q: Array, v: Array, closed: Array, args: object) -> Array:
        """Returns the accelerations (c, d) on each of c choices of sides, the list ``of``,
        with ``closed`` contacts (m,) kept closed."""
        on = lambda sides: self.held_on(sides, t, q, v, closed, jnp.zeros_like(t), args)[0]
        return lax.map(on, jax.tree.map(lambda *x: jnp.stack(x), *of))  # compiled once

    # sliding

    def each(self, where: Where, t: Array, q: Array, v: Array, closed: Array, slack: Array, args: object) -> tuple:
        """Returns the results (1 + n, ...) of `trial.held` on both sides of every border on which a motion slides;
        other arguments as there.

        The first result is that on ``where.sides``; result 1 + i is that across the border of row i of
        ``where.slides``, zero if the row is empty. Also returns the rates (1 + n, n) of the n levels that depend on the
        velocity, with the accelerations of each result.
        """
        every = [
            jnp.concatenate([side[None], others]) for side, others in zip(where.sides, where.opposite, strict=True)
        ]

        def across(sides: Sides) -> tuple[Held, Array]:
            found = self.held_on(sides, t, q, v, closed, slack, args)
            return found, self.rates(where.sides, t, q, v, found[0], args)[1][self.steep]

        shapes = jax.eval_shape(across, where.sides)
        nothing = lambda sides: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        needed = jnp.concatenate([jnp.ones(1, bool), jnp.any(where.slides, axis=1)])
        return lax.map(lambda x: lax.cond(x[0], across, nothing, x[1]), (needed, every))  # compiled once

    def blend(
        self, where: Where, t: Array, q: Array, v: Array, closed: Array, slack: Array, args: object
    ) -> tuple[Held, Array]:
        """Returns the result of `trial.held` for a motion that slides:
        the convex combination of both sides that keeps it on its borders.

        Also returns the weights (n,) of the sides across. Other arguments as of `trial.held`.
        """
        found, rates = self.each(where, t, q, v, closed, slack, args)
        part = linalg.solve_masked((rates[1:] - rates[:1]).T, -rates[0], jnp.any(where.slides, axis=1))
        a, force, push, joint_force = (x[0] + jnp.tensordot(part, x[1:] - x[:1], 1) for x in found)
        return (a, force, frozen(push), joint_force), part

    def hold(self, where: Where) -> Hold:
        """Returns the function that gives accelerations on the sides ``where``, sliding included, with the arguments
        and results of `trial.held`."""

        def found(t: Array, q: Array, v: Array, closed: Array, slack: Array, args: object) -> Held:
            if len(self.steep) == 0:
                return self.held_on(where.sides, t, q, v, closed, slack, args)
            return self.blend(where, t, q, v, closed, slack, args)[0]

        return found

    def watch(self, where: Where, closed: Array, slack: Array, args: object) -> Callable:
        """Returns the function of (t, q, v, a) by which trials watch the borders: it gives levels and their rates (k,).

        For a border on which the motion slides, x (1 - x) takes the place of the level, x being the weight of the force
        on the other side: it is positive while the motion slides, and zero where it leaves the border to either side.
        """

        def watched(t: Array, q: Array, v: Array, a: Array) -> tuple[Array, Array]:
            value, rate = self.rates(where.sides, t, q, v, a, args)
            if len(self.steep) == 0:
                return value, rate

            def sliding() -> tuple[Array, Array]:
                along = lambda s: self.blend(where, t + s, q + s * v, v + s * a, closed, slack, args)[1]
                part, speed = jax.jvp(along, (jnp.zeros_like(t),), (jnp.ones_like(t),))
                first, there = jnp.any(where.slides, axis=1), self.slid(where)
                margin = self.all_levels(jnp.where(first, part * (1 - part), 1))
                turns = self.all_levels(jnp.where(first, (1 - 2 * part) * speed, 0))
                return jnp.where(there, margin, value), jnp.where(there, turns, rate)

            return lax.cond(jnp.any(where.slides), sliding, lambda: (value, rate))

        return watched

    def margins(self, where: Where, t: Array, q: Array, v: Array, closed: Array, slack: Array, args: object) -> Array:
        """Returns x (1 - x), as in `watch`, for the levels on whose borders the motion slides, and zero for the others,
        (k,)."""
        part = self.blend(where, t, q, v, closed, slack, args)[1]
        return self.all_levels(jnp.where(jnp.any(where.slides, axis=1), part * (1 - part), 0))

    def slid(self, where: Where) -> Array:
        """Returns the mask of levels (k,) on whose borders the motion slides."""
        return self.all_levels(jnp.any(where.slides, axis=0))

    def local(self, where: Where, t: Array, q: Array, v: Array, closed: Array, args: object) -> Problem:
        """Returns the problem whose force is that at a state: on the sides ``where``, or mixed of both sides where the
        motion slides on a border.

        The weights of the mixture are constants for differentiation.
        """
        if len(self.steep) == 0:
            return self.on(where.sides)
        return self.mixed(where, frozen(self.parts(where, t, q, v, closed, args)))

    def parts(self, where: Where, t: Array, q: Array, v: Array, closed: Array, args: object) -> Array:
        """Returns the weights (n,) of the sides across, as the second result of `blend`;
        zero for a motion that does not slide."""
        slides = lambda: self.blend(where, t, q, v, closed, jnp.zeros_like(t), args)[1]
        return lax.cond(jnp.any(where.slides), slides, lambda: jnp.zeros(len(self.steep), q.dtype))

    def mixed(self, where: Where, part: Array) -> Problem:
        """Returns the problem with the mixed force of a motion that slides on borders; ``part`` (n,):
        weights of the forces across these."""
        plain = self.on(where.sides)

        def force(t: Array, q: Array, v: Array, args: object) -> Array:
            found = plain.generalised_force(t, q, v, args)
            across = lambda sides: self.on(sides).generalised_force(t, q, v, args)
            return found + part @ (lax.map(across, where.opposite) - found[None])

        return plain.replace(force=force)

    def put_back(self, where: Where, t: Array, q: Array, v: Array, closed: Array, args: object) -> Array:
        """Returns the velocity (d,) moved onto the borders on which the motion slides, along the differences of the
        accelerations of both sides."""
        found, rates = self.each(where, t, q, v, closed, jnp.zeros_like(t), args)
        matrix = (rates[1:] - rates[:1]).T
        acting = jnp.any(where.slides, axis=1)
        level = self.levels(where.sides, t, q, v, args)[self.steep]
        back = linalg.solve_masked(matrix, jnp.where(acting, level, 0), acting)
        return v - back @ (found[0][1:] - found[0][:1])
