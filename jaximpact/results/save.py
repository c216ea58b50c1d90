"""`Save` and `Events`: which rows and impacts of a motion are saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import check_counts, is_traced, known_numbers
from ..mechanics.events.impact_record import IMPACT, KINDS


@dataclass(frozen=True)
class Save:
    """Rows that `solve` saves. The last row of a solution is always the state at t1.

    Attributes:
        every: every k-th step from the start, k >= 1; rows at t0, t0 + k h, ..., t1.
        times: given times (k,), increasing, in [t0, t1]; positions are interpolated affinely between steps. If the last
            time equals t1, its row is the final row; if t1 is traced or differs between lanes,
            a final row at t1 follows it.
        function: ``function(t, q, v, args) -> pytree`` whose values are stored in place of the states,
            as ``solution.values``.

    With neither ``every`` nor ``times`` only the final state is kept.
    """

    every: Any = None
    times: Any = None
    function: Callable | None = None
    impacts: ClassVar[int] = 0  # number of impacts that are kept
    kinds: ClassVar[tuple[str, ...]] = (IMPACT,)  # or of events of other kinds

    @classmethod
    def of(cls, save: SaveLike) -> Save:
        """`Save` from its short forms: "all", "final", a whole number k, an array of times, or a `Save`."""
        if isinstance(save, cls):
            if save.function is not None and not callable(save.function):
                raise TypeError(f"save: function must be a function(t, q, v, args) -> pytree, got {save.function!r}")
        elif isinstance(save, str):
            if save not in ("all", "final"):
                raise ValueError(
                    f"save={save!r}: use 'all', 'final', every k-th step (a whole number), times, or Save(...)"
                )
            save = cls(every=1) if save == "all" else cls()
        elif isinstance(save, int | np.integer):
            save = cls(every=save)
        elif callable(save):
            save = cls(every=1, function=save)
        else:
            save = cls(times=save)
        if isinstance(save, Events):
            check_counts(**{"save: Events(impacts=...)": save.impacts})
            kinds = (save.kinds,) if isinstance(save.kinds, str) else tuple(save.kinds)
            unknown = [kind for kind in kinds if kind not in KINDS]
            if unknown or not kinds:
                raise ValueError(f"save: Events(kinds=...) takes some of {', '.join(KINDS)}, got {save.kinds!r}")
            save = replace(save, impacts=int(save.impacts), kinds=tuple(kind for kind in KINDS if kind in kinds))
        if save.every is not None and save.times is not None:
            raise ValueError("save: give either every or times, not both")
        if save.every is not None:
            check_counts(**{"save: every": save.every})
            save = replace(save, every=int(save.every))
        if save.times is not None and not is_traced(save.times):
            known_numbers("save: times", save.times)
        return save


@dataclass(frozen=True)
class Events(Save):
    """Saves rows, as `Save`, and the first impacts of the motion, as ``solution.events``; for `EventDriven`,
    which locates events.

    Times, positions and velocities of impacts can be differentiated:
    ``jax.jacfwd(lambda e: solve(..., e=e, save=Events(impacts=5)).events.t)``.

    Attributes:
        impacts: the number k of impacts, or of events of the ``kinds``, that are kept, from the first on.
        kinds: which events are kept, by default impacts: some of "impact", "stop" (slip ends in sticking), "reversal"
            (slip turns round without sticking), "break" (a contact that sticks begins to slip) and "release" (a lasting
            contact opens). Ends of stick and slip by an impact count too. A closing contact that
            does not bounce is an impact.
        every, times, function: rows, as in `Save`; by default the final state only.
    """

    impacts: int = 8  # type: ignore[misc]
    kinds: tuple[str, ...] = (IMPACT,)  # type: ignore[misc]


# "all", "final", a whole number k, times, a function of a state, or a `Save`
SaveLike = Save | str | int | Callable | ArrayLike
