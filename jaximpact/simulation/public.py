"""`solve`, `ensemble` and `sensitivities` as users call them: their results have the problem's names and units."""

from ..results import with_names
from . import ensemble as _ensemble
from . import sensitivities as _sensitivities
from . import solve as _solve

solve = with_names(_solve.solve)
ensemble = with_names(_ensemble.ensemble)
sensitivities = with_names(_sensitivities.sensitivities)
for _function in (solve, ensemble, sensitivities):
    _function.__module__ = "jaximpact"  # where they are found by name
