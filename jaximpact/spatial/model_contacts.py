"""Which geoms of a model file may touch, by its own rules, and the contacts that come of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ..planar.quantities import Restitution
from .body import Frame
from .contacts import Contact, Plane
from .distances import ROUND
from .model_arrays import WORLD, Arrays, point, refuse
from .parts import Part
from .shapes import Box, Capsule, Cylinder, Ellipsoid, Shape, Sphere

PLANE, FIELD, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX = range(7)
TYPES = "plane", "height field", "sphere", "capsule", "ellipsoid", "cylinder", "box", "mesh", "signed distance field"


def shape_of(arrays: Arrays, i: int) -> Shape | None:
    """Returns the shape of a geom as it stands at the start; None of planes, meshes and height fields."""
    kind, size = int(arrays.model.geom_type[i]), arrays.model.geom_size[i]
    turn = arrays.axes(int(arrays.model.geom_bodyid[i]), arrays.model.geom_quat[i])
    axes, half = tuple(map(tuple, turn.tolist())), point(size)
    if kind == SPHERE:
        return Sphere(float(size[0]))
    if kind == CAPSULE:
        return Capsule(float(size[0]), point(size[1] * turn[:, 2]))
    if kind == CYLINDER:
        return Cylinder(half=point(size[1] * turn[:, 2]), rim=float(size[0]))
    if kind == BOX:
        return Box(half=half, axes=axes)
    return Ellipsoid(half=half, axes=axes) if kind == ELLIPSOID else None


class Geoms:
    """The geoms of a file as parts of bodies: ``frames`` by name, ``keys`` the name of each,
    and ``body`` the body of each name."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays, model = arrays, arrays.model
        self.keys = [f"geom {name}" for name in arrays.geoms]
        self.frames: dict[str, Frame] = {}
        self.body: dict[str, str] = {}
        for i, key in enumerate(self.keys):
            body = int(model.geom_bodyid[i])
            shape = shape_of(arrays, i)
            if shape is not None:
                self.frames[key] = Frame(centre=arrays.at(body, model.geom_pos[i]), shape=shape)
                self.body[key] = arrays.bodies[body]

    def kind(self, i: int) -> int:
        return int(self.arrays.model.geom_type[i])

    def pairs(self) -> Iterator[tuple[int, int, int, np.ndarray]]:
        """Yields the numbers of two geoms that may touch, the kind of their contact (``condim``), and their
        coefficients of friction."""
        model, carriers = self.arrays.model, self.arrays.carriers
        stated = [(int(i), int(j)) for i, j in zip(model.pair_geom1, model.pair_geom2, strict=True)]
        for k, (i, j) in enumerate(stated):
            yield i, j, int(model.pair_dim[k]), model.pair_friction[k, [0, 2, 3]]
        excluded = {(int(x) >> 16, int(x) & 0xFFFF) for x in model.exclude_signature}
        parent = [carriers[model.body_parentid[i]] for i in carriers]
        keeps_parents = self.arrays.disabled("FILTERPARENT")
        for i in range(model.ngeom):
            for j in range(i + 1, model.ngeom):
                first, last = (int(model.geom_bodyid[x]) for x in (i, j))
                a, b = carriers[first], carriers[last]
                related = a != WORLD and b != WORLD and (a == parent[last] or b == parent[first])
                apart = (first, last) in excluded or (last, first) in excluded
                if a == b or apart or (related and not keeps_parents) or {(i, j), (j, i)} & set(stated):
                    continue
                types, affinities = model.geom_contype, model.geom_conaffinity
                if (types[i] & affinities[j]) or (types[j] & affinities[i]):
                    yield i, j, *self._mixed(i, j)

    def _mixed(self, i: int, j: int) -> tuple[int, np.ndarray]:
        model = self.arrays.model
        ranks = model.geom_priority[[i, j]]
        first = [i, j] if ranks[0] == ranks[1] else [(i, j)[int(np.argmax(ranks))]]
        return int(model.geom_condim[first].max()), model.geom_friction[first].max(axis=0)

    def contacts(self, chosen: str | Sequence[str], friction: Any, restitution: Restitution) -> list[Part]:
        """Returns the contacts whose names match a pattern of ``chosen``, with ``friction``,
        "file" for that of the file."""
        names, model = self.arrays.geoms, self.arrays.model
        found: list[Part] = []
        every: list[str] = []
        for i, j, dim, coefficients in [] if self.arrays.disabled("CONTACT") else self.pairs():
            if {self.kind(i), self.kind(j)} <= {PLANE, FIELD}:
                continue
            a, b = (j, i) if self.kind(i) == PLANE else (i, j)
            name = f"{names[a]}-{names[b]}"
            every.append(name)
            if not (matches(name, chosen) or matches(f"{names[b]}-{names[a]}", chosen)):
                continue
            rough = {"friction": friction}
            if friction == "file":
                rough = _of_file(name, dim, coefficients)
            if self.arrays.one_way(*(int(model.geom_bodyid[x]) for x in (a, b))):
                rough = {}  # the gap's velocity alone says how both move
            found.append(self._contact(a, b, name, {**rough, "restitution": restitution}))
        check_patterns("contacts", chosen, every + [f"{y}-{x}" for x, y in (n.split("-", 1) for n in every)], every)
        return found

    def _contact(self, a: int, b: int, name: str, rough: dict) -> Part:
        model, arrays = self.arrays.model, self.arrays
        one, other = self.frames.get(self.keys[a]), self.frames.get(self.keys[b])
        if self.kind(b) == PLANE and one is not None:
            body = int(model.geom_bodyid[b])
            normal = point(arrays.axes(body, model.geom_quat[b])[:, 2])
            if one.shape is not None and one.shape.upright(np.array(normal)):
                raise refuse(
                    "contact",
                    name,
                    "a cylinder that stands on its end at the start, whose lowest point is not one",
                    ": use a box or capsule, or leave it out by contacts= and state points of its rim by "
                    "parts=[spatial.Plane(..., points=...)]",
                )
            # the file has planes in what does not move alone
            at = arrays.at(body, model.geom_pos[b])
            return Plane(self.keys[a], at=at, normal=normal, name=name, **rough)
        shapes = [x.shape for x in (one, other) if x is not None]
        both = all(isinstance(x, ROUND) for x in shapes) or {type(x) for x in shapes} == {Box, Sphere}
        if len(shapes) < 2 or not both:
            kinds = " and ".join(TYPES[self.kind(x)] for x in (a, b))
            raise refuse(
                "contact",
                name,
                f"the shapes {kinds}, between which no distance is known",
                ': leave such contacts out by contacts=, such as contacts="*-floor"',
            )
        return Contact(self.keys[a], self.keys[b], name=name, **rough)


def _of_file(name: str, dim: int, coefficients: np.ndarray) -> dict[str, float]:
    """Returns the coefficient of friction of a contact of ``dim`` rows, and the radii by which it resists turns, from
    its ``coefficients`` (3,)."""
    sliding, drilling, rolling = (float(x) if dim > i else 0.0 for x, i in zip(coefficients, (1, 3, 4), strict=True))
    if sliding == 0 < max(drilling, rolling):
        raise refuse("contact", name, "friction of torsion or rolling without that of sliding")
    return {"friction": sliding, "drilling": drilling / (sliding or 1), "rolling": rolling / (sliding or 1)}


def patterns(chosen: str | Sequence[str]) -> Sequence[str]:
    return (chosen,) if isinstance(chosen, str) else tuple(chosen)


def matches(name: str, chosen: str | Sequence[str]) -> bool:
    """Whether a name matches one of the patterns ``chosen``, a text or several, with * and ? for any letters."""
    return any(fnmatchcase(name, pattern) for pattern in patterns(chosen))


def check_patterns(argument: str, chosen: str | Sequence[str], names: list[str], known_names: list[str]) -> None:
    """Raises ValueError for a pattern that none of the names matches, other than "*"."""
    for pattern in patterns(chosen):
        if pattern != "*" and not any(fnmatchcase(name, pattern) for name in names):
            known = ", ".join(known_names[:20]) + (", ..." if len(known_names) > 20 else "") or "none"
            raise ValueError(f"{argument}: {pattern!r} matches no name; there are {known}")
