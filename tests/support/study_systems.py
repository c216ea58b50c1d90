"""Systems that studies of the tests import by name, in this process and in others, and what compares their stores."""

import hashlib
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import jaximpact as ji
from jaximpact import bodies
from jaximpact.study import Run, ZarrStore


def gravity(t, q, v, args):
    return jnp.full_like(q, -args["gravity"])


def above_floor(t, q, args):
    return q[:1] - args["floor"]


def until_limit(t, q, v, args):
    """Force that is not finite after a time given as a parameter."""
    return jnp.where(t > args["limit"], jnp.nan, -9.81) * jnp.ones_like(q)


TRACED: list[Callable] = []  # called whenever `moody` is traced


def moody_force(t, q, v, args):
    for act in TRACED:
        act()
    return -9.81 * jnp.ones_like(q)


def moody_floor(t, q, args):
    for act in TRACED:
        act()
    return q[:1]


def energy_of(t, q, v, args):
    return 0.5 * v @ v + args["gravity"] * jnp.sum(q)


def observed(t, q, v, args):
    return {"height": q[0], "pair": (v, 2.0 * q)}


def no_force(t, q, v, args):
    return jnp.zeros_like(q)


def weight(t, q, v, args):
    return jnp.array([0.0, -9.81])


def pulled_ever_harder(t, q, v, args):
    return jnp.stack([40.0 * t, 0 * t - 9.81])


def height(t, q, args):
    return q[1:]


def along_floor(t, q, v, args):
    return v[:1]


def two_walls(t, q, args):
    return jnp.array([q[0], 1 - q[0]])


ball = ji.Problem(gravity, above_floor, energy=energy_of)
named_ball = ji.Problem(gravity, above_floor, coordinates=["height"], units="m")
free = ji.Problem(gravity)
fragile = ji.Problem(until_limit, above_floor)
moody = ji.Problem(moody_force, moody_floor)
rough_block = ji.Problem(weight, height, slip=along_floor, friction=0.3)
pulled_block = ji.Problem(pulled_ever_harder, height, slip=along_floor, friction=0.3, static_friction=0.5)
ARGS = {"gravity": 9.81, "floor": 0.0}


def shaking(t, q, v, args):
    return 0.5 * jnp.eye(len(q), dtype=q.dtype)


shaken = ball.replace(noise=shaking)  # by a white force


def grid(lanes=(4, 3)):
    return ji.Design.grid(e=np.linspace(0.2, 0.9, lanes[0]), **{"q0[0]": np.linspace(0.5, 1.5, lanes[1])})


def small(store, design=None, problem="support.study_systems:ball", **changes):
    """A study of a few lanes in several chunks."""
    settings = {"q0": [1.0], "v0": [0.0], "t1": 1.0, "h": 1e-2, "args": ARGS, "save": [0.25, 0.5], "chunk": 3}
    return ji.Study(store, problem, grid() if design is None else design, **settings | changes)


class Here(Executor):
    """Executor that computes at once, after calling ``act`` with the number of the submission."""

    def __init__(self, act=lambda number: None):
        self.act, self.submitted = act, 0

    def submit(self, function, given, /):
        self.submitted += 1
        self.act(self.submitted - 1)
        future: Future = Future()
        future.set_result(function(given))
        return future


def run_until(study, count):
    """Computes ``count`` chunks of a study and stops abruptly."""

    def act(number):
        if number >= count:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        study.run(Here(act), outstanding=1)
    return study


def begun(store, *arguments, **changes):
    """A study of which no chunk has been computed and nothing compiled."""
    return run_until(small(store, *arguments, **changes), 0)


class Acting(ZarrStore):
    """Store that calls ``act`` before a chunk is written."""

    def __init__(self, path, number, act):
        super().__init__(path)
        self.number, self.act = number, act

    def write(self, chunk, arrays, facts):
        if chunk == self.number:
            self.act()
        super().write(chunk, arrays, facts)


def digest(path) -> dict[str, str]:
    """Hash of all stored bytes that must not depend on how a study was computed."""
    files = sorted(file for file in Path(path).glob("*/*") if file.parent.name != ".study" and not file.is_dir())
    assert not [file for file in files if file.suffix == ".partial"]
    return {f"{file.parent.name}/{file.name}": hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def to_the_middle(t, q, v, args):
    return -args["k"] * q


GATHERING = bodies.disks(np.full(16, 0.1), force=to_the_middle, pairs=40)  # room that lasts for what they do
CROWDED = bodies.disks(np.full(16, 0.1), force=to_the_middle, pairs=12)  # and that does not


SMALL = bodies.disks(np.full(16, 0.1), force=to_the_middle, pairs=40, members=2)


def long_run(path, **changes):
    """Bodies that gather, over many blocks of rows; their lists have to grow on the way."""
    places = np.stack(np.divmod(np.arange(16.0), 4), axis=1)
    q0 = (0.5 * (places + 0.5)).ravel() - 1.0
    options = {"t1": 0.7, "h": 1e-3, "args": {"k": 20.0}, "save": 2, "block": 20} | changes
    return Run(path, SMALL, q0, 0 * q0, **options)


if __name__ == "__main__":
    import sys

    import jax

    jax.config.update("jax_enable_x64", True)
    long_run(sys.argv[1]).run()


slit = ji.Problem(no_force, two_walls)
