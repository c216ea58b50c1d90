"""Conversion of a `Solution` to an xarray dataset and a pandas table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax
import numpy as np
from numpy.typing import ArrayLike

from ..jaxtools.optional_packages import import_optional
from ..mechanics.events.impact_record import KINDS
from ..mechanics.labels import OF_COORDINATES, OF_JOINTS, QUANTITIES, UNNAMED, Labels
from ..mechanics.status import bit_numbers
from .safe_reading import JsonObject

if TYPE_CHECKING:
    import pandas
    import xarray

    from .result import Result
    from .solution import Solution

SECOND, PURE = "s", "1"
# name: (dimensions, units, meaning)
MEANING: dict[str, tuple[tuple[str, ...], str, str]] = {
    "t": (("time",), SECOND, "time of the row"),
    "q": (("time", "coordinate"), "", "position U, interpolated affinely between steps"),
    "v": (("time", "coordinate"), "", "velocity over the step that ends at or after the row's time"),
    "z": (("time", "coordinate"), "", "admissible position Z of that step"),
    "impulse": (("time", "constraint"), "", "impulse of each constraint accumulated since the start"),
    "energy": (("time",), "J", "energy at (q, v)"),
    "friction_impulse": (
        ("time", "constraint", "tangent"),
        "",
        "impulse of friction at each contact along its tangents accumulated since the start",
    ),
    "joint_impulse": (("time", "joint"), "", "impulse of each joint equation accumulated since the start"),
    "pairs": (("time", "constraint", "end"), PURE, "bodies of each contact; obstacle a is -1 - a"),
    "penetration": ((), "", "largest violation of a gap by U over all steps, in units of the gap"),
    "joint_residual": ((), "", "largest value of a joint equation over all steps"),
    "error": ((), PURE, "estimated errors of all substeps added up, in units of the tolerance"),
    "failed_by": ((), PURE, "number of the event that a step met last which did not reach its end, -1 where none"),
    "residual": ((), "", "largest KKT residual of a projection, a gap velocity"),
    "iterations": ((), PURE, "projection iterations of all steps"),
    "status": ((), PURE, "Status bits OR-ed over the steps"),
    "failed_at": ((), SECOND, "time of the first failure, NaN where none"),
    "stopped": ((), PURE, "whether the motion came to the end that until= asks for before t1"),
}
# fields of `LocatedImpacts`, named "events_..." in datasets and files
EVENTS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "t": (("impact",), SECOND, "time of the impact"),
    "contact": (("impact",), PURE, "its constraint, -1 for an impact that did not happen"),
    "q": (("impact", "coordinate"), "q", "position"),
    "before": (("impact", "coordinate"), "v", "velocity just before"),
    "after": (("impact", "coordinate"), "v", "velocity just after"),
    "impulse": (("impact",), "impulse", "impulse of the contact"),
    "count": ((), PURE, "number of impacts of the whole motion"),
    "kind": (("impact",), PURE, f"place of the event's kind among {', '.join(KINDS)}"),
}
STATE = (
    "q",
    "v",
    "z",
    "impulse",
    "energy",
    "joint_impulse",
    "friction_impulse",
    "pairs",
)  # of which a save function leaves the final row


def arrays(solution: Solution) -> dict[str, np.ndarray]:
    """The arrays of a solution by name; leaves of ``values`` are named values_ and their path."""
    found = {name: np.asarray(getattr(solution, name)) for name in MEANING if getattr(solution, name) is not None}
    if solution.events is not None:
        of_events = {name: getattr(solution.events, name) for name in EVENTS}
        found |= {f"events_{name}": np.asarray(x) for name, x in of_events.items() if x is not None}
    for path, leaf in jax.tree_util.tree_leaves_with_path(solution.values):
        parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
        name = value_name(("values", *parts))
        if name in found:
            raise ValueError(f"values: two of the numbers that the save function returned would be called {name}")
        found[name] = np.asarray(leaf)
    return found


def value_name(where: tuple[str, ...]) -> str:
    """Name of a leaf of ``values`` in files and datasets, without slashes, which would be paths in a file."""
    return "_".join(where).replace("/", "_")


def to_dataset(solution: Solution) -> xarray.Dataset:
    """Converts a solution to a dataset: see `Solution.to_xarray`."""
    xarray = import_optional("xarray")
    found, rank = arrays(solution), np.ndim(solution.penetration)
    lanes = ("lane",) if rank == 1 else tuple(f"lane_{i}" for i in range(rank))
    times = found["t"].reshape(-1, found["t"].shape[-1])
    common = len(times) > 0 and bool(np.all(times == times[0]))
    if common:
        del found["t"]
    variables = {}
    for name, value in found.items():
        dims, units, meaning = MEANING.get(name, (("time",), "", "what the save function returned"))
        if solution.events is not None and name.startswith("events_"):
            dims, units, meaning = EVENTS[name.removeprefix("events_")]
            units = solution.naming.unit(units) if units in QUANTITIES else units
        if solution.values is not None and name in STATE:
            # one row, the final state
            value, dims, meaning = value.take(0, axis=rank), dims[1:], f"{meaning}; at t1"
        if 0 in value.shape[rank:]:
            continue
        dims = lanes + dims + tuple(f"{name}_{i}" for i in range(value.ndim - rank - len(dims)))
        quantity = "gap" if name == "penetration" else name
        units = solution.naming.unit(quantity) if quantity in QUANTITIES else units
        units = solution.naming.energy_unit() if name == "energy" else units
        attributes: JsonObject = {"long_name": meaning} | ({"units": units} if units else {})
        if name == "status":
            attributes |= {"flag_masks": [*bit_numbers().values()], "flag_meanings": " ".join(bit_numbers())}
        variables[name] = (dims, value, attributes)
    coordinates: dict = {}
    if common:
        coordinates["time"] = ("time", times[0], {"long_name": "time", "units": SECOND})
    for dimension, names in dimension_names(solution.naming).items():
        if names:
            coordinates[dimension] = (dimension, list(names))
    about = {"title": "a motion" if rank == 0 else "motions"}
    if solution.timing is not None:
        about["scheme"] = solution.timing.scheme
    about |= {f"made_with_{name}": text for name, text in solution.provenance.items()}
    return xarray.Dataset(variables, coordinates, about)


def named_dataset(result: Result, any_result: bool = False) -> xarray.Dataset:
    """Returns the dataset of `Result.to_xarray`.

    For a result without named dimensions it raises TypeError or, with ``any_result``, returns a dataset without arrays.
    """
    found = result._arrays()
    if found is None and not any_result:
        raise TypeError(f"the arrays of a {type(result).__name__} have no named dimensions")
    xarray = import_optional("xarray")
    naming = next((x.naming for x in (result, *vars(result).values()) if hasattr(x, "naming")), UNNAMED)
    variables: dict = {}
    for name, (dims, tree) in (found or {}).items():
        parts = {f"{name}_{key}": x for key, x in tree.items()} if isinstance(tree, Mapping) else {name: tree}
        for full, value in parts.items():
            if value is None:
                continue
            array, quantity = np.asarray(value), full.removeprefix(f"{name}_") if full != name else name
            rest, last = array.ndim - len(dims), dimension_of(quantity)
            more = (last,) if rest == 1 and quantity in QUANTITIES else tuple(f"{full}_{i}" for i in range(rest))
            unit = naming.unit(quantity) if quantity in QUANTITIES else ""
            variables[full] = (dims + more, array, {"units": unit} if unit else {})
    used = {dim for dims, *_ in variables.values() for dim in dims}
    for dimension, names in dimension_names(naming).items():
        if names and dimension in used:
            variables[dimension] = ((dimension,), list(names))
    about: JsonObject = {"title": type(result).__name__}
    about |= {name: x for name, x in vars(result).items() if isinstance(x, str | int | float) and name not in variables}
    about |= {f"made_with_{k}": x for k, x in result.provenance.items()}
    return xarray.Dataset(variables, None, about)


def dimension_of(quantity: str) -> str:
    """Name of the dimension along which the components of a ``quantity`` lie: "coordinate", "joint" or "constraint"."""
    return "coordinate" if quantity in OF_COORDINATES else "joint" if quantity in OF_JOINTS else "constraint"


def dimension_names(naming: Labels) -> dict[str, tuple[str, ...] | None]:
    """Names of coordinates, constraints and joints, by name of the dimension; None for those without names."""
    return {dimension_of(quantity): naming.names(quantity) for quantity in ("q", "impulse", "joint_impulse")}


def to_table(solution: Solution) -> pandas.DataFrame:
    """Converts a solution to a table: see `Solution.to_pandas`."""
    pandas = import_optional("pandas")
    found, rank = arrays(solution), np.ndim(solution.penetration)
    t = found["t"]
    count, rows = int(np.prod(t.shape[:-1])), t.shape[-1]
    columns: dict[str, np.ndarray] = {}
    for name, value in found.items():
        by_row = name in ("t", *STATE) if solution.values is None else name == "t" or name.startswith("values")
        if by_row:
            flat = value.reshape(count * rows, *value.shape[rank + 1 :])
            columns |= spread_columns(name, flat, solution.naming.names(name) if name in QUANTITIES else None)
    time = columns.pop("t")
    if rank == 0:
        return pandas.DataFrame(columns, index=pandas.Index(time, name="t"))
    index = [np.repeat(place, rows) for place in np.indices(t.shape[:-1]).reshape(rank, -1)]
    names = ["lane"] if rank == 1 else [f"lane_{i}" for i in range(rank)]
    return pandas.DataFrame(columns, index=pandas.MultiIndex.from_arrays([*index, time], names=[*names, "t"]))


def spread_columns(name: str, values: ArrayLike, names: tuple[str, ...] | None = None) -> dict[str, np.ndarray]:
    """Columns (n,) from an array (n, ...): ``name`` itself, or one column per component,
    with ``names`` of the components if given."""
    array = np.asarray(values)
    if array.ndim <= 1:
        return {name: array}
    components = list(np.ndindex(array.shape[1:]))
    label = lambda k: names[k[0]] if names is not None and len(k) == 1 else ",".join(map(str, k))
    return {f"{name}[{label(k)}]": array[(slice(None), *k)] for k in components}
