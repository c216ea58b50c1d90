"""MuJoCo MJX, brax and diffrax on the works, in a process of its own: see `benchmarks.peers` for jobs and answers.

    python -m benchmarks.baselines.peer_steps KEY < jobs.json

MJX and brax are set up as in experiments/conformance: MJX with the spring and damper of its contact that give the
wanted bounce over sqrt(h) seconds, brax's spring pipeline with its elasticity. diffrax locates impacts by its events;
it takes tolerances in place of a step, a "solver" of its own, and "quantity":
"jacobian" for derivatives of the final state.
"""

import importlib.metadata
import json
import os
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import work_precision

FLIGHTS = 64  # impacts of a lane, at most


def rigid_bodies(motion, job):
    """The ball by a motion of experiments/conformance: (theta, t1, steps) -> (q, v)."""

    def one(q, v, args):
        theta = jnp.stack([q[0], v[0], jnp.asarray(job["e"]), args["g"], jnp.zeros(())])
        found = motion(theta, jnp.asarray(job["steps"] * job["h"]), job["steps"])
        return found[:1], found[1:]

    return one


def mjx(job):
    from conformance.peers import mjx_contacts

    return rigid_bodies(mjx_contacts.ball, job)


def brax(job):
    from conformance.peers import brax_pipelines

    return rigid_bodies(brax_pipelines.motions("spring")["grav1d"], job)


def diffrax(job):
    """Flights that end at the event min(gaps) = 0 or at t1, and Newton's law between them."""
    import diffrax
    import optimistix

    problem, t1, e = work_precision.problem_of(job["work"]), job["steps"] * job["h"], job["e"]

    def mass_solve(q, x, args):
        return x if problem.mass is None else jnp.linalg.solve(problem.mass(q, args), x)

    def field(t, y, args):
        q, v = jnp.split(y, 2)
        return jnp.concatenate([v, mass_solve(q, problem.force(t, q, v, args), args)])

    def gap(t, y, args, **_):
        return jnp.min(problem.constraints(t, jnp.split(y, 2)[0], args))

    def strike(t, y, args):
        q, v = jnp.split(y, 2)
        normal = jax.grad(lambda x: jnp.min(problem.constraints(t, x, args)))(q)
        response = mass_solve(q, normal, args)
        return jnp.concatenate([q, v - (1 + e) * (normal @ v) / (normal @ response) * response])

    term, solver = diffrax.ODETerm(field), getattr(diffrax, job.get("solver", "Tsit5"))()
    # forward mode, for Jacobians: a loop of as many flights as there are impacts has no other
    adjoint = diffrax.ForwardMode()
    controller = diffrax.PIDController(rtol=job["tolerance"], atol=job["tolerance"], dtmax=job["longest"])
    event = diffrax.Event(gap, optimistix.Newton(0.1 * job["tolerance"], 0.1 * job["tolerance"]), direction=False)

    def one(q, v, args):
        def fly(carry):
            count, t, y = carry
            found = diffrax.diffeqsolve(term, solver, t, t1, None, y, args, stepsize_controller=controller,
                                        event=event, adjoint=adjoint, max_steps=100_000, throw=False)  # fmt: skip
            t, y = found.ts[-1], found.ys[-1]
            return count + 1, t, jnp.where(t < t1, strike(t, y, args), y)

        start = 0, jnp.zeros(()), jnp.concatenate([q, v])
        y = jax.lax.while_loop(lambda c: (c[1] < t1) & (c[0] < FLIGHTS), fly, start)[2]
        return jnp.split(y, 2)

    return one


PEERS = {"mjx": (mjx, "mujoco-mjx"), "brax": (brax, "brax"), "diffrax": (diffrax, "diffrax")}


def jacobian(one):
    """Derivatives of final q and v by q0, then v0, each flat and one behind the other: one array (n,)."""

    def of(q, v, args):
        blocks = jax.jacfwd(one, argnums=(0, 1))(q, v, args)
        return (jnp.concatenate([jnp.ravel(block) for row in blocks for block in row]),)

    return of


def answer(peer, job) -> dict:
    q0, v0 = np.array(job["q0"]), np.array(job["v0"])
    args = {name: jnp.broadcast_to(jnp.asarray(x, float), len(q0)) for name, x in job["args"].items()}
    one, names = peer(job), ("q", "v")
    if job.get("quantity") == "jacobian":
        one, names = jacobian(one), ("jacobian",)
    begin = time.perf_counter()
    run = jax.jit(jax.vmap(one)).lower(q0, v0, args).compile()
    compiled = time.perf_counter() - begin
    seconds = []
    for _ in range(job["rounds"] + 1):  # the first one warms up
        begin = time.process_time()
        found = [np.asarray(x) for x in run(q0, v0, args)]
        seconds.append(time.process_time() - begin)
    return {name: x.tolist() for name, x in zip(names, found, strict=True)} | {
        "seconds": seconds[1:],
        "compile_s": compiled,
    }


def main() -> None:
    jobs = json.load(sys.stdin)
    out = os.dup(1)
    os.dup2(2, 1)  # libraries print: only the answers go to the caller
    say = lambda **line: os.write(out, (json.dumps(line) + "\n").encode())
    jax.config.update("jax_enable_x64", True)
    peer, package = PEERS[sys.argv[1]]
    try:
        say(version=importlib.metadata.version(package))
        for job in jobs:
            say(**answer(peer, job))
    except (ImportError, importlib.metadata.PackageNotFoundError) as error:
        say(missing=str(error))


if __name__ == "__main__":
    main()
