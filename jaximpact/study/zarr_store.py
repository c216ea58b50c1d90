"""Store on disk: a Zarr group that xarray reads, and files beside it that make interruption safe at any instant.

A chunk of lanes is one chunk of every variable. Its data are written and flushed to the disk first; then one small file
with their checksums, put in place by an atomic rename, declares the chunk finished.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import socket
import stat
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from ..jaxtools import operating_system
from ..jaxtools.optional_packages import import_optional
from ..mechanics.status import BEFORE, Status, bit_numbers, translate_bits
from ..results.safe_reading import (
    JsonObject,
    check_arrays,
    check_folder,
    check_tree,
    first_mismatch,
    printable,
    printable_all,
    read_json,
)
from .design import Blocks
from .schema import DONE, Schema
from .store import Damage, Store, helpful_error

if TYPE_CHECKING:
    import xarray

HOME = ".study"  # folder of all files that are not Zarr: the record, the marks of finished chunks, the lock
MAX_CODEC_BYTES = 2**31 - 1  # bytes that a codec takes
CANNOT_FLUSH = (errno.EINVAL, errno.ENOTSUP)  # what some file systems say to flushing a directory
RESTORE = "restore it from a copy; the arrays are still read by xarray"


write_arrays: Callable[..., None] = np.savez  # by name alone


class ZarrStore(Store):
    """A directory with a Zarr group, which ``xarray.open_zarr`` can read even while it is written.

    Safe with directories from others: reading runs no code from the directory and opens no file outside it; links,
    pickles and unknown codecs are refused.

    Args:
        path: the directory.
        flush: called with the descriptor of each file and directory that must be on disk before the next operation;
            raises OSError on failure. By default `os.fsync`.
    """

    def __init__(self, path: str | os.PathLike[str], *, flush: Callable[[int], None] = os.fsync) -> None:
        self.path = Path(path)
        self._home = self.path / HOME
        self._marks = self._home / "blocks"
        self._flush = flush
        self._open: JsonObject = {}  # arrays that are written

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def exists(self) -> bool:
        return (self._home / "study.json").is_file()

    # definition

    def check(self) -> None:
        check_tree(self.path)
        check_arrays(self.path)

    def create(self, record: JsonObject, schema: Schema) -> None:
        try:
            self._clear()
            self._create_arrays(schema)
            with open(self._home / "design.npz", "wb") as file:
                write_arrays(file, **schema.design.values)
                self._synchronise_file(file)
            for directory, _, files in os.walk(self.path):
                for name in files:
                    self._synchronise(Path(directory) / name)
                self._synchronise(directory)
            # written last: a study exists if this file does
            self._replace(self._home / "study.json", json.dumps(record))
        except OSError as error:
            raise helpful_error(
                error, f"the study {self.path} could not be created", "free space or permit writing, and run again"
            ) from error

    def _clear(self) -> None:
        """Removes arrays and marks of finished chunks left by an interrupted creation."""
        self._open.clear()
        for array in self.path.glob("*/zarr.json"):
            shutil.rmtree(array.parent)
        for file in (self.path / "zarr.json", *self._marks.iterdir()):
            file.unlink(missing_ok=True)

    def _create_arrays(self, schema: Schema) -> None:
        zarr = import_optional("zarr", "a study")
        dims, blocks, coordinates = schema.design.dims, schema.blocks, list(schema.coordinates())
        # xarray's way to say which arrays are coordinates
        others = [x.name for x in coordinates if x.dims != (x.name,)]
        group = self._group("a")
        group.attrs.put(schema.attributes | ({"coordinates": " ".join(others)} if others else {}))
        options = {"overwrite": True, "compressors": zarr.codecs.ZstdCodec(level=1, checksum=True)}
        options["chunk_key_encoding"] = {"name": "default", "separator": "."}
        for variable in schema.variables:
            chunks = blocks.shape + variable.shape
            size = int(np.prod(chunks, dtype=float)) * variable.dtype.itemsize
            if size > MAX_CODEC_BYTES:
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
        for x in coordinates:
            # NaN, which no coordinate has, stands for lost values: zarr's own zero would pass for one
            fill = np.nan if x.values.dtype.kind == "f" else None
            group.create_array(
                x.name, data=x.values, dimension_names=x.dims, attributes=x.attributes, fill_value=fill, **options
            )
        self._consolidate()

    def _consolidate(self) -> None:
        """Writes the consolidated metadata of the group, so that a reader opens one file.

        Not by Zarr's own function, which warns; silencing it would change the warning filters of all threads.
        """
        about = json.loads((self.path / "zarr.json").read_text())
        nodes = {file.parent.name: json.loads(file.read_text()) for file in sorted(self.path.glob("*/zarr.json"))}
        about["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": nodes}
        self._replace(self.path / "zarr.json", json.dumps(about, indent=2))

    def record(self) -> tuple[JsonObject, dict[str, np.ndarray]]:
        if not self.exists:
            raise FileNotFoundError(f"{self.path} is no study: there is no {HOME}/study.json in it")
        self.check()
        found = read_json(self._home / "study.json", RESTORE)
        check_folder(found, self.path)
        try:
            with open(self._home / "design.npz", "rb") as file, np.load(file, allow_pickle=False) as values:
                return found, {key: values[key] for key in values.files}
        except (ValueError, TypeError, AttributeError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"{self._home / 'design.npz'} is damaged, it is not what a study writes ({printable(str(error))}): "
                f"{RESTORE}"
            ) from error

    def _need_group(self) -> None:
        if not (self.path / "zarr.json").is_file():
            raise FileNotFoundError(f"{self.path} is damaged, there is no zarr.json in it: restore it from a copy")

    def _group(self, mode: str) -> Any:
        if mode != "a":
            self._need_group()
        return import_optional("zarr", "a study").open_group(str(self.path), mode=mode, zarr_format=3)

    def dataset(self) -> xarray.Dataset:
        import_optional("zarr", "a study")
        self.check()
        self._need_group()
        xarray = import_optional("xarray", "a study")
        try:
            found = xarray.open_zarr(self.path, zarr_format=3)
            lost = [name for name, x in found.coords.items() if x.dtype.kind == "f" and np.isnan(x.values).any()]
        except (RuntimeError, OSError) as error:
            raise ValueError(f"{self.path}: values of its dimensions are damaged ({error}): {RESTORE}") from error
        if lost:
            raise ValueError(f"{self.path}: values of {lost[0]} are missing: restore {lost[0]}/ from a copy")
        for part in (found, *found.variables.values()):
            part.attrs = printable_all(part.attrs)
        if "status" in found:
            # a store keeps the bits with which it was begun
            bits = _bits_of(found.status.attrs)
            about = found.status.attrs | {
                "flag_masks": [*bit_numbers().values()],
                "flag_meanings": " ".join(bit_numbers()),
            }
            found["status"] = xarray.apply_ufunc(
                lambda x: translate_bits(x, bits), found.status, dask="parallelized", output_dtypes=[found.status.dtype]
            ).assign_attrs(about)
        return found

    # one process at a time

    def _prepare(self) -> None:
        """Creates the directory; raises if it exists and holds something other than a study."""
        if self.path.is_dir():
            self.check()
        if self.path.exists() and not self._home.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise FileExistsError(f"{self.path} exists and is no study: choose another path, or remove it")
        try:
            self._marks.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise helpful_error(
                error, f"the study cannot be written to {self.path}", "choose a directory you may write to"
            ) from error

    def _tidy(self) -> None:
        """Removes the incomplete files of killed processes."""
        for directory in (self.path, self._home, self._marks):
            for pattern in ("*/*.partial", "*.partial"):
                for file in directory.glob(pattern):
                    file.unlink(missing_ok=True)

    @contextmanager
    def lock(self, unlock: bool = False) -> Iterator[None]:
        """Context that holds the study for this process, with its directory created and cleaned;
        takes over the lock of a dead process.

        The lock belongs to the operating system, which drops it when the process ends for whatever reason; the file
        names its holder. Whether a process on another host is alive cannot be known: ``unlock`` takes over its lock.
        """
        self._prepare()
        host = socket.gethostname()
        try:
            file = operating_system.open_lock_file(self._home / "lock")
        except OSError as error:
            raise self._write_error(error) from error
        try:
            about = os.fstat(file)
            if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
                raise ValueError(f"{self._home / 'lock'} is not a regular file with a single name: remove it")
            try:
                operating_system.lock(file)
            except BlockingIOError:
                words = _describe_holder(_holder(file))
                raise RuntimeError(f"{self.path} is being computed by {words}: wait for it, or stop it") from None
            # read when it is ours: before, another process could come between
            who = _holder(file)
            words = _describe_holder(who)
            if who.get("host", host) != host and not unlock:
                raise RuntimeError(
                    f"{self.path} is held by {words}, which this host cannot see: make sure that it has ended, then "
                    "run(unlock=True)"
                )
            try:
                _rewrite(file, json.dumps({"pid": os.getpid(), "host": host}))
            except OSError as error:
                raise self._write_error(error) from error
            try:
                self._tidy()
                yield
            finally:
                os.ftruncate(file, 0)
        finally:
            os.close(file)

    def _write_error(self, error: OSError) -> OSError:
        return helpful_error(
            error, f"the study {self.path} cannot be written", "free space or permit writing, or copy it elsewhere"
        )

    # chunks

    def finished(self) -> set[int]:
        if not self.exists:
            return set()
        names = (name[:-5] for name in os.listdir(self._marks) if name.endswith(".json"))
        return {int(name) for name in names if name.isdecimal()}

    def facts(self, chunk: int) -> JsonObject:
        found = read_json(self._mark(chunk), "run(repair=True) computes the chunk again")
        if first_mismatch(found, {"files": {str: object}}):
            raise ValueError(f"{self._mark(chunk)} is damaged: run(repair=True) computes the chunk again")
        return found

    def blank(self, chunk: int, names: Iterable[str]) -> dict[str, np.ndarray]:
        lanes, dims = self._blocks().lanes(chunk), self._array(DONE.name).ndim
        found = {}
        for name in names:
            array = self._array(name)
            found[name] = np.broadcast_to(np.array(array.fill_value, array.dtype), (lanes, *array.shape[dims:]))
        return found

    def write(self, chunk: int, arrays: Mapping[str, np.ndarray], facts: JsonObject) -> None:
        blocks, files = self._blocks(), {}
        position, sizes = blocks.position(chunk), blocks.sizes(chunk)
        for name, values in arrays.items():
            target = self._array(name)
            key = target.metadata.encode_chunk_key(position + (0,) * (target.ndim - len(position)))
            file = self.path / name / key
            file.unlink(missing_ok=True)  # zarr would read an old one first
            target[blocks.where(chunk)] = values.reshape(sizes + values.shape[1:])
            self._synchronise(file)
            self._synchronise(file.parent)
            files[f"{name}/{key}"] = (file.stat().st_size, _checksum(file))
        self._replace(self._mark(chunk), json.dumps({**facts, "files": files}))

    def keep(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Stores the arrays from which another process can continue an unfinished motion;
        they replace earlier ones atomically."""
        new, path = self._home / "carry.partial", self._home / "carry.npz"
        with open(new, "wb") as file:
            write_arrays(file, **arrays)
            self._synchronise_file(file)
        os.replace(new, path)
        self._synchronise(self._home)

    def kept(self) -> dict[str, np.ndarray]:
        """The arrays last stored by `keep`; empty if there are none."""
        path = self._home / "carry.npz"
        if not path.exists():
            return {}
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as found:
                return {name: found[name] for name in found.files}
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} is damaged ({printable(str(error))}): {RESTORE}") from error

    def forget(self, chunk: int) -> None:
        self._mark(chunk).unlink(missing_ok=True)
        self._synchronise(self._marks)

    def read(self, chunk: int, names: Iterable[str]) -> dict[str, np.ndarray]:
        group = self._group("r")
        where = Blocks(group[DONE.name].shape, group[DONE.name].chunks).where(chunk)
        found = {name: np.asarray(group[name][where]) for name in names}
        if "status" in found:
            found["status"] = translate_bits(found["status"], _bits_of(group["status"].attrs))
        return found

    def damaged(self, chunks: Collection[int], contents: bool) -> list[Damage]:
        if contents:
            self.check()
        found = []
        for chunk in sorted(chunks):
            try:
                files = self.facts(chunk)["files"]
                # a mark names chunks of arrays and nothing above them
                entries = [(*name.split("/"), name, *about) for name, about in files.items()]
                sound = all(len(entry) == 5 and not entry[0].startswith(".") and entry[0] for entry in entries)
            except (ValueError, TypeError):
                sound = False
            if not sound:
                found.append(Damage(chunk, self._mark(chunk).name, "unreadable"))
                continue
            for _, _, name, size, checksum in entries:
                problem = _problem(self.path / name, size, checksum if contents else None)
                if problem:
                    found.append(Damage(chunk, name, problem))
        return found

    def _array(self, name: str) -> Any:
        """An array opened for writing, opened once."""
        if name not in self._open:
            try:
                # chunks of fill values are data too; said to each array, for Zarr's settings are those of all threads
                self._open[name] = self._group("r+")[name].with_config({"write_empty_chunks": True})
            except KeyError as error:
                raise RuntimeError(
                    f"{self.path}: the array {error} is missing: restore it from a copy, or compute the study anew "
                    "elsewhere"
                ) from error
        return self._open[name]

    def _blocks(self) -> Blocks:
        done = self._array(DONE.name)
        return Blocks(done.shape, done.chunks)

    def _mark(self, chunk: int) -> Path:
        return self._marks / f"{chunk}.json"

    # the disk

    def _replace(self, path: Path, text: str) -> None:
        """Writes a file atomically; it is on disk on return."""
        new = path.with_suffix(".partial")
        with open(new, "w") as file:
            file.write(text)
            self._synchronise_file(file)
        os.replace(new, path)
        self._synchronise(path.parent)

    def _synchronise_file(self, file: IO) -> None:
        file.flush()
        self._flush(file.fileno())

    def _synchronise(self, path: str | os.PathLike[str]) -> None:
        """Flushes a file or the entries of a directory to the disk."""
        if os.path.isdir(path) and not operating_system.flushes_directories():
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            self._flush(descriptor)
        except OSError as error:
            if error.errno not in CANNOT_FLUSH or not os.path.isdir(path):
                raise
        finally:
            os.close(descriptor)


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


def _holder(lock: int) -> dict[str, str]:
    """The process that holds the lock, as pid and host, read from the file of the lock.

    Empty if a killed process left an incomplete line. ``lock``: descriptor of the file.
    """
    try:
        os.lseek(lock, 0, os.SEEK_SET)
        found = json.loads(os.read(lock, 4096) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return {} if first_mismatch(found, {str: object}) else {key: printable(str(x)) for key, x in found.items()}


def _describe_holder(who: Mapping[str, str]) -> str:
    return f"process {who.get('pid', '?')} on host {who.get('host', '?')}"


def _rewrite(descriptor: int, text: str) -> None:
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, text.encode())


def _bits_of(attributes: Mapping) -> dict[str, int]:
    """Returns the numbers of the status bits by name that the attributes of a stored array give;
    names that nobody knows are left out."""
    names, masks = str(attributes.get("flag_meanings", "")).split(), np.ravel(attributes.get("flag_masks", []))
    known = {name: int(bit) for name, bit in zip(names, masks, strict=False) if name in Status.__members__}
    return known or BEFORE
