"""Siconos on the bouncing ball: MoreauJeanOSI with theta = 1/2, its LCP solver as it comes; a loop in Python.

    /usr/bin/python3 siconos_steps.py < jobs.json

Runs under the interpreter that has Siconos (Debian: python3-siconos), so it imports nothing of this project. The jobs
and the answers are those of `benchmarks.peers`.
"""

import json
import os
import sys
import time


def ball(kernel, np, q0, v0, e, args, h, steps):
    """The simulation and the body, ready to run."""
    body = kernel.LagrangianLinearTIDS(np.array(q0), np.array(v0), np.eye(1))
    body.setFExtPtr(np.array([-args["g"]]))
    model = kernel.NonSmoothDynamicalSystem(0.0, steps * h)
    model.insertDynamicalSystem(body)
    contact = kernel.Interaction(kernel.NewtonImpactNSL(e), kernel.LagrangianLinearTIR(np.eye(1)))
    model.link(contact, body)
    times = kernel.TimeDiscretisation(0.0, h)
    return kernel.TimeStepping(model, times, kernel.MoreauJeanOSI(0.5), kernel.LCP()), body


def trajectories(kernel, np, job):
    """Final states of all lanes, and the seconds that their steps took; models are made before the clock runs."""
    numbers = [job[name] for name in ("e", "args", "h", "steps")]
    made = [ball(kernel, np, q, v, *numbers) for q, v in zip(job["q0"], job["v0"], strict=True)]
    begin = time.perf_counter()
    for simulation, _ in made:
        for _ in range(job["steps"]):
            simulation.computeOneStep()
            simulation.nextStep()
    seconds = time.perf_counter() - begin
    return [[float(body.q()[0])] for _, body in made], [[float(body.velocity()[0])] for _, body in made], seconds


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
    say(version=getattr(siconos, "__version__", "") or "4")
    for job in jobs:
        runs = [trajectories(kernel, np, job) for _ in range(job["rounds"])]
        say(q=runs[-1][0], v=runs[-1][1], seconds=[run[2] for run in runs], compile_s=0.0)


if __name__ == "__main__":
    main()
