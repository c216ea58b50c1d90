"""The gallery: every picture with the command that draws it.

    python experiments/gallery/draw.py               # draws all of them anew and writes README.md here, half an hour
    python experiments/gallery/draw.py basins orbits # those only

The commands run from the top of the repository; pictures are copied to this folder.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

GALLERY = Path(__file__).parent
ROOT = GALLERY.parents[1]


class Plate(NamedTuple):
    """A picture: its title, the script with its options, the file it writes to ``--out``, and what is to be seen."""

    title: str
    script: str
    picture: str
    text: str

    @property
    def command(self) -> str:
        name, *options = self.script.split()
        return " ".join(["python", f"experiments/{name}", *options])


PLATES = {
    "drop-height": Plate(
        "A derivative across impacts",
        "gallery/drop_height.py",
        "drop-height.png",
        "How the height of a bouncing ball at 1.2 s changes with its drop height. Plain AD of a time-stepping scheme "
        "is wrong whenever the ball has bounced; "
        "differences of two runs scatter; jaximpact matches the exact derivative to 1e-13.",
    ),
    "disks": Plate(
        "A heap of disks",
        "gallery/falling_disks.py",
        "disks.png",
        "300 inelastic disks without friction fall into a box and come to rest. The lines are as wide as the impulses "
        "between disks; what the "
        "floor carries is compared with their weight.",
    ),
    "spheres": Plate(
        "Spheres in a box",
        "gallery/spheres_in_a_box.py",
        "spheres.png",
        "8³ spheres settle in a box, 1000 steps to a residual of 1e-8 m/s; the script prints steps a second, "
        "penetration and the weight on the "
        "floor.",
    ),
    "gas": Plate(
        "An inelastic gas",
        "gallery/inelastic_gas.py",
        "gas.png",
        "400 disks with restitution 0.6 fly in a periodic box and cool. As long as they are spread evenly their energy "
        "follows Haff's law; then "
        "they gather in clusters.",
    ),
    "collapse": Plate(
        "A column collapses",
        "gallery/column_collapse.py",
        "collapse.png",
        "400 disks without friction rest against a gate that is pulled away: they flow to the far wall, no faster than "
        "a breaking dam.",
    ),
    "jam": Plate(
        "Growing disks that jam",
        "gallery/jammed_disks.py",
        "jam.png",
        "144 disks of two sizes grow in a periodic box until the next step finds no room (`until=ji.Until.jammed()`): "
        "at 83.0 % of the area, with "
        "273 contacts of 137 disks, 2 · 137 − 1 as a packing needs; seven rattle.",
    ),
    "crowd": Plate(
        "A crowd at a door",
        "gallery/crowd.py",
        "crowd.png",
        "150 people of their own sizes want to leave a room by one door, and nobody can overlap anybody (Maury and "
        "Venel): arches of pushing "
        "people form before it, and they leave at a steady rate.",
    ),
    "bifurcation": Plate(
        "A bifurcation diagram",
        "gallery/bifurcation_diagram.py --full",
        "bifurcation.png",
        "The forced impact oscillator once a forcing period, 300 periods kept at each of 400 frequencies: period "
        "doubling, chaos, "
        "and windows whose periods add up. The lower panel is the period found.",
    ),
    "basins": Plate(
        "Basins of attraction",
        "gallery/basins_picture.py --full",
        "basins.png",
        "512 × 512 initial states of the same oscillator and the attractors they reach, recognised from the motions; "
        "rings mark the "
        "attractors' points once a period.",
    ),
    "map": Plate(
        "Periods over two parameters",
        "gallery/two_parameter_map.py --full",
        "map.png",
        "Period of the motion, and impacts in a forcing period, over frequency and place of the wall.",
    ),
    "orbits": Plate(
        "A branch of periodic orbits",
        "gallery/periodic_orbits.py",
        "frequency_up.png",
        "One orbit followed over the frequency, through its instability: state, Floquet multipliers, impact speed. "
        "Events are "
        "compared with closed forms.",
    ),
    "curves": Plate(
        "Bifurcations over two parameters",
        "gallery/bifurcation_curves.py",
        "curves.png",
        "Grazing, folds and period doublings of the same oscillator over frequency and wall: dots are followed from "
        "motions alone, lines are the closed "
        "forms of Shaw and Holmes, of which the script prints the distance. On the right a curve of folds and one of "
        "doublings that end at grazing, where the forcing has "
        "twice the damped natural frequency: quadratically tangent (dashed), as Simpson and Ghosh (arXiv:2602.22797) "
        "prove for resonances and illustrate with a linear "
        "impact oscillator.",
    ),
    "doublings": Plate(
        "A cascade of period doublings",
        "gallery/period_doublings.py",
        "doublings.png",
        "Seven period doublings of the oscillator, each located on its own branch to ten digits (lines, with the "
        "period that doubles), and the ratios of the intervals "
        "between them beside Feigenbaum's number and the published ones of a quadratic map.",
    ),
    "lyapunov": Plate(
        "Lyapunov exponents",
        "gallery/lyapunov_spectrum.py",
        "lyapunov_spectrum.png",
        "Largest exponent over the frequency, with tangents right across impacts; an event-driven reference at a "
        "handful of "
        "frequencies.",
    ),
    "tangents": Plate(
        "Derivatives across impacts",
        "cases/tangents.py",
        "tangents.png",
        "Tangents and adjoints along a motion with five impacts, beside those of `EventCorrected` and of plain "
        "automatic differentiation.",
    ),
    "optimum": Plate(
        "An optimum through an impact",
        "cases/bounce_to_target.py",
        "figure.png",
        "A puck steered by one bounce to a target at least effort: corrected derivatives reach the known optimum, "
        "others do not.",
    ),
    "track": Plate(
        "A bouncing ball, tracked",
        "cases/track_ball.py",
        "track.png",
        "Kalman filters see the height of a ball 60 times a second and estimate its drag and restitution: by motions "
        "that are right across impacts, linear and with "
        "sigma points, and by plain AD of a time-stepping scheme, whose errors are far beyond what it says they are.",
    ),
    "shooting": Plate(
        "Optimal control across impacts",
        "outside/shooting.py",
        "shooting.png",
        "A ball that has to come from 4 m to rest at 3 m, a pendulum that swings up against a stop, and a cart that "
        "pushes two others to their places: motions of random starts that "
        "converged (grey) and the best (coloured).",
    ),
    "convergence": Plate(
        "Convergence, measured",
        "cases/convergence.py",
        "convergence.png",
        "Errors of positions, velocities and impulses as h → 0, against exact motions.",
    ),
    "noise": Plate(
        "An oscillator shaken at random",
        "gallery/random_forces.py",
        "noise.png",
        "White noise drives an oscillator beside a wall. Elastic impacts leave the law of Gibbs, inelastic ones that "
        "of a Fokker-Planck equation (grey). Means converge at order 1; "
        "single paths at order 1 without a wall, and 1/2 across impacts (grey lines: these orders).",
    ),
    "quadruped": Plate(
        "A quadruped lands",
        "gallery/landing_quadruped.py",
        "quadruped.png",
        "A robot out of a model file, with springs in its hips and knees, falls onto its feet with rough, rigid "
        "contacts: five moments, the height of its trunk, and the push of the floor on each foot.",
    ),
    "bounces": Plate(
        "Restitution from bounces",
        "cases/measured_bounces.py",
        "figure.png",
        "The main job on the synthetic data set: restitution and release height fitted to the times of contacts.",
    ),
}


def page() -> str:
    """README.md."""
    lines = ["# Gallery", "", "Every picture is drawn by the command under it, all of them by `make gallery`.", ""]
    for name, plate in PLATES.items():
        lines += [f"## {plate.title}", "", plate.text, "", f"![{plate.title}]({name}.png)", ""]
        lines += ["```", plate.command, "```", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plates", nargs="*", metavar="PLATE", help=f"some of {', '.join(PLATES)}; all by default")
    parser.add_argument("--out", type=Path, default=Path("out/gallery"), help="folder for what the scripts write")
    options = parser.parse_args()
    unknown = set(options.plates) - set(PLATES)
    if unknown:
        parser.error(f"no plate {', '.join(sorted(unknown))}; choose among {', '.join(PLATES)}")
    for name in options.plates or PLATES:
        plate, out = PLATES[name], (options.out / name).resolve()
        _, script, *rest = shlex.split(plate.command)
        subprocess.run([sys.executable, script, *rest, "--out", str(out)], cwd=ROOT, check=True)
        shutil.copy(out / plate.picture, GALLERY / f"{name}.png")
    (GALLERY / "README.md").write_text(page())


if __name__ == "__main__":
    main()
