"""The one-way street: a module imports only from those before it; the public API is small and documented."""

import ast
import inspect
from pathlib import Path

import jaximpact as ji

ROOT = Path(ji.__file__).parent
# layers from the ground up; a module may import from lower layers, and from its own package
LAYERS = [
    ["cache", "checks", "settings"],
    ["derivatives", "jaxprs", "labels", "shapes"],
    ["linalg", "status", "motion", "problem", "threads", "chunks", "stream", "progress", "version"],
    ["provenance"],
    ["contact", "small", "symbolic", "switches", "variation"],
    ["native", "blocks"],
    ["lasting"],
    ["projection"],
    ["schemes"],
    ["extend", "bodies"],
    ["validate", "names", "sensitivity"],
    ["jumps"],
    ["save"],
    ["solution"],
    ["program"],
    ["rows", "schedule"],
    ["straight"],
    ["counted"],
    ["kernel"],
    ["closures", "trajectory", "execution"],
    ["arguments"],
    ["backwards"],
    ["primitive"],
    ["integrate", "ensemble", "jacobians"],
    ["catalogue"],
    ["analysis"],
    ["study"],
    ["indices", "conformance"],
    ["plots", "forms"],
    ["files"],
    ["__init__"],
    ["cli"],
    ["__main__"],
]
# the rooms that methods of results call on, imported within one file when they are called
UPWARDS = {("result", "plots"), ("result", "analysis"), ("result", "files")}
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
            if name != own and (path.stem, name) not in UPWARDS:
                assert LEVEL[name] < LEVEL[own] or own == "__init__", f"{path.relative_to(ROOT)} imports {other}"


def test_public_names():
    assert len(ji.__all__) <= 30
    assert sorted(ji.__all__) == sorted(set(ji.__all__))
    for name in ji.__all__:
        documented = inspect.getdoc(getattr(ji, name))
        assert documented, name
        assert len(documented.splitlines()[0]) < 130, name


# the test files that know inner modules, since what they test has no public name; the list may only get shorter
INSIDERS = {
    "test_cli", "test_ensemble", "test_fuzz", "test_honesty_pieces", "test_native", "test_native_table",
    "test_projection_sizes", "test_small",
}  # fmt: skip
OPEN = {"analysis", "bodies", "catalogue", "cli", "conformance", "extend", "indices", "plots", "study"}


def test_tests_look_from_outside():
    inside = set()
    for path in Path(__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "jaximpact":
                parts = node.module.split(".")
                names, known = (
                    (parts[1:2], OPEN) if len(parts) > 1 else ([a.name for a in node.names], OPEN | set(ji.__all__))
                )
            elif isinstance(node, ast.Import):
                names, known = [a.name.split(".")[1] for a in node.names if a.name.startswith("jaximpact.")], OPEN
            else:
                continue
            if not known.issuperset(names):
                inside.add(path.stem)
    assert inside == INSIDERS
