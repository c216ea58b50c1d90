"""`Study`: an ensemble over a design, computed block by block into a store that survives anything and can be continued."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from ..catalogue import Case, get
from ..integrate import Save, Solution, solve
from ..names import suggestion
from ..problem import Problem
from ..status import FAILURES, Status
from ..validate import JaximpactWarning, choose_methods, real_array
from .description import (
    CHECKS,
    differences,
    encode,
    folder_of,
    in_words,
    load_problem,
    modules,
    origin,
    problem_name,
    settings_now,
    settings_of,
    sources,
)
from .design import ROOTS, Blocks, Design, summarise
from .fingerprint import fingerprint
from .guard import FORMAT, printable, printable_all
from .provenance import TRACED, changes, provenance
from .report import REFUSED_WORD, FailedLane, Summary
from .store import COMPUTED, DONE, REFUSED, Damage, Store, Writer, dimensions, require
from .task import MEANING, Result, Schema, System, Task, check_all_times, schema
from .work import Gone, Interrupt, drive

CHUNK = 4096  # lanes of a block, where their results fit MEMORY
MEMORY = 256 * 2**20  # bytes of results in one automatic block


class Study:
    """An ensemble over a `Design`, on disk.

    The store is a Zarr group that ``xarray.open_zarr`` reads at any time: variables over the dimensions of the design,
    NaN where not computed yet (``done`` says so). It holds everything that defines the study: `Study.open` continues
    it in another process, and what comes out does not depend, to the last bit, on how often it was interrupted, nor on how
    many processes computed it, on processors of one kind.

    Args:
        path: directory of the store, e.g. "study.zarr". Where a study exists there it is continued; it must be the same.
        problem: a catalogue name, "module:name", or a `Problem` that stands under a name in a module.
        design: what varies.
        q0, v0, t1, h, t0, args, e, scheme, projection, save: as in `ensemble`, shared by all lanes where the design does not
            replace them. Every parameter has a value in args, also one that the design replaces. A Save function must
            stand at the top of a module.
        case: of a catalogue problem, the case that gives q0, v0, t1, args and e where they are not given; its first
            by default.
        chunk: lanes of a block, the unit in which results are computed, written and lost; by default 4096, or what keeps
            the results of a block under 256 MB.

    A lane whose start is not admissible is marked and left out, not an error. Memory: about four blocks of results beyond what
    `ensemble` needs for one, and with an executor one more for each task handed out.

    Raises:
        ValueError, TypeError: an argument is wrong, or the study on disk is another one; the message says what differs.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        problem: str | Problem,
        design: Design,
        *,
        q0=None,
        v0=None,
        t1=None,
        h=None,
        t0=0.0,
        args: Any = None,
        e=None,
        case: str | None = None,
        scheme=None,
        projection=None,
        save: Any = "final",
        chunk: int | None = None,
    ):
        if not isinstance(design, Design):
            raise TypeError(f"design must be a Design, e.g. Design.grid(e=[0.5, 0.9]), got {type(design).__name__}")
        if chunk is not None and (not isinstance(chunk, int | np.integer) or isinstance(chunk, bool) or chunk < 1):
            raise ValueError(f"chunk must be a whole number >= 1, got {chunk!r}")
        name = problem_name(problem)
        load_problem(name)
        base = {"q0": q0, "v0": v0, "e": e, "h": h, "t0": t0, "t1": t1, "args": args}
        if ":" not in name:
            base = _with_case(base, _case(name, case))
        elif case is not None:
            raise ValueError("case: only problems of the catalogue have cases")
        base = _canonical(base, design)
        scheme, projection = choose_methods(scheme, projection)
        save = Save.of(save)
        if save.times is not None:
            save = replace(save, times=np.asarray(real_array("save", save.times), np.float64))
        described = {
            "problem": name,
            "scheme": encode(scheme, "scheme"),
            "projection": encode(projection, "projection"),
            "save": encode(save, "save"),
            "base": encode(base, "args"),
        }
        folder = folder_of(name)
        # as another process makes it: what cannot be made again is told now
        system = System.of(described | {"folder": folder})
        system.check(design)
        self.path, self.store, self.design = os.fspath(path), Store(path), design
        self.schema, self._system = schema(system, design), system
        _check_names(design, self.schema)
        self.blocks = Blocks.of(design.shape, _automatic_chunk(self.schema) if chunk is None else int(chunk))
        if {"h", "t0", "t1"} & {key.root for key in design.keys}:
            for block in self.blocks.numbers():
                check_all_times(system, design.at(self.blocks.where(block)))
        self._definition = self._defined(described, folder)
        self._physics = (self._compared["computes"], provenance())
        if self.store.exists:
            self._adopt()

    def _defined(self, described: dict[str, Any], folder: str | None) -> dict[str, Any]:
        """All that the store keeps of the definition; ``compared`` is what must be the same to continue."""
        quantities = {
            key: f"{summarise(x)} (#{hashlib.sha256(x.tobytes()).hexdigest()[:8]})"
            for key, x in self.design.values.items()
        }
        about = {"kind": self.design.kind, "note": self.design.note, "quantities": quantities}
        compared = {
            **described,
            "source": sources(self._system.problem),
            "computes": fingerprint(self._system, self.design.values),
            "design": {"$dict": about},
            "chunk": list(self.blocks.shape),
            "settings": settings_now(),
        }
        definition = {
            "format": FORMAT,
            "compared": compared,
            "folder": folder,
            "variables": [x.name for x in self.schema.variables],
            "common_times": self.schema.times is not None,
            "batch": _batch(self.blocks),
            "versions": _versions(),
        }
        return json.loads(json.dumps(definition))

    @classmethod
    def open(cls, path: str | os.PathLike) -> Study:
        """The study in that directory, with everything it was made of.

        Opening it, and `summary`, `failed`, `verify`, `describe`, `dataset`, run nothing and follow nothing out of the
        directory, whoever made it. `run` and `lane` compute, and import for that the module of the problem that the study
        names: they say which, and from where. Call them on studies of those only whose programs you would run.

        Raises:
            FileNotFoundError: there is no study. ValueError: it is damaged, of another format, or holds what no study
            contains (links, other kinds of arrays).
        """
        self = object.__new__(cls)
        self.path, self.store = os.fspath(path), Store(path)
        self._definition, self.design = self.store.definition()
        self.blocks = Blocks(self.design.shape, tuple(self._definition["compared"]["chunk"]))
        return self

    def __repr__(self) -> str:
        done = len(self._finished()) if self.store.exists else 0
        size = " × ".join(f"{name} {n}" for name, n in zip(self.dims, self.shape, strict=True))
        return (
            f"Study({self.path!r}, {self._compared['problem']!r}, {size}; {done} of {len(self.blocks)} chunks finished)"
        )

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions of the design."""
        return dimensions(self.design)

    @property
    def shape(self) -> tuple[int, ...]:
        """Lanes along each dimension of the design."""
        return self.design.shape

    @property
    def _compared(self) -> dict[str, Any]:
        return self._definition["compared"]

    @property
    def _described(self) -> dict[str, Any]:
        """What a task needs to make the system."""
        names = ("problem", "scheme", "projection", "save", "base")
        return {name: self._compared[name] for name in names} | {"folder": self._definition["folder"]}

    @cached_property
    def _system(self) -> System:
        """Imports the problem; says so where that runs a module which this program has not imported by itself."""
        described = self._described
        for name in modules(described):
            if name not in sys.modules:
                where = printable(origin(name, described["folder"]))
                print(f"jaximpact: {self.path} imports module {name} from {where}", file=sys.stderr, flush=True)
        return System.of(described)

    def describe(self) -> dict[str, str]:
        """What the study is, in words."""
        about = self._compared
        words = {"problem": about["problem"], "design": self.design.note}
        words |= {f"design {key}": text for key, text in about["design"]["$dict"]["quantities"].items()}
        base = about["base"]["$dict"]
        fixed = {key: value for key, value in base.items() if value is not None and key not in self.design.values}
        if "args" in fixed:
            fixed["args"] = _without(fixed["args"], [key.path for key in self.design.keys if key.component is None])
        words |= {key: in_words(value) for key, value in fixed.items()}
        words |= {key: in_words(about[key]) for key in ("scheme", "projection", "save")}
        words["source of the problem"] = in_words(about["source"])
        words["settings of jax"] = in_words(about["settings"])
        return words | {key: str(value) for key, value in self._definition["versions"].items()}

    # computing

    def run(
        self,
        executor: Executor | None = None,
        *,
        progress: bool | None = None,
        outstanding: int | None = None,
        repair: bool = False,
        unlock: bool = False,
    ) -> Summary:
        """Compute what is not computed yet.

        Args:
            executor: computes the blocks, e.g. `concurrent.futures.ProcessPoolExecutor` with the "spawn" context or
                ``client.get_executor()`` of a dask cluster; this process alone writes. By default this process computes.
            progress: show a bar and a summary; by default on a terminal.
            outstanding: blocks handed to the executor at a time; by default two for each of its workers.
            repair: check all finished chunks first, and compute again what is damaged.
            unlock: take over the lock of a process on another host, known to have ended.

        With several jax processes (`jax.distributed`), all of which make the same study and the same call, each computes and
        writes its share, to a file system that all of them see. Where one of them fails, jax ends the others.

        Returns:
            A `Summary` of the whole study.

        Raises:
            KeyboardInterrupt: after Ctrl-C, when the chunk in work is finished; a second one stops at once.
            RuntimeError: a chunk cannot be computed, is damaged, another process computes this study, or a dask scheduler is
            gone for longer than 40 s. OSError: a chunk cannot be written. Finished chunks are safe in every case.
        """
        if executor is not None and (isinstance(executor, type) or not callable(getattr(executor, "submit", None))):
            raise TypeError(
                "executor must be a concurrent.futures executor, e.g. ProcessPoolExecutor(4), or the get_executor() of a dask "
                f"client, got {executor!r}"
            )
        if outstanding is not None and (not isinstance(outstanding, int) or outstanding < 1):
            raise ValueError(f"outstanding must be a whole number, at least 1, got {outstanding!r}")
        show = sys.stderr.isatty() if progress is None else progress
        with ExitStack() as stack:
            pending = self._begin(stack, repair, unlock)
            interrupt = stack.enter_context(Interrupt())
            try:
                self._compute(pending, executor, outstanding, show, interrupt)
            except Gone as error:
                raise Gone(f"{error}. On disk: {self!r}; continue with {self._continue()}") from None
            if interrupt.asked:
                print(f"jaximpact: {self!r}; continue with {self._continue()}", file=sys.stderr, flush=True)
                raise KeyboardInterrupt
            if jax.process_count() > 1:
                _agreed(np.zeros(1, np.uint8))  # all have finished
        summary = self.summary()
        if show:
            print(summary, file=sys.stderr)
        return summary

    def _begin(self, stack: ExitStack, repair: bool, unlock: bool) -> list[int]:
        """Take the lock, make the store where there is none, and say which blocks this process has to compute."""
        if jax.process_count() == 1:
            return self._prepared(stack, repair, unlock)
        share, error = np.full(len(self.blocks), 2, np.uint8), None
        if jax.process_index() == 0:
            try:
                share[:] = 0
                share[self._prepared(stack, repair, unlock)] = 1
            except Exception as problem:
                share[:], error = 2, problem
        share = _agreed(share)
        if share[0] == 2:
            raise error or RuntimeError(f"{self.path}: process 0 could not begin; it says why")
        self._adopt()
        return np.flatnonzero(share).tolist()[jax.process_index() :: jax.process_count()]

    def _prepared(self, stack: ExitStack, repair: bool, unlock: bool) -> list[int]:
        self.store.prepare()
        stack.enter_context(self.store.lock(unlock))
        self.store.tidy()
        if self.store.exists:
            self._compare_versions(self._adopt())
        else:
            self.store.create(self._definition, self.design, self.blocks, self.schema, self._attributes())
        finished = self._finished()
        damaged = sorted({x.block for x in self.store.damaged(finished, contents=repair)})
        if damaged and not repair:
            raise RuntimeError(
                f"{self.path}: chunk {damaged[0]} ({self._where(damaged[0])}) is damaged, and {len(damaged) - 1} more; verify() "
                "lists them, run(repair=True) computes them again"
            )
        for block in damaged:
            self.store.forget(block)
        return sorted(set(self.blocks.numbers()) - finished | set(damaged))

    def _adopt(self) -> dict[str, str]:
        """Check that the study on disk is this one, and take what does not define it from there; what is computed now."""
        stored, _ = self.store.definition()
        with settings_of(self._compared["settings"]):
            computes = fingerprint(self._system, self.design.values)
        self._physics = (computes, provenance())
        new = {**self._compared, "source": sources(self._system.problem), "computes": computes}
        old = stored["compared"]
        lines = differences(_flat(old), _flat(json.loads(json.dumps(new))))
        lines += _changed_functions(old, new, comparable=not changes(stored["versions"], _versions(), TRACED))
        if lines:
            raise ValueError(
                f"{self.path} holds another study: continue it as it is with Study.open, or choose another path. It differs "
                "in\n  " + "\n  ".join(lines)
            )
        self._definition = stored
        return computes

    def _compare_versions(self, computes: dict[str, str]) -> None:
        """Remark where the study was begun with another installation or processor, or does not say what it computes."""
        remarks, old = [], self._definition["versions"]
        changed = changes(old, _versions())
        if changed:
            remarks.append(
                f"was begun with {', '.join(changed)}: numbers of new chunks may differ by rounding, the study does not continue to "
                "the same bits"
            )
        if "computes" not in self._compared:
            remarks.append(
                "was made by an earlier version, which kept the source of the problem's functions only: that what they read "
                "from elsewhere (numbers, containers, other modules) is as it was cannot be checked"
            )
        elif self._compared["computes"] != computes:
            remarks.append(
                "was begun with other versions or another processor, by which its functions are traced to other programs: "
                "their source is as it was, but what they read from elsewhere cannot be checked"
            )
        if remarks:
            warnings.warn(f"{self.path} {'; it '.join(remarks)}", JaximpactWarning, stacklevel=5)

    def _compute(self, pending: list[int], executor, outstanding, show: bool, interrupt: Interrupt) -> None:
        writer = Writer(self.store, self.blocks, self._definition["variables"])
        done = self.design.size - sum(self._lanes(block) for block in pending)
        bar = tqdm(total=self.design.size, initial=done, unit="lane", unit_scale=True, disable=not show, desc=self.path)

        def keep(result: Result) -> None:
            self._write(writer, result)
            bar.update(self._lanes(result.number))

        with bar:
            drive((self._task(block) for block in pending), executor, outstanding, keep, interrupt)

    def _task(self, block: int) -> Task:
        about = self._definition
        lanes = self.design.at(self.blocks.where(block))
        settings = about["compared"]["settings"] | settings_now(CHECKS)
        return Task(block, self._described, lanes, about["batch"], about["common_times"], settings, self._physics)

    def _write(self, writer: Writer, result: Result) -> None:
        """Results of a block and what is to be known of it without reading them."""
        arrays = writer.empty(result.number) if result.arrays is None else dict(result.arrays)
        expected = writer.shapes(result.number)
        found = {name: (values.shape, values.dtype) for name, values in arrays.items()}
        if found != expected:
            odd = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
            raise RuntimeError(
                f"chunk {result.number}: {odd[0]} came out as {found.get(odd[0])}, the store has {expected.get(odd[0])}: does the "
                "worker have the same versions of jaximpact and of the problem?"
            )
        arrays[DONE.name] = np.where(result.refused, REFUSED, COMPUTED).astype(DONE.dtype)
        status = arrays["status"]
        bits = {bit.name: int(np.count_nonzero(status & int(bit))) for bit in Status if bit}
        facts = {
            "lanes": len(status),
            "failed": int(np.count_nonzero((status & int(FAILURES)) | result.refused)),
            "bits": {name: n for name, n in bits.items() if n},
            "refused": int(result.refused.sum()),
            "steps": result.steps,
            "seconds": round(result.seconds, 6),
            "finished": _now(),
            "versions": result.origin,
            "reasons": result.reasons,
        }
        writer.write(result.number, arrays, facts, self._where(result.number))

    # reading

    def dataset(self):
        """The store as an `xarray.Dataset`, read lazily."""
        self._need_store()
        require("zarr")
        self.store.check()
        found = require("xarray").open_zarr(self.path, zarr_format=3)
        for part in (found, *found.variables.values()):
            part.attrs = printable_all(part.attrs)
        return found

    def summary(self) -> Summary:
        """What has been computed so far, from the marks of the finished chunks."""
        self._need_store()
        facts = [self._facts(block) for block in sorted(self._finished())]
        return Summary.of(facts, self.design.size, len(self.blocks))

    def wall_time(self) -> np.ndarray:
        """Seconds that each chunk took, in the order of the chunks, NaN where not finished."""
        self._need_store()
        seconds = np.full(len(self.blocks), np.nan)
        for block in self._finished():
            seconds[block] = self._facts(block)["seconds"]
        return seconds

    def verify(self) -> list[Damage]:
        """Every file of the finished chunks that is missing, truncated or changed; empty where all is well."""
        self._need_store()
        self.store.check()
        return self.store.damaged(self._finished(), contents=True)

    def failed(self) -> list[FailedLane]:
        """The failed lanes so far, in the order of the design."""
        return sorted(self._failed(), key=lambda lane: lane.index)

    def _failed(self) -> Iterator[FailedLane]:
        self._need_store()
        self.store.check()
        group = self.store._group("r")
        for block in sorted(self._finished()):
            facts = self._facts(block)
            if not facts["failed"]:
                continue
            where = self.blocks.where(block)
            try:
                status, failed_at, done = (
                    np.asarray(group[name][where]) for name in ("status", "failed_at", DONE.name)
                )
            except (ValueError, RuntimeError, OSError) as error:
                raise RuntimeError(
                    f"{self.path}: chunk {block} ({self._where(block)}) is damaged ({error}); run(repair=True) computes it again"
                ) from error
            for inner in np.argwhere((status & int(FAILURES) != 0) | (done == REFUSED)):
                index = tuple(int(i) + part.start for i, part in zip(inner, where, strict=True))
                number = str(np.ravel_multi_index(tuple(inner), self.blocks.sizes(block)))
                reason = facts.get("reasons", {}).get(number, "see .lane() of it")
                yield self._failed_lane(index, int(status[tuple(inner)]), float(failed_at[tuple(inner)]), reason)

    def _failed_lane(self, index: tuple[int, ...], status: int, failed_at: float, reason: str) -> FailedLane:
        values = self._values(index)
        bits = [bit.name for bit in Status if bit & status]
        if status & int(FAILURES):
            reason = ""
        else:
            bits.append(REFUSED_WORD)
        plain = {key: value.tolist() for key, value in values.items()}
        rerun = f"jaximpact.Study.open({self.path!r}).lane({index}, save='all')"
        return FailedLane(index, plain, " ".join(map(str, bits)), failed_at, reason, rerun)

    def lane(self, index: int | tuple[int, ...] | Mapping[str, int], save: Any = None) -> Solution:
        """One lane computed alone by `solve`, with ``sensitivity="none"``.

        Args:
            index: its place along each dimension, as a tuple or by name; one number where there is one dimension.
            save: as in `solve`; by default that of the study.
        """
        values = self._values(self._index(index))
        system = self._system
        with settings_of(self._compared["settings"]):
            return solve(
                system.problem,
                **system.lane(values),
                scheme=system.scheme,
                projection=system.projection,
                save=system.save if save is None else save,
                sensitivity="none",
            )

    def _index(self, index) -> tuple[int, ...]:
        if isinstance(index, Mapping):
            if set(index) != set(self.dims):
                raise ValueError(
                    f"lane: give a place along each of {', '.join(self.dims)}, got {', '.join(map(str, index))}"
                )
            index = tuple(index[name] for name in self.dims)
        found = index if isinstance(index, tuple) else (index,)
        fits = len(found) == len(self.shape) and all(
            isinstance(i, int | np.integer) and 0 <= i < n for i, n in zip(found, self.shape, strict=True)
        )
        if not fits:
            sizes = ", ".join(f"{name} 0..{n - 1}" for name, n in zip(self.dims, self.shape, strict=True))
            raise IndexError(f"lane {index!r} is not in the design: {sizes}")
        return tuple(int(i) for i in found)

    def _values(self, index: tuple[int, ...]) -> dict[str, np.ndarray]:
        chosen = self.design.at(tuple(slice(i, i + 1) for i in index))
        return {key: column[0] for key, column in chosen.items()}

    def _finished(self) -> set[int]:
        return {block for block in self.store.finished() if block < len(self.blocks)}

    def _facts(self, block: int) -> dict[str, Any]:
        try:
            return self.store.facts(block)
        except ValueError as error:
            raise RuntimeError(f"{self.path}: chunk {block} ({self._where(block)}) is damaged: {error}") from error

    def _lanes(self, block: int) -> int:
        return int(np.prod(self.blocks.sizes(block)))

    def _where(self, block: int) -> str:
        parts = zip(self.dims, self.blocks.where(block), strict=True)
        return ", ".join(f"{name} {part.start}:{part.stop}" for name, part in parts)

    def _continue(self) -> str:
        return f"jaximpact.Study.open({self.path!r}).run(), or `jaximpact resume {self.path}`"

    def _need_store(self) -> None:
        if not self.store.exists:
            raise FileNotFoundError(f"{self.path}: nothing has been computed yet; call run()")

    def _attributes(self) -> dict[str, Any]:
        words = {key.replace(" ", "_"): text for key, text in self.describe().items()}
        return {"title": f"jaximpact study of {self._compared['problem']}", **words}


def _case(name: str, case: str | None) -> Case:
    entry = get(name)
    if case is not None and (not isinstance(case, str) or case not in entry.cases):
        raise ValueError(f"case: {entry.name} has no case {case!r}; {suggestion(str(case), entry.cases)}")
    return entry.case(case)


def _with_case(base: dict[str, Any], case: Case) -> dict[str, Any]:
    """Entries that are not given, and parameters, from a case of the catalogue."""
    known = {"q0": case.q0, "v0": case.v0, "t1": case.t1, "e": case.restitution}
    base = base | {key: value for key, value in known.items() if base[key] is None}
    return base | {"args": case.parameters(base["args"])}


def _canonical(base: dict[str, Any], design: Design) -> dict[str, Any]:
    """Arrays for q0 and v0, numbers for the times; what neither the arguments nor the design give is an error."""
    given = {key.text for key in design.keys}
    found = dict(base)
    for name in ROOTS:
        if found[name] is None and name != "e":
            if name not in given:
                raise ValueError(f"{name} is missing: give it to the study or, as a whole, to its design")
            continue
        if found[name] is None:
            continue
        if name in ("q0", "v0"):
            found[name] = np.asarray(real_array(name, found[name]))
            if found[name].ndim != 1:
                raise ValueError(
                    f"{name} must have shape (d,), got {found[name].shape}; what varies goes into the design"
                )
            continue
        number = np.asarray(real_array(name, found[name]), np.float64)
        if number.ndim > (name == "e"):
            raise ValueError(f"{name} must be one number, got shape {number.shape}; what varies goes into the design")
        found[name] = number if number.ndim else float(number)
    return found


def _check_names(design: Design, plan: Schema) -> None:
    """No coordinate has the name of another, of a variable or of one of its dimensions."""
    taken = {"time", "coordinate", "constraint", "lane", DONE.name} | set(MEANING) | {x.name for x in plan.variables}
    taken |= {name for x in plan.variables for name in x.dims}
    for key, name in design.names.items():
        if name in taken or list(design.names.values()).count(name) > 1:
            raise ValueError(
                f"design: {key!r} would be called {name!r} in the store, which is the name of something else: rename the parameter"
            )


def _flat(compared: dict[str, Any]) -> dict[str, Any]:
    """The same with the arguments of lanes under their own names, and of the problem its numbers without its functions."""
    rest = {key: value for key, value in compared.items() if key not in ("base", "source", "computes")}
    numbers = {key: value for key, value in compared["source"].items() if not isinstance(value, str)}
    return rest | {"source": numbers} | compared["base"]["$dict"]


def _changed_functions(old: dict[str, Any], new: dict[str, Any], comparable: bool) -> list[str]:
    """One line for each function that computes something else.

    ``comparable``: whether the versions are those with which the study was begun. Others may make another program of the
    same function; then, and in a study that does not know its programs, the source has to do.
    """
    lines = []
    before, after = old.get("computes"), new["computes"]
    for name in dict.fromkeys([*(before or {}), *after]):
        programs = [(side or {}).get(name, "(not given)") for side in (before, after)]
        sources = [side["source"].get(name) for side in (old, new)]
        same_program, same_source = before is not None and programs[0] == programs[1], sources[0] == sources[1]
        if same_program or (same_source and not (before and comparable)):
            continue
        hint = f"source.{name}: {sources[0]} → {sources[1]}"
        if same_source:
            hint = "its source is as it was: a number, a container or a function that it uses has changed"
        program = "" if before is None else f"{programs[0]} → {programs[1]}; "
        lines.append(f"{name}, which computes something else: {program}{hint}")
    return lines


def _without(args: Any, paths: list[tuple[str, ...]]) -> Any:
    """Encoded parameters less those that a design replaces."""
    if not isinstance(args, dict) or "$dict" not in args:
        return args
    inner = {
        key: _without(value, [path[1:] for path in paths if path[:1] == (key,)])
        for key, value in args["$dict"].items()
        if (key,) not in paths
    }
    return {"$dict": inner}


def _automatic_chunk(plan: Schema) -> int:
    """Lanes of a block whose results fit MEMORY."""
    lane = sum(np.prod(x.shape, dtype=float) * x.dtype.itemsize for x in plan.variables)
    return int(np.clip(MEMORY // lane, 1, CHUNK))


def _batch(blocks: Blocks) -> int:
    """Lanes computed at once: on a CPU as many batches a block as it has cores, on an accelerator the whole block."""
    lanes = int(np.prod(blocks.shape))
    if jax.default_backend() != "cpu":
        return lanes
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return -(-lanes // cores)


def _versions() -> dict[str, str]:
    return provenance() | {"created": _now()}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _agreed(value: np.ndarray) -> np.ndarray:
    """The value of process 0, in all processes; none goes on before all have come here."""
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.broadcast_one_to_all(value))
