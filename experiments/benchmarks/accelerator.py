"""Large ensembles on an accelerator, against what its memory and its arithmetic allow.

    python experiments/benchmarks/run.py --parts accelerator                          # an NVIDIA GPU that is known here
    python experiments/benchmarks/run.py --parts accelerator --bandwidth 3.3e12 --flops64 3.4e13 --flops32 6.7e13

A step that keeps its state in memory reads and writes q and v: the limit by bytes. One that keeps it in registers is
limited by its arithmetic alone. Neither is a bound for the other. A call of `ensemble` checks its numbers and copies
them to the device; its results stay there. "Arrays on the device" is a compiled ``vmap`` of `solve`, without either;
"CUDA" is the handwritten kernel alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from tempfile import TemporaryDirectory

import jax
import numpy as np

import jaximpact as ji

from . import friction, timing, works
from .accuracy import Accuracy
from .baselines import cuda
from .contenders import Contender, ensemble

EXECUTIONS = {"kernel": "ensemble, one kernel", "xla": "ensemble, XLA"}
FOUND = ("seconds", "ns_per_step", "compile_s")  # of a row that was timed
LANES = (10_000, 100_000, 1_000_000, 10_000_000)
MOST_COMPARED = 100_000  # lanes whose error is told
STEPS = 1000  # of the other schemes, friction and derivatives
# operations of a step without contact, counted in the handwritten loops, a sine with its cosine as 30
FLOPS = {"ball": 6, "double-pendulum": 115, "links-4": 380}
# peak bandwidth [B/s], and vector operations [1/s] in float64 and float32, from the vendor's data sheets
KNOWN = {
    "H100": (3.35e12, 33.5e12, 67e12),
    "H200": (4.8e12, 33.5e12, 67e12),
    "A100": (1.555e12, 9.7e12, 19.5e12),
}


def add_arguments(parser) -> None:
    group = parser.add_argument_group("accelerator")
    group.add_argument("--lanes", nargs="+", type=int, default=LANES, help="lanes of every work on an accelerator")
    group.add_argument("--works", nargs="+", choices=list(FLOPS), default=list(FLOPS), help="works on an accelerator")
    group.add_argument("--bandwidth", type=float, help="peak bandwidth of its memory [B/s]")
    group.add_argument("--flops64", type=float, help="peak operations in float64 [1/s]")
    group.add_argument("--flops32", type=float, help="peak operations in float32 [1/s]")
    group.add_argument(
        "--others", type=int, default=100_000, help="lanes of other schemes and of friction, tenfold those of Jacobians"
    )
    group.add_argument("--any-device", action="store_true", help="measure these rows on a CPU too")


def limits(options) -> tuple[float | None, float | None, float | None]:
    """Bandwidth and operations per second, as given or as known for the device."""
    kind = jax.devices()[0].device_kind
    known = next((peaks for name, peaks in KNOWN.items() if name in kind), (None, None, None))
    given = options.bandwidth, options.flops64, options.flops32
    return tuple(a if a is not None else b for a, b in zip(given, known, strict=True))


def rows(options) -> Iterator[dict]:
    """Rows for the works, numbers of lanes and precisions; without an accelerator they say
    that they were not measured."""
    bandwidth, flops64, flops32 = limits(options)
    measured = options.any_device or jax.default_backend() != "cpu"
    for name in options.works:
        work, operations = works.WORKS[name], FLOPS[name]
        for lanes in options.lanes if measured else options.lanes[-1:]:
            for dtype, flops in (("float64", flops64), ("float32", flops32)):
                moved = 4 * np.dtype(dtype).itemsize * work.initial(1)[0].size
                for execution, title in EXECUTIONS.items():
                    if execution == "xla" and lanes > min(
                        options.lanes
                    ):  # by then the kernel is a thousand times as fast
                        continue
                    print(f"accelerator: {name}, {lanes} lanes, {dtype}, {title}", file=sys.stderr, flush=True)
                    row = {"section": "accelerator", "work": name, "lanes": lanes, "steps": work.steps,
                        "mode": "forward",
                           "contender": title, "dtype": dtype, "device": jax.devices()[0].device_kind,
                           "bytes_limit_ns": 1e9 * moved / bandwidth if bandwidth else None,
                           "flops_limit_ns": 1e9 * operations / flops if flops else None}  # fmt: skip
                    row |= measure(work, lanes, dtype, execution, options) if measured else {"remark": "not measured"}
                    yield row
                if measured:
                    shared = {name: row[name] for name in row if name.endswith("limit_ns")} | {"dtype": dtype}
                    yield from alone(work, lanes, dtype, shared, options)
    yield from more_rows(options)


def more_rows(options) -> Iterator[dict]:
    """Other schemes, friction and derivatives, in float64; on an accelerator alone."""
    if not (options.any_device or jax.default_backend() != "cpu"):
        return
    for name, lanes, title, run in others(options.others):
        print(f"accelerator: {name}, {lanes} lanes, {title}", file=sys.stderr, flush=True)
        row = {"section": "accelerator", "work": name, "lanes": lanes, "steps": STEPS, "mode": "forward",
            "contender": title,
               "dtype": "float64", "device": jax.devices()[0].device_kind}  # fmt: skip
        yield row | timed(Contender("", lambda cores, run=run: run()), lanes, STEPS, options)[0]


def others(lanes: int) -> Iterator[tuple[str, int, str, Callable]]:
    """Name, lanes, title and call of each; a Jacobian has a tenth of the lanes."""
    for name, schemes in (
        ("ball", (ji.EventCorrected(), ji.EventDriven())),
        ("double-pendulum", (ji.MoreauJean(), ji.EventDriven())),
    ):
        work = works.WORKS[name]
        given = {"t1": STEPS * work.h, "e": work.restitution, "args": work.args}
        for scheme in schemes:
            q0, v0 = work.initial(lanes)
            own = given if scheme.traits.order is None else given | {"steps": STEPS}
            yield (
                name,
                lanes,
                f"ensemble, {type(scheme).__name__}",
                partial(ji.ensemble, work.problem, q0, v0, scheme=scheme, **own),
            )
        q0, v0 = work.initial(lanes // 10)
        given |= {"wrt": ("q0", "v0"), "steps": STEPS}
        yield name, lanes // 10, "Jacobians by q0 and v0", partial(ji.sensitivities, work.problem, q0, v0, **given)
    problem, q0, v0, given = friction.ball(lanes)
    given |= {"steps": STEPS, "scheme": ji.MoreauJean()}
    yield "spinning ball", lanes, "ensemble, MoreauJean", partial(ji.ensemble, problem, q0, v0, **given)


def alone(work, lanes: int, dtype: str, shared: dict, options) -> Iterator[dict]:
    """Rows of programs without a call's checks and copies: of this library, and of the handwritten loop where there is
    one and a compiler for it."""
    row = {"section": "accelerator", "work": work.name, "lanes": lanes, "steps": work.steps, "mode": "forward",
           "device": jax.devices()[0].device_kind} | shared  # fmt: skip
    q0, v0 = (jax.device_put(x.astype(dtype)) for x in work.initial(lanes))

    def end(q, v):
        s = ji.solve(work.problem, q, v, t1=work.t1, steps=work.steps, e=work.restitution, args=work.args, save="final",
                     sensitivity="none")  # fmt: skip
        return s.q[-1], s.v[-1]

    compiled = jax.jit(jax.vmap(end))
    run = lambda cores: jax.block_until_ready(compiled(q0, v0))
    yield (
        row
        | {"contender": "arrays on the device"}
        | timed(Contender("", run, dtype=dtype), lanes, work.steps, options)[0]
    )
    with TemporaryDirectory() as folder:
        loop = cuda.compile_loop(work, folder) if jax.default_backend() == "gpu" else None
        if loop is not None:
            seconds = [loop(np.asarray(q0), np.asarray(v0))[0] for _ in range(options.rounds + 1)]
            yield row | {
                "contender": "CUDA", "seconds": seconds, "ns_per_step": 1e9 * min(seconds) / (lanes * work.steps)
            }  # fmt: skip


def measure(work, lanes: int, dtype: str, execution: str, options) -> dict:
    q0, v0 = (x.astype(dtype) for x in work.initial(lanes))
    contender = Contender("", ensemble(work, q0, v0, execution, lanes), dtype=dtype)
    try:
        found, result = timed(contender, lanes, work.steps, options)
    except ValueError as error:  # what the kernel cannot take
        return {"remark": str(error)}
    # the events of more motions take their minutes, and are of the same kind
    return found | ({"error": Accuracy(work, lanes).error(result[0])} if lanes <= MOST_COMPARED else {})


def timed(contender: Contender, lanes: int, steps: int, options) -> tuple[dict, object]:
    """Times of a contender in this process, and its result."""
    make = lambda: [contender]
    [(row, result)] = timing.measure(make, lanes, steps, options.rounds, options.budget, apart=False)
    return {name: row[name] for name in FOUND}, result
