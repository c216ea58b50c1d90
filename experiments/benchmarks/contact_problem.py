"""`jaximpact.extend.solve_contact` beside other batched quadratic programs of JAX that differentiate:
qpax and jaxopt's OSQP.

min x'Ax/2 + b'x over x >= 0, random A of full rank, 1000 in a batch on one core, float64; processor time of a problem,
and of its gradient of sum(x) by b; the error is the natural residual, relative to the largest |b|. Each is run as its
documentation says, to 1e-9 where it asks for a tolerance.

    python experiments/benchmarks/contact_problem.py            qpax and jaxopt, where they are installed
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import jaximpact as ji  # noqa: E402
from jaximpact.extend import solve_contact  # noqa: E402

LANES = 1000


def ours(solver):
    return lambda a, b: solve_contact(a, b, solver=solver).impulse


def with_qpax():
    import qpax

    def solve(a, b):
        m = b.size
        return qpax.solve_qp_primal(a, b, jnp.zeros((0, m)), jnp.zeros(0), -jnp.eye(m), jnp.zeros(m), solver_tol=1e-9)

    return solve


def with_jaxopt():
    import jaxopt

    program = jaxopt.BoxOSQP(tol=1e-9, maxiter=20_000)

    def solve(a, b):
        m = b.size
        found = program.run(params_obj=(a, b), params_eq=jnp.eye(m), params_ineq=(jnp.zeros(m), jnp.full(m, jnp.inf)))
        return found.params.primal[0]

    return solve


CONTENDERS = {
    "solve_contact, ActiveSet": lambda: ours(ji.ActiveSet()),
    "solve_contact, ADMM": lambda: ours(ji.ADMM()),
    "solve_contact, ProjectedGradient": lambda: ours(ji.ProjectedGradient()),
    "qpax": with_qpax,
    "jaxopt, BoxOSQP": with_jaxopt,
}


def problems(m: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m)
    g = rng.standard_normal((LANES, m, m))
    return g @ np.swapaxes(g, 1, 2) + 0.1 * np.eye(m), rng.standard_normal((LANES, m))


def measure(solve, m: int, rounds: int) -> dict:
    a, b = (jnp.asarray(x) for x in problems(m))
    value = jax.jit(jax.vmap(solve))
    gradient = jax.jit(jax.vmap(jax.grad(lambda b, a: jnp.sum(solve(a, b)))))
    found = {}
    for name, run in (("value", lambda: value(a, b)), ("gradient", lambda: gradient(b, a))):
        begin = time.process_time()
        x = jax.block_until_ready(run())
        first, seconds = time.process_time() - begin, []
        for _ in range(rounds):
            begin = time.process_time()
            x = jax.block_until_ready(run())
            seconds.append(time.process_time() - begin)
        found |= {f"{name} [us]": f"{1e6 * min(seconds) / LANES:.2f}", f"{name}, first call [s]": f"{first:.1f}"}
    x = value(a, b)
    w = jnp.einsum("nij,nj->ni", a, x) + b
    residual = jnp.abs(jnp.minimum(w, jnp.diagonal(a, axis1=1, axis2=2) * x))
    return found | {"residual": f"{float(jnp.max(residual) / jnp.max(jnp.abs(b))):.0e}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"))
    parser.add_argument("--sizes", nargs="+", type=int, default=[3, 8, 24])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows = []
    for m in options.sizes:
        for name, make in CONTENDERS.items():
            try:
                solve = make()
            except ImportError:
                print(f"{name}: not installed")
                continue
            rows.append({"contacts": m, "solver": name} | measure(solve, m, options.rounds))
            print(*rows[-1].values(), sep="  ", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    with open(options.out / "contact_problem.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
