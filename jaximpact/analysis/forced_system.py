"""A forced system of which two parameters are varied: the arguments of its motions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..mechanics.motion import Motion
from ..simulation.call import Arguments, Call
from ..simulation.canonical_arrays import cast_numbers, full_axes
from ..simulation.lanes import Lanes
from .checks import TimeLike, number_of, positive_time
from .orbit_family import BOUNDS


class LaneNumbers(NamedTuple):
    """Arguments of B motions of a `ForcedSystem`, by `ensemble`: args and their lane axes, restitution and friction by
    name, and periods (B,)."""

    args: Any
    args_axes: Any
    of_contacts: Arguments
    period: np.ndarray

    @property
    def first(self) -> Any:
        """The args of the first motion."""
        if self.args_axes is None:
            return self.args
        return {key: x if self.args_axes[key] is None else x[0] for key, x in self.args.items()}


@dataclass(frozen=True)
class ForcedSystem:
    """A forced system with two varied parameters, with ``paths`` of `parameter_path`, in the intervals [low,
    low + width], (2,) each.

    ``call``: problem, args, restitution and friction, methods and steps of a motion over ``cycles`` of the ``period``,
    as the user gave them.
    """

    call: Call
    paths: tuple[tuple[str, ...], ...]
    low: np.ndarray
    width: np.ndarray
    period: TimeLike
    cycles: int

    def values(self, z: np.ndarray) -> np.ndarray:
        """Parameters (B, 2) at scaled unknowns (B, n), from the last two unknowns."""
        return self.low + self.width * z[:, -2:]

    def numbers(self, values: np.ndarray) -> LaneNumbers:
        """Returns the arguments of B motions with the parameters ``values`` (B, 2)."""
        given = dict(zip(self.paths, values.T, strict=True))
        own = {path[1]: x for path, x in given.items() if path[0] == "args"}
        # restitution and friction have no values beyond their bounds, where points of a difference may lie
        varied = {path[0]: np.clip(x, *BOUNDS[path[0]])[:, None] for path, x in given.items() if path[0] in BOUNDS}
        args = self.call.args if not own else self.call.args | own
        axes = {key: 0 if key in own else None for key in args} if own else None
        period = self.cycles * positive_time("period", self.period, args, axes)
        return LaneNumbers(args, axes, self.call.of_contacts | varied, np.broadcast_to(period, (len(values),)))

    def begin(self, numbers: LaneNumbers) -> np.ndarray:
        """Returns the times (B,) of the section: ``t0``, evaluated for the args of each motion."""
        found = number_of("t0", self.call.t0, numbers.args, numbers.args_axes)
        return np.broadcast_to(found, numbers.period.shape)

    def over_period(self, q: np.ndarray, v: np.ndarray, numbers: LaneNumbers) -> Call:
        """The call of the motions from the states q, v (B, d) over one period."""
        begin = self.begin(numbers)
        given = {"args": numbers.args, "args_axes": numbers.args_axes, **numbers.of_contacts}
        return self.call.replace(q0=q, v0=v, t0=begin, t1=begin + numbers.period, **given)

    def lanes(self, q: np.ndarray, v: np.ndarray, values: np.ndarray) -> Lanes:
        """The motions from the state q, v (d,) over one period, with the parameters ``values`` (B, 2)."""
        numbers, count = self.numbers(values), len(values)
        begin, none = self.begin(numbers), dict.fromkeys(("h", "steps", "e"))
        start: Arguments = {"q0": np.tile(q, (count, 1)), "v0": np.tile(v, (count, 1))}
        motion = Motion(
            **start, t0=begin, t1=begin + numbers.period, args=cast_numbers("args", numbers.args, q.dtype), **none
        )
        axes: Any = dict.fromkeys(("q0", "v0", "t0", "t1"), 0)
        return Lanes.of(motion, Motion(**axes, args=full_axes(numbers.args, numbers.args_axes), **none), count)
