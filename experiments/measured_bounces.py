"""Restitution and release height of measured bouncing balls, by simulating every drop hundreds of times.

The data are times of contact with the floor, a row each: ball, drop_height_cm, drop, bounce, time_s. Every drop is
simulated with the Paoli-Schatzman scheme for hundreds of pairs (restitution e, release height H) and three steps h, all
drops in one call of `jaximpact.ensemble`, in two rounds: over a wide box, then over a small box around the best pair.
The contact times are extrapolated to h = 0 and compared with the measured ones by a loss that forgives missed contacts
and extra ones. Written to the output folder: fits.csv (a row a drop), results.npz, figure.png.

    python experiments/measured_bounces.py                              # the synthetic file, with known truth
    python experiments/measured_bounces.py --data bounce_times.csv      # measured drops
    python experiments/measured_bounces.py --data bounce_times.csv --drops 6
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import least_squares

import jaximpact as ji

GRAVITY = 9.81  # [m/s^2]
COLUMNS = ("ball", "drop_height_cm", "drop", "bounce", "time_s")
SYNTHETIC = Path(__file__).parent / "data" / "synthetic_bounces.csv"
ROWS = 512  # saved rows of a trajectory; a flight shorter than SHORTEST of them ends the usable contacts
SHORTEST = 3.5
STEPS = ((1024, 2048, 4096), (8192, 16384, 32768))  # steps of a trajectory, round 1 and round 2: multiples of ROWS
BOX_E, BOX_H = (0.5, 0.98), (0.5, 1.35)  # round 1: restitution, release height / nominal height
HALF_E, HALF_H = 0.03, 0.15  # round 2: half-widths around the best pair, in log e and log H
EXTRA, MISSED = 8.0, 4.1  # cost of a measured contact left out and of a simulated one, a perfect match costing 0
GROUPS = 6  # independent groups of lanes that tell the numerical error
FIRST_SCALE = 20e-3  # scale of the loss while the pair is only roughly known [s]
POOR = 15e-3  # a drop whose timing misfit exceeds this is reported [s]
HUBER = 1.345  # the loss turns from quadratic to linear at this many scales


@dataclass
class Drop:
    """One recorded drop: contact times [s] from the first contact."""

    ball: str
    nominal: float  # nominal height [m]
    number: str
    times: np.ndarray

    @property
    def label(self) -> str:
        return f"{self.ball} {100 * self.nominal:g} cm drop {self.number}"


@dataclass
class Fit:
    """Best restitution and release height of one drop; ``index`` is the contact number of each measured contact."""

    e: float
    height: float
    covariance: np.ndarray
    index: np.ndarray  # -1 where the contact was rejected
    residual: np.ndarray  # measured minus simulated time [s], of every contact that was not rejected
    scale: float  # scale of the loss [s]
    edge: bool  # the optimum lies outside the box of round 2
    closed_form: float  # largest difference of a contact time from that of a ball in vacuo, the same e and H [s]
    by_step: np.ndarray = field(default_factory=lambda: np.empty((0, 3)))  # rows (h [s], e, H) of the fits at h > 0

    @property
    def rms(self) -> float:
        return float(np.sqrt(np.mean(self.residual**2)))

    @property
    def errors(self) -> np.ndarray:
        """Standard errors of e and H."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def trouble(self) -> str:
        """Why the fit should not be trusted; empty where nothing speaks against it."""
        reasons = [f"rms {1e3 * self.rms:.0f} ms"] if self.rms > POOR else []
        if 3 * self.rejected > len(self.index):
            reasons.append(f"{self.rejected} of {len(self.index)} contacts rejected")
        return ", ".join(reasons + ["outside the box of round 2"] * self.edge)

    @property
    def rejected(self) -> int:
        return int(np.sum(self.index < 0))

    @property
    def missed(self) -> int:
        """Simulated contacts between the matched ones that were not recorded."""
        return int(self.index.max() + 1 - np.sum(self.index >= 0))


# ---------------------------------------------------------------------------------------------------- reading


def read_drops(path) -> tuple[list[Drop], list[tuple[Drop, str]]]:
    """Drops of a CSV file in the order of the file, and those that cannot be used with the reason.

    Raises ValueError naming file, line and column for anything that is not a table of contact times.
    """
    path = Path(path)
    found: dict[tuple, list[float]] = {}
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(
                f"{path}, line 1: missing column {missing[0]!r}; the columns must be {', '.join(COLUMNS)}, "
                f"got {', '.join(reader.fieldnames or ()) or 'an empty file'}"
            )
        for row in reader:

            def fail(column, message, line=reader.line_num):
                raise ValueError(f"{path}, line {line}, column {column!r}: {message}")

            def number(column, row=row, fail=fail):
                try:
                    value = float(row[column])
                except (TypeError, ValueError):
                    fail(column, f"expected a number, got {row[column]!r}")
                if not math.isfinite(value):
                    fail(column, f"expected a finite number, got {row[column]!r}")
                return value

            ball, name = ((row[column] or "").strip() for column in ("ball", "drop"))
            height, bounce, now = number("drop_height_cm"), number("bounce"), number("time_s")
            if not ball or not name:
                fail("drop" if ball else "ball", "empty name")
            if height <= 0:
                fail("drop_height_cm", f"must be positive, got {height:g}")
            if bounce < 0 or bounce != int(bounce):
                fail("bounce", f"must be a whole number >= 0, got {row['bounce']}")
            if now < 0:
                fail("time_s", f"must not be negative, got {now:g}")
            times = found.setdefault((ball, height / 100, name), [])
            if times and now <= times[-1]:
                fail("time_s", f"{now:g} does not come after {times[-1]:g}, the contact before it in this drop")
            times.append(now)
    if not found:
        raise ValueError(f"{path}: no rows below the header")
    drops = [Drop(*key, np.array(times) - times[0]) for key, times in found.items()]
    unusable = [(drop, f"only {len(drop.times)} contacts, 3 are needed") for drop in drops if len(drop.times) < 3]
    return [drop for drop in drops if len(drop.times) >= 3], unusable


def read_truth(data: Path) -> dict[tuple, tuple[float, float]]:
    """(e, height [m]) by (ball, nominal height [m], drop) from X_truth.csv beside X_bounces.csv; empty where absent."""
    path = data.with_name(data.name.replace("_bounces", "_truth"))
    if path == data or not path.exists():
        return {}
    with open(path, newline="", encoding="utf-8-sig") as file:
        return {
            (row["ball"], float(row["drop_height_cm"]) / 100, row["drop"]): (
                float(row["e"]),
                float(row["height_cm"]) / 100,
            )
            for row in csv.DictReader(file)
        }


# ---------------------------------------------------------------------------------------------------- simulating


def gravity(t, q, v, args):
    return -args["g"] * jnp.ones_like(q)


def floor(t, q, args):
    return q


def next_contact(t, q, v, args):
    """When the present flight reaches the floor: v belongs to the middle of the step that ends at t."""
    g = args["g"]
    v = v[0] - 0.5 * args["h"] * g
    return t + (v + jnp.sqrt(jnp.maximum(v**2 + 2 * g * q[0], 0))) / g


BALL = ji.Problem(gravity, floor)


def simulate(e: np.ndarray, height: np.ndarray, horizon: np.ndarray, steps: int) -> np.ndarray:
    """Contact times since the first contact [s], NaN after the last usable one: shape (*e.shape, contacts).

    One batch for all drops and all pairs: e, height [m] and horizon [s] have one shape, and time runs in units of each
    drop's horizon, so that all lanes run over [0, 1] in the same number of steps. Trajectories are not stored. Between
    two contacts the scheme's positions lie on a parabola exactly, so the time of the *next* contact, saved ROWS times,
    is a staircase whose levels are the contact times.
    """
    h = 1.0 / steps
    solution = ji.ensemble(
        BALL,
        height.reshape(-1, 1),
        np.zeros((height.size, 1)),
        t1=1.0,
        h=h,
        e=e.ravel(),
        args={"g": GRAVITY * horizon.ravel() ** 2, "h": h},
        args_axes={"g": 0, "h": None},
        scheme=ji.PaoliSchatzman(),
        save=ji.Save(every=steps // ROWS, function=next_contact),
    ).raise_if_failed()
    contacts = levels(solution.values[:, 1:])  # row 0 is the start, where v is not yet that of a step
    return (contacts - contacts[:, :1]).reshape(*e.shape, -1) * horizon[..., None]


def simulate_steps(e, height, horizon, steps: tuple[int, ...]) -> np.ndarray:
    """`simulate` for each number of steps, cut to the contacts that all have: shape (len(steps), *e.shape, contacts)."""
    found = [simulate(e, height, horizon, n) for n in steps]
    return np.stack([contacts[..., : min(x.shape[-1] for x in found)] for contacts in found])


def levels(staircase: np.ndarray) -> np.ndarray:
    """Levels of each row of a staircase sampled at 1/ROWS, 2/ROWS, ..., 1; NaN after the last flight long enough."""
    same = np.abs(np.diff(staircase, axis=1)) < 1e-7
    starts = same & ~np.pad(same, ((0, 0), (1, 0)))[:, :-1]
    lane, column = np.nonzero(starts)
    position = np.cumsum(starts, axis=1)[lane, column] - 1
    found = np.full((len(staircase), position.max(initial=0) + 1), np.nan)
    found[lane, position] = staircase[lane, column]
    found[:, 1:][~np.logical_and.accumulate(np.diff(found, axis=1) > SHORTEST / ROWS, axis=1)] = np.nan
    return found


def lattice(count: int) -> np.ndarray:
    """Points (count, 2) spread evenly over [-1, 1]^2, no two with the same coordinate (Kronecker's sequence).

    The phase of an impact within its step changes the rebound by O(h); with no two lanes alike it averages out.
    """
    ratio = 1.32471795724474602596  # root of x^3 = x + 1
    return 2 * ((0.5 + np.outer(np.arange(count), [1 / ratio, 1 / ratio**2])) % 1) - 1


def to_zero(values: np.ndarray, steps: tuple[int, ...]) -> np.ndarray:
    """Values (len(steps), ...) at h ~ 1/steps extrapolated linearly to h = 0, with weights 1/h^2: the scatter is O(h)."""
    h = 1 / np.asarray(steps, float)
    design = np.stack([np.ones_like(h), h], axis=1)
    return np.tensordot(np.linalg.pinv(design / h[:, None])[0] / h, values, axes=1)


# ---------------------------------------------------------------------------------------------------- comparing


def huber(x):
    """Huber's loss, quadratic within HUBER and linear beyond."""
    x = np.abs(x)
    return np.where(x < HUBER, 0.5 * x**2, HUBER * (x - 0.5 * HUBER))


def match(measured: np.ndarray, model: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Ordered matching of measured contacts (n,) with those of lanes (lanes, m): costs (lanes,), indices of the best lane.

    Times run from the first contact, and the first measured is the first simulated. A match costs Huber's loss of the
    difference over ``scale``. Leaving out a measured contact (an extra trigger) costs EXTRA, so outliers saturate and a
    match further off than about 6 scales is never made; leaving out a simulated contact before a matched one (a missed
    trigger) costs MISSED. Both are constants, so neither pulls e or H. That a miss is not free matters: with e -> 1 or a
    small H contacts become so dense that some lie near every measured one, and nearest neighbours would choose that. With
    two misses dearer than one extra, a lone late contact is not explained by a gap of two or more before it.
    Simulated contacts after the last match are free: recording stops there.
    """
    lanes, m = model.shape
    skip = MISSED * np.arange(m)
    best = skip + np.zeros((lanes, 1))  # [lane, j]: cheapest way to have dealt with contacts 0..i and 0..j
    moves = np.full((len(measured), lanes, m), 2, np.int8)  # 0: match, 1: leave out measured, 2: leave out simulated
    moves[0, :, 0] = 0
    for i in range(1, len(measured)):
        off = np.where(np.isnan(model), np.inf, np.abs(model - measured[i]))
        matched = np.pad(best[:, :-1], ((0, 0), (1, 0)), constant_values=np.inf) + huber(off / scale)
        direct = np.minimum(matched, best + EXTRA)
        moves[i] = np.where(matched <= best + EXTRA, 0, 1)
        best = np.minimum.accumulate(direct - skip, axis=1) + skip
        moves[i][direct > best + 1e-9] = 2
    end = np.argmin(best, axis=1)
    total = best[np.arange(lanes), end]
    lane = int(np.argmin(total))
    index = np.full(len(measured), -1)
    i, j = len(measured) - 1, end[lane]
    while i >= 0 and j >= 0:
        step = moves[i, lane, j]
        if step == 0:
            index[i] = j
        i, j = i - (step != 2), j - (step != 1)
    return total, index


@dataclass
class Surface:
    """Flight times of one drop as a smooth function of (e, H), fitted to the lanes of one step: log-quadratic."""

    centre: tuple[float, float]
    coefficients: np.ndarray  # (flights, 6)

    def times(self, x: float, y: float) -> np.ndarray:
        """Contact times from the first contact, at log e and log H displaced by x and y from the centre."""
        return np.concatenate([[0.0], np.cumsum(np.exp(self.coefficients @ basis(x, y)))])


def basis(x, y):
    return np.stack([np.ones_like(x), x, y, x**2, x * y, y**2])


def surface(e: np.ndarray, height: np.ndarray, contacts: np.ndarray, centre: tuple[float, float]) -> Surface:
    """The surface through the flights of lanes (lanes, m); the impacts' phase noise averages out over the lanes."""
    design = basis(np.log(e / centre[0]), np.log(height / centre[1])).T
    flights = np.log(np.diff(contacts, axis=1))
    rows = []
    for flight in flights.T:
        seen = np.isfinite(flight)
        if seen.sum() < 0.6 * len(e):
            break
        rows.append(np.linalg.lstsq(design[seen], flight[seen], rcond=None)[0])
    return Surface(centre, np.array(rows).reshape(-1, 6))


def refine(measured: np.ndarray, model: Surface, start: np.ndarray, index: np.ndarray, scale: float):
    """Minimise the robust loss over (log e, log H, timing error of the first contact), the matching held fixed."""
    used = np.flatnonzero(index >= 0)

    def residual(p):
        times = model.times(p[0], p[1])
        return (measured[used] + p[2] - times[index[used]]) / scale

    return least_squares(residual, start, loss="huber", f_scale=HUBER, x_scale=(1e-3, 1e-3, 1e-3))


def fit_drop(drop: Drop, model: Surface, jitter: float) -> Fit:
    """Fit one drop: the first few contacts, then ever more of them, each time matching anew.

    Matched all at once, a slightly wrong e would pair late contacts, which are close together, with their neighbours.
    The scale of the loss follows the spread of the residuals down to the jitter of the trigger.
    """
    at, scale = np.zeros(3), FIRST_SCALE
    for n in [*range(5, len(drop.times)), *[len(drop.times)] * 4]:
        times = drop.times[:n]
        index = match(times + at[2], model.times(at[0], at[1])[None], scale)[1]
        found = refine(times, model, at, index, scale)
        at = found.x
        # the median over all measured contacts: a scale that knew only those matched would lock onto a few of them
        off = np.abs(times + at[2] - model.times(at[0], at[1])[:, None]).min(axis=0)
        used, scale = scale, float(np.clip(1.48 * np.median(off), max(jitter, 0.5 * scale), FIRST_SCALE))
    return summary(drop, model, found, index, used, jitter)


def summary(drop: Drop, model: Surface, found, index: np.ndarray, scale: float, jitter: float) -> Fit:
    """The fit at the optimum, with standard errors from the curvature of the loss and the spread of the residuals."""
    x, y, offset = found.x
    times = model.times(x, y)
    used = np.flatnonzero(index >= 0)
    residual = drop.times[used] + offset - times[index[used]]
    spread = max(jitter, float(np.sqrt(np.sum(residual**2) / max(len(used) - 3, 1))))
    # inverse of the Gauss-Newton Hessian (J'J of the robust loss); its (e, H) block has the offset profiled out
    covariance = np.linalg.pinv(found.jac.T @ found.jac) * (spread / scale) ** 2
    e, height = model.centre[0] * math.exp(x), model.centre[1] * math.exp(y)
    natural = np.diag([e, height])
    flights = 2 * math.sqrt(2 * height / GRAVITY) * e ** np.arange(1, index.max() + 1)
    closed_form = float(np.abs(times[1 : index.max() + 1] - np.cumsum(flights)).max(initial=0))
    edge = bool(abs(x) > HALF_E or abs(y) > HALF_H)
    return Fit(e, height, natural @ covariance[:2, :2] @ natural, index, residual, scale, edge, closed_form)


def fit_all(drops: list[Drop], lanes: int, jitter: float, say) -> tuple[list[Fit], np.ndarray]:
    """Two rounds of simulation; the fits, and the pairs (e, H) that round 1 found."""
    nominal = np.array([drop.nominal for drop in drops])[:, None]
    last = np.array([drop.times[-1] for drop in drops])[:, None]
    horizon = 1.08 * last + np.sqrt(2 * BOX_H[1] * nominal / GRAVITY) + np.zeros(lanes)
    points = lattice(lanes).T

    start = time.perf_counter()
    e = np.mean(BOX_E) + 0.5 * np.ptp(BOX_E) * points[0] + 0 * nominal
    height = nominal * (np.mean(BOX_H) + 0.5 * np.ptp(BOX_H) * points[1])
    contacts = to_zero(simulate_steps(e, height, horizon, STEPS[0]), STEPS[0])
    coarse = np.empty((len(drops), 2))
    for i, drop in enumerate(drops):
        few = Drop(drop.ball, drop.nominal, drop.number, drop.times[:8])
        best = np.argmin(match(few.times, contacts[i][:, :20], FIRST_SCALE)[0])
        near = np.abs(np.log(e[i] / e[i, best])) < 0.12
        model = surface(e[i][near], height[i][near], contacts[i][near], (e[i, best], height[i, best]))
        found = fit_drop(few, model, 5 * jitter)
        coarse[i] = min(found.e, 0.999 * math.exp(-HALF_E)), found.height
    say(f"round 1: {len(STEPS[0]) * e.size} trajectories, {time.perf_counter() - start:.1f} s")

    start = time.perf_counter()
    e = coarse[:, :1] * np.exp(HALF_E * points[0])
    height = coarse[:, 1:] * np.exp(HALF_H * points[1])
    by_step = simulate_steps(e, height, horizon, STEPS[1])
    contacts = to_zero(by_step, STEPS[1])
    say(f"round 2: {len(STEPS[1]) * e.size} trajectories, {time.perf_counter() - start:.1f} s")
    fits = []
    for i, drop in enumerate(drops):
        centre = (coarse[i, 0], coarse[i, 1])
        fit = fit_drop(drop, surface(e[i], height[i], contacts[i], centre), jitter)

        def refit(times, part=slice(None), i=i, drop=drop, fit=fit, centre=centre):
            model = surface(e[i, part], height[i, part], times[part], centre)
            known = np.where(fit.index <= len(model.coefficients), fit.index, -1)
            return np.array(centre) * np.exp(refine(drop.times, model, np.zeros(3), known, fit.scale).x[:2])

        fit.by_step = np.array([[horizon[i, 0] / n, *refit(by_step[k, i])] for k, n in enumerate(STEPS[1])])
        # what is left of the phase noise: fits to disjoint groups of lanes scatter with it
        groups = np.array([refit(contacts[i], slice(k, None, GROUPS)) for k in range(GROUPS)])
        fit.covariance = fit.covariance + np.cov(groups.T) / GROUPS
        fits.append(fit)
    return fits, coarse


# ---------------------------------------------------------------------------------------------------- reporting


def spread(values) -> float:
    """Robust standard deviation."""
    return float(1.48 * np.median(np.abs(values - np.median(values))))


def grouped(drops, fits, key):
    """Pairs (drop, fit) by key(drop), in order of first appearance."""
    groups: dict = {}
    for drop, fit in zip(drops, fits, strict=True):
        groups.setdefault(key(drop), []).append((drop, fit))
    return groups


def numbers(pairs) -> str:
    """The columns that a group of drops has in both tables: drops, e, its spread, standard error, rms, contacts."""
    fits = [fit for _, fit in pairs]
    e = [fit.e for fit in fits]
    rms = math.sqrt(np.mean(np.concatenate([fit.residual for fit in fits]) ** 2))
    return (
        f"{len(fits):5d}  {np.median(e):.4f} {spread(e):8.4f} {np.median([fit.errors[0] for fit in fits]):8.4f}"
        f" {1e3 * rms:8.1f} {sum(len(fit.index) for fit in fits):9d} {sum(fit.rejected for fit in fits):9d}"
        f" {sum(fit.missed for fit in fits):7d}"
    )


def report(drops, unusable, fits, truth) -> None:
    """Print the tables and what a reader must know to judge them."""
    shared = "drops  e       spread    std.err.  rms ms  contacts  rejected  missed"
    print(f"\n{'ball':12s} {'drop cm':>7s}  {shared}   H cm (H/drop)")
    for (ball, nominal), pairs in sorted(grouped(drops, fits, lambda d: (d.ball, d.nominal)).items()):
        height = np.median([fit.height for _, fit in pairs])
        print(f"{ball:12s} {100 * nominal:7g}  {numbers(pairs)}   {100 * height:6.1f} ({height / nominal:.3f})")
    print(f"\n{'ball':12s} {'':7s}  {shared}   ratio of successive intervals")
    for ball, pairs in grouped(drops, fits, lambda d: d.ball).items():
        ratios = [np.diff(drop.times)[1:] / np.diff(drop.times)[:-1] for drop, _ in pairs]
        print(f"{ball:12s} {'':7s}  {numbers(pairs)}   {np.median(np.concatenate(ratios)):.4f}")
    print(
        "\ne, H: medians over the drops; spread: robust standard deviation over the drops; std.err.: median standard error"
        "\nof one drop, from timing alone; rejected: recorded, not simulated; missed: simulated, not recorded."
    )
    for ball, pairs in grouped(drops, fits, lambda d: d.ball).items():
        by_height = {n: [f.e for _, f in g] for n, g in grouped(*zip(*pairs, strict=True), lambda d: d.nominal).items()}
        low, high = min(by_height), max(by_height)
        fall = np.median(by_height[low]) - np.median(by_height[high])
        if fall > max(0.005, 2 * spread(by_height[low]), 2 * spread(by_height[high])):
            print(
                f"{ball}: e falls by {fall:.3f} from drops of {100 * low:g} cm to {100 * high:g} cm. A constant e in "
                "vacuo cannot do that;\n    air drag, which the model leaves out, lowers the apparent e of fast light balls."
            )
    for drop, why in unusable:
        print(f"not used: {drop.label}: {why}")
    for pairs in grouped(drops, fits, lambda d: (d.ball, d.nominal)).values():
        usual = np.median([fit.height for _, fit in pairs])
        for drop, fit in pairs:
            if len(pairs) > 2 and abs(fit.height / usual / fit.e**2 - 1) < abs(fit.height / usual - 1) / 3:
                print(
                    f"first contact missed? {drop.label}: H = {100 * fit.height:.1f} cm is e^2 times that of its "
                    f"neighbours ({100 * usual:.1f} cm)"
                )
    for drop, fit in zip(drops, fits, strict=True):
        if fit.trouble:
            print(f"poor fit: {drop.label}: {fit.trouble}")
    h = 1e3 * np.array([fit.by_step[:, 0] for fit in fits])
    moved = np.array([fit.e - fit.by_step[:, 1] for fit in fits])
    print(
        f"steps h = {h[:, -1].min():.2f}..{h[:, 0].max():.2f} ms; extrapolation to h = 0 moved e from its value at the "
        f"finest step by {np.median(np.abs(moved[:, -1])):.1e} (median), {np.abs(moved[:, -1]).max():.1e} (largest)\n"
        f"check: extrapolated contact times differ from those of the closed form in vacuo by "
        f"{1e3 * np.median([fit.closed_form for fit in fits]):.2f} ms (median over drops of the largest difference), "
        f"{1e3 * max(fit.closed_form for fit in fits):.2f} ms (largest)"
    )
    known = [(d, f, *truth[d.ball, d.nominal, d.number]) for d, f in zip(drops, fits, strict=True)
             if (d.ball, d.nominal, d.number) in truth]  # fmt: skip
    if known:
        print(
            f"\n{'drop':28s} {'e':>7s} {'true':>7s} {'error/s.e.':>10s}   {'H cm':>7s} {'true':>7s} {'error/s.e.':>10s}"
        )
        for drop, fit, e, height in known:
            z = (np.array([fit.e, fit.height]) - [e, height]) / fit.errors
            print(
                f"{drop.label:28s} {fit.e:7.4f} {e:7.4f} {z[0]:10.1f}   {100 * fit.height:7.2f} {100 * height:7.2f} {z[1]:10.1f}"
            )


def write(out: Path, drops, unusable, fits, coarse, settings: dict) -> None:
    """fits.csv, a row for every drop of the file, and results.npz."""
    with open(out / "fits.csv", "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(
            ["ball", "drop_height_cm", "drop", "status", "contacts", "rejected", "missed", "e", "e_error", "height_cm"]
            + ["height_error_cm", "rms_ms", "scale_ms", "e_round1", "height_round1_cm"]
            + [f"{name}_step{k}" for k in (1, 2, 3) for name in ("h_ms", "e", "height_cm")]
            + ["e_moved_by_extrapolation", "closed_form_difference_ms"]
        )
        for drop, fit, first in zip(drops, fits, coarse, strict=True):
            state = f"poor: {fit.trouble}" if fit.trouble else "ok"
            values = [fit.e, fit.errors[0], 100 * fit.height, 100 * fit.errors[1], 1e3 * fit.rms, 1e3 * fit.scale]
            values += [first[0], 100 * first[1], *(fit.by_step * [1e3, 1, 100]).ravel()]
            values += [fit.e - fit.by_step[-1, 1], 1e3 * fit.closed_form]
            counts = [len(drop.times), fit.rejected, fit.missed]
            head = [drop.ball, f"{100 * drop.nominal:g}", drop.number, state, *counts]
            table.writerow(head + [f"{value:.6g}" for value in values])
        for drop, why in unusable:
            table.writerow([drop.ball, f"{100 * drop.nominal:g}", drop.number, f"not used: {why}", len(drop.times)])
    width = max(len(fit.index) for fit in fits)
    np.savez(
        out / "results.npz",
        ball=[drop.ball for drop in drops],
        nominal=[drop.nominal for drop in drops],
        drop=[drop.number for drop in drops],
        times=[np.pad(drop.times, (0, width - len(drop.times)), constant_values=np.nan) for drop in drops],
        contact=[np.pad(fit.index, (0, width - len(fit.index)), constant_values=-2) for fit in fits],
        e=[fit.e for fit in fits],
        height=[fit.height for fit in fits],
        covariance=[fit.covariance for fit in fits],
        by_step=[fit.by_step for fit in fits],
        round1=coarse,
        rms=[fit.rms for fit in fits],
        settings=json.dumps(settings),
    )


def figure(path: Path, drops, fits) -> None:
    """A column a ball: intervals with the model's, timing residuals, and e against drop height."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    balls = grouped(drops, fits, lambda d: d.ball)
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    fig, axes = plt.subplots(3, len(balls), figsize=(3.5 * len(balls) + 0.6, 8.6), squeeze=False, layout="constrained")
    for column, (ball, pairs) in zip(axes.T, balls.items(), strict=True):
        heights = sorted({drop.nominal for drop, _ in pairs})
        colours = dict(zip(heights, plt.cm.viridis(np.linspace(0.05, 0.85, len(heights))), strict=True))
        position = {height: k for k, height in enumerate(heights)}
        intervals, residuals, restitution = column
        for height in heights:
            group = [(drop, fit) for drop, fit in pairs if drop.nominal == height]
            colour = colours[height]
            for drop, fit in group:
                used = np.flatnonzero(fit.index >= 0)
                number, when = fit.index[used], drop.times[used]
                single = np.diff(number) == 1
                intervals.plot(number[1:][single], np.diff(when)[single], ".", ms=5, alpha=0.5, color=colour, mew=0)
                residuals.plot(number, 1e3 * fit.residual, ".-", ms=3, lw=0.7, alpha=0.6, color=colour, mew=0)
            e, release = (np.median([getattr(fit, name) for _, fit in group]) for name in ("e", "height"))
            k = np.arange(1, max(fit.index.max() for _, fit in group) + 1)
            model = 2 * np.sqrt(2 * release / GRAVITY) * e**k
            intervals.plot(k, model, "-", lw=1.1, color=colour, label=f"{100 * height:g} cm")
            x = position[height] + 0.5 * (np.arange(len(group)) + 0.5 - len(group) / 2) / max(len(group), 4)
            values, errors = np.array([[fit.e, fit.errors[0]] for _, fit in group]).T
            restitution.errorbar(x, values, errors, fmt="o", ms=3, lw=0.9, color=colour)
            restitution.hlines(e, position[height] - 0.35, position[height] + 0.35, color=colour, lw=1.4, alpha=0.6)
        rejected = sum(fit.rejected for _, fit in pairs)
        intervals.set_title(
            f"{ball}: {len(pairs)} drops, e = {np.median([fit.e for _, fit in pairs]):.3f}\n"
            f"{rejected} of {sum(len(fit.index) for _, fit in pairs)} contacts rejected",
            fontsize=10,
        )
        intervals.set_yscale("log")
        intervals.yaxis.set_major_locator(plt.FixedLocator([0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2]))
        intervals.yaxis.set_major_formatter(ScalarFormatter())
        intervals.yaxis.set_minor_locator(plt.NullLocator())
        intervals.legend(title="drop height", fontsize=8, title_fontsize=8, frameon=False, loc="lower left")
        residuals.axhline(0, color="0.6", lw=0.8, zorder=0)
        for axis in (intervals, residuals):
            axis.set_xlabel("contact number")
            axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        restitution.set_xticks(range(len(heights)), [f"{100 * height:g}" for height in heights])
        restitution.set_xlim(-0.6, len(heights) - 0.4)
        restitution.set_xlabel("drop height [cm]")
    axes[0, 0].set_ylabel("interval before the contact [s]\ndots: measured, lines: model")
    axes[1, 0].set_ylabel("measured minus simulated\ncontact time [ms]")
    axes[2, 0].set_ylabel("restitution e of each drop\nwith its standard error; line: median")
    fig.savefig(path, dpi=150)
    plt.close(fig)


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Every row of the data is one contact: ball (a name), drop_height_cm (nominal height of the ball's lowest "
        "point at\nrelease), drop (which repeat), bounce (0, 1, 2, ... the order of contacts), time_s (time of contact; "
        "only\ndifferences within a drop count). At least 3 contacts a drop. The heights are where the search starts: H is "
        "looked\nfor between 0.5 and 1.35 times the nominal one, e between 0.5 and 0.98.",
    )
    parser.add_argument("--data", type=Path, default=SYNTHETIC, help="CSV file of contact times (default: synthetic)")
    parser.add_argument("--out", type=Path, default=Path("out/measured_bounces"), help="folder to write to")
    parser.add_argument("--drops", type=int, help="use only this many drops, spread over the file, for a quick run")
    parser.add_argument("--lanes", type=int, default=240, help="pairs (e, H) per drop and round (default 240)")
    parser.add_argument("--jitter-ms", type=float, default=1.0, help="timing error of the trigger [ms] (default 1)")
    options = parser.parse_args(argv)
    if options.lanes < 10 * GROUPS or (options.drops is not None and options.drops < 1) or not options.jitter_ms > 0:
        parser.error(f"--lanes must be at least {10 * GROUPS}, --drops at least 1, --jitter-ms positive")
    jax.config.update("jax_enable_x64", True)
    try:
        drops, unusable = read_drops(options.data)
        truth = read_truth(options.data)
    except (OSError, ValueError) as error:
        parser.exit(2, f"error: {error}\n")
    if not drops:
        parser.exit(2, f"error: {options.data}: no drop has 3 contacts or more\n")
    if options.drops is not None:
        drops = [drops[i] for i in np.unique(np.linspace(0, len(drops) - 1, options.drops).round().astype(int))]
    options.out.mkdir(parents=True, exist_ok=True)

    def say(text):
        if sys.stderr.isatty():
            print(text, file=sys.stderr)

    start = time.perf_counter()
    fits, coarse = fit_all(drops, options.lanes, 1e-3 * options.jitter_ms, say)
    for drop, fit in zip(drops, fits, strict=True):
        if np.sum(fit.index >= 0) < 3:
            unusable.append((drop, "no simulated motion agrees with 3 of its contacts; is drop_height_cm right?"))
    fitted = [i for i, fit in enumerate(fits) if np.sum(fit.index >= 0) >= 3]
    if not fitted:
        parser.exit(2, f"error: {options.data}: {unusable[-1][0].label}: {unusable[-1][1]}\n")
    count = 2 * len(STEPS[0]) * options.lanes * len(drops)
    print(
        f"{options.data}: {len(drops)} drops, {sum(len(drop.times) for drop in drops)} contacts; simulated {count} "
        f"trajectories and fitted in {time.perf_counter() - start:.0f} s"
    )
    drops, fits, coarse = [drops[i] for i in fitted], [fits[i] for i in fitted], coarse[fitted]
    report(drops, unusable, fits, truth)
    settings = {"data": str(options.data), "lanes": options.lanes, "jitter_ms": options.jitter_ms, "gravity": GRAVITY}
    settings |= {"steps": STEPS, "box_e": BOX_E, "box_h": BOX_H, "half_e": HALF_E, "half_h": HALF_H}
    write(options.out, drops, unusable, fits, coarse, settings)
    figure(options.out / "figure.png", drops, fits)
    print(f"\nwrote {options.out}/fits.csv, results.npz, figure.png")


if __name__ == "__main__":
    main()
