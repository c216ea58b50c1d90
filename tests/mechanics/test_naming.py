"""Names and units of coordinates, contacts and joints: where they show, what is refused, and that they cost nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import jaximpact as ji
from jaximpact import analysis


def force(t, q, v, args):
    return jnp.array([0.0, -9.81]) * args["g"]


def gaps(t, q, args):
    return jnp.stack([q[1], 2.0 - q[0]])


PLAIN = ji.Problem(force, gaps, mass=jnp.ones(2), restitution=0.7)
NAMES = {"coordinates": ("x", "height"), "contacts": ("floor", "wall"), "units": "m"}
NAMED = PLAIN.replace(**NAMES)
ARGS = {"g": 1.0}
OPTIONS = {"t1": 1.5, "h": 0.01, "args": ARGS}


@pytest.fixture(scope="module")
def motion():
    return ji.solve(NAMED, [0.5, 1.0], [1.5, 0.0], **OPTIONS)


@pytest.fixture(scope="module")
def batch():
    q0 = np.array([[0.5, 1.0], [0.5, 1.2], [0.6, 1.1]])
    return ji.ensemble(NAMED, q0, np.array([1.5, 0.0]) + 0 * q0, save=1, **OPTIONS)


def test_names_go_into_tables(motion, batch):
    table = motion.to_pandas()
    assert {"q[x]", "v[height]", "impulse[floor]"} <= set(table.columns)
    np.testing.assert_array_equal(table["q[height]"], motion.q[:, 1])
    data = batch.to_xarray()
    np.testing.assert_array_equal(data.q.sel(coordinate="height", lane=1), batch.q[1, :, 1])
    assert data.impulse.sel(constraint="wall").shape == batch.t.shape
    units = {name: data[name].attrs.get("units") for name in ("q", "v", "impulse", "penetration")}
    assert units == {"q": "m", "v": "m/s", "impulse": "N s", "penetration": "m"}
    records = motion.impacts(NAMED, args=ARGS)
    assert list(records.to_pandas()["contact"]) == [NAMES["contacts"][a] for a in records.contact] and len(records)
    derivative = ji.sensitivities(NAMED, [0.5, 1.0], [1.5, 0.0], wrt="q0", **OPTIONS | {"t1": 0.2})
    table = derivative.to_pandas().set_index(["output", "input"])["derivative"]
    assert table["q[x]", "q0[x]"] == 1 and table["q[x]", "q0[height]"] == 0


def test_joints_have_names_in_tables_pictures_and_messages(tmp_path):
    """A pendulum let go at 1 rad: its rod pulls by v^2 + g cos(angle)."""
    names = {"coordinates": ("x", "y"), "joint_names": ("rod",), "units": {"x": "m", "y": "m", "rod": "m"}}
    rod = ji.Problem(
        lambda t, q, v, args: jnp.array([0.0, -9.81]),
        joints=lambda t, q, args: (jnp.sqrt(q @ q) - 1)[None],
        **names,
    )
    q0 = [np.sin(1.0), -np.cos(1.0)]
    found = ji.solve(rod, q0, [0.0, 0.0], t1=0.5, h=1e-3, scheme=ji.MoreauJean())
    assert "joint_impulse[rod]" in found.to_pandas()
    data = found.to_xarray().joint_impulse
    assert data.attrs["units"] == "N s" and list(data.joint.values) == ["rod"]
    pull = np.sum(np.asarray(found.v) ** 2, axis=1) - 9.81 * found.q[:, 1]
    # the mean of a step, of second order: g^2 h^2
    np.testing.assert_allclose(-found.joint_force[:, 0], (pull[1:] + pull[:-1]) / 2, atol=1e-4)
    assert [ax.get_ylabel().split("[")[1] for ax in ji.plots.draw(found)] == ["m]", "m/s]", "N]"]
    assert ji.load(found.save(tmp_path / "motion.npz")).naming == rod.naming
    with pytest.raises(ValueError, match=r"\[0\] \('rod'\) is 0.1 in place of 0"):
        ji.solve(rod, np.multiply(1.1, q0), [0.0, 0.0], t1=0.5, h=1e-3)
    with pytest.raises(ValueError, match="joint_names names 2: a, b; there are 1 joint equations"):
        ji.solve(rod.replace(joint_names=("a", "b"), units="m"), q0, [0.0, 0.0], t1=0.5, h=1e-3)


@pytest.mark.parametrize("suffix", [".npz", ".nc", ".zarr"])
def test_names_go_into_files(suffix, motion, tmp_path):
    found = ji.load(motion.save(tmp_path / f"motion{suffix}"))
    assert found.naming == motion.naming and jax.tree.structure(found) == jax.tree.structure(motion)
    mixed = ji.solve(PLAIN.replace(**NAMES | {"units": {"x": "m"}}), [0.5, 1.0], [1.5, 0.0], **OPTIONS)
    assert ji.load(mixed.save(tmp_path / f"mixed{suffix}")).naming == mixed.naming


def texts(axes):
    found = []
    for ax in np.ravel(axes):
        found += [ax.get_xlabel(), ax.get_ylabel(), *ax.get_legend_handles_labels()[1]]
    return found


def test_names_go_into_pictures(motion, batch):
    shown = texts(motion.plot(gaps=lambda t, q: np.stack([q[:, 1], 2 - q[:, 0]], axis=1)))
    for text in (
        "position q\n[m]",
        "velocity v\n[m/s]",
        "gap f\n[m]",
        "accumulated\nimpulse Λ [N s]",
        "x",
        "height",
        "floor",
        "wall",
    ):
        assert text in shown
    shown = texts(batch.plot())
    assert "position height [m]" in shown and "x at t = 1.5 s [m]" in shown
    assert any(text.startswith("floor: ≤ ") for text in shown)
    assert "position height [m]" in texts(batch.plot(ax=Figure().subplots(), component=1))
    records = motion.impacts(NAMED, args=ARGS)
    assert {"floor", "wall", "speed of approach [m/s]"} <= set(texts(records.plot()))
    assert records.of(0).naming == records.naming == NAMED.naming
    balance = analysis.balance(NAMED, motion, args=ARGS)
    assert "momentum residual\n[N s]" in texts(balance.plot()) and "momentum[x]" in balance.to_pandas()
    statistics = analysis.statistics(batch)
    assert statistics.plot(component=1).get_ylabel() == "q[height] [m]" and "mean q[x]" in statistics.to_pandas()


def test_units_by_name():
    """Each component has its own; an axis that shows several lists them; what is not known is not made up."""
    units = {"x": "m", "height": "rad", "floor": "m"}
    motion = ji.solve(PLAIN.replace(**NAMES | {"units": units}), [0.5, 1.0], [1.5, 0.0], **OPTIONS)
    shown = texts(motion.plot())
    assert "position q\n[m, rad]" in shown and "velocity v\n[m/s, rad/s]" in shown
    assert motion.to_xarray().q.attrs["units"] == "m, rad" and "units" not in motion.to_xarray().impulse.attrs
    assert "accumulated\nimpulse Λ [N s]" in shown
    plain = ji.solve(PLAIN, [0.5, 1.0], [1.5, 0.0], **OPTIONS)
    assert "position q\n[unit of q]" in texts(plain.plot()) and "units" not in plain.to_xarray().q.attrs


@pytest.mark.parametrize(
    ("units", "impulse", "energy"),
    [
        ("m", "N s", "J"),
        ("mm", "kg mm/s", "kg mm²/s²"),
        ({"": "mm", "mass": "t"}, "N s", "mJ"),
        ({"": "mm", "mass": "g"}, "µN s", "nJ"),
        ({"x": "mm", "height": "mm", "floor": "rad", "mass": "t"}, "N mm s", "mJ"),
        ({"x": "cm", "height": "rad", "floor": "rad"}, "kg cm²/s", "kg cm²/s²"),
        ({"x": "mm", "height": "mm", "floor": "V"}, "kg mm²/(s V)", "kg mm²/s²"),
        ({"x": "m", "height": "m", "floor": "mm"}, "J s/mm", "J"),  # the gap alone is in mm
    ],
)
def test_units_of_impulse_and_energy_are_those_of_mass_and_length(units, impulse, energy, tmp_path):
    """An impulse times the unit of its gap over s is an energy, M L^2/s^2; N and J stand only for their own."""
    named = PLAIN.replace(**NAMES | {"units": units}, energy=lambda t, q, v, args: v @ v / 2)
    assert named.naming.unit("impulse", 0) == impulse and named.naming.energy_unit() == energy
    assert named.replace(restitution=0.5).naming == named.naming and named.units == units


def test_units_with_that_of_mass_show_and_are_kept(tmp_path):
    named = PLAIN.replace(**NAMES | {"units": {"": "mm", "mass": "t"}}, energy=lambda t, q, v, args: v @ v / 2)
    motion = ji.solve(named, [0.5, 1.0], [1.5, 0.0], **OPTIONS)
    shown = texts(motion.plot())
    assert "accumulated\nimpulse Λ [N s]" in shown and {"energy\n[mJ]", "energy change\n[mJ]"} & set(shown)
    assert motion.to_xarray().energy.attrs["units"] == "mJ"
    assert "energy [mJ]" in texts(analysis.balance(named, motion, args=ARGS).plot())
    assert ji.load(motion.save(tmp_path / "motion.npz")).naming == named.naming


def test_names_go_into_messages():
    for call, where in ((ji.solve, "q0"), (ji.ensemble, "q0 of trajectory 1")):
        q0 = [2.5, 1.0] if call is ji.solve else [[0.5, 1.0], [2.5, 1.0]]
        with pytest.raises(ValueError, match=rf"{where} is not admissible: constraint 1 \('wall'\) has gap -0.5"):
            call(NAMED, q0, np.zeros_like(q0), **OPTIONS)
        with pytest.raises(ValueError, match=rf"{where} is not admissible: constraint 1 has gap -0.5"):
            call(PLAIN, q0, np.zeros_like(q0), **OPTIONS)
    with pytest.warns(ji.JaximpactWarning, match=r"constraint 0 \('floor'\) is active"):
        ji.solve(NAMED, [0.5, 0.0], [0.0, -1.0], **OPTIONS)
    skew = ji.Problem(
        lambda t, q, v, args: jnp.array([0.0, -1.0]),
        lambda t, q, args: jnp.stack([q[1], q[1] - 0.5 * q[0]]),
        restitution=0.5,
        contacts=("floor", "ramp"),
    )
    motion = ji.solve(skew, [0.0, 0.5], [0.0, 0.0], t1=1.2, h=0.01)
    with pytest.warns(ji.JaximpactWarning, match=r"\(0 \('floor'\), 1 \('ramp'\)\)"):
        analysis.check_hypotheses(skew, motion)


@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        ({"coordinates": "xy"}, TypeError, r"coordinates must be a sequence of names, such as \('x', 'y'\), got 'xy'"),
        ({"contacts": (1, 2)}, TypeError, "contacts must be a sequence of names"),
        ({"coordinates": ("x", "")}, ValueError, "coordinates: a name is empty"),
        ({"coordinates": ("x", "x")}, ValueError, "'x' is the name of two of them"),
        ({"coordinates": ("x", "y"), "contacts": ("x",)}, ValueError, "'x' is the name of two of them"),
        ({"units": 3}, TypeError, "units must be a text such as 'm', or a dict"),
        (
            {"units": {"x": "m"}},
            ValueError,
            "units: 'x' is the name of no coordinate, contact or joint; give them names",
        ),
        ({"coordinates": ("x", "y"), "units": {"z": "m"}}, ValueError, "'z' is the name of no .* the names are x, y"),
    ],
)
def test_what_names_nothing_is_refused(options, kind, match):
    with pytest.raises(kind, match=match):
        ji.Problem(force, gaps, **options)


def test_names_are_as_many_as_what_they_name():
    for options, match in (
        ({"coordinates": ("x",)}, "coordinates names 1: x; there are 2 coordinates, as q0 has"),
        ({"contacts": ("a", "b", "c")}, "contacts names 3: a, b, c; there are 2 constraints, as constraints"),
    ):
        for call in (ji.solve, ji.ensemble):
            q0 = [0.5, 1.0] if call is ji.solve else [[0.5, 1.0]]
            with pytest.raises(ValueError, match=match):
                call(PLAIN.replace(**options), q0, np.zeros_like(q0), **OPTIONS)


def test_names_belong_to_every_way_to_state_a_problem():
    lagrangian = ji.Problem.from_lagrangian(lambda t, q, v, args: 0.5 * v @ v, coordinates=("x", "y"), units="m")
    potential = ji.Problem.from_potential(lambda q, args: q @ q, coordinates=["x", "y"], units={"x": "m"})
    momentum = ji.Problem.from_momentum_force(force, gaps, contacts=("floor", "wall"))
    assert lagrangian.coordinates == potential.coordinates == ("x", "y") and momentum.contacts == ("floor", "wall")
    assert lagrangian.units == "m" and potential.units == {"x": "m"} and momentum.units is None
    assert NAMED.replace(restitution=0.1).contacts == ("floor", "wall") and "coordinates=('x', 'height')" in repr(NAMED)
    assert "coordinates" not in repr(PLAIN)
    with pytest.raises(TypeError, match="colour"):
        ji.Problem.from_potential(lambda q, args: q @ q, colour="red")


def test_names_are_static_and_do_not_retrace():
    """One trace for equal names, however often they are given; a problem without names is that of before."""
    count = 0

    def counted(t, q, v, args):
        nonlocal count
        count += 1
        return force(t, q, v, args)

    problem = ji.Problem(counted, gaps)
    ji.solve(problem, [0.5, 1.0], [1.5, 0.0], **OPTIONS)
    ji.solve(problem.replace(**NAMES), [0.5, 1.0], [1.5, 0.0], **OPTIONS)
    traced = count
    for again in (problem, ji.Problem(counted, gaps, **NAMES), problem.replace(**NAMES)):
        before = count
        ji.solve(again, [0.5, 1.0], [1.5, 0.0], **OPTIONS)
        # shapes of the functions are checked at every call; nothing else is traced
        assert count - before < traced / 4
    assert hash(NAMED.naming) == hash(PLAIN.replace(**NAMES).naming)
    assert jax.tree.structure(PLAIN) == jax.tree.structure(NAMED.replace(coordinates=None, contacts=None, units=None))
    found = jax.jit(lambda q0: ji.solve(NAMED, q0, q0, t1=0.1, steps=4, args=ARGS))(jnp.array([0.5, 1.0]))
    assert found.naming.contacts == ("floor", "wall")
