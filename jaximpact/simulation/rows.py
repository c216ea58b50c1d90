"""Saved rows of a motion: the step of each, and the buffer that the loop carries."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..jaxtools.argument_checks import is_traced
from ..jaxtools.array_types import F_d, F_m
from ..jaxtools.shapes import PyTree
from ..mechanics.motion import Motion
from .program import Program


class Row(NamedTuple):
    """The motion after a step, from which saved rows are interpolated; part of the loop's carry.

    Attributes:
        q, v, z: position, velocity and admissible position (d,).
        impulse: impulse (m,) accumulated since the start; for contacts between bodies in
            lists that of the last step only.
        chord, last: (q_new - q_old)/h (d,) and impulse (m,) of the step that led to the row.
        before: state and impulses before that step, for schemes that can step to a row's time.
        pairs: bodies of each contact (m, 2), for contacts between bodies in lists; else None.
        touched: whether any contact has had an impulse so far (), for bodies in lists if derivatives are corrected;
            else None.
        stop: time () at which the motion ended, infinity while it goes on; None without ``until``.
        watch: since when the motion is at rest (`mechanics.rest.Watch`), with ``until`` at rest or jammed.
        joint_impulse, joint_last: impulses of joints (j,), accumulated and of the last step.
        friction_impulse, friction_last: impulses of friction (m, k), accumulated and of the last step.
    """

    q: F_d
    v: F_d
    z: F_d
    impulse: F_m
    chord: F_d
    last: F_m
    before: Any = None
    pairs: Array | None = None
    touched: Any = None
    stop: Any = None
    watch: Any = None
    joint_impulse: Any = None
    joint_last: Any = None
    friction_impulse: Any = None
    friction_last: Any = None

    def time(self, t: Array) -> Array:
        """Time () of a row requested at time t: t, or the time of the stop if the motion ended before."""
        return t if self.stop is None else jnp.where(self.stop < t, self.stop, t)

    def interpolated(self, back: Array, h: Array) -> Row:
        """The row at the time that lies ``back`` before the end of its step.

        The position lies on the chord, and impulses are spread evenly over the step; impulses between listed bodies
        stay those of the whole step.
        """
        moved = self._replace(q=self.q - back * self.chord)
        moved = moved._replace(joint_impulse=self.joint_impulse - (back / h) * self.joint_last)
        if self.pairs is not None:
            return moved
        rubbed = self.friction_impulse - (back / h) * self.friction_last
        return moved._replace(friction_impulse=rubbed, impulse=self.impulse - (back / h) * self.last)


class RowRequest(NamedTuple):
    """Request for a row in native code: the number of its step or its time, and whether it is the last row (at t1).

    With a leading axis it holds the requests for all rows. `Program.every` decides whether
    the number or the time counts.
    """

    number: Any
    time: Any
    last: Any

    @classmethod
    def of(cls, program: Program) -> RowRequest:
        """Requests for all rows of a program."""
        xp = jnp if is_traced(program.times) else np
        times = xp.asarray(program.times)
        zeros = lambda count: xp.zeros(count, times.dtype)
        times = zeros(program.rows + 1) if program.every else xp.append(times, zeros(1))
        number = np.arange(len(times)) * program.every
        return cls(number.astype(np.int32), times, np.arange(len(times)) == program.rows)


def step_at_or_after(times: Any, t0: Any, h: Any, xp: ModuleType = jnp) -> Any:
    """Number of the first step at or after each time, up to round-off; ``xp`` is numpy or jax.numpy."""
    ratio = (times - t0) / h
    slack = 4 * xp.finfo(times.dtype).eps * (1 + xp.abs(ratio) + xp.abs(t0) / h)
    return xp.ceil(ratio - slack).astype(xp.int32)


class RowBuffer(NamedTuple):
    """Saved rows, part of the carry of `BatchedLoop`: leaves (rows + 1, ...), and the index () of the next saved time.

    Steps that are not saved are written to the last entry, which nobody reads.
    """

    buffer: PyTree
    pointer: Array


class RowWriter:
    """Writes the rows of a motion to their places: every k-th step, or the first step at or after each saved time.

    ``content(k, row, i)``: content to save for step k at the i-th time.
    """

    def __init__(self, program: Program, motion: Motion, content: Callable) -> None:
        self.program, self.content = program, content
        # step number at or after each saved time, and the first of the times that share a step
        self.index = step_at_or_after(jnp.asarray(program.times), motion.t0, motion.h)
        self.first = jnp.searchsorted(self.index, self.index).astype(self.index.dtype)
        self.after = jnp.searchsorted(self.index, self.index, side="right").astype(self.index.dtype)

    def empty(self, row: Row) -> RowBuffer:
        """An empty buffer for contents as of ``row``."""
        buffer, rows = None, self.program.rows
        if rows:
            shape = jax.eval_shape(lambda row: self.content(0, row, 0), row)
            buffer = jax.tree.map(lambda x: jnp.zeros((rows + 1, *x.shape), x.dtype), shape)
        return RowBuffer(buffer, jnp.zeros((), self.index.dtype))

    def put(self, kept: RowBuffer, k: Array | int, row: Row, live: Array | bool = True) -> RowBuffer:
        """The buffer with the ``row`` of step k written to it, if that step is saved and the lane is ``live``;
        else unchanged."""
        rows, every = self.program.rows, self.program.every
        if rows == 0:
            return kept
        buffer, pointer = kept
        if every:
            where, following = jnp.where(k % every == 0, jnp.minimum(k // every, rows), rows), pointer
        else:
            due = (pointer < rows) & (jnp.take(self.index, pointer, mode="clip") == k)
            where = jnp.where(due, pointer, rows)
            following = jnp.where(due, jnp.take(self.after, pointer, mode="clip"), pointer)
        where = jnp.where(live, where, rows)
        value = self.content(k, row, pointer)
        buffer = jax.tree.map(lambda b, x: lax.dynamic_update_index_in_dim(b, x, where, 0), buffer, value)
        return RowBuffer(buffer, jnp.where(live, following, pointer))

    def rows_after(self, n: Array) -> Array:
        """Mask (rows,) of the rows that belong to steps after step n."""
        every = self.program.every
        return (jnp.arange(self.program.rows, dtype=jnp.int32) * every if every else self.index) > n

    def all(self, kept: RowBuffer) -> tuple:
        """Saved rows (rows, ...) from the buffer, without its spare entry;
        saved times that lie in one step get the same row."""
        found = jax.tree.map(lambda b: b[: self.program.rows], kept.buffer)
        # times that share a step
        return found if self.program.every else jax.tree.map(lambda b: b[self.first], found)
