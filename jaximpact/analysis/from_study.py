"""Arguments and sections for analyses of a `Study`: its lanes are computed again or, without ``steps``,
the rows that it saved are used."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..jaxtools.argument_checks import check_counts
from ..mechanics.motion import OF_CONTACTS, STATED
from ..mechanics.scheme import Scheme
from ..simulation.call import Arguments
from .checks import (
    ParameterName,
    StudyLike,
    TimeLike,
    of_one_lane,
    one_lane,
    parameter_path,
    positive_time,
    share_of_period,
)
from .crossings import section
from .sections import Section

if TYPE_CHECKING:
    from .shooting_equations import Surface

METHODS = (*OF_CONTACTS, "scheme", "projection")


def computes_anew(options: Arguments) -> bool:
    """Whether an analysis of a study computes its motions anew: if ``steps``, or a scheme that chooses its own,
    is among its options."""
    scheme = options.get("scheme")
    return "steps" in options or (isinstance(scheme, Scheme) and scheme.traits.by_tolerance)


def diagram_lanes(
    study: StudyLike,
    parameter: ParameterName,
    sweep: str | None,
    surface: Surface | None,
    direction: int,
    options: Arguments,
) -> tuple[np.ndarray, int, Section]:
    """Returns the data of a bifurcation diagram from a study: the P distinct values of the varied quantity
    ``parameter``, the number of lanes of each value, and the section of all lanes, sorted by value.
    Other arguments as in `bifurcation`."""
    if sweep is not None:
        raise ValueError(
            f"sweep={sweep!r}: the lanes of a study start from states of their own; to follow an attractor give "
            "problem, q0, v0 and values"
        )
    if not isinstance(parameter, str):
        raise TypeError(f"parameter must be the name of a quantity that the study varies, got {parameter!r}")
    column = study.quantity(parameter)
    if column.ndim != 1:
        raise ValueError(f"parameter {parameter} of the study must be one number, got shape {column.shape[1:]}")
    values, member, count = np.unique(column, return_inverse=True, return_counts=True)
    if np.ptp(count):
        raise ValueError(
            f"parameter {parameter}: the study has between {count.min()} and {count.max()} lanes of one value; a "
            "diagram takes as many of "
            "each, as those of Design.grid"
        )
    if computes_anew(options):
        known = study.arguments()
        own = {name: known[name] for name in ("args", "args_axes", *METHODS)} | options
        found = section(surface, direction, study.problem, known["q0"], known["v0"], **own)
    else:
        found = saved_section(study, surface=surface, **options)
    return values, int(count[0]), some_lanes(found, np.argsort(member, kind="stable"))


def some_lanes(section: Section, which: np.ndarray) -> Section:
    """Selects lanes of a section, in the order of ``which``."""
    arrays = {
        field.name: getattr(section, field.name)[which]
        for field in fields(Section)
        if field.name not in ("naming", "made")
    }
    return replace(section, **arrays)


def saved_section(
    study: StudyLike,
    *,
    period: TimeLike,
    cycles: int,
    skip: int | None = None,
    phase: float = 0.0,
    surface: Surface | None = None,
    **rest: Any,
) -> Section:
    """Returns the states of all lanes at ``cycles`` times, one in each forcing period,
    from the rows that a study saved.

    The periods are the last ones or, if ``skip`` is given, those after the first ``skip``.

    Raises:
        ValueError: no row was saved at one of these times. TypeError: an option requires a new computation.
    """
    beyond = sorted(rest) + ([] if surface is None else ["surface"])
    if beyond:
        raise TypeError(
            f"{beyond[0]}: without steps the states are those that the study saved, once a forcing period; give steps, "
            "or scheme=EventDriven(), to compute them anew"
        )
    check_counts(cycles=cycles, **({} if skip is None else {"skip": skip}))
    phase, known, motions = share_of_period(phase), study.arguments(), study.solution()
    if "until" in known:
        raise ValueError(
            "the study ends its motions at a surface, and has no rows behind it: give steps, or scheme=EventDriven(), "
            "to compute anew"
        )
    lanes, dtype = len(motions.status), motions.q.dtype
    every = np.broadcast_to(positive_time("period", period, known["args"], known["args_axes"]), (lanes,))
    t0, t1 = (np.broadcast_to(np.asarray(known[name], float), (lanes,)) for name in ("t0", "t1"))
    exact = 1e-9 * every + 16 * np.finfo(dtype).eps * np.abs(t1)  # rounding of row times, which are multiples of h
    first, last = np.ceil((t0 - exact) / every - phase) + 1, np.floor((t1 + exact) / every - phase)
    begin = last - cycles + 1 if skip is None else first + skip
    if np.any((begin < first) | (begin + cycles - 1 > last)):
        most = int(np.min(last - first + 1))
        raise ValueError(f"cycles={cycles}, skip={skip or 0}: the motions of the study have {most} forcing periods")
    t = (begin[:, None] + np.arange(cycles) + phase) * every[:, None]
    rows = np.broadcast_to(np.asarray(motions.t, float), (lanes, motions.q.shape[1]))
    place = np.array([np.searchsorted(own, at) for own, at in zip(rows, t - exact[:, None], strict=True)])
    place = np.minimum(place, rows.shape[1] - 1)
    apart = np.abs(np.take_along_axis(rows, place, axis=1) - t)
    lost = np.asarray(motions.failed)
    missing = (apart > 2 * exact[:, None]) & ~lost[:, None]
    if np.any(missing):
        raise ValueError(
            f"the study has no row at t = {t[missing][0]:g}, a forcing period after others: make it with h = "
            "period/steps and save=Save(every=steps), "
            "or give steps, or scheme=EventDriven(), to compute the states anew"
        )
    q, v = (np.take_along_axis(np.asarray(x), place[..., None], axis=1) for x in (motions.q, motions.v))
    q, v = (np.where((apart > 2 * exact[:, None])[..., None], np.nan, x) for x in (q, v))
    return Section(t, q, v, every, np.asarray(motions.status), np.asarray(motions.failed_at), motions.naming)


def map_arguments(study: StudyLike) -> Arguments:
    """Arguments of `two_parameter_map` from a study over a grid of two parameters."""
    keys, values = _pair(study, (*OF_CONTACTS, "args"), "two parameters, Design.grid(**{'e': ..., 'args.NAME': ...})")
    names = tuple(key.text if key.root == "args" else f"problem.{STATED[key.root]}" for key in keys)
    if any(key.component is not None for key in keys):
        raise ValueError("study: a map is over parameters of one number each, not over components of one")
    return _first(study) | {"parameters": names, "values": values}


def basin_arguments(study: StudyLike) -> Arguments:
    """Arguments of `basins` from a study over a grid of two initial numbers."""
    keys, values = _pair(study, ("q0", "v0"), "two initial numbers, Design.grid(**{'q0[0]': ..., 'v0[0]': ...})")
    if any(key.component is None for key in keys):
        raise ValueError("study: basins are over components of q0 and v0, named 'q0[0]', 'v0[0]'")
    coordinates = tuple((key.root[0], key.component[0]) for key in keys)
    return _first(study) | {"coordinates": coordinates, "x": values[0], "y": values[1]}


def _pair(study: StudyLike, roots: tuple[str, ...], what: str) -> tuple[tuple, tuple[np.ndarray, ...]]:
    """Returns the keys and the values of the two quantities that a study varies over a grid; ValueError unless their
    names begin with ``roots``.

    ``what``: description of allowed quantities, for the message.
    """
    design = study.design
    keys = design.keys
    if design.kind != "grid" or len(keys) != 2 or any(key.root not in roots for key in keys):
        raise ValueError(
            f"study: this is of one over a grid of {what}; this one varies {', '.join(key.text for key in keys)} over "
            f"{design.kind}: make "
            "another, or give problem and arguments themselves"
        )
    return keys, tuple(np.asarray(design.values[key.text]) for key in keys)


def motion_arguments(study: StudyLike, number: int) -> Arguments:
    """Arguments of `solve` for one lane of a study, given by its place in the design."""
    known = study.arguments([number])
    ranks = {"q0": 1, "v0": 1, "t0": 0, "t1": 0}
    numbers = {
        name: np.asarray(known[name])[0] if np.ndim(known[name]) > rank else known[name] for name, rank in ranks.items()
    }
    methods = {"scheme": known["scheme"], "projection": known["projection"]}
    return (
        {"problem": study.problem, "args": one_lane(known["args"], known["args_axes"])}
        | numbers
        | {name: of_one_lane(known[name]) for name in OF_CONTACTS}
        | methods
    )


def branch_arguments(study: StudyLike, parameter: str, lane: Any) -> Arguments:
    """Arguments of `continue_orbit` from one lane of a study; if the study varies the parameter,
    its range gives the bounds."""
    if not isinstance(parameter, str):
        raise TypeError(
            f"parameter must be the name of one, 'args.NAME', 'e', 'friction' or 'static_friction', got {parameter!r}"
        )
    if lane is None:
        raise TypeError(
            "a branch begins at one orbit: say which lane of the study it is near, lane=0 (its start, or q0=... and "
            "v0=..., is the guess)"
        )
    found = motion_arguments(study, study.number(lane))
    del found["t1"]
    column = study.design.values.get(".".join(parameter_path(parameter, found["args"])), np.zeros(1))
    if column.ndim == 1 and np.ptp(column) > 0:
        found["bounds"] = (float(np.min(column)), float(np.max(column)))
    return found | {"parameter": parameter}


def _first(study: StudyLike) -> Arguments:
    """Arguments of `solve` for a study's first lane, without t0 and t1:
    sections have a phase and a number of periods instead."""
    found = motion_arguments(study, 0)
    return {name: x for name, x in found.items() if name not in ("t0", "t1")}
