"""Files of results: .npz, NetCDF or Zarr. Every result can be saved whole, and no code in a file is ever run.

Numbers are stored as arrays; everything else (scheme, versions, structure of a result or of a save function's values)
is one JSON text. A digest over all numbers detects damage. Entries that this version does not know are refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..jaxtools.optional_packages import import_optional
from ..mechanics.scheme import Timing
from ..mechanics.status import BEFORE, bit_numbers, translate_bits
from .encoding import KINDS, decode_value, encode_value, pack
from .located_impacts import LocatedImpacts
from .result import Result
from .safe_reading import JsonObject, check_arrays, check_tree
from .solution import Origin, Solution
from .tables import EVENTS, MEANING, arrays, named_dataset, value_name

if TYPE_CHECKING:
    import xarray

FORMAT = 2  # in format 1 a status has the bits `status.BEFORE`
ABOUT = "jaximpact"  # name of the JSON text in a file
LOCATED = (
    "EventCorrected",
    "EventDriven",
)  # schemes that locate impacts, of which files of earlier versions have the name alone
FIELD = "field."  # before the name of an array that `to_xarray` does not have
OPTIONAL = (
    "energy",
    "pairs",
    "stopped",
    "joint_impulse",
    "joint_residual",
    "friction_impulse",
    "error",
    "failed_by",
)  # that a solution may have none of
ENGINES = {".nc": "h5netcdf", ".zarr": "zarr"}


write_arrays: Callable[..., None] = np.savez_compressed  # arrays by name alone


def save(result: Result, path: str | Path) -> Path:
    """Writes a result to a file and returns its path: see `Result.save`."""
    if result._is_traced():
        raise TypeError("save(path) needs known numbers: call it outside of jax's transformations")
    path = _check_ending(path)
    about, found = _parts_of_solution(result) if isinstance(result, Solution) else _parts(result)
    about |= {"format": FORMAT, "provenance": result.provenance, "status": bit_numbers()}
    about["arrays"] = {name: [list(x.shape), x.dtype.name] for name, x in found.items()}
    text = json.dumps(about)
    if path.suffix == ".npz":
        write_arrays(path, **found, **{ABOUT: np.array(text)})
        return path
    dataset = result.to_xarray() if isinstance(result, Solution) else _dataset(result, found)
    dataset, engine = dataset.assign_attrs({ABOUT: text}), ENGINES[path.suffix]
    import_optional(engine)
    if engine == "h5netcdf":
        packing = {name: {"zlib": True} for name, x in dataset.variables.items() if x.ndim and x.dtype.kind in KINDS}
        dataset.to_netcdf(path, engine="h5netcdf", encoding=packing)
    else:
        if path.exists() and not _is_result(path):
            raise FileExistsError(f"{path} exists and is no result: choose another path, or remove it")
        # Zarr has no standard for texts
        texts = [name for name, x in dataset.variables.items() if x.dtype.kind not in KINDS]
        dataset.drop_vars(texts).to_zarr(path, mode="w", zarr_format=3, consolidated=False)
    return path


def _parts(result: Result) -> tuple[JsonObject, dict[str, np.ndarray]]:
    """Returns the data for the JSON text, and the arrays by name, of the file of a result that is no `Solution`."""
    form, found = pack(result)
    return {"result": form, "digest": _digest(found, json.dumps(form))}, found


def _parts_of_solution(solution: Solution) -> tuple[JsonObject, dict[str, np.ndarray]]:
    found = arrays(solution)
    for name, value in found.items():
        if value.dtype.kind not in KINDS:
            raise TypeError(f"{name}: files hold real and complex numbers, not {value.dtype}")
    about = {
        "timing": None if solution.timing is None else list(solution.timing),
        "every_step": solution.origin.every_step,
        "labels": dataclasses.asdict(solution.naming),
        "values": encode_value(solution.values, ("values",), lambda where, _: value_name(where)),
        "digest": _digest(found),
    }
    return about, found


def _dataset(result: Result, found: Mapping[str, np.ndarray]) -> xarray.Dataset:
    """Returns the dataset of `Result.to_xarray`, plus a variable ``field.NAME`` for each array in ``found`` that it
    does not hold bit for bit."""
    data = named_dataset(result, any_result=True)
    data = data.drop_vars([name for name in data.variables if "/" in str(name)])  # a path in such files

    def has(name: str, value: np.ndarray) -> bool:
        other = data[name].values if name in data.variables else None
        return other is not None and other.dtype == value.dtype and _digest({"": other}) == _digest({"": value})

    more = {name: x for name, x in found.items() if x.size and not has(name, x)}
    return data.assign({FIELD + name: ([f"{FIELD}{name}_{i}" for i in range(x.ndim)], x) for name, x in more.items()})


def _check_ending(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix not in (".npz", *ENGINES):
        raise ValueError(f"path: {path.name!r} must end in .npz, .nc (NetCDF) or .zarr")
    return path


def load(path: str | Path) -> Any:
    """Reads the `Solution` or other result that ``result.save(path)`` wrote: the same numbers and dtypes,
    as numpy arrays.

    Safe with files from others: a file holds numbers and a text, and no code in it is run (no pickles).

    Args:
        path: of a file in .npz or .nc (NetCDF, needs h5netcdf), or a directory in .zarr (needs zarr and xarray).

    Returns:
        The result, of the class that was saved; ``result.provenance`` says with which
        versions and device it was computed.

    Raises:
        FileNotFoundError: there is no such file. ValueError: the file is damaged or not a result;
            the message says which.
    """
    path = _check_ending(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        text, found = _read_npz(path) if path.suffix == ".npz" else _read_dataset(path)
        about = json.loads(text)
        if about["format"] not in range(1, FORMAT + 1):
            raise ValueError(f"it is of format {about['format']!r}, this version reads 1 to {FORMAT}")
        return _result(about, found) if "result" in about else _solution(about, found)
    except ImportError:
        raise
    except KeyError as error:
        raise ValueError(f"{path} is damaged or no file of a result: it has no {error}") from error
    except (
        ValueError,
        TypeError,
        IndexError,
        AttributeError,
        OSError,
        EOFError,
        RuntimeError,
        RecursionError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        reason = str(error).split("\n")[0] or type(error).__name__
        raise ValueError(f"{path} is damaged or no file of a result: {reason}") from error


def _numbers(about: JsonObject, found: Mapping[str, np.ndarray], text: str = "") -> dict[str, np.ndarray]:
    """Returns the arrays by name that the JSON text ``about`` lists, restored to their shapes and dtypes.

    ValueError if these arrays and ``text``, a part of the JSON text, do not match the digest.
    """
    numbers: dict[str, np.ndarray] = {}
    for name, (shape, dtype) in about["arrays"].items():
        dtype = np.dtype(dtype)
        if dtype.kind not in KINDS:
            raise ValueError(f"{name} would be of {dtype}")
        # a dataset leaves empty arrays out, and the axis of an only row
        value = np.zeros(shape, dtype) if 0 in shape else found[name]
        if value.dtype.kind not in KINDS:
            raise ValueError(f"{name} is of {value.dtype}")
        numbers[name] = (np.broadcast_to(value, shape) if name == "t" else value.reshape(shape)).astype(dtype)
    if _digest(numbers, text) != about["digest"]:
        raise ValueError("its numbers are not those that were written")
    bits = about.get("status", BEFORE)
    of_status = {name for name, x in numbers.items() if name.split(".")[-1] == "status" and x.dtype.kind == "i"}
    return {name: translate_bits(x, bits) if name in of_status else x for name, x in numbers.items()}


def _provenance_of(about: JsonObject) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(text)) for name, text in about["provenance"].items())


def _result(about: JsonObject, found: Mapping[str, np.ndarray]) -> Result:
    """Decodes a result from the text and the arrays of an untrusted file."""
    result = decode_value(about["result"], _numbers(about, found, json.dumps(about["result"])), _provenance_of(about))
    if not isinstance(result, Result):
        raise ValueError(f"it holds a {type(result).__name__}")
    return result


def _solution(about: JsonObject, found: Mapping[str, np.ndarray]) -> Solution:
    """Decodes a `Solution` from the text and the arrays of an untrusted file."""
    numbers = _numbers(about, found)
    state: JsonObject = {name: numbers.get(name) for name in MEANING}
    missing = [name for name, x in state.items() if x is None and name not in OPTIONAL]
    if missing:
        raise KeyError(missing[0])
    timing = about["timing"]
    if timing is not None:
        scheme, lag, rebounds, *more = timing
        locates, by_tolerance = more or (scheme in LOCATED, scheme == "EventDriven")
        timing = Timing(str(scheme), float(lag), bool(rebounds), bool(locates), bool(by_tolerance))
    of_events: JsonObject = {name: x for name in EVENTS if (x := numbers.get(f"events_{name}")) is not None}
    events = LocatedImpacts(**of_events) if of_events else None
    solution = Solution(**state, values=decode_value(about["values"], numbers), events=events, timing=timing)
    known = {None: None, True: True, False: False}[about["every_step"]]
    labels = decode_value({"labels": about["labels"]}, numbers)
    return replace(solution, origin=Origin(every_step=known, naming=labels, made=_provenance_of(about)))


def _digest(found: Mapping[str, np.ndarray], text: str = "") -> str:
    """SHA-256 over names, shapes, dtypes and numbers of the arrays, and over a text."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(found):
        value = np.ascontiguousarray(found[name])
        value = value.astype(value.dtype.newbyteorder("<"))
        digest.update(f"{name} {value.shape} {value.dtype.name};".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def _read_npz(path: Path) -> tuple[str, dict[str, np.ndarray]]:
    if not zipfile.is_zipfile(path):
        raise ValueError("it is no .npz, which is a zip archive")
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as found:
        names = found.files
        if ABOUT not in names:
            raise ValueError(f"it holds {', '.join(names)[:100]}, but no text named {ABOUT}")
        return str(found[ABOUT]), {name: found[name] for name in names if name != ABOUT}


def _read_dataset(path: Path) -> tuple[str, dict[str, np.ndarray]]:
    xarray, engine = import_optional("xarray"), ENGINES[path.suffix]
    import_optional(engine)
    options: JsonObject = {}
    if engine == "zarr":
        check_tree(path)
        check_arrays(path)
        options = {"consolidated": False, "zarr_format": 3}
    # numbers as they are: nothing scaled, no times made of them
    with xarray.open_dataset(path, engine=engine, decode_times=False, mask_and_scale=False, **options) as dataset:
        if ABOUT not in dataset.attrs:
            raise ValueError(f"it holds {', '.join(map(str, dataset.variables))[:100]}, but no attribute {ABOUT}")
        known = {str(name): np.asarray(x.values) for name, x in dataset.variables.items()}
        fields = {name.removeprefix(FIELD): x for name, x in known.items() if name.startswith(FIELD)}
        found = {"t": known["time"]} if "time" in known else {}
        found |= known | fields
        return str(dataset.attrs[ABOUT]), found


def _is_result(path: Path) -> bool:
    """Whether a directory holds a saved result, and so may be overwritten."""
    try:
        return ABOUT in json.loads((path / "zarr.json").read_text())["attributes"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
