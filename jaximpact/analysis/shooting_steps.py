"""Gauss-Newton steps of optimal control by multiple shooting, for many starts at once.

Motions of all intervals of all starts are one batch. States at the nodes are unknowns that the equality constraints of
continuity eliminate from each step (H. G. Bock, K. J. Plitt, IFAC World Congress 1984, condensing); what is left is a
least-squares problem of the controls with a Levenberg-Marquardt term (J. J. Moré 1978, whose scaling and test of
optimality it has). A step is accepted by an l1 merit function (J. Nocedal, S. J. Wright, Numerical Optimization, 2006,
18.3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..jaxtools.shapes import PyTree
from ..mechanics.problem import Problem
from ..mechanics.status import FAILURES, Status
from ..mechanics.user_functions import named_errors
from ..results.save import Save
from ..simulation.call import Arguments
from ..simulation.public import solve
from .beyond_surfaces import lift

FIRST, LEAST, MOST = (
    1e-2,
    1e-12,
    1e12,
)  # factor of the Levenberg-Marquardt term: at first, least, where a start has failed
STUCK = 1e3  # factor at which a start gives up nodes of its own
ENOUGH, GOOD = 1e-4, 0.5  # shares of the predicted decrease with which a step is accepted, and the factor falls
TINY, HUGE = 1e-300, 1e150  # the squares of larger numbers are infinite


@dataclass(frozen=True)
class How:
    """What of the problem jax has to know when it traces."""

    control: Callable
    path: Callable
    end: Callable
    target: Callable
    save: Save
    methods: tuple[tuple[str, Any], ...]


class _Linear(NamedTuple):
    """The problem of B starts, linearised: residuals r + J dw and targets c + C dw for changes dw of controls and final
    time, once nodes are continuous."""

    residual: np.ndarray  # (B, m)
    target: np.ndarray  # (B, c)
    jumps: np.ndarray  # (B, N - 1, 2d), of the state at the nodes
    jacobian: np.ndarray  # (B, m, W)
    slopes: np.ndarray  # (B, c, W)
    nodes: np.ndarray  # (B, N - 1, 2d, W)
    moved: np.ndarray  # (B, m), change of the residuals by closing the jumps
    missed: np.ndarray  # (B, c), that of the targets
    closing: np.ndarray  # (B, N - 1, 2d), that of the nodes
    status: np.ndarray  # (B,)
    sound: np.ndarray  # (B,), no motion failed and all is finite
    last: np.ndarray  # (B, 2d), the final state

    @property
    def half(self) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            return 0.5 * np.sum(self.residual**2, axis=1)

    @property
    def violation(self) -> np.ndarray:
        """Sum of the sizes of jumps and targets, (B,)."""
        return np.abs(self.jumps).sum(axis=(1, 2)) + np.abs(self.target).sum(axis=1)


@partial(jax.jit, static_argnames=("how",))
def _run(
    problem: Problem, how: How, given: dict, x: Array, u: Array, t0: Array, t1: Array
) -> tuple[PyTree, PyTree, Array]:
    """Values (B, N, ...) of the intervals from states x (B, N, 2d) with controls u (B, N, k): (state at the end,
    residuals of the path, of the end, targets), their derivatives with a last axis of (q, v, u, t1), and statuses (B,
    N)."""
    d, n = x.shape[-1] // 2, x.shape[1]

    def interval(k: Array, x: Array, u: Array, t1: Array) -> tuple[PyTree, PyTree, Array]:
        def move(z: Array) -> tuple[tuple, tuple[tuple, Array]]:
            q, v, u, end = z[:d], z[d : 2 * d], z[2 * d : -1], z[-1]
            begin, finish = (t0 + (end - t0) * ((k + i) / n) for i in (0, 1))
            times: Arguments = {"t0": begin, "t1": finish, "save": how.save, "sensitivity": "corrected"}
            found = solve(problem, q, v, args=how.control(u), **times, **dict(how.methods), **given)
            parts = [jnp.concatenate([found.q[-1], found.v[-1]])]
            for name in ("path", "end", "target"):
                with named_errors(f"{name}(solution, u)"):
                    part = jnp.ravel(jnp.asarray(getattr(how, name)(found, u), x.dtype))
                parts.append(part * jnp.sqrt((end - t0) / n) if name == "path" else part)
            return tuple(parts), (tuple(parts), found.status)

        begin, finish = (t0 + (t1 - t0) * ((k + i) / n) for i in (0, 1))
        z = jnp.concatenate([x, u, t1[None]])
        up = jnp.zeros_like(z).at[:d].set(lift(problem, begin, finish, x[:d], x[d:], how.control(u)))
        slope, (value, status) = jax.jacfwd(move, has_aux=True)(z + up)
        return jax.tree.map(lambda y, j: y - j @ up, value, slope), slope, status

    number = jnp.arange(n, dtype=x.dtype)
    return jax.vmap(jax.vmap(interval, in_axes=(0, 0, 0, None)), in_axes=(None, 0, 0, 0))(number, x, u, t1)


@partial(jax.jit, static_argnames=("how",))
def _follow(problem: Problem, how: How, given: dict, start: Array, u: Array, t0: Array, t1: Array) -> Array:
    """States (B, N, 2d) at the ends of the intervals of motions from ``start`` (B, 2d)."""
    n, d = u.shape[1], start.shape[1] // 2

    def one(start: Array, u: Array, t1: Array) -> Array:
        def interval(x: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            k, u = now
            begin, finish = (t0 + (t1 - t0) * ((k + i) / n) for i in (0, 1))
            args = how.control(u)
            q = x[:d] + lift(problem, begin, finish, x[:d], x[d:], args)
            end = solve(problem, q, x[d:], t0=begin, t1=finish, args=args, save="final", **dict(how.methods), **given)
            x = jnp.concatenate([end.q[-1], end.v[-1]])
            return x, x

        return jax.lax.scan(interval, start, (jnp.arange(n, dtype=u.dtype), u))[1]

    return jax.vmap(one)(start, u, t1)


def _padded(count: int) -> np.ndarray:
    """Numbers of ``count`` lanes, and the first again up to a power of two: few sizes, few compilations."""
    return np.concatenate([np.arange(count), np.zeros((1 << (count - 1).bit_length()) - count, int)])


@dataclass(frozen=True)
class Intervals:
    """The motions of all intervals, in batches of sizes that are powers of two, each of which is compiled once."""

    problem: Problem
    how: How
    given: Arguments
    start: np.ndarray  # (B, 2d)
    t0: float
    shape: tuple[int, ...]  # N, k

    def linearise(self, lanes: np.ndarray, nodes: np.ndarray, w: np.ndarray) -> _Linear:
        """The problem of some starts at nodes (B, N - 1, 2d) and w (B, W),
        with the nodes eliminated interval by interval."""
        (b, width), (n, k), some = w.shape, self.shape, _padded(len(w))
        x, u = np.concatenate([self.start[lanes, None], nodes], axis=1), w[:, :-1].reshape(b, n, k)
        found = _run(self.problem, self.how, self.given, x[some], u[some], np.float64(self.t0), w[some, -1])
        value, slope, status = jax.tree.map(lambda y: np.array(y)[:b], found)
        own, size, jumps = np.eye(width), x.shape[2], value[0][:, :-1] - nodes
        by, closing = (
            [np.zeros((b, size, width))],
            [np.zeros((b, size, 1))],
        )  # of states at starts: by w, by closing the jumps before
        at, pull = [], []
        for i in range(n):
            chosen = np.broadcast_to(own[[*range(i * k, (i + 1) * k), -1]], (b, k + 1, width))
            at.append(np.concatenate([by[i], chosen], axis=1))
            pull.append(np.concatenate([closing[i], np.zeros((b, k + 1, 1))], axis=1))
            by.append(slope[0][:, i] @ at[i])
            closing.append(slope[0][:, i] @ pull[i] + (jumps[:, i, :, None] if i < n - 1 else 0))
        residual = np.concatenate([value[1].reshape(b, -1), value[2][:, -1]], axis=1)
        jacobian, moved = (
            np.concatenate([*(slope[1][:, i] @ x[i] for i in range(n)), slope[2][:, -1] @ x[-1]], axis=1)
            for x in (at, pull)
        )
        ends = [slope[3][:, -1] @ x[-1] for x in (at, pull)]
        states = [np.stack(x, axis=1)[:, 1:-1] for x in (by, closing)]
        numbers = (
            residual,
            value[3][:, -1],
            jumps,
            jacobian,
            ends[0],
            states[0],
            moved[..., 0],
            ends[1][..., 0],
            states[1][..., 0],
        )
        finite = np.all([(np.abs(x) < HUGE).reshape(b, -1).all(axis=1) for x in numbers], axis=0)
        bits = np.bitwise_or.reduce(status, axis=1)
        bits |= np.where(finite, 0, int(Status.NON_FINITE)).astype(bits.dtype)
        return _Linear(*numbers, bits, finite & ((bits & int(FAILURES)) == 0), value[0][:, -1])

    def follow(self, lanes: np.ndarray, w: np.ndarray) -> np.ndarray:
        """States at the nodes (B, N - 1, 2d) of motions with the controls w that go on
        from one interval to the next."""
        some = _padded(len(w))
        u = w[some, :-1].reshape(len(some), *self.shape)
        start = self.start[lanes][some]
        found = _follow(self.problem, self.how, self.given, start, u, np.float64(self.t0), w[some, -1])
        return np.array(found)[: len(w), :-1]


def _step(
    at: _Linear, w: np.ndarray, limits: tuple, factor: np.ndarray, share: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Changes dw (B, W) of the controls within their limits, and the optimality (B,).

    ``factor`` (B,): of the Levenberg-Marquardt term; ``share`` (B,): of jumps and targets that the step is to close.
    """
    (b, _, width), c = at.jacobian.shape, at.target.shape[1]
    jacobian = np.where(at.sound[:, None, None], at.jacobian, 0)
    slopes = np.where(at.sound[:, None, None], at.slopes, 0)
    residual, moved, target = (
        np.where(at.sound[:, None], x, 0) for x in (at.residual, at.moved, at.target + at.missed)
    )
    size = np.sqrt(np.sum(jacobian**2, axis=1) + np.sum(slopes**2, axis=1))
    scale = 1 / np.where(size > 0, size, 1)
    j, s = jacobian * scale[:, None], slopes * scale[:, None]
    later = residual + share[:, None] * moved
    slope = np.einsum("bmi,bm->bi", j, later)
    weight = np.maximum(np.einsum("bmi,bmi->bi", j, j), 1e-10)
    fixed = limits[0] == limits[1]
    frozen = np.broadcast_to(fixed, (b, width))
    for _ in range(2):  # which controls stay at their limits follows from the multipliers, and these from it
        free = ~frozen
        matrix = np.zeros((b, width + c, width + c))
        matrix[:, :width, :width] = np.einsum("bmi,bmj->bij", j, j) * free[:, :, None] * free[:, None]
        matrix[:, range(width), range(width)] += np.where(free, factor[:, None] * weight + 1e-14, 1.0)
        matrix[:, width:, :width] = s * free[:, None]
        matrix[:, :width, width:] = np.swapaxes(s, 1, 2) * free[:, :, None]
        matrix[:, range(width, width + c), range(width, width + c)] -= 1e-14
        right = np.concatenate([-slope * free, -share[:, None] * target], axis=1)
        solved = np.linalg.solve(matrix, right[..., None])[..., 0]
        pull = slope + np.einsum("bci,bc->bi", s, solved[:, width:])
        frozen = fixed | ((w <= limits[0]) & (pull > 0)) | ((w >= limits[1]) & (pull < 0))
    change = np.clip(w + solved[:, :width] * scale, *limits) - w
    optimality = np.max(np.where(frozen, 0, np.abs(pull)), axis=1) / (np.linalg.norm(residual, axis=1) + TINY)
    return change, np.where(np.linalg.norm(residual, axis=1) > 0, optimality, 0)


def descend(intervals: Intervals, w: np.ndarray, limits: tuple, tol: float, iterations: int) -> tuple:
    """Repeats steps from w (B, W) until each start has converged or failed.

    Returns w, states at the nodes and the end (B, N + 1, 2d), cost, violation, optimality, steps, whether each has
    converged, and status, (B,).
    """
    count, lanes, n = len(w), np.arange(len(w)), intervals.shape[0]
    nodes = intervals.follow(lanes, w)
    at = intervals.linearise(lanes, nodes, w)
    factor, penalty = np.full(count, FIRST), _first_penalty(at)
    optimality, used, failed = np.full(count, np.inf), np.zeros(count, int), at.status * ~at.sound
    converged, single, active = np.zeros(count, bool), np.zeros(count, bool), at.sound.copy()
    for _ in range(iterations + 1):
        lanes = np.flatnonzero(active)
        if not lanes.size:
            break
        here = _Linear(*(x[lanes] for x in at))
        share = np.minimum(1.0, 1 / factor[lanes])
        change, optimality[lanes] = _step(here, w[lanes], limits, factor[lanes], share)
        states = 1 + np.abs(nodes[lanes]).max(axis=(1, 2), initial=0.0) + np.abs(here.last).max(axis=1)
        done = (optimality[lanes] <= tol) & (_largest(here) <= tol * states)
        converged[lanes] = done
        if used.max() >= iterations:
            break
        new_w = w[lanes] + change
        shift = np.einsum("bnsw,bw->bns", here.nodes, change) + share[:, None, None] * here.closing
        new_nodes = nodes[lanes] + shift
        then = here.residual + share[:, None] * here.moved + np.einsum("bmi,bi->bm", here.jacobian, change)
        gain = here.half - 0.5 * np.sum(then**2, axis=1)
        left = here.target + share[:, None] * here.missed + np.einsum("bci,bi->bc", here.slopes, change)
        closed = here.violation - (1 - share) * np.abs(here.jumps).sum(axis=(1, 2)) - np.abs(left).sum(axis=1)
        needed = np.where(closed > 0, -gain / (0.5 * np.maximum(closed, TINY)), 0)
        penalty[lanes] = np.maximum(penalty[lanes], needed)
        predicted = gain + penalty[lanes] * closed

        alone = single[lanes]
        if alone.any():
            new_nodes[alone] = intervals.follow(lanes[alone], new_w[alone])
        there = intervals.linearise(lanes, new_nodes, new_w)
        better, made = _judge(here, there, penalty[lanes], predicted)
        again = np.flatnonzero(~better & ~done & ~alone)
        if again.size and n > 1:  # an impact may have come to another interval: the motion itself has no jumps at nodes
            new_nodes[again] = intervals.follow(lanes[again], new_w[again])
            other = intervals.linearise(lanes[again], new_nodes[again], new_w[again])
            before = _Linear(*(x[again] for x in here))
            better[again], made[again] = _judge(before, other, penalty[lanes[again]], predicted[again])
            for old, new in zip(there, other, strict=True):
                old[again] = new
        better &= ~done
        easy = made > GOOD * predicted
        taken = lanes[better]
        w[taken], nodes[taken] = new_w[better], new_nodes[better]
        for old, new in zip(at, there, strict=True):
            old[taken] = new[better]
        used[lanes] += ~done
        failed[lanes] = np.where(better | done, 0, there.status * ~there.sound)
        growth = np.where(better, np.where(easy, 0.2, 1.0), 5.0)
        factor[lanes] = np.where(done, factor[lanes], np.maximum(factor[lanes] * growth, LEAST))
        active[lanes] = ~done & (factor[lanes] < MOST)
        stuck = np.flatnonzero(active & ~single & (factor > STUCK)) if n > 1 else lanes[:0]
        if stuck.size:  # at nodes with jumps that no step closes: from here on the motion itself is followed
            single[stuck], factor[stuck] = True, FIRST
            nodes[stuck] = intervals.follow(stuck, w[stuck])
            for old, new in zip(at, intervals.linearise(stuck, nodes[stuck], w[stuck]), strict=True):
                old[stuck] = new
            penalty[stuck], active[stuck] = _first_penalty(at)[stuck], at.sound[stuck]
    status = at.status | np.where(converged, 0, failed).astype(at.status.dtype)
    states = np.concatenate([intervals.start[:, None], nodes, at.last[:, None]], axis=1)
    return w, states, 2 * at.half, _largest(at), optimality, used, converged, status


def _first_penalty(at: _Linear) -> np.ndarray:
    """Weight of violations in the merit function (B,): little beside the cost, but not zero where there is none."""
    return np.maximum(1e-3 * at.half, 1e-12)


def _judge(here: _Linear, there: _Linear, penalty: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether each step (B,) made the merit function as much less as it must, and by how much."""
    with np.errstate(invalid="ignore", over="ignore"):
        made = here.half - there.half + penalty * (here.violation - there.violation)
        return there.sound & (made > ENOUGH * predicted) & (made > 0), made


def _largest(at: _Linear) -> np.ndarray:
    """The largest jump or target of each start."""
    return np.maximum(np.abs(at.jumps).max(axis=(1, 2), initial=0.0), np.abs(at.target).max(axis=1, initial=0.0))
