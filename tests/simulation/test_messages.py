"""Messages: every mistake gets an error of this library that names the argument, what was wrong and what to do."""

import re
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import Status, catalogue
from jaximpact.cli import main
from support.errors import PACKAGE, is_ours


def force(t, q, v, args):
    return -jnp.ones_like(q)


def gaps(t, q, args):
    return q


BALL = ji.Problem(force, gaps)
TWO = ji.Problem(force, lambda t, q, args: q[:1])  # more coordinates than constraints: gradients in reverse mode
MASKED = np.ma.masked_array([1.0, 2.0], mask=[True, False])


def problem(**changes):
    return BALL.replace(**changes)


def callback(x):
    return jax.pure_callback(lambda x: np.asarray(x), jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def three_numbers(t, q, v):
    return q


@jax.custom_vjp
def one_way(q):
    return jnp.sin(q)


one_way.defvjp(lambda q: (jnp.sin(q), q), lambda q, g: (g * jnp.cos(q),))

CASES = [
    # numbers
    ({"q0": MASKED[:1]}, "q0 is a masked array.*fill"),
    ({"args": {"k": MASKED}}, r"args\['k'\] is a masked array"),
    ({"t1": 1j}, "t1 must be real numbers"),
    ({"e": 0.5j}, "restitution must be real numbers"),
    ({"q0": [[1.0], [1.0, 2.0]]}, "q0 must be numbers, of rows of one length"),
    ({"v0": None}, "v0 must be real numbers"),
    ({"args": {"k": 1j}}, r"args\['k'\] must be real numbers|args\['k'\] is a complex"),
    ({"args": {"k": jax.random.key(0)}}, r"args\['k'\] is a random key.*key_data"),
    ({"h": "small"}, "h must be real numbers"),
    # save
    ({"save": {}}, "save: times must be real numbers, got dict"),
    ({"save": [1j]}, "save: times must be real numbers"),
    ({"save": ["0.1"]}, "save: times must be real numbers"),
    ({"save": True}, "save: every must be a whole number >= 1, got True"),
    ({"save": 1.5}, r"save: times must have shape \(k,\)"),
    ({"save": ji.Save(every=1.5)}, "save: every must be a whole number"),
    ({"save": ji.Save(function=3)}, r"save: function must be a function\(t, q, v, args\)"),
    ({"save": ji.Save(function=three_numbers)}, r"save: function\(t, q, v, args\) failed.*takes 3"),
    ({"save": lambda t, q, v, args: None}, "save: function.* returns nothing"),
    # options of methods
    ({"scheme": ji.MoreauJean(theta="a")}, r"MoreauJean\(theta=...\) must be a number, got 'a'"),
    ({"scheme": ji.MoreauJean(theta=float("nan"))}, r"MoreauJean\(theta=...\) must be finite"),
    ({"scheme": ji.EventDriven(trials=1.5)}, r"EventDriven\(trials=...\) must be a whole number"),
    ({"scheme": ji.PaoliSchatzman(nodes=0)}, r"PaoliSchatzman\(nodes=...\) must be a whole number >= 1"),
    (
        {"projection": ji.ActiveSet(max_linearisations=0)},
        r"ActiveSet\(max_linearisations=...\) must be a whole number >= 1, got 0",
    ),
    ({"projection": ji.ADMM(max_iterations=0)}, r"ADMM\(max_iterations=...\) must be a whole number >= 1, got 0"),
    ({"scheme": ji.MoreauJean(newton=1.5)}, r"MoreauJean\(newton=...\) must be a whole number"),
    (
        {"scheme": ji.PaoliSchatzman(fixed_point_tolerance=float("nan"))},
        r"\(fixed_point_tolerance=...\) must be finite",
    ),
    ({"projection": ji.ActiveSet(tolerance=-1.0)}, "must be finite and not negative"),
    ({"projection": ji.ADMM(tolerance=-1.0)}, r"ADMM\(tolerance=...\) must be finite and not negative"),
    (
        {"projection": ji.ProjectedGradient(tolerance=float("nan"))},
        r"ProjectedGradient\(tolerance=...\) must be finite",
    ),
    ({"scheme": 3}, "scheme must be a scheme such as"),
    ({"scheme": ji.PaoliSchatzman}, r"write PaoliSchatzman\(\)"),
    ({"scheme": "maury"}, "scheme must be a scheme"),
    ({"projection": ji.ADMM}, r"write ADMM\(\)"),
    ({"save": ji.Save(every=2.0)}, "save: every must be a whole number >= 1, got 2.0"),
    ({"projection": ji.MoreauJean()}, "projection must be a projection such as"),
    ({"execution": ["xla"]}, "execution=.*choose one of"),
    # the problem's functions
    ({"problem": problem(force=lambda t, q, v, args: None)}, "force.*returns None"),
    ({"problem": problem(force=lambda t, q, v, args: q > 0)}, "force.* must return real numbers, got .*bool"),
    ({"problem": problem(constraints=lambda t, q, args: None)}, "constraints.*returns None"),
    ({"problem": problem(mass=lambda q, args: None)}, "mass.*returns None"),
    ({"problem": problem(energy=lambda t, q, v, args: True)}, "energy.* real numbers, got dtype bool"),
    ({"problem": problem(force=lambda t, q, v, args: 1 / 0)}, "force.* failed.*ZeroDivisionError"),
    ({"problem": problem(force=lambda t, q, v, args: _fail())}, r"force.* failed .*AssertionError: $"),
    ({"problem": problem(mass="heavy")}, "mass must be real numbers"),
    (
        {"problem": problem(constraints=lambda t, q, args: callback(q))},
        r"constraints\(t, q, args\).*can differentiate.*pure_callback",
    ),
    (
        {"problem": problem(force=lambda t, q, v, args: -callback(q)), "scheme": ji.MoreauJean()},
        r"force\(t, q, v, args\).*can differentiate.*pure_callback",
    ),
    (
        {"problem": problem(force=lambda t, q, v, args: -one_way(q)), "scheme": ji.MoreauJean()},
        r"force\(t, q, v, args\).*can differentiate.*custom_jvp in place of custom_vjp",
    ),
]
if np.dtype(np.longdouble).itemsize > 8:
    CASES.append(({"q0": np.ones(1, np.longdouble)}, "q0 has dtype float128.*give float64"))
    CASES.append(({"args": {"k": np.longdouble(1)}}, r"args\['k'\] has dtype float128"))


def _fail():
    raise AssertionError


def refused(call, message):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        call()
    assert is_ours(caught.value), caught.getrepr()
    return str(caught.value)


START = {"q0": [1.0], "v0": [0.0], "t1": 1.0, "h": 0.1}
by_message = lambda x: x if isinstance(x, str) else ""


@pytest.mark.parametrize(("changes", "message"), CASES, ids=by_message)
def test_solve_and_ensemble_name_the_argument(changes, message):
    given = {"problem": BALL} | START | changes
    refused(lambda: ji.solve(**given), message)
    if "newton" not in message:
        lanes = given | {"e": given.get("e", [0.0, 0.5])}
        refused(lambda: ji.ensemble(**lanes), message)


SENSITIVITIES = [
    ({"wrt": 3}, "wrt=.*name some of"),
    ({"wrt": [3]}, "wrt=.*name some of"),
    ({"wrt": np.array([(1, 2.0)], "i4,f8")}, "wrt=.*name some of"),
    ({"wrt": "args"}, "wrt names 'args', but args is None"),
    ({"wrt": "args", "args": {"k": True}}, "wrt names 'args', but args holds no real number"),
    ({"mode": 3}, "mode=3: choose one of 'forward', 'reverse', None"),
    ({"sensitivity": "none"}, "sensitivity='none': choose one of"),
    ({"output": "q"}, "output must be a function"),
    ({"output": lambda: 0.0}, r"output\(solution\) failed: TypeError: .*takes 0 positional"),
    ({"q0": [[1.0], [1.0, 2.0]]}, "q0 must be numbers, of rows of one length"),
]


SPRING = ji.Problem(lambda t, q, v, args: -args["k"] * q)
STRETCHED = START | {"q0": [[1.0], [1.5], [2.0]]}
ENSEMBLES = [
    ({"args": {"k": np.ones(3)}}, r"force.*must return shape \(1,\).*args\['k'\] has shape \(3,\).*args_axes"),
    ({"args": {"k": np.ones(3)}, "args_axes": -1}, "args_axes must be 0, None or a pytree prefix.*got -1"),
    ({"args": {"k": np.ones(3)}, "args_axes": False}, "args_axes must be 0, None"),
    ({"args": {"k": 1.0}, "chunk": 1.5}, "chunk must be a whole number"),
    ({"args": {"k": np.ones(3)}, "q0": [1.0]}, "no argument carries a lane axis.*args_axes"),
]


OTHERS = [(lambda x=x: ji.sensitivities(BALL, **START | x), message) for x, message in SENSITIVITIES]
OTHERS += [(lambda x=x: ji.ensemble(SPRING, **STRETCHED | x), message) for x, message in ENSEMBLES]


@pytest.mark.parametrize(("call", "message"), OTHERS, ids=by_message)
def test_sensitivities_and_ensemble_name_the_argument(call, message):
    refused(call, message)


def test_ensemble_under_a_transformation():
    def end(q0):
        return ji.ensemble(BALL, q0, [0.0], t1=1.0, h=0.1).q

    lanes = jnp.ones((2, 1))
    for transformed in (jax.jit(end), jax.vmap(end), jax.grad(lambda x: end(x).sum())):
        refused(lambda transformed=transformed: transformed(lanes), "jax.vmap of solve")
    # numbers that the functions close over count as well
    closed = lambda g: ji.ensemble(problem(force=lambda t, q, v, args: -g * q), lanes, [0.0], t1=1.0, h=0.1).q
    refused(lambda: jax.jit(closed)(1.0), "jax.vmap of solve")


def test_lanes_that_would_act_on_each_other():
    meeting = problem(force=lambda t, q, v, args: jax.lax.pmean(q, "lanes") - q)
    alone = lambda q: ji.solve(meeting, q, [0.0], t1=1.0, h=0.1).q
    refused(
        lambda: jax.vmap(alone, axis_name="lanes")(jnp.ones((2, 1))),
        r"force\(t, q, v, args\).*over the axis 'lanes'.*as one problem",
    )


def test_a_result_beyond_memory_is_refused_with_its_size():
    """Rows, lanes and 5 numbers of 8 bytes each: terabytes, of which some are free."""
    lanes = {"q0": np.ones((10**5, 1)), "v0": [0.0], "t1": 1.0, "h": 1e-6, "save": "all"}
    size = 10**5 * (10**6 + 1) * (3 + 1 + 1) * 8 / 2**30
    message = refused(
        lambda: ji.ensemble(BALL, **lanes),
        rf"save: the result of 100000 motions.*takes {size:.3g} GiB.* GiB are free".replace("+", r"\+"),
    )
    refused(
        lambda: ji.solve(BALL, [1.0] * 100, [0.0] * 100, t1=1.0, steps=10**9, save=1),
        "save: a motion of 1000000000 steps.*GiB.*fewer rows",
    )
    # what the message calls free is less than there is, and this test runs in it
    assert 2**-10 < float(re.search(r"and (\S+) GiB are free", message)[1]) < 2**24


def test_a_while_loop_in_a_constraint():
    """Its derivative exists in forward mode only: a scheme that needs no other goes through, the others say so."""

    def slow(t, q, args):
        return jax.lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, 1.0 * c[1]), (0, q[:1]))[1]

    given = {"q0": [0.3, 1.0], "v0": [0.0, 0.0], "t1": 1.0, "h": 0.1, "save": "final"}
    looped = TWO.replace(constraints=slow)
    refused(lambda: ji.solve(looped, **given), r"constraints\(t, q, args\).*lax.scan.*in place of lax.while_loop")
    found, expected = (ji.solve(p, **given, scheme=ji.MoreauJean()) for p in (looped, TWO))
    np.testing.assert_allclose(found.q, expected.q, rtol=1e-14)
    assert float(expected.impulse[-1, 0]) > 0


def test_short_prints():
    assert str(Status(0)) == f"{Status(0)}" == "OK"
    assert str(Status(33)) == f"{Status(33)}" == "CONTACTS_NOT_SOLVED|START_VELOCITY_PROJECTED"
    with pytest.warns(ji.JaximpactWarning, match="points out"):
        one = ji.solve(BALL, [0.0], [-1.0], t1=1.0, h=0.1)
    text = repr(one)
    assert len(text) < 200
    for part in ("11 rows", "d = 1", "m = 1", "t = 0 ... 1", "status = START_VELOCITY_PROJECTED", "penetration = "):
        assert part in text
    batch = repr(ji.ensemble(BALL, [[1.0], [2.0]], [0.0], t1=1.0, h=0.1))
    assert "2 motions" in batch and "0 failed" in batch and "status = OK" in batch
    # also of what transformations make of it
    assert repr(jax.eval_shape(lambda: one)).startswith("Solution(")
    assert repr(jax.tree.map(lambda x: None, one)) == "Solution(...)"


@pytest.mark.parametrize("h", [1e-2, 1e-3, 1e-4])
def test_no_remark_on_a_restart(h):
    """A ball at rest on a slope: its last velocity points out by the round-off of positions over h, no more."""
    slope = ji.Problem(lambda t, q, v, args: jnp.array([0.3, -9.81]), lambda t, q, args: q[1:] - 0.1 * q[:1] + 3.3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ji.JaximpactWarning)
        q, v = [1.0, 1.0], [0.2, 0.0]
        for _ in range(3):
            part = ji.solve(slope, q, v, t1=2.0, h=h, save="final")
            assert int(part.status) == 0
            q, v = part.q[-1], part.v[-1]
    # what is more than that is told
    with pytest.warns(ji.JaximpactWarning, match="points out"):
        told = ji.solve(slope, q, v + jnp.array([0.0, -1e-6]), t1=2.0, h=h, save="final")
    assert int(told.status) == Status.START_VELOCITY_PROJECTED


def test_parameters_of_a_catalogue_case():
    case = catalogue.get("bouncing-ball").case()
    assert case.parameters(None) == case.args
    assert case.parameters({"gravity": 2.0}) == {"gravity": 2.0, "floor": 0.0}
    with pytest.raises(ValueError, match=r"args: no parameter 'gravty'; did you mean 'gravity'"):
        case.parameters({"gravty": 2.0})
    with pytest.raises(ValueError, match="args: no parameter 'nope'; choose one of gravity, floor"):
        case.parameters({"nope": 1})


@pytest.mark.parametrize("name", [3, None, [1], "nope"])
def test_names_that_are_none(name):
    entry = catalogue.get("bouncing-ball")
    with pytest.raises(KeyError, match="bouncing-ball has no case"):
        entry.case(name if name is not None else 3)
    with pytest.raises(KeyError, match="no catalogue problem"):
        catalogue.get(name)


@pytest.mark.parametrize("whose", [ji, ji.Problem], ids=["module", "problem"])
def test_a_reader_of_robots_is_answered(whose):
    words = "from_mjcf: files of robots, MJCF and URDF, are read by jaximpact.spatial.from_mjcf"
    with pytest.raises(AttributeError, match=words):
        whose.from_mjcf  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'no_such'"):
        whose.no_such  # noqa: B018


COMMANDS = [
    ("--h 1e-12", r"h = 1e-12 makes .* steps.*2147483646"),
    ("--ensemble 2000000000000", "--ensemble must not exceed"),
    ("--ensemble 2000000000 --save 1", "--ensemble 2000000000 takes .* GiB"),
    (f"--save {2**40}", "save: every must not exceed"),
    ("--t1 1e300", "makes .* steps"),
    ("--scheme nomod:X", "scheme 'nomod:X': No module named 'nomod'"),
    ("--scheme math:Scheme", "scheme 'math:Scheme': .*no attribute"),
    ("--scheme math:pi", "scheme must be a scheme such as"),
    ("--case 3", "no case '3'"),
]


@pytest.mark.parametrize(("options", "message"), COMMANDS, ids=by_message)
def test_command_line(options, message, capsys, tmp_path):
    assert main(["run", "bouncing-ball", *options.split(), "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("jaximpact: error: ")
    assert re.search(message, error), error


OWN = """
from dataclasses import dataclass
import jax
from jaximpact import PaoliSchatzman

@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Mine(PaoliSchatzman):
    pass
"""


@pytest.mark.slow
def test_a_scheme_of_ones_own_on_the_command_line(tmp_path):
    """A class in a module of the working folder; a plain run speaks of no derivatives,
    though an impact is at its end."""
    (tmp_path / "mymodule.py").write_text(OWN)
    line = ["run", "bouncing-ball", "--case", "e=4/5", "--h", "0.01", "--scheme", "mymodule:Mine"]
    line += ["--out", str(tmp_path / "out")]
    imported = f"import sys; sys.path.insert(0, {str(Path(PACKAGE).parent)!r}); from jaximpact.cli import main"
    line = [sys.executable, "-c", f"{imported}; sys.exit(main({line!r}))"]
    found = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr
    assert "mymodule:Mine" in found.stdout
    assert "DERIVATIVE" not in found.stdout + found.stderr
