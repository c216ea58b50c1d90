"""Pictures: what is drawn for which result, on which axes, to which file; what cannot be drawn is refused."""

import numpy as np
import pytest
from matplotlib.figure import Figure

import jaximpact as ji
from jaximpact import analysis, catalogue, plots
from jaximpact.plots import draw, plot_derivatives

BALL = catalogue.get("bouncing-ball")
CASE = BALL.case("e=1/2")
OPTIONS = {"t1": CASE.t1, "args": CASE.args, "e": 0.5}


@pytest.fixture(scope="module")
def results():
    """Results of every kind that takes no searching, by name."""
    motion = ji.solve(BALL.problem, CASE.q0, CASE.v0, steps=503, **OPTIONS)
    q0 = np.array(CASE.q0) + np.linspace(0, 0.1, 5)[:, None]
    batch = ji.ensemble(BALL.problem, q0, np.zeros((5, 1)), h=CASE.t1 / 101, save=1, **OPTIONS)
    states = np.random.default_rng(0).random((2, 7, 1))
    zeros = np.zeros(2)
    section = analysis.Section(states[..., 0], states, -states, 1 + zeros, zeros.astype(int), np.nan * zeros)
    records = analysis.impacts(BALL.problem, batch, args=CASE.args)
    multipliers = np.array([[0.5 + 0.1j, 0.5 - 0.1j]])
    one, empty = np.ones(1), np.zeros((1, 2))
    attractor = analysis.Attractor(1, one[:, None], one[:, None], 6)
    grid, labels = np.linspace(0, 1, 3), np.array([[0, 0, -1], [0, -2, 0], [0, 0, 0]])
    return {
        "motion": motion,
        "batch": batch,
        "impacts": analysis.impacts(BALL.problem, motion, args=CASE.args),
        "balance": analysis.balance(BALL.problem, motion, args=CASE.args, e=0.5),
        "statistics": analysis.statistics(batch),
        "section": section,
        "impact section": analysis.ImpactSection(records, records.t % 1.0, section),
        "bifurcation": analysis.Bifurcation("w", np.array([1.0, 2.0]), 1, None, section),
        "map": analysis.ParameterMap(("w", "e"), grid, grid, np.ones((3, 3), int), np.ones((3, 3)), np.zeros((3, 3))),
        "orbit": analysis.PeriodicOrbit(
            empty[:, :1], empty[:, :1], 0 * one, one, multipliers, empty[None], 0 * one, one, one > 0, one.astype(int)
        ),
        "convergence": analysis.Convergence(
            np.array([10, 20]), *np.array([[0.1, 0.05]] * 4), *np.zeros((2, 2)), reference="exact"
        ),
        "basins": analysis.Basins((("q", 0), ("v", 0)), grid, grid, labels, (attractor,), 0 * labels),
        "exponents": analysis.Lyapunov(
            np.array([0.1, -0.2]), np.full(2, 0.01), np.ones((10, 2)), zeros[:1], zeros[:1], one[0], one[0].astype(int)
        ),
        "branch": analysis.Branch(
            "w", grid, *np.ones((2, 3, 1)), grid, np.full((3, 2), 0.5 + 0j), grid >= 0, labels[0] ** 2, grid, grid, (), "bounds"
        ),
    }  # fmt: skip


PANELS = {"motion": 4, "batch": 2, "balance": 3, "bifurcation": 2, "map": 2, "branch": 3}
SINGLE = ["impacts", "statistics", "section", "impact section", "orbit", "convergence", "exponents", "basins"]


@pytest.mark.parametrize("name", [*PANELS, *SINGLE])
def test_every_result_has_its_picture(name, results, tmp_path):
    """To a file, or as axes: those given where there is one, those made where there are several."""
    result = results[name]
    path = draw(result, tmp_path / "picture.png", title="a title")
    assert path == tmp_path / "picture.png" and path.stat().st_size > 5000
    axes = draw(result, title="a title")
    if name in PANELS:
        assert len(axes) == PANELS[name]
        with pytest.raises(ValueError, match=f"ax: the picture of a {type(result).__name__} has panels"):
            draw(result, ax=Figure().subplots())
    else:
        ax = Figure().subplots()
        assert draw(result, ax=ax, title="a title") is ax
        assert ax.get_title().startswith("a title") and ax.get_xlabel() == axes.get_xlabel()
        # the same curves on both
        for mine, other in zip(ax.lines, axes.lines, strict=True):
            np.testing.assert_array_equal(mine.get_xydata(), other.get_xydata())
        with pytest.raises(ValueError, match="path and ax exclude each other"):
            draw(result, tmp_path / "other.png", ax=ax)
    if not isinstance(result, ji.Solution):
        assert result.plot(tmp_path / "same.png", title="a title").read_bytes() == path.read_bytes()


def test_table_and_picture_mark_the_same_impacts(results):
    """The grey lines of a motion are at the rows that the table of impacts names."""
    motion, records = results["motion"], results["impacts"]
    axes = draw(motion)
    marked = [segment[0, 0] for segment in axes[0].collections[0].get_segments()]
    np.testing.assert_array_equal(marked, np.asarray(motion.t)[records.row])


def test_options_belong_to_the_picture(results, tmp_path):
    exact = draw(results["motion"], exact=CASE.exact, gaps=lambda t, q: q)
    assert len(exact) == 5 and "exact" in exact[0].get_legend_handles_labels()[1]
    swept = draw(results["batch"], swept={"initial q": np.arange(5.0)})
    assert "initial q" in [ax.get_xlabel() for ax in swept]
    assert "v = " not in draw(results["statistics"], name="v").get_ylabel()
    with pytest.raises(TypeError, match="component"):
        draw(results["section"], component=1)


def test_what_cannot_be_drawn_is_refused(results, tmp_path):
    with pytest.raises(TypeError, match="a dict with no picture cannot be drawn; there are pictures of Balance, "):
        draw({})
    final = ji.solve(BALL.problem, CASE.q0, CASE.v0, steps=503, save="final", **OPTIONS)
    with pytest.raises(ValueError, match="needs saved rows"):
        draw(final)


def test_derivatives_on_panels(tmp_path):
    t = np.linspace(0, 1, 20)
    panels = {"tangent": {"ours": t, "theirs": 2 * t}}
    assert plot_derivatives(t, panels, tmp_path / "tangents.png", title="tangents").stat().st_size > 5000
    assert len(plot_derivatives(t, panels, impacts=[0.5])) == 1
    with pytest.raises(ValueError, match="must have the shape of t"):
        plot_derivatives(t, {"tangent": {"ours": t[:3]}})


@pytest.mark.parametrize("name", ["plot_motion", "plot_ensemble", "plot_convergence"])
def test_the_old_names_say_the_new_one(name):
    with pytest.warns(DeprecationWarning, match=r"plots\.draw"):
        assert getattr(plots, name) is draw
    with pytest.raises(AttributeError, match="plot_nothing"):
        _ = plots.plot_nothing
