"""The main job in a minute: an ensemble of 100,000 motions, a convergence sweep h -> 0, a Jacobian across impacts, a
joint and friction, on one page.

python experiments/demo.py              out/demo/index.html, two pictures and four tables
python experiments/demo.py --lanes 1e4  a smaller ensemble

Three of the tables are of one system, a mass on a spring that is shaken and hits a wall:

    q'' + 2 z q' + q = cos(w t),   q >= wall,   v+ = -e v-

whose motion and Jacobian are known impact by impact in closed form (gallery/impact_oscillator.py, which
shares nothing with the library).
"""

from __future__ import annotations

import argparse
import html
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaximpact as ji
from jaximpact import catalogue
from jaximpact.analysis import prime_steps

sys.path.insert(0, str(Path(__file__).resolve().parent / "gallery"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import basins_picture
from benchmarks import works
from benchmarks.baselines import native
from benchmarks.timing import all_cores
from impact_oscillator import Oscillator, args_of, forcing_period

jax.config.update("jax_enable_x64", True)

CASE = catalogue.get("shaw-holmes").case("damped")
PROBLEM = catalogue.get("shaw-holmes").problem
PLAIN_STEPS = 480  # of the handwritten loop, enough to time it
SCHEMES = {  # and the order that theory, or for the last the construction, predicts for positions and Jacobians
    "PaoliSchatzman": (ji.PaoliSchatzman(), 1),
    "MoreauJean": (ji.MoreauJean(), 1),
    "EventCorrected": (ji.EventCorrected(), 2),
}
TOLERANCES = (1e-5, 1e-7, 1e-9, 1e-11, 1e-13)


def exact_end() -> tuple[np.ndarray, np.ndarray]:
    """Final state (2,) of the case and its Jacobian (2, 2) to (q0, v0), in closed form."""
    motion = Oscillator(CASE.args, CASE.restitution, float(CASE.q0[0]), float(CASE.v0[0]))
    motion.tangent = np.eye(2)
    motion.advance(CASE.t1)
    return np.array([motion.q, motion.v]), motion.tangent


def plain_jax(q0, v0, args, h):
    """The scheme of Paoli and Schatzman by hand, as one writes it: no residual, no status, no impulses."""
    e, wall = basins_picture.E, args["wall"]
    force = lambda t, q, v: jnp.cos(args["frequency"] * t) - q - 2 * args["damping"] * v

    def one(q, v):
        def step(carry, k):
            before, here = carry
            free = 2 * here - before + h**2 * force(k * h, here, (here - before) / h)
            meet = jnp.maximum((free + e * before) / (1 + e), wall)
            return (here, (1 + e) * meet - e * before), None

        first = q + h * v + 0.5 * h**2 * force(0.0, q, v)
        return lax.scan(step, (q, first), jnp.arange(1, PLAIN_STEPS))[0][1]

    return jax.vmap(one)(q0, v0)


def ensemble_rate(points: int, out: Path) -> tuple[list[str], list[list[str]]]:
    """Draws the basins of attraction of points x points starts, and times the ensemble beside handwritten loops."""
    args = args_of(basins_picture.FREQUENCY, basins_picture.DAMPING, basins_picture.WALL)
    h = forcing_period(args) / basins_picture.STEPS
    q, v = (x.ravel() for x in np.meshgrid(np.linspace(-0.29, 1.5, points), np.linspace(-1.5, 1.5, points)))
    q0, v0 = q[:, None], v[:, None]
    given = {"t1": PLAIN_STEPS * h, "steps": PLAIN_STEPS, "args": args, "e": basins_picture.E}
    ours = lambda: ji.ensemble(PROBLEM, q0, v0, **given)
    end = lambda q, v: ji.solve(PROBLEM, q, v, save="final", **given).q
    final, compiled = jax.jit(jax.vmap(end)), jax.jit(plain_jax)
    runs = {
        "`ji.ensemble`, with impulses, residual, penetration and status of every step": ours,
        "`jax.jit(jax.vmap(ji.solve))`, final states alone": lambda: jax.block_until_ready(final(q0, v0)),
        "plain JAX, `vmap(scan)` of the same scheme by hand": lambda: jax.block_until_ready(compiled(q, v, args, h)),
    }
    if native.compiler():
        work = replace(works.OSCILLATOR, h=h, steps=PLAIN_STEPS)
        with tempfile.TemporaryDirectory() as folder:
            library = native.Native(folder, (work.name,))
        runs["C++ with vector instructions, by hand"] = lambda: library.run(work, q0, v0, threads=all_cores())
    for run in runs.values():
        run()
    times = np.array([[timed(run) for run in runs.values()] for _ in range(3)]).min(axis=0)
    began = time.perf_counter()
    found = basins_picture.compute(points)
    whole = time.perf_counter() - began
    found.plot(out / "basins.png", title="which motion a start leads to")
    per_step = 1e9 * times / (len(q) * PLAIN_STEPS)
    steps = len(q) * (basins_picture.SKIP + basins_picture.CYCLES) * basins_picture.STEPS
    rows = [
        *([name, f"{ns:.2f}"] for name, ns in zip(runs, per_step, strict=True)),
        [f"the picture: {len(q):,} motions, {steps / 1e6:,.0f} million steps, in {whole:.1f} s", ""],
    ]
    return ["an ensemble of starts", "ns a step of a motion, all cores"], rows


def timed(run) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def convergence(out: Path) -> tuple[list[str], list[list[str]]]:
    """Sweeps h for each scheme, and the tolerance for `EventDriven`, against the exact motion; table and picture."""
    exact, _ = exact_end()
    rows, curves = [], {}
    for name, (scheme, order) in SCHEMES.items():
        found = ji.convergence(
            PROBLEM, CASE.q0, CASE.v0, t1=CASE.t1, steps=prime_steps(600, 20_000, 5), phases=4, exact=CASE.exact,
            args=CASE.args, e=CASE.restitution, scheme=scheme,
        )  # fmt: skip
        curves[name] = found.h, found.position
        rows.append([name, f"{order}", f"{found.orders()['position']:.2f}", f"h = {found.h[-1]:.1e} s",
            f"{found.position[-1]:.1e}"])  # fmt: skip
    bowl = catalogue.get("bowl")
    case = bowl.case("e=0")
    found = ji.convergence(
        bowl.problem, case.q0, case.v0, t1=case.t1, steps=prime_steps(600, 20_000, 5), phases=4, exact=case.exact,
        args=case.args, e=0.0, scheme=ji.Maury(),
    )  # fmt: skip
    rows.append(["Maury (e = 0: a ball in a bowl)", "1", f"{found.orders()['position']:.2f}", f"h = {found.h[-1]:.1e} "
        "s", f"{found.position[-1]:.1e}"])  # fmt: skip
    errors = []
    for tolerance in TOLERANCES:
        scheme = ji.EventDriven(rtol=tolerance, atol=tolerance)
        found = ji.solve(PROBLEM, CASE.q0, CASE.v0, t1=CASE.t1, args=CASE.args, e=CASE.restitution, scheme=scheme,
            save="final")  # fmt: skip
        errors.append(max(abs(float(found.q[-1, 0]) - exact[0]), 1e-16))
    curves["EventDriven, over its tolerance"] = TOLERANCES, errors
    rows.append(["EventDriven", "its tolerance", "", f"rtol = {TOLERANCES[-1]:.0e}", f"{errors[-1]:.1e}"])
    draw(curves, out / "convergence.png")
    return ["scheme", "order by theory", "measured", "at", "error of positions"], rows


def draw(curves: dict, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for (name, (size, error)), style in zip(curves.items(), ("o-", "s-", "^-", "D--"), strict=True):
        axes.loglog(size, error, style, markersize=5, label=name)
    axes.set(xlabel="step h [s], or tolerance", ylabel="error of positions", title="against the exact motion")
    axes.grid(True, alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def jacobians() -> tuple[list[str], list[list[str]]]:
    """d(q, v)(t1) / d(q0, v0) across the impacts: the exact one, this library's,
    and plain automatic differentiation."""
    _, exact = exact_end()
    rows = [["exact, impact by impact", *(f"{x:.6f}" for x in exact.ravel()), ""]]
    steps = 10_007
    ways = [("EventDriven, rtol 1e-11", ji.EventDriven(rtol=1e-11, atol=1e-11), "corrected")]
    ways += [(f"{name}, {steps} steps", scheme, "corrected") for name, (scheme, _) in SCHEMES.items()]
    ways += [(f"plain AD of PaoliSchatzman, {steps} steps", ji.PaoliSchatzman(), "discrete")]
    for name, scheme, sensitivity in ways:
        options = {} if scheme.traits.order is None else {"steps": steps}
        found = ji.sensitivities(
            PROBLEM, CASE.q0, CASE.v0, t1=CASE.t1, args=CASE.args, e=CASE.restitution, scheme=scheme,
            sensitivity=sensitivity, wrt=("q0", "v0"), **options,
        )  # fmt: skip
        matrix = np.block([[np.asarray(found.jacobian[x][y]) for y in ("q0", "v0")] for x in ("q", "v")])
        off = np.max(np.abs(matrix - exact)) / np.max(np.abs(exact))
        rows.append([name, *(f"{x:.6f}" for x in matrix.ravel()), f"{off:.1e}"])
    return ["Jacobian", "dq/dq0", "dq/dv0", "dv/dq0", "dv/dv0", "off by"], rows


# a disk that bounces with spin on a rough floor; its coordinates are x, height and angle
RADIUS, INERTIA, G = 0.2, 0.02, 9.81
DISK = ji.Problem(
    lambda t, q, v, args: jnp.array([0.0, -G, 0.0]),
    lambda t, q, args: q[1:2] - RADIUS,
    np.array([1.0, 1.0, INERTIA]),
    slip=lambda t, q, v, args: v[:1] + RADIUS * v[2:],
    friction=lambda args: args["mu"],
)


def exact_disk(v0, mu, e: float, t1: float):
    """State (6,) of the disk that starts at height 1, behind its first impact, in which it slips throughout."""
    u = jnp.sqrt(v0[1] ** 2 + 2 * G * (1 - RADIUS))
    hit = (v0[1] + u) / G
    along, left = -mu * (1 + e) * u, t1 - hit
    v = jnp.array([v0[0] + along, e * u, v0[2] + RADIUS * along / INERTIA])
    at = jnp.array([v0[0] * hit, RADIUS, v0[2] * hit])
    return jnp.concatenate([at + v * left - jnp.array([0, G * left**2 / 2, 0]), v - jnp.array([0, G * left, 0])])


def joint_and_friction() -> tuple[list[str], list[list[str]]]:
    """Errors of a pendulum that a joint holds and a wall stops, and of the disk with its Jacobian by v0 and mu,
    against closed forms."""
    pendulum, rows = catalogue.get("pendulum-by-a-joint"), []
    case = pendulum.case("e=1/2")
    name = f"pendulum on a rod, q·q = L², beside a wall, {len(case.impacts)} impacts"
    ways = [
        (ji.EventDriven(rtol=1e-12, atol=1e-13), {}),
        (ji.EventCorrected(), {"steps": 10_007}),
        (ji.MoreauJean(), {"steps": 10_007}),
    ]
    exact = np.concatenate(case.exact(np.array([case.t1])), axis=1)[0]
    for scheme, steps in ways:
        found = ji.solve(
            pendulum.problem, case.q0, case.v0, t1=case.t1, args=case.args, e=case.restitution, scheme=scheme,
            save="final", **steps,
        )  # fmt: skip
        off = np.max(np.abs(np.concatenate([found.q[-1], found.v[-1]]) - exact))
        rows.append([name, told(scheme, steps), f"{off:.1e}", ""])
    v0, mu, e, t1 = np.array([1.0, -0.3, 6.0]), 0.06, 0.7, 0.8
    exact, jacobian = exact_disk(v0, mu, e, t1), np.column_stack(jax.jacfwd(exact_disk, (0, 1))(v0, mu, e, t1))
    for scheme, steps in ways[1:]:
        found = ji.sensitivities(
            DISK, np.array([0.0, 1.0, 0.0]), v0, t1=t1, e=e, args={"mu": mu}, scheme=scheme, wrt=("v0", "args"), **steps
        )
        value = np.concatenate([found.value[x] for x in "qv"])
        by = np.concatenate([np.column_stack([found.jacobian[x]["v0"], found.jacobian[x]["args"]["mu"]]) for x in "qv"])
        errors = (f"{np.max(np.abs(x - y)) / np.max(np.abs(y)):.1e}" for x, y in ((value, exact), (by, jacobian)))
        rows.append(["disk with spin on a rough floor, mu = .06", told(scheme, steps), *errors])
    return ["a joint, and Coulomb friction", "scheme", "error of the state", "of its Jacobian"], rows


def told(scheme, steps: dict) -> str:
    name = type(scheme).__name__
    return f"{name}, {steps['steps']} steps" if steps else f"{name}, rtol {scheme.rtol:.0e}"


PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>jaximpact in a minute</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222}}
table{{border-collapse:collapse;margin:1rem 0}}td,th{{padding:.25rem .7rem;border-bottom:1px solid #ddd;text-align:left}}
td:not(:first-child){{font-variant-numeric:tabular-nums}}img{{max-width:100%}}.two{{display:flex;flex-wrap:wrap;gap:1rem}}.two img{{flex:1 1 20rem;min-width:0;object-fit:contain}}
code{{background:#f4f4f4}}</style>
<h1>jaximpact in a minute</h1>
<p>A shaken mass on a spring beside a wall: q″ + 2 z q′ + q = cos(w t), q ≥ wall, v⁺ = −e v⁻.</p>
<h2>100,000 motions at once</h2>{ensemble}
<div class="two"><img src="basins.png" alt="basins of attraction"><img src="convergence.png" alt="errors over the step"></div>
<h2>Convergence, measured</h2><p>Against the exact motion of {time:g} s and {impacts} impacts.</p>{convergence}
<h2>Derivatives across the impacts</h2><p>Plain automatic differentiation of a time-stepping scheme is wrong by O(1), whatever h.</p>{jacobian}
<h2>Joints and friction</h2><p>Two more systems, against closed forms.</p>{more}
<p>{seconds:.0f} s in all, on {machine}. Made by <code>experiments/demo.py</code>.</p></html>
"""  # noqa: E501


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table in HTML."""
    cells = lambda row, tag: "".join(f"<{tag}>{html.escape(x).replace('`', '')}</{tag}>" for x in row)
    return (
        "<table><tr>" + "</tr><tr>".join([cells(header, "th"), *(cells(row, "td") for row in rows)]) + "</tr></table>"
    )


def show(header: list[str], rows: list[list[str]]) -> None:
    """Prints a table."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        print("  ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)).rstrip())
    print(flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder of the page (default out/demo)")
    parser.add_argument("--lanes", type=float, default=1e5, help="motions of the ensemble (default 1e5)")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    parts = {}
    for name, make in (
        ("ensemble", lambda: ensemble_rate(round(options.lanes**0.5), options.out)),
        ("convergence", lambda: convergence(options.out)),
        ("jacobian", jacobians),
        ("more", joint_and_friction),
    ):
        header, rows = make()
        show(header, rows)
        parts[name] = table(header, rows)
    motion = Oscillator(CASE.args, CASE.restitution, float(CASE.q0[0]), float(CASE.v0[0]))
    motion.advance(CASE.t1)
    facts = {"time": CASE.t1, "impacts": len(motion.impacts), "seconds": time.perf_counter() - began}
    path = options.out / "index.html"
    path.write_text(PAGE.format(**parts, **facts, machine=f"{jax.device_count()} {jax.default_backend()} device"))
    print(f"written: {path}")


if __name__ == "__main__":
    main()
