"""Designs of studies: quantities varied over a grid, a Latin hypercube or given points,
and their partition into blocks of lanes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import check_whole
from ..mechanics.method_names import suggestion
from ..mechanics.motion import OF_FRICTION

ROOTS = ("q0", "v0", "e", "h", "t0", "t1", *OF_FRICTION)
FORM = re.compile(r"(?P<root>[^.\[\]]+)(?P<path>(\.[^.\[\]]+)*)(?P<index>\[\d+(,\s*\d+)*\])?")


class Key(NamedTuple):
    """A varied quantity, parsed from its key ``text``, such as "args.stiffness[0]".

    ``root``: the argument of `ensemble`, or "args"; ``path``: for args, the names that lead to the parameter;
    ``component``: index of one entry of an array, None for the whole.
    """

    text: str
    root: str
    path: tuple[str, ...]
    component: tuple[int, ...] | None

    @classmethod
    def of(cls, text: str) -> Key:
        """Parses a key such as "e", "q0[1]", "args.wall", "args.arm.length" or "args.stiffness[0]"."""
        found = FORM.fullmatch(text)
        if found is None or found["root"] not in (*ROOTS, "args"):
            root = text.partition(".")[0].partition("[")[0]
            raise ValueError(
                f"design: no quantity {text!r}; {suggestion(root, [*ROOTS, 'args.NAME'])} Parameters are written "
                "args.NAME, "
                "components q0[0]"
            )
        path = tuple(found["path"].split(".")[1:])
        if (found["root"] == "args") != bool(path):
            raise ValueError(f"design: {text!r}: write args.NAME for a parameter, and {', '.join(ROOTS)} as they are")
        index = None if found["index"] is None else tuple(int(i) for i in found["index"][1:-1].split(","))
        if found["root"] in ("h", "t0", "t1") and index is not None:
            raise ValueError(f"design: {text!r}: {found['root']} is one number and has no components")
        return cls(text, found["root"], path, index)

    @property
    def name(self) -> str:
        """Coordinate name: wall for "args.wall", q0_0 for "q0[0]"."""
        parts = self.path if self.root == "args" else (self.root,)
        return "_".join((*parts, *map(str, self.component or ())))


@dataclass(frozen=True, eq=False, repr=False)
class Design:
    """The lanes of a study; make one with `grid`, `latin_hypercube` or `points`.

    Attributes:
        kind: "grid", a product of named dimensions, or "points", one dimension "lane".
        values: values (n,) of each quantity by its key, (n, ...) if the quantity is an array.
        note: how the values were chosen.

    Quantities are "q0", "v0", "e", "friction", "static_friction", "h", "t0", "t1", parameters "args.NAME" (nested
    "args.a.b") and components "q0[0]", "args.NAME[1]". A dimension is named after its quantity: e, wall, q0_0.
    """

    kind: str
    values: dict[str, np.ndarray]
    note: str = ""

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("design: give at least one quantity with its values, e.g. Design.grid(e=[0.5, 0.7, 0.9])")
        for key, column in self.values.items():
            if column.ndim == 0 or column.shape[0] == 0:
                raise ValueError(f"design: {key} must be an array of at least one value, got shape {column.shape}")
            if not np.all(np.isfinite(column)):
                raise ValueError(f"design: {key} must be finite")
        for a in self.keys:
            for b in self.keys:
                same = (a.root, a.path) == (b.root, b.path)
                if same and a != b and None in (a.component, b.component):
                    raise ValueError(f"design: give either {a.text} as a whole or its components, not both")
        sizes = {key: len(column) for key, column in self.values.items()}
        if self.kind == "points" and len(set(sizes.values())) > 1:
            raise ValueError(f"design: all quantities of points must have one length, got {sizes}")

    @classmethod
    def grid(cls, **values: Any) -> Design:
        """Every combination of the values given for each quantity; dimensions in the order of the arguments."""
        return cls("grid", _columns(values), "grid")

    @classmethod
    def points(cls, **values: Any) -> Design:
        """Given points: lane i takes the i-th value of every quantity; arrays of one length, q0 and v0 (B, d)."""
        return cls("points", _columns(values), "points")

    @classmethod
    def latin_hypercube(cls, count: int, *, seed: int = 0, **bounds: Any) -> Design:
        """Latin hypercube of ``count`` points: if the interval (low, high) of a quantity is cut into ``count`` equal
        slices, each holds one point.

        Reference: M. D. McKay, R. J. Beckman, W. J. Conover, Technometrics 21 (1979) 239-245.
        """
        check_whole("design: count", count)
        for key, pair in bounds.items():
            if np.shape(pair) != (2,) or not pair[0] < pair[1]:
                raise ValueError(f"design: {key} must be (low, high) with low < high, got {pair!r}")
        if not bounds:
            return cls("points", {})
        share = scipy.stats.qmc.LatinHypercube(len(bounds), rng=seed).random(count)
        low, high = np.array(list(bounds.values()), np.float64).T
        columns = (low + (high - low) * share).T
        return cls("points", dict(zip(bounds, columns, strict=True)), f"Latin hypercube, seed {seed}")

    @property
    def keys(self) -> tuple[Key, ...]:
        """Keys of the quantities that vary."""
        return tuple(Key.of(text) for text in self.values)

    @property
    def names(self) -> dict[str, str]:
        """Coordinate name of each quantity by its key; parameters whose names would coincide keep the prefix args_."""
        short = [key.name for key in self.keys]
        return {
            key.text: f"args_{key.name}" if key.root == "args" and short.count(key.name) > 1 else key.name
            for key in self.keys
        }

    @property
    def dims(self) -> tuple[str, ...]:
        """Dimension names: the quantities of a grid, or "lane"."""
        if self.kind == "points":
            return ("lane",)
        return tuple(name if self.values[key].ndim == 1 else f"{name}_index" for key, name in self.names.items())

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values along each dimension."""
        sizes = [len(column) for column in self.values.values()]
        return tuple(sizes) if self.kind == "grid" else (sizes[0],)

    @property
    def size(self) -> int:
        """Number of lanes."""
        return math.prod(self.shape)

    def at(self, where: tuple[slice, ...]) -> dict[str, np.ndarray]:
        """Values (B,) or (B, ...) of each quantity on the B lanes of a block, given by its slices ``where`` along the
        dimensions; last dimension fastest."""
        if self.kind == "points":
            return {key: column[where[0]] for key, column in self.values.items()}
        lengths = [len(range(*part.indices(n))) for part, n in zip(where, self.shape, strict=True)]
        chosen = np.indices(lengths).reshape(len(lengths), -1)
        return {
            key: column[part][index]
            for (key, column), part, index in zip(self.values.items(), where, chosen, strict=True)
        }

    def __repr__(self) -> str:
        return f"Design({self.kind}, {'; '.join(self.describe().splitlines())})"

    def describe(self) -> str:
        """Description of the design, one line for each quantity."""
        return "\n".join(f"{key}: {summarise(column)}" for key, column in self.values.items())


class Blocks(NamedTuple):
    """Partition of a design of shape ``whole`` into blocks of lanes of at most the shape ``shape``, in C order."""

    whole: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, whole: tuple[int, ...], most: int) -> Blocks:
        """Partition into blocks of at most ``most`` lanes and nearly equal sizes,
        not divided along the last dimensions if possible."""
        shape: list[int] = []
        for n in reversed(whole):
            size = min(n, max(1, most // math.prod(shape)))
            shape.append(-(-n // -(-n // size)))
        return cls(whole, tuple(reversed(shape)))

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(-(-n // b) for n, b in zip(self.whole, self.shape, strict=True))

    def __len__(self) -> int:
        return math.prod(self.counts)

    def position(self, number: int) -> tuple[int, ...]:
        """Position of block ``number`` in the grid of blocks, one index for each dimension of the design."""
        return tuple(int(i) for i in np.unravel_index(number, self.counts))

    def where(self, number: int) -> tuple[slice, ...]:
        """Part of the design that block ``number`` covers, as one slice for each dimension."""
        position = self.position(number)
        return tuple(
            slice(i * b, min((i + 1) * b, n)) for i, b, n in zip(position, self.shape, self.whole, strict=True)
        )

    def sizes(self, number: int) -> tuple[int, ...]:
        """Shape of block ``number``: its number of lanes along each dimension of the design."""
        return tuple(part.stop - part.start for part in self.where(number))

    def numbers(self) -> Iterator[int]:
        return iter(range(len(self)))

    def lanes(self, number: int) -> int:
        """Number of lanes in a block."""
        return math.prod(self.sizes(number))


def summarise(values: np.ndarray) -> str:
    """Describes an array in a short text: its values if they are four at most, otherwise their number,
    shape and range."""
    values = np.asarray(values)
    if values.size <= 4:
        return str(values.tolist())
    shape = "" if values.ndim == 1 else f" of shape {values.shape[1:]}"
    return f"{len(values)} values{shape} in [{values.min():g}, {values.max():g}]"


def _columns(values: dict[str, ArrayLike]) -> dict[str, np.ndarray]:
    columns = {}
    for key, value in values.items():
        try:
            if np.iscomplexobj(value):  # numpy would drop imaginary parts with no more than a warning
                raise TypeError("complex numbers")
            columns[key] = np.array(value, np.float64)
        except (ValueError, TypeError) as error:
            raise TypeError(f"design: {key} must be an array of real numbers, got {value!r}") from error
    return columns
