"""Period doublings of an impact oscillator, each located on its own branch, and their distances beside published ones.

q'' + .1 q' + q = cos(w t), q >= -.1, e = .8. The orbit of period 2^k, k = 0 ... 6, is followed from where it is born to
where its period doubles once more. Ratios of the intervals between doublings tend to a number that is the same for all
smooth maps with one hump (M. J. Feigenbaum, J. Stat. Phys. 19 (1978) 25): 4.669201609 (OEIS A006890). For x -> a - x^2
they are those of the table in K. T. Alligood, T. D. Sauer, J. A. Yorke, Chaos, Springer (1996), page 503. An impact
oscillator contracts areas, so that it is one of them as long as its orbit neither gains nor loses an impact.

python experiments/gallery/period_doublings.py            half a minute on one core
"""

import argparse
import csv
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import jaximpact as ji  # noqa: E402
from jaximpact import analysis  # noqa: E402

HAMMER = ji.Problem(
    lambda t, q, v, args: jnp.cos(args["w"] * t) - q - 0.1 * v, lambda t, q, args: q + 0.1, restitution=0.8
)
FEIGENBAUM = 4.669201609
PUBLISHED = (4.2337, 4.5515, 4.6458, 4.6639, 4.6682, 4.6689)  # of x -> a - x^2, from the third doubling on
START, END = 2.2, 2.7  # frequencies between which doublings are looked for
PHASE = 0.2  # of the period at which states are taken, in mid-flight
WINDOW = 0.06, 2e-6  # distances from the end of the cascade that the diagram shows
SETTLES = 8192  # periods in which a motion settles on an orbit that has just doubled


def period(args):
    return 2 * np.pi / args["w"]


def section(args):
    return PHASE * period(args)


def doublings(count):
    """Frequencies (count,) at which the periods 1, 2, 4, ... double."""
    orbit = analysis.periodic_orbit(HAMMER, [1.0], [0.5], period=period, t0=section, args={"w": START})
    q, v, w, end = orbit.q, orbit.v, START, END
    found = []
    for k in range(count):
        branch = analysis.continue_orbit(
            HAMMER, q, v, parameter="w", bounds=(w, end), period=period, t0=section, args={"w": w}, cycles=2**k
        )
        event = next(event for event in branch.events if event.kind == "period doubling")
        found.append(event.parameter)
        print(f"period {2**k} doubles at w = {found[-1]:.12f}", flush=True)
        # a little beyond, the motion settles on the orbit of twice the period
        to_next = (found[-1] - found[-2]) / FEIGENBAUM if k else 0.01
        w, end = found[-1] + 0.4 * to_next, END if k == 0 else found[-1] + 3 * to_next
        settled = analysis.stroboscopic(
            HAMMER, event.q, event.v, period=period, phase=PHASE, cycles=1, skip=SETTLES, args={"w": w}
        )
        q, v = np.ravel(settled.q)[-1:], np.ravel(settled.v)[-1:]
    return np.array(found)


def picture(found, ratios, path):
    from matplotlib.figure import Figure

    last = found[-1] + (found[-1] - found[-2]) / (FEIGENBAUM - 1)  # where they accumulate
    w = last - np.geomspace(*WINDOW, 300)
    diagram = analysis.bifurcation(
        HAMMER,
        [1.0],
        [0.5],
        parameter="w",
        values=w,
        period=period,
        phase=PHASE,
        cycles=128,
        skip=2000,
        args={"w": START},
        sweep="up",
    )
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    q = np.asarray(diagram.q).reshape(len(w), -1)
    left.plot(np.repeat(last - w, q.shape[1]), q.ravel(), ",", color="0.3")
    for k, at in enumerate(last - found):
        left.axvline(at, color="C3", lw=0.8)
        left.annotate(f"{2**k}", (at, 1.02), xycoords=("data", "axes fraction"), ha="center", fontsize=8, color="C3")
    left.set(xscale="log", xlim=WINDOW, xlabel=f"{last:.7f} - w [rad/s]", ylabel=f"q at {PHASE:g} of the period")
    number = np.arange(3, 3 + max(len(ratios), len(PUBLISHED)))
    right.axhline(FEIGENBAUM, color="0.6", lw=1, label="4.669201609, Feigenbaum 1978")
    right.plot(number[: len(PUBLISHED)], PUBLISHED, "s-", mfc="none", color="C0", lw=0.8, label="x → a − x², published")
    right.plot(number[: len(ratios)], ratios, "o", color="C3", label="impact oscillator, measured")
    right.set(xlabel="doubling", ylabel="ratio of intervals between doublings", xticks=number)
    right.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=140)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/period_doublings"), help="folder for table and picture")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found = doublings(7)
    ratios = np.diff(found)[:-1] / np.diff(found)[1:]
    rows = [
        {"period": 2**k, "doubles at w": f"{w:.12f}", "ratio": f"{ratios[k - 2]:.4f}" if k > 1 else ""}
        for k, w in enumerate(found)
    ]
    with open(options.out / "doublings.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    print("ratios", *(f"{ratio:.4f}" for ratio in ratios))
    picture(found, ratios, options.out / "doublings.png")
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
