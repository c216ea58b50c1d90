"""The one-way street: a module imports only from those before it; the public API is small and documented."""

import ast
import inspect
from pathlib import Path

import jaximpact as ji

ROOT = Path(ji.__file__).parent
# layers from the ground up; a module may import from lower layers, and from its own package
LAYERS = [
    ["derivatives"],
    ["linalg", "status", "problem", "lanes", "threads", "version"],
    ["contact", "scalarise"],
    ["projection"],
    ["schemes"],
    ["extend"],
    ["validate", "names", "sensitivity"],
    ["integrate", "kernel"],
    ["execution"],
    ["ensemble"],
    ["jacobians"],
    ["catalogue"],
    ["analysis"],
    ["study"],
    ["plots"],  # drawn on request by Drawable.plot: the one import upwards, inside that method
    ["__init__"],
    ["cli"],
    ["__main__"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imported(path):
    """Top-level parts of the package that a file imports, wherever in the file."""
    package = [] if path.parent == ROOT else list(path.relative_to(ROOT).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - (node.level - 1)]
            parts = base + (node.module.split(".") if node.module else [])
            yield from [parts[0]] if parts else [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "jaximpact":
            raise AssertionError(f"{path}: write imports inside the package as relative ones")


def test_no_back_edge():
    files = sorted(ROOT.rglob("*.py"))
    assert len(files) > 30
    for path in files:
        own = path.relative_to(ROOT).parts[0].removesuffix(".py")
        for other in imported(path):
            name = other if other in LEVEL else "__init__"
            if name != own and (path.stem, name) != ("drawable", "plots"):
                assert LEVEL[name] < LEVEL[own] or own == "__init__", f"{path.relative_to(ROOT)} imports {other}"


def test_public_names():
    assert len(ji.__all__) <= 30
    assert sorted(ji.__all__) == sorted(set(ji.__all__))
    for name in ji.__all__:
        documented = inspect.getdoc(getattr(ji, name))
        assert documented, name
        assert len(documented.splitlines()[0]) < 130, name
