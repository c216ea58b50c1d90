"""`Solution`: one computed motion or a batch of them, as `solve` and `ensemble` return it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import is_array, is_traced
from ..jaxtools.shapes import PyTree
from ..mechanics.labels import UNNAMED, Labels
from ..mechanics.scheme import Timing
from ..mechanics.status import FAILURES, Status, describe, event_name, summarise
from . import interpolation, paraview
from .located_impacts import LocatedImpacts
from .provenance import provenance
from .result import Drawable, Result, analysis, plots
from .save import Save
from .tables import to_dataset, to_table

if TYPE_CHECKING:
    import pandas
    import xarray
    from matplotlib.axes import Axes

    from ..mechanics.problem import Problem

P = ParamSpec("P")
R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class Origin:
    """Record of the call that made a solution; it holds no arrays, so that it is static for jax.

    Attributes:
        every_step: whether its rows are all steps of the motion; None if unknown.
        naming: names and units of its problem.
        made: versions, device and processor that it was computed with, if it comes from a file; else None.
    """

    every_step: bool | None = None
    naming: Labels = UNNAMED
    made: tuple[tuple[str, str], ...] | None = field(default=None, compare=False)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Solution(Drawable):
    """A computed motion, or a batch of motions with leading lane axes.

    ``solution[3]``, ``solution[2:5]`` and ``solution[mask]`` are lanes of a batch; iterating goes over them.

    Attributes:
        t: times of the rows (k,) [s]; the last is t1.
        q: positions (k, d), U in the papers of the schemes, interpolated affinely between steps. For e > 0 they may
            leave the admissible set by O(h).
        v: velocities (k, d) over the step that ends at or after the row's time.
        z: admissible positions (k, d) of that step, Z in these papers. With `EventCorrected` and `EventDriven` q, v and
            z are those at the row's time.
        impulse: impulse of each constraint accumulated since the start (k, m).
        energy: energy at (q, v) (k,) if the problem defines one, else None; in a row within the two steps of an impact,
            at the velocity before it.
        values: values of the save function (`Save`) at the rows, with a leading axis k; q, v,
            z and impulse then hold the final row only.
        penetration: largest violation of a gap by q over all steps, ().
        residual: largest KKT residual of a contact problem [velocity], ().
        iterations: iterations of the contact solver over all steps, (). In native code and kernels only of the steps in
            which a contact may close.
        status: `Status` bits OR-ed over the steps, ().
        failed_at: time of the first failure, NaN where none, () [s].
        timing: the scheme, and the times to which its velocities and impulses belong (`Timing`); static. None in a
            solution put together by hand.
        origin: record of the call that made it (`Origin`); static.
        pairs: with `jaximpact.bodies`, if near pairs are listed, the bodies of each of the m contacts (k, m, 2): bodies
            i < j, or body i and obstacle a as (i, -1 - a); (N, N) in an empty slot. ``impulse`` is then that of the
            row's last step only. Else None.
        events: the first impacts (`LocatedImpacts`), with ``save=Events(impacts=k)``; else None.
        joint_impulse: with joints, the impulse of each of their equations accumulated since the start (k, j); where
            some equations follow from others, in each step the impulses of least norm among those that
            give the same motion. Else None.
        friction_impulse: with friction, the impulse of each contact along its tangents accumulated since the start, (k,
            m, 1) in the plane, (k, m, 2) in space. Else None.
        joint_residual: with joints, the largest value |c| of their equations c = 0 over all steps, (). Else None.
        error: with `EventDriven`, the estimated errors of all substeps added up, in units of the tolerance, ():
            positions and velocities are off by about error × (atol + rtol |x|), by more where the motion makes errors
            grow (`jaximpact.convergence` measures that). Its derivative is that of the bounces that are left out, times
            atol an estimate of what other derivatives are off by that. Else None.
        failed_by: with `EventDriven`, the number of the event that a step with TRIALS_EXHAUSTED met last, which
            `raise_if_failed` names: i for gap i, of m contacts m + i for level i of the force's switches; with friction
            m + i where slip i stops, 2m + i or 3m + i where contact i breaks loose; -1 for none, (). Else None.
        stopped: with ``until=``, whether the motion ended before t1, (); rows after the stop repeat the state and time
            of the stop. Else None.
    """

    t: Array
    q: Array
    v: Array
    z: Array
    impulse: Array
    energy: Array | None
    values: PyTree
    penetration: Array
    residual: Array
    iterations: Array
    status: Array
    failed_at: Array
    timing: Timing | None = field(default=None, metadata={"static": True})
    origin: Origin = field(default=Origin(), metadata={"static": True})
    pairs: Array | None = None
    events: LocatedImpacts | None = None
    stopped: Array | None = None
    joint_impulse: Array | None = None
    friction_impulse: Array | None = None
    joint_residual: Array | None = None
    error: Array | None = None
    failed_by: Array | None = None
    made: ClassVar[Any] = None  # type: ignore[misc]  # no field: its origin, which is static, has it

    def __repr__(self) -> str:
        of_q, of_impulse = np.shape(self.q), np.shape(self.impulse)
        if not np.shape(self.t) or len(of_q) < 2 or len(of_impulse) < 2:
            return "Solution(...)"
        *batch, rows, d = of_q
        parts = [] if self.timing is None else [self.timing.scheme]
        parts += [f"{' x '.join(map(str, batch))} motions"] if batch else []
        parts += [f"{rows} row{'s' * (rows != 1)}", f"d = {d}", f"m = {of_impulse[-1]}"]
        if is_array(self.status) and not is_traced(self) and self.status.size:
            t, status = np.asarray(self.t), int(np.bitwise_or.reduce(np.ravel(self.status)))
            deepest = 0.0 + np.max(self.penetration)  # never -0
            parts += [f"t = {t.min():g} ... {t.max():g}", f"penetration = {deepest:.3g}"]
            parts += [f"status = {Status(status)}"]
            if self.stopped is not None:
                ended = int(np.sum(self.stopped))
                parts += [f"{ended} stopped" if batch else "stopped" if ended else "not stopped"]
            if batch:
                parts.append(f"{np.sum(self.failed)} failed")
        return f"Solution({', '.join(parts)})"

    def _facts(self) -> list[tuple[str, str]]:
        if not is_array(self.status) or self._is_traced():
            return super()._facts()
        found = [fact for fact in super()._facts() if fact[0] not in ("status", "timing", "origin")]
        status = Status(int(np.bitwise_or.reduce(np.ravel(self.status))))
        lost = f"; {int(np.sum(self.failed))} of {np.size(self.status)} motions failed" if np.ndim(self.status) else ""
        scheme = [] if self.timing is None else [("scheme", self.timing.scheme)]
        return [*scheme, *found, ("status", f"{status}{lost}")]

    def _with_labels(self, naming: Labels, every_step: bool | None) -> Solution:
        return replace(self, origin=replace(self.origin, naming=naming, every_step=every_step))

    # lanes

    @property
    def _lanes(self) -> tuple[int, ...]:
        """Shape of the leading lane axes."""
        return tuple(np.shape(self.penetration))

    def __len__(self) -> int:
        """The number of motions of a batch."""
        return self._lane_axis()

    def __bool__(self) -> bool:
        return True  # one motion too, which has no length

    def __getitem__(self, which: ArrayLike | slice) -> Solution:
        """Selects lanes of a batch: one by its number, several by a slice, a mask (B,) or numbers.

        Raises:
            TypeError: there is no lane axis, or ``which`` is something else. IndexError: there is no such lane.
        """
        lanes = self._lane_axis()
        if is_traced(which):
            return jax.tree.map(lambda x: jnp.asarray(x)[which], self)
        if not isinstance(which, slice):
            which = np.asarray(which)
            if which.dtype == bool and which.shape != (lanes,):
                raise IndexError(f"solution[mask]: the mask must have shape ({lanes},), got {which.shape}")
            if which.dtype.kind not in "biu" and which.size:
                raise TypeError(
                    f"solution[...] takes the number of a lane, a slice, a mask or numbers, got {which.dtype} of shape "
                    f"{which.shape}"
                )
            which = which if which.size or which.dtype == bool else which.astype(int)
            if which.dtype != bool and which.size and not (-lanes <= which.min() and which.max() < lanes):
                raise IndexError(f"solution[{which}]: there are lanes 0 ... {lanes - 1}")
        return jax.tree.map(lambda x: x[which], self)

    def __iter__(self) -> Iterator[Solution]:
        """Goes through the motions of a batch, as numpy arrays: those of an accelerator are
        copied once for all motions."""
        lanes = self._lane_axis()
        found = self if is_traced(self) else jax.device_get(self)
        return (found[i] for i in range(lanes))

    def _lane_axis(self) -> int:
        if not self._lanes:
            raise TypeError(
                "this solution is one motion and has no lane axis: rows are those of solution.q, solution.t"
            )
        return self._lanes[0]

    # other times

    def at(self, t: ArrayLike, problem: Problem | None = None, **options: Any) -> Solution:
        """Interpolates the motion to other times, as ``save=t`` would have given it.

        Without ``problem``: positions are affine and impulses are spread evenly over each step; v and z are those of
        the step that ends at or after t. Up to rounding these are the rows that `solve` gives with ``save=t``. For
        `EventCorrected` and `EventDriven`, whose velocities belong to the times of the rows, the path is a cubic
        between rows or, in a step with an impact, two parabolas that meet at the impact; its error is of second order
        in h, whereas rows of ``save=t`` are as accurate as the scheme. Energies are left out: compute
        ``problem.energy(t, q, v, args)``.

        With ``problem``, and args, args_axes and e as they were given, the motion is run again from the row before each
        time. The result is as accurate as the scheme, also near impacts, and costs a substep or two for each time.
        Under a transformation of jax this is the only way, for one motion only;
        the result then has the derivative of the motion, also by t.

        Args:
            t: times in [t0, t1], a number or (k,) [s]; a number gives one row.
            problem: the mechanical system; only for a solution by a scheme that locates impacts.
            **options: args, args_axes, e, and the scheme, by default `EventDriven(1e-12, 1e-12)` or `EventCorrected()`.

        Returns:
            A `Solution` of numpy arrays with a row for each time; fields of the whole motion, such as ``penetration``,
            are unchanged.

        Raises:
            ValueError: a time outside [t0, t1], or rows that are not all steps:
                solve with save="all" (ensemble: save=1).
            TypeError: inside a jax transformation without the problem, where ``save=t`` serves too.
        """
        if problem is not None:
            return analysis().recomputed(problem, self, t, **options)
        return interpolation.at(self, t)

    @property
    def joint_force(self) -> Array | None:
        """With joints, the mean force of each of their equations between rows,
        (..., k - 1, j) [J / unit of the equation]; else None.

        Between two rows with an impact it includes the impulse of the impact.
        """
        if self.joint_impulse is None:
            return None
        gained = self.joint_impulse[..., 1:, :] - self.joint_impulse[..., :-1, :]
        return gained / (self.t[..., 1:] - self.t[..., :-1])[..., None]

    def impacts(self, problem: Problem, **options: Any) -> Any:
        """Times, velocities and impulses of all impacts: `jaximpact.analysis.impacts` of this solution, with the same
        options (args included)."""
        return analysis().impacts(problem, self, **options)

    def slips(self, problem: Problem, **options: Any) -> Any:
        """Modes (open, stick, slip) of each contact, work of friction, and events of slip: `jaximpact.analysis.slips`
        of this solution, with the same options."""
        return analysis().slips(problem, self, **options)

    # other forms

    def to_xarray(self) -> xarray.Dataset:
        """All arrays as an `xarray.Dataset` with named dimensions (lane, time, coordinate, constraint),
        units and meanings; needs xarray.

        Times are a coordinate if all lanes share them, else the variable t. Numbers of a save function are variables
        ``values_...``; q, v, z and impulse are then the state at t1.
        """
        return to_dataset(self)

    def to_pandas(self) -> pandas.DataFrame:
        """A table with a row for each time, indexed by t, or by lane and t; needs pandas.
        The last row is that of t1."""
        return to_table(self)

    def to_paraview(self, path: str | Path, *, dimension: int = 3, radius: ArrayLike | None = None) -> Path:
        """Writes one motion of bodies for ParaView: ``path``, ending in .pvd, and a folder of VTK files beside it.

        In every row bodies are points with their velocity, and radius if given; with listed near pairs, contacts with
        an impulse are lines with their impulse in the step. Needs vtk (`pip install vtk`).

        Args:
            dimension: coordinates of each body, 2 or 3.
            radius: a number, one for each body (N,), or a function of t that returns one of these;
                stored for each point, to draw glyphs.

        Returns:
            The path.

        Raises:
            ValueError: several motions, coordinates that do not divide by the dimension, another ending,
                radii of another shape.
            ImportError: vtk is not installed.
        """
        return paraview.write(self, path, dimension, radius)

    def animate(
        self, path: str | Path | None = None, *, draw: Callable[[Axes, float, np.ndarray], object], **options: Any
    ) -> Any:
        """Animates the motion: `jaximpact.plots.animate` of this solution; needs matplotlib."""
        return plots().animate(self, path, draw=draw, **options)

    @property
    def naming(self) -> Labels:
        """Names and units of its problem."""
        return self.origin.naming

    @property
    def provenance(self) -> dict[str, str]:
        """Versions, device and processor of this process or, for a solution from a file,
        of the one that computed it."""
        return provenance() if self.origin.made is None else dict(self.origin.made)

    # status

    def raise_if_failed(self) -> Solution:
        """Returns this solution, or raises RuntimeError saying which motions failed, when, and the likely causes."""
        if np.any(np.asarray(self.status) & int(FAILURES)):
            raise RuntimeError(self._failures())
        return self

    def _failures(self) -> str:
        """A text on the failures: which motions, when, at which events, and their causes."""
        status = np.asarray(self.status).ravel()
        if self.failed_by is None:
            return summarise(status, np.asarray(self.failed_at).ravel())
        m, contacts = np.shape(self.impulse)[-1], self.origin.naming.contacts
        name = lambda number: event_name(int(number), m, self.friction_impulse is not None, contacts)
        exhausted = (status & int(Status.TRIALS_EXHAUSTED)) != 0
        events = [name(x) if lost else "" for x, lost in zip(np.ravel(self.failed_by), exhausted, strict=True)]
        return summarise(status, np.asarray(self.failed_at).ravel(), events)

    @property
    def failed(self) -> Array:
        """Whether each motion failed, () or (B,)."""
        return (self.status & int(FAILURES)) != 0

    def describe_status(self) -> str:
        """The status bits set in any trajectory, in words."""
        return describe(int(np.bitwise_or.reduce(np.asarray(self.status).ravel())))


def with_names(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator of a function whose first argument is a problem: its result gets the problem's names and units, and
    records if rows are all steps."""
    saves = inspect.signature(function).parameters.get("save")

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        found = function(*args, **kwargs)
        every_step = None
        if saves is not None:
            chosen: Any = kwargs.get("save", saves.default)
            save = Save.of(chosen)
            every_step = save.every == 1 and save.function is None
        problem: Any = args[0] if args else kwargs["problem"]
        return found._with_labels(problem.naming, every_step)

    return call
