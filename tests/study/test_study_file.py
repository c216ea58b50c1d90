"""A TOML file of a study with something wrong: an error that names the entry and the cure,
whatever is wrong with it."""

import copy

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jaximpact as ji
from jaximpact.cli import main
from jaximpact.study import MemoryStore
from support.study_systems import begun

FILE = """
store = "{path}"
problem = "shaw-holmes"
case = "damped"
t1 = 2.0
h = 0.1

[design]
e = [0.5, 0.6]
"""


PROBLEM = '"shaw-holmes"\ncase = "damped"'
WHOLE = "must be a whole number"
# of the file: a part, and for what stands there instead the words that name it
WRONG = {
    PROBLEM: {
        '"nomod:x"': "problem: nomod:x: no module 'nomod': look at its spelling",
        '"study_systms:ball"': "problem: study_systms:ball: no module 'study_systms'",
        '"support.study_systems:bal"': "module support.study_systems has no 'bal'",
        '"a:b:c"': "problem: 'a:b:c' does not name",
    },
    f"problem = {PROBLEM}": {"": "problem is missing"},
    "t1 = 2.0": {"t1 = ": "not valid TOML"},
    "h = 0.1": {
        'schema = "maury"': "unknown entry 'schema'; did you mean 'scheme'",
        'scheme = "paoli-schatz"': "unknown scheme 'paoli-schatz'; did you mean 'paoli-schatzman'",
        'scheme = { name = "paoli-schatzman", normals = "explicit" }':
            "unknown attribute of paoli-schatzman 'normals'; did you mean 'normal'",
        "scheme = { name = 3 }": "scheme must be a name, or a table with its name",
        "scheme = { nodes = 3 }": "scheme must be a name, or a table with its name",
        'scheme = { name = "maury", half_kick = "no" }': "Maury(half_kick=...) must be True or False",
        'projection = { name = "active-set", tolerance = -1.0 }':
            "ActiveSet(tolerance=...) must be finite and not negative",
        'projection = { name = "active-set", max_linearisations = 0 }':
            f"ActiveSet(max_linearisations=...) {WHOLE} >= 1",
        "args = { nope = 1 }": "args: no parameter 'nope'",
        "args = { dampin = 0.1 }": "did you mean 'damping'",
        "save = true": f"save: every {WHOLE}",
        "save = ['a']": "save: times must be real numbers",
        "save = { times = [0.5], functoin = 'a:b' }": "did you mean 'function'",
    },
    "[design]": {"[desing]": "did you mean 'design'"},
    "e = [0.5, 0.6]": {
        "e = [0.5, 1.6]": "design: e: restitution must lie in [0, 1]",
        "args.dampin = [0.1]": "did you mean 'damping'",
        'kind = "point"': "unknown kind 'point'; did you mean 'points'",
        'kind = "latin-hypercube"\ne = [0.5, 0.6]': "needs count",
        'kind = "points"\nseed = 3\ne = [0.5, 0.6]': "seed belongs to",
        "e = {}": "design.e is an empty table",
        "e = { from = 0, too = 1, count = 3 }": "'too'; did you mean 'to'",
        "e = { from = 0, count = 3 }": "design.e: to is missing",
        "e = { from = 0, to = 1, count = 1.5 }": f"design.e: count {WHOLE}",
        "e = { from = 0, to = 1, count = 1000000000000 }": f"design.e: count {WHOLE}",
        'e = { from = "a", to = 1, count = 2 }': "design.e: from must be a finite number",
        'e = { from = 0, to = 1, count = 2, spacing = "log" }': "of one sign, and not 0",
        'e = { from = 1, to = 2, count = 3, spacing = "lin" }': "did you mean 'linear'",
    },
}  # fmt: skip


@pytest.mark.parametrize("old, new", [(old, new) for old, some in WRONG.items() for new in some])
def test_what_is_wrong_is_named(tmp_path, capsys, old, new):
    assert FILE.count(old) == 1
    changed = FILE.replace(old, f"{old}\n{new}" if old == "h = 0.1" else new)
    (tmp_path / "wrong.toml").write_text(changed.replace("{path}", str(tmp_path / "s.zarr")))
    assert main(["study", str(tmp_path / "wrong.toml")]) == 2
    printed = capsys.readouterr().err
    assert WRONG[old][new] in printed and "wrong.toml" in printed
    assert not (tmp_path / "s.zarr").exists()


def test_a_file_that_is_no_text_is_named(tmp_path, capsys):
    (tmp_path / "wrong.toml").write_bytes(b"\xff\xfe")
    assert main(["study", str(tmp_path / "wrong.toml")]) == 2
    assert "wrong.toml: not valid TOML" in capsys.readouterr().err


@pytest.mark.parametrize("executor", ["executor", 3, ji.Study])
def test_what_is_no_executor_is_named(tmp_path, executor):
    with pytest.raises(TypeError, match=r"executor must be a concurrent\.futures executor, e\.g\. "):
        begun(tmp_path / "s.zarr").run(executor)


# any value for any entry

COMPLETE = {
    "store": "never_made.zarr",
    "problem": "shaw-holmes",
    "case": "damped",
    "t1": 2.0,
    "h": 0.1,
    "scheme": {"name": "paoli-schatzman", "force": "mean"},
    "projection": {"name": "active-set"},
    "save": [1.0],
    "chunk": 10,
    "args": {"damping": 0.1},
    "design": {"kind": "grid", "e": {"from": 0.2, "to": 0.9, "count": 3}, "args": {"frequency": [2.0, 2.1]}},
}
MORE = [
    *[(name,) for name in ("q0", "v0", "e", "t0", "nope")],
    *[
        ("scheme", name)
        for name in ("nodes", "start", "metric", "normal", "fixed_point_tolerance", "fixed_point_count")
    ],
    *[("projection", name) for name in ("tolerance", "max_linearisations", "nope")],
    *[("design", name) for name in ("count", "seed", "q0", "q0[0]", "v0[1]", "h", "t1")],
    *[("args", "nope"), ("args", "frequency"), ("design", "args", "damping"), ("design", "e", "spacing")],
]


def places(table, before=()):
    for key, value in table.items():
        yield (*before, key)
        if isinstance(value, dict):
            yield from places(value, (*before, key))


# what TOML can hold, of sizes for which a motion has a number of steps that can be counted
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.floats(-1e3, 1e3).filter(lambda x: abs(x) > 1e-3),
    st.sampled_from([np.nan, np.inf, 0.0, -0.0]),
)
WORDS = st.one_of(
    st.text(max_size=5), st.sampled_from(["all", "final", "grid", "maury", "nowhere:x", ":", ".:x", "x:", "\x1b["])
)
SINGLE = st.one_of(NUMBERS, st.booleans(), WORDS, st.dates(), st.integers(2**62, 2**70))
KEYS = st.sampled_from(["name", "from", "to", "count", "spacing", "every", "times", "e", "x", "0"])
VALUES = st.recursive(
    SINGLE,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=4,
)
COUNTED = {"t0", "t1", "h"}  # of which extreme numbers are counts of steps beyond what can be made


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted({*places(COMPLETE), *MORE})), VALUES)
def test_any_value_for_any_entry_is_taken_or_named(place, value):
    if set(place) & COUNTED and not isinstance(value, bool | float | str):
        return
    table = copy.deepcopy(COMPLETE)
    inner = table
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    try:
        study = ji.Study.from_table(table, store=MemoryStore())
    except (ValueError, TypeError, ImportError) as error:
        told = str(error)
        assert place[0] in told or place[-1] in told or any(f"{key!r}" in told for key in _keys(value)), (
            place,
            value,
            told,
        )
        return
    if place[0] in ("t0", "t1", "h"):
        assert study.spec.base[place[0]] == value
    assert study.design.size == np.prod(study.shape) > 0


def _keys(value):
    return list(value) if isinstance(value, dict) else []
