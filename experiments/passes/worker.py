"""One column of the table, in a process of its own: results leave as JSON lines, so that what is done survives a crash.

    python -m passes.worker MODULE VARIANT < jobs.json

MODULE is a module's name or the path of a file. A job is {"case", "h", "theta", "steps", "ends"}.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np


def load(name: str):
    """The adapter, by module name or file."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(Path(name).stem, name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(source tree)"


def differentiate(motion, steps: int, transform=jax.jacfwd):
    """(theta, t1) -> (Jacobian, state), compiled once for every end time."""
    return jax.jit(lambda theta, t1: transform(lambda x: (motion(x, t1, steps),) * 2, has_aux=True)(theta))


def main() -> None:
    jobs = json.load(sys.stdin)
    out = os.dup(1)  # libraries may print: only this file's lines go to the caller
    os.dup2(2, 1)
    say = lambda **line: os.write(out, (json.dumps(line) + "\n").encode())
    jax.config.update("jax_enable_x64", True)
    try:
        adapter = load(sys.argv[1])
        motions = adapter.motions(sys.argv[2]) if hasattr(adapter, "motions") else adapter.MOTIONS
    except ImportError as error:
        say(missing=str(error))
        return
    versions = {name: version(name) for name in getattr(adapter, "PACKAGES", ())}
    say(versions=versions | {"jax": jax.__version__}, how=getattr(adapter, "HOW", ""))
    build = getattr(adapter, "differentiate", differentiate)
    for job in jobs:
        if job["case"] not in motions:
            continue
        start = time.perf_counter()
        try:
            solve = build(motions[job["case"]], job["steps"])
            pairs = [
                solve(np.array(job["theta"]), np.asarray(end))
                for end in job["ends"][: getattr(adapter, "PHASES", None)]
            ]
            result = {
                key: [np.asarray(x, float).tolist() for x in xs]
                for key, xs in zip(("jacobians", "states"), zip(*pairs, strict=True), strict=True)
            }
        except Exception as error:  # what a simulator says is part of the table
            result = {
                "error": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[
                    :200
                ]
            }
        say(case=job["case"], h=job["h"], seconds=time.perf_counter() - start, **result)


if __name__ == "__main__":
    main()
