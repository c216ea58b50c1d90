"""Base of adapters for simulators written in JAX, from a function (theta, t1, steps) -> (q, v) for each case."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array

if TYPE_CHECKING:
    from .cases import Case

Motion = Callable[[Any, Any, Any], Any]


class JaxMotions:
    """An adapter: see `jaximpact.conformance.worker`. Double precision, one compilation for state and Jacobian.

    Args:
        motions: by name of the case, ``motion(theta, t1, steps)`` -> (q, v) at t1, (2d,). The number of steps is
            traced, so that all step counts share one compilation: loop by `jax.lax.fori_loop`,
            which jax differentiates in forward mode.
        how: a sentence on how the simulator was used.
        packages: names of distributions, whose versions are printed.
        steps: whether the simulator takes a number of steps.
        transform: `jax.jacfwd` or `jax.jacrev`.
        jit: False for simulators that need concrete times.
    """

    def __init__(
        self,
        motions: Mapping[str, Motion],
        how: str = "",
        packages: tuple[str, ...] = (),
        steps: bool = True,
        transform: Callable = jax.jacfwd,
        jit: bool = True,
    ) -> None:
        jax.config.update("jax_enable_x64", True)
        self.motions, self.HOW, self.PACKAGES, self.STEPS = motions, how, (*packages, "jax"), steps

        @cache
        def compiled(name: str) -> Callable:
            def both(theta: Array, t1: Array, steps: Array) -> Array:
                return transform(lambda x: (motions[name](x, t1, steps),) * 2, has_aux=True)(theta)

            return jax.jit(both) if jit else both

        @cache
        def both(name: str, theta: tuple[float, ...], t1: float, steps: int) -> tuple[Array, Array]:
            if name not in motions:
                raise NotImplementedError(name)
            numbers = (t1, steps) if not jit else (jnp.asarray(t1), jnp.asarray(steps))
            return compiled(name)(jnp.asarray(theta), *numbers)

        self._both = both

    def final_state(self, case: Case, theta: Sequence[float], steps: int) -> Array:
        return self._both(case.name, tuple(theta), case.t1, steps)[1]

    def jacobian(self, case: Case, theta: Sequence[float], steps: int) -> Array:
        return self._both(case.name, tuple(theta), case.t1, steps)[0]
