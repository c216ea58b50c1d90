"""Orders of states and Jacobians through Coulomb friction and joints, by the schemes that know it,
against closed forms and located events.

python experiments/cases/friction.py --out out/friction      a quarter of an hour
python experiments/cases/friction.py --digits                of EventDriven by its tolerance, in the plane: some five minutes

At four step sizes, means over eight neighbouring numbers of steps each, as an error depends on where in its step an
event falls. Beside them: reverse mode against forward mode, lanes of an ensemble against single motions,
float32 against float64.
"""  # noqa: E501

import argparse
import csv
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import jaximpact as ji  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
from frictional_systems import SYSTEMS, Course, System  # noqa: E402

G, R = 9.81, 0.2
BANDS = tuple(range(n, n + 16, 2) for n in (101, 303, 909, 2727))
SCHEMES = "MoreauJean", "Maury", "EventCorrected"
ROUNDING = 1e-9  # of the largest derivative: below it errors have no order
TOLERANCES = 1e-5, 1e-7, 1e-9, 1e-11
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


def by_closed_form(name):
    """One of `MOTIONS` as a system."""
    p, exact, t1 = MOTIONS[name]
    own = {"x": p["q0"][0], "angle": p["q0"][2], "vx": p["v0"][0], "spin": p["v0"][2]}
    numbers = {key: x for key, x in p.items() if key not in ("q0", "v0")} | own

    def start(x):
        return jnp.stack([x["x"], p["q0"][1], x["angle"]]), jnp.stack([x["vx"], p["v0"][1], x["spin"]])

    def right(x):
        q0, v0 = start(x)
        return exact(x | {"q0": q0, "v0": v0}, t1)

    problem = PULLED if "static" in p else DISK
    return System(problem, numbers, start, t1, right, lambda x: x["e"], (*VARIED[exact], *own))


ALL = {name: by_closed_form(name) for name in MOTIONS} | SYSTEMS
# Maury's scheme is for inelastic impacts
ROWS = [(n, s) for n, x in ALL.items() for s in SCHEMES if s != "Maury" or float(x.e(x.p)) == 0]


class Exact(NamedTuple):
    """State (2d,) and Jacobian (2d, p)."""

    state: np.ndarray
    jacobian: np.ndarray


def numbers_of(system):
    return {name: jnp.asarray(x, float) for name, x in system.p.items()}


def exact_of(system):
    p = numbers_of(system)
    if isinstance(system.exact, Course):
        lengths = system.exact.located(p)
        right = lambda p: system.exact.state(p, lengths)
    else:
        right = jax.jit(system.exact)
    slopes = jax.jacfwd(right)(p)
    return Exact(np.asarray(right(p)), np.stack([slopes[name] for name in system.by or p], axis=1))


def call_of(system):
    """Start and arguments of the motion."""
    p = numbers_of(system)
    q0, v0 = (np.asarray(x) for x in system.start(p))
    return (system.problem, q0, v0), {
        "t1": system.t1,
        "e": float(system.e(p)),
        "args": {k: float(x) for k, x in p.items()},
    }


def jacobian(system, scheme, mode="forward", **steps):
    """States (..., 2d), Jacobians (..., 2d, p) by the numbers that are varied, and status."""
    start, options = call_of(system)
    wrt = ("q0", "v0", "e", "args") if "e" in system.by else ("q0", "v0", "args")
    found = ji.sensitivities(*start, **options, **steps, scheme=scheme, wrt=wrt, mode=mode, progress=False)
    inputs = lambda p: (
        dict(zip(("q0", "v0"), system.start(p), strict=True)) | {"e": jnp.asarray(system.e(p)), "args": p}
    )
    chain, columns = jax.jacfwd(inputs)(numbers_of(system)), []
    for name in system.by or system.p:
        total = 0.0
        for part in wrt:
            own = {k: found.jacobian[k][part] for k in "qv"}
            if part == "args":
                column = np.concatenate([own[k][name] for k in "qv"], axis=-1)
            else:
                rows = np.concatenate([np.reshape(own[k], (*np.shape(found.value[k]), -1)) for k in "qv"], axis=-2)
                column = rows @ np.reshape(chain[part][name], -1)
            total = total + column
        columns.append(total)
    state = np.concatenate([found.value["q"], found.value["v"]], axis=-1)
    return state, np.stack(columns, axis=-1), found.status


class Errors(NamedTuple):
    """Mean errors (bands, 2) of state and Jacobian over each band of step numbers, status bits of all, and the Jacobian
    at the least number of the second band."""

    mean: np.ndarray
    status: int
    jacobian: np.ndarray


def errors(system, scheme, exact, bands=BANDS):
    counts = np.concatenate(bands)
    state, slopes, status = jacobian(system, scheme, h=system.t1 / counts)
    worst = np.stack([
        np.max(np.abs(state - exact.state), axis=1),
        np.max(np.abs(slopes - exact.jacobian), axis=(1, 2)),
    ])  # fmt: skip
    mean = np.stack([np.mean(part, axis=1) for part in np.split(worst, len(bands), axis=1)])
    return Errors(mean, int(np.bitwise_or.reduce(status)), slopes[len(bands[0])])


def order(errors, bands=BANDS):
    """Slope of log error over log h."""
    return -np.polyfit(np.log([np.mean(band) for band in bands]), np.log(errors), 1)[0]


def agreement(system, scheme, steps, forward):
    """Largest differences: reverse mode from a ``forward`` Jacobian, of the largest derivative; lanes from single
    motions; and float32 from float64, in units of the last digit of float32 times the largest derivative."""
    _, reverse, _ = jacobian(system, scheme, mode="reverse", steps=steps)
    size = max(1.0, np.max(np.abs(forward)))
    (problem, q0, v0), options = call_of(system)
    options |= {"scheme": scheme, "save": "final", "steps": steps}
    end = lambda found: np.concatenate([found.q, found.v], axis=-1)
    one = end(ji.solve(problem, q0, v0, **options))[-1]
    lanes = end(ji.ensemble(problem, np.stack([q0] * 3), v0, progress=False, **options))[:, -1]
    low = jax.tree.map(lambda x: np.asarray(x, np.float32), (q0, v0, options["args"]))
    rounded = end(ji.solve(problem, *low[:2], **options | {"args": low[2]}))[-1]
    digits = np.max(np.abs(rounded - one)) / (size * np.finfo(np.float32).eps)
    return np.max(np.abs(reverse - forward)) / size, np.max(np.abs(lanes - one)), digits


def row(name, scheme_name, exact):
    """What the table says of a system and a scheme."""
    system, scheme = ALL[name], getattr(ji, scheme_name)()
    found = errors(system, scheme, exact)
    size = max(1.0, np.max(np.abs(exact.jacobian)))
    orders = ["exact" if e[0] < ROUNDING * size else f"{order(e):.2f}" for e in found.mean.T]
    apart, lanes, digits = agreement(system, scheme, BANDS[1][0], found.jacobian)
    cells = [" ".join(f"{x:.0e}".replace("e-0", "e-") for x in e) for e in found.mean.T]
    return {
        "motion": name, "scheme": scheme_name, "errors of the state": cells[0], "order": orders[0],
        "largest derivative": f"{size:.3g}",
        "errors of the Jacobian": cells[1], "its order": orders[1], "reverse - forward": f"{apart:.0e}",
        "lanes - single": f"{lanes:.0e}",
        "float32 [digits]": f"{digits:.0f}", "status": " ".join(bit.name for bit in ji.Status if bit & found.status)
        or "clean",
    }  # fmt: skip


def by_tolerance(name, exact):
    """What the table of tolerances says of a system: errors of state and Jacobian by `EventDriven`, trials of its
    substeps, and status bits."""
    system, errors, trials, told = ALL[name], [], [], 0
    start, options = call_of(system)
    for rtol in TOLERANCES:
        scheme = ji.EventDriven(rtol, rtol)
        state, slopes, status = jacobian(system, scheme, h=np.array([system.t1]))
        errors.append([np.max(np.abs(state - exact.state)), np.max(np.abs(slopes - exact.jacobian))])
        trials.append(int(ji.solve(*start, **options, scheme=scheme, save="final").iterations))
        told |= int(status[0])
    cells = [" ".join(f"{x:.0e}".replace("e-0", "e-") for x in e) for e in np.transpose(errors)]
    return {
        "motion": name, "errors of the state": cells[0],
        "largest derivative": f"{max(1.0, np.max(np.abs(exact.jacobian))):.3g}", "errors of the Jacobian": cells[1],
        "trials": " ".join(map(str, trials)), "status": " ".join(bit.name for bit in ji.Status if bit & told)
        or "clean",
    }  # fmt: skip


def write(file, rows):
    with open(file, "w", newline="") as out:
        writer = csv.DictWriter(out, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def recorded(file):
    """Rows of an earlier run, by motion and scheme."""
    rows = list(csv.DictReader(file.read_text().splitlines())) if file.exists() else []
    return {(row["motion"], row.get("scheme")): row for row in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/friction"))
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="MOTION",
        choices=list(ALL),
        default=list(ALL),
        help="of others what is recorded in --out stays",
    )
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument("--digits", action="store_true", help="errors of EventDriven by its tolerance")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # what is not clean stands in the table
    options.out.mkdir(parents=True, exist_ok=True)
    if options.digits:
        rows = []
        for name in (x for x in options.only if ALL[x].problem.slip is not None and "space" not in x):
            jax.clear_caches()
            rows.append(by_tolerance(name, exact_of(ALL[name])))
            print(*rows[-1].values(), sep="  ", flush=True)
            write(options.out / "friction_digits.csv", rows)
        return
    file = options.out / "friction.csv"
    rows = recorded(file)
    for name in options.only:
        jax.clear_caches()  # the programs of all systems together are more than XLA has room for
        exact = exact_of(ALL[name])
        for scheme in (s for s in options.schemes if (name, s) in ROWS):
            rows[name, scheme] = row(name, scheme, exact)
            print(*rows[name, scheme].values(), sep="  ", flush=True)
            write(file, [rows[key] for key in ROWS if key in rows])
    print(file)


if __name__ == "__main__":
    main()
