"""Tangents and adjoints along a motion with impacts: corrected, plain, and by an event-locating scheme.

The oscillator q'' = -w2 (q - qeq) against a wall, five impacts. Tangents are d(q, v)(t)/dq(0); adjoints are the
derivative of the last position with respect to the state at time t: one batch of motions that start at the saved rows.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import numpy as np

import jaximpact as ji
from jaximpact.analysis import impacts
from jaximpact.plots import plot_derivatives

jax.config.update("jax_enable_x64", True)

OSCILLATOR = ji.Problem(
    lambda t, q, v, args: -args["w2"] * (q - args["qeq"]), lambda t, q, args: q - args["wall"], restitution=0.8
)
ARGS = {"w2": 4.0, "qeq": -0.5, "wall": 0.1}
Q0, V0, T1, ROWS = [1.0], [0.2], 4.7, 235
WAYS = {
    "EventCorrected": (ji.EventCorrected(), "corrected"),
    "PaoliSchatzman, corrected": (ji.PaoliSchatzman(), "corrected"),
    "PaoliSchatzman, plain": (ji.PaoliSchatzman(), "discrete"),
}


def final_position(solution):
    return solution.q[-1, 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/tangents"))
    parser.add_argument("--h", type=float, default=1e-3, help="step [s]")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    times = np.linspace(0, T1, ROWS + 1)[1:]
    panels: dict = {"dq/dq(0)": {}, "dv/dq(0) [1/s]": {}, "dq(T)/dq(t)": {}, "dq(T)/dv(t) [s]": {}}
    motion = ji.solve(OSCILLATOR, Q0, V0, t1=T1, h=options.h, args=ARGS, scheme=ji.EventCorrected(), sensitivity="none")
    struck = impacts(OSCILLATOR, motion, args=ARGS).t
    for name, (scheme, sensitivity) in WAYS.items():
        common = {"t1": T1, "h": options.h, "args": ARGS, "scheme": scheme, "sensitivity": sensitivity}
        tangent = ji.sensitivities(OSCILLATOR, Q0, V0, **common, wrt="q0", save=times)
        # the state at each time but the last, as the start of a motion of its own; inside the wall by rounding: on it
        q, v = tangent.value["q"][:-1], tangent.value["v"][:-1]
        q = np.maximum(q, ARGS["wall"])
        adjoint = ji.sensitivities(OSCILLATOR, q, v, t0=times[:-1], **common, output=final_position, mode="forward")
        ends = {"q0": 1.0, "v0": 0.0}
        for panel, values in (
            ("dq/dq(0)", tangent.jacobian["q"]["q0"][:, 0, 0]),
            ("dv/dq(0) [1/s]", tangent.jacobian["v"]["q0"][:, 0, 0]),
            ("dq(T)/dq(t)", np.append(adjoint.jacobian["q0"][:, 0], ends["q0"])),
            ("dq(T)/dv(t) [s]", np.append(adjoint.jacobian["v0"][:, 0], ends["v0"])),
        ):
            panels[panel][name] = values
    print(f"{'derivative at':>24}" + "".join(f"{name:>28}" for name in WAYS))
    for panel, curves in panels.items():
        row = -1 if "(0)" in panel else 0
        print(f"{panel:>18} {'T' if row else '0+':>5}" + "".join(f"{curves[name][row]:28.6f}" for name in WAYS))
    path = plot_derivatives(times, panels, options.out / "tangents.png", impacts=struck, title="Across five impacts")
    print(f"written: {path}")


if __name__ == "__main__":
    main()
