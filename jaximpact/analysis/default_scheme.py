"""Default scheme of the analyses: `EventDriven` with a tolerance, or `EventCorrected` if a number of steps is given."""

from __future__ import annotations

from typing import TypeVar, cast

from ..jaxtools.argument_checks import check_counts
from ..mechanics.problem import Problem
from ..mechanics.schemes import EventCorrected, EventDriven
from ..simulation.arguments import choose_methods
from ..simulation.validation import check_problem
from .options import MotionOptions

Options = TypeVar("Options", bound=MotionOptions)

ORBIT = 1e-12  # tolerance of orbits, whose Jacobians are less accurate than their states
SECTION = 1e-10  # tolerance of exponents and sections, of motions of many periods
PICTURE = (
    1e-7  # of basins and maps, where motions are told apart at 1e-5: at order 5 as fast as the steps that these take
)
ROWS = 100  # of a period between which passages and impacts are told apart


def choose_scheme(
    problem: Problem, options: Options, steps: int | None, tolerance: float, rows: int = 1
) -> tuple[Options, int]:
    """Returns the options of an analysis with the scheme filled in, and the number of steps in a period.

    Without ``steps`` the scheme is by default `EventDriven` with the given ``tolerance``, and the returned number is
    ``rows``; with ``steps`` it is by default `EventCorrected`.

    Raises:
        ValueError, TypeError: the scheme is not valid, or has fixed steps and no number of steps is given.
    """
    check_problem(problem)
    scheme = options["scheme"]
    if scheme is None and steps is None:
        scheme = EventDriven(tolerance, tolerance, order=5 if tolerance >= PICTURE else 8)
        if problem.listed:
            raise ValueError(
                "steps: bodies in lists have no scheme that chooses its own steps: give steps, their number in a "
                "period, and a scheme"
            )
    scheme = choose_methods(EventCorrected() if scheme is None else scheme, None, problem)[0]
    if steps is None and not scheme.traits.by_tolerance:
        raise ValueError(
            f"steps: {type(scheme).__name__} goes by steps: give steps, their number in a period, or leave scheme out"
        )
    steps = rows if steps is None else steps
    check_counts(steps=steps)
    return cast(Options, options | {"scheme": scheme}), steps
