"""Pictures of results: `draw` has one for each type of result; needs matplotlib."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from ..analysis import (
    Balance,
    Basins,
    Bifurcation,
    BifurcationCurve,
    Branch,
    Convergence,
    Crossings,
    Impacts,
    ImpactSection,
    Lyapunov,
    ParameterMap,
    PeriodicOrbit,
    Section,
    Slips,
    Statistics,
)
from ..conformance import Report
from ..results import Covariance, Indices, Linearity, Ranking, Sensitivities, Solution
from .animation import animate, disks, linkage, particles
from .conformance import draw_report
from .ensembles import ROUND_OFF, draw_convergence, draw_ensemble, draw_fan, draw_statistics
from .motions import (
    draw_balance,
    draw_energies,
    draw_impacts,
    draw_motion,
    draw_positions,
    draw_slips,
    plot_derivatives,
)
from .orbits import draw_branch, draw_curve, draw_lyapunov, draw_multipliers, draw_states
from .parameters import draw_covariance, draw_indices, draw_linearity, draw_ranking, draw_sensitivities
from .sections import (
    draw_basins,
    draw_bifurcation,
    draw_impact_section,
    draw_parameter_map,
    draw_periods,
    draw_section,
    draw_sections,
)
from .style import COLOURS, DARK, GREY, new_figure, set_heading

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "COLOURS",
    "DARK",
    "GREY",
    "ROUND_OFF",
    "animate",
    "disks",
    "draw",
    "linkage",
    "particles",
    "plot_derivatives",
]


class Picture(NamedTuple):
    """How a result is drawn, in one panel or in several.

    A picture with a ``size`` [inch] has one panel: ``function(result, ax, **options)`` draws on ``ax`` and returns a
    remark for the heading. A picture without has several: ``function(result, **options)`` makes their axes and returns
    (axes, remark), and ``main(result, ax, **options)`` draws the first panel alone on ``ax`` and returns the remark.
    """

    function: Callable
    size: tuple[float, float] | None = None
    main: Callable | None = None


PICTURES = {
    Balance: Picture(draw_balance, main=draw_energies),
    Basins: Picture(draw_basins, (8.4, 5.6)),
    Bifurcation: Picture(draw_bifurcation, main=draw_sections),
    BifurcationCurve: Picture(draw_curve, (6.0, 4.6)),
    Branch: Picture(draw_branch, main=draw_states),
    Convergence: Picture(draw_convergence, (6.8, 4.8)),
    Covariance: Picture(draw_covariance, (8.0, 4.2)),
    Crossings: Picture(draw_section, (6.0, 4.6)),
    ImpactSection: Picture(draw_impact_section, (6.0, 4.6)),
    Impacts: Picture(draw_impacts, (8.0, 3.6)),
    Indices: Picture(draw_indices, (8.0, 4.2)),
    Linearity: Picture(draw_linearity, (7.2, 4.2)),
    Lyapunov: Picture(draw_lyapunov, (8.0, 4.2)),
    ParameterMap: Picture(draw_parameter_map, main=draw_periods),
    PeriodicOrbit: Picture(draw_multipliers, (5.4, 5.0)),
    Ranking: Picture(draw_ranking, (6.8, 4.2)),
    Report: Picture(draw_report, (9.0, 7.0)),
    Section: Picture(draw_section, (6.0, 4.6)),
    Sensitivities: Picture(draw_sensitivities, (6.8, 4.2)),
    Slips: Picture(draw_slips, (8.0, 3.6)),
    Statistics: Picture(draw_statistics, (8.0, 4.2)),
}
SOLUTIONS = {
    2: Picture(draw_motion, main=draw_positions),
    3: Picture(draw_ensemble, main=draw_fan),
}  # by the axes of q: one motion, a batch


@overload
def draw(result: Any, path: None = None, *, ax: Axes | None = None, title: str = "", **options: Any) -> Any: ...
@overload
def draw(result: Any, path: str | Path, *, ax: Axes | None = None, title: str = "", **options: Any) -> Path: ...
def draw(result: Any, path: str | Path | None = None, *, ax: Any = None, title: str = "", **options: Any) -> Any:
    """Draws the picture that belongs to the type of a result.

    ==================  ============================================================================================
    result              picture, and its options
    ==================  ============================================================================================
    `Solution`          one motion over time; ``exact``: t (k,) -> (q, v), drawn dashed; ``gaps``: (t, q) -> (k, m),
                        in a panel of its own. For a batch quantiles and impacts over time, and final positions;
                        ``swept``: quantities that differ between lanes, arrays (B,) by label, drawn for d = 1
    `Impacts`           speeds over time; for several motions the times of impacts, lane by lane
    `Slips`             slip at each contact over time, thick where it sticks; for several motions stops, breaks and reversals, lane by lane; of
                        listed bodies at the contacts with most work of friction
    `Balance`           energies, and the residuals
    `Convergence`       errors over h, with observed orders and lines of slope 1 and 2
    `Statistics`        quantile bands of ``component`` of ``name``, over time or groups (``label``)
    `Section`           velocity over position of one ``coordinate``; the same for `Crossings`
    `ImpactSection`     velocity before each impact over its phase, each contact in its colour
    `Bifurcation`       positions of one ``coordinate``, or component ``coordinate`` of the diagram's quantity ``of``, and the
                        period, over the parameter; ``label`` of its axis, with a unit, say
    `ParameterMap`      period and impacts over the two parameters; ``labels`` of their axes, two texts
    `Basins`            one colour for each attractor
    `PeriodicOrbit`     multipliers in the complex plane
    `BifurcationCurve`  the curve in the plane of its parameters; ``labels`` of their axes, two texts
    `Branch`            state, multipliers, impact speed and clearance over the parameter, and the events; ``label`` of its axis
    `Sensitivities`     derivatives of one ``output``, inputs ranked ``by`` "relative" or "absolute" derivatives
    `Ranking`           derivatives of one ``output``, ranked
    `Covariance`        shares of the inputs in the variance of each output
    `Linearity`         samples of one ``output`` beside their linearisation
    `Indices`           indices of one ``output`` with confidence intervals
    `Report`            cases over simulators, of the conformance suite
    `Lyapunov`          block means; for a batch exponents over ``parameter`` (B,), with its ``label``
    ==================  ============================================================================================

    Args:
        result: a result of one of these types.
        path: the picture to write; its suffix chooses the format (.png, .pdf, .svg).
        ax: axes of matplotlib to draw on. If the picture has several panels, only the first one is drawn: positions of
            a motion, quantiles of one ``component`` of a batch, energies, states.
        title: heading.
        options: of the picture, as above.

    Returns:
        The path; without a path the axes drawn on, an array of them for several panels.

    Raises:
        TypeError: a result without a picture, or an option that the picture does not know. ValueError: ``ax`` together
            with ``path``; a result that holds nothing to draw. ImportError: no matplotlib.
    """  # noqa: E501
    picture = _picture_of(result)
    if ax is not None and path is not None:
        raise ValueError("path and ax exclude each other: draw on ax, then save its figure, ax.figure.savefig(path)")
    if ax is not None and not hasattr(ax, "plot"):
        raise TypeError(f"ax must be one Axes of matplotlib, got {type(ax).__name__}: of several give one, axes[0]")
    if result._is_traced():
        raise TypeError(
            f"result: a {type(result).__name__} that is traced has no numbers to draw: call it outside of jax's "
            "transformations"
        )
    _check_options(
        result, picture if ax is None or picture.main is None else picture._replace(function=picture.main), options
    )
    if ax is not None and picture.main is not None:
        axes, remark = ax, picture.main(result, ax, **options)
    elif picture.size is None:
        axes, remark = picture.function(result, **options)
    else:
        axes = new_figure(*picture.size).subplots() if ax is None else ax
        remark = picture.function(result, axes, **options)
    heading = "\n".join(filter(None, (title, remark)))
    if ax is not None:
        ax.set_title("\n".join(filter(None, (heading, ax.get_title()))))
        return ax
    figure = np.ravel(axes)[0].figure
    if heading:
        set_heading(figure, heading)
    if path is None:
        return axes
    figure.savefig(path, dpi=150)
    return Path(path)


def _picture_of(result: object) -> Picture:
    found = SOLUTIONS.get(np.ndim(result.q)) if isinstance(result, Solution) else None
    for kind in type(result).__mro__:
        found = found or PICTURES.get(kind)
    if found is None:
        what = f"q of shape {np.shape(result.q)}" if isinstance(result, Solution) else "no picture"
        known = ", ".join(sorted(["Solution", *(kind.__name__ for kind in PICTURES)]))
        raise TypeError(f"result: a {type(result).__name__} with {what} cannot be drawn; there are pictures of {known}")
    return found


def _check_options(result: object, picture: Picture, options: dict) -> None:
    """Raises TypeError for an option that the picture does not know."""
    parameters = inspect.signature(picture.function).parameters.values()
    known = [x.name for x in parameters if x.kind is x.KEYWORD_ONLY]
    unknown = [name for name in options if name not in known]
    if unknown and not any(x.kind is x.VAR_KEYWORD for x in parameters):
        batch = isinstance(result, Solution) and np.ndim(result.q) == 3
        what = "a batch" if batch else f"one {type(result).__name__}"
        words = f"has the options {', '.join(known)}" if known else "has no options"
        raise TypeError(f"{unknown[0]}: the picture of {what} {words}")


def __getattr__(name: str) -> Any:
    """Returns `draw` for the deprecated names ``plot_motion``, ``plot_convergence`` and ``plot_ensemble``,
    with a warning."""
    if name in ("plot_motion", "plot_convergence", "plot_ensemble"):
        warnings.warn(f"plots.{name}(...) is plots.draw(...) now", DeprecationWarning, stacklevel=2)
        return draw
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
