"""The one-way street: a module imports only from those before it; the public API is small and documented."""

import ast
import inspect
import math
import subprocess
import sys
import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path

import jaximpact as ji

ROOT = Path(ji.__file__).parent
# packages from the ground up; a file may import from lower rows, and from its own package
ROWS = [
    ["jaxtools", "version"],
    ["switches"],
    ["mechanics", "compiler"],
    ["bodies", "catalogue", "results", "extend"],
    ["simulation"],
    ["analysis", "conformance"],
    ["study", "plots"],
    ["indices", "planar"],
    ["spatial"],
    ["__init__"],
    ["cli"],
    ["__main__"],
]
# folders of mechanics, in the same order: what a step knows of one instant, of a substep, of a path between events, of
# a scheme
ROOMS_OF_MECHANICS = ["contact.friction", "contact", "events", "trials", "saltation", "schemes"]
LEVEL = {name: level for level, names in enumerate(ROWS) for name in names}
FILES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(ROOT.rglob("*.py"))}


def room_of(module):
    return module.split(".")[0]


def is_for_types(node):
    """Whether a statement is one for type checkers alone."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "_typing.TYPE_CHECKING")


@cache
def parsed(path):
    """The tree of a file, of which several tests ask."""
    return ast.parse(path.read_text())


def imported(module):
    """The package's modules that one imports, wherever in its file."""
    package = module.split(".")[:-1]
    tree = parsed(FILES[module])
    for_types = {id(inner) for node in ast.walk(tree) if is_for_types(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or id(node) in for_types:
            continue
        absolute = (node.module or "").split(".")[0] == "jaximpact" and not node.level
        assert not absolute, f"{module}: write imports inside the package as relative ones"
        if node.level:
            base = [*package[: len(package) - (node.level - 1)], *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                names = (".".join([*base, alias.name]), ".".join([*base, alias.name, "__init__"]))
                whole = (".".join(base), ".".join([*base, "__init__"]))
                yield next(name for name in (*names, *whole) if name in FILES)


@cache
def imports():
    """The modules that each imports; read when a test asks, as every process collects this file."""
    return {module: set(imported(module)) - {module} for module in FILES}


def test_a_package_imports_lower_ones_only():
    assert {room_of(module) for module in FILES} == set(LEVEL)
    for module, others in imports().items():
        own = room_of(module)
        for other in others:
            assert room_of(other) == own or LEVEL[room_of(other)] < LEVEL[own] or own == "__init__", (module, other)


def floor_of(module):
    """The place of a file of mechanics in the order of its folders; -1 for files in none, which any may import."""
    found = [k for k, name in enumerate(ROOMS_OF_MECHANICS) if module.startswith(f"mechanics.{name}.")]
    return found[0] if found else -1


def test_a_folder_of_mechanics_imports_lower_ones_only():
    folders = {
        module.rpartition(".")[0] for module in FILES if module.count(".") > 1 and module.startswith("mechanics.")
    }
    assert folders == {f"mechanics.{name}" for name in ROOMS_OF_MECHANICS}
    for module, others in imports().items():
        for other in others if floor_of(module) >= 0 else ():
            assert floor_of(other) <= floor_of(module), (module, other)


def test_the_compiler_stands_alone():
    """With what it needs of `jaxtools` it could be a package of its own."""
    for module, others in imports().items():
        if room_of(module) in ("compiler", "jaxtools"):
            rooms = {room_of(other) for other in others}
            allowed = {"jaxtools"} if room_of(module) == "jaxtools" else {"compiler", "jaxtools", "version"}
            assert rooms <= allowed, (module, others)
    loaded = {
        name.split(".")[1] for name in modules_after("import jaximpact.compiler") if name.startswith("jaximpact.")
    }
    assert loaded == {"compiler", "jaxtools", "version"}


def test_no_file_imports_itself_by_others():
    left = dict(imports())
    while left:
        # files that import none of those left; a circle has none
        ground = [module for module, others in left.items() if not others & left.keys()]
        assert ground, f"these import each other: {sorted(left)}"
        for module in ground:
            del left[module]


def test_public_names():
    assert len(ji.__all__) <= 30
    assert sorted(ji.__all__) == sorted(set(ji.__all__))
    for name in ji.__all__:
        documented = inspect.getdoc(getattr(ji, name))
        assert documented, name
        assert len(documented.splitlines()[0]) < 130, name


# the test files that know inner modules, since what they test has no public name
INSIDERS = {
    "test_cli", "test_cones", "test_ensemble", "test_fuzz", "test_honesty_pieces", "test_native",
    "test_native_table", "test_operating_system", "test_projection_sizes", "test_recipes", "test_row_structure",
    "test_side_by_side", "test_small", "test_status", "test_some_contacts", "test_study_trust", "test_tunnelling",
    "test_kernel", "kernels_on_host", "test_linalg", "test_arithmetic", "test_program_cache", "native_table",
    "test_lane_blocks", "test_optimized_later", "test_loops", "test_spare_memory", "test_transposition",
    "test_remembered", "test_coupling",
}  # fmt: skip
OPEN = {
    "analysis",
    "bodies",
    "catalogue",
    "cli",
    "compiler",
    "conformance",
    "extend",
    "indices",
    "planar",
    "plots",
    "spatial",
    "study",
}


def modules_after(statements):
    """What a new process has imported after some statements."""
    code = f"import sys; {statements}; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(found.stdout.split())


def test_an_import_loads_what_each_call_needs_alone():
    """With everything it took 1.5 times what jax takes, from sources without bytecode 2.2."""
    assert {name for name in modules_after("import jaximpact") if name.startswith(("jax", "scipy", "tqdm"))} == {
        "jaximpact"
    }
    late = {"scipy.stats", "scipy.spatial", "scipy.optimize", "matplotlib", "llvmlite", "xarray", "pandas", "sympy"}
    late |= {
        f"jaximpact.{room}"
        for room in ("analysis", "catalogue", "conformance", "indices", "planar", "plots", "spatial", "study")
    }
    assert not modules_after("import jaximpact as ji; ji.Problem, ji.solve, ji.ensemble, ji.sensitivities") & late


def test_names_are_found_where_type_checkers_find_them():
    block = next(node for node in ast.parse(FILES["__init__"].read_text()).body if is_for_types(node))
    named = set()
    for node in block.body:
        for alias in node.names:
            home = import_module("." * node.level + (node.module or alias.name), "jaximpact")
            assert getattr(ji, alias.name) is (getattr(home, alias.name) if node.module else home)
            named.add(alias.name)
    assert set(ji.__all__) < named <= set(dir(ji))


def test_an_import_in_the_middle_of_a_trace_adds_nothing_to_it():
    """A name may be used for the first time in a function that jax traces:
    arrays made by an import would be tracers."""
    code = """
import jax

def function(x):
    import jaximpact.cli, jaximpact.indices, jaximpact.planar, jaximpact.spatial
    return jaximpact.solve, jaximpact.catalogue.entries(), x

print(len(jax.make_jaxpr(lambda x: function(x)[-1])(1.0).eqns))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["0"]


def test_the_first_motion_may_be_one_that_is_traced():
    """Of so many steps that outside of a trace another thread would compute it: what an import sees of the state of jax
    is not that of the trace."""
    code = """
import jax
jax.config.update("jax_enable_x64", True)

@jax.jit
def end(q0):
    import jaximpact as ji
    problem = ji.Problem(lambda t, q, v, args: -q)
    return ji.solve(problem, q0, 0 * q0, t1=1.0, steps=10_001, save="final").q

print(end(jax.numpy.ones(1))[-1, 0])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert abs(float(found.stdout) - math.cos(1.0)) < 1e-3  # first order, 1e-4 s


# names that say what was done, not what a function does or gives; those that are verbs too are none of them
PARTICIPLES = {
    "known", "told", "kept", "held", "made", "given", "taken", "found", "met", "left", "sent", "written", "drawn",
    "shown", "seen", "done", "chosen", "lost", "frozen", "built", "bound", "caught", "led", "meant", "sought",
    "hidden", "struck", "broken",
}  # fmt: skip


def test_few_functions_are_named_by_participles():
    names = [
        node.name.strip("_")
        for path in FILES.values()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef)
    ]
    bare = [name for name in names if name in PARTICIPLES or (name.endswith("ed") and "_" not in name)]
    assert len(bare) < 0.04 * len(names), sorted(bare)


TESTS = Path(__file__).parents[1]


def test_tests_lie_in_the_folder_of_a_package():
    folders = {path.parent for path in TESTS.rglob("test_*.py")}
    assert {folder.name for folder in folders} <= {*LEVEL, "properties", "project"}
    assert {folder.parent for folder in folders} == {TESTS}


def test_what_tests_share_lies_in_support():
    """No other file of theirs is there to import, none changes where modules are found,
    and one package reads the experiments."""
    settings = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    found_in = [TESTS.parent / folder for folder in settings["pythonpath"] if folder != "tests"]
    experiments = {path.stem for folder in found_in for path in folder.iterdir()}
    for path in TESTS.rglob("*.py"):
        place = path.relative_to(TESTS)
        assert place.parts[0] == "support" or path.stem == "conftest" or path.stem.startswith("test_"), place
        reads_experiments = place.parts[0] == "project" or place.parts[:2] == ("support", "experiments")
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Attribute) and node.attr == "insert":
                assert ast.unparse(node) != "sys.path.insert" or path.stem == "test_study_physics", place
            if isinstance(node, ast.ImportFrom | ast.Import):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                for name in [] if isinstance(node, ast.ImportFrom) and node.level else names:
                    top = name.split(".")[0]
                    assert not top.startswith("test_"), (place, name)
                    assert reads_experiments or top not in experiments, (place, name)


def test_tests_look_from_outside():
    inside = set()
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "jaximpact":
                parts = node.module.split(".")
                # of the compiler its own names are public; what lies deeper may move
                room = ".".join(parts[1:]) if parts[1:2] == ["compiler"] else parts[1] if len(parts) > 1 else None
                names, known = ([room], OPEN) if room else ([a.name for a in node.names], OPEN | set(ji.__all__))
            elif isinstance(node, ast.Import):
                names, known = [a.name.split(".")[1] for a in node.names if a.name.startswith("jaximpact.")], OPEN
            else:
                continue
            if not known.issuperset(names):
                inside.add(path.stem)
    assert inside == INSIDERS
