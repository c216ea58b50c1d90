"""Stored record of a study: its `Spec`, and versions, settings and hashes at its creation,
with which a continuation is compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..jaxtools.shapes import PyTree
from ..results.provenance import SETTINGS, TRACED, changes
from ..results.safe_reading import JsonObject, first_mismatch
from .design import Blocks, Design, summarise
from .plain import differences, in_words
from .spec import Spec

FORMAT = 2  # in format 1 the hashes of the functions' jaxprs are missing
FORM = {
    "compared": {
        **{"problem": str, "scheme": object, "projection": object, "save": object, "base": {"$dict": dict}},
        **{"source": dict, "settings": dict, "chunk": [int]},
        "design": {"$dict": {"kind": str, "note": str, "quantities": {str: str}}},
    },
    **{"folder": str | None, "variables": [str], "common_times": bool, "batch": int, "versions": {str: str}},
}


@dataclass(frozen=True)
class Record:
    """Stored record of a study.

    Attributes:
        spec: definition of the study.
        chunk: lanes of a chunk along each dimension of the design.
        source: hash of the source of each function of the problem, and its numbers.
        computes: hash of the jaxpr of each function; None in a store of format 1.
        settings: jax settings with which it is computed.
        variables: names of the result arrays.
        common_times: whether the rows of all lanes have the same times.
        batch: number of lanes computed at once.
        versions: of libraries, processor and device (`provenance`), and the time of creation.
    """

    spec: Spec
    chunk: tuple[int, ...]
    source: JsonObject
    computes: dict[str, str] | None
    settings: JsonObject
    variables: tuple[str, ...]
    common_times: bool
    batch: int
    versions: dict[str, str]

    def plain(self) -> JsonObject:
        """The record in terms of JSON, without the values of the design;
        a continuation must agree in the entry ``compared``."""
        spec = self.spec
        compared = {
            **{name: getattr(spec, name) for name in ("problem", "scheme", "projection", "save")},
            "base": {"$dict": spec.base},
            "source": self.source,
            "computes": self.computes,
            "design": self._design,
            "chunk": self.chunk,
            "settings": self.settings,
        } | _until(spec)
        others = {name: getattr(self, name) for name in ("variables", "common_times", "batch", "versions")}
        return json.loads(json.dumps({"format": FORMAT, "compared": compared, "folder": spec.folder, **others}))

    @classmethod
    def read(cls, plain: Any, columns: Mapping[str, np.ndarray], name: str) -> Record:
        """Reads a record from `plain` and the values of each quantity, in this format or an older one.
        Nothing is imported.

        Raises:
            ValueError: it is no record of a study, or has a newer format; ``name`` is the store's name in the message.
        """
        number = None if first_mismatch(plain, {"format": int}) else plain["format"]
        if number is None or not 1 <= number <= FORMAT:
            raise ValueError(
                f"{name}: study.json has format {number!r}, this version of jaximpact reads 1 to {FORMAT}: install the "
                "version that wrote it"
            )
        try:
            found = cls._from_plain(plain, columns)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"{name}: study.json is damaged, it does not define a study ({error}): restore it from a copy; the "
                "arrays "
                "are still read by xarray"
            ) from None
        return found

    @classmethod
    def _from_plain(cls, plain: JsonObject, columns: Mapping[str, np.ndarray]) -> Record:
        odd = first_mismatch(plain, FORM, "study")
        odd = odd or first_mismatch(plain["compared"].get("computes", {}), {str: str}, "study.compared.computes")
        if odd:
            raise ValueError(odd)
        compared, about = plain["compared"], plain["compared"]["design"]["$dict"]
        design = Design(about["kind"], {key: columns[key] for key in about["quantities"]}, about["note"])
        if about["kind"] not in ("grid", "points") or len(compared["chunk"]) != len(design.shape):
            raise ValueError("its chunks do not fit its design")
        if min(*compared["chunk"], plain["batch"]) < 1 or any("/" in name for name in plain["variables"]):
            raise ValueError("its chunks or variables are nothing that a study has")
        if not set(compared["settings"]) <= set(SETTINGS):
            raise ValueError("its settings are not those of jax that a study keeps")
        parts = {name: compared[name] for name in ("problem", "scheme", "projection", "save")}
        return cls(
            spec=Spec(
                design=design,
                base=compared["base"]["$dict"],
                folder=plain["folder"],
                until=compared.get("until"),
                **parts,
            ),
            chunk=tuple(compared["chunk"]),
            computes=compared.get("computes"),
            variables=tuple(plain["variables"]),
            **{name: compared[name] for name in ("source", "settings")},
            **{name: plain[name] for name in ("common_times", "batch", "versions")},
        )

    @property
    def blocks(self) -> Blocks:
        """Partition of the lanes into chunks."""
        return Blocks(self.spec.design.shape, self.chunk)

    @property
    def _design(self) -> JsonObject:
        design = self.spec.design
        quantities = {
            key: f"{summarise(x)} (#{hashlib.sha256(x.tobytes()).hexdigest()[:8]})" for key, x in design.values.items()
        }
        return {"$dict": {"kind": design.kind, "note": design.note, "quantities": quantities}}

    # compared with what would be computed now

    def differences(self, new: Record) -> list[str]:
        """Differences between this record and ``new``, one line each; without any the study may be continued."""
        return differences(self._flat(), new._flat()) + self._changed_functions(new)

    def _flat(self) -> JsonObject:
        """Entries that `differences` compares, by names that users know.

        Of the problem there are only its numbers, since its functions are compared by `_changed_functions`.
        """
        spec = self.spec
        parts = {name: getattr(spec, name) for name in ("problem", "scheme", "projection", "save")}
        numbers = {key: value for key, value in self.source.items() if not isinstance(value, str)}
        rest = {"design": self._design, "chunk": list(self.chunk), "settings": self.settings, "source": numbers}
        return parts | rest | spec.base | _until(spec)

    def _changed_functions(self, new: Record) -> list[str]:
        """Functions that compute something else than when the study was begun, one line each.

        With other versions of jax the same function may have another jaxpr; then, and in a study that has no record of
        its jaxprs, the sources are compared instead.
        """
        comparable = not changes(self.versions, new.versions, TRACED)
        lines = []
        before, after = self.computes or {}, new.computes or {}
        for name in dict.fromkeys([*before, *after]):
            programs = [side.get(name, "(not given)") for side in (before, after)]
            sources = [side.source.get(name) for side in (self, new)]
            same_source = sources[0] == sources[1]
            if before and programs[0] == programs[1]:
                continue
            if same_source and not (before and comparable):
                continue
            hint = f"source.{name}: {sources[0]} → {sources[1]}"
            if same_source:
                hint = "its source is as it was: a number, a container or a function that it uses has changed"
            program = f"{programs[0]} → {programs[1]}; " if before else ""
            lines.append(f"{name}, which computes something else: {program}{hint}")
        return lines

    def remarks(self, new: Record) -> list[str]:
        """Differences from the record ``new`` of this process that allow a continuation, such as other versions;
        in words."""
        remarks = []
        changed = changes(self.versions, new.versions)
        if changed:
            remarks.append(
                f"was begun with {', '.join(changed)}: numbers of new chunks may differ by rounding, the study does "
                "not "
                "continue to the same bits"
            )
        if self.computes is None:
            remarks.append(
                "was made by an earlier version, which kept the source of the problem's functions only: that what they "
                "read from elsewhere (numbers, containers, other modules) is as it was cannot be checked"
            )
        elif self.computes != new.computes:
            remarks.append(
                "was begun with other versions or another processor, by which its functions are traced to other "
                "programs: "
                "their source is as it was, but what they read from elsewhere cannot be checked"
            )
        return remarks

    def describe(self) -> dict[str, str]:
        """Description of the study in words."""
        spec, design = self.spec, self.spec.design
        words = {"problem": spec.problem, "design": design.note}
        words |= {f"design {key}": text for key, text in self._design["$dict"]["quantities"].items()}
        fixed = {key: value for key, value in spec.base.items() if value is not None and key not in design.values}
        if "args" in fixed:
            fixed["args"] = _without(fixed["args"], [key.path for key in design.keys if key.component is None])
        words |= {key: in_words(value) for key, value in fixed.items()}
        words |= {key: in_words(getattr(spec, key)) for key in ("scheme", "projection", "save")}
        words |= {key: in_words(value) for key, value in _until(spec).items()}
        words |= {"source of the problem": in_words(self.source), "settings of jax": in_words(self.settings)}
        return words | {key: str(value) for key, value in self.versions.items()}


def _until(spec: Spec) -> JsonObject:
    """The entry "until" of a record, in a dict.

    It is empty if motions end at t1, since records of earlier versions have no such entry.
    """
    return {} if spec.until is None else {"until": spec.until}


def _without(args: dict, paths: list[tuple[str, ...]]) -> PyTree:
    """Encoded parameters without the ones at ``paths``, whose values the design gives."""
    if first_mismatch(args, {"$dict": {str: object}}):
        return args
    inner = {
        key: _without(value, [path[1:] for path in paths if path[:1] == (key,)])
        for key, value in args["$dict"].items()
        if (key,) not in paths
    }
    return {"$dict": inner}
