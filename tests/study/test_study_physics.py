"""A study goes on with the physics that it was begun with: every change of what its
functions compute is told by name."""

import contextlib
import importlib
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import cloudpickle
import jax
import numpy as np
import pytest

import jaximpact as ji
from jaximpact.study import MemoryStore
from support.breadth import slow_but
from support.study_systems import Here, begun, run_until, small

TOP = """
import functools
from dataclasses import dataclass
import jax, jax.numpy as jnp, numpy as np
import jaximpact as ji
import helper_of_physics as helper
"""
HELPER = "K = 4.0\nTABLE = {'k': [4.0]}\ndef stiffness(q):\n    return 4.0 * q\n"
END = "\nproblem = ji.Problem(force)\n"
PULL = "def force(t, q, v, args):\n    return -{} * q\n"

# modules in which 4.0 becomes 5.0, and force computes something else then
CASES = {
    "global number": "K = 4.0\n" + PULL.format("K"),
    "global dict": "K = {'k': 4.0}\n" + PULL.format("K['k']"),
    "global list": "K = [1.0, 4.0]\n" + PULL.format("K[1]"),
    "global tuple": "K = (1.0, 4.0)\n" + PULL.format("K[1]"),
    "nested containers": "K = {'a': [({'k': 4.0},)]}\n" + PULL.format("K['a'][0][0]['k']"),
    "string": "KIND = 'hard'\n" + PULL.format("(4.0 if KIND == 'hard' else 5.0)"),
    "numpy scalar": "K = np.float64(4.0)\n" + PULL.format("K"),
    "numpy array": "K = np.array([4.0])\n" + PULL.format("jnp.asarray(K)"),
    "jax array": "K = jnp.array([4.0])\n" + PULL.format("K"),
    "dtype": "K = np.array([0.1])\n" + PULL.format("jnp.asarray(K, float)"),
    "class attribute": "class Spring:\n    k = 4.0\n" + PULL.format("Spring.k"),
    "dataclass instance": "@dataclass\nclass Spring:\n    k: float\nspring = Spring(4.0)\n" + PULL.format("spring.k"),
    "property": "class S:\n    @property\n    def k(self):\n        return 4.0\ns = S()\n" + PULL.format("s.k"),
    "function of another module": PULL.format("helper.stiffness(1.0)"),
    "number of another module": PULL.format("helper.K"),
    "container of another module": PULL.format("helper.TABLE['k'][0]"),
    "jitted helper": "@jax.jit\ndef k(x):\n    return 4.0 * x\n" + PULL.format("k(1.0)"),
    "number of a jitted helper": "K = 4.0\nk = jax.jit(lambda x: K * x)\n" + PULL.format("k(1.0)"),
    "vmapped helper": "k = jax.vmap(lambda x: 4.0 * x)\ndef force(t, q, v, args):\n    return -k(q)\n",
    "closure over a container": (
        "def make(k):\n    def force(t, q, v, args):\n        return -k['k'][0] * q\n    return force\n"
        "force = make({'k': [4.0]})\n"
    ),
    "default by name": "K = 4.0\ndef force(t, q, v, args, k=K):\n    return -k * q\n",
    "keyword default": "K = {'k': 4.0}\ndef force(t, q, v, args, *, k=K):\n    return -k['k'] * q\n",
    "partial": "def f(k, t, q, v, args):\n    return -k * q\nforce = functools.partial(f, 4.0)\n",
    "callable object": (
        "class Force:\n    def __init__(self, k):\n        self.k = k\n    def __call__(self, t, q, v, args):\n"
        "        return -self.k * q\nforce = Force(4.0)\n"
    ),
    "bound method": (
        "class Body:\n    def __init__(self, k):\n        self.k = k\n    def force(self, t, q, v, args):\n"
        "        return -self.k * q\nforce = Body(4.0).force\n"
    ),
    "decorator": (
        "def scaled(k):\n    def wrap(f):\n        @functools.wraps(f)\n        def inner(*xs):\n"
        "            return k * f(*xs)\n        return inner\n    return wrap\n@scaled(4.0)\n"
        "def force(t, q, v, args):\n    return -q\n"
    ),
    "exec": "exec('def force(t, q, v, args):\\n    return -4.0 * q')\n",
    "branch of a cond": (
        "K = {'k': 4.0}\ndef force(t, q, v, args):\n"
        "    return jax.lax.cond(t > 0, lambda x: -K['k'] * x, lambda x: -x, q)\n"
    ),
    "body of a loop": (
        "N = [3]\ndef force(t, q, v, args):\n    return jax.lax.fori_loop(0, N[0], lambda i, x: -0.5 * x, q)\n"
    ),
    "operation": "def f(x):\n    return jnp.sin(x)\n" + PULL.format("f(1.0)"),
    "constraints": PULL.format("4.0")
    + "FLOOR = [0.0]\ndef gap(t, q, args):\n    return q - FLOOR[0]\nproblem = ji.Problem(force, gap)\n",
    "mass": (
        PULL.format("4.0") + "M = {'m': 2.0}\ndef mass(q, args):\n    return M['m'] * jnp.eye(1)\n"
        "problem = ji.Problem(force, mass=mass)\n"
    ),
    "energy": (
        PULL.format("4.0") + "K = [4.0]\ndef energy(t, q, v, args):\n    return K[0] * v @ v\n"
        "problem = ji.Problem(force, energy=energy)\n"
    ),
    "lagrangian": (
        "K = [4.0]\ndef L(t, q, v, args):\n    return 0.5 * v @ v - K[0] * q @ q\n"
        "problem = ji.Problem.from_lagrangian(L)\n"
    ),
    "callback": "def k(x):\n    return 4.0 * x\ndef force(t, q, v, args):\n    return -jax.pure_callback(k, q, q)\n",
    "derivative rule": (
        PULL.format("4.0")
        + "K = {'k': 1.0}\n@jax.custom_jvp\ndef bend(q):\n    return q\n@bend.defjvp\ndef rule(xs, dxs):\n"
        "    return xs[0], K['k'] * dxs[0]\ndef gap(t, q, args):\n    return bend(q)\n"
        "problem = ji.Problem(force, gap)\n"
    ),
    "reverse derivative rule": (
        PULL.format("4.0")
        + "K = {'k': 1.0}\n@jax.custom_vjp\ndef bend(q):\n    return q\nbend.defvjp(lambda q: (q, None),\n"
        "    lambda _, g: (K['k'] * g,))\ndef energy(t, q, v, args):\n    return bend(q) @ q\n"
        "problem = ji.Problem(force, energy=energy)\n"
    ),
}
# else the text that is changed, what it becomes, and the function that computes something else
CHANGES = {
    "string": ("'hard'\n", "'soft'\n", "force"),
    "numpy array": ("4.0", "4.000000000000001", "force"),
    "dtype": ("[0.1]", "[0.1], np.float32", "force"),
    "property": ("4", "5", "force"),
    "function of another module": ("return 4.0", "return 5.0", "force"),
    "number of another module": ("K = 4.0", "K = 5.0", "force"),
    "container of another module": ("[4.0]", "[5.0]", "force"),
    "body of a loop": ("[3]", "[4]", "force"),
    "operation": ("jnp.sin", "jnp.cos", "force"),
    "constraints": ("[0.0]", "[-1.0]", "constraints"),
    "mass": ("2.0", "3.0", "mass"),
    "energy": ("[4.0]", "[5.0]", "energy"),
    "lagrangian": ("[4.0]", "[5.0]", "force"),
    "derivative rule": ("1.0", "2.0", "constraints"),
    "reverse derivative rule": ("1.0", "2.0", "energy"),
}
SOME = [*list(CASES)[::12], "jitted helper", "derivative rule"]
DESIGN = ji.Design.grid(e=[0.5])
NAME = "case_of_physics"


def written(folder, text, helper=HELPER):
    """The module of a case, and the helper that it imports, in a folder."""
    folder.mkdir(exist_ok=True)
    (folder / "helper_of_physics.py").write_text(helper)
    (folder / f"{NAME}.py").write_text(TOP + text + ("" if "problem =" in text else END))
    return folder


@contextlib.contextmanager
def loaded(folder):
    """The module of a case, executed anew as another process would, for a while."""
    module = types.ModuleType(NAME)
    module.__file__ = str(folder / f"{NAME}.py")
    usual, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    sys.modules[NAME] = module
    try:
        exec(compile(Path(module.__file__).read_text(), module.__file__, "exec"), vars(module))
        yield module
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = usual
        for name in (NAME, "helper_of_physics"):
            sys.modules.pop(name, None)


def study(store, save="final", h=0.1, args=None):
    """A study of the problem of the module that is loaded."""
    args = {"a": np.ones(2)} if args is None else args
    return ji.Study(store, f"{NAME}:problem", DESIGN, q0=[1.0], v0=[0.0], t1=1.0, h=h, args=args, save=save)


def kept(folder, store=None, **changes):
    """The store of a study of a case, of which nothing is computed."""
    with loaded(folder):
        return run_until(study(MemoryStore() if store is None else store, **changes), 0).store


def told(store, folder, **changes):
    """What is said to differ when the study in a store is to go on with a case."""
    with loaded(folder), pytest.raises(ValueError, match="holds another study") as caught:
        study(store, **changes)
    return str(caught.value).split("\n  ")[1:]


def computes(store):
    return store.record()[0]["compared"]["computes"]


class Edited(MemoryStore):
    """A store whose record was written by another program."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def record(self):
        record, columns = super().record()
        self.change(record)
        return record, columns


# the same rule of containers, of numbers, and of functions of another module
ALIKE = {
    "global list", "global tuple", "numpy scalar", "jax array", "string", "dataclass instance", "property",
    "number of another module", "container of another module", "number of a jitted helper", "vmapped helper",
    "keyword default", "callable object", "decorator", "exec", "body of a loop", "mass", "energy",
}  # fmt: skip


@pytest.mark.parametrize("case", slow_but(CASES.keys() - ALIKE, CASES))
def test_every_change_is_told_by_name(tmp_path, case):
    text, (old, new, function) = CASES[case], CHANGES.get(case, ("4.0", "5.0", "force"))
    store = kept(written(tmp_path / "a", text))
    assert not any("fails" in x for x in computes(store).values())
    with loaded(tmp_path / "a") as module:
        study(store)
        if "helper." not in text and "custom_vjp" not in text:  # which are not pickled by value
            functions = {name: getattr(module.problem, name) for name in ("force", "constraints", "mass", "energy")}
            copies = {name: cloudpickle.loads(cloudpickle.dumps(x)) for name, x in functions.items()}
            module.problem = ji.Problem(**copies)
            study(store)
    changed, helper = text.replace(old, new), HELPER.replace(old, new) if "helper." in text else HELPER
    assert (changed, helper) != (text, HELPER)
    first, *_ = told(store, written(tmp_path / "b", changed, helper))
    assert first.startswith(f"{function}, which computes something else: ")


def test_a_change_of_the_source_alone_is_none(tmp_path):
    """Comments, names of variables and of jitted helpers compute nothing."""
    first = "@jax.jit\ndef k(x):\n    return 4.0 * x\n" + PULL.format("k(1.0)")
    store = kept(written(tmp_path / "a", first))
    second = first.replace("k(", "stiffness(").replace("return 4.0 * x", "# as measured\n    return 4.0 * x")
    other = kept(written(tmp_path / "b", second))
    before, after = (x.record()[0]["compared"] for x in (store, other))
    assert before["source"]["force"] != after["source"]["force"]
    with loaded(tmp_path / "b"):
        study(store)


def test_save_functions_and_numbers_of_the_problem_count(tmp_path):
    text = PULL.format("4.0") + "def seen(t, q, v, args):\n    return q\nproblem = ji.Problem(force, restitution=0.3)\n"
    written(tmp_path / "a", text)
    written(tmp_path / "b", text.replace("return q", "return 2.0 * q").replace("0.3", "0.4"))
    found = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        with loaded(folder) as module:
            save = ji.Save(every=1, function=module.seen)
            if not found:
                found.append(run_until(study(MemoryStore(), save), 0).store)
                continue
            with pytest.raises(ValueError, match="holds another study") as caught:
                study(found[0], save)
    number, function = str(caught.value).split("\n  ")[1:]
    assert number == "source.restitution: 0.3 → 0.4"
    assert function.startswith("save.function, which computes something else: ")


def test_across_versions_the_source_decides(tmp_path):
    """Another version of jax may make another program of the same function."""
    a = written(tmp_path / "a", "K = {'k': 4.0}\n" + PULL.format("K['k']"))
    b = written(tmp_path / "b", "K = {'k': 5.0}\n" + PULL.format("K['k']"))
    # a number and a function of the module are part of the source
    spring = "def stretch(q):\n    return K * q\ndef force(t, q, v, args):\n    return -stretch(q)\n"
    c = written(tmp_path / "c", "K = 4.0\n" + spring)
    d = written(tmp_path / "d", "K = 5.0\n" + spring)
    e = written(tmp_path / "e", "K = 4.0\n" + spring.replace("K * q", "4.0 * K * q"))
    (line,) = told(kept(a), b)
    assert "its source is as it was: a number, a container or a function that it uses has changed" in line

    def other_jax(record):
        record["versions"]["jax"] = "99.0"

    def first_format(record):
        del record["compared"]["computes"]
        record["format"] = 1

    for change in (other_jax, first_format):
        store = kept(a, Edited(change))
        with loaded(b):
            study(store)
        for folder in (d, e):
            (line,) = told(kept(c, Edited(change)), folder)
            assert line.startswith("force, which computes something else: ") and "source.force: " in line


IN_ANOTHER_PROCESS = """
import json, sys
from pathlib import Path
import jax
jax.config.update("jax_enable_x64", True)
import test_study_physics as here
folder = Path(sys.argv[1])
stores = {x: here.kept(here.written(folder / str(i), here.CASES[x])) for i, x in enumerate(here.SOME)}
print(json.dumps({name: here.computes(store) for name, store in stores.items()}))
"""


@pytest.mark.slow
def test_another_process_finds_the_same(tmp_path):
    folders = Path(__file__).parent, Path(__file__).parents[1], Path(ji.__file__).parents[1]
    paths = os.pathsep.join(map(str, folders))
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONHASHSEED": "7", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "ignore", "-c", IN_ANOTHER_PROCESS, str(tmp_path / "there")]
    (tmp_path / "there").mkdir()
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    there = json.loads(run.stdout)
    for i, name in enumerate(SOME):
        assert computes(kept(written(tmp_path / str(i), CASES[name]))) == there[name], name


def test_a_study_is_refused_where_a_global_has_changed(tmp_path):
    """On disk, by the constructor and by `open(...).run()`; with nothing changed both go on."""
    path, executor = tmp_path / "s.zarr", Here(lambda number: (_ for _ in ()).throw(KeyboardInterrupt))
    with loaded(written(tmp_path / "a", CASES["global dict"])) as module:
        run_until(study(path), 0)
        module.K["k"] = 5.0
        for act in (lambda: study(path), lambda: ji.Study.open(path).run(executor)):
            with pytest.raises(
                ValueError, match=r"force, which computes something else: \w+ → \w+; its source is as it"
            ):
                act()
        assert executor.submitted == 0
        module.K["k"] = 4.0
        study(path)
        run_until(ji.Study.open(path), 0)


def test_a_study_goes_on_under_its_own_settings(tmp_path):
    """A program that forgot to enable float64 continues a study of float64."""
    store = begun(MemoryStore(), ji.Design.points(**{"q0[0]": [-1.0]})).store
    with jax.enable_x64(False):
        assert ji.Study.open(store).run().finished == 1
    assert store.dataset().q.dtype == np.float64


def test_a_worker_with_another_physics_is_refused(tmp_path):
    """One whose modules are older, say."""
    with loaded(written(tmp_path, CASES["global dict"])) as module:
        executor = Here(lambda number: module.K.update(k=5.0))
        with pytest.raises(RuntimeError, match="force computes something else in this worker"):
            study(MemoryStore()).run(executor)


def test_what_is_not_physics_is_compared_too():
    store = begun(MemoryStore(), chunk=12).store
    with pytest.raises(ValueError, match=r"h: 0\.01 → 0\.02"):
        small(store, chunk=12, h=0.02)
