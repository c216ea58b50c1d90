"""A study goes on with the physics that it was begun with: every change of what its functions compute is told by name."""

import dataclasses
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import cloudpickle
import jax
import numpy as np
import pytest
from study_systems import ball, begun, small

import jaximpact as ji
from jaximpact.study import study, task
from jaximpact.study.description import encode, sources
from jaximpact.study.fingerprint import fingerprint

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

# what changes: (module, the text that is changed, what it becomes, the function that computes something else)
CASES = {
    "global number": ("K = 4.0\n" + PULL.format("K"), "4.0", "5.0", "force"),
    "global dict": ("K = {'k': 4.0}\n" + PULL.format("K['k']"), "4.0", "5.0", "force"),
    "global list": ("K = [1.0, 4.0]\n" + PULL.format("K[1]"), "4.0", "5.0", "force"),
    "global tuple": ("K = (1.0, 4.0)\n" + PULL.format("K[1]"), "4.0", "5.0", "force"),
    "nested containers": ("K = {'a': [({'k': 4.0},)]}\n" + PULL.format("K['a'][0][0]['k']"), "4.0", "5.0", "force"),
    "string": ("KIND = 'hard'\n" + PULL.format("(4.0 if KIND == 'hard' else 5.0)"), "'hard'\n", "'soft'\n", "force"),
    "numpy scalar": ("K = np.float64(4.0)\n" + PULL.format("K"), "4.0", "5.0", "force"),
    "numpy array": ("K = np.array([4.0])\n" + PULL.format("jnp.asarray(K)"), "4.0", "4.000000000000001", "force"),
    "jax array": ("K = jnp.array([4.0])\n" + PULL.format("K"), "4.0", "5.0", "force"),
    "dtype": ("K = np.array([0.1])\n" + PULL.format("jnp.asarray(K, float)"), "[0.1]", "[0.1], np.float32", "force"),
    "class attribute": ("class Spring:\n    k = 4.0\n" + PULL.format("Spring.k"), "4.0", "5.0", "force"),
    "dataclass instance": (
        "@dataclass\nclass Spring:\n    k: float\nspring = Spring(4.0)\n" + PULL.format("spring.k"),
        "4.0",
        "5.0",
        "force",
    ),
    "property": ("class S:\n    @property\n    def k(self):\n        return 4.0\ns = S()\n" + PULL.format("s.k"), "4", "5", "force"),
    "function of another module": (PULL.format("helper.stiffness(1.0)"), "return 4.0", "return 5.0", "force"),
    "number of another module": (PULL.format("helper.K"), "K = 4.0", "K = 5.0", "force"),
    "container of another module": (PULL.format("helper.TABLE['k'][0]"), "[4.0]", "[5.0]", "force"),
    "jitted helper": ("@jax.jit\ndef k(x):\n    return 4.0 * x\n" + PULL.format("k(1.0)"), "4.0", "5.0", "force"),
    "number of a jitted helper": ("K = 4.0\nk = jax.jit(lambda x: K * x)\n" + PULL.format("k(1.0)"), "4.0", "5.0", "force"),
    "vmapped helper": ("k = jax.vmap(lambda x: 4.0 * x)\ndef force(t, q, v, args):\n    return -k(q)\n", "4.0", "5.0", "force"),
    "closure over a container": (
        "def make(k):\n    def force(t, q, v, args):\n        return -k['k'][0] * q\n    return force\nforce = make({'k': [4.0]})\n",
        "4.0",
        "5.0",
        "force",
    ),
    "default by name": ("K = 4.0\ndef force(t, q, v, args, k=K):\n    return -k * q\n", "4.0", "5.0", "force"),
    "keyword default": ("K = {'k': 4.0}\ndef force(t, q, v, args, *, k=K):\n    return -k['k'] * q\n", "4.0", "5.0", "force"),
    "partial": ("def f(k, t, q, v, args):\n    return -k * q\nforce = functools.partial(f, 4.0)\n", "4.0", "5.0", "force"),
    "callable object": (
        "class Force:\n    def __init__(self, k):\n        self.k = k\n    def __call__(self, t, q, v, args):\n"
        "        return -self.k * q\nforce = Force(4.0)\n",
        "4.0",
        "5.0",
        "force",
    ),
    "bound method": (
        "class Body:\n    def __init__(self, k):\n        self.k = k\n    def force(self, t, q, v, args):\n"
        "        return -self.k * q\nforce = Body(4.0).force\n",
        "4.0",
        "5.0",
        "force",
    ),
    "decorator": (
        "def scaled(k):\n    def wrap(f):\n        @functools.wraps(f)\n        def inner(*xs):\n            return k * f(*xs)\n"
        "        return inner\n    return wrap\n@scaled(4.0)\ndef force(t, q, v, args):\n    return -q\n",
        "4.0",
        "5.0",
        "force",
    ),
    "exec": ("exec('def force(t, q, v, args):\\n    return -4.0 * q')\n", "4.0", "5.0", "force"),
    "branch of a cond": (
        "K = {'k': 4.0}\ndef force(t, q, v, args):\n    return jax.lax.cond(t > 0, lambda x: -K['k'] * x, lambda x: -x, q)\n",
        "4.0",
        "5.0",
        "force",
    ),
    "body of a loop": (
        "N = [3]\ndef force(t, q, v, args):\n    return jax.lax.fori_loop(0, N[0], lambda i, x: -0.5 * x, q)\n",
        "[3]",
        "[4]",
        "force",
    ),
    "operation": ("def f(x):\n    return jnp.sin(x)\n" + PULL.format("f(1.0)"), "jnp.sin", "jnp.cos", "force"),
    "constraints": (
        PULL.format("4.0") + "FLOOR = [0.0]\ndef gap(t, q, args):\n    return q - FLOOR[0]\nproblem = ji.Problem(force, gap)\n",
        "[0.0]",
        "[-1.0]",
        "constraints",
    ),
    "mass": (
        PULL.format("4.0") + "M = {'m': 2.0}\ndef mass(q, args):\n    return M['m'] * jnp.eye(1)\nproblem = ji.Problem(force, mass=mass)\n",
        "2.0",
        "3.0",
        "mass",
    ),
    "energy": (
        PULL.format("4.0") + "K = [4.0]\ndef energy(t, q, v, args):\n    return K[0] * v @ v\nproblem = ji.Problem(force, energy=energy)\n",
        "[4.0]",
        "[5.0]",
        "energy",
    ),
    "lagrangian": (
        "K = [4.0]\ndef L(t, q, v, args):\n    return 0.5 * v @ v - K[0] * q @ q\nproblem = ji.Problem.from_lagrangian(L)\n",
        "[4.0]",
        "[5.0]",
        "force",
    ),
    "callback": (
        "def k(x):\n    return 4.0 * x\ndef force(t, q, v, args):\n    return -jax.pure_callback(k, q, q)\n",
        "4.0",
        "5.0",
        "force",
    ),
    "derivative rule": (
        PULL.format("4.0") + "K = {'k': 1.0}\n@jax.custom_jvp\ndef bend(q):\n    return q\n@bend.defjvp\ndef rule(xs, dxs):\n"
        "    return xs[0], K['k'] * dxs[0]\ndef gap(t, q, args):\n    return bend(q)\nproblem = ji.Problem(force, gap)\n",
        "1.0",
        "2.0",
        "constraints",
    ),
    "reverse derivative rule": (
        PULL.format("4.0") + "K = {'k': 1.0}\n@jax.custom_vjp\ndef bend(q):\n    return q\nbend.defvjp(lambda q: (q, None),\n"
        "    lambda _, g: (K['k'] * g,))\ndef gap(t, q, args):\n    return bend(q)\nproblem = ji.Problem(force, gap)\n",
        "1.0",
        "2.0",
        "constraints",
    ),
}  # fmt: skip
SOME = [*list(CASES)[::6], "jitted helper", "lagrangian", "derivative rule"]
DESIGN = ji.Design.grid(e=[0.5])


def written(folder, text, helper=HELPER):
    """The module of a case, and the helper that it imports, in a folder."""
    folder.mkdir(exist_ok=True)
    (folder / "helper_of_physics.py").write_text(helper)
    (folder / "case_of_physics.py").write_text(TOP + text + ("" if "problem =" in text else END))


def loaded(folder):
    """The module of a case, executed anew as another process would."""
    for name in ("case_of_physics", "helper_of_physics"):
        sys.modules.pop(name, None)
    space = {"__name__": "case_of_physics"}
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode, usual = True, sys.dont_write_bytecode
    try:
        exec(compile((folder / "case_of_physics.py").read_text(), str(folder / "case_of_physics.py"), "exec"), space)
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = usual
        sys.modules.pop("helper_of_physics", None)
    return space["problem"]


def facts(problem, save=None):
    base = {"q0": np.ones(1), "v0": np.zeros(1), "e": None, "h": 0.1, "t0": 0.0, "t1": 1.0, "args": {"a": np.ones(2)}}
    system = task.System(problem, ji.PaoliSchatzman(), ji.ActiveSet(), ji.Save.of(save or "final"), base)
    return {"source": sources(problem), "computes": fingerprint(system, DESIGN.values)}


@pytest.mark.parametrize("case", CASES)
def test_every_change_is_told_by_name(tmp_path, case):
    text, old, new, function = CASES[case]
    written(tmp_path / "a", text)
    before = facts(loaded(tmp_path / "a"))
    assert not any("fails" in x for x in before["computes"].values())
    again = loaded(tmp_path / "a")
    assert study._changed_functions(before, facts(again), True) == []
    if "helper." not in text and "custom_vjp" not in text:  # which are not pickled by value
        copies = {name: cloudpickle.loads(cloudpickle.dumps(getattr(again, name))) for name in again.__slots__}
        assert (
            facts(again.replace(**copies) if "L(" not in text else ji.Problem(**copies))["computes"]
            == before["computes"]
        )
    changed, helper = text.replace(old, new), HELPER.replace(old, new) if "helper." in text else HELPER
    assert (changed, helper) != (text, HELPER)
    written(tmp_path / "b", changed, helper)
    first, *_ = study._changed_functions(before, facts(loaded(tmp_path / "b")), True)
    assert first.startswith(f"{function}, which computes something else: ")


def test_a_change_of_the_source_alone_is_none(tmp_path):
    """Comments, names of variables and of jitted helpers compute nothing."""
    first = "@jax.jit\ndef k(x):\n    return 4.0 * x\n" + PULL.format("k(1.0)")
    written(tmp_path, first)
    before = facts(loaded(tmp_path))
    written(tmp_path, first.replace("k(", "stiffness(").replace("return 4.0 * x", "# as measured\n    return 4.0 * x"))
    after = facts(loaded(tmp_path))
    assert before["source"] != after["source"]
    assert study._changed_functions(before, after, True) == []


def test_shapes_and_save_functions_count(tmp_path):
    kept = facts(ball_of(9.81), ji.Save(every=1, function=lambda t, q, v, args: q))
    other = facts(ball_of(9.81), ji.Save(every=1, function=lambda t, q, v, args: 2.0 * q))
    (line,) = study._changed_functions(kept, other, True)
    assert line.startswith("save.function")


def ball_of(gravity):
    return ji.Problem(lambda t, q, v, args: 0.0 * q - gravity)


def test_across_versions_the_source_decides():
    """Another version of jax may make another program of the same function."""
    old = {"source": {"force": "a"}, "computes": {"force": "1"}}
    new = {"source": {"force": "a"}, "computes": {"force": "2"}}
    (line,) = study._changed_functions(old, new, True)
    assert "its source is as it was: a number, a container or a function that it uses has changed" in line
    assert study._changed_functions(old, new, False) == []
    assert study._changed_functions(old, new | {"source": {"force": "b"}}, False) != []
    assert study._changed_functions(old, old | {"source": {"force": "b"}}, False) == []
    # made before programs were kept
    assert study._changed_functions({"source": {"force": "a"}}, new, True) == []
    assert study._changed_functions({"source": {"force": "b"}}, new, True) == [
        "force, which computes something else: source.force: b → a"
    ]


IN_ANOTHER_PROCESS = """
import json, sys
from pathlib import Path
import jax
jax.config.update("jax_enable_x64", True)
import test_study_physics as here
folder = Path(sys.argv[1])
found = {}
for i, name in enumerate(here.SOME):
    text, *_ = here.CASES[name]
    here.written(folder / str(i), text)
    found[name] = here.facts(here.loaded(folder / str(i)))
print(json.dumps(found))
"""


def test_another_process_finds_the_same(tmp_path):
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(ji.__file__).parents[1])])
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONHASHSEED": "7", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "ignore", "-c", IN_ANOTHER_PROCESS, str(tmp_path / "there")]
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    there = json.loads(run.stdout)
    for i, name in enumerate(SOME):
        text, *_ = CASES[name]
        written(tmp_path / "here" / str(i), text)
        assert facts(loaded(tmp_path / "here" / str(i)))["computes"] == there[name]["computes"], name


def test_a_study_is_refused_where_a_global_has_changed(tmp_path, monkeypatch):
    """On disk, by the constructor and by `open(...).run()`; with nothing changed both go on."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "read_by_physics.py").write_text(
        TOP.replace("import helper_of_physics as helper", "") + CASES["global dict"][0] + END
    )
    name = "read_by_physics:problem"
    path = tmp_path / "s.zarr"

    def make():
        return ji.Study(path, name, DESIGN, q0=[1.0], v0=[0.0], t1=1.0, h=0.1)

    monkeypatch.setattr("study_systems.small", lambda *_: make())
    begun(path)
    ji.Study.open(path)._adopt()
    sys.modules["read_by_physics"].K["k"] = 5.0
    for act in (make, ji.Study.open(path).run):
        with pytest.raises(
            ValueError, match=r"force, which computes something else: \w+ → \w+; its source is as it was"
        ):
            act()
    sys.modules["read_by_physics"].K["k"] = 4.0
    make()
    del sys.modules["read_by_physics"]


def test_a_study_made_before_programs_were_kept_goes_on_with_a_remark(tmp_path):
    path = begun(tmp_path / "s.zarr", chunk=12).path
    file = Path(path) / ".study" / "study.json"
    content = json.loads(file.read_text())
    del content["compared"]["computes"]
    content["format"] = 1
    file.write_text(json.dumps(content))
    opened = ji.Study.open(path)
    assert opened.summary().chunks == 1
    with (
        pytest.warns(ji.JaximpactWarning, match="was made by an earlier version.*cannot be checked"),
        ExitStack() as stack,
    ):
        opened._prepared(stack, False, False)
    small(path, chunk=12)
    with pytest.raises(ValueError, match=r"h: 0\.01 → 0\.02"):
        small(path, chunk=12, h=0.02)


def test_a_study_goes_on_under_its_own_settings(tmp_path):
    """As `run` computes: a program that forgot to enable float64 continues a study of float64."""
    path = begun(tmp_path / "s.zarr", chunk=12).path
    with jax.enable_x64(False):
        assert ji.Study.open(path)._adopt() == ji.Study.open(path)._compared["computes"]


def test_a_worker_with_another_physics_is_refused(tmp_path):
    """One whose modules are older, say; with other versions programs cannot be compared."""
    given = begun(tmp_path / "s.zarr", chunk=12)._task(0)
    system = task.System.of(given.system)
    task.check_physics(system, given)
    computes, here = given.physics
    other = dataclasses.replace(given, physics=(computes | {"force": "0"}, here))
    found = task.compute(other)
    assert isinstance(found, task.Failure)
    assert "force computes something else in this worker" in found.message
    task.check_physics(system, dataclasses.replace(other, physics=(other.physics[0], here | {"jax": "99.0"})))


def test_numbers_of_a_problem_still_count(tmp_path):
    assert encode(ball.restitution, "e") == facts(ball)["source"]["restitution"]
    assert jax.tree.leaves(ball) == [0.0]
