"""The impact oscillator of the gallery, event by event, and what its pictures compute."""

from basins_picture import CYCLES, DAMPING, FREQUENCY, SKIP, STEPS, WALL, E, compute
from bifurcation_diagram import COMPARED, compare
from fokker_planck import stationary
from impact_oscillator import PROBLEM, args_of, exact_exponents, exact_section, forcing_period
