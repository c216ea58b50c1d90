"""Loop over steps in which all lanes of a batch step together, for XLA; with neighbour lists it stops where a list
overflows and can go on."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from ..jaxtools.progress import XLA_REPORTS, report_fraction
from ..jaxtools.shapes import PyTree
from ..mechanics.status import Status
from ..results import Solution
from .limits import MIN_SEGMENTED_STEPS, STABILITY_STEPS
from .rows import Row, RowWriter

if TYPE_CHECKING:
    from ..mechanics.scheme import State
    from .account import Account
    from .motion_loop import MotionLoop

T = TypeVar("T")


class BatchedLoop:
    """Loop over the steps of a motion, batched by `jax.vmap`; its carry is (state of the scheme, `Row`, `Account`,
    `RowBuffer` of saved rows)."""

    def __init__(self, motion_loop: MotionLoop) -> None:
        self.motion_loop, self.program, self.motion = motion_loop, motion_loop.program, motion_loop.moving
        # part steps up to the time of a row are made for saved rows only, after the loop over all steps
        program = self.program
        self.afterwards = program.function is None or (not program.every and motion_loop.locates)
        self.keeper = RowWriter(program, self.motion, self.content)

    def content(self, k: ArrayLike, row: Row, i: ArrayLike) -> PyTree:
        """Content to save for step k and the i-th saved time: the ``row`` after the step,
        or the value of the save function.

        The value is computed from the row interpolated to that time. A row is saved as it is, and `collect`
        interpolates it after the loop.
        """
        program, motion = self.program, self.motion
        if program.every:
            row = row._replace(before=None)
        if self.afterwards:
            return row
        t = motion.time(k) if program.every else jnp.take(program.times, i, mode="clip")
        return self.motion_loop.value(t, self.motion_loop.in_time(t, row, motion.time(k) - t))

    def start_carry(self, begin: tuple) -> tuple:
        """Carry before the first step, from ``begin`` = (state, row, account) at t0;
        the row is saved if a row at t0 is wanted."""
        _, initial, _ = begin
        return (*begin, self.keeper.put(self.keeper.empty(initial), 0, initial))

    def make_step(self, carry: tuple, k: Array, loses_second_derivative: bool = False) -> tuple:
        """State, row and account after step k, from the ``carry`` before it; ``loses_second_derivative``: as in
        `MotionLoop.make_step`."""
        motion_loop, motion = self.motion_loop, self.motion
        if self.program.reports_progress:
            report = k % jnp.maximum(motion.steps // XLA_REPORTS, 1) == 0
            lax.cond(report, lambda k: jax.debug.callback(report_fraction, k / motion.steps), lambda k: None, k)
        new, row, account = motion_loop.make_step(carry[:3], k, loses_second_derivative)
        look = k % STABILITY_STEPS == 0
        return new, row, lax.cond(look, motion_loop.check_stability, lambda _, account: account, new, account)

    def run(self, begin: tuple, length: Any) -> Solution:
        """Makes all steps from ``begin`` = (state, row, account) and returns the solution.

        ``length``: the largest number of steps if lanes differ in it, else None; surplus steps of a lane do nothing.
        """
        program, motion_loop, steps = self.program, self.motion_loop, self.motion.steps
        first = jnp.asarray(1, jnp.int32)
        loses_second_derivative, ragged = motion_loop.loses_second_derivative(begin[1].q), length is not None

        def body(carry: tuple, k: Array) -> tuple[tuple, None]:
            live: Array | bool = True
            found = self.make_step(carry, k, loses_second_derivative)
            if ragged:
                live = k <= steps
                found = jax.tree.map(lambda x, y: jnp.where(live, x, y), found, carry[:3])
            return (*found, self.keeper.put(carry[3], k, found[1], live)), None

        carry = self.start_carry(begin)
        if motion_loop.end.by_step:
            going = lambda now: (now[0] <= steps) & motion_loop.end.goes_on(now[1][1])
            _, carry = lax.while_loop(going, lambda now: (now[0] + 1, body(now[1], now[0])[0]), (first, carry))
        elif not program.length:
            last = length if ragged else steps
            carry = lax.fori_loop(first, last + 1, lambda k, carry: body(carry, k)[0], carry)
        else:
            numbers = jnp.arange(1, program.length + 1, dtype=jnp.int32)
            scan = _scan_in_segments if program.sensitivity in ("corrected", "discrete") else _scan
            carry = scan(body, carry, numbers)
        return self.finish(carry)

    def up_to(self, carry: tuple, last: Array) -> tuple[tuple, Array]:
        """Makes steps up to step ``last``, but none in which a neighbour list overflows; returns the carry, and whether
        a list would overflow, ()."""
        lost = lambda account: account.status & int(Status.NEIGHBOURS_LOST) != 0

        def continues(now: tuple[tuple, Array]) -> Array:
            carry, full = now
            return (carry[0].n < last) & ~full & self.motion_loop.end.goes_on(carry[1])

        def body(now: tuple[tuple, Array]) -> tuple[tuple, Array]:
            carry, _ = now
            k = carry[0].n + 1
            found = self.make_step(carry, k)
            full = lost(found[2])
            found = jax.tree.map(lambda x, y: jnp.where(full, y, x), found, carry[:3])
            return (*found, self.keeper.put(carry[3], k, found[1], ~full)), full

        return lax.while_loop(continues, body, (carry, lost(carry[2])))

    def finish(self, carry: tuple) -> Solution:
        """Solution from the carry at the end."""
        state, row, account, kept = carry
        account = self.motion_loop.close_account(state, row, account)
        rows = self.keeper.all(kept) if self.program.rows else None
        if rows is not None and self.motion_loop.end.by_step:
            passed, last = self.keeper.rows_after(state.n), self.content(state.n, row, self.program.rows - 1)
            repeat = lambda kept, x: jnp.where(passed.reshape(-1, *[1] * x.ndim), x[None], kept)
            rows = jax.tree.map(repeat, rows, last)
        return self.collect(state, row, rows, account)

    def collect(self, state: State, row: Row, kept: PyTree, account: Account) -> Solution:
        """Solution from the last ``state``, the last ``row``, the saved rows ``kept`` before it, and the account."""
        program, motion, motion_loop, index = self.program, self.motion, self.motion_loop, self.keeper.index
        t1, final = motion.t1, motion_loop.row_at_end(row)
        times = jnp.asarray(program.times)
        if program.every:
            times = motion.time(jnp.arange(program.rows) * program.every)
        if self.afterwards and program.rows:
            back = jnp.zeros_like(times) if program.every else motion.time(index) - times
            kept = jax.vmap(motion_loop.in_time)(times, kept, back)
            kept = jax.vmap(motion_loop.value)(times, kept)
        ending = motion_loop.value(t1, final)
        if program.rows:
            every = jax.tree.map(lambda b, x: jnp.concatenate([b, x[None]]), kept, ending)
        else:
            every = jax.tree.map(lambda x: x[None], ending)
        times = final.time(jnp.concatenate([times, t1[None]]))
        rows, values, t = every, None, times
        if program.function is not None:
            rows, values, t = jax.tree.map(lambda x: x[None], final), every, times[-1:]
        energy = jax.vmap(motion_loop.energy)(t, rows._replace(before=None))
        return motion_loop.solution(
            state,
            final,
            (times, rows.q, rows.v, rows.z, rows.impulse, energy, rows.joint_impulse, rows.friction_impulse),
            values,
            account,
            rows.pairs,
        )


def _scan(body: Callable, carry: T, numbers: Array) -> T:
    return lax.scan(body, carry, numbers)[0]


def _scan_in_segments(body: Callable, carry: T, numbers: Array) -> T:
    """`lax.scan` over ``numbers`` that needs little memory in reverse mode.

    Only the states between segments are stored, about as many as the square root of the number of steps; a segment is
    recomputed for its derivative.
    """
    count = len(numbers)
    root = math.isqrt(count)
    if count < MIN_SEGMENTED_STEPS:
        return _scan(body, carry, numbers)
    # a length that divides the count spares a second copy of the step
    length = next((k for i in range(root // 2) for k in (root - i, root + i) if count % k == 0), root)
    even = count - count % length
    segment = jax.checkpoint(partial(_scan, body), prevent_cse=False)
    carry = _scan(lambda c, ks: (segment(c, ks), None), carry, numbers[:even].reshape(-1, length))
    return _scan(body, carry, numbers[even:]) if even < count else carry
