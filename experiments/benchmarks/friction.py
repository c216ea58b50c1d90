"""Coulomb friction: time of many motions, beside loops of the same scheme in numba and in C++, and first answers.

python experiments/benchmarks/friction.py --out out/friction      five minutes on one core

A disk that bounces with spin, a ladder that slides down a wall, a block that rocks. The programs of a row run in turn;
processor seconds, the least of the rounds. First answers in a process of their own each.
"""

import argparse
import csv
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.timing import in_new_process

ROUNDS = 5
SCHEMES = ("MoreauJean", "EventCorrected")
SYSTEMS = {"spinning ball": 100_000, "ladder": 1000, "rocking block": 1000}  # lanes
STEPS = 1000
G, RADIUS, INERTIA, MU, E = 9.81, 0.2, 0.02, 0.1, 0.7  # of the spinning ball, whose mass is 1


def ball(lanes):
    import jax.numpy as jnp
    import numpy as np

    import jaximpact as ji

    problem = ji.Problem(
        lambda t, q, v, args: jnp.stack([0 * t, 0 * t - G, 0 * t]),
        lambda t, q, args: q[1:2] - RADIUS,
        np.array([1.0, 1.0, INERTIA]),
        slip=lambda t, q, v, args: v[:1] + RADIUS * v[2:],
        friction=lambda args: args["mu"],
    )
    q0, v0 = np.zeros((lanes, 3)), np.tile([1.0, 0.0, 6.0], (lanes, 1))
    q0[:, 1] = np.linspace(0.8, 1.2, lanes)
    return problem, q0, v0, {"t1": 1.3, "e": E, "args": {"mu": MU}}


def ladder(lanes):
    """Of half length 1: its foot slides on the floor, its top down the wall."""
    import jax.numpy as jnp
    import numpy as np

    import jaximpact as ji

    sc = lambda q: (jnp.sin(q[2]), jnp.cos(q[2]))
    problem = ji.Problem(
        lambda t, q, v, args: jnp.stack([0 * t, 0 * t - G, 0 * t]),
        lambda t, q, args: jnp.stack([q[1] - sc(q)[0], q[0] - sc(q)[1]]),
        np.array([1.0, 1.0, 1 / 3]),
        slip=lambda t, q, v, args: jnp.stack([v[0] - sc(q)[0] * v[2], v[1] + sc(q)[1] * v[2]]),
        friction=lambda args: args["mu"] * jnp.array([1.0, 0.75]),
    )
    angle, w = np.linspace(0.9, 1.1, lanes), -0.3
    q0 = np.stack([np.cos(angle), np.sin(angle), angle], 1)
    v0 = w * np.stack([-np.sin(angle), np.cos(angle), 0 * angle + 1], 1)
    return problem, q0, v0, {"t1": 0.6, "e": 0.0, "args": {"mu": 0.2}}


def block(lanes):
    """0.4 wide and 1.6 high: it rocks from one corner to the other and sticks there."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import jaximpact as ji

    def corners(q):
        """Places (2,) of both lower corners, and their heights."""
        c, s = jnp.cos(q[2]), jnp.sin(q[2])
        side = jnp.array([-0.2, 0.2])
        return q[0] + s * 0.8 + c * side, q[1] - c * 0.8 + s * side

    problem = ji.Problem(
        lambda t, q, v, args: jnp.stack([0 * t, 0 * t - G, 0 * t]),
        lambda t, q, args: corners(q)[1],
        np.array([1.0, 1.0, 0.68 / 3]),
        slip=lambda t, q, v, args: jax.jvp(lambda q: corners(q)[0], (q,), (v,))[1],
        friction=lambda args: args["mu"],
    )
    angle = np.linspace(0.08, 0.12, lanes)
    q0 = np.stack([0.2 * np.cos(angle) - 0.8 * np.sin(angle), 0.8 * np.cos(angle) + 0.2 * np.sin(angle), angle], 1)
    return problem, q0, 0 * q0, {"t1": 1.1, "e": 0.0, "args": {"mu": 0.7}}


MAKE = {"spinning ball": ball, "ladder": ladder, "rocking block": block}


def first(system, scheme, call):
    """Processor seconds of a first `solve`, or of a first gradient by the coefficient of friction as compiled by
    `jax.jit`, in this process."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import jaximpact as ji

    problem, q0, v0, options = MAKE[system](2)
    options |= {"steps": STEPS, "scheme": getattr(ji, scheme)(), "save": "final"}
    end = lambda mu: ji.solve(problem, q0[0], v0[0], **options | {"args": {"mu": mu}}).q[-1, 0]
    answer = end if call == "solve" else jax.jit(jax.grad(end))
    begin = time.process_time()
    jax.block_until_ready(answer(options["args"]["mu"]))
    return time.process_time() - begin


def loop():
    """The spinning ball by steps of `MoreauJean`, lane after lane: (q0, v0, h, steps) -> q, in numba."""
    import numpy as np
    from numba import njit

    @njit(error_model="numpy", fastmath={"contract"})
    def run(q0, v0, h, steps):
        ends = np.empty_like(q0)
        for lane in range(len(q0)):
            x, y, angle = q0[lane]
            vx, vy, spin = v0[lane]
            for _ in range(steps):
                wx, wy, turn = vx, vy - h * G, spin
                if y - RADIUS + 0.5 * h * vy <= 0:
                    push = max(-(wy + E * vy), 0.0)
                    stick = -(wx + RADIUS * turn) / (1 + RADIUS**2 / INERTIA)
                    rub = min(max(stick, -MU * push), MU * push)
                    wx, wy, turn = wx + rub, wy + push, turn + RADIUS * rub / INERTIA
                x, y, angle = x + 0.5 * h * (vx + wx), y + 0.5 * h * (vy + wy), angle + 0.5 * h * (spin + turn)
                vx, vy, spin = wx, wy, turn
            ends[lane] = x, y, angle
        return ends

    return run


def simd(folder):
    """The same loop over packs of lanes in C++, compiled into ``folder``: (q0, v0, h, steps) -> q;
    None without a compiler."""
    import ctypes

    import numpy as np
    from baselines.native import FLAGS, SOURCES, compiler

    command, target = compiler(), Path(folder).resolve() / "spinning_ball.so"
    if command is None:
        return None
    subprocess.run([command, *FLAGS, str(SOURCES / "spinning_ball.cpp"), "-o", str(target)], check=True)
    library = ctypes.CDLL(str(target))

    def run(q0, v0, h, steps):
        q, v = np.ascontiguousarray(q0.T), np.ascontiguousarray(v0.T)
        numbers = (ctypes.c_double * 6)(h, E, G, RADIUS, INERTIA, MU)
        places = (x.ctypes.data_as(ctypes.c_void_p) for x in (q, v))
        library.run_f64(numbers, ctypes.c_long(len(q0)), ctypes.c_long(steps), ctypes.c_int(1), *places)
        return q.T

    return run


def table(rounds, folder):
    import jax

    jax.config.update("jax_enable_x64", True)
    import numpy as np

    import jaximpact as ji

    for system, lanes in SYSTEMS.items():
        problem, q0, v0, options = MAKE[system](lanes)
        for scheme in SCHEMES:
            call = options | {"steps": STEPS, "scheme": getattr(ji, scheme)(), "save": "final", "progress": False}
            programs = {"own": partial(ji.ensemble, problem, q0, v0, **call)}
            if system == "spinning ball" and scheme == "MoreauJean":
                loops = {"numba": loop(), "C++": simd(folder)}
                steps = (q0, v0, options["t1"] / STEPS, STEPS)
                programs |= {name: partial(run, *steps) for name, run in loops.items() if run is not None}
            found = {name: run() for name, run in programs.items()}
            seconds = {name: [] for name in programs}
            for _ in range(rounds):
                for name, run in programs.items():
                    begin = time.process_time()
                    run()
                    seconds[name].append(time.process_time() - begin)
            each = {name: 1e9 * min(s) / (lanes * STEPS) for name, s in seconds.items()}
            beside = [name for name in each if name != "own"]
            apart = [np.max(np.abs(found["own"].q[:, -1] - found[name])) for name in beside]
            answer = partial(in_new_process, __file__, "first", system, scheme)
            answers = {call: min(answer(call) for _ in range(2)) for call in ("solve", "grad")}
            columns = {"numba": ("loop in numba [ns]", "ratio"), "C++": ("loop in C++, SIMD [ns]", "its ratio")}
            others = dict.fromkeys([title for pair in columns.values() for title in pair], "")
            for name in beside:
                others |= dict(
                    zip(columns[name], (f"{each[name]:.1f}", f"{each['own'] / each[name]:.1f}"), strict=True)
                )
            yield {
                "system": system,
                "scheme": scheme,
                "motions": lanes,
                "ns per step of a motion": f"{each['own']:.1f}",
                **others,
                "difference": f"{max(apart):.0e}" if apart else "",
                "with a clean status": f"{np.mean(found['own'].status == 0):.3f}",
                "first solve [s]": f"{answers['solve']:.1f}",
                "first jit(grad) [s]": f"{answers['grad']:.1f}",
            }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/friction"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for row in table(options.rounds, options.out):
        rows.append(row)
        print(*row.values(), sep="\t", flush=True)
    with open(options.out / "friction.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
