"""Names and units of coordinates, contacts and joints, and which coordinates are quaternions: static data for messages,
tables, pictures and analyses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import jax

from ..jaxtools.argument_checks import are_texts, is_whole

# by quantity: the name of its unit if none was given, and its unit where that of the coordinate or gap is "{}"; E is
# the unit of energy
QUANTITIES = {
    "q": ("unit of q", "{}"),
    "z": ("unit of q", "{}"),
    "v": ("unit of q / s", "{}/s"),
    "gap": ("unit of f", "{}"),
    "gap velocity": ("unit of f / s", "{}/s"),
    "impulse": ("N s", "E s/{}"),
    "momentum": ("N s", "E s/{}"),
    "joint_impulse": ("J s / unit of c", "E s/{}"),
    "joint_force": ("J / unit of c", "E/{}"),
}
MASS = "mass"  # the name of the unit of masses among units
# units of force and energy that have a name, by those of mass and length
COHERENT = {("kg", "m"): ("N", "J"), ("t", "mm"): ("N", "mJ"), ("g", "mm"): ("µN", "nJ")}
LENGTHS = ("m", "mm", "cm", "km", "µm", "um", "nm", "in", "ft")
OF_JOINTS = ("joint_impulse", "joint_force")
OF_COORDINATES = ("q", "z", "v", "momentum")


@jax.tree_util.register_static
@dataclass(frozen=True)
class Labels:
    """Names and units of a problem; each may be missing.

    Attributes:
        coordinates: names of the coordinates (d).
        contacts: names of the constraints (m).
        units: (name, unit) of coordinates, constraints and joint equations; the name "" stands for all coordinates and
            constraints, "mass" for masses, kg by default.
        joints: names of the joint equations (j).
        quaternions: numbers of the coordinates with which quaternions begin.
    """

    coordinates: tuple[str, ...] | None = None
    contacts: tuple[str, ...] | None = None
    units: tuple[tuple[str, str], ...] = ()
    joints: tuple[str, ...] | None = None
    quaternions: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        coordinates: object,
        contacts: object,
        units: object,
        joints: object = None,
        quaternions: Sequence[int] = (),
    ) -> Labels:
        """Checks and makes labels: names as a sequence, units as one text or a mapping from names.

        Raises:
            TypeError, ValueError: names that are no names or come twice, units of nothing that has a name,
                quaternions that overlap.
        """
        coordinates, contacts, quaternions = (
            _names("coordinates", coordinates),
            _names("contacts", contacts),
            _places(quaternions),
        )
        joints = _names("joint_names", joints)
        known = (coordinates or ()) + (contacts or ()) + (joints or ())
        own = known if MASS in known else (*known, MASS)
        twice = sorted({name for name in known if known.count(name) > 1})
        if twice:
            raise ValueError(f"coordinates, contacts and joint_names: {twice[0]!r} is the name of two of them")
        if units is None:
            return cls(coordinates, contacts, (), joints, quaternions)
        if isinstance(units, str):
            return cls(coordinates, contacts, (("", units),), joints, quaternions)
        if not isinstance(units, Mapping) or not are_texts((*units, *units.values())):
            raise TypeError(f"units must be a text such as 'm', or a dict from names to such texts, got {units!r}")
        strange = [name for name in units if name and name not in own]
        if strange:
            named = (
                f"the names are {', '.join(known)}" if known else "give them names by coordinates=... and contacts=..."
            )
            raise ValueError(f"units: {strange[0]!r} is the name of no coordinate, contact or joint; {named}")
        return cls(coordinates, contacts, tuple(sorted(units.items())), joints, quaternions)

    def __str__(self) -> str:
        parts = {"coordinates": self.coordinates, "contacts": self.contacts, "joints": self.joints}
        units = [f"{name} in {unit}" if name else unit for name, unit in self.units]
        found = [f"{kind} {', '.join(names)}" for kind, names in parts.items() if names]
        return "; ".join([*found, *([f"units {', '.join(units)}"] if units else [])])

    def coordinate(self, i: int, count: int, symbol: str = "q") -> str:
        """Returns the name of coordinate i of ``count``; by default q, or q[i]."""
        return self.coordinates[i] if self.coordinates else (symbol if count == 1 else f"{symbol}[{i}]")

    def contact(self, a: int) -> str:
        """Returns the name of contact a; by default "contact a"."""
        return self.contacts[a] if self.contacts else f"contact {a}"

    def constraint(self, a: int) -> str:
        """Returns the text for constraint a in a message: its number and its name."""
        return f"constraint {a} ({self.contacts[a]!r})" if self.contacts else f"constraint {a}"

    def joint(self, a: int) -> str:
        """Returns the text for joint equation a in a message: its place in the result of ``joints``, and its name."""
        return f"joints(t0, q0, args)[{a}]" + (f" ({self.joints[a]!r})" if self.joints else "")

    def names(self, quantity: str) -> tuple[str, ...] | None:
        """Returns the names of the components of a quantity (a key of ``QUANTITIES``), if given."""
        if quantity in OF_JOINTS:
            return self.joints
        return self.coordinates if quantity in OF_COORDINATES else self.contacts

    def unit(self, quantity: str, i: int | None = None) -> str:
        """Returns the unit of component i of a quantity, or the units of all its components; "" if unknown."""
        names, units = self.names(quantity), dict(self.units)
        chosen = names or ("",) if i is None else ((names[i],) if names else ("",))
        # equations of joints may be in units of their own, such as those of squares
        others = "" if quantity in OF_JOINTS else units.get("", "")
        found = dict.fromkeys(units.get(name, others) if name else others for name in chosen)
        if "" in found:
            return ""
        return ", ".join(dict.fromkeys(self._insert_unit(QUANTITIES[quantity][1], u) for u in found))

    def _insert_unit(self, form: str, unit: str) -> str:
        """Returns the unit of a quantity from its ``form`` in ``QUANTITIES``, where E is energy, and the ``unit`` of
        the coordinate, gap or joint."""
        if not form.startswith("E"):
            return form.format(unit)
        mass, length = self._mass_and_length()
        force, energy = COHERENT.get((mass, length), ("", ""))
        time = form[1:].partition("/")[0]  # " s" or nothing
        if force:
            return {length: force + time, "rad": f"{force} {length}{time}"}.get(unit, f"{energy}{time}/{unit}")
        second = "s" if time else "s²"
        if unit in (length, "rad"):
            return f"{mass} {length}{'' if unit == length else '²'}/{second}"
        return f"{mass} {length}²/({second} {unit})"

    def _mass_and_length(self) -> tuple[str, str]:
        """Returns the units of mass and length that make up the unit of energy; metres if no coordinate is a length, or
        they have different units."""
        units = dict(self.units)
        mass = "kg" if MASS in (self.coordinates or ()) + (self.contacts or ()) else units.get(MASS, "kg")
        own = [units.get(name, units.get("", "")) for name in self.coordinates or ("",)]
        lengths = [unit for unit in dict.fromkeys(own) if unit in LENGTHS]
        return mass, lengths[0] if len(lengths) == 1 else "m"

    def energy_unit(self) -> str:
        """Returns the unit of energies."""
        mass, length = self._mass_and_length()
        return COHERENT.get((mass, length), ("", f"{mass} {length}²/s²"))[1]

    def axis(self, text: str, quantity: str, i: int | None = None) -> str:
        """Returns the label of an axis: a text, and the unit in brackets."""
        return f"{text}{'' if text.endswith(chr(10)) else ' '}[{self.unit(quantity, i) or QUANTITIES[quantity][0]}]"

    def check(self, d: int, m: int, j: int) -> None:
        """Raises ValueError unless there are d coordinate names, m constraint names and j names of joint equations,
        where given, and the quaternions."""
        if max(self.quaternions, default=-4) + 4 > d:
            raise ValueError(
                f"quaternions: four coordinates from number {max(self.quaternions)} on are not among {d}, as q0 has"
            )
        for argument, names, count, what in (
            ("coordinates", self.coordinates, d, "coordinates, as q0 has"),
            ("contacts", self.contacts, m, "constraints, as constraints(t, q, args) returns"),
            ("joint_names", self.joints, j, "joint equations, as joints(t, q, args) returns"),
        ):
            if names is not None and len(names) != count:
                raise ValueError(f"{argument} names {len(names)}: {', '.join(names)}; there are {count} {what}")


UNNAMED = Labels()


def _places(quaternions: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(quaternions, Sequence) or not all(is_whole(x) and x >= 0 for x in quaternions):
        raise TypeError(
            "quaternions must be a sequence of the numbers of coordinates with which they begin, such as (3,), got "
            f"{quaternions!r}"
        )
    found = tuple(sorted(map(int, quaternions)))
    if any(b - a < 4 for a, b in pairwise(found)):
        raise ValueError(f"quaternions: of four coordinates each, those that begin with {found} overlap")
    return found


def _names(argument: str, names: object) -> tuple[str, ...] | None:
    if names is None:
        return None
    if isinstance(names, str) or not isinstance(names, Sequence) or not are_texts(names):
        raise TypeError(f"{argument} must be a sequence of names, such as ('x', 'y'), got {names!r}")
    if not all(name and name.isprintable() for name in names):
        raise ValueError(f"{argument}: a name is empty or cannot be printed, got {tuple(names)!r}")
    return tuple(names)
