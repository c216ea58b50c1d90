"""What no analysis can take: each an error that names the argument, before anything is compiled."""

import inspect
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaximpact as ji
from jaximpact import analysis
from jaximpact.analysis import Lyapunov

FREE = ji.Problem(lambda t, q, v, args: args["w"] * jnp.zeros(1), lambda t, q, args: q)
ROUGH = ji.Problem(lambda t, q, v, args: -v * jnp.sqrt(v @ v), lambda t, q, args: q)
FORCED = {"problem": FREE, "q0": [1.0], "v0": [0.5], "period": 1.0, "steps": 4, "args": {"w": 1.0}}
SOLUTION = ji.Solution(
    np.linspace(0, 1, 5), *np.ones((3, 5, 1)), np.zeros((5, 1)), None, None, 0.0, 0.0, 0, 0, np.nan,
    ji.solve(FREE, [1.0], [0.0], t1=1.0, h=0.5, args={"w": 1.0}).timing,
)  # fmt: skip
BATCH = jax.tree.map(lambda x: np.stack([x, x]), SOLUTION)
SECTION = analysis.Section(
    np.tile(np.arange(4.0), (2, 1)),
    np.ones((2, 4, 1)),
    np.ones((2, 4, 1)),
    np.ones(2),
    np.zeros(2, int),
    np.full(2, np.nan),
)
CALLS = {
    "stroboscopic": FORCED | {"cycles": 2},
    "impact_section": FORCED | {"cycles": 2},
    "bifurcation": FORCED | {"cycles": 2, "parameter": "w", "values": [1.0]},
    "two_parameter_map": FORCED | {"cycles": 2, "parameters": ("w", "e"), "values": ([1.0], [0.5])},
    "basins": {k: x for k, x in FORCED.items() if k not in ("q0", "v0")}
    | {"cycles": 2, "skip": 1, "x": [1.0], "y": [0.0]},
    "periodic_orbit": FORCED,
    "continue_orbit": FORCED | {"parameter": "w", "bounds": (0.5, 1.5)},
    "continue_curve": FORCED | {"kind": "fold", "parameters": ("w", "e"), "bounds": ((0.5, 1.5), (0.0, 1.0))},
    "lyapunov": {k: x for k, x in FORCED.items() if k != "period"} | {"interval": 1.0, "intervals": 10},
    "convergence": {"problem": FREE, "q0": [1.0], "v0": [0.5], "t1": 1.0, "steps": [2, 3], "args": {"w": 1.0}},
    "impacts": {"problem": FREE, "solution": BATCH, "args": {"w": 1.0}, "args_axes": None, "lanes": None},
    "balance": {"problem": FREE, "solution": SOLUTION, "args": {"w": 1.0}},
    "check_hypotheses": {"problem": FREE, "solution": SOLUTION, "args": {"w": 1.0}},
    "statistics": {"solution": BATCH},
    "crossings": {"solution": BATCH, "surface": lambda t, q, v, args: q[0], "args": {"w": 1.0}},
    "poincare_section": FORCED | {"cycles": 2, "surface": lambda t, q, v, args: q[0]},
    "period_of": {"section": SECTION},
    "recognise": {"section": SECTION},
    "prime_steps": {"first": 10, "last": 20, "count": 2},
}
HUGE = 2**40
JUNK = ["nonsense", -1, -1.0, float("nan"), 1j, [], [[1.0]], {"a": 1}, object(), np.ones((2, 3, 4)), lambda: 0, b"x"]
WRONG = {
    "args_axes": [5, -1, True, "w", {"x": 0}], "lanes": [[5], [True], "all", [0.5, 1.0]],
    "parameter": ["nope", 1.5, [], None], "parameters": [("w", "w"), "w", None], "phases": [1.5, 0, True],
    "exact": [3, "exact"], "impulse": [[0.0]], "direction": [5, True, 2.0],
    "surface": [3, lambda t: t, lambda t, q, v, args: q], "step": [0.0, 1.0, float("nan"), "x"],
    "tol": [0.0, -1.0, float("nan"), "x"], "tolerance": [-1.0, float("nan"), float("inf"), "x", [1.0]],
    "radius": [-1.0, float("nan"), "x"], "phase": [1.0, -0.1, float("nan"), "x", [0.1]], "sweep": ["left", 3],
    "coordinates": [3, (("q", 1), ("v", 0)), (("q", 0),)], "quantiles": [2.0, [2.0], "x", []], "groups": [[1, 2, 3], 5],
    "values": [[], "x", [float("nan")], 3], "bounds": [3, (2, 1), (3.0, 4.0)],
    "blocks": [1, 3, 0], "intervals": [7, HUGE, 0], "iterations": [0, HUGE], "points": [0, HUGE], "most": [0, 3, 2.5],
    "skip": [-1, 1.5, HUGE],
    "cycles": [0, HUGE, "x"], "steps": [0, HUGE, 2.5, "x"], "period": [0.0, -1.0, float("inf"),
    lambda args: args["nope"], "x", 1j],
    "interval": [0.0, lambda args: "x", 1j], "count": [0, 1.5], "first": [0, "x"], "last": [1, "x"],
    "x": [[], "x", [[1.0]]], "y": [3, "x"], "friction": [-0.1, float("nan"), "x", [0.1, 0.2]],
    "e": [1.5, -0.1, float("nan"), "x", [[[0.5]]]],
}  # fmt: skip
MORE = {  # arguments that CALLS does without
    "stroboscopic": ("skip", "phase", "args_axes"), "crossings": ("direction",),
    "poincare_section": ("skip", "phase", "direction"), "impact_section": ("skip", "phase", "args_axes"),
    "bifurcation": ("sweep", "phase", "skip"), "two_parameter_map": ("tolerance", "phase"),
    "basins": ("tolerance", "radius", "coordinates"), "recognise": ("tolerance", "radius"),
    "periodic_orbit": ("tol", "iterations", "cycles", "args_axes"),
    "continue_orbit": ("tol", "direction", "step", "points", "cycles"),
    "continue_curve": ("tol", "direction", "step", "points", "cycles"), "lyapunov": ("blocks", "skip", "args_axes"),
    "convergence": ("phases", "exact", "impulse"), "check_hypotheses": ("tolerance", "friction"),
    "period_of": ("tolerance", "most"), "statistics": ("quantiles", "groups", "values"),
}  # fmt: skip
for _name in CALLS:
    if (
        "e" in inspect.signature(getattr(analysis, _name)).parameters and _name != "two_parameter_map"
    ):  # which varies it
        MORE[_name] = (*MORE.get(_name, ()), "e")
CASES = [
    (call, name, value)
    for call, arguments in CALLS.items()
    for name in (*arguments, *MORE.get(call, ()))
    for value in WRONG.get(name, [])
    if (call, name) not in {("two_parameter_map", "values"), ("prime_steps", "values"), ("statistics", "values")}
    and not (call == "continue_orbit" and name == "steps" and value == 2.5)
]


def refused(call, arguments):
    """Error of a call, which must be a ValueError, TypeError or KeyError raised by this library's own check."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((ValueError, TypeError, KeyError, RuntimeError)) as caught:
            getattr(analysis, call)(**arguments)
    return caught


def ours(caught) -> bool:
    """Whether an error was raised by a line of this library, not inside numpy or jax."""
    return "/jaximpact/" in str(caught.traceback[-1].path)


@pytest.mark.parametrize(("call", "name", "value"), CASES, ids=lambda x: x if isinstance(x, str) else repr(x)[:20])
def test_what_is_wrong_is_named(call, name, value):
    caught = refused(call, CALLS[call] | {name: value})
    words = str(caught.value)
    assert ours(caught), words
    assert name.rstrip("s") in words, words


# of some the words, beyond the name
WORDS = [
    *((call, {"period": None}, "period: give the period") for call in ("periodic_orbit", "continue_orbit")),
    ("periodic_orbit", {"period": lambda args: np.ones((2, 2))}, "period must be a number"),
    ("periodic_orbit", {"q0": [-0.2]}, "not admissible"),
    ("continue_orbit", {"q0": [[0.5]]}, "a branch has one start"),
    ("continue_orbit", {"parameter": "mass"}, "parameter='mass': choose one of"),
    ("continue_orbit", {"parameter": ("w", "e")}, "parameter must be one name.*continue_curve"),
    ("continue_orbit", {"bounds": (2.5, 3.0)}, "do not contain"),
    ("continue_orbit", {"parameter": "e", "e": 0.5, "bounds": (0.5, 2.0)}, r"restitution lies in \[0, 1\]"),
    ("lyapunov", {"intervals": 15}, "multiple of blocks"),
    ("stroboscopic", {"period": np.ones(3), "e": np.ones(2)}, "lane axes must have one length"),
    ("impact_section", {"scheme": ji.PaoliSchatzman()}, "an impact in its last step rebounds in the next"),
]


@pytest.mark.parametrize(("call", "changes", "words"), WORDS)
def test_what_is_wrong_is_said(call, changes, words):
    assert refused(call, CALLS[call] | changes).match(words)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.data())
def test_junk_is_refused_by_the_library(data):
    """Any argument of any analysis replaced by something absurd."""
    call = data.draw(st.sampled_from(sorted(CALLS)))
    name = data.draw(
        st.sampled_from(sorted(set(CALLS[call]) - {"args", "args_axes", "lanes", "first", "last", "q0", "v0"}))
    )
    value = data.draw(st.sampled_from(JUNK))
    if (name == "period" and callable(value)) or (name in ("values", "parameter") and value in (-1, -1.0)):
        return
    if name in ("x", "y", "t1") and isinstance(value, int | float):
        return
    assert ours(refused(call, CALLS[call] | {name: value}))


def test_steps_beyond_what_is_counted():
    """Each count fits, their product does not; so do four times the steps of an extrapolation not."""
    many = 2**20
    for call in ("stroboscopic", "impact_section", "bifurcation", "two_parameter_map"):
        assert "steps" in str(refused(call, CALLS[call] | {"steps": many, "cycles": many}).value)
    for options in ({"steps": many, "cycles": many}, {"steps": 2**29, "extrapolate": True}):
        assert "more than 2147483" in str(refused("periodic_orbit", FORCED | options).value)


def test_lanes_of_args_and_of_a_solution_agree():
    for changes, words in (
        ({"args": {"w": np.ones(3)}, "args_axes": 0}, "args: leaves with a lane axis must have the 2 lanes"),
        ({"args_axes": 0}, r"args_axes marks args\['w'\], a single number"),
        ({"lanes": [True]}, r"lanes must be a mask of shape \(2,\)"),
        ({"problem": ji.Problem(FREE.force)}, "solution is of another problem"),
    ):
        assert refused("impacts", CALLS["impacts"] | changes).match(words)


def test_a_derivative_that_is_not_finite_is_said():
    """Quadratic drag at rest has a force and no derivative as jax takes it."""
    scheme = ji.MoreauJean(theta=0.0)  # quick to compile, and its step needs no derivative
    with pytest.warns(ji.JaximpactWarning, match="the derivative of the motion is not finite in 1 lanes"):
        orbit = analysis.periodic_orbit(ROUGH, [1.0], [0.0], period=1.0, steps=4, scheme=scheme)
    assert np.isnan(orbit.monodromy).any() and not orbit.stable and "DERIVATIVE_NOT_FINITE" in orbit.describe_status()


@pytest.mark.slow
def test_exponents_of_a_derivative_that_is_not_finite_are_none():
    scheme = ji.MoreauJean(theta=0.0)
    with pytest.warns(ji.JaximpactWarning, match="an exponent is NaN"):
        found = analysis.lyapunov(ROUGH, [1.0], [0.0], interval=1.0, steps=4, intervals=2, blocks=2, scheme=scheme)
    assert (
        found.exponents.shape == (2,)
        and np.isnan(found.exponents).any()
        and "DERIVATIVE_NOT_FINITE" in found.describe_status()
    )


def test_a_picture_of_many_lanes(tmp_path):
    """Exponents of 61 lanes over their numbers, where no parameter is given; a wrong one is named."""
    rng = np.random.default_rng(1)
    many = Lyapunov(
        *np.abs(rng.normal(size=(2, 61, 2))),
        rng.normal(size=(61, 4, 2)),
        *np.ones((2, 61, 1)),
        np.ones(61),
        np.zeros(61, int),
    )
    assert many.plot(tmp_path / "many.png").stat().st_size > 5000
    with pytest.raises(ValueError, match=r"parameter must have one value for each motion, shape \(61,\), got \(3,\)"):
        many.plot(tmp_path / "many.png", parameter=np.ones(3))


def test_traced_motions_are_refused_in_words():
    """Inside jit no number is known: not an error of jax's about arrays."""
    ball = ji.Problem(lambda t, q, v, args: -jnp.ones(1), lambda t, q, args: q)
    motion = lambda q0: ji.solve(ball, q0, jnp.zeros(1), t1=1.0, steps=10)
    with pytest.raises(TypeError, match="solution is traced: analyses take known numbers"):
        jax.eval_shape(lambda q0: motion(q0).impacts(ball), jnp.ones(1))
    with pytest.raises(TypeError, match="ensemble and sensitivities need known numbers"):
        jax.eval_shape(lambda q0: ji.sensitivities(ball, q0, [0.0], t1=1.0, h=0.1).value, jnp.ones(1))


@pytest.mark.parametrize("name", ["bifurcation", "two_parameter_map", "continue_orbit", "continue_curve"])
@pytest.mark.parametrize("number, stated", [("e", "restitution"), ("friction", "friction")])
def test_a_parameter_of_two_meanings_is_refused(name, number, stated):
    """A key of args that is called as a number of the contacts: an analysis varied the latter without a word."""
    several = "parameters" in CALLS[name]
    known = CALLS[name] | {"args": {"w": 1.0, number: 0.3}}
    known |= {"parameters": ("w", number)} if several else {"parameter": number}
    with pytest.raises(
        ValueError, match=rf"{number}.*write 'args.{number}' for the number in args, or 'problem.{stated}'"
    ):
        getattr(analysis, name)(**known)


def test_both_spellings_of_a_parameter():
    """A spring that pulls to e, a key of args, and an impact after .01 s at speed 1:
    .02 s change the velocity by less than .02 otherwise."""
    spring = ji.Problem(lambda t, q, v, args: args["e"] - q, lambda t, q, args: q, restitution=0.5)
    hit = {
        "q0": [0.01],
        "v0": [-1.0],
        "period": 0.02,
        "steps": 20,
        "cycles": 1,
        "args": {"e": 0.4},
        "values": [0.2, 0.8],
    }
    varied = analysis.bifurcation(spring, parameter="problem.restitution", **hit)
    fixed = analysis.bifurcation(spring, parameter="args.e", **hit)
    assert (varied.parameter, fixed.parameter) == ("e", "args.e")
    np.testing.assert_allclose(np.ravel(varied.v), [0.2, 0.8], atol=0.02)
    np.testing.assert_allclose(np.ravel(fixed.v), [0.5, 0.5], atol=0.02)
    assert np.ptp(fixed.v) > 1e-3  # the spring differs by .6, for .02 s


@pytest.mark.slow
def test_analyses_in_float32_warn_of_no_numbers_of_their_own():
    """Without x64, of plain lists: times, restitutions and references that analyses make themselves
    are no data of the user's."""
    hammer = ji.Problem(lambda t, q, v, args: -q - 0.1 * v, lambda t, q, args: q + 0.1, restitution=0.5)
    forced = {"period": 2.0, "steps": 8, "cycles": 2, "args": {"w": 1.0}}
    with jax.enable_x64(False), warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*float64")
        found = analysis.two_parameter_map(
            hammer, [1.0], [0.0], parameters=("w", "e"), values=([1, 2], [0.5, 0.6]), **forced
        )
        assert np.all(found.impacts > 0)
        assert analysis.stroboscopic(hammer, [1.0], [0.0], e=[0.2, 0.4], **forced).q.dtype == np.float32
        orders = analysis.convergence(hammer, [1.0], [0.0], t1=1.0, steps=[11, 23])
    assert np.all(np.isfinite(orders.position))


def test_options_are_shown_and_checked_by_name() -> None:
    """What an analysis hands on to the motions is in its signature; another name is refused,
    with the one that was meant."""
    for function, last in ((analysis.lyapunov, "args_axes"), (analysis.bifurcation, "projection")):
        assert list(inspect.signature(function).parameters)[-1] == last
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'shceme'; did you mean 'scheme'\?"):
            function(None, 0, 0, shceme=None)
