"""Base class of all results: short printing, and conversion to tables, datasets, pictures and files.

Methods that need a package above this one, such as plots, import it when they are called.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import singledispatch
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

import jax
import numpy as np

from ..jaxtools.argument_checks import is_traced
from ..jaxtools.optional_packages import import_optional
from ..mechanics.labels import QUANTITIES, Labels
from ..mechanics.status import Status
from .provenance import provenance
from .tables import named_dataset, spread_columns

if TYPE_CHECKING:
    import pandas
    import xarray

Arrays = dict[str, tuple[tuple[str, ...], Any]]  # by name: dimensions and the array, or several by name
WIDTH = 100  # characters of a line


@dataclass(frozen=True, repr=False)
class Result:
    """Base class of results: a dataclass that prints one line for each field,
    with shapes and ranges of arrays in place of their numbers.

    Attributes:
        made: pairs (name, text) of versions, device and processor that it was computed with, if it comes from a file;
            else None.
    """

    made: Any = field(default=None, kw_only=True, compare=False)

    def _facts(self) -> list[tuple[str, str]]:
        """Names and short descriptions for ``repr``."""
        fields = [(name, x) for name, x in vars(self).items() if x is not None and name != "made"]
        texts = [(name, _statuses(x) if name == "status" else describe_value(x)) for name, x in fields]
        return [(name, text) for name, text in texts if text]

    def __repr__(self) -> str:
        facts = self._facts()
        width = max((len(name) for name, _ in facts), default=0)
        return "\n".join([type(self).__name__, *(f"  {name:<{width}}  {text}" for name, text in facts)])

    def _brief(self) -> str:
        """Description in a few words, for use within another result's ``repr``."""
        first, *rest = repr(self).split("\n")
        return f"{first}, {', '.join(line.strip() for line in rest[:3])}" if rest else first

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th><td "
            f"style='text-align:left'>{html.escape(text)}</td></tr>"
            for name, text in self._facts()
        )
        return f"<table><caption style='text-align:left'><b>{type(self).__name__}</b></caption>{rows}</table>"

    def _is_traced(self) -> bool:
        """Whether its numbers are unknown because they are traced by a jax transformation."""
        return is_traced(vars(self))

    def _with_labels(self, naming: Labels, every_step: bool | None) -> Self:
        """Copy with names and units set, also in nested results; a solution also records
        whether its rows are all steps."""
        inner = {name: x._with_labels(naming, None) for name, x in vars(self).items() if isinstance(x, Result)}
        own = {"naming": naming} if "naming" in vars(self) else {}
        return replace(self, **inner, **own)

    def _columns(self) -> dict[str, np.ndarray] | None:
        """Columns (n,) of its table; None for a result without a table."""
        return None

    def _table(self, *names: str) -> dict[str, np.ndarray]:
        """Columns (n,) by name, from the fields (n, ...) with these names: one for each component."""
        return {
            key: x for name in names for key, x in spread_columns(name, getattr(self, name), self._names(name)).items()
        }

    def _names(self, name: str) -> tuple[str, ...] | None:
        """Names of the components of a field whose last axis is that of coordinates, constraints or joints;
        None if they have none."""
        labels = getattr(self, "naming", None)
        return labels.names(name) if labels is not None and name in QUANTITIES else None

    def to_pandas(self) -> pandas.DataFrame:
        """This result as a table (`pandas.DataFrame`); needs pandas.

        Raises:
            TypeError: this class has no table. ImportError: pandas is missing.
        """
        columns = self._columns()
        if columns is None:
            raise TypeError(
                f"a {type(self).__name__} is no table: its numbers are "
                f"{', '.join(name for name in vars(self) if name != 'made')}"
            )
        return import_optional("pandas").DataFrame(columns)

    def _arrays(self) -> Arrays | None:
        """The arrays of this result with the names of their dimensions; None if these have no names."""
        return None

    def _along(self, dimensions: str, *names: str) -> Arrays:
        """The fields with these names, each with the given ``dimensions``, names separated by spaces,
        as a part of `_arrays`."""
        return {name: (tuple(dimensions.split()), getattr(self, name)) for name in names}

    def to_xarray(self) -> xarray.Dataset:
        """This result as an `xarray.Dataset` with named dimensions; needs xarray.
        Nested results have datasets of their own.

        Raises:
            TypeError: its arrays have no named dimensions. ImportError: xarray is missing.
        """
        return named_dataset(self)

    def save(self, path: str | Path) -> Path:
        """Write everything to a file that `jaximpact.load` reads: .npz, .nc (NetCDF) or .zarr.

        NetCDF and Zarr hold the dataset of `to_xarray`, readable without jaximpact, and all else that is needed to
        restore the result; they need h5netcdf, or zarr, and xarray.

        Functions in a result are left out: after loading, for instance, `Covariance.check` cannot compute new motions.

        Returns:
            The path.

        Raises:
            ValueError: another ending. TypeError: its numbers are traced, or a field cannot be stored.
        """
        return files().save(self, path)

    @property
    def provenance(self) -> dict[str, str]:
        """Versions, device and processor of the computation: those of this process, or those recorded in the file that
        the result comes from."""
        return provenance() if self.made is None else dict(self.made)


class Drawable(Result):
    """A result with a picture: `jaximpact.plots.draw` can draw it."""

    def plot(self, path: str | Path | None = None, **options: Any) -> Any:
        """Draws the picture to a file or on axes (``ax``), with a ``title``: see `jaximpact.plots.draw`;
        needs matplotlib.

        Returns:
            The axes; an array of axes if there are several panels; the path if one is given.
        """
        return plots().draw(self, path, **options)


def plots() -> ModuleType:
    """Returns the package `jaximpact.plots`, which is above this one and imported when it is needed."""
    return import_module("...plots", __name__)


def analysis() -> ModuleType:
    """Returns the package `jaximpact.analysis`, which is above this one and imported when it is needed."""
    return import_module("...analysis", __name__)


def files() -> ModuleType:
    """Returns the module `results.files`, imported when it is needed, as it imports this module."""
    return import_module("..files", __name__)


def _statuses(value: object) -> str:
    """Status bits of one or many motions in words, with the number of motions that have any."""
    if is_traced(value) or np.asarray(value).dtype.kind not in "iu":
        return describe_value(value)
    status = np.asarray(value)
    bits = str(Status(int(np.bitwise_or.reduce(status, axis=None))))
    return f"{bits} in {np.count_nonzero(status)} of {status.size}" if status.ndim and np.any(status) else bits


@singledispatch
def describe_value(value: object) -> str:
    """Describes a value in one line; an array by its shape and range, never by its single numbers."""
    return _short(str(value))


@describe_value.register
def _(value: Result) -> str:
    return _short(value._brief())


@describe_value.register
def _(value: float) -> str:
    return f"{value:.6g}"


@describe_value.register
def _(value: Mapping) -> str:
    return _short("; ".join(f"{key}: {_shape(x)}" for key, x in value.items()))


@describe_value.register
def _(value: list | tuple) -> str:
    if len(value) > 3:
        return f"{len(value)} of {type(value[0]).__name__}"
    if not value:
        return "none"
    if all(isinstance(x, Result) for x in value):
        return _short("; ".join(x._brief() for x in value))
    return _short(str(value))


@describe_value.register
def _(value: jax.core.Tracer | jax.ShapeDtypeStruct) -> str:
    return f"{value.dtype}{tuple(value.shape)}"


@describe_value.register
def _(value: np.ndarray | np.generic | jax.Array) -> str:
    array, shape = np.asarray(value), str(np.shape(value))
    if array.size == 0 or array.dtype.kind not in "biufc":
        return f"{shape} {array.dtype}"
    if array.dtype.kind == "b":
        return str(bool(array)) if array.ndim == 0 else f"{shape} true in {int(array.sum())} of {array.size}"
    finite = np.isfinite(array)
    if array.ndim == 0:
        return f"{array.item():.6g}"
    lost = f", {array.size - int(finite.sum())} not finite" if not finite.all() else ""
    if array.dtype.kind == "c":
        array, shape = np.abs(array), f"{shape} complex, modulus"
    seen = array[finite]
    return f"{shape} {seen.min():.6g} ... {seen.max():.6g}{lost}" if seen.size else f"{shape} none finite"


@singledispatch
def _shape(value: object) -> str:
    return _short(str(value))


@_shape.register
def _(value: np.ndarray | np.generic | jax.Array | jax.ShapeDtypeStruct) -> str:
    return "x".join(map(str, value.shape)) or "1"


@_shape.register
def _(value: Mapping) -> str:
    return "{" + ", ".join(f"{key}: {_shape(x)}" for key, x in value.items()) + "}"


@_shape.register
def _(value: list | tuple) -> str:
    return f"[{len(value)}]"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= WIDTH else text[: WIDTH - 4] + " ..."
