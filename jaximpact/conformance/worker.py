"""Worker that runs one adapter in its own process, printing each result as a JSON line so that results survive a crash.

    python worker.py ADAPTER VARIANT < jobs.json

ADAPTER is a file or the name of a module. It holds two functions,

    final_state(case, theta, steps)    -> (q, v) at case.t1, (2d,)
    jacobian(case, theta, steps)       -> its derivative by theta, (2d, p)

or a function ``adapter(variant)`` that returns an object with them. ``case`` has the attributes of
`jaximpact.conformance.Case` that are data; ``theta`` (p,) are the parameters in the order of ``case.parameters``,
``steps`` a number of steps. A case that cannot be stated raises NotImplementedError. Without ``jacobian`` only the
states are compared with the exact ones. Cases with friction have the formulas ``case.slip`` and ``case.friction`` too;
only an adapter with FRICTION = True gets them. Optional: STEPS = False if the simulator has no step, PACKAGES, whose
versions are printed, HOW, a sentence on how the simulator was used.

This file needs nothing but Python: the simulator may live in an environment of its own.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def load(name: str, variant: str) -> Any:
    """Loads an adapter by module name or file."""
    if name.endswith(".py"):
        spec: Any = importlib.util.spec_from_file_location(Path(name).stem, name)
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(Path(name).resolve().parent))
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(name)
    return module.adapter(variant) if "adapter" in vars(module) else module


def version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(source tree)"


def plain(x: Any) -> Any:
    """An array of any library as nested lists of numbers."""
    x = x.tolist() if hasattr(x, "tolist") else x
    return [plain(y) for y in x] if isinstance(x, list | tuple) else float(x)


def first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"[:200]


def compute_states(adapter: Any, case: Any, theta: list, steps: list) -> dict:
    """States and Jacobians for every step count; a single result for simulators without steps."""
    if getattr(case, "slip", ()) and not getattr(adapter, "FRICTION", False):
        raise NotImplementedError
    counts = steps if getattr(adapter, "STEPS", True) else steps[:1]
    found = {"states": [plain(adapter.final_state(case, theta, n)) for n in counts]}
    if hasattr(adapter, "jacobian"):
        found["jacobians"] = [plain(adapter.jacobian(case, theta, n)) for n in counts]
    return found


def main() -> None:
    jobs = json.load(sys.stdin)
    out = os.dup(1)  # libraries may print: only this file's lines go to the caller
    os.dup2(2, 1)

    def say(**line: object) -> None:
        os.write(out, (json.dumps(line) + "\n").encode())

    try:
        adapter = load(sys.argv[1], sys.argv[2])
    except ImportError as error:
        return say(missing=str(error))
    packages = getattr(adapter, "PACKAGES", ())
    say(versions={name: version(name) for name in packages}, how=getattr(adapter, "HOW", ""))
    for job in jobs:
        case = SimpleNamespace(**job["case"])
        about = {"case": case.name, "h": job["h"]}
        say(begins=True, **about)
        start = time.perf_counter()
        try:
            found = compute_states(adapter, case, list(case.parameters.values()), job["steps"])
        except NotImplementedError:
            say(skipped=True, **about)
            continue
        except Exception as error:  # what a simulator says is part of the table
            found = {"error": first_line(error)}
        say(seconds=time.perf_counter() - start, **about, **found)


if __name__ == "__main__":
    main()
