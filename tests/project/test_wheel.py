"""The package as it is installed: a wheel, without the repository beside it."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

USE = """
import sys
from pathlib import Path
import jaximpact as ji
assert Path(ji.__file__).is_relative_to(sys.argv[1]), ji.__file__
import jax
jax.config.update("jax_enable_x64", True)
from jaximpact import catalogue, conformance, plots
ball = catalogue.get("bouncing-ball")
case = ball.case()
motion = ji.solve(ball.problem, case.q0, case.v0, t1=1.0, h=0.01, args=case.args, e=0.5)
assert motion.raise_if_failed().plot("motion.png").stat().st_size > 5000
study = ji.Study("study.zarr", "bouncing-ball", ji.Design.grid(e=[0.5, 0.8]), t1=1.0, h=0.01)
assert study.run(progress=False).failed == 0 and ji.Study.open("study.zarr").solution().q.shape == (2, 1, 1)
assert len(catalogue.names()) > 20 and conformance.get("zeno").exact.jacobian.shape == (4, 6)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder that holds the wheel's contents and nothing of the repository."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("needs the repository")
    # a copy, so that building leaves nothing in the repository
    for name in listed.stdout.splitlines():
        if name.startswith("jaximpact/") or name in ("pyproject.toml", "README.md", "LICENSE"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode and "setuptools" in built.stderr and "No matching distribution" in built.stderr:
        pytest.skip("needs a package index for the build's own setuptools")
    assert built.returncode == 0, built.stderr
    place = folder / "site"
    zipfile.ZipFile(next(folder.glob("*.whl"))).extractall(place)
    return place


@pytest.fixture(scope="module")
def environment(installed, tmp_path_factory):
    """The interpreter of a new environment, in which pip found the wheel's dependencies by its metadata alone."""
    folder = tmp_path_factory.mktemp("environment")
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    (wheel,) = installed.parent.glob("*.whl")
    command = [str(python), "-m", "pip", "install", "--quiet", f"jaximpact[plot,study] @ {wheel.as_uri()}"]
    done = subprocess.run(command, capture_output=True, text=True, env=clean())
    if done.returncode and ("No matching distribution" in done.stderr or "ConnectionError" in done.stderr):
        pytest.skip("needs a package index for the dependencies")
    assert done.returncode == 0, done.stderr
    return python


def clean():
    """The environment's variables, without those that would let Python look elsewhere."""
    return {name: x for name, x in os.environ.items() if not name.startswith("PYTHON")} | {"MPLBACKEND": "agg"}


def run(installed, folder, *arguments):
    """Python elsewhere, with the wheel and the packages it depends on, but not the repository."""
    # an editable installation hooks in by site: -S leaves it out
    paths = [str(installed), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    environment = clean() | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_a_wheel_is_enough(installed, tmp_path):
    """A solve, a study on disk, a picture, the catalogue, the cases' data, the commands."""
    done = run(installed, tmp_path, "-c", USE, str(installed))
    assert done.returncode == 0, done.stderr
    listed = run(installed, tmp_path, "-m", "jaximpact", "list")
    assert listed.returncode == 0 and "bouncing-ball" in listed.stdout, listed.stderr
    shown = run(installed, tmp_path, "-m", "jaximpact.conformance", "--show", "zeno")
    assert shown.returncode == 0 and "q[0] - wall" in shown.stdout, shown.stderr


@pytest.mark.slow
def test_a_wheel_names_its_dependencies(environment, tmp_path):
    """The same in an environment that was empty before: nothing that the repository's own
    environment happens to hold."""

    def python(*arguments):
        command = [str(environment), *arguments]
        return subprocess.run(command, cwd=tmp_path, env=clean(), capture_output=True, text=True, timeout=600)

    done = python("-c", USE, str(environment.parents[1]))
    assert done.returncode == 0, done.stderr
    listed = python("-m", "jaximpact", "list")
    assert listed.returncode == 0 and "bouncing-ball" in listed.stdout, listed.stderr


@pytest.mark.slow
def test_a_wheel_holds_the_package_alone(installed):
    assert {path.name for path in installed.iterdir() if path.suffix != ".dist-info"} == {"jaximpact"}
    every = {path.relative_to(ROOT) for path in (ROOT / "jaximpact").rglob("*.py")}
    held = {path.relative_to(installed) for path in installed.rglob("*.py")}
    assert every == held and (installed / "jaximpact" / "py.typed").exists()
