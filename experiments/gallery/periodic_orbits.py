"""Periodic orbits of the forced impact oscillator over the forcing frequency: branch,
Floquet multipliers and bifurcations.

q'' + 2 z q' + q = cos(w (t + shift)), q >= wall, one impact a period. Down from w = 1.2 the branch ends where the orbit
touches the wall a second time; from there it is followed up, through its period doubling. Each event stands beside
the root of the closed-form monodromy matrix (Shaw and Holmes 1983), or of the closed-form motion's clearance.

python experiments/gallery/periodic_orbits.py             coarse steps
python experiments/gallery/periodic_orbits.py --full      small ones, and branches over the wall and the restitution too
"""

import argparse
import csv
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np  # noqa: E402
from scipy.optimize import brentq  # noqa: E402

from jaximpact import catalogue  # noqa: E402
from jaximpact.analysis import continue_orbit, periodic_orbit  # noqa: E402
from jaximpact.catalogue import oscillators  # noqa: E402

PROBLEM = catalogue.get("shaw-holmes").problem
Z, WALL, E = 0.05, -0.1, 0.8
LOW, START, HIGH = 0.6, 1.2, 3.0


def period(args):
    return 2 * np.pi / args["frequency"]


def member(w):
    """State in mid-flight, its time and the parameters, of the closed-form orbit at a frequency."""
    exact, shift, _ = oscillators.periodic_orbit(Z, w, WALL, E)
    t0 = np.pi / w
    (q,), (v,) = exact(np.array([t0]))
    return q, v, {"t0": t0, "args": {"damping": Z, "amplitude": 1.0, "frequency": w, "shift": shift, "wall": WALL}}


def multiplier_minus_one(w):
    """1 + trace + determinant of the closed-form monodromy matrix S Phi(T)."""
    _, shift, v = oscillators.periodic_orbit(Z, w, WALL, E)
    wd, time = np.sqrt(1 - Z**2), 2 * np.pi / w
    c, s = np.cos(wd * time), np.sin(wd * time) / wd
    flow = np.exp(-Z * time) * np.array([[c + Z * s, s], [-s, c - Z * s]])
    before, after = (np.cos(w * shift) - WALL - 2 * Z * u for u in (-v / E, v))
    monodromy = np.array([[-E, 0], [-(after + E * before) * E / v, -E]]) @ flow
    return 1 + np.trace(monodromy) + np.linalg.det(monodromy)


def least_clearance(w):
    """Smallest minimum of the closed-form gap between two impacts."""
    exact, _, _ = oscillators.periodic_orbit(Z, w, WALL, E)
    q, v = exact(np.linspace(0.05, 0.95, 20_001) * 2 * np.pi / w)
    return np.min(q[:-1][(v[:-1, 0] < 0) & (v[1:, 0] >= 0)]) - WALL


def roots(function, interval):
    """All roots that a grid tells apart."""
    grid = np.linspace(*interval, 200)
    values = np.array([function(w) for w in grid])
    return [brentq(function, *grid[i : i + 2], xtol=1e-13) for i in np.flatnonzero(values[:-1] * values[1:] < 0)]


def write(branch, out, name):
    columns = {branch.name: branch.parameter, "q": branch.q[:, 0], "v": branch.v[:, 0], "period": branch.period}
    for i in range(branch.multipliers.shape[1]):
        columns |= {f"mu{i + 1}_re": branch.multipliers[:, i].real, f"mu{i + 1}_im": branch.multipliers[:, i].imag}
    columns |= {"stable": branch.stable, "impacts": branch.impacts, "impact_speed": branch.impact_speed}
    columns |= {"clearance": branch.clearance}
    table = np.column_stack([np.asarray(x, float) for x in columns.values()])
    np.savetxt(out / f"{name}.csv", table, delimiter=",", header=",".join(columns), comments="", fmt="%.17g")
    branch.plot(out / f"{name}.png", title=f"One impact a period, over the {branch.name}")
    print(f"{name}: {len(branch.parameter)} points, ends by {branch.ended}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="steps of a quarter of the size, and further branches")
    parser.add_argument("--out", type=Path, default=Path("out/periodic_orbits"), help="folder for tables and pictures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    common = {"e": E, "period": period, "steps": 800 if options.full else 200}

    q, v, given = member(START)
    over = {"parameter": "frequency", "bounds": (LOW, HIGH)}
    down = continue_orbit(PROBLEM, q, v, **over, direction=-1, **given, **common)
    up = continue_orbit(PROBLEM, q, v, **over, direction=1, **given, **common)
    exact = {"grazing": roots(least_clearance, (0.9, 1.0)), "period doubling": roots(multiplier_minus_one, (0.9, HIGH))}
    rows = []
    for event in (*down.events, *up.events):
        nearest = min(exact[event.kind], key=lambda w: abs(w - event.parameter))
        rows.append({"event": event.kind, "frequency": event.parameter, "closed form": nearest})
    for row in rows:
        print("{event:16} at frequency {frequency:.8f}, closed form {closed form:.8f}".format(**row))
    with open(options.out / "events.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    write(down, options.out, "frequency_down")
    write(up, options.out, "frequency_up")

    q, v, given = member(2.2)
    fine = periodic_orbit(PROBLEM, q, v, extrapolate=True, **given, **common)
    determinant = E**2 * np.exp(-2 * Z * fine.period)
    print(
        f"orbit at frequency 2.2: order {fine.order['state']:.2f}, extrapolated to {np.abs(fine.q - q)[0]:.1e} of the "
        "closed form;"
        f" product of multipliers {np.prod(fine.multipliers).real:.8f}, closed form {determinant:.8f}"
    )
    if options.full:
        for name, bounds, direction in (("wall", (-0.5, 2.0), 1), ("e", (0.0, 1.0), -1)):
            branch = continue_orbit(
                PROBLEM, q, v, parameter=name, bounds=bounds, direction=direction, **given, **common
            )
            write(branch, options.out, name)
            for event in branch.events:
                print(f"{event.kind:16} at {name} {event.parameter:.8f} {event.detail}")
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
