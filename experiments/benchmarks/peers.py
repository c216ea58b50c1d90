"""Other simulators on the same motions, each in a process of its own and under its own interpreter.

A job is {"work", "q0", "v0" (lanes, d), "e", "args", "h", "steps", "rounds"} and for diffrax "tolerance" and "longest"
(step) too, and "solver" or "quantity" if need be, the answer to each a line of {"q", "v", "seconds" of each round,
"compile_s"}. The physics is as near as each allows: the error of the final position stands beside the time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SICONOS_PYTHON = "/usr/bin/python3"
TITLES = {
    "siconos": "Siconos, MoreauJean",
    "mjx": "MuJoCo MJX",
    "brax": "brax, spring",
    "diffrax": "diffrax, events",
}


def ask(key: str, jobs: list[dict], python: str | None = None, limit: float = 300.0) -> tuple[str, list[dict]]:
    """What a simulator answers: what there is to say of it, and its answers in the order of the jobs."""
    if key == "siconos":
        command = [python or SICONOS_PYTHON, str(HERE / "baselines" / "siconos_steps.py")]
        environment = dict(os.environ)
    else:
        command = [python or sys.executable, "-m", "benchmarks.baselines.peer_steps", key]
        path = [str(HERE.parent), str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    try:
        ran = subprocess.run(command, input=json.dumps(jobs), capture_output=True, text=True, env=environment,
                             timeout=limit)  # fmt: skip
    except FileNotFoundError:
        return f"not installed: no {command[0]}", []
    except subprocess.TimeoutExpired:
        return f"not finished within {limit:g} s", []
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    if not lines or ran.returncode:
        said = [line for line in ran.stderr.splitlines() if any(map(str.isalpha, line))] or ["no answer"]
        return f"failed: {said[-1][:200]}", []
    if "missing" in lines[0]:
        return f"not installed: {lines[0]['missing']}", []
    return f"version {lines[0]['version']}", lines[1:]
