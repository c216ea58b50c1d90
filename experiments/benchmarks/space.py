"""Bodies in space: processor seconds until the first answer of a new process, and microseconds a step, beside MuJoCo's
CPU step of the same file.

The first answer is that of a process which finds no program compiled, reading the file included, importing apart. A
step is a millisecond; that of MuJoCo is `mj_step` with its defaults in a loop in C, whose contacts give way.
Least of the rounds.

    python experiments/benchmarks/space.py [--out experiments/benchmarks/results]      ten minutes on one core; needs mujoco
"""  # noqa: E501

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from outside.tables import write_table

from benchmarks.robots import quadruped
from benchmarks.timing import in_new_process

STEPS, H = 500, 1e-3
FILE = """<mujoco><compiler angle="radian" autolimits="true"/><default><geom friction="{} 0 0" condim="{}"/></default>
<worldbody><geom name="floor" type="plane" size="5 5 .1"/>{}</worldbody></mujoco>"""
BOX = '<body name="box" pos="0 0 .5"><freejoint/><geom name="box" type="box" size=".1 .05 .025" mass="1"/></body>'
BALL = '<body name="ball {0}" pos="{1} 0 {2}"><freejoint/><geom name="ball {0}" size=".1" mass="1"/></body>'
LINK = (
    '<body pos="0 0 {}"><joint type="ball"/><geom type="capsule" fromto="0 0 0 0 0 -.2" size=".02" mass="1"/>{}</body>'
)


def hanging(number: int) -> str:
    """Links, each on a ball joint, under a fixed point."""
    found = ""
    for i in range(number):
        found = LINK.format(-0.2 if i < number - 1 else 3.0, found)
    return found


def stacked(number: int) -> str:
    """Balls one above the other, a hundredth of a millimetre apart, the second and the fourth a tenth
    of a millimetre to the side."""
    return "".join(BALL.format(i, 1e-4 * (i % 2), 0.1 + 0.20001 * i) for i in range(number))


FLYING, SMOOTH, ROUGH = (0.4, 1, ()), (0.4, 1, ("*",)), (0.4, 3, ("*",))
LEGS = quadruped().replace('range="-1 1"', "")
FEET = "*foot-floor"
NEIGHBOURS = ("ball 0-floor", *(f"ball {i}-ball {i + 1}" for i in range(4)))
# name, file, its friction, dimension of contacts and pattern of those that count, scheme, lanes
WORKS = [
    ("box that flies", BOX, FLYING, "MoreauJean", 1000),
    ("box that flies", BOX, FLYING, "EventDriven", 0),
    ("box, smooth floor", BOX, SMOOTH, "MoreauJean", 1000),
    ("box, smooth floor", BOX, SMOOTH, "EventDriven", 0),
    ("box, rough floor", BOX, ROUGH, "MoreauJean", 1000),
    ("double pendulum on ball joints", hanging(2), FLYING, "MoreauJean", 1000),
    ("quadruped, smooth floor", LEGS, (0.8, 1, FEET), "MoreauJean", 100),
    ("quadruped, smooth floor", LEGS, (0.8, 1, FEET), "EventDriven", 0),
    ("quadruped, rough floor", LEGS, (0.8, 3, FEET), "MoreauJean", 100),
    ("five rough balls, stacked", stacked(5), (0.5, 3, NEIGHBOURS), "MoreauJean", 100),
    ("chain of ten links on ball joints", hanging(10), FLYING, "MoreauJean", 100),
]


def measure(k: int) -> list[str]:
    """Numbers of a line, measured in this process."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    import mujoco
    import numpy as np

    import jaximpact as ji
    from jaximpact import spatial

    _, text, (friction, dimension, contacts), scheme, lanes = WORKS[k]
    text = FILE.format(friction, dimension, text)
    model = mujoco.MjModel.from_xml_string(text)
    model.opt.timestep = H
    if not contacts:
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
    data = mujoco.MjData(model)
    if model.nv == 6:
        data.qvel[:] = 1.0, 0, 0, 3, -2, 5
    elif "joint type" in text:
        data.qvel[:] = np.tile([1.0, 0.5, 0.2], model.nv // 3)
    qpos, qvel = data.qpos.copy(), data.qvel.copy()
    options = {"t1": STEPS * H, "scheme": getattr(ji, scheme)(), "save": "final"}
    options |= {} if scheme == "EventDriven" else {"steps": STEPS}

    began = time.process_time()
    system = spatial.from_mjcf(text, contacts=contacts)
    problem = system.problem()
    q0, v0 = system.start(qpos=qpos, qvel=qvel)
    solve = lambda v0: ji.solve(problem, q0, v0, **options).q.block_until_ready()
    solve(v0)
    first = time.process_time() - began

    def least(call, times):
        spent = []
        for _ in range(times):
            began = time.process_time()
            call()
            spent.append(time.process_time() - began)
        return min(spent)

    again = least(lambda: solve(v0), 5)
    found = [len(q0), len(problem.contacts or ()), f"{first:.1f}", f"{again * 1e3:.3g}"]
    if not lanes:
        return [*map(str, found), "", "", ""]
    starts = v0 * (1 + 1e-3 * jnp.arange(lanes)[:, None] / lanes)
    ensemble = lambda: ji.ensemble(problem, q0, starts, **options)
    end = ensemble()
    assert not np.any(end.failed), end

    def steps():
        mujoco.mj_resetData(model, data)
        data.qvel[:] = qvel
        mujoco.mj_step(model, data, STEPS)

    each = again / STEPS, least(ensemble, 2) / STEPS / lanes, least(steps, 20) / STEPS
    return [*map(str, found), *(f"{x * 1e6:.3g}" for x in each)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"))
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    columns = "d", "gaps", "first answer (s)", "next (ms)", "a step (us)", "a lane's step (us)", "MuJoCo's step (us)"
    lines = []
    for k, (name, _, _, scheme, lanes) in enumerate(WORKS):
        rounds = [in_new_process(__file__, "measure", k) for _ in range(options.rounds)]
        numbers = [min(x, key=lambda x: float(x or 0)) for x in zip(*rounds, strict=True)]
        lines.append({"body": name, "scheme": scheme, "lanes": lanes or ""} | dict(zip(columns, numbers, strict=True)))
        print(*lines[-1].values(), sep="  ", flush=True)
    write_table(options.out / "space.csv", lines)


if __name__ == "__main__":
    main()
