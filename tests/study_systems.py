"""Systems that studies of the tests import by name, in this process and in others, and what compares their stores."""

import hashlib
from contextlib import ExitStack
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import jaximpact as ji


def gravity(t, q, v, args):
    return jnp.full_like(q, -args["gravity"])


def gravity_to_first_order(t, q, v, args):
    return jnp.full_like(q, -args["gravity"]) * (1.0 - 0.01 * q)


def above_floor(t, q, args):
    return q[:1] - args["floor"]


def until_limit(t, q, v, args):
    """Not finite after a time that is a parameter."""
    return jnp.where(t > args["limit"], jnp.nan, -9.81) * jnp.ones_like(q)


def energy_of(t, q, v, args):
    return 0.5 * v @ v + args["gravity"] * jnp.sum(q)


def observed(t, q, v, args):
    return {"height": q[0], "pair": (v, 2.0 * q)}


STIFFNESS = 4.0


def stretch(q):
    return STIFFNESS * q


def double_stretch(q):
    return 2.0 * STIFFNESS * q


def pull(t, q, v, args):
    return -stretch(q)


ball = ji.Problem(gravity, above_floor, energy=energy_of)
free = ji.Problem(gravity)
spring = ji.Problem(pull)
fragile = ji.Problem(until_limit, above_floor)
ARGS = {"gravity": 9.81, "floor": 0.0}


def grid(lanes=(4, 3)):
    return ji.Design.grid(e=np.linspace(0.2, 0.9, lanes[0]), **{"q0[0]": np.linspace(0.5, 1.5, lanes[1])})


def small(path, design=None, **changes):
    """A study of a few lanes in several blocks."""
    settings = {"q0": [1.0], "v0": [0.0], "t1": 1.0, "h": 1e-2, "args": ARGS, "save": [0.25, 0.5], "chunk": 3}
    return ji.Study(path, "study_systems:ball", grid() if design is None else design, **settings | changes)


def begun(path, *arguments, **changes):
    """A study of which no chunk is computed, nor anything compiled."""
    study = small(path, *arguments, **changes)
    with ExitStack() as stack:
        study._prepared(stack, False, False)
    return study


def digest(path) -> dict[str, str]:
    """A hash of every stored byte that must not depend on how a study was computed."""
    files = sorted(file for file in Path(path).glob("*/*") if file.parent.name != ".study" and not file.is_dir())
    assert not [file for file in files if file.suffix == ".partial"]
    return {f"{file.parent.name}/{file.name}": hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
