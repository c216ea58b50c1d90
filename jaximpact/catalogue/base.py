"""Structure of a catalogue problem: a `Problem`, named cases of initial data, exact motions, and predicted orders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..jaxtools.shapes import PyTree
from ..mechanics.method_names import suggestion
from ..mechanics.problem import Problem

Motion = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Orders:
    """Orders that theory predicts for one scheme on one case; None where it predicts none.

    ``position`` is the order of the sup-norm error at the nodes, ``velocity`` of the L1 error, ``impulse`` of the
    total impulse. ``exact=True``: nodes are exact to round-off, and no position order can be observed.
    """

    position: float | None = 1.0
    velocity: float | None = 1.0
    impulse: float | None = None
    exact: bool = False


@dataclass(frozen=True)
class Case:
    """One motion of a catalogue problem.

    Attributes:
        q0, v0: initial position and velocity, shape (d,).
        t1: final time; motions start at t = 0 [s].
        restitution: coefficient e.
        args: parameters for the problem's functions.
        exact: ``exact(t) -> (q, v)`` for t of shape (k,), returns two (k, d) float64 arrays, v right-continuous;
            None where no closed form is known.
        impulse: exact impulse of each constraint accumulated over [0, t1], shape (m,), or None.
        impacts: exact impact times in (0, t1], or None (accumulation points truncated).
        orders: predicted orders by scheme label (`jaximpact.mechanics.method_names.SCHEMES`).
        note: what is particular about this case.
    """

    q0: np.ndarray
    v0: np.ndarray
    t1: float
    restitution: float
    args: PyTree = None
    exact: Motion | None = None
    impulse: np.ndarray | None = None
    impacts: np.ndarray | None = None
    orders: Mapping[str, Orders] = field(default_factory=dict)
    note: str = ""

    def parameters(self, given: PyTree) -> PyTree:
        """Args of this case with some replaced by ``given``; ValueError for a name that is
        not one of its parameters."""
        if given is None:
            return self.args
        if not isinstance(self.args, dict) or not isinstance(given, dict):
            if self.args is None and given:
                raise ValueError(f"args: this problem has no parameters, got {given!r}")
            return given
        for name in given:
            if name not in self.args:
                raise ValueError(f"args: no parameter {name!r}; {suggestion(name, self.args)}")
        return self.args | given


@dataclass(frozen=True)
class Entry:
    """A catalogue problem: statement, hypotheses that it satisfies, source, and its cases by name.

    ``id`` is a short stable label ("B01"), ``name`` a readable one ("bouncing-ball"). ``cases`` maps a case name
    to its `Case`; the first is the default.
    """

    id: str
    name: str
    title: str
    statement: str
    problem: Problem
    cases: Mapping[str, Case]
    hypotheses: str
    source: str = ""

    def case(self, name: str | None = None) -> Case:
        """The named case, or the first one."""
        if name is None:
            return next(iter(self.cases.values()))
        if not isinstance(name, str) or name not in self.cases:  # an array compares entry by entry
            raise KeyError(f"{self.name} has no case {name!r}; its cases are {', '.join(map(repr, self.cases))}")
        return self.cases[name]
