"""What is timed side by side: programs that compute the same motions, or the same derivatives.

Values: a handwritten SIMD loop, a numba loop, plain JAX, and `jaximpact.ensemble` as native code and through XLA, in
both precisions. Derivatives: `jax.jvp` and `jax.value_and_grad` of sum(q(t1)) + sum(v(t1)) through `jaximpact.solve`,
and through plain JAX, which differentiates the discrete map.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

import jaximpact as ji

from . import works
from .baselines import plain_jax
from .baselines.native import PARAMETERS, Native

try:
    from .baselines import numba_loops
except ImportError:
    numba_loops = None

SMALL = 72  # coordinates up to which there is native code
MANY = 10_000  # lanes from which all cores are worth a row
# where plain JAX takes minutes: left to --full, and hours: left out
SLOW = {("double-pendulum", 10_000), ("links-4", 1000), ("links-6", 1000), ("pile-16", 1)}


@dataclass(frozen=True)
class Contender:
    """``run(cores)`` gives (q, v) at t1, (lanes, d) each, for mode "forward"; the sum (lanes, 1) for "value", its
    derivative (lanes, k) for "jvp" and "vjp", where k is 1 and 2 d.

    ``parallel``: to be timed on all cores as well; ``memory()``: bytes of temporaries of the compiled program.
    """

    label: str
    run: Callable[[int], tuple | np.ndarray]
    mode: str = "forward"
    dtype: str = "float64"
    parallel: bool = False
    memory: Callable[[], int] | None = None


def configure() -> None:
    """jax as everything is timed with it."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def make(kind: str, name: str, lanes: int, libraries: Native | None, full: bool) -> list[Contender]:
    """Contenders of "values" or of "derivatives" of the work ``name``, in any process."""
    configure()
    work = works.WORKS[name]
    return values(work, lanes, libraries, full) if kind == "values" else derivatives(work, lanes, full)


def values(work, lanes: int, libraries: Native | None, full: bool) -> list[Contender]:
    """Contenders that compute the final states; the first that runs in float64 is what the others are compared with."""
    q0, v0 = work.initial(lanes)
    single = q0.astype(np.float32), v0.astype(np.float32)
    found: list[Contender] = []
    many = lanes >= MANY
    if libraries is not None and work.name in PARAMETERS:
        label = "C++ SIMD" if lanes > 1 else "C++"
        native = lambda q, v: lambda cores: libraries.run(work, q, v, threads=cores)
        found.append(Contender(label, native(q0, v0), parallel=many))
        if lanes > 1:
            found.append(Contender(label, native(*single), dtype="float32", parallel=many))
    if numba_loops is not None:
        found.append(Contender("numba", lambda cores: numba_loops.run(work, q0, v0)))
    if has_plain(work, lanes, full):
        plain = jax.jit(plain_jax.simulator(work))
        found.append(Contender("plain JAX", lambda cores: jax.block_until_ready(plain(q0, v0)), parallel=full and many))
    ways = executions(q0.shape[1])
    if lanes == 1:
        found += [Contender(f"solve, {way}", single_motion(work, q0[0], v0[0], way)) for way in ways]
        ways = ways if full or work.steps > 10_000 else ()  # an ensemble of one costs its preparation
    elif ways[0] == "native":
        found.append(Contender("jit(vmap(solve)), native", many_motions(work, q0, v0, "native")))
    for way in ways:
        best = way == ways[0]
        found.append(Contender(f"ensemble, {way}", ensemble(work, q0, v0, way), parallel=many and (best or full)))
        if (best and lanes > 1) or full:
            run = ensemble(work, *single, way)
            found.append(Contender(f"ensemble, {way}", run, dtype="float32", parallel=many and (best or full)))
    return found


def executions(d: int) -> tuple[str, ...]:
    """How a system of so many coordinates is executed, the best way first."""
    return ("native", "xla") if d <= SMALL else ("xla",)


def has_plain(work, lanes: int, full: bool) -> bool:
    """Whether plain JAX, whose disks are one dense system, is among the contenders."""
    disks = work.name.startswith(("gas", "pile"))
    return not (disks and (lanes > 1 or work.initial(1)[0].size > 32)) and (full or (work.name, lanes) not in SLOW)


def ensemble(work, q0, v0, execution: str = "auto", chunk: int | None = None) -> Callable:
    """`jaximpact.ensemble` as a user calls it, checks and transfers included."""

    def run(cores):
        found = ji.ensemble(work.problem, q0, v0, t1=work.t1, h=work.h, e=work.restitution, args=work.args,
                            chunk=chunk, execution=execution)  # fmt: skip
        return found.q[:, -1], found.v[:, -1]

    return run


def single_motion(work, q0, v0, execution: str, over: Callable = lambda end: end) -> Callable:
    """`solve` compiled for one motion, or `over` several, for its final state alone:
    a status that nobody reads is not computed."""

    def end(q, v):
        s = ji.solve(work.problem, q, v, t1=work.t1, steps=work.steps, e=work.restitution, args=work.args, save="final",
                     sensitivity="none", execution=execution)  # fmt: skip
        return s.q, s.v

    compiled = compiler(over(end), q0, v0)
    return lambda cores: jax.block_until_ready(compiled()(q0, v0))


def many_motions(work, q0, v0, execution: str) -> Callable:
    """`single_motion` of all lanes."""
    return single_motion(work, q0, v0, execution, lambda end: jax.vmap(lambda q, v: tuple(x[-1] for x in end(q, v))))


def derivatives(work, lanes: int, full: bool) -> list[Contender]:
    """Contenders that differentiate the summed final state with respect to the initial one, all lanes at once; with
    them, in mode "value", those that compute that sum alone."""
    q0, v0 = map(jnp.asarray, work.initial(lanes))

    def end_of(execution):
        def end(q, v):
            s = ji.solve(work.problem, q, v, t1=work.t1, steps=work.steps, e=work.restitution, args=work.args,
                         save="final", execution=execution)  # fmt: skip
            return jnp.sum(s.q[-1]) + jnp.sum(s.v[-1])

        return jax.vmap(end)

    simulate = plain_jax.simulator(work)

    def plain(q, v):
        q, v = simulate(q, v)
        return jnp.sum(q, axis=1) + jnp.sum(v, axis=1)

    ways = executions(q0.shape[1])[: None if full else 1]
    ends = {f"solve, {way}": end_of(way) for way in ways}
    m = work.problem.count(0.0, q0[0], work.args)
    found = []
    for mode, transform in {"value": value, "jvp": forward, "vjp": reverse}.items():
        plain_too = has_plain(work, lanes, full) and (mode != "vjp" or m <= plain_jax.ENUMERATE)
        for label, end in (ends | ({"plain JAX": plain} if plain_too else {})).items():
            compiled = compiler(transform(end), q0, v0)
            run = lambda cores, compiled=compiled: np.asarray(compiled()(q0, v0))
            memory = lambda compiled=compiled: compiled().memory_analysis().temp_size_in_bytes
            parallel = full and lanes >= MANY
            found.append(Contender(label, run, mode, parallel=parallel, memory=memory if mode == "vjp" else None))
    found += [Contender(f"sensitivities, {x}", gradient(work, q0, v0, x), "vjp", parallel=lanes >= MANY) for x in ways]
    return found


def total(solution):
    return jnp.sum(solution.q[-1]) + jnp.sum(solution.v[-1])


def gradient(work, q0, v0, execution: str) -> Callable:
    """The gradient that reverse mode gives, in forward mode: `jaximpact.sensitivities` as a user calls it."""

    def run(cores):
        found = ji.sensitivities(work.problem, q0, v0, t1=work.t1, h=work.h, e=work.restitution, args=work.args,
                                 wrt=("q0", "v0"), output=total, mode="forward",
                                 execution=execution).jacobian  # fmt: skip
        return np.concatenate([found["q0"], found["v0"]], axis=1)

    return run


def compiler(function, *inputs):
    """A function that returns the compiled program, which it makes when first called."""
    return cache(lambda: jax.jit(function).lower(*inputs).compile())


def value(end):
    return lambda q, v: end(q, v)[:, None]


# lanes do not see each other: a derivative of the sum over lanes is that of every lane
def forward(end):
    """d(end)/d(q0 along (1, ..., 1)), (lanes, 1)."""
    return lambda q, v: jax.jvp(end, (q, v), (jnp.ones_like(q), jnp.zeros_like(v)))[1][:, None]


def reverse(end):
    """d(end)/d(q0, v0), (lanes, 2 d)."""
    return lambda q, v: jnp.concatenate(jax.grad(lambda q, v: jnp.sum(end(q, v)), argnums=(0, 1))(q, v), axis=1)
