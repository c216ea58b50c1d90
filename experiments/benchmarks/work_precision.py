"""Error against cost of a trajectory, and of its Jacobian: the schemes over their step sizes or tolerances, Siconos,
diffrax and scipy on the same axes.

The error is the median over lanes of the distance of the final position from the exact one; lanes differ in their data,
so that impacts fall anywhere in a step. Exact positions come in closed form for the ball (B01 of the catalogue) and for
the forced oscillator (B04), and from event location (`benchmarks.reference`) for the double pendulum. Where contact
lasts or impacts accumulate, and for Jacobians, there is neither: the reference is `EventDriven` with the tolerance
`REFERENCE`, a hundred times below the tightest measured.

    python experiments/benchmarks/run.py --parts precision --python diffrax=PATH
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import jaximpact as ji
from jaximpact import catalogue
from jaximpact.catalogue.balls import bounces
from jaximpact.catalogue.oscillators import periodic_orbit

from . import peers, reference, timing, works

LANES, ALL_LANES = 256, 1024
CHECKED = 64  # lanes of which the exact motion is known
STEPS = (127, 509, 2003, 8009)  # primes: nodes keep clear of special times
ALL_STEPS = (127, 251, 509, 1009, 2003, 4001, 8009, 16001)
EVENT_STEPS = 2003  # what locates events needs no more ...
TOLERANCES = (1e-3, 1e-5, 1e-7, 1e-9, 1e-11)
REFERENCE = 1e-13
SCIPY_LANES = 8  # a lane takes it seconds
LONG_ENOUGH = 0.5  # seconds of rounds, of which the shortest counts
OSCILLATOR = {"damping": 0.05, "amplitude": 1.0, "frequency": 2.2, "wall": -0.1}
OSCILLATOR_E = 0.8

PRESSED_WALL = -0.19  # behind which the double pendulum would hang: it bounces less and less, and comes to rest

STEPPED: dict[str, Callable[[], Any]] = {
    "PaoliSchatzman": ji.PaoliSchatzman,
    "MoreauJean": ji.MoreauJean,
    "Maury": ji.Maury,
    "EventCorrected": ji.EventCorrected,
}

DRIVEN = {"EventDriven, order 8": 8, "EventDriven, order 5": 5}  # by tolerances

DIFFRAX = {f"diffrax, {solver}": solver for solver in ("Tsit5", "Dopri8")}
SCIPY = "scipy, DOP853"  # lane after lane, the loop over steps in Python, functions compiled
METHODS = (*STEPPED, *DRIVEN, peers.TITLES["siconos"], *DIFFRAX, SCIPY)  # a colour each


@dataclass(frozen=True)
class Motion:
    """Lanes of one problem, exact final positions of those of `checked`, None where the reference is to be computed;
    ``per_lane`` are the args with a lane axis.

    ``longest`` is the longest step [s] in which an event location cannot miss a flight; ``schemes`` those that apply.
    """

    title: str
    work: str
    t1: float
    e: float
    q0: np.ndarray
    v0: np.ndarray
    args: dict
    exact: np.ndarray | None
    per_lane: tuple[str, ...] = ()
    longest: float = 0.4
    schemes: tuple[str, ...] = ("PaoliSchatzman", "MoreauJean", "EventCorrected")
    others: tuple[str, ...] = (*DIFFRAX, SCIPY)
    jacobian: bool = False  # whether its Jacobian is measured too


def checked(lanes: int) -> slice:
    """Lanes of which the exact motion is computed."""
    return slice(None, None, -(-lanes // CHECKED))


def problem_of(work: str) -> ji.Problem:
    """The problem of a work, or the catalogue's forced oscillator."""
    return catalogue.get("shaw-holmes").problem if work == "oscillator" else works.WORKS[work].problem


def ball(lanes: int) -> Motion:
    """Four or five bounces; heights of 1 +- 20 %, g = 1."""
    heights, t1, e = np.linspace(0.8, 1.2, lanes), 8.0, 0.8
    exact = [bounces(height, 0.0, 1.0, 0.0, e, t1)[0](np.array([t1]))[0][0] for height in heights[checked(lanes)]]
    return Motion("bouncing ball", "ball", t1, e, heights[:, None], np.zeros((lanes, 1)), {"g": 1.0}, np.array(exact),
                  others=(peers.TITLES["siconos"], *DIFFRAX, SCIPY))  # fmt: skip


def oscillator(lanes: int) -> Motion:
    """Seven periods of the stable orbit with an impact each, from all over it."""
    period, t1 = 2 * np.pi / OSCILLATOR["frequency"], 20.0
    orbit, shift, _ = periodic_orbit(*(OSCILLATOR[name] for name in ("damping", "frequency", "wall")), OSCILLATOR_E)
    # clear of the impact, at which a motion cannot start or be compared
    start = np.linspace(0.05, 0.95, lanes) * period
    q0, v0 = orbit(start)
    args, exact = OSCILLATOR | {"shift": shift + start}, orbit((start + t1)[checked(lanes)])[0]
    return Motion(
        "forced oscillator", "oscillator", t1, OSCILLATOR_E, q0, v0, args, exact, ("shift",), 0.5, jacobian=True
    )


def double_pendulum(lanes: int) -> Motion:
    """M(q), joint and tip against a wall."""
    work = works.DOUBLE
    q0, v0 = work.initial(lanes)
    some = checked(lanes)
    q, _ = reference.event_located(work.problem, q0[some], v0[some], np.array([work.t1]), work.restitution, work.args)
    return Motion("double pendulum", work.name, work.t1, work.restitution, q0, v0, work.args, q[:, 0], longest=0.02,
                  others=(peers.TITLES["siconos"], *DIFFRAX, SCIPY), jacobian=True)  # fmt: skip


def inelastic_pendulum(lanes: int) -> Motion:
    """The same with e = 0, where contact lasts."""
    work = works.DOUBLE
    return Motion("double pendulum, lasting contact", work.name, work.t1, 0.0, *work.initial(lanes), work.args, None,
                  schemes=("PaoliSchatzman", "MoreauJean", "Maury", "EventCorrected"), others=())  # fmt: skip


def pressed_pendulum(lanes: int) -> Motion:
    """The same pressed against a wall, where infinitely many impacts end in lasting contact."""
    work = works.DOUBLE
    args = work.args | {"wall": PRESSED_WALL}
    return Motion(
        "double pendulum, impacts that accumulate", work.name, 3.0, 0.5, *work.initial(lanes), args, None, others=()
    )


MOTIONS = {"ball": ball, "oscillator": oscillator, "double-pendulum": double_pendulum,
           "double-pendulum-inelastic": inelastic_pendulum,
           "double-pendulum-accumulation": pressed_pendulum}  # fmt: skip


def measure(name: str, full: bool, python: dict[str, str], sizes=None) -> list[dict]:
    """Points of one picture: {"motion", "quantity", "method", "step" or "tolerance", "error", "us_per_trajectory",
    "cores"}.

    ``sizes`` (lanes, numbers of steps, tolerances, rounds) in place of those of ``full`` or not.
    """
    usual = (ALL_LANES, ALL_STEPS, TOLERANCES, 5) if full else (LANES, STEPS, TOLERANCES, 5)
    lanes, counts, tolerances, rounds = sizes or usual
    motion = MOTIONS[name](lanes)
    points = []
    with timing.one_core():
        exact = reference_of(motion, "position") if motion.exact is None else motion.exact
        points += own_points(motion, "position", exact, counts, tolerances, rounds)
        points += other_points(motion, "position", exact, counts, tolerances, rounds, python)
        if motion.jacobian:
            exact = reference_of(motion, "jacobian")
            points += own_points(motion, "jacobian", exact, counts, tolerances, rounds)
            points += other_points(motion, "jacobian", exact, counts, tolerances, rounds, python)
    common = {"motion": name, "title": motion.title, "e": motion.e, "t1": motion.t1, "lanes": lanes}
    return [common | {"quantity": "position"} | p for p in points]


def own_points(motion: Motion, quantity: str, exact: np.ndarray, counts, tolerances, rounds: int) -> list[dict]:
    """Points of this library's schemes, over numbers of steps or tolerances;
    Jacobians of those that locate impacts alone."""
    stepped = motion.schemes if quantity == "position" else ("EventCorrected",)
    asked = [(label, {"step": motion.t1 / count}, STEPPED[label](), count) for label in stepped for count in counts
             if label != "EventCorrected" or count <= EVENT_STEPS]  # fmt: skip
    asked += [(label, {"tolerance": tol}, ji.EventDriven(tol, tol, order), None)
              for label, order in DRIVEN.items() for tol in tolerances]  # fmt: skip
    points = []
    for label, setting, scheme, count in asked:
        run = lambda scheme=scheme, count=count: compute(motion, quantity, scheme, count)
        seconds, found = [], run()
        while len(seconds) < rounds or sum(seconds) < LONG_ENOUGH:
            begin = time.process_time()  # of all threads, which share one core: other work on it does not count
            run()
            seconds.append(time.process_time() - begin)
        lanes = len(motion.q0)
        points.append(
            {"method": label, "quantity": quantity} | setting | point(exact, found[checked(lanes)], seconds, lanes)
        )
    return points


def compute(motion: Motion, quantity: str, scheme: Any, count: int | None, lanes: slice = slice(None)) -> np.ndarray:
    """Final positions, or the Jacobian of final positions and velocities by the initial ones,
    of each lane (lanes, n)."""
    args_axes = {name: 0 if name in motion.per_lane else None for name in motion.args}
    args = {name: np.asarray(x)[lanes] if name in motion.per_lane else x for name, x in motion.args.items()}
    of = ji.ensemble if quantity == "position" else ji.sensitivities
    found = of(problem_of(motion.work), motion.q0[lanes], motion.v0[lanes], t1=motion.t1, steps=count, e=motion.e,
               args=args, args_axes=args_axes, scheme=scheme)  # fmt: skip
    if quantity == "position":
        return found.q[:, -1]
    parts = [found.jacobian[x][y] for x in ("q", "v") for y in ("q0", "v0")]
    return np.concatenate([np.reshape(x, (len(x), -1)) for x in parts], axis=1)


def reference_of(motion: Motion, quantity: str) -> np.ndarray:
    """What errors are measured from where there is no closed form, of the lanes of `checked`."""
    return compute(motion, quantity, ji.EventDriven(REFERENCE, REFERENCE), None, checked(len(motion.q0)))


def other_points(
    motion: Motion, quantity: str, exact: np.ndarray, counts, tolerances, rounds: int, python
) -> list[dict]:
    """Points of other simulators; Jacobians are diffrax's alone. Each has a line that says why it has no points,
    if so."""
    points = []
    for method in motion.others:
        if method == SCIPY and quantity == "position":
            points += scipy_points(motion, exact, tolerances)
        elif method in DIFFRAX:
            job = {"solver": DIFFRAX[method], "quantity": quantity}
            changes = [job | {"tolerance": x} for x in tolerances]
            points += peer_points(motion, method, "diffrax", changes, exact, rounds, python)
        elif quantity == "position":
            changes = [{"h": motion.t1 / count, "steps": count} for count in counts]
            points += peer_points(motion, method, "siconos", changes, exact, rounds, python)
    return points


def scipy_points(motion: Motion, exact: np.ndarray, tolerances) -> list[dict]:
    """Points of `reference.event_located` on a few of the lanes that are checked, one by one."""
    some = slice(None, None, -(-len(exact) // SCIPY_LANES))
    q0, v0 = (x[checked(len(motion.q0))][some] for x in (motion.q0, motion.v0))
    shared = {name: x for name, x in motion.args.items() if name not in motion.per_lane}
    lanes = [shared | {name: motion.args[name][checked(len(motion.q0))][some][i] for name in motion.per_lane}
             for i in range(len(q0))]  # fmt: skip
    problem, times = problem_of(motion.work), np.array([motion.t1])

    def run(tolerance: float) -> np.ndarray:
        return np.concatenate([
            reference.event_located(problem, q0[i : i + 1], v0[i : i + 1], times, motion.e, args, tolerance,
            motion.longest)[0][:, 0]
            for i, args in enumerate(lanes)
        ])  # fmt: skip

    run(tolerances[0])  # compiles
    points = []
    for tolerance in tolerances:
        begin = time.process_time()
        q = run(tolerance)
        seconds = [time.process_time() - begin]
        points.append({"method": SCIPY, "tolerance": tolerance} | point(exact[some], q, seconds, len(q0)))
    return points


def peer_points(motion: Motion, method: str, key: str, changes: list[dict], exact, rounds: int, python) -> list[dict]:
    """Points of another simulator, one for each of the ``changes`` of its job; Siconos, which makes lane after lane, is
    given those that are checked."""
    batch = key == "diffrax"
    lanes = slice(None) if batch else checked(len(motion.q0))
    args = {name: np.asarray(x)[lanes].tolist() if name in motion.per_lane else x for name, x in motion.args.items()}
    job = {"work": motion.work, "q0": motion.q0[lanes].tolist(), "v0": motion.v0[lanes].tolist(), "e": motion.e,
           "args": args, "h": motion.t1, "steps": 1, "rounds": rounds, "longest": motion.longest}  # fmt: skip
    remark, answers = peers.ask(key, [job | change for change in changes], python.get(key), limit=900.0)
    if not answers:
        return [{"method": method, "remark": remark}]
    found = []
    for change, answer in zip(changes, answers, strict=True):
        quantity = change.get("quantity", "position")
        setting = {"step": change["h"]} if "h" in change else {"tolerance": change["tolerance"]}
        values = np.array(answer["q" if quantity == "position" else quantity])
        errors = point(exact, values[checked(len(values))] if batch else values, answer["seconds"], len(values))
        found.append({"method": method, "quantity": quantity} | setting | errors)
    return found


def point(exact: np.ndarray, found, seconds: list[float], lanes: int) -> dict:
    error = np.abs(np.asarray(found) - exact).max(axis=1)
    return {"error": float(np.nanmedian(error)), "us_per_trajectory": 1e6 * min(seconds) / lanes, "cores": 1}


def pictures(points: list[dict], folder) -> None:
    """A picture for every motion that has points, error-against-cost-MOTION.png,
    and for every one whose Jacobian has."""
    kinds = dict.fromkeys((point["motion"], point.get("quantity", "position")) for point in points)
    for motion, quantity in kinds:
        name = motion if quantity == "position" else f"{motion}-{quantity}"
        mine = [p for p in points if (p["motion"], p.get("quantity", "position")) == (motion, quantity)]
        draw(mine, folder / f"error-against-cost-{name}.png")


def draw(points: list[dict], path) -> None:
    """One picture of the points of one motion."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import NullFormatter

    from jaximpact.plots.style import COLOURS, DARK, GREY

    first = points[0]
    figure, axes = plt.subplots(figsize=(6.4, 4.6), layout="constrained")
    for method, colour, marker in zip(METHODS, (*COLOURS, GREY, DARK, DARK, GREY), "osDvX*^P<>", strict=True):
        mine = [point for point in points if point["method"] == method and "error" in point]
        if mine:
            cost, error = [p["us_per_trajectory"] for p in mine], [p["error"] for p in mine]
            axes.loglog(cost, error, marker=marker, color=colour, label=method, markersize=5)
    # whole decades, so that there are labels enough without those between them
    low, high = axes.get_xlim()
    axes.set_xlim(10 ** np.floor(np.log10(low)), 10 ** np.ceil(np.log10(high)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    unit = "m" if first["motion"] in ("ball", "oscillator") else "rad"
    of_jacobian = first.get("quantity") == "jacobian"
    what = "final state's Jacobian" if of_jacobian else f"final position [{unit}]"
    axes.set_xlabel(
        f"processor time of a {'Jacobian' if of_jacobian else 'trajectory'} on one core, {first['lanes']} in a batch "
        "[µs]"
    )
    axes.set_ylabel(f"median error of the {what}")
    axes.set_title(f"{first['title']}, e = {first['e']:g}, over {first['t1']:g} s")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)
