"""Siconos on disks that turn and rub: MoreauJeanOSI with theta = 1/2, its Gauss-Seidel solver of planar
friction to the tolerance of the job.

    /usr/bin/python3 siconos_rubbing.py < job.json

The loop over steps is Python, all else its C++: its own disks and planes. Runs under the interpreter that has Siconos
(Debian: python3-siconos), so it imports nothing of this project. A job has ``radii``, ``width`` of the box, ``mu``,
``g``, ``h``, ``steps``, ``tolerance``, ``pairs`` that see each other, ``q0`` and the most ``iterations`` of a solve;
the answer is q, processor seconds of all steps, iterations, and the largest natural residual [m/s] after a step.
"""

import json
import os
import sys
import time

FAR = 1e3  # half of the width of floor and walls


def law_residual(np, matrix, w, x, mu):
    """Largest natural residual of Coulomb's law [m/s], impulses by the largest diagonal entry of their contact."""
    y = np.repeat(np.max(np.diag(matrix).reshape(-1, 2), axis=1), 2).reshape(-1, 2) * x
    normal, slide = y[:, 0] - w[:, 0] - mu * np.abs(w[:, 1]), y[:, 1] - w[:, 1]
    inside = (np.abs(slide) <= mu * normal) & (normal >= 0)
    pushed = np.maximum((normal + mu * np.abs(slide)) / (1 + mu**2), 0)
    nearest = np.where(
        inside[:, None], np.stack([normal, slide], 1), np.stack([pushed, mu * pushed * np.sign(slide)], 1)
    )
    return np.max(np.abs(y - nearest), initial=0.0)


def pile(kernel, bodies, np, job):
    """The simulation, its contact problem and its disks."""
    model = kernel.NonSmoothDynamicalSystem(0.0, (job["steps"] + 1) * job["h"])
    law = kernel.NewtonImpactFrictionNSL(0.0, 0.0, job["mu"], 2)
    disks = []
    for radius, place in zip(job["radii"], job["q0"], strict=True):
        disks.append(bodies.Disk(radius, 1.0, place, [0.0, 0.0, 0.0]))
        disks[-1].setFExtPtr(np.array([0.0, -job["g"], 0.0]))
        model.insertDynamicalSystem(disks[-1])
        for plane in ((1.0, 0.0, 0.0), (-1.0, 0.0, job["width"]), (0.0, 1.0, 0.0)):
            # without a place and a width only the first plane is seen
            model.link(kernel.Interaction(law, bodies.DiskPlanR(radius, *plane, 0.0, 0.0, FAR)), disks[-1])
    for i, j in job["pairs"]:
        relation = bodies.DiskDiskR(job["radii"][i], job["radii"][j])
        model.link(kernel.Interaction(law, relation), disks[i], disks[j])
    problem = kernel.FrictionContact(2)
    options = problem.numericsSolverOptions()
    options.iparam[0], options.dparam[0] = job["iterations"], job["tolerance"]
    times = kernel.TimeDiscretisation(0.0, job["h"])
    return kernel.TimeStepping(model, times, kernel.MoreauJeanOSI(0.5), problem), problem, disks


def main():
    job = json.load(sys.stdin)
    out = os.dup(1)
    os.dup2(2, 1)  # Siconos prints: only the answer goes to the caller
    try:
        import numpy as np
        import siconos
        from siconos import kernel
        from siconos.mechanics.collision import bodies
    except ImportError as error:
        os.write(out, json.dumps({"missing": str(error)}).encode())
        return
    simulation, problem, disks = pile(kernel, bodies, np, job)
    options, spent, iterations, worst, late = problem.numericsSolverOptions(), 0.0, 0, 0.0, 0
    for _ in range(job["steps"]):
        begin = time.process_time()
        simulation.computeOneStep()
        spent += time.process_time() - begin
        if problem.getSizeOutput():
            iterations += int(options.iparam[1])
            late += int(options.iparam[1]) >= job["iterations"]
            size = problem.getSizeOutput()
            x, b = (np.array(part()).ravel()[:size] for part in (problem.z, problem.q))
            matrix = np.array(problem.M().defaultMatrix())[:size, :size]
            worst = max(worst, law_residual(np, matrix, (matrix @ x + b).reshape(-1, 2), x.reshape(-1, 2), job["mu"]))
        begin = time.process_time()
        simulation.nextStep()
        spent += time.process_time() - begin
    found = {"version": siconos.version, "q": [list(map(float, disk.q())) for disk in disks], "seconds": spent}
    os.write(out, json.dumps(found | {"iterations": iterations, "residual": worst, "late": late}).encode())


if __name__ == "__main__":
    main()
