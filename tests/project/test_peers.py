"""What the adapters of other simulators share, and how their columns are kept: no simulator is needed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import springs
import walls
from conformance import run

from jaximpact import conformance
from jaximpact.conformance import FINE, Cell, Column, Report

FUNCTIONS = {"sin": jnp.sin, "cos": jnp.cos, "sqrt": jnp.sqrt}


@pytest.mark.parametrize("name", list(walls.WALLS))
def test_motion_before_a_still_wall_is_the_case(name):
    """Start, gaps and acceleration are those of the case's own formulas, at a time when a moving wall is elsewhere."""
    case = conformance.get(name)
    motion = walls.Motion(case, case.theta.tolist(), FUNCTIONS)
    r, v = (jnp.array(x, float) for x in motion.start)
    np.testing.assert_allclose(
        jnp.array(motion.absolute(0.0, list(r), list(v))).ravel(), [*case.q0, *case.v0], atol=1e-15
    )

    t = 0.37
    path = lambda s: jnp.array(motion.absolute(s, list(r + v * s), list(v))[0])
    speed = lambda s: jax.jvp(path, (s,), (1.0,))[1]
    (q, qt), wall = jax.jit(lambda s: (jax.jvp(path, (s,), (1.0,)), jax.jvp(speed, (s,), (1.0,))[1]))(t)
    gaps = case.problem.constraints(t, q, case.args)
    np.testing.assert_allclose(gaps, (r + v * t)[np.array(motion.bounded)], rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(jnp.array(motion.absolute(t, list(r + v * t), list(v))[1]), qt, rtol=1e-13, atol=1e-14)
    # with r'' = 0 the wall alone accelerates q; what `force` adds to r'' makes the case's own force
    signs = jnp.array([motion.walls.get(i, (1,))[0] for i in range(motion.d)], float)
    force = signs * jnp.array(motion.force(t, list(r + v * t), list(v)), float)
    np.testing.assert_allclose(wall + force, case.problem.force(t, q, qt, case.args), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", ["moving1d", "drag", pytest.param("late", marks=pytest.mark.slow)])
def test_slopes_of_a_motion_are_its_derivatives(name):
    """By complex steps, beside jax: start, force along a motion and end, of whatever state and derivative."""
    case = conformance.get(name)
    slopes, theta, t = walls.Slopes(case, case.theta), jnp.asarray(case.theta), 0.37
    x = np.linspace(0.3, 0.9, 2 * len(case.position))
    dx = np.outer(x, np.cos(np.arange(len(theta))))
    along = lambda y: (jnp.asarray(x) + dx @ (y - theta), walls.Motion(case, list(y), FUNCTIONS))

    def start(y):
        return jnp.array(walls.Motion(case, list(y), FUNCTIONS).start).ravel()

    def force(y):
        state, motion = along(y)
        return jnp.array([0.0 * y[0] + f for f in motion.force(t, *map(list, jnp.split(state, 2)))])

    def end(y):
        state, motion = along(y)
        return jnp.array(motion.end(*map(list, jnp.split(state, 2))))

    for found, function in ((slopes.start, start), (slopes.force(t, x, dx), force), (slopes.end(x, dx), end)):
        np.testing.assert_allclose(found, jax.jit(jax.jacfwd(function))(theta), rtol=1e-13, atol=1e-14)


def test_a_spring_and_damper_has_its_restitution():
    """Explicit integration of x'' = -x - 2 z x' from contact until the force vanishes,
    against the e that z was made for."""
    for e in (0.2, 0.5, 0.9):
        z, x, v, h = springs.damping_ratio(e), 0.0, -1.0, 1e-4
        while x == 0.0 or -x - 2 * z * v > 0:
            v += h * (-x - 2 * z * v)
            x += h * v
        assert abs(v - e) < 2 * h  # first order; the constants are of order 1
        traced = jax.jit(springs.differentiable_damping_ratio)(e)
        np.testing.assert_allclose(traced, z, rtol=1e-12)


def test_a_case_without_straight_walls_is_not_stated():
    with pytest.raises(NotImplementedError, match="bowl"):
        walls.Motion(conformance.get("bowl"), conformance.get("bowl").theta, FUNCTIONS)


def column(title, **errors):
    cells = {name: Cell({FINE: error}, {FINE: 0.5 * error}, 1.5) for name, error in errors.items()}
    return Column(title, cells, {"versions": {"x": "1.0"}, "how": "by hand"})


def test_columns_of_several_runs_are_one_table(tmp_path, monkeypatch):
    """The last word on a case counts, what a run did not ask for stays, a missing simulator takes nothing away."""
    titles = ("first", "second")
    monkeypatch.setattr(run, "order", lambda friction: list(titles))
    file = tmp_path / "columns.json"
    run.joined(Report(("zeno", "drag", "late"), (column("second", zeno=0.3, drag=0.2, late=0.1),)), file)
    run.joined(Report(("zeno", "drag"), (column("second", zeno=1e-7), column("first", drag=0.5))), file)
    report = run.joined(Report(("late",), (Column("second", {}, {"missing": "x"}),)), file)
    assert tuple(c.title for c in report.columns) == titles
    assert report.names == tuple(conformance.cases())
    second = report.columns[1].cells
    assert {name: cell.errors for name, cell in second.items()} == {"late": {FINE: 0.1}, "zeno": {FINE: 1e-7}}
    assert second["zeno"].passes and second["zeno"].seconds == 1.5
    assert "x 1.0" in report.markdown() and "not run" not in report.markdown()


def test_recorded_table_is_the_recorded_columns():
    """README and columns.json are of one recording, of every case, and every passed number follows from its errors."""
    columns = run.kept(run.HERE / "columns.json")
    assert list(columns) and set(columns) <= set(run.order())
    report = Report(tuple(conformance.cases()), tuple(columns[title] for title in run.order() if title in columns))
    assert report.markdown().strip() in run.PAGE.read_text()
    own = columns["jaximpact EventCorrected"]
    assert set(own.cells) == set(conformance.cases())


def test_adapters_are_files():
    for columns in run.COLUMNS.values():
        for _, file, _ in columns:
            assert (run.PEERS / file).is_file()
