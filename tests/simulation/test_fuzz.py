"""Random wrong input: every call gives a right result or an error of this library that names an argument.

An error is this library's if it is a ValueError, a TypeError or a RuntimeError raised by a line of it (`is_ours`), in
whose text an argument, or a field of one, stands by its name. A result is right if its status is clean or says why not
and its shapes are those that were asked for.
"""

import contextlib
import io
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jaximpact as ji
from jaximpact import catalogue
from jaximpact.cli import main
from jaximpact.mechanics.method_names import projection_from_name, scheme_from_name
from support.errors import is_ours

NAMES = [
    *("ActiveSet", "ADMM", "EventCorrected", "MoreauJean"),  # their options are said with their names
    "problem",
    "q0",
    "v0",
    "t0",
    "t1",
    "h",
    "steps",
    "e",
    "restitution",
    "args",
    "args_axes",
    "scheme",
    "projection",
    "save",
    "sensitivity",
    "execution",
    "chunk",
    "wrt",
    "mode",
    "output",
    "force",
    "constraints",
    "mass",
    "energy",
    "lane",
    "progress",
    "every",
    "function",
    "times",
    "name",
]
QUICK = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
BROAD = settings(QUICK, max_examples=1500)


def force(t, q, v, args):
    return -jnp.ones_like(q)


def gaps(t, q, args):
    return q


BALL = ji.Problem(force, gaps)
GIVEN = {"problem": BALL, "q0": [1.0], "v0": [0.0], "t1": 1.0, "h": 0.5, "save": "final"}
FUNCTIONS = [
    lambda: 0.0,
    lambda *x: None,
    lambda *x: True,
    lambda *x: "a",
    lambda *x: {"a": 1.0},
    lambda *x: np.zeros((2, 2, 2)),
    lambda *x: x[5],
    lambda *x: float(x[0]),
    lambda *x: undefined,  # noqa: F821
    lambda t, q: q,
]
numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from([0, -0.0, 1e-320, 1e308, -1.0, np.float16(1.0), np.int8(1), 2**31, np.longdouble(1.0)]),
)
things = st.one_of(
    numbers,
    st.none(),
    st.booleans(),
    st.complex_numbers(),
    st.text(max_size=3),
    st.binary(max_size=2),
    st.lists(numbers, max_size=3),
    st.lists(st.lists(numbers, max_size=2), max_size=3),
    st.dictionaries(st.text(max_size=2), numbers, max_size=2),
    st.sampled_from(FUNCTIONS),
    st.sampled_from(
        [
            BALL, ji.Save(), ji.Save(function=3), ji.Save(every=0.5), ji.Save(times="t"), ji.MoreauJean,
            ji.MoreauJean(theta="a"),
            ji.EventDriven(order=3), ji.ActiveSet(tolerance=np.nan), ji.ADMM(max_iterations=-1), object(),
            np.zeros((0, 3)),
            np.array(["a"]), np.array([1j]), np.array([None]), np.datetime64("2020-01-01"),
            np.ma.masked_array([1.0], mask=[True]), np.zeros((1, 1, 1)), Ellipsis, range(3), {1}, int, jnp,
            jax.random.key(0), np.array([(1, 2.0)], "i4,f8"),
        ]
    ),
)  # fmt: skip


def judge(call, check):
    """``call()`` gives what ``check`` accepts, or an error of this library."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found = call()
        except (ValueError, TypeError, RuntimeError) as error:
            assert is_ours(error), repr(error)
            assert any(re.search(rf"\b{name}\b", str(error)) for name in NAMES), repr(error)
        else:
            check(found)


def right(found):
    """Of the ball from y = 1 at rest under unit gravity, or of what else was asked for: finite, or it says why not."""
    status = np.ravel(found.status)
    values = np.concatenate(
        [np.ravel(x) for x in jax.tree.leaves((getattr(found, "q", None), getattr(found, "v", None)))]
    )
    assert np.all(np.isfinite(values)) or np.any(status & int(ji.Status.NON_FINITE))


def small(changes):
    """No run of many steps: what is right is allowed to take its time, but not here."""
    h, steps, t1, t0 = (changes.get(name) for name in ("h", "steps", "t1", "t0"))
    plain = lambda x: isinstance(x, int | float | np.number) and not isinstance(x, bool)
    counts = [steps] if plain(steps) else []
    with np.errstate(all="ignore"):
        for step in np.ravel(h if isinstance(h, list) and all(map(plain, h)) else [h if plain(h) else 0.5]):
            begin, end = float(t0 if plain(t0) else 0), float(t1 if plain(t1) else 1)
            counts.append((end - begin) / step if step else 0.0)
    return not any(1000 < abs(x) < 2.0**32 for x in counts)


def arguments(*names):
    return st.dictionaries(st.sampled_from(names), things, min_size=1, max_size=2).filter(small)


COMMON = ("problem", "q0", "v0", "t0", "t1", "h", "e", "args", "scheme", "projection", "save", "execution")
WRONG = things.filter(lambda x: x is not None)


def fuzz_solve(changes):
    judge(lambda: ji.solve(**GIVEN | changes), right)


def fuzz_ensemble(changes):
    judge(lambda: ji.ensemble(**GIVEN | {"q0": [[1.0], [2.0]]} | changes), right)


def fuzz_sensitivities(changes):
    judge(lambda: ji.sensitivities(**GIVEN | changes), lambda found: None)


solve_arguments = arguments(*COMMON, "steps", "sensitivity")
ensemble_arguments = arguments(*COMMON, "args_axes", "chunk")
sensitivities_arguments = arguments(*COMMON, "args_axes", "chunk", "wrt", "output", "mode", "sensitivity")


# by default what is wrong at sight: never, or nearly never, a program to compile
def wrong(*names):
    bad = st.one_of(
        st.text(min_size=1, max_size=3), st.binary(min_size=1, max_size=2), st.complex_numbers(),
        st.just(np.array([1j])),
        st.just({"a": "b"}), st.just(object()), st.just([[1.0], [1.0, 2.0]]), st.just(np.nan), st.just(-1.0),
        st.just(2**70), st.just(np.array([None])), st.just(np.ma.masked_array([1.0], mask=[True])),
    )  # fmt: skip
    return st.dictionaries(st.sampled_from(names), bad, min_size=1, max_size=2)


FATAL = ("problem", "q0", "t1", "h", "scheme", "projection")


@QUICK
@given(wrong(*FATAL, "save", "execution"))
def test_solve_is_right_or_refuses(changes):
    fuzz_solve(changes)


@QUICK
@given(wrong(*FATAL, "args_axes", "chunk"))
def test_ensemble_is_right_or_refuses(changes):
    fuzz_ensemble(changes)


@QUICK
@given(wrong("wrt", "mode", "sensitivity", *FATAL))
def test_sensitivities(changes):
    fuzz_sensitivities(changes)


@pytest.mark.slow
@BROAD
@given(solve_arguments)
def test_solve_broadly(changes):
    fuzz_solve(changes)


@pytest.mark.slow
@BROAD
@given(ensemble_arguments)
def test_ensemble_broadly(changes):
    fuzz_ensemble(changes)


@pytest.mark.slow
@BROAD
@given(sensitivities_arguments)
def test_sensitivities_broadly(changes):
    fuzz_sensitivities(changes)


@pytest.mark.slow
@BROAD
@given(
    st.sampled_from(["force", "constraints", "mass", "restitution", "energy"]),
    st.one_of(things, st.sampled_from(FUNCTIONS)),
)
def test_a_problem_with_something_absurd_is_right_or_refused(name, value):
    judge(
        lambda: ji.solve(**GIVEN | {"problem": ji.Problem(**{"force": force, "constraints": gaps} | {name: value})}),
        right,
    )


@QUICK
@given(st.sampled_from([scheme_from_name, projection_from_name]), WRONG)
def test_unknown_names_are_refused(find, name):
    judge(lambda: find(name), lambda found: None) if isinstance(name, str) else refused_name(find, name)


def refused_name(find, name):
    with pytest.raises(ValueError, match="unknown"):
        find(name)


@QUICK
@given(WRONG)
def test_a_name_finds_its_entry_or_is_a_key_error(name):
    for find in (catalogue.get, catalogue.get("bouncing-ball").case):
        with contextlib.suppress(KeyError):
            assert find(name).title if find is catalogue.get else find(name).t1 > 0


words = st.one_of(
    st.text("abc-=:/.0123456789e\x00 ", max_size=6),
    numbers.map(str),
    st.sampled_from(
        ["nan", "inf", "-inf", "", "module:", ":name", "math:pi", "os:path", "--help", "e=1/2", "moreau-jean", "admm"]
    ),
)


@QUICK
@given(
    st.sampled_from(["run", "converge", "show", "list", "study", "nope"]),
    st.lists(st.tuples(st.sampled_from(["--case", "--e", "--scheme", "--projection", "--save", "--ensemble",
    "--steps"]), words), max_size=2),
)  # fmt: skip
def test_command_line(command, options):
    """Of a problem that is none, or with h = 0: usage errors in one line, nothing computed, no traceback."""
    problem = (
        ["bouncing-ball"]
        if command in ("run", "converge")
        else ["no-such-thing"]
        if command in ("show", "study")
        else []
    )
    never = ["--h", "0"] if command == "run" else ["--t1", "0"] if command == "converge" else []
    line = [command, *problem, *never, *(word for option in options for word in option)]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(line)
    assert status in (0, 2)
    assert status == 2 or command == "list" or "--help" in line
    assert "Traceback" not in err.getvalue()
    assert status == 0 or "error: " in err.getvalue()
