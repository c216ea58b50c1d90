"""Observed orders of the schemes on catalogue problems with exact motions: the table of the manual,
the figure of the gallery.

python experiments/cases/convergence.py                 a choice of problems, under a minute
python experiments/cases/convergence.py --full          every case of the catalogue with every scheme its theory covers
"""

import argparse
import csv
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np  # noqa: E402

import jaximpact as ji  # noqa: E402
from jaximpact import catalogue  # noqa: E402
from jaximpact.analysis import prime_steps  # noqa: E402
from jaximpact.mechanics.method_names import SCHEMES  # noqa: E402

CHOICE = {
    "bouncing-ball": "e=1/2",
    "resonant-oscillator": "e=1/2",
    "groove": "e=1/2",
    "polar-particle": "e=0.9",
    "bowl": "e=0",
    "growing-spheres": "scattered",
}
PHASES = 8


def measure(entry, name, label):
    """One row: problem, case, scheme, observed and predicted order, smallest h and the error there."""
    case = entry.case(name)
    small = case.q0.size < 20
    found = ji.convergence(
        entry.problem,
        case.q0,
        case.v0,
        t1=case.t1,
        steps=prime_steps(600, 20_000, 5) if small else prime_steps(2_000, 20_000, 3),
        phases=PHASES if small else 1,
        exact=case.exact,
        impulse=case.impulse,
        scheme=SCHEMES[label](),
        args=case.args,
        e=case.restitution,
    )
    expected = case.orders[label]
    observed = found.orders()["position"]
    row = {
        "problem": entry.name,
        "case": name,
        "scheme": label,
        "theory": "exact" if expected.exact else "-" if expected.position is None else f"{expected.position:g}",
        "observed": "exact" if found.position.max() < 1e-8 else f"{observed:.2f}",
        "h": f"{found.h[-1]:.2e}",
        "error": f"{found.position[-1]:.2e}",
    }
    return row, found


def picture(results, path):
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    panels = list(dict.fromkeys((row["problem"], row["case"]) for row, _ in results))
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.8 * lines), layout="constrained")
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(lines, columns, number + 1)
        styles = iter(("o-", "s--", "^-.", "d:"))  # curves of two schemes may coincide
        for row, found in results:
            if (row["problem"], row["case"]) == panel:
                label = f"{row['scheme']}: {row['observed']}"
                style = next(styles)
                axes.loglog(
                    found.h, np.maximum(found.position, 1e-16), style, markersize=5, fillstyle="none", label=label
                )
        axes.set_title(f"{panel[0]}, {panel[1]}", fontsize=10)
        axes.set_xlabel("step h [s]")
        axes.set_ylabel("sup error of the position [unit of q]")
        axes.grid(True, which="major", linewidth=0.4, alpha=0.5)
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.legend(
            fontsize=7,
            title="observed order",
            title_fontsize=7,
            ncols=2,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.2),
        )
    figure.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="every case and scheme of the catalogue (several minutes)")
    parser.add_argument("--out", type=Path, default=Path("out/convergence"), help="folder for the CSV and the picture")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    chosen = [(entry, name) for entry in catalogue.entries() for name in entry.cases]
    if not options.full:
        chosen = [(catalogue.get(problem), name) for problem, name in CHOICE.items()]
    results = []
    widths = "{problem:20} {case:10} {scheme:25} {theory:>6} {observed:>8} {h:>9} {error:>9}"
    print(widths.format(**{key: key for key in ("problem", "case", "scheme", "theory", "observed", "h", "error")}))
    for entry, name in chosen:
        for label in entry.case(name).orders:
            results.append(measure(entry, name, label))
            print(widths.format(**results[-1][0]), flush=True)

    with open(options.out / "convergence.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(results[0][0]))
        writer.writeheader()
        writer.writerows(row for row, _ in results)
    picture(results, options.out / "convergence.png")
    print(f"written: {options.out / 'convergence.csv'}, {options.out / 'convergence.png'}")


if __name__ == "__main__":
    main()
