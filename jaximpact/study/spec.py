"""Definition of a study as plain data, from arguments, a TOML table, a stored record or a task."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..catalogue import Case, get
from ..jaxtools.argument_checks import check_kind, dotted_entries, is_number, is_whole, real_array
from ..mechanics.contact.solver import ContactSolver
from ..mechanics.method_names import projection_from_name, scheme_from_name, suggestion
from ..mechanics.motion import OF_CONTACTS, OF_FRICTION
from ..mechanics.problem import Problem
from ..mechanics.scheme import Scheme
from ..mechanics.trials.stops import Until, UntilLike
from ..results.safe_reading import JsonObject, first_mismatch
from ..results.save import Save, SaveLike
from ..simulation.arguments import choose_grid, choose_methods
from ..simulation.call import Arguments
from ..simulation.random_keys import of_lanes, of_one, words_of
from .design import ROOTS, Design
from .importing import LIBRARY, folder_of, load, load_problem, problem_name
from .plain import decode, encode, names_in

EXAMPLE = """\
# 15 restitutions x 20 frequencies of an impact oscillator
store = "out/impact_oscillator.zarr"    # default: out/<name of this file>.zarr
problem = "shaw-holmes"                 # of the catalogue, or "module:name" (a module beside this file is found)
case = "damped"                         # gives q0, v0, t1, args and e where they are not given
t1 = 60.0
h = 2e-3
scheme = { name = "paoli-schatzman", force = "mean" }   # or only a name
save = [40.0, 50.0]                     # times; or "final", "all", every k-th step
chunk = 100
# until = { impact = 0, number = 3 }    # of event-driven: ends each motion there; or apex = 0, or "module:name"; of others at_rest = 1e-3

[args]                                  # parameters; the design replaces some of them
damping = 0.1

[design]
kind = "grid"                           # or "latin-hypercube" with count, seed and [low, high], or "points" with lists
e = { from = 0.2, to = 0.9, count = 15 }
args.frequency = { from = 1.8, to = 3.0, count = 20 }   # spacing = "log" for a geometric sequence
"""  # noqa: E501
OPTIONAL = (*OF_FRICTION, "key")  # recorded where they are given
BASE = ("q0", "v0", "t0", "t1", "h", "e", "args", *OPTIONAL)
MAX_FLOAT = float(np.finfo(np.float64).max)
MAX_VALUES = 10**8  # values of one quantity, which all processes hold
KINDS = ("grid", "latin-hypercube", "points")
RANGE = ("from", "to", "count", "spacing")
SPACINGS: dict[str, Callable[..., np.ndarray]] = {"linear": np.linspace, "log": np.geomspace}


@dataclasses.dataclass(frozen=True)
class Spec:
    """Definition of a study: its lanes and what they share, as plain data from which any process makes the same study.

    Attributes:
        problem: catalogue name or "module:name".
        design: the quantities that vary.
        base: arguments that all lanes share unless the design replaces them, by name and encoded as JSON: q0, v0, t0,
            t1, h, e, args, and friction, static_friction and key if given.
        scheme, projection, save, until: as in `Study`, encoded as JSON.
        folder: last folder searched for the problem's module.
    """

    problem: str
    design: Design
    base: Arguments
    scheme: Scheme
    projection: Any
    save: Any
    folder: str | None = None
    until: Any = None

    def __post_init__(self) -> None:
        form = {"problem": str, "design": Design, "base": dict.fromkeys(self.base, object), "folder": str | None}
        odd = first_mismatch({name: getattr(self, name) for name in form}, form, "study")
        odd = odd or next((f"study.base has {name!r}" for name in self.base if name not in BASE), None)
        if odd:
            raise TypeError(odd)

    @classmethod
    def of(
        cls,
        problem: str | Problem,
        design: Design,
        *,
        case: str | None = None,
        scheme: Scheme | None = None,
        projection: ContactSolver | None = None,
        save: SaveLike = "final",
        until: UntilLike = None,
        **base: Any,
    ) -> Spec:
        """Makes a `Spec` from the arguments of `Study`; checks each of them alone, not whether they fit together.

        Raises:
            ValueError, TypeError: an argument is wrong, or cannot be reproduced in another process.
        """
        check_kind("design", design, Design, "a Design, e.g. Design.grid(e=[0.5, 0.9])")
        name = problem_name(problem)
        stated = load_problem(name)
        values = dict.fromkeys(BASE) | {"t0": 0.0} | base
        if ":" not in name:
            values = _with_case(values, _case(name, case))
        elif case is not None:
            raise ValueError("case: only problems of the catalogue have cases")
        scheme, projection = choose_methods(scheme, projection, stated)
        save = Save.of(save)
        values = _canonical(values, design, scheme, save, stated)
        values["key"] = of_one(words_of(values["key"], stated))
        values = {name: x for name, x in values.items() if x is not None or name not in OPTIONAL}
        if save.impacts:
            raise ValueError(
                "save: a study keeps rows, and no events; save=Events(...) is for solve, ensemble and sensitivities"
            )
        if save.times is not None:
            save = dataclasses.replace(save, times=np.asarray(real_array("save", save.times), np.float64))
        methods = [encode(scheme, "scheme"), encode(projection, "projection"), encode(Until.of(until), "until")]
        own = [text for text in names_in(methods) if text.partition(".")[0] != LIBRARY]
        return cls(
            problem=name,
            design=design,
            base=encode(values, "args")["$dict"],
            scheme=methods[0],
            projection=methods[1],
            save=encode(save, "save"),
            until=methods[2],
            folder=next(filter(None, map(folder_of, [name, *own])), None),
        )

    @classmethod
    def from_table(cls, table: JsonObject) -> Spec:
        """Makes a `Spec` from a table as TOML gives it; see `EXAMPLE` for its entries.

        Raises:
            ValueError, TypeError: an entry is unknown, missing or wrong; the message names it,
                and suggests the right one.
        """
        check_entries("entry", table, ENTRIES)
        for needed in ("problem", "design"):
            if needed not in table:
                raise ValueError(f"{needed} is missing")
        return cls.of(**{key: READERS[key](value) if key in READERS else value for key, value in table.items()})

    def for_lanes(self, where: tuple[slice, ...]) -> Spec:
        """Copy restricted to the lanes of a block, given by its slices ``where``;
        each has the key of its place in the whole design."""
        numbers = np.arange(self.design.size).reshape(self.design.shape)[where].ravel()
        base = self.base | {name: encode(x, name) for name, x in self.keys(numbers).items()}
        return dataclasses.replace(self, design=Design("points", self.design.at(where)), base=base)

    def keys(self, numbers: ArrayLike) -> dict[str, np.ndarray]:
        """Keys (B, 2) of the lanes at the places ``numbers`` (B,) of the design, under their name;
        none for a problem without noise."""
        return {name: of_lanes(decode(x), numbers) for name, x in self.base.items() if name == "key"}

    def modules(self) -> list[str]:
        """Modules outside this library that the study needs."""
        names = [self.problem] if ":" in self.problem else []
        names += names_in([self.scheme, self.projection, self.save, self.until, list(self.base.values())])
        found = dict.fromkeys(name.partition(":")[0] for name in names)
        return [name for name in found if name.partition(".")[0] != LIBRARY]


def check_entries(kind: str, table: Any, names: Iterable[str]) -> None:
    """Raises for entries of a table that are not in ``names``, and suggests the closest."""
    check_kind(kind, table, Mapping, "a table")
    for key in table:
        if key not in names:
            raise ValueError(f"unknown {kind} {key!r}; {suggestion(key, names)}")


# arguments


def _case(name: str, case: str | None) -> Case:
    entry = get(name)
    if case is not None and case not in list(entry.cases):
        raise ValueError(f"case: {entry.name} has no case {case!r}; {suggestion(str(case), entry.cases)}")
    return entry.case(case)


def _with_case(base: Arguments, case: Case) -> Arguments:
    """Fills in, from a case of the catalogue, the entries and parameters that are not given."""
    given = {"q0": case.q0, "v0": case.v0, "t1": case.t1, "e": case.restitution}
    base = base | {key: value for key, value in given.items() if base[key] is None}
    return base | {"args": case.parameters(base["args"])}


def _canonical(base: Arguments, design: Design, scheme: Scheme, save: Save, problem: Problem) -> Arguments:
    """Base values in canonical form: arrays for q0 and v0, numbers for times;
    raises for values that neither arguments nor design give."""
    varied = {key.text for key in design.keys}
    found = dict(base)
    if found["h"] is None and "h" not in varied and (found["t1"] is not None or "t1" in varied):
        found["h"] = _grid(found, design, scheme, save, problem)
    for name in ROOTS:
        if found[name] is None:
            if name not in OF_CONTACTS and name not in varied:
                needless = "; EventDriven() needs none" if name == "h" else ""
                raise ValueError(f"{name} is missing: give it to the study or, as a whole, to its design{needless}")
        elif name in ("q0", "v0"):
            found[name] = np.asarray(real_array(name, found[name]))
            if found[name].ndim != 1:
                raise ValueError(
                    f"{name} must have shape (d,), got {found[name].shape}; what varies goes into the design"
                )
        else:
            number = np.asarray(real_array(name, found[name]), np.float64)
            if number.ndim > (name in OF_CONTACTS):
                raise ValueError(
                    f"{name} must be one number, got shape {number.shape}; what varies goes into the design"
                )
            found[name] = number if number.ndim else float(number)
    return found


def _grid(base: Arguments, design: Design, scheme: Scheme, save: Save, problem: Problem) -> float | None:
    """Time between rows for a scheme that chooses its own steps, as in `solve` without h;
    None for a scheme with fixed steps."""
    given = (design.values.get(name, base[name]) for name in ("t0", "t1"))
    t0, t1 = (np.asarray(real_array(name, x), np.float64) for name, x in zip(("t0", "t1"), given, strict=True))
    number = choose_grid(scheme, save, problem, t0.max(), t1.min())
    shortest = t1.min() - t0.max() if design.kind == "grid" else np.min(t1 - t0)
    return None if number is None else float(shortest / number)


# entries of a table


def _method(kind: str, value: Any, from_name: Callable) -> Any:
    """Scheme or projection from its name, or from a table of its name and attributes."""
    if isinstance(value, str):
        return from_name(value)
    if first_mismatch(value, {"name": str}):
        raise TypeError(f"{kind} must be a name, or a table with its name and attributes, got {value!r}")
    made = from_name(value["name"])
    attributes = {key: x for key, x in value.items() if key != "name"}
    check_entries(f"attribute of {value['name']}", attributes, [field.name for field in dataclasses.fields(made)])
    return dataclasses.replace(made, **attributes)


def _save(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    check_entries("entry of save", value, [field.name for field in dataclasses.fields(Save)])
    function = value.get("function")
    check_kind("save.function", function, str | None, "'module:name'")
    return Save(**{**value, "function": None if function is None else load(function)})


def _until(value: Any) -> Any:
    """``until`` from its entry in a table: "module:name" of a function,
    or a table with one of the keys of `UNTIL` and its options."""
    if isinstance(value, str):
        return load(value)
    check_kind("until", value, Mapping, "'module:name' or a table")
    kinds = [kind for kind in UNTIL if kind in value]
    if len(kinds) != 1:
        raise ValueError(f"until: give one of {', '.join(UNTIL)}")
    make, more = UNTIL[kinds[0]]
    check_entries("entry of until", value, (kinds[0], *more))
    given = load(value[kinds[0]]) if kinds[0] == "function" else value[kinds[0]]
    return make(given, **{key: x for key, x in value.items() if key != kinds[0]})


def _design(table: dict) -> Design:
    check_kind("design", table, Mapping, "a table")
    kind = table.get("kind", "grid")
    if kind not in KINDS:
        raise ValueError(f"design: unknown kind {kind!r}; {suggestion(str(kind), KINDS)}")
    options = {key: table[key] for key in ("count", "seed") if key in table}
    table = {key: x for key, x in table.items() if key not in ("kind", "count", "seed")}
    # TOML makes nested tables of args.NAME
    quantities = dict(dotted_entries(table, leaf=lambda x: not x or not set(RANGE).isdisjoint(x)))
    if kind == "latin-hypercube":
        if "count" not in options:
            raise ValueError("design: a latin-hypercube needs count, its number of points")
        return Design.latin_hypercube(options.pop("count"), **options, **quantities)
    if options:
        raise ValueError(f'design: {", ".join(options)} belongs to kind = "latin-hypercube"')
    values = {key: _values(key, x) for key, x in quantities.items()}
    return Design.grid(**values) if kind == "grid" else Design.points(**values)


def _values(key: str, value: object) -> Any:
    """Values of a quantity in a table: a list, or a range."""
    if not isinstance(value, Mapping):
        return value
    if not value:
        raise ValueError(f"design.{key} is an empty table: give it a list of values, or from, to and count")
    check_entries(f"entry of design.{key}", value, RANGE)
    missing = [name for name in ("from", "to", "count") if name not in value]
    if missing:
        raise ValueError(f"design.{key}: {', '.join(missing)} is missing")
    spacing = value.get("spacing", "linear")
    if spacing not in list(SPACINGS):
        raise ValueError(f"design.{key}: unknown spacing {spacing!r}; {suggestion(str(spacing), SPACINGS)}")
    low, high, count = (value[name] for name in ("from", "to", "count"))
    for name in ("from", "to"):
        if not is_number(value[name]) or not abs(value[name]) <= MAX_FLOAT:
            raise TypeError(f"design.{key}: {name} must be a finite number, got {value[name]!r}")
    if not is_whole(count, 1) or count > MAX_VALUES:
        raise ValueError(f"design.{key}: count must be a whole number from 1 to {MAX_VALUES}, got {count!r}")
    if spacing == "log" and low * high <= 0:
        raise ValueError(
            f"design.{key}: a geometric sequence has from and to of one sign, and not 0, got {low!r}, {high!r}"
        )
    return SPACINGS[spacing](float(low), float(high), count)


UNTIL: dict[str, tuple[Callable[..., Until], tuple[str, ...]]] = {  # and what goes with each
    "function": (Until, ("number", "direction")),
    "impact": (Until.impact, ("number",)),
    "apex": (Until.apex, ("number",)),
    "at_rest": (Until.at_rest, ("time",)),
    "jammed": (Until.jammed, ("needed",)),
}
ENTRIES = ("problem", "case", *BASE, "scheme", "projection", "save", "until", "design")
READERS: dict[str, Callable] = {
    "scheme": lambda value: _method("scheme", value, scheme_from_name),
    "projection": lambda value: _method("projection", value, projection_from_name),
    "save": _save,
    "until": _until,
    "design": _design,
}
