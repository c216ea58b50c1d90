"""Arrays have the shapes that annotations state."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_shapes_are_as_stated():
    """In a process of its own, whose modules are loaded with the checks in them."""
    pytest.importorskip("jaxtyping")
    pytest.importorskip("beartype")
    command = [sys.executable, "-m", "support.checked_motions"]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    modules, functions = (int(word) for word in done.stdout.split() if word.isdigit())
    assert modules > 30 and functions > 300, done.stdout
