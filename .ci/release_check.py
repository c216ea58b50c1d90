"""Whether this checkout can be released: `make release-check`.

One version everywhere, a citation that validates, an sdist and a wheel that install without the repository on every
Python that is here, with the oldest and the newest jax that each takes, model files with the oldest MuJoCo, and extras
that resolve. Needs a package index; takes some minutes.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
OLDEST_JAX = "0.10.*"  # pyproject.toml's lower bound, tried where the newest is another
OLDEST_MUJOCO = "3.3.0"  # of the extra robots; the tests run with the newest
UNRESOLVED = {"peers", "cuda", "paraview"}  # other simulators, GPUs' libraries and VTK: not on every platform

USE = """
import sys, jax
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp, jaximpact as ji
assert sys.prefix in ji.__file__, ji.__file__
ball = ji.Problem(lambda t, q, v, args: jnp.array([-9.81]), lambda t, q, args: q, restitution=0.8)
motion = ji.solve(ball, q0=[1.0], v0=[0.0], t1=3.0, h=1e-3).raise_if_failed()
assert abs(jax.grad(lambda y: ji.solve(ball, jnp.stack([y]), [-1.3], t1=0.6, h=1e-3).v[-1, 0])(1.0)) > 0.1
assert ji.ensemble(ball, [[1.0], [2.0]], [[0.0], [0.0]], t1=1.0, h=1e-2).q.shape[0] == 2
print("jaximpact", ji.__version__, "jax", jax.__version__, "Python", sys.version.split()[0], "status", motion.status)
"""


def run(*command, **options) -> str:
    """What a command says; ends the check with its complaint if it fails."""
    done = subprocess.run([str(x) for x in command], capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def versions() -> str:
    """The version, if package, citation and changelog agree on it."""
    (package,) = re.findall(r'__version__ = "(.+)"', (ROOT / "jaximpact/version.py").read_text())
    (citation,) = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    titles = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[1:]
    unreleased, newest = titles[0].partition("\n"), titles[1].split()[0]
    if unreleased[0] != "Unreleased" or not package == citation == newest:
        sys.exit(f"versions differ: package {package}, CITATION.cff {citation}, changelog {newest} below Unreleased")
    if unreleased[2].strip():
        print("the changelog has entries under Unreleased: they belong to a version")
    return package


def environment(folder: Path, python: str) -> Path:
    """The interpreter of a new environment."""
    run(python, "-m", "venv", folder)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def pythons() -> list[str]:
    """Interpreters of the versions that are supported, as far as they are here."""
    found = [f"python{x}" for x in PYTHONS if shutil.which(f"python{x}")]
    works = [x for x in found if subprocess.run([x, "-c", ""], capture_output=True).returncode == 0]
    missing = sorted(set(PYTHONS) - {x.removeprefix("python") for x in works})
    print(f"Python {', '.join(missing)}: not here, not tried" if missing else "every supported Python is here")
    return works


def try_package(python: Path, package: str, folder: Path, jax: str | None) -> None:
    """Installs a package into an environment and uses it outside the repository."""
    run(python, "-m", "pip", "install", "--quiet", package, *([f"jax=={jax}", f"jaxlib=={jax}"] if jax else []))
    clean = {name: x for name, x in os.environ.items() if not name.startswith("PYTHON")}
    print(run(python, "-c", USE, cwd=folder, env=clean | {"JAX_PLATFORMS": "cpu", "JAXIMPACT_CACHE": "off"}).strip())


def try_model_files(python: Path, source: Path) -> None:
    """Runs the tests of model files in an environment that gets the oldest MuJoCo: names of its arrays have changed."""
    run(python, "-m", "pip", "install", "--quiet", "pytest", "hypothesis", f"mujoco=={OLDEST_MUJOCO}")
    run(python, "-m", "pytest", "tests/spatial/test_model_files.py", cwd=source)
    print(f"model files are read with MuJoCo {OLDEST_MUJOCO}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--python", nargs="+", help="interpreters to try; by default those of 3.11 to 3.14 that are here"
    )
    options = parser.parse_args()
    version = versions()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tools = environment(folder / "tools", sys.executable)
        run(tools, "-m", "pip", "install", "--quiet", "build", "cffconvert")
        run(tools.with_name("cffconvert"), "--validate", "-i", ROOT / "CITATION.cff")
        print("CITATION.cff is valid")
        source = folder / "source"
        run("git", "clone", "--quiet", ROOT, source)
        run(tools, "-m", "build", "--outdir", folder / "dist", source)
        (sdist,), (wheel,) = (list((folder / "dist").glob(x)) for x in ("*.tar.gz", "*.whl"))
        if not sdist.name.startswith(f"jaximpact-{version}.") or not wheel.name.startswith(f"jaximpact-{version}-"):
            sys.exit(f"built {sdist.name} and {wheel.name} of version {version}")
        chosen = options.python or pythons()
        places = [environment(folder / f"environment{i}", python) for i, python in enumerate(chosen)]
        for i, place in enumerate(places):
            # the first environment gets the oldest jax, the last one the sdist
            package = sdist if i + 1 == len(places) else wheel
            try_package(place, str(package), folder, OLDEST_JAX if i == 0 else None)
        try_model_files(places[0], source)
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        for extra in sorted(set(extras) - UNRESOLVED):
            run(tools, "-m", "pip", "install", "--quiet", "--dry-run", f"jaximpact[{extra}] @ {wheel.as_uri()}")
        print(f"extras resolve: {', '.join(sorted(set(extras) - UNRESOLVED))}")
    print(f"{version} can be released")


if __name__ == "__main__":
    main()
