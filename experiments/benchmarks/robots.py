"""Robots out of model files: processor seconds until the first answer of a new process, importing apart, and
microseconds a step of the next one.

"first" is that of a process that finds no program compiled, "cached" that of one which finds them all;
the least of the rounds.

A hopper in the plane (5 freedoms, events), an arm of 7 hinges with their limits, and a quadruped with 24 gaps and
friction, both by steps of a millisecond.

    python experiments/benchmarks/robots.py [--out experiments/benchmarks/results]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from outside.tables import write_table

from benchmarks.timing import in_new_process

FILE = '<mujoco><compiler angle="radian" autolimits="true"/><worldbody><geom name="floor" type="plane" size="5 5 .1" friction=".8"/>{}</worldbody></mujoco>'  # noqa: E501
HOPPER = """<body name="torso" pos="0 0 1"><joint name="x" type="slide" axis="1 0 0"/><joint name="z" type="slide" axis="0 0 1"/><joint name="pitch" axis="0 1 0"/>
  <geom type="capsule" fromto="0 0 -.1 0 0 .3" size=".05" mass="5"/>
  <body name="thigh" pos="0 0 -.1"><joint name="hip" axis="0 1 0" stiffness="40" damping=".5"/><geom type="capsule" fromto="0 0 0 .2 0 -.3" size=".03" mass="1"/>
    <body name="shank" pos=".2 0 -.3"><joint name="knee" axis="0 1 0" range="-1.5 1" damping=".5"/><geom type="capsule" fromto="0 0 0 -.2 0 -.3" size=".02" mass=".5"/>
      <geom name="foot" size=".03" pos="-.2 0 -.3" mass=".05"/></body></body></body>"""  # noqa: E501
LINK = '<body pos="0 0 .2"><joint axis="{} {} 0" range="-2 .5" damping=".1" stiffness="1"/><geom type="capsule" fromto="0 0 0 0 0 .2" size=".03" mass="1"/>{}</body>'  # noqa: E501
LEG = """<body name="{0}" pos="{1} {2} 0"><joint name="{0} hip" axis="0 1 0" range="-1 1" damping=".3" stiffness="60"/>
  <geom type="capsule" fromto="0 0 0 -.1 0 -.2" size=".02" mass=".5"/><body pos="-.1 0 -.2">
    <joint name="{0} knee" axis="0 1 0" range="-1 1" damping=".3" stiffness="40"/><geom name="{0} knee" size=".03" mass=".05"/>
    <geom type="capsule" fromto="0 0 0 .1 0 -.2" size=".015" mass=".3"/><geom name="{0} foot" size=".02" pos=".1 0 -.2" mass=".05"/></body></body>"""  # noqa: E501
CORNERS = {"fl": (0.25, 0.15), "fr": (0.25, -0.15), "hl": (-0.25, 0.15), "hr": (-0.25, -0.15)}


def arm() -> str:
    links = ""
    for i in range(7):
        links = LINK.format(i % 2, 1 - i % 2, links)
    return links


def quadruped() -> str:
    legs = "".join(LEG.format(name, *at) for name, at in CORNERS.items())
    return f'<body name="trunk" pos="0 0 .45"><freejoint/><geom type="box" size=".3 .15 .05" mass="6"/>{legs}</body>'


WORKS = {
    "hopper": (lambda: HOPPER, "foot-floor", "EventDriven"),
    "arm": (arm, (), "MoreauJean"),
    "quadruped": (quadruped, ("*foot-floor", "*knee-floor"), "MoreauJean"),
}


def measure(name: str) -> list[str]:
    """Cells of a line of the table, measured in this process."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import mujoco  # noqa: F401

    import jaximpact as ji
    from jaximpact import spatial

    text, contacts, scheme = WORKS[name]
    began, steps = time.process_time(), 500
    robot = spatial.from_mjcf(FILE.format(text()), contacts=contacts)
    q0, v0 = robot.start()
    options = {"steps": steps} if scheme == "MoreauJean" else {}

    def run(v0):
        motion = ji.solve(robot.problem(), q0, v0, t1=0.5, scheme=getattr(ji, scheme)(), save="final", **options)
        return motion.q.block_until_ready()

    run(v0)
    first, began = time.process_time() - began, time.process_time()
    for _ in range(5):
        run(v0)
    again = (time.process_time() - began) / 5
    step = f"{again / steps * 1e6:.0f}" if options else ""
    m = len(robot.problem().contacts)
    return [name, str(len(robot.qvel(q0, v0))), str(m), scheme, f"{first:.1f}", f"{again * 1e3:.0f}", step]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"))
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    lines = []
    for name in WORKS:
        rounds = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as folder:
                rounds.append([in_new_process(__file__, "measure", name, cache=folder) for _ in range(2)])
        about = rounds[0][0][:4]
        first, cached = (min((x[i][4] for x in rounds), key=float) for i in (0, 1))
        again = min((x for pair in rounds for x in pair), key=lambda x: float(x[5]))[5:]
        columns = "robot", "freedoms", "gaps", "scheme", "first answer (s)", "cached (s)", "next (ms)", "a step (us)"
        lines.append(dict(zip(columns, (*about, first, cached, *again), strict=True)))
        print(*lines[-1].values(), sep="  ", flush=True)
    write_table(options.out / "robots.csv", lines)


if __name__ == "__main__":
    main()
