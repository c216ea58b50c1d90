"""Orders of states and Jacobians through Coulomb friction, by `MoreauJean` against closed forms.

python experiments/cases/friction.py --out out/friction      half a minute
"""

import argparse
import csv
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import jaximpact as ji  # noqa: E402

G, R = 9.81, 0.2
STEPS = range(211, 243, 2), range(3407, 3439, 2)  # two bands; an error depends on where in its step an event falls
SCHEME = ji.MoreauJean()


def disk(t, q, v, args):
    return jnp.stack([args["gx"], -args["gy"], 0 * args["gx"]])


# a disk above a floor, in a frame that may be inclined; a block is one without radius
DISK = ji.Problem(
    disk,
    lambda t, q, args: q[1:2] - args["R"],
    lambda q, args: jnp.stack([jnp.ones_like(q[0]), jnp.ones_like(q[0]), args["I"]]),
    slip=lambda t, q, v, args: v[:1] + args["R"] * v[2:],
    friction=lambda args: args["mu"],
)


# a block that is pulled ever harder, and held by static friction
PULLED = DISK.replace(
    force=lambda t, q, v, args: disk(t, q, v, args | {"gx": t * args["gx"]}),
    static_friction=lambda args: args["static"],
)


def end(p, n, t1, **options):
    """State (6,) at t1 from parameters p: start, velocity, restitution and args."""
    args = {name: p[name] for name in ("gx", "gy", "mu", "R", "I", "static") if name in p}
    problem = PULLED if "static" in p else DISK
    found = ji.solve(
        problem, p["q0"], p["v0"], t1=t1, steps=n, args=args, e=p["e"], scheme=SCHEME, save="final", **options
    )
    return jnp.concatenate([found.q[-1], found.v[-1]])


def parameters(**changes):
    found = {"gx": 0.0, "gy": G, "mu": 0.3, "R": 0.0, "I": 1.0, "e": 0.0, "q0": [0.0, 0.0, 0.0], "v0": [2.0, 0.0, 0.0]}
    return jax.tree.map(jnp.asarray, found | changes, is_leaf=lambda x: isinstance(x, list))


def sliding(p, t1):
    """A block that slides to rest, or up an incline and down again: closed form."""
    x, v, a = p["q0"][0], p["v0"][0], p["mu"] * p["gy"]
    stop = v / (a - p["gx"])
    back = jnp.where(-p["gx"] > a, p["gx"] + a, 0)  # down again, where gravity beats friction
    rest = t1 - stop
    zero = 0 * x
    return jnp.stack(
        [x + v * stop / 2 + back * rest**2 / 2, zero, p["q0"][2] + p["v0"][2] * t1, back * rest, zero, p["v0"][2]]
    )


def bouncing(p, t1, impacts=2):
    """A disk that bounces with spin: every impact slips or ends it, closed form."""
    (x, y, phi), (u, w, s), t = p["q0"], p["v0"], 0.0
    for _ in range(impacts):
        fall = (w + jnp.sqrt(w**2 + 2 * p["gy"] * (y - p["R"]))) / p["gy"]
        x, phi, y, w, t = x + u * fall, phi + s * fall, p["R"], w - p["gy"] * fall, t + fall
        normal = -(1 + p["e"]) * w
        slip = u + p["R"] * s
        stuck = -slip / (1 + p["R"] ** 2 / p["I"])
        along = jnp.clip(stuck, -p["mu"] * normal, p["mu"] * normal)
        u, s, w = u + along, s + p["R"] * along / p["I"], -p["e"] * w
    rest = t1 - t
    return jnp.stack([x + u * rest, y + w * rest - p["gy"] * rest**2 / 2, phi + s * rest, u, w - p["gy"] * rest, s])


def pulled(p, t1):
    """A block at rest that breaks away where gx t = static gy, and slips with mu: closed form."""
    begin = p["static"] * p["gy"] / p["gx"]
    rest, zero = t1 - begin, 0 * p["gx"]
    v = p["gx"] * (t1**2 - begin**2) / 2 - p["mu"] * p["gy"] * rest
    x = p["gx"] * ((t1**3 - begin**3) / 6 - begin**2 * rest / 2) - p["mu"] * p["gy"] * rest**2 / 2
    return jnp.stack([p["q0"][0] + x, zero, p["q0"][2] + p["v0"][2] * t1, v, zero, p["v0"][2]])


MOTIONS = {
    "slides to rest": (parameters(), sliding, 1.0),
    "up an incline and down": (parameters(gx=-5.5, gy=8.1, v0=[3.0, 0.0, 0.0]), sliding, 1.0),
    "up an incline, and stays": (parameters(gx=-2.0, gy=8.1, v0=[3.0, 0.0, 0.0]), sliding, 1.2),
    "is pulled until it breaks away": (parameters(gx=8.0, static=0.5, v0=[0.0, 0.0, 0.0]), pulled, 1.0),
    "bounces, slips, sticks": (
        parameters(R=R, I=R**2 / 2, e=0.7, mu=0.1, q0=[0.0, 1.0, 0.0], v0=[1.0, 0.0, 6.0]), bouncing, 1.3,
    ),
}  # fmt: skip


# what the closed forms know; a block's height is held by the floor
VARIED = {sliding: ("gx", "gy", "mu"), pulled: ("gx", "gy", "mu", "static"), bouncing: ("gy", "mu", "I", "e")}


def errors(name):
    """Mean errors of state and Jacobian over each band of step numbers, and the size of the Jacobian."""
    p, exact, t1 = MOTIONS[name]
    numbers = jnp.stack([*(p[key] for key in VARIED[exact]), p["q0"][0], p["q0"][2], p["v0"][0], p["v0"][2]])

    def with_numbers(x):
        *some, q, angle, v, spin = x
        start = {"q0": jnp.stack([q, p["q0"][1], angle]), "v0": jnp.stack([v, p["v0"][1], spin])}
        return p | dict(zip(VARIED[exact], some, strict=True)) | start

    right = lambda x: exact(with_numbers(x), t1)
    expected, slopes = jax.jit(right)(numbers), jax.jit(jax.jacfwd(right))(numbers)

    def apart(n):
        state = lambda x: end(with_numbers(x), n, t1)
        jacobian = jax.jacfwd(lambda x: (state(x), state(x)), has_aux=True)
        slope, value = jacobian(numbers)
        return np.max(np.abs(value - expected)), np.max(np.abs(slope - slopes))

    return np.mean([[apart(n) for n in band] for band in STEPS], axis=1), np.max(np.abs(slopes))


def order(coarse, fine):
    """Orders from the mean errors of two bands of step numbers."""
    return np.log(coarse / fine) / np.log(np.mean(STEPS[1]) / np.mean(STEPS[0]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/friction"))
    options = parser.parse_args()
    rows = []
    for name in MOTIONS:
        (coarse, fine), size = errors(name)
        state, jacobian = order(coarse, fine)
        rows.append({
            "motion": name, "state, 226 steps": f"{coarse[0]:.1e}", "3422 steps": f"{fine[0]:.1e}", "order": f"{state:.2f}",
            "largest derivative": f"{size:.3g}", "Jacobian, 226 steps": f"{coarse[1]:.1e}", "Jacobian, 3422 steps": f"{fine[1]:.1e}",
            "Jacobian, order": f"{jacobian:.2f}",
        })  # fmt: skip
        print(*rows[-1].values(), sep="  ", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    with open(options.out / "friction.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    print(options.out / "friction.csv")


if __name__ == "__main__":
    main()
