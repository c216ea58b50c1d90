"""A study on disk: a Zarr group that xarray reads, and beside it what makes it safe to stop at any instant.

A block of lanes is one chunk of every variable. Its data are written and flushed to the disk first; then one small file,
put in place by one atomic renaming, declares it finished and carries the checksums of the data.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import json
import os
import shutil
import socket
import stat
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .design import Blocks, Design
from .guard import check_arrays, check_definition, check_tree, printable, read_json
from .task import Schema, Variable

HOME = ".study"  # what is not Zarr: the definition, the marks of finished blocks, the lock
PENDING, COMPUTED, REFUSED = 0, 1, 2
DONE = Variable(
    "done",
    (),
    (),
    np.dtype(np.int8),
    {
        "long_name": "whether the lane has been computed",
        "flag_values": [PENDING, COMPUTED, REFUSED],
        "flag_meanings": "pending computed start_not_admissible",
    },
)
LARGEST = 2**31 - 1  # bytes that a codec takes
LOCKED_BY = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK  # no other file, and no waiting for a pipe
MARK = {"lanes": int, "failed": int, "bits": dict, "refused": int, "steps": int, "seconds": int | float, "files": dict}
CANNOT_FLUSH = (errno.EINVAL, errno.ENOTSUP)  # what some file systems say to flushing a directory
UNITS = {"e": "1", "h": "s", "t0": "s", "t1": "s"}


def require(module: str, extra: str = "study"):
    """The module, or ImportError that names the extra it comes with."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"studies need {module}: pip install 'jaximpact[{extra}]'") from error


class Damage(NamedTuple):
    """A finished block whose data are not what was written."""

    block: int
    file: str
    problem: str


class Store:
    """The directory of a study."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.home = self.path / HOME
        self.marks = self.home / "blocks"

    @property
    def exists(self) -> bool:
        return (self.home / "study.json").is_file()

    # definition

    def check(self) -> None:
        """Refuse links, special files and arrays of a kind that no study contains, before anything of them is used."""
        check_tree(self.path)
        check_arrays(self.path)

    def prepare(self) -> None:
        """The directory itself; refuses one that holds something else."""
        if self.path.is_dir():
            self.check()
        if self.path.exists() and not self.home.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise FileExistsError(f"{self.path} exists and is no study: choose another path, or remove it")
        try:
            self.marks.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _told(
                error, f"the study cannot be written to {self.path}", "choose a directory you may write to"
            ) from error

    def create(
        self, definition: Mapping[str, Any], design: Design, blocks: Blocks, schema: Schema, attributes: dict
    ) -> None:
        """All arrays, without data; what an interrupted creation left is removed. The definition comes last."""
        try:
            self._clear()
            self._create_arrays(design, blocks, schema, attributes)
            with open(self.home / "design.npz", "wb") as file:
                np.savez(file, **design.values)  # type: ignore[arg-type]
                _flush(file)
            for directory, _, files in os.walk(self.path):
                for name in files:
                    _synchronise(Path(directory) / name)
                _synchronise(directory)
            self._replace(self.home / "study.json", json.dumps(definition))
        except OSError as error:
            raise _told(
                error, f"the study {self.path} could not be created", "free space or permit writing, and run again"
            ) from error

    def _clear(self) -> None:
        """Remove arrays and marks: without a definition they belong to no study."""
        for array in self.path.glob("*/zarr.json"):
            shutil.rmtree(array.parent)
        for file in (self.path / "zarr.json", *self.marks.iterdir()):
            file.unlink(missing_ok=True)

    def _create_arrays(self, design: Design, blocks: Blocks, schema: Schema, attributes: dict) -> None:
        zarr = require("zarr")
        names = design.names
        dims = dimensions(design)
        others = [name for key, name in names.items() if name not in dims or design.values[key].ndim > 1]
        # xarray's way to say which arrays are coordinates
        attributes = attributes | ({"coordinates": " ".join(others)} if others else {})
        group = self._group("a")
        group.attrs.put(attributes)
        options = {"overwrite": True, "compressors": zarr.codecs.ZstdCodec(level=1, checksum=True)}
        options["chunk_key_encoding"] = {"name": "default", "separator": "."}
        for variable in (*schema.variables, DONE):
            chunks = blocks.shape + variable.shape
            size = int(np.prod(chunks, dtype=float)) * variable.dtype.itemsize
            if size > LARGEST:
                raise ValueError(
                    f"chunk: {variable.name} of a chunk would take {size / 2**30:.1f} GiB; take fewer lanes a chunk"
                )
            group.create_array(
                variable.name,
                shape=blocks.whole + variable.shape,
                chunks=chunks,
                dtype=variable.dtype,
                fill_value=variable.fill,
                dimension_names=dims + variable.dims,
                attributes=variable.attributes,
                **options,
            )
        for key, name in names.items():
            column = design.values[key]
            root = key.partition("[")[0]
            inner = {"q0": ("coordinate",), "v0": ("coordinate",), "e": ("constraint",)}.get(
                root, tuple(f"{name}_{i}" for i in range(column.ndim - 1))
            )
            units = {"units": UNITS[root]} if root in UNITS else {}
            own = dims[list(names).index(key)] if design.kind == "grid" else dims[0]
            group.create_array(
                name,
                data=column,
                dimension_names=(own, *inner[: column.ndim - 1]),
                attributes={"quantity": key} | units,
                **options,
            )
        if schema.times is not None:
            about = {"long_name": "time", "units": "s"}
            group.create_array("time", data=schema.times, dimension_names=("time",), attributes=about, **options)
        self._consolidate()

    def _consolidate(self) -> None:
        """The descriptions of all arrays in that of the group, so that a reader opens one file.

        By hand: Zarr's own function warns, and to silence it would change the filters of all threads.
        """
        about = json.loads((self.path / "zarr.json").read_text())
        nodes = {file.parent.name: json.loads(file.read_text()) for file in sorted(self.path.glob("*/zarr.json"))}
        about["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": nodes}
        self._replace(self.path / "zarr.json", json.dumps(about, indent=2))

    def definition(self) -> tuple[dict[str, Any], Design]:
        """What `create` was given: plain data, of which nothing is run or imported.

        Raises:
            FileNotFoundError: there is no study. ValueError: what is there is damaged, or nothing that a study writes.
        """
        if not self.exists:
            raise FileNotFoundError(f"{self.path} is no study: there is no {HOME}/study.json in it")
        self.check()
        definition = read_json(self.home / "study.json", "restore it from a copy; the arrays are still read by xarray")
        check_definition(definition, self.path)
        about = definition["compared"]["design"]["$dict"]
        try:
            with open(self.home / "design.npz", "rb") as file, np.load(file, allow_pickle=False) as values:
                columns = {key: values[key] for key in about["quantities"]}
            design = Design(about["kind"], columns, about["note"])
        except (ValueError, TypeError, AttributeError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"{self.home / 'design.npz'} is damaged, it is not what a study writes ({printable(str(error))}): restore "
                "it from a copy; the arrays are still read by xarray"
            ) from error
        if len(definition["compared"]["chunk"]) != len(design.shape):
            raise ValueError(
                f"{self.path}: the chunks of study.json do not fit the design of design.npz: restore a copy"
            )
        return definition, design

    def _group(self, mode: str):
        return require("zarr").open_group(str(self.path), mode=mode, zarr_format=3)

    # one process at a time

    @contextmanager
    def lock(self, unlock: bool = False) -> Iterator[None]:
        """Hold the study for this process; the lock of a process that is dead is taken over.

        The operating system keeps the lock and drops it when the process ends, however it ends; the file says who holds
        it. Of a process on another host nothing is known: ``unlock`` takes its lock over.
        """
        import fcntl

        host = socket.gethostname()
        try:
            file = os.open(self.home / "lock", LOCKED_BY, 0o644)
        except OSError as error:
            raise self._locking(error) from error
        try:
            about = os.fstat(file)
            if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
                raise ValueError(
                    f"{self.home / 'lock'} is no file of its own (a second name of another one): remove it"
                )
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                words = _words(_holder(file))
                raise RuntimeError(f"{self.path} is being computed by {words}: wait for it, or stop it") from None
            # read when it is ours: before, another process could come between
            who = _holder(file)
            words = _words(who)
            if who.get("host", host) != host and not unlock:
                raise RuntimeError(
                    f"{self.path} is held by {words}, which this host cannot see: make sure that it has ended, then "
                    "run(unlock=True)"
                )
            try:
                _rewrite(file, json.dumps({"pid": os.getpid(), "host": host}))
            except OSError as error:
                raise self._locking(error) from error
            try:
                yield
            finally:
                os.ftruncate(file, 0)
        finally:
            os.close(file)

    def _locking(self, error: OSError) -> OSError:
        return _told(
            error, f"the study {self.path} cannot be written", "free space or permit writing, or copy it elsewhere"
        )

    # blocks

    def finished(self) -> set[int]:
        """Numbers of the finished blocks."""
        names = (name[:-5] for name in os.listdir(self.marks) if name.endswith(".json"))
        return {int(name) for name in names if name.isdecimal()}

    def facts(self, block: int) -> dict[str, Any]:
        """What was written down when the block was finished; ValueError where that is damaged."""
        found = read_json(self._mark(block), "run(repair=True) computes the chunk again")
        if not isinstance(found, dict) or not all(isinstance(found.get(key), kind) for key, kind in MARK.items()):
            raise ValueError(f"{self._mark(block)} is damaged: run(repair=True) computes the chunk again")
        return found

    def tidy(self) -> None:
        """Remove what killed processes left half written; for the holder of the lock, before work begins."""
        for directory in (self.path, self.home, self.marks):
            for pattern in ("*/*.partial", "*.partial"):
                for file in directory.glob(pattern):
                    file.unlink(missing_ok=True)

    def forget(self, block: int) -> None:
        """Declare a block unfinished."""
        self._mark(block).unlink(missing_ok=True)
        _synchronise(self.marks)

    def damaged(self, blocks: set[int], contents: bool) -> list[Damage]:
        """Finished blocks whose files are missing or of another size or, with ``contents``, of another checksum."""
        found = []
        for block in sorted(blocks):
            try:
                files = self.facts(block)["files"]
                # a mark names chunks of arrays and nothing above them
                entries = [(*name.split("/"), name, *about) for name, about in files.items()]
                sound = all(len(entry) == 5 and not entry[0].startswith(".") and entry[0] for entry in entries)
            except (ValueError, TypeError):
                sound = False
            if not sound:
                found.append(Damage(block, self._mark(block).name, "unreadable"))
                continue
            for _, _, name, size, checksum in entries:
                problem = _problem(self.path / name, size, checksum if contents else None)
                if problem:
                    found.append(Damage(block, name, problem))
        return found

    def _mark(self, block: int) -> Path:
        return self.marks / f"{block}.json"

    def _replace(self, path: Path, text: str) -> None:
        """A file in one atomic act, on the disk when this returns."""
        new = path.with_suffix(".partial")
        with open(new, "w") as file:
            file.write(text)
            _flush(file)
        os.replace(new, path)
        _synchronise(path.parent)


class Writer:
    """Writes blocks: one process, one thread."""

    def __init__(self, store: Store, blocks: Blocks, variables: list[str]):
        self.store, self.blocks, self.variables = store, blocks, variables
        group = store._group("r+")
        # chunks of fill values are data too; said to each array, for Zarr's settings are those of all threads
        options = {"write_empty_chunks": True}
        try:
            self.arrays = {name: group[name].with_config(options) for name in (*variables, DONE.name)}
        except KeyError as error:
            raise RuntimeError(
                f"{store.path}: the array {error} is missing: restore it from a copy, or compute the study anew elsewhere"
            ) from error

    def shapes(self, block: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape, lanes first, and dtype of each variable of a block."""
        dims, lanes = len(self.blocks.whole), int(np.prod(self.blocks.sizes(block)))
        return {name: ((lanes, *self.arrays[name].shape[dims:]), self.arrays[name].dtype) for name in self.variables}

    def empty(self, block: int) -> dict[str, np.ndarray]:
        """Fill values for all variables of a block."""
        some = self.shapes(block).items()
        return {name: np.full(shape, self.arrays[name].fill_value, dtype) for name, (shape, dtype) in some}

    def write(self, block: int, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any], where: str) -> None:
        """The data of a block (lanes first), then its mark with ``facts``. ``where`` names the block to the user."""
        position, sizes = self.blocks.position(block), self.blocks.sizes(block)
        try:
            files = {}
            # `done` last: who reads meanwhile never sees it before the data
            for name, values in sorted(arrays.items(), key=lambda item: item[0] == DONE.name):
                target = self.arrays[name]
                key = target.metadata.encode_chunk_key(position + (0,) * (target.ndim - len(position)))
                file = self.store.path / name / key
                file.unlink(missing_ok=True)  # zarr would read an old one first
                target[self.blocks.where(block)] = values.reshape(sizes + values.shape[1:])
                _synchronise(file)
                _synchronise(file.parent)
                files[f"{name}/{key}"] = (file.stat().st_size, _checksum(file))
            self.store._replace(self.store._mark(block), json.dumps({**facts, "files": files}))
        except OSError as error:
            raise _told(
                error,
                f"chunk {block} ({where}) could not be written to {self.store.path}",
                "the finished chunks are safe; free space or permit writing, then run the study again to continue",
            ) from error


def dimensions(design: Design) -> tuple[str, ...]:
    """Names of the dimensions of a design: those of its quantities, or "lane"."""
    if design.kind == "points":
        return ("lane",)
    names = design.names
    return tuple(name if design.values[key].ndim == 1 else f"{name}_index" for key, name in names.items())


def _told(error: OSError, what: str, advice: str) -> OSError:
    """The same error, in words that help."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    return OSError(error.errno or errno.EIO, f"{what}: {reason}; {advice}")


def _problem(path: Path, size: int, checksum: str | None) -> str | None:
    try:
        found = path.stat().st_size
        if found != size:
            return f"{found} bytes in place of {size}"
        return "contents changed" if checksum is not None and _checksum(path) != checksum else None
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return str(error)


def _checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _flush(file) -> None:
    file.flush()
    os.fsync(file.fileno())


def _synchronise(path: str | os.PathLike) -> None:
    """Flush a file, or the entries of a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in CANNOT_FLUSH or not os.path.isdir(path):
            raise
    finally:
        os.close(descriptor)


def _holder(lock: int) -> dict[str, str]:
    """Who holds the lock; nobody where a killed process left half a line."""
    try:
        found = json.loads(os.pread(lock, 4096, 0) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return {key: printable(str(x)) for key, x in found.items()} if isinstance(found, dict) else {}


def _words(who: Mapping[str, str]) -> str:
    return f"process {who.get('pid', '?')} on host {who.get('host', '?')}"


def _rewrite(descriptor: int, text: str) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)
