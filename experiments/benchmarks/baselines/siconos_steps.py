"""Siconos on the bouncing ball and the double pendulum: MoreauJeanOSI with theta = 1/2, its LCP solver as it comes.

    /usr/bin/python3 siconos_steps.py < jobs.json

The loop over steps is Python, all else its C++, the pendulum as a compiled plugin. Runs under the interpreter that has
Siconos (Debian: python3-siconos), so it imports nothing of this project. The jobs and the answers are those of
`benchmarks.peers`.
"""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PENDULUM = Path(__file__).with_name("siconos_pendulum.cpp")


def ball(kernel, np, q0, v0, args, plugin):
    """The body and its relations."""
    body = kernel.LagrangianLinearTIDS(np.array(q0), np.array(v0), np.eye(1))
    body.setFExtPtr(np.array([-args["g"]]))
    return body, [kernel.LagrangianLinearTIR(np.eye(1))]


def double_pendulum(kernel, np, q0, v0, args, plugin):
    body = kernel.LagrangianDS(np.array(q0), np.array(v0))
    body.setComputeMassFunction(f"{plugin}.so", "mass")
    body.setComputeFIntFunction(f"{plugin}.so", "internal")
    body.setComputeJacobianFIntqFunction(f"{plugin}.so", "internal_by_q")
    body.setComputeJacobianFIntqDotFunction(f"{plugin}.so", "internal_by_v")
    gaps = [kernel.LagrangianScleronomousR(f"{plugin}:{name}", f"{plugin}:{name}_by_q") for name in ("joint", "tip")]
    return body, gaps


WORKS = {"ball": ball, "double-pendulum": double_pendulum}


def prepare(kernel, np, job, q0, v0, plugin):
    """The simulation of one lane, ready to run, and its body."""
    body, relations = WORKS[job["work"]](kernel, np, q0, v0, job["args"], plugin)
    model = kernel.NonSmoothDynamicalSystem(0.0, job["steps"] * job["h"])
    model.insertDynamicalSystem(body)
    for relation in relations:
        model.link(kernel.Interaction(kernel.NewtonImpactNSL(job["e"]), relation), body)
    times = kernel.TimeDiscretisation(0.0, job["h"])
    return kernel.TimeStepping(model, times, kernel.MoreauJeanOSI(0.5), kernel.LCP()), body


def trajectories(kernel, np, job, plugin):
    """Final states of all lanes, and the seconds that their steps took; models are made before the clock runs."""
    made = [prepare(kernel, np, job, q, v, plugin) for q, v in zip(job["q0"], job["v0"], strict=True)]
    begin = time.perf_counter()
    for simulation, _ in made:
        for _ in range(job["steps"]):
            simulation.computeOneStep()
            simulation.nextStep()
    seconds = time.perf_counter() - begin
    return (
        [list(map(float, body.q())) for _, body in made],
        [list(map(float, body.velocity())) for _, body in made],
        seconds,
    )


def build(folder, args):
    """The pendulum's plugin with its parameters set; its path without the suffix, as Siconos names it."""
    target = Path(folder) / "pendulum.so"
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", str(PENDULUM), "-o", str(target)], check=True)
    numbers = [args[name] for name in ("m1", "m2", "l1", "l2", "g", "wall")]
    ctypes.CDLL(str(target)).set_parameters((ctypes.c_double * 6)(*numbers))
    return str(target)[: -len(".so")]


def main():
    jobs = json.load(sys.stdin)
    out = os.dup(1)
    os.dup2(2, 1)  # Siconos prints: only the answers go to the caller
    say = lambda **line: os.write(out, (json.dumps(line) + "\n").encode())
    try:
        import numpy as np
        import siconos
        from siconos import kernel
    except ImportError as error:
        say(missing=str(error))
        return
    say(version=siconos.version)
    for job in jobs:
        with tempfile.TemporaryDirectory() as folder:
            plugin = build(folder, job["args"]) if job["work"] == "double-pendulum" else ""
            runs = [trajectories(kernel, np, job, plugin) for _ in range(job["rounds"])]
        say(q=runs[-1][0], v=runs[-1][1], seconds=[run[2] for run in runs], compile_s=0.0)


if __name__ == "__main__":
    main()
