"""What the fits say: tables in print, balls.csv, drops.csv, results.npz."""

import csv
from pathlib import Path

import numpy as np

from .fit import Fit
from .trend import trend_of

AIR = 1.2  # density [kg/m^3]
SPHERE = 0.47  # drag coefficient of a smooth sphere at Reynolds numbers of 10^3..10^5
REGULATION = {  # diameter [m], mass [kg] by the rules of ITTF, ITF and R&A; the recorded balls need not be such ones
    "pingpong": (0.040, 2.7e-3),
    "tennis": (0.067, 57.7e-3),
    "golf": (0.0427, 45.9e-3),
}


def per_coefficient(ball: str) -> float:
    """c [1/m] of a regulation ball for a drag coefficient of 1; NaN for other balls."""
    diameter, mass = REGULATION.get(ball, (np.nan, np.nan))
    return AIR * np.pi * diameter**2 / 8 / mass


def rows_of(fit: Fit, vacuum: Fit) -> list[dict]:
    """The numbers of each ball: fits with and without drag, errors, trends."""
    found = []
    independent, clustered = fit.errors(fit.covariance), fit.errors(fit.clustered)
    in_vacuo = vacuum.errors(vacuum.clustered)
    for number, ball in enumerate(fit.balls):
        members = fit.ball == number
        contacts = sum(len(drop.times) for drop, member in zip(fit.drops, members, strict=True) if member)
        row = {
            "ball": ball,
            "drops": members.sum(),
            "contacts": contacts,
            "rejected": contacts - (fit.index[members] >= 0).sum(),
            "e": fit.e[number],
            "e_error_independent": independent[number, 0],
            "e_error": clustered[number, 0],
            "c_per_m": fit.c[number],
            "c_error_independent": independent[number, 1],
            "c_error": clustered[number, 1],
            "jitter_ms": 1e3 * fit.noise[number, 0],
            "scatter": fit.noise[number, 1],
            "rms_ms": 1e3 * fit.rms(number),
            "surprise_ms": 1e3 * fit.typical(number),
            "drag_coefficient": fit.c[number] / per_coefficient(ball),
            "c_sphere_per_m": SPHERE * per_coefficient(ball),
            "rejected_without_drag": contacts - (vacuum.index[members] >= 0).sum(),
            "e_without_drag": vacuum.e[number],
            "e_error_without_drag": in_vacuo[number, 0],
            "jitter_without_drag_ms": 1e3 * vacuum.noise[number, 0],
            "scatter_without_drag": vacuum.noise[number, 1],
            "rms_without_drag_ms": 1e3 * vacuum.rms(number),
            "surprise_without_drag_ms": 1e3 * vacuum.typical(number),
        }
        for name, which in (("with", fit), ("without", vacuum)):
            trend = trend_of(which, number)
            for key in ("slope", "left"):
                values = [np.nan] * 3 if trend is None else getattr(trend, key)
                row |= {f"{key}{end}_{name}_drag": x for end, x in zip(("", "_low", "_high"), values, strict=True)}
        found.append(row)
    return found


def print_tables(rows: list[dict]) -> None:
    head = "rejected  rms ms  ahead ms  jitter ms  scatter  e"
    print(f"\n{'with drag':12s} drops contacts {head:74s} c [1/m]")
    for r in rows:
        print(
            f"{r['ball']:12s} {r['drops']:5d} {r['contacts']:8d} {r['rejected']:8d} {r['rms_ms']:7.1f} "
            f"{r['surprise_ms']:9.1f} {r['jitter_ms']:10.2f} {r['scatter']:8.4f}  "
            f"{r['e']:.5f} ± {r['e_error']:.5f} ({r['e_error_independent']:.5f})  "
            f"{r['c_per_m']:+.4f} ± {r['c_error']:.4f} ({r['c_error_independent']:.4f})"
        )
    print(f"\n{'without drag':12s} {'':14s} {head}")
    for r in rows:
        print(
            f"{r['ball']:12s} {'':14s} {r['rejected_without_drag']:8d} {r['rms_without_drag_ms']:7.1f} "
            f"{r['surprise_without_drag_ms']:9.1f} {r['jitter_without_drag_ms']:10.2f} "
            f"{r['scatter_without_drag']:8.4f}  {r['e_without_drag']:.5f} ± {r['e_error_without_drag']:.5f}"
        )
    print(
        "\nrms: measured minus simulated contact times; ahead: robust standard deviation of the same less what was to "
        "be"
    )
    print(
        "expected after the contacts before; jitter of the trigger and relative scatter of e from impact to impact: the"
    )
    print("likeliest; errors: from the scatter between drops, and in brackets from J'J")
    print("\nslope of the logarithm of the ratio of successive flights with speed [% per m/s], 95 % interval:")
    print(f"{'':12s} {'measured':24s} {'left without drag':24s} left with drag")
    for r in rows:
        cells = [
            f"{100 * r[key]:+.2f} ({100 * r[low]:+.2f}, {100 * r[high]:+.2f})"
            for key, low, high in (
                ("slope_without_drag", "slope_low_without_drag", "slope_high_without_drag"),
                ("left_without_drag", "left_low_without_drag", "left_high_without_drag"),
                ("left_with_drag", "left_low_with_drag", "left_high_with_drag"),
            )
        ]
        print(f"{r['ball']:12s} {cells[0]:24s} {cells[1]:24s} {cells[2]}")


def print_remarks(rows: list[dict], fit: Fit, truth: dict) -> None:
    """What a reader must know to judge the tables; ``truth``: e of balls where it is known."""
    print()
    for r in rows:
        if np.isfinite(r["c_sphere_per_m"]):
            print(
                f"{r['ball']}: c of a regulation ball as a smooth sphere (C_d = {SPHERE}) {r['c_sphere_per_m']:.4f}/m; "
                f"fitted c means C_d = {r['drag_coefficient']:.2f} ± {r['c_error'] / per_coefficient(r['ball']):.2f}"
            )
        if r["c_per_m"] < -2 * r["c_error"]:
            print(f"{r['ball']}: c < 0 is no drag: the apparent restitution grows with speed or drifts in the record")
        if r["ball"] in truth:
            e, c = r["e"] - truth[r["ball"]], r["c_per_m"]
            print(f"{r['ball']}: e - truth = {e:+.1e} ({e / r['e_error']:+.1f} s.e.), c - truth = {c:+.1e} ", end="")
            print(f"({c / r['c_error']:+.1f} s.e.)")
    print(f"simulated contact times differ from the exact law of flight by {1e3 * fit.law_error:.3f} ms at most")


def print_agreement(fit: Fit, vacuum: Fit, path: Path) -> None:
    """Medians over drops of the ensemble study of measured_bounces.py, where its fits.csv is of the same drops."""
    if not path.exists():
        return
    with open(path, newline="", encoding="utf-8") as file:
        table = {(r["ball"], float(r["drop_height_cm"]), r["drop"]): r for r in csv.DictReader(file)}
    keys = [(drop.ball, drop.drop_height_cm, drop.drop) for drop in fit.drops]
    if not all(table.get(key, {}).get("e") for key in keys):
        return
    e, height = (np.array([float(table[key][name]) for key in keys]) for name in ("e", "height_cm"))
    print(f"\nensemble study in vacuo ({path}), e of each drop on its own:")
    print(f"{'':12s} median e  here without drag   height, median of the ratio here without drag : there")
    for number, ball in enumerate(fit.balls):
        members = fit.ball == number
        ratio = np.median(100 * vacuum.height[members] / height[members])
        print(f"{ball:12s} {np.median(e[members]):.4f}    {vacuum.e[number]:.4f} {'':12s} {ratio:.4f}")


def write(out: Path, rows: list[dict], fit: Fit, vacuum: Fit, settings: str) -> None:
    """balls.csv: a row a ball; drops.csv: a row a drop; results.npz: arrays of both fits, `settings` as JSON."""
    drops = [
        {
            "ball": drop.ball,
            "drop_height_cm": drop.drop_height_cm,
            "drop": drop.drop,
            "contacts": len(drop.times),
            "rejected": len(drop.times) - (fit.index[d] >= 0).sum(),
            "height_cm": 100 * fit.height[d],
            "offset_ms": 1e3 * fit.offset[d],
            "rms_ms": 1e3 * np.sqrt(np.nanmean(fit.residual[d] ** 2)),
            "rms_without_drag_ms": 1e3 * np.sqrt(np.nanmean(vacuum.residual[d] ** 2)),
        }
        for d, drop in enumerate(fit.drops)
    ]
    for name, content in (("balls.csv", rows), ("drops.csv", drops)):
        with open(out / name, "w", newline="") as file:
            table = csv.DictWriter(file, list(content[0]), lineterminator="\n")
            table.writeheader()
            for row in content:
                table.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    arrays = {}
    for name, which in (("", fit), ("_without_drag", vacuum)):
        for key in (
            "e",
            "c",
            "covariance",
            "clustered",
            "height",
            "offset",
            "index",
            "model",
            "residual",
            "surprise",
            "noise",
        ):
            arrays[key + name] = getattr(which, key)
    arrays |= {"balls": np.array(fit.balls), "ball": fit.ball, "history": fit.history}
    np.savez(out / "results.npz", settings=settings, **arrays)
