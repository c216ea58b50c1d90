"""Pictures: what is drawn for which result, on which axes, to which file; what cannot be drawn is refused."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import jaximpact as ji
from jaximpact import analysis, plots
from jaximpact.plots import draw, plot_derivatives
from support.sample_results import BALL, CASE, OPTIONS, samples


@pytest.fixture(scope="module")
def results():
    return samples()


@pytest.fixture(scope="module")
def named():
    """The samples for a problem with names, which are also set on results put together by hand."""
    problem = BALL.problem.replace(coordinates=("height",), contacts=("floor",), units="m")
    return {name: result._with_labels(problem.naming, None) for name, result in samples(problem).items()}


PANELS = {"motion": 4, "batch": 2, "balance": 3, "bifurcation": 2, "map": 2, "branch": 3}
SINGLE = ["impacts", "statistics", "section", "impact section", "orbit", "convergence", "exponents", "basins"]
SINGLE += ["sensitivities", "ranking", "covariance", "linearity", "indices", "report"]


@pytest.mark.parametrize("name", [*PANELS, *SINGLE])
def test_every_result_has_its_picture(name, results, tmp_path):
    """To a file, or as axes: those given, with the first panel where there are several, or those made."""
    result = results[name]
    path = draw(result, tmp_path / "picture.png", title="a title")
    assert path == tmp_path / "picture.png" and path.stat().st_size > 5000
    axes = draw(result, title="a title")
    assert np.size(axes) == PANELS.get(name, 1)
    first, ax = np.ravel(axes)[0], Figure().subplots()
    assert result.plot(ax=ax, title="a title") is ax
    assert ax.get_title().startswith("a title") and ax.get_xlabel() and ax.get_ylabel() == first.get_ylabel()
    # the same curves on both, each with its numbers
    assert len(ax.lines) + len(ax.collections) > 0
    for mine, other in zip(ax.lines, first.lines, strict=True):
        np.testing.assert_array_equal(mine.get_xydata(), other.get_xydata())
    with pytest.raises(ValueError, match="path and ax exclude each other"):
        draw(result, tmp_path / "other.png", ax=ax)
    if name == "motion":
        assert result.plot(tmp_path / "same.png", title="a title").read_bytes() == path.read_bytes()


# what the axes of each picture say of a ball whose coordinate is "height", on "floor", in metres
SAID = {
    "motion": ["position height\n[m]", "velocity v\n[m/s]", "impulse Λ [N s]", "energy\n[J]", "time t [s]"],
    "batch": ["position height [m]", "floor: ≤ ", "height at t = 5 s [m]"],
    "balance": ["energy [J]", "momentum residual\n[N s]"],
    "bifurcation": ["position height at the section [m]", "w"],
    "map": ["w", "e"],
    "branch": ["height, stable", "[m]", "smallest impact speed [m/s],\nsmallest clearance [m]", "w"],
    "impacts": ["speed of approach [m/s]", "floor", "time t [s]"],
    "statistics": ["q[height] [m]"],
    "section": ["position height [m]", "velocity height [m/s]"],
    "crossings": ["position height [m]", "velocity height [m/s]"],
    "impact section": ["gap velocity before the impact [m/s]"],
    "orbit": ["multiplier"],
    "convergence": ["position, sup norm [m]: order", "velocity, L1 norm [m]", "total impulse [N s]", "step h [s]"],
    "exponents": ["Lyapunov exponent [1/s]"],
    "basins": ["initial q[height] [m]", "initial v[height] [m/s]"],
    "sensitivities": ["change of q[height] [%", "q0[height]"],
    "ranking": ["change of q[height] [%", "q0[height]"],
    "covariance": ["q[height]\n± 0.00798 m", "v[height]\n± 0.0176 m/s", "q0[height]"],
    "linearity": ["q[height], linearised [m]", "q[height], computed [m]"],
}


@pytest.mark.parametrize("name", sorted({*PANELS, *SINGLE} - {"report", "indices"}))
def test_pictures_speak_in_the_names_and_units_of_the_problem(name, named):
    texts = []
    for ax in np.ravel(named[name].plot()):
        ticks = [*ax.get_xticklabels(), *ax.get_yticklabels()]
        texts += [ax.get_xlabel(), ax.get_ylabel(), *ax.get_legend_handles_labels()[1], *(x.get_text() for x in ticks)]
    for said in SAID[name]:
        assert any(said in text for text in texts), (said, texts)
    assert not [text for text in texts if "unit of" in text or "q[0]" in text or "q0[0]" in text]


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
    with pytest.raises(TypeError, match="component: the picture of one Section has the options coordinate"):
        draw(results["section"], component=1)
    with pytest.raises(TypeError, match="gaps: the picture of a batch has the options swept"):
        draw(results["batch"], gaps=lambda t, q: q)
    with pytest.raises(ValueError, match=r"swept.'e'. must hold one number a motion"):
        draw(results["batch"], swept={"e": np.arange(3.0)})
    for name in ("bifurcation", "branch"):
        assert draw(results[name], label="frequency [rad/s]")[-1].get_xlabel() == "frequency [rad/s]"
    left, right = draw(results["map"], labels=("w [rad/s]", "restitution"))
    assert (left.get_xlabel(), left.get_ylabel(), right.get_xlabel()) == ("w [rad/s]", "restitution", "w [rad/s]")
    with pytest.raises(ValueError, match="labels must be two texts"):
        draw(results["map"], labels="w")


def test_contacts_have_colours_of_their_own():
    """Points of each contact in one colour, that of its name in the legend; a single contact needs no legend."""
    box = ji.Problem(
        lambda t, q, v, args: -q, lambda t, q, args: jnp.stack([q[0] + 0.5, 0.3 - q[0]]), contacts=("left", "right")
    )
    found = analysis.impact_section(
        box, [0.0], [1.0], period=1.0, cycles=5, steps=200, e=0.9, scheme=ji.EventCorrected()
    )
    ax = draw(found)
    clouds, names = ax.lines[::2], ax.lines[1::2]
    assert [line.get_label() for line in names] == ["left", "right"] and ax.get_legend() is not None
    for k, (cloud, name) in enumerate(zip(clouds, names, strict=True)):
        np.testing.assert_array_equal(cloud.get_ydata(), found.impacts.before[found.impacts.contact == k])
        assert cloud.get_color() == name.get_color()
    assert clouds[0].get_color() != clouds[1].get_color()


def test_what_cannot_be_drawn_is_refused(results, tmp_path):
    with pytest.raises(TypeError, match="a dict with no picture cannot be drawn; there are pictures of Balance, "):
        draw({})
    final = ji.solve(BALL.problem, CASE.q0, CASE.v0, steps=503, save="final", **OPTIONS)
    with pytest.raises(ValueError, match="needs saved rows"):
        draw(final)
    with pytest.raises(TypeError, match=r"ax must be one Axes of matplotlib, got ndarray.*axes\[0\]"):
        draw(results["motion"], ax=draw(results["motion"]))
    with pytest.raises(TypeError, match="a Solution that is traced has no numbers to draw"):
        jax.eval_shape(lambda x: draw(replace(results["motion"], q=x)), results["motion"].q)


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
