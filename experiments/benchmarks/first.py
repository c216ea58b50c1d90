"""How long a user waits for the first answer: a new process, nothing compiled, importing apart.

    python experiments/benchmarks/first.py --out out/first --rounds 3
    python experiments/benchmarks/first.py --against PATH      # another checkout, its processes in turn with these

Processor seconds of the first and the second call, the least of the rounds; "cached" is the first call of a process
that finds the compiled programs of one before it. "box" is one in space whose eight corners hit a floor, its quaternion
kept by a joint, "rod" one in the plane with two rough ends, "balls" two in space that meet on a rough floor. "policy"
is a gradient by the weights of a network 4-64-64-1 over 256 lanes in float32, by each execution.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMON = """
import sys, time
sys.path.insert(0, "experiments")
import jax, jax.numpy as jnp, numpy as np
import jaximpact as ji
from jaximpact import ensemble, sensitivities, solve  # importing apart: names are imported when they are used
from benchmarks import works
jax.config.update("jax_enable_x64", True)
work = works.WORKS[{work!r}]
q0, v0 = work.initial({lanes})
given = dict(t1=work.t1, h=work.h, args=work.args, e=work.restitution)
fixed = {{k: x for k, x in given.items() if k != "h"}} | dict(steps=work.steps, save="final")
end = lambda q, v: jnp.sum(ji.solve(work.problem, q, v, **fixed).q[-1])
calls = {{
    "solve": lambda: ji.solve(work.problem, q0[0], v0[0], **given),
    "solve, final state": lambda: ji.solve(work.problem, q0[0], v0[0], **given, save="final"),
    "ensemble": lambda: ji.ensemble(work.problem, q0, v0, **given),
    "sensitivities": lambda: ji.sensitivities(work.problem, q0, v0, **given),
    "jit(grad(solve))": lambda: step(jnp.asarray(q0[0]), jnp.asarray(v0[0])),
    "jit(vmap(grad(solve)))": lambda: many(jnp.asarray(q0), jnp.asarray(v0)),
}}
step = jax.jit(jax.grad(end, (0, 1)))
many = jax.jit(jax.vmap(jax.grad(end, (0, 1))))
for _ in range(2):
    begin = time.process_time()
    jax.block_until_ready(jax.tree.leaves(calls[{call!r}]()))
    print(time.process_time() - begin)
"""
HOPPER = """
import time
import jax, jax.numpy as jnp, numpy as np
import jaximpact as ji
from jaximpact import solve  # importing apart, as above
jax.config.update("jax_enable_x64", True)

def lagrangian(t, q, v, args):  # a body, and a foot on a leg that turns and is a spring
    (x, z, a, l), (vx, vz, va, vl) = q, v
    foot = vx + l * jnp.cos(a) * va + jnp.sin(a) * vl, vz + l * jnp.sin(a) * va - jnp.cos(a) * vl
    energy = 0.5 * (vx**2 + vz**2) + 0.1 * (foot[0] ** 2 + foot[1] ** 2) + 0.05 * va**2
    return energy - 9.81 * (z + 0.2 * (z - l * jnp.cos(a))) - 200 * (l - 1) ** 2

def push(t, q, v, args):
    x = jnp.concatenate([q, v])
    for w, b in args:
        x = jnp.tanh(w @ x + b)
    return jnp.concatenate([jnp.zeros(2), x])

gaps = lambda t, q, args: jnp.stack([q[1] - q[3] * jnp.cos(q[2]), q[3] - 0.5])
hopper = ji.Problem.from_lagrangian(lagrangian, gaps, 0.0, push)
random = np.random.default_rng(0)
layers = [(jnp.asarray(0.1 * random.normal(size=(n, k))), jnp.zeros(n)) for k, n in ((8, 32), (32, 32), (32, 2))]

def loss(weights, q0):
    given = dict(t1=1.0, steps=500, scheme=ji.MoreauJean(), save="final")
    return jnp.sum(ji.solve(hopper, q0, jnp.zeros(4), args=weights, **given).q[-1, :2] ** 2)

lanes = jnp.array([0.0, 1.2, 0.1, 1.0]) + 0.01 * random.normal(size=(256, 4))
one, many = jax.jit(jax.value_and_grad(loss)), jax.jit(jax.vmap(jax.value_and_grad(loss), (None, 0)))
calls = {{"jit(value_and_grad)": lambda: one(layers, lanes[0]), "jit(vmap(value_and_grad))": lambda: many(layers, lanes)}}
for _ in range(2):
    begin = time.process_time()
    jax.block_until_ready(calls[{call!r}]())
    print(time.process_time() - begin)
"""  # noqa: E501
BOX_AND_ROD = """
import time
import jax, jax.numpy as jnp, numpy as np
import jaximpact as ji
from jaximpact import solve  # importing apart, as above
jax.config.update("jax_enable_x64", True)
half, inertia = np.array([0.3, 0.2, 0.1]), np.array([0.05, 0.1, 0.13]) / 3
corners = half * np.array([[i, j, k] for i in (-1, 1) for j in (-1, 1) for k in (-1, 1)])

def lagrangian(t, q, v, args):  # x, y, z and a quaternion
    p, r = q[3:], v[3:]
    spin = 2 * (p[0] * r[1:] - r[0] * p[1:] - jnp.cross(p[1:], r[1:]))
    return 0.5 * (v[:3] @ v[:3] + spin @ (inertia * spin) + 0.1 * (p @ r) ** 2) - 9.81 * q[2]

def heights(t, q, args):
    w, u = q[3], q[4:]
    turned = (w * w - u @ u) * corners + 2 * (corners @ u)[:, None] * u + 2 * w * jnp.cross(u, corners)
    return q[2] + turned[:, 2]

def ends(t, q, args):
    return q[1] + 0.25 * jnp.sin(q[2]) * np.array([1.0, -1.0])

def slip(t, q, v, args):
    return v[0] - 0.25 * jnp.sin(q[2]) * v[2] * np.array([1.0, -1.0])

length = lambda t, q, args: jnp.sum(q[3:] ** 2, keepdims=True) - 1
fall = lambda t, q, v, args: jnp.array([0.0, -9.81, 0.0])
box = ji.Problem.from_lagrangian(lagrangian, heights, 0.5, joints=length)
rod = ji.Problem(fall, ends, jnp.diag(jnp.array([1.0, 1.0, 0.25 / 12])), 0.0, slip=slip, friction=0.3)
p = np.array([0.9, 0.2, 0.3, 0.1]) / np.linalg.norm([0.9, 0.2, 0.3, 0.1])
v_p = 0.5 * np.array([p[1] * 2 - 0.5 * p[3] - p[1] * 3 + p[2] * 2, p[0], -2 * p[0], 0.5 * p[0]])
v_p -= (v_p @ p) * p
systems = {{
    "box": (box, np.array([0, 0, 0.6, *p]), np.array([0.3, 0.1, 0, *v_p])),
    "rod": (rod, np.array([0, 0.5, 0.4]), np.array([1.0, 0, 2.0])),
}}
problem, q0, v0 = systems[{work!r}]
given = dict(t1=0.6, save="final") | (dict(steps=600) if "MoreauJean" in {call!r} else dict(scheme=ji.EventDriven(1e-8, 1e-8)))
last = lambda q: ji.solve(problem, q, v0, **given).q[-1]
end = jax.jit(jax.grad(lambda q: jnp.sum(last(q))) if "grad" in {call!r} else jax.jacfwd(last))
for _ in range(2):
    begin = time.process_time()
    jax.block_until_ready(end(q0) if "jit" in {call!r} else ji.solve(problem, q0, v0, **given).q)
    print(time.process_time() - begin)
"""  # noqa: E501
BALLS = """
import time
import jax, jax.numpy as jnp
import jaximpact as ji
from jaximpact import sensitivities, solve, spatial  # importing apart, as above
jax.config.update("jax_enable_x64", True)
floor = [spatial.Plane(name, at=(0, 0, 0), friction=0.4) for name in "ab"]
balls = {{"a": spatial.ball((0, 0, 0.3), 0.1, 1.0), "b": spatial.ball((0.03, 0.02, 0.6), 0.08, 0.4)}}
system = spatial.System(balls, [*floor, spatial.Contact("a", "b", friction=0.3)])
problem, (q0, v0) = system.problem(), system.start(a=(0.2, 0, 0, 1, 2, 3), b=(0, 0.1, 0, 3, 2, 1))
given = dict(t1=0.6, scheme=ji.EventDriven(1e-8, 1e-8))
calls = {{
    "EventDriven": lambda: ji.solve(problem, q0, v0, save="final", **given).q,
    "sensitivities, EventDriven": lambda: ji.sensitivities(problem, q0, v0, wrt="v0", **given).jacobian,
}}
for _ in range(2):
    begin = time.process_time()
    jax.block_until_ready(calls[{call!r}]())
    print(time.process_time() - begin)
"""
POLICY = """
import time
import jax, jax.numpy as jnp, numpy as np
import jaximpact as ji
from jaximpact import solve  # importing apart, as above
masses = jnp.array([1.0, 0.2])

def force(t, q, v, weights):  # a body and a foot, between them a leg that is a spring, and pushes as a network 4-64-64-1 says
    x = jnp.concatenate([q, 0.2 * v])
    *hidden, (w, b) = weights
    for m, c in hidden:
        x = jnp.tanh(m @ x + c)
    leg = 300 * (1 - (q[0] - q[1])) - 4 * (v[0] - v[1]) + 20 * jnp.tanh((w @ x + b)[0])
    return jnp.stack([leg, -leg]) - 9.81 * masses

hopper = ji.Problem(force, lambda t, q, args: q[1:], jnp.diag(masses), 0.0)
random = np.random.default_rng(0)
height = random.uniform(1, 1.4, {lanes})
starts = jnp.asarray(np.stack([height, height - 1], axis=1), jnp.float32)
shapes = ((64, 4), (64, 64), (1, 64))
weights = [(jnp.asarray(random.normal(size=x) / x[1] ** 0.5, jnp.float32), jnp.zeros(x[0], jnp.float32)) for x in shapes]

@jax.jit
@jax.value_and_grad
def loss(weights, starts):
    given = dict(t1=1.0, steps=200, args=weights, scheme=ji.MoreauJean(), save="final", execution={execution!r})
    still = jnp.zeros(2, jnp.float32)
    end = jax.vmap(lambda q0: ji.solve(hopper, q0, still, **given).q[-1, 0])(starts)
    return jnp.mean((end - 1.15) ** 2)

for _ in range(2):
    begin = time.process_time()
    jax.block_until_ready(loss(weights, starts))
    print(time.process_time() - begin)
"""  # noqa: E501
ROWS = [
    ("ball", 1, "solve"),
    ("ball", 1000, "ensemble"),
    ("double-pendulum", 1, "solve"),
    ("double-pendulum", 303, "ensemble"),
    ("double-pendulum", 303, "sensitivities"),
    ("double-pendulum", 1, "jit(grad(solve))"),
    ("double-pendulum", 256, "jit(vmap(grad(solve)))"),
    ("links-4", 1000, "ensemble"),
    ("gas-16", 1, "solve, final state"),
    ("pile-16", 1, "solve, final state"),
    ("hopper", 1, "jit(value_and_grad)"),
    ("hopper", 256, "jit(vmap(value_and_grad))"),
    *((work, 1, call) for work in ("box", "rod") for call in ("EventDriven", "jit(jacfwd), EventDriven")),
    *(("box", 1, call) for call in ("MoreauJean", "jit(jacfwd), MoreauJean")),
    *((work, 1, "jit(grad), EventDriven") for work in ("box", "rod")),
    *(("balls", 1, call) for call in ("EventDriven", "sensitivities, EventDriven")),
    ("policy", 256, "auto"),
    ("policy", 256, "xla"),
]


def measured(root: Path, row: tuple[str, int, str], cache: str) -> list[float]:
    """Seconds of the first and the second call in a new process."""
    work, lanes, call = row
    environment = os.environ | {"PYTHONPATH": str(root), "JAXIMPACT_CACHE": cache}
    own = {"hopper": HOPPER, "box": BOX_AND_ROD, "rod": BOX_AND_ROD, "balls": BALLS, "policy": POLICY}
    text = own.get(work, COMMON)
    command = [sys.executable, "-c", text.format(work=work, lanes=lanes, call=call, execution=call)]
    ran = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    if ran.returncode:
        raise SystemExit(f"{row}: {ran.stderr.strip().splitlines()[-1]}")
    return [float(x) for x in ran.stdout.split()[-2:]]


def table(rounds: int, rows: list[tuple[str, int, str]], against: Path | None) -> str:
    """The table, in Markdown."""
    names = ["first", "second", "cached"] + ["other's first", "its second", "ratio of first"] * (against is not None)
    lines = [f"| work | motions | call | {' | '.join(names)} |", "|---" * (3 + len(names)) + "|"]
    for row in rows:
        mine, cached, others = [], [], []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                mine.append(measured(ROOT, row, folder))
                cached.append(measured(ROOT, row, folder)[0])
            if against is not None:
                others.append(measured(against, row, "off"))
        first, second = (min(x) for x in zip(*mine, strict=True))
        cells = [first, second, min(cached)]
        if others:
            theirs = [min(x) for x in zip(*others, strict=True)]
            cells += [*theirs, theirs[0] / first]
        work, lanes, call = row
        lines.append(f"| {work} | {lanes} | `{call}` | {' | '.join(f'{x:.3g}' for x in cells)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/first"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", metavar="WORK", help="rows of these works")
    parser.add_argument("--against", type=Path, help="another checkout of the library")
    options = parser.parse_args()
    rows = [row for row in ROWS if not options.only or row[0] in options.only]
    text = table(options.rounds, rows, options.against)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "first.md").write_text(text)


if __name__ == "__main__":
    main()
