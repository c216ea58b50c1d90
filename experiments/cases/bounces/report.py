"""What the fits say: tables and remarks in print, fits.csv, results.npz."""

import csv
from pathlib import Path

import numpy as np
from scipy.stats import median_abs_deviation

from .data import LABEL

FALL = 0.005  # fall of e from the lowest to the highest drops worth a remark: the usual scatter from drop to drop,
CLEAR = 2  # and by this many times the spread at either height: not chance
SHARED = "drops  e       spread    std.err.  rms ms  contacts  rejected  missed"


def grouped(fits: list[dict], *names: str) -> dict[tuple, list[dict]]:
    """Fits by the values that they have under these names, in order of first appearance."""
    groups: dict = {}
    for fit in fits:
        groups.setdefault(tuple(fit[name] for name in names), []).append(fit)
    return groups


def column(fits: list[dict], name: str) -> np.ndarray:
    return np.array([fit[name] for fit in fits])


def median(fits: list[dict], name: str) -> float:
    return np.median(column(fits, name))


def spread(fits: list[dict]) -> float:
    """Robust standard deviation of e."""
    return median_abs_deviation(column(fits, "e"), scale="normal")


def numbers(fits: list[dict]) -> str:
    """The columns SHARED of a group of drops."""
    rms = 1e3 * np.sqrt(np.mean(np.concatenate([fit["residual"] for fit in fits]) ** 2))
    contacts, rejected, missed = (column(fits, name).sum() for name in ("contacts", "rejected", "missed"))
    return (
        f"{len(fits):5d}  {median(fits, 'e'):.4f} {spread(fits):8.4f} {median(fits, 'e_error'):8.4f} {rms:8.1f} "
        f"{contacts:9d} {rejected:9d} {missed:7d}"
    )


def print_tables(fits: list[dict]) -> None:
    print(f"\n{'ball':12s} {'drop cm':>7s}  {SHARED}   H cm (H/drop)")
    for (ball, nominal), group in sorted(grouped(fits, "ball", "drop_height_cm").items()):
        height = median(group, "height_cm")
        print(f"{ball:12s} {nominal:7g}  {numbers(group)}   {height:6.1f} ({height / nominal:.3f})")
    print(f"\n{'ball':12s} {'':7s}  {SHARED}   ratio of successive intervals")
    for (ball,), group in grouped(fits, "ball").items():
        ratios = [np.diff(fit["times"])[1:] / np.diff(fit["times"])[:-1] for fit in group]
        print(f"{ball:12s} {'':7s}  {numbers(group)}   {np.median(np.concatenate(ratios)):.4f}")
    print("\ne, H: medians over the drops; spread: robust standard deviation over the drops; std.err.: median standard")
    print(
        "error of one drop, numerical error included; rejected: recorded, not simulated; missed: simulated, not "
        "recorded"
    )


def print_remarks(fits: list[dict], unusable: list) -> None:
    """What a reader must know to judge the tables."""
    for (ball,), group in grouped(fits, "ball").items():
        heights = grouped(group, "drop_height_cm")
        low, high = min(heights), max(heights)
        fall = median(heights[low], "e") - median(heights[high], "e")
        if fall > max(FALL, CLEAR * spread(heights[low]), CLEAR * spread(heights[high])):
            print(
                f"{ball}: e falls by {fall:.3f} from drops of {low[0]:g} cm to {high[0]:g} cm. A constant e in vacuo "
                "cannot do"
            )
            print("    that; air drag, which the model leaves out, lowers the apparent e of fast light balls.")
    for drop, why in unusable:
        print(f"not used: {drop.label}: {why}")
    for fit in fits:
        if fit["status"] != "ok":
            print(f"{LABEL.format(**fit)}: {fit['status']}")
    h, moved = 1e3 * column(fits, "by_step")[..., 0], np.abs(column(fits, "e_moved_by_extrapolation"))
    moves = f"{np.median(moved):.1e} (median), {moved.max():.1e} (largest)"
    print(f"steps h = {h.min():.2f}..{h.max():.2f} ms; extrapolation from the finest to h = 0 moved e by {moves}")
    off = column(fits, "closed_form_difference_ms")
    print("check: extrapolated contact times differ from those of the closed form in vacuo by")
    print(f"    {np.median(off):.2f} ms (median over drops of the largest difference), {off.max():.2f} ms (largest)")


def print_truth(fits: list[dict]) -> None:
    """Fits against the truth, where that is known."""
    known = [fit for fit in fits if np.isfinite(fit["truth"][0])]
    if known:
        print(f"\n{'drop':28s} {'e':>7s} {'true':>7s} error/s.e.   {'H cm':>7s} {'true':>7s} error/s.e.")
    for fit in known:
        e, height, (true_e, true_height) = fit["e"], fit["height_cm"], fit["truth"]
        z, z_height = (e - true_e) / fit["e_error"], (height - true_height) / fit["height_error_cm"]
        print(f"{LABEL.format(**fit):28s} {e:7.4f} {true_e:7.4f} {z:10.1f}   ", end="")
        print(f"{height:7.2f} {true_height:7.2f} {z_height:10.1f}")


def write(out: Path, fits: list[dict], unusable: list, settings: str) -> None:
    """fits.csv: numbers and names, a row for every drop of the file. results.npz: arrays as well, padded with NaN."""
    names = [name for name, value in fits[0].items() if np.ndim(value) == 0]
    others = [vars(drop) | {"status": f"not used: {why}", "contacts": len(drop.times)} for drop, why in unusable]
    with open(out / "fits.csv", "w", newline="") as file:
        table = csv.DictWriter(file, names, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        for row in fits + others:
            table.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    arrays = {name: column(fits, name) for name in (*names, "truth", "covariance", "by_step")}
    for name in ("times", "index", "residual"):
        length = max(len(fit[name]) for fit in fits)
        arrays[name] = np.array([np.append(fit[name], [np.nan] * (length - len(fit[name]))) for fit in fits])
    np.savez(out / "results.npz", settings=settings, **arrays)
