"""What the tolerance of `EventDriven` says of its error, and the order of its substeps,
on catalogue problems with exact motions.

python experiments/cases/tolerance.py            three minutes on one core
python experiments/cases/tolerance.py --full     with the chains and boxes of up to a hundred bodies
"""

import argparse
import csv
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np  # noqa: E402

import jaximpact as ji  # noqa: E402
from jaximpact import catalogue  # noqa: E402

TOLERANCES = [10.0**-k for k in range(5, 13)]
LARGE = {("skew-balls", "d=40"), ("hypercube", "d=100"), ("inelastic-chain", "N=100"), ("inelastic-chain", "N=8")}
ROWS = 4  # of a motion, at which its error is taken
# motions with impacts and without lasting contact, whose pushes have a tolerance of their own
ORDERS = {
    "resonant-oscillator": "e=1/2",
    "polar-particle": "e=0.9",
    "magnetic-skipping": "e=1",
    "grazing-oscillator": "e=1/2",
}
STEPS = [12, 16, 24, 32, 48, 64, 96]
SEEN = (1e-13, 1e-5)  # errors between which the order is read: above round-off, and where the leading term decides


def motion(entry, case, scheme, steps):
    return ji.solve(
        entry.problem, case.q0, case.v0, t1=case.t1, steps=steps, e=case.restitution, args=case.args, scheme=scheme
    )


def error(case, found):
    """Largest error of a position at a row, and the size of positions, at least 1."""
    exact, _ = case.exact(np.asarray(found.t))
    return np.max(np.abs(np.asarray(found.q) - exact)), max(1.0, np.max(np.abs(exact)))


def proportionality(entry, label):
    """One row: the error in units of the tolerance, rtol times the size of positions, by rtol; what the loosest and the
    finest run say themselves; and the status of all."""
    case = entry.case(label)
    row, status, told = {"problem": entry.name, "case": label}, ji.Status.OK, {}
    for rtol in TOLERANCES:
        found = motion(entry, case, ji.EventDriven(rtol, rtol), ROWS)
        off, size = error(case, found)
        row[f"{rtol:.0e}"] = f"{off / (rtol * size):.2g}"
        status |= ji.Status(int(found.status))
        if rtol in (TOLERANCES[0], TOLERANCES[-1]):
            told[f"stated {rtol:.0e}"] = f"{float(found.error):.2g}"
    return row | told | {"status": str(status)}


def order(entry, label):
    """One row: errors by one substep a step, where no impact ends it, and the order that is fitted to them."""
    case = entry.case(label)
    scheme = ji.EventDriven(rtol=1e9, atol=1e-11)  # contacts last below atol, which no impact here is
    errors = np.array([error(case, motion(entry, case, scheme, steps))[0] for steps in STEPS])
    seen = (errors > SEEN[0]) & (errors < SEEN[1])
    slope = -np.polyfit(np.log(np.array(STEPS)[seen]), np.log(errors[seen]), 1)[0]
    return {
        "problem": entry.name,
        "case": label,
        **{str(n): f"{e:.1e}" for n, e in zip(STEPS, errors, strict=True)},
        "order": f"{slope:.1f}",
    }


def write(rows, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    print(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the large systems too")
    parser.add_argument("--out", type=Path, default=Path("out/tolerance"))
    options = parser.parse_args()
    write([order(catalogue.get(name), label) for name, label in ORDERS.items()], options.out / "substeps.csv")
    rows = []
    for entry in catalogue.entries():
        for label, case in entry.cases.items():
            known = case.exact is not None and entry.problem.slip is None  # EventDriven takes no friction
            if known and (options.full or (entry.name, label) not in LARGE):
                rows.append(proportionality(entry, label))
                print(*rows[-1].values(), flush=True)
    write(rows, options.out / "tolerance.csv")


if __name__ == "__main__":
    main()
