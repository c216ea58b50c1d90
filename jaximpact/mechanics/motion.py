"""`Motion`: the numbers of one motion, or of many with lane axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ..jaxtools.jaxpr_tools import inline_calls, varying_outputs
from .problem import Problem

OF_FRICTION = ("friction", "static_friction")
OF_CONTACTS = ("e", *OF_FRICTION)  # numbers of contacts that calls give in place of the problem's
STATED = {"e": "restitution"} | {name: name for name in OF_FRICTION}  # what the problem calls them


@jax.tree_util.register_static
@dataclass(frozen=True)
class By:
    """The inputs by which derivatives are taken, as far as that is known at trace time: t0, q0, v0, each leaf of args;
    ``times``: whether t0, t1 or h are among them; ``measured``: whether it is found out, too, by how much derivatives
    are off as the last of many bounces are left out."""

    t0: bool
    q0: bool
    v0: bool
    args: tuple[bool, ...]
    times: bool
    measured: bool = False

    @classmethod
    def of(cls, marks: Motion) -> By:
        """Makes it from a motion whose leaves are marks: whether derivatives are taken by them."""
        of = lambda *x: any(map(bool, jax.tree.leaves(x)))
        times = of(marks.t0, marks.t1, marks.h)
        return cls(of(marks.t0), of(marks.q0), of(marks.v0), tuple(map(bool, jax.tree.leaves(marks.args))), times)

    def changes(self, function: Callable, *at: Any, of: tuple[bool, ...] = (False, False)) -> bool:
        """Whether a ``function`` of (t, q, args) depends on inputs by which derivatives are taken: on args, and on t
        and q if these are marked in ``of``. It is decided from its jaxpr, so that x * 0 depends on x."""
        return any(varying_outputs(inline_calls(jax.make_jaxpr(function)(*at)), [*of, *self.args]))

    def moves_start(self, problem: Problem, t: Array, q: Array, args: object) -> bool:
        """Whether a start, which is put onto surfaces and joints in the kinetic metric, moves with these inputs."""
        functions: list[Callable] = [problem.gaps] if problem.constraints is not None else []
        if problem.joints is not None:
            functions.append(problem.joints)
            functions += [lambda t, q, args: problem.mass(q, args)] if callable(problem.mass) else []
        return self.q0 or self.v0 or self.t0 or any(self.changes(of, t, q, args) for of in functions)

    def joined(self, other: By | None) -> By:
        """Returns the inputs by which derivatives are taken in either."""
        if other is None:
            return self
        args = tuple(x or y for x, y in zip(self.args, other.args, strict=True))
        either = {x.name: getattr(self, x.name) or getattr(other, x.name) for x in fields(By)}
        return By(**either | {"args": args})


class At(NamedTuple):
    """Where functions of a problem are evaluated, in the order in which they take it: at time t (), position q and
    velocity v (d,), with ``args``."""

    t: Array
    q: Array
    v: Array
    args: Any

    def after(self, time: Array, a: Array) -> At:
        """Returns the place after a ``time`` () [s], at constant velocity, which the acceleration a (d,) has changed by
        then."""
        return At(self.t + time, self.q + time * self.v, self.v + time * a, self.args)


class Motion(NamedTuple):
    """The numbers that define one motion of a problem.

    Initial position and velocity q0, v0 (d,); times t0, t1 and step h [s], (); number of ``steps``; restitution e, ()
    or (m,), which is 1 if the problem has a function for it; ``args``; coefficients of ``friction`` and
    ``static_friction``, () or (m,), None if there are none or the problem has a function for them; ``key`` (2,) of 32
    bits each, of random numbers, None for a problem without noise. ``by``: what derivatives are taken by, inside the
    loop over steps; None where that is not known.
    """

    q0: Any
    v0: Any
    t0: Any
    t1: Any
    h: Any
    steps: Any
    e: Any
    args: Any = None
    friction: Any = None
    static_friction: Any = None
    key: Any = None
    by: Any = None  # By

    @property
    def start(self) -> At:
        """Where the motion begins."""
        return At(self.t0, self.q0, self.v0, self.args)

    @property
    def by_times(self) -> bool:
        """Whether derivatives are known to be taken by times, so that what happens at times that do not
        depend on data counts too."""
        return self.by is not None and self.by.times

    def time(self, n: ArrayLike) -> Array:
        """Returns the time t0 + n h of step n, free of accumulated rounding."""
        return self.t0 + jnp.asarray(n).astype(self.h.dtype) * self.h

    def stated_in(self, problem: Problem) -> Problem:
        """Returns the problem with the motion's coefficients of friction."""
        own = {name: getattr(self, name) for name in OF_FRICTION}
        own = {name: x for name, x in own.items() if x is not None}
        return problem.replace(**own) if own else problem
