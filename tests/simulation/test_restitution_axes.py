"""What an ``e=`` of rank 1 means: in every call one number for each contact or for each motion,
or a refusal that names both."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import analysis
from support.breadth import slow

E = (0.5, 1.0)
WALLS = ji.Problem(lambda t, q, v, args: jnp.zeros(1), lambda t, q, args: jnp.array([q[0], 1 - q[0]]))
START = {"t1": 3.0, "h": 0.01, "scheme": ji.MoreauJean()}
# v = 1 up to the wall of e = 1 at t = .5, -1 to that of e = .5 at t = 1.5, then .5: q(3) = .75, dv/de = (1, .5)
ONE = [
    ((0.5, 1.0), "tuple"),
    ([0.5, 1.0], "list"),
    (np.float32([0.5, 1]), "float32"),
    ([[0.5, 1.0]], "row"),
    (jnp.array(E), "jax"),
]


@pytest.mark.parametrize("e", [pytest.param(e, id=name) for e, name in ONE])
def test_sensitivities_of_one_motion_read_e_as_solve_does(e):
    found = ji.sensitivities(WALLS, [0.5], [1.0], e=e, wrt="e", **START)
    assert found.value["v"].shape == (1,) and found.trusted
    np.testing.assert_allclose(found.value["v"], [0.5], rtol=1e-12)
    np.testing.assert_allclose(found.jacobian["v"]["e"], [[1.0, 0.5]], rtol=1e-12)


@pytest.mark.slow
def test_jacobians_are_those_of_a_traced_e():
    # under a transformation solve reads shapes alone
    of = lambda e: ji.solve(WALLS, [0.5], [1.0], e=e, save="final", **START).v[-1]
    np.testing.assert_allclose(jax.jit(jax.jacfwd(of))(jnp.array(E)), [[1.0, 0.5]], rtol=1e-12)


def test_rows_are_contacts_and_columns_are_motions():
    starts = ([[0.5], [0.5]], [1.0])
    for e in ([list(E)], [E, E]):
        np.testing.assert_allclose(ji.ensemble(WALLS, *starts, e=e, **START).v[:, -1, 0], [0.5, 0.5], rtol=1e-12)
    # .25: e = .5 at both walls; -1: e = 1, a third wall met at t = 2.5
    for where in (starts, ([0.5], [1.0])):
        found = ji.ensemble(WALLS, *where, e=[[0.5], [1.0]], **START)
        np.testing.assert_allclose(found.v[:, -1, 0], [0.25, -1.0], rtol=1e-12)


@pytest.mark.parametrize("starts", [([[0.5], [0.5]], [1.0]), ([0.5], [1.0])], ids=["lanes", "none"])
@pytest.mark.parametrize("e", [E, (1, 0), (True, False)], ids=["floats", "ints", "bools"])
def test_what_may_be_either_is_refused_with_both_spellings(starts, e):
    with pytest.raises(ValueError, match=r"shape \(1, 2\).*\(2, 1\)"):
        ji.ensemble(WALLS, *starts, e=e, **START)


def test_no_other_length_is_ambiguous():
    many = ji.ensemble(WALLS, [[0.5]] * 3, [1.0], e=E, **START)  # three motions, two contacts
    np.testing.assert_allclose(many.v[:, -1, 0], [0.5] * 3, rtol=1e-12)
    lanes = ji.ensemble(WALLS, [0.5], [1.0], e=[0.5, 1.0, 0.5], **START)
    np.testing.assert_allclose(lanes.v[:, -1, 0], [0.25, -1, 0.25], rtol=1e-12)
    single = ji.Problem(lambda t, q, v, args: jnp.zeros(1), lambda t, q, args: 1 - q)
    free = ji.Problem(lambda t, q, v, args: jnp.zeros(1))
    for problem, e, left in (
        (single, [0.5], [-0.5]),
        (single, [[0.5]] * 2, [-0.5, -0.5]),
        (free, [0.5, 0.7], [1.0, 1.0]),
    ):
        found = ji.ensemble(problem, [[0.5]] * len(e), [1.0], e=e, **START)
        np.testing.assert_allclose(found.v[:, -1, 0], left, rtol=1e-12)
    # one coefficient for all contacts is all that the default scheme takes
    default = ji.ensemble(WALLS, [0.5], [1.0], e=E, t1=3.0, h=0.01)
    np.testing.assert_allclose(default.v[:, -1, 0], [0.25, -1.0], rtol=1e-12)


FORCED = ji.Problem(
    lambda t, q, v, args: -q + args["a"] * jnp.cos(t), lambda t, q, args: jnp.array([q[0] + 0.3, 0.4 - q[0]])
)
PER = FORCED.replace(restitution=np.array(E))
COMMON = {"period": 2 * np.pi, "steps": 100, "args": {"a": 0.6}}
PLAIN = COMMON | {"cycles": 2}
CALLS = {
    "impact_section": lambda p, e: analysis.impact_section(p, [0.0], [0.5], e=e, **PLAIN),
    "stroboscopic": lambda p, e: analysis.stroboscopic(p, [0.0], [0.5], e=e, **PLAIN),
    "bifurcation": lambda p, e: (
        analysis.bifurcation(p, [0.0], [0.5], parameter="a", values=[0.5, 0.55, 0.6], e=e, **PLAIN).section
    ),
    "basins": lambda p, e: analysis.basins(p, x=[-0.1, 0.0, 0.1], y=[0.5], e=e, **PLAIN, skip=0),
    "periodic_orbit": lambda p, e: analysis.periodic_orbit(p, [0.0], [0.5], e=e, **COMMON),
    "lyapunov": lambda p, e: analysis.lyapunov(
        p, [0.0], [0.5], e=e, interval=2 * np.pi, steps=100, intervals=2, blocks=2, args={"a": 0.6}
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x == "impact_section" else pytest.mark.slow) for x in CALLS]
)
def test_analyses_of_one_motion_read_e_as_the_problem_does(name):
    found, stated = CALLS[name](FORCED, E), CALLS[name](PER, None)
    for field in ("q", "v", "value", "exponents", "labels", "status"):
        if hasattr(stated, field):
            np.testing.assert_array_equal(getattr(found, field), getattr(stated, field))


def test_a_sweep_over_e_has_as_many_lanes_as_values():
    # as many values as contacts; each is what it is alone
    found = analysis.bifurcation(FORCED, [0.0], [0.5], parameter="e", values=list(E), **PLAIN).section
    single_backend = analysis.stroboscopic(FORCED, [0.0], [0.5], e=[[0.5], [1.0]], **PLAIN)
    np.testing.assert_array_equal(found.q, single_backend.q)
    with pytest.raises(ValueError, match=r"\(1, 2\)"):
        analysis.stroboscopic(FORCED, [[0.0], [0.1]], [0.5], e=E, **PLAIN)


def test_a_study_reads_e_for_each_contact_whatever_it_varies(tmp_path):
    # as many lanes as contacts: what is shared stays shared
    study = ji.Study(
        tmp_path / "s.zarr",
        "support.study_systems:slit",
        ji.Design.points(**{"q0[0]": [0.5, 0.5]}),
        q0=[0.5],
        v0=[1.0],
        e=E,
        **START,
    )
    assert study.arguments()["e"].shape == (1, 2)
    study.run()
    np.testing.assert_allclose(study.dataset().v.values.ravel(), [0.5, 0.5], rtol=1e-12)
    np.testing.assert_allclose(study.lane(0).v[-1], [0.5], rtol=1e-12)
    swept = ji.Study(
        tmp_path / "t.zarr", "support.study_systems:slit", ji.Design.points(e=list(E)), q0=[0.5], v0=[1.0], **START
    )
    swept.run()
    np.testing.assert_allclose(swept.dataset().v.values.ravel(), [0.25, -1], rtol=1e-12)
    np.testing.assert_allclose(swept.lane(1).v[-1], [-1.0], rtol=1e-12)


@pytest.mark.parametrize("call", [ji.ensemble, slow(ji.sensitivities)])
def test_steps_in_place_of_h(call):
    options = {"scheme": ji.MoreauJean(), "e": 1.0}
    given, asked = (
        call(WALLS, [[0.5], [0.4]], [1.0], t1=[3.0, 2.9], **step, **options)
        for step in ({"steps": 300}, {"h": np.array([3.0, 2.9]) / 300})
    )
    for one, other in zip(jax.tree.leaves(vars(given)), jax.tree.leaves(vars(asked)), strict=True):
        if isinstance(one, np.ndarray):
            np.testing.assert_array_equal(one, other)
    for wrong in ({}, {"h": 0.01, "steps": 300}):
        with pytest.raises(ValueError, match=r"either h, the step, or steps|give h, their size, or steps"):
            call(WALLS, [[0.5]], [1.0], t1=3.0, **wrong, **options)
