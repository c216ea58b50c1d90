"""What the fits say: tables and remarks in print, fits.csv, results.npz."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .fit import SIGMA, Fit

NOTABLE_FALL = 0.005  # of e between the lowest and highest drops: the usual scatter from drop to drop
HEADER = (
    "ball,drop_height_cm,drop,status,contacts,rejected,missed,e,e_error,height_cm,height_error_cm,rms_ms,scale_ms,"
    "e_round1,height_round1_cm,h_ms_step1,e_step1,height_cm_step1,h_ms_step2,e_step2,height_cm_step2,h_ms_step3,"
    "e_step3,height_cm_step3,e_moved_by_extrapolation,closed_form_difference_ms"
)
SHARED = "drops  e       spread    std.err.  rms ms  contacts  rejected  missed"
LEGEND = """
e, H: medians over the drops; spread: robust standard deviation over the drops; std.err.: median standard error
of one drop, from timing alone; rejected: recorded, not simulated; missed: simulated, not recorded."""


def grouped(fits: list[Fit], key: Callable) -> dict:
    """Fits by key(drop), in order of first appearance."""
    groups: dict = {}
    for fit in fits:
        groups.setdefault(key(fit.drop), []).append(fit)
    return groups


def median_e(fits: list[Fit]) -> float:
    return float(np.median([fit.e for fit in fits]))


def spread_e(fits: list[Fit]) -> float:
    """Robust standard deviation of e over drops."""
    return SIGMA * float(np.median([abs(fit.e - median_e(fits)) for fit in fits]))


def numbers(fits: list[Fit]) -> str:
    """The columns SHARED of a group of drops."""
    rms = np.sqrt(np.mean(np.concatenate([fit.residual for fit in fits]) ** 2))
    contacts, rejected, missed = np.sum([(len(fit.index), fit.rejected, fit.missed) for fit in fits], axis=0)
    return (
        f"{len(fits):5d}  {median_e(fits):.4f} {spread_e(fits):8.4f} {np.median([fit.errors[0] for fit in fits]):8.4f}"
        f" {1e3 * rms:8.1f} {contacts:9d} {rejected:9d} {missed:7d}"
    )


def print_tables(fits: list[Fit]) -> None:
    print(f"\n{'ball':12s} {'drop cm':>7s}  {SHARED}   H cm (H/drop)")
    for (ball, nominal), group in sorted(grouped(fits, lambda drop: (drop.ball, drop.nominal)).items()):
        height = np.median([fit.height for fit in group])
        print(f"{ball:12s} {100 * nominal:7g}  {numbers(group)}   {100 * height:6.1f} ({height / nominal:.3f})")
    print(f"\n{'ball':12s} {'':7s}  {SHARED}   ratio of successive intervals")
    for ball, group in grouped(fits, lambda drop: drop.ball).items():
        intervals = [np.diff(fit.drop.times) for fit in group]
        ratio = np.median(np.concatenate([x[1:] / x[:-1] for x in intervals]))
        print(f"{ball:12s} {'':7s}  {numbers(group)}   {ratio:.4f}")
    print(LEGEND)


def print_remarks(fits: list[Fit], unusable: list) -> None:
    """What a reader must know to judge the tables."""
    for ball, group in grouped(fits, lambda drop: drop.ball).items():
        heights = grouped(group, lambda drop: drop.nominal)
        low, high = min(heights), max(heights)
        fall = median_e(heights[low]) - median_e(heights[high])
        if fall > max(NOTABLE_FALL, 2 * spread_e(heights[low]), 2 * spread_e(heights[high])):
            print(
                f"{ball}: e falls by {fall:.3f} from drops of {100 * low:g} cm to {100 * high:g} cm. A constant e in "
                "vacuo cannot do that;\n    air drag, which the model leaves out, lowers the apparent e of fast light balls."
            )
    for drop, why in unusable:
        print(f"not used: {drop.label}: {why}")
    for group in grouped(fits, lambda drop: (drop.ball, drop.nominal)).values():
        usual = np.median([fit.height for fit in group])
        for fit in group:
            off, off_if_missed = abs(fit.height / usual - 1), abs(fit.height / (usual * fit.e**2) - 1)
            if len(group) > 2 and off_if_missed < off / 3:
                print(
                    f"first contact missed? {fit.drop.label}: H = {100 * fit.height:.1f} cm is e^2 times that of its "
                    f"neighbours ({100 * usual:.1f} cm)"
                )
    for fit in fits:
        if fit.trouble:
            print(f"poor fit: {fit.drop.label}: {fit.trouble}")
    h = 1e3 * np.array([fit.by_step[:, 0] for fit in fits])
    moved = np.abs([fit.e - fit.by_step[-1, 1] for fit in fits])
    check = 1e3 * np.array([fit.closed_form for fit in fits])
    print(
        f"steps h = {h.min():.2f}..{h.max():.2f} ms; extrapolation to h = 0 moved e from its value at the finest step by "
        f"{np.median(moved):.1e} (median), {moved.max():.1e} (largest)\ncheck: extrapolated contact times differ from "
        f"those of the closed form in vacuo by {np.median(check):.2f} ms (median over drops of the largest difference), "
        f"{check.max():.2f} ms (largest)"
    )


def print_truth(fits: list[Fit]) -> None:
    """Fits against the truth, where that is known."""
    known = [fit for fit in fits if fit.drop.truth]
    if known:
        print(f"\n{'drop':28s} {'e':>7s} {'true':>7s} {'error/s.e.':>10s}   {'H cm':>7s} {'true':>7s} {'error/s.e.':>10s}")
    for fit in known:
        e, height = fit.drop.truth
        z = (np.array([fit.e, fit.height]) - [e, height]) / fit.errors
        print(
            f"{fit.drop.label:28s} {fit.e:7.4f} {e:7.4f} {z[0]:10.1f}   "
            f"{100 * fit.height:7.2f} {100 * height:7.2f} {z[1]:10.1f}"
        )


def write_csv(path: Path, fits: list[Fit], unusable: list) -> None:
    """A row for every drop of the file."""
    with open(path, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(HEADER.split(","))
        for fit in fits:
            state = f"poor: {fit.trouble}" if fit.trouble else "ok"
            values = [fit.e, fit.errors[0], 100 * fit.height, 100 * fit.errors[1], 1e3 * fit.rms, 1e3 * fit.scale]
            values += [fit.first[0], 100 * fit.first[1], *(fit.by_step * [1e3, 1, 100]).ravel()]
            values += [fit.e - fit.by_step[-1, 1], 1e3 * fit.closed_form]
            counts = [len(fit.index), fit.rejected, fit.missed]
            table.writerow([*fit.drop.names, state, *counts, *[f"{value:.6g}" for value in values]])
        for drop, why in unusable:
            table.writerow([*drop.names, f"not used: {why}", len(drop.times)])


def write_npz(path: Path, fits: list[Fit], settings: dict) -> None:
    """The fits as arrays, a row for each; contacts padded to one length with NaN and -2."""

    def padded(arrays, fill):
        width = max(len(array) for array in arrays)
        return [np.pad(array, (0, width - len(array)), constant_values=fill) for array in arrays]

    names = ("e", "height", "covariance", "by_step", "rms")
    np.savez(
        path,
        ball=[fit.drop.ball for fit in fits],
        nominal=[fit.drop.nominal for fit in fits],
        drop=[fit.drop.number for fit in fits],
        times=padded([fit.drop.times for fit in fits], np.nan),
        contact=padded([fit.index for fit in fits], -2),
        round1=[fit.first for fit in fits],
        settings=json.dumps(settings),
        **{name: [getattr(fit, name) for fit in fits] for name in names},
    )
