"""White generalised forces: M dv = g dt + sigma(t, q, v) dW + impulses, in the sense of Ito.

In a step from t_n to t_n + h the force is p/h with the impulse p = sigma(t_n, q_n, v_n) sqrt(h) xi, constant in the
step; the numbers xi (r,) are normal and independent. Numbers and bits are those of a key and of the number of the step
counted from t = 0, so that a motion that is computed in parts, or among others, has the same.

Reference: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, Parallel random numbers: as easy as 1, 2, 3, SC11 (2011):
Threefry-2x32, 20 rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike, DTypeLike

from .motion import Motion
from .problem import Problem
from .problem_parts import Force

if TYPE_CHECKING:
    from .scheme import State

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
HALF = 2.0**-31
LN4 = 1.3862943611198906
# Interpolation at Chebyshev's nodes: -2 log(1 - y/2)/y for y in [0, 1] to 4e-9, sin(pi x)/x by x^2 for |x| <= 1/2 to
# 3e-11. The functions of a library took two thirds of the time of a number.
LOGARITHM = (
    *(0.003385960854939185, -0.009605319894035349, 0.015311488888437455, -0.009220135938994647, 0.010648327151615782),
    *(0.01096504834213603, 0.031494599267221764, 0.08331379050262593, 0.2500005992919374, 0.9999999969965205),
)
SINE = (
    *(-0.007028303652380903, 0.08205035003144684, -0.5992521864819006),
    *(2.550163317932369, -5.1677127645927206, 3.141592653536129),
)


def threefry(key: Any, first: ArrayLike, second: Any) -> tuple:
    """Returns two words of 32 random bits for each of the counters (``first``, ``second``); all are uint32, of numpy or
    jax, ``key`` (..., 2)."""
    k0, k1 = key[..., 0], key[..., 1]
    keys = (k0, k1, k0 ^ k1 ^ k0.dtype.type(PARITY))
    x, y = first + k0, second + k1
    for turn in range(5):
        for by in ROTATIONS[turn % 2]:
            x = x + y
            y = ((y << y.dtype.type(by)) | (y >> y.dtype.type(32 - by))) ^ x
        x, y = x + keys[(turn + 1) % 3], y + keys[(turn + 2) % 3] + k0.dtype.type(turn + 1)
    return x, y


def normal_numbers(key: Array, n: Array, r: int, dtype: DTypeLike) -> Array:
    """Returns r independent normal numbers (r,) for a key (2,) and the number () of a step,
    two from each 64 bits (Box and Muller)."""
    pair = jnp.arange((r + 1) // 2, dtype=jnp.uint32)
    bits, turns = threefry(key, jnp.full_like(pair, n.astype(jnp.uint32)), pair)
    size = _size(bits, dtype)
    if r == 1:
        return size * _cosine(turns, dtype)
    quarter = jnp.uint32(1 << 30)
    return jnp.stack([size * _cosine(turns, dtype), size * _cosine(turns - quarter, dtype)], axis=1).reshape(-1)[:r]


def _size(bits: Array, dtype: DTypeLike) -> Array:
    """Returns sqrt(-2 log u) of uniform numbers u = bits 2^-32, of which the last bit is set."""
    bits = bits | jnp.uint32(1)
    zeros = lax.clz(bits)
    y = (jnp.uint32(0) - (bits << zeros)).astype(dtype) * HALF  # u = 2^-zeros (1 - y/2)
    return jnp.sqrt(zeros.astype(dtype) * LN4 + y * _polynomial(LOGARITHM, y))


def _cosine(turns: Array, dtype: DTypeLike) -> Array:
    """Returns the cosine of uniform angles, 2 pi turns 2^-32."""
    x = 0.5 - jnp.abs(lax.bitcast_convert_type(turns, jnp.int32).astype(dtype) * HALF)
    return x * _polynomial(SINE, x * x)


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    """Returns the polynomial with these coefficients, that of the highest power first."""
    return reduce(lambda total, c: total * x + c, coefficients[1:], jnp.full_like(x, coefficients[0]))


def step_number(motion: Motion, n: Array) -> Array:
    """Returns the number () of step n of a motion, counted from t = 0 as if the motion had begun there."""
    before = lax.stop_gradient(jnp.round(motion.t0 / motion.h))
    return n + before.astype(jnp.int32)


@dataclass(frozen=True, eq=False)
class Pushed:
    """A ``force`` (t, q, v, args) -> (d,) with a constant ``push`` (d,)."""

    force: Force
    push: Array

    def __call__(self, t: ArrayLike, q: Array, v: Array, args: object) -> Array:
        return jnp.asarray(self.force(t, q, v, args), q.dtype) + self.push


def in_step(problem: Problem, motion: Motion, state: State) -> Problem:
    """Returns the problem of the step that begins at ``state``, with its noise as a constant force;
    without noise the problem itself."""
    if problem.noise is None:
        return problem
    t, q, v = motion.time(state.n), state.q, state.v
    sigma = jnp.asarray(problem.noise(t, q, v, motion.args), q.dtype)
    numbers = normal_numbers(motion.key, step_number(motion, state.n), sigma.shape[1], q.dtype)
    return problem.replace(force=Pushed(problem.force, sigma @ (numbers / jnp.sqrt(motion.h))), noise=None)
