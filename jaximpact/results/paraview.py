"""ParaView files of motions of bodies: for each row a file of positions as points, and a file of contacts as lines;
or one of surfaces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

import numpy as np
from numpy.typing import ArrayLike

from ..jaxtools.argument_checks import check_choice
from ..jaxtools.optional_packages import import_optional

if TYPE_CHECKING:
    from .solution import Solution


def write(solution: Solution, path: str | Path, dimension: int, radius: ArrayLike | None) -> Path:
    """Writes a solution to files for ParaView: see `Solution.to_paraview`."""
    check_path(path)
    check_choice("dimension", dimension, (2, 3))
    q = np.asarray(solution.q, np.float64)
    if q.ndim != 2 or q.shape[1] % dimension:
        raise ValueError(
            f"q has shape {q.shape}: the rows of one motion, solution[3] say, of bodies with {dimension} coordinates "
            "each"
        )
    rows, number = len(q), q.shape[1] // dimension
    radii = None if radius is None else _radii(solution, radius, rows, number)
    solid = lambda x: np.pad(
        np.asarray(x, np.float64).reshape(rows, number, dimension), ((0, 0), (0, 0), (0, 3 - dimension))
    )
    points, velocities = solid(q), solid(solution.v)
    frames: list[dict[str, tuple]] = []
    for k in range(rows):
        about = {"velocity": velocities[k]} | ({} if radii is None else {"radius": radii[k]})
        frames.append({"bodies": (points[k], np.arange(number)[:, None], "SetVerts", about, {})})
        if solution.pairs is not None:
            ends, impulse = np.asarray(solution.pairs[k]), np.asarray(solution.impulse[k], np.float64)
            real = (ends.min(axis=1) >= 0) & (ends.max(axis=1) < number) & (impulse > 0)
            frames[k]["contacts"] = (points[k], ends[real], "SetLines", {}, {"impulse": impulse[real]})
    return write_frames(solution, path, frames)


def check_path(path: str | Path) -> None:
    """Raises ValueError if a path does not end with .pvd, and ImportError if vtk is not installed."""
    import_optional("vtkmodules", "to_paraview")
    if Path(path).suffix != ".pvd":
        raise ValueError(f"path={str(path)!r}: ParaView's collection of files ends with .pvd")


def write_frames(solution: Solution, path: str | Path, frames: list[dict[str, tuple]]) -> Path:
    """Writes what is to be seen at each row of a solution: by name, the arguments of `_polydata`."""
    path = Path(path)
    folder = path.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for k, (t, frame) in enumerate(zip(np.asarray(solution.t).tolist(), frames, strict=True)):
        for part, (name, data) in enumerate(frame.items()):
            _polydata(folder / f"{name}_{k:06d}.vtp", *data)
            file = quoteattr(f"{folder.name}/{name}_{k:06d}.vtp")
            lines.append(f'<DataSet timestep="{t!r}" part="{part}" file={file}/>')
    text = '<?xml version="1.0"?>\n<VTKFile type="Collection" version="0.1">\n<Collection>\n'
    path.write_text(text + "\n".join(lines) + "\n</Collection>\n</VTKFile>\n")
    return path


def _radii(solution: Solution, radius: ArrayLike | None, rows: int, number: int) -> np.ndarray:
    """Radii of all bodies in all rows (rows, number), from a number, one number per body, or a function of t."""
    of = radius if callable(radius) else lambda t: radius
    found = [np.asarray(of(t), np.float64) for t in np.asarray(solution.t)]
    if any(x.shape not in ((), (number,)) for x in found):
        raise ValueError(f"radius has shape {found[0].shape}: give one number, or one for each of {number} bodies")
    return np.stack([np.broadcast_to(x, (number,)) for x in found])


def _polydata(path: Path, points: np.ndarray, cells: np.ndarray, kind: str, of_points: dict, of_cells: dict) -> None:
    """Writes a VTK file of points (n, 3) and cells (k, ends), of kind "SetVerts", "SetLines" or "SetPolys",
    with data for points and cells."""
    from vtkmodules.util.numpy_support import numpy_to_vtk, numpy_to_vtkIdTypeArray
    from vtkmodules.vtkCommonCore import vtkPoints
    from vtkmodules.vtkCommonDataModel import vtkCellArray, vtkPolyData
    from vtkmodules.vtkIOXML import vtkXMLPolyDataWriter

    data, places, array = vtkPolyData(), vtkPoints(), vtkCellArray()
    places.SetData(numpy_to_vtk(np.ascontiguousarray(points), deep=True))
    data.SetPoints(places)
    offsets = np.arange(len(cells) + 1, dtype=np.int64) * cells.shape[1]
    corners = np.ascontiguousarray(cells, np.int64).ravel()
    array.SetData(numpy_to_vtkIdTypeArray(offsets, deep=True), numpy_to_vtkIdTypeArray(corners, deep=True))
    getattr(data, kind)(array)
    for numbers, target in ((of_points, data.GetPointData()), (of_cells, data.GetCellData())):
        for name, values in numbers.items():
            column = numpy_to_vtk(np.ascontiguousarray(values), deep=True)
            column.SetName(name)
            target.AddArray(column)
    writer = vtkXMLPolyDataWriter()
    writer.SetFileName(str(path))
    writer.SetInputData(data)
    if not writer.Write():
        raise OSError(f"{path} could not be written")
