"""Files for ParaView hold the rows: read again by VTK's own readers."""

import xml.etree.ElementTree as ElementTree

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import bodies, spatial

pytest.importorskip("vtkmodules", reason="vtk is not installed: pip install vtk")
from vtkmodules.util.numpy_support import vtk_to_numpy
from vtkmodules.vtkIOXML import vtkXMLPolyDataReader

RADIUS, NUMBER = 0.1, 9


@pytest.fixture(scope="module")
def column():
    """Nine spheres one above the other, which settle on the floor."""
    problem = bodies.spheres(np.full(NUMBER, RADIUS), walls=((-1, 1), (-1, 1), (0, None)), gravity=9.81)
    q0 = np.stack([[0.0, 0.0, (2 * k + 1.05) * RADIUS] for k in range(NUMBER)]).ravel()
    return ji.solve(problem, q0, np.zeros(3 * NUMBER), t1=0.1, h=1e-2, save=5)


def read(path):
    reader = vtkXMLPolyDataReader()
    reader.SetFileName(str(path))
    reader.Update()
    return reader.GetOutput()


def test_rows_come_back(column, tmp_path):
    path = column.to_paraview(tmp_path / "run.pvd", radius=RADIUS)
    sets = [x.attrib for x in ElementTree.parse(path).iter("DataSet")]
    for part, kind in (("0", "bodies"), ("1", "contacts")):
        mine = [x for x in sets if x["part"] == part]
        np.testing.assert_array_equal([float(x["timestep"]) for x in mine], column.t)
        assert all(kind in x["file"] for x in mine)
    for k in range(len(column.t)):
        data = read(tmp_path / sets[2 * k]["file"])
        np.testing.assert_array_equal(vtk_to_numpy(data.GetPoints().GetData()), column.q[k].reshape(-1, 3))
        about = data.GetPointData()
        np.testing.assert_array_equal(vtk_to_numpy(about.GetArray("velocity")), column.v[k].reshape(-1, 3))
        np.testing.assert_array_equal(vtk_to_numpy(about.GetArray("radius")), np.full(NUMBER, RADIUS))
    # at the end every sphere but the lowest rests on the one below it, whose contact carries h g for each above
    data = read(tmp_path / sets[-1]["file"])
    lines = vtk_to_numpy(data.GetLines().GetConnectivityArray()).reshape(-1, 2)
    impulse = vtk_to_numpy(data.GetCellData().GetArray("impulse"))
    order = np.argsort(lines[:, 0])
    np.testing.assert_array_equal(lines[order], np.stack([np.arange(NUMBER - 1), np.arange(1, NUMBER)], axis=1))
    np.testing.assert_allclose(
        impulse[order], 9.81e-2 * np.arange(NUMBER - 1, 0, -1), rtol=1e-5
    )  # to the solver's 1e-8 m/s


def test_bodies_in_the_plane_have_no_third_coordinate(tmp_path):
    free = ji.solve(ji.Problem(lambda t, q, v, args: jnp.zeros_like(q)), np.arange(4.0), np.ones(4), t1=0.1, h=0.05)
    path = free.to_paraview(tmp_path / "flight.pvd", dimension=2, radius=lambda t: [0.1 + t, 0.2])
    assert "contacts" not in path.read_text()
    data = read(tmp_path / "flight" / "bodies_000002.vtp")
    np.testing.assert_allclose(vtk_to_numpy(data.GetPoints().GetData()), [[0.1, 1.1, 0], [2.1, 3.1, 0]])
    np.testing.assert_allclose(vtk_to_numpy(data.GetPointData().GetArray("radius")), [0.2, 0.2])


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [("run.vtk", {}, "ends with .pvd"), ("run.pvd", {"dimension": 2}, "27"),
    ("run.pvd", {"dimension": 1}, "dimension=1"),
     ("run.pvd", {"radius": [0.1, 0.2]}, "one for each of 9 bodies")],
)  # fmt: skip
def test_bad_arguments_are_refused_by_name(column, path, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        column.to_paraview(tmp_path / path, **options)


def test_bodies_in_space_are_surfaces_in_their_poses(tmp_path):
    half = np.array([0.2, 0.1, 0.05])
    system = spatial.System(
        bodies={
            "box": spatial.box((0, 0, 1), 2 * half, mass=1.0),
            "point": spatial.Body(mass=1.0, inertia=(1, 1, 1), centre=(0, 0, 3)),
            "ball": spatial.ball((2, 0, 0), 0.3, mass=1.0),
            "cylinder": spatial.cylinder((4, 0, 0), (4, 0, 0.5), 0.2, mass=1.0),
            "capsule": spatial.capsule((6, 0, 0), (6.4, 0.3, 0), 0.1, mass=1.0),
            "ellipsoid": spatial.ellipsoid((8, 0, 0), half, mass=1.0),
        }
    )
    start = system.start(box=(1, 0, 0, 3, -2, 5), ellipsoid=(0, 1, 0, 1, 2, 3))
    motion = ji.solve(system.problem(), *start, t1=0.3, h=0.01, save=10)
    path = system.to_paraview(motion, tmp_path / "tossed.pvd")
    files = [x.attrib for x in ElementTree.parse(path).iter("DataSet")]
    np.testing.assert_array_equal([float(x["timestep"]) for x in files], motion.t)
    corners = [(x, y, 1 + z) for x in (-0.2, 0.2) for y in (-0.1, 0.1) for z in (-0.05, 0.05)]
    # inscribed in round bodies: 500 normals leave out 2 pi / 500 of a ball's volume or so, more of an ellipsoid's,
    # whose points lie less evenly
    volumes = [8 * np.prod(half), 4 / 3 * np.pi * 0.3**3, np.pi * 0.2**2 * 0.5, np.pi * 0.1**2 * (0.5 + 0.4 / 3),
               4 / 3 * np.pi * np.prod(half)]  # fmt: skip
    for q, file in zip(motion.q, files, strict=True):
        data = read(tmp_path / file["file"])
        points = vtk_to_numpy(data.GetPoints().GetData())
        triangles = vtk_to_numpy(data.GetPolys().GetConnectivityArray()).reshape(-1, 3)
        body = vtk_to_numpy(data.GetCellData().GetArray("body"))
        np.testing.assert_array_equal(np.unique(body), [0, 2, 3, 4, 5])
        mine = points[np.unique(triangles[body == 0])]
        expected = np.array([system.position(q, "box", corner) for corner in corners])
        np.testing.assert_allclose(mine[np.lexsort(mine.T)], expected[np.lexsort(expected.T)], atol=1e-14)
        signed = np.linalg.det(points[triangles] - points.mean(axis=0)) / 6
        found = [signed[body == number].sum() for number in (0, 2, 3, 4, 5)]
        np.testing.assert_allclose(found[0], volumes[0], rtol=1e-10)
        shares = np.array(found[1:]) / volumes[1:]
        assert np.all(shares < 1) and np.all(shares > [0.985, 0.985, 0.985, 0.96]), shares
        for name in ("ball", "ellipsoid"):
            number = list(dict(system.bodies)).index(name)
            mine = points[np.unique(triangles[body == number])] - np.asarray(system.pose(q).centre(name))
            own = mine @ np.asarray(system.rotation(q, name)) / (0.3 if name == "ball" else half)
            np.testing.assert_allclose(np.sum(own**2, axis=1), 1, rtol=1e-12)


def test_other_motions_and_bodies_of_no_shape_are_refused(column, tmp_path):
    system = spatial.System({"point": spatial.Body(mass=1.0, inertia=(1, 1, 1), centre=(0, 0, 3))})
    with pytest.raises(ValueError, match="of this system"):
        system.to_paraview(column, tmp_path / "run.pvd")
    motion = ji.solve(system.problem(), *system.start(), t1=0.1, h=0.05)
    with pytest.raises(ValueError, match="no body has a shape"):
        system.to_paraview(motion, tmp_path / "run.pvd")
    with pytest.raises(ValueError, match=r"ends with \.pvd"):
        system.to_paraview(motion, tmp_path / "run.vtp")
