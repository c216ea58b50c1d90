"""Bifurcations of the impact oscillator over two parameters: grazing, folds and period doublings,
beside their closed forms.

q'' + 2 z q' + q = cos(w (t + shift)), q >= wall. Where the free vibration touches the wall, wall = -A(w), it grazes.
The orbit with one impact a period is the root of a quadratic (Shaw and Holmes, J. Sound Vib. 90 (1983), section 3):
where its discriminant is zero two such orbits meet in a fold, and where its monodromy matrix has the eigenvalue -1 the
period doubles. The dots are found without any of it, from motions alone.

At the resonance w = 2 sqrt(1 - z^2) the term with a square root of the map of a period vanishes, and a curve of folds
and one of period doublings end at the curve of grazing, quadratically tangent to it: proven, and illustrated with a
linear impact oscillator, by Simpson and Ghosh, Resonant grazing bifurcations revisited, arXiv:2602.22797 (2026). The
second panel shows both, by their distance from grazing.

python experiments/gallery/bifurcation_curves.py
"""

import argparse
import csv
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np  # noqa: E402
from scipy.optimize import brentq  # noqa: E402

from jaximpact import catalogue  # noqa: E402
from jaximpact.analysis import continue_curve  # noqa: E402
from jaximpact.catalogue import oscillators  # noqa: E402

PROBLEM = catalogue.get("shaw-holmes").problem
Z, E = 0.05, 0.8
BOUNDS = ((1.1, 3.2), (-6.0, 1.7))  # of frequency and wall
RESONANCE = 2 * np.sqrt(1 - Z**2)
DETUNING = 0.1  # within which curves are followed towards the resonance


def period(args):
    return 2 * np.pi / args["frequency"]


def amplitude(w):
    """Of the free vibration."""
    return 1 / np.hypot(1 - w**2, 2 * Z * w)


def flow(w):
    """Matrix of the free damped oscillator over a period."""
    wd, time = np.sqrt(1 - Z**2), 2 * np.pi / w
    c, s = np.cos(wd * time), np.sin(wd * time) / wd
    return np.exp(-Z * time) * np.array([[c + Z * s, s], [-s, c - Z * s]])


def fold_wall(w):
    """The wall at which the quadratic of the orbit with one impact has a double root with a rebound."""
    (p11, p12), (p21, p22) = flow(w)
    y = (1 - p11) / p12
    v = ((1 - p22) * y - p21) * E / (1 + E)
    a = 1 + ((v - y) / w) ** 2
    return np.sign(v) * amplitude(w) * np.sqrt(a / (a - 1))


def doubling(w, wall):
    """1 + trace + determinant of the monodromy matrix of the orbit with one impact: zero where the period doubles."""
    _, shift, v = oscillators.periodic_orbit(Z, w, wall, E)
    before, after = (np.cos(w * shift) - wall - 2 * Z * u for u in (-v / E, v))
    monodromy = np.array([[-E, 0], [-(after + E * before) * E / v, -E]]) @ flow(w)
    return 1 + np.trace(monodromy) + np.linalg.det(monodromy)


def start(w, wall):
    """State half a period behind the impact of the closed-form orbit, its time and the parameters."""
    exact, shift, _ = oscillators.periodic_orbit(Z, w, wall, E)
    t0 = np.pi / w
    (q,), (v,) = exact(np.array([t0]))
    args = {"damping": Z, "amplitude": 1.0, "frequency": w, "shift": shift, "wall": wall}
    return {"q0": q, "v0": v, "t0": t0, "args": args}


def free(w):
    """State of the free vibration at t = 0, and parameters with the wall where it touches."""
    lag = np.arctan2(2 * Z * w, 1 - w**2)
    q, v = amplitude(w) * np.cos(lag), amplitude(w) * w * np.sin(lag)
    args = {"damping": Z, "amplitude": 1.0, "frequency": w, "shift": 0.0, "wall": -amplitude(w)}
    return {"q0": [q], "v0": [v], "args": args}


def clears(w, wall):
    """Whether the closed-form orbit stays off the wall between its impacts."""
    if abs(wall) > abs(fold_wall(w)):
        return False  # there is none
    exact, _, v = oscillators.periodic_orbit(Z, w, wall, E)
    return v > 0 and np.min(exact(np.linspace(0.01, 0.99, 100) * 2 * np.pi / w)[0]) > wall


def off_doubling(w, wall, small=1e-6):
    """Distance of a point from the closed-form curve of period doublings, to first order."""
    slope = [
        (doubling(w + small, wall) - doubling(w - small, wall)) / (2 * small),
        (doubling(w, wall + small) - doubling(w, wall - small)) / (2 * small),
    ]
    return doubling(w, wall) / np.hypot(*slope)


def follow(kind, given):
    """Points of the curve through a start, both ways."""
    parts = []
    for direction in (-1, 1):
        found = continue_curve(
            PROBLEM, kind=kind, **given, e=E, period=period, parameters=("frequency", "wall"), bounds=BOUNDS,
            direction=direction, points=60,
        )  # fmt: skip
        print(f"{kind}: {len(found.x)} points, ends by {found.ended}")
        parts.append(np.column_stack([found.x, found.y]))
    return np.concatenate([parts[0][:0:-1], parts[1]])


def towards_resonance():
    """Points of the curves of folds and of period doublings that end at the resonance, followed to it."""
    found = {}
    for kind, sign in (("fold", -1), ("period doubling", 1)):
        w = RESONANCE + sign * DETUNING
        near = amplitude(w) - 0.8 * DETUNING**2
        doubled = lambda wall, w=w: doubling(w, wall)
        wall = 0.9995 * fold_wall(w) if kind == "fold" else brentq(doubled, -near - 1e-3, -near + 2e-3)
        bounds = tuple(sorted((RESONANCE + 1.1 * sign * DETUNING, RESONANCE - 0.01 * sign)))
        curve = continue_curve(
            PROBLEM, kind=kind, **start(w, wall), e=E, period=period, parameters=("frequency", "wall"),
            bounds=(bounds, (-0.6, -0.2)), direction=-sign if kind == "period doubling" else 1, step=0.05, points=60,
        )  # fmt: skip
        found[kind] = np.column_stack([curve.x, curve.y])
    return found


def off_grazing(points):
    """Detuning and distance from the curve of grazing of points (k, 2)."""
    w, wall = points.T
    return w - RESONANCE, wall + amplitude(w)


def tangency(points):
    """Exponent of a curve's distance from grazing by the detuning, and the coefficient of the parabola that it tends
    to, from its nearest points."""
    x, y = off_grazing(points)
    used = (np.abs(x) < 0.4 * DETUNING) & (np.abs(x) > 0.02 * DETUNING)
    x, y = x[used], y[used]
    exponent = np.polyfit(np.log(np.abs(x)), np.log(np.abs(y)), 1)[0]
    return np.polyfit(x, y / x**2, 1)[-1], exponent


def unfolding(axes, ends):
    """Draws the curves near the resonance: dots, closed forms, and the parabolas that the tangency gives."""
    axes.axhline(0, color="C0", lw=1)
    near = np.linspace(0, 1.1 * DETUNING, 60)
    for (kind, points), color, sign in zip(ends.items(), ("C1", "C2"), (-1, 1), strict=True):
        x, y = off_grazing(points)
        axes.plot(x, y, "o", ms=3, color=color, label=kind)
        axes.plot(sign * near, tangency(points)[0] * near**2, "--", color=color, lw=1)
    axes.set(xlabel="frequency - resonance", ylabel="wall beyond grazing", title="At the resonance")
    axes.legend(frameon=False, fontsize=9)


def picture(curves, ends, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.4, 4.6), layout="constrained")
    axes, beside = figure.subplots(1, 2, width_ratios=(7, 4))
    unfolding(beside, ends)
    w = np.linspace(*BOUNDS[0], 400)
    axes.plot(w, -amplitude(w), color="C0", lw=1, label="closed forms")
    for part in (w[w < 1.999], w[w > 2.001]):
        axes.plot(part, [fold_wall(x) for x in part], color="C1", lw=1)
    x, y = np.linspace(2.0, BOUNDS[0][1], 121), np.linspace(-0.6, 0.4, 101)
    found = np.array([[doubling(a, b) if clears(a, b) else np.nan for a in x] for b in y])
    axes.contour(x, y, found, levels=[0.0], colors="C2", linewidths=1)
    for (kind, points), color in zip(curves.items(), ("C0", "C1", "C2"), strict=True):
        axes.plot(*points.T, "o", ms=3, color=color, label=kind)
    axes.set(xlabel="frequency", ylabel="wall", ylim=(-4.0, 1.8), title="Impact oscillator, z = 0.05, e = 0.8")
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=140)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/bifurcation_curves"), help="folder for table and picture")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    beside = lambda w: start(w, 0.999 * fold_wall(w) if fold_wall(w) > 0 else 0.9995 * fold_wall(w))
    doubles = brentq(lambda w: doubling(w, -0.1), 2.0, 3.0)
    curves = {
        "grazing": follow("grazing", free(1.5)),
        "fold": np.concatenate([follow("fold", beside(w)) for w in (1.5, 2.6)]),
        "period doubling": follow("period doubling", start(doubles, -0.1)),
    }
    off = {
        "grazing": lambda w, wall: wall + amplitude(w),
        "fold": lambda w, wall: wall - fold_wall(w),
        "period doubling": off_doubling,
    }
    rows = []
    for kind, points in curves.items():
        errors = [abs(off[kind](*point)) for point in points]
        rows += [
            {"kind": kind, "frequency": x, "wall": y, "off the closed form": e}
            for (x, y), e in zip(points, errors, strict=True)
        ]
        print(f"{kind}: {len(points)} points, at most {max(errors):.1e} off the closed form")
    ends = towards_resonance()
    for kind, points in ends.items():
        coefficient, exponent = tangency(points)
        print(
            f"{kind}: {len(points)} points to {np.min(np.abs(off_grazing(points)[0])):.1e} from the resonance", end=", "
        )
        print(f"at most {max(abs(off[kind](*x)) for x in points):.1e} off the closed form;", end=" ")
        print(f"exponent {exponent:.2f}, coefficient {coefficient:.4g}")
    with open(options.out / "curves.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    picture(curves, ends, options.out / "curves.png")
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
