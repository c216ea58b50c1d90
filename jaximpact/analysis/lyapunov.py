"""Lyapunov exponents of motions with impacts, from products of Jacobians that are right across impacts.

The motion is cut into intervals. The Jacobian of each, saltation included, carries an orthonormal frame; a QR
factorisation makes it orthonormal again, and the logarithms of R's diagonal, averaged over time, are the exponents. All
of it is one compiled loop.

Reference: G. Benettin, L. Galgani, A. Giorgilli, J.-M. Strelcyn, Meccanica 15 (1980) 9-20 and 21-30; with impacts
P. C. Müller, Chaos, Solitons & Fractals 5 (1995) 1671-1681.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Unpack

import jax
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import check_counts
from ..mechanics.motion import Motion
from ..mechanics.problem import Problem
from ..mechanics.status import FAILURES, Status, describe
from ..results import Arrays, Drawable
from ..simulation.call import Call
from ..simulation.lanes import Lanes
from ..simulation.program import Program
from .checks import TimeLike, takes_study
from .default_scheme import SECTION
from .options import LaneOptions, with_options
from .stroboscopic_map import (
    allowed_directions,
    blocks,
    directions,
    jacobians,
    lost_derivatives,
    prepare_strobe,
    with_unit_quaternions,
)


@dataclass(frozen=True, repr=False)
class Lyapunov(Drawable):
    """Result of `lyapunov`: Lyapunov exponents of a motion in d coordinates;
    a batch adds a leading axis B to each array.

    Attributes:
        exponents: exponents (2d,), 2 less for each independent joint and each quaternion [1/s], in decreasing order if
            they are well resolved; NaN if the motion failed or has no finite derivative (with a warning), -inf if a
            direction is lost altogether (an inelastic contact that lasts).
        error: standard error of each exponent, from the scatter of the block means [1/s].
        blocks: means of the exponents over blocks of intervals (blocks, 2d) [1/s].
        q, v: state at the end (d,).
        t: time at the end, () [s].
        status: `Status` bits, ().
    """

    exponents: np.ndarray
    error: np.ndarray
    blocks: np.ndarray
    q: np.ndarray
    v: np.ndarray
    t: np.ndarray
    status: np.ndarray

    def _arrays(self) -> Arrays:
        lanes = "lane " * (np.ndim(self.exponents) - 1)
        of_all = self._along(f"{lanes}direction", "exponents", "error")
        return of_all | self._along(f"{lanes}block direction", "blocks") | self._along(lanes, "q", "v", "t", "status")

    def _columns(self) -> dict[str, np.ndarray]:
        if np.ndim(self.exponents) == 1:
            return self._table("exponents", "error")
        return {"lane": np.arange(len(self.exponents)), **self._table("exponents", "error", "q", "v", "t", "status")}

    @property
    def largest(self) -> np.ndarray:
        """The largest exponent, () or (B,)."""
        return self.exponents.max(axis=-1)

    @property
    def failed(self) -> np.ndarray:
        """Whether each motion failed."""
        return (self.status & int(FAILURES)) != 0

    def describe_status(self) -> str:
        """The status bits set in any lane, in words."""
        return describe(int(np.bitwise_or.reduce(np.ravel(self.status))))


@takes_study
@with_options(LaneOptions)
def lyapunov(
    problem: Problem,
    q0: ArrayLike,
    v0: ArrayLike,
    *,
    interval: TimeLike,
    steps: int | None = None,
    intervals: int,
    skip: int = 0,
    blocks: int = 10,
    t0: ArrayLike = 0.0,
    **options: Unpack[LaneOptions],
) -> Lyapunov:
    """Lyapunov exponents of one motion or of each motion of a batch, with a statistical error.

    Args:
        problem, q0, v0, t0, e, args, args_axes, projection: as in `ensemble`; without any lane axis it is one motion.
        interval: time between orthonormalisations [s]: a number, (B,), or a function of args; for instance the period
            of the forcing. It must be short enough that tangents do not align within it.
        steps: number of steps in one interval, for a scheme with fixed steps.
        intervals: number of intervals that are averaged over, a multiple of ``blocks``.
        skip: number of intervals before these that are left out, in which the motion settles on its
            attractor and the frame aligns.
        blocks: number of parts of the average, at least two, whose scatter gives the error; a part must be long
            compared with correlation times.
        scheme: by default `EventDriven(1e-10, 1e-10)`, or `EventCorrected()` if ``steps`` are given. With a scheme that
            locates no impacts the derivative is not to be trusted if an impact falls within two
            steps of an end of an interval.

    Returns:
        `Lyapunov`.

    Raises:
        ValueError, TypeError: as `ensemble`, or a count is out of range.
    """
    check_counts(intervals=intervals, skip=skip, blocks=blocks)
    if blocks < 2 or intervals % blocks:
        raise ValueError(
            f"intervals={intervals} must be a multiple of blocks={blocks}, and blocks at least 2: their scatter is the "
            "error"
        )
    call = Call(problem, q0, v0, steps=steps, t0=t0, **options)
    program, lanes, single = prepare_strobe(call, interval, 1, name="interval", tolerance=SECTION)
    many = [skip, *[intervals // blocks] * blocks]
    total, q, v, status = _average(program, lanes, many, directions(problem, lanes))
    total = total[:, 1:]
    begin, end = np.asarray(lanes.motion.t0, np.float64), np.asarray(lanes.motion.t1, np.float64)
    time = np.broadcast_to(end - begin, lanes.count)
    means = total / (time * (intervals // blocks))[:, None, None]
    with np.errstate(invalid="ignore"):  # -inf has no scatter
        error = np.std(means, axis=1, ddof=1) / np.sqrt(blocks)
    end = np.broadcast_to(begin, time.shape) + (skip + intervals) * time
    exponents = means.mean(axis=1)
    status = lost_derivatives("an exponent", status, exponents)
    found = (exponents, error, means, q, v, end, status)
    return Lyapunov(*(x[0] for x in found)) if single else Lyapunov(*found)


@partial(jax.jit, static_argnames=("axes", "size"))
def _frames(problem: Problem, motion: Motion, axes: tuple, size: int) -> Array:
    return jax.vmap(
        lambda motion: allowed_directions(problem, motion, size), in_axes=(Lanes(motion, axes, 0).in_axes,)
    )(motion)


def _average(program: Program, lanes: Lanes, many: list[int], size: int) -> tuple[np.ndarray, ...]:
    """Sums of the logarithms of R's diagonal over blocks of intervals, (lanes, 1 + blocks, size); and the final q,
    v and statuses.

    ``many`` (1 + blocks,): number of intervals in each block; the first block are the intervals to skip. ``size``:
    number of directions. Each interval is a call of the program of orbits, native code: a loop over intervals within
    XLA takes 5 (one lane) to 170 times (1000 lanes, 100 steps) as long.
    """
    start, d = lanes.motion, lanes.motion.q0.shape[1]
    begin, length, dtype = np.asarray(start.t0), np.asarray(start.t1) - np.asarray(start.t0), start.q0.dtype
    own = lanes.only("q0", "v0", "t0", "args")
    frame = np.asarray(_frames(program.problem, own.motion, own.axes, size))
    x, number = np.concatenate([start.q0, start.v0], axis=1), 0
    total, status = np.zeros((lanes.count, len(many), size), dtype), np.zeros(lanes.count, np.int32)
    # an impact within the last step spoils only a scheme whose derivative is not that of its own step
    known = int(Status.DERIVATIVE_AT_END) if program.scheme.traits.locates else 0
    for block, count in enumerate(many):
        for _ in range(count):
            t0 = (begin + number * length).astype(dtype)
            # of a length, too, rounding would grow beside what shrinks
            x, scaling = with_unit_quaternions(program.problem, x)
            moved = lanes.replace(q0=x[:, :d], v0=x[:, d:], t0=t0, t1=(t0 + length).astype(dtype))
            x, jacobian, new = jacobians(program, moved, ("q0", "v0"))
            # log 0 where lasting contact forgets a direction
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                frame, r = np.linalg.qr(blocks(jacobian) @ (scaling @ frame))
                total[:, block] += np.log(np.abs(np.diagonal(r, axis1=1, axis2=2)))
            status, number = status | (new & ~known), number + 1
    return total, x[:, :d], x[:, d:], status
