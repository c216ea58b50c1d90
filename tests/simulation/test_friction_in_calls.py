"""``friction=`` of a call takes the problem's place, in every call and in every shape that ``e=`` has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import analysis, bodies
from jaximpact.cli import main
from jaximpact.study import MemoryStore
from support import study_systems
from support.breadth import slow, slow_but
from support.study_systems import pulled_block, rough_block

G, V0, T1 = 9.81, 2.0, 0.3
MU = np.array([0.1, 0.2, 0.5])
# the block slides all the time: v(t1) = v0 - mu g t1 to rounding
CALL = {"t1": T1, "h": 1e-2, "scheme": ji.MoreauJean()}
START = ([0.0, 0.0], [V0, 0.0])


def speed(mu):
    return V0 - np.asarray(mu) * G * T1


# two feet of a block that share its weight evenly, whose frictions add up
FEET = ji.Problem(
    lambda t, q, v, args: jnp.array([0.0, -G, 0.0]),
    lambda t, q, args: jnp.stack([q[1] - q[2], q[1] + q[2]]),
    slip=lambda t, q, v, args: jnp.stack([v[0], v[0]]),
    friction=0.3,
)
ON_FEET = ([0.0] * 3, [V0, 0.0, 0.0])


def test_a_call_s_friction_takes_the_place_of_the_problem_s():
    by_args = rough_block.replace(friction=lambda args: args["mu"])
    expected = ji.solve(rough_block.replace(friction=0.2), *START, **CALL)
    for problem in (rough_block, by_args):
        found = ji.solve(problem, *START, friction=0.2, **CALL)
        assert np.array_equal(found.q, expected.q) and np.array_equal(found.friction_impulse, expected.friction_impulse)


@pytest.mark.parametrize("shape", ["lanes", "column", "contacts", "row", slow("both")])
def test_shapes_are_those_of_restitution(shape):
    pair = np.array([0.1, 0.3])
    given = {
        "lanes": MU,
        "column": MU[:, None],
        "contacts": pair,
        "row": pair[None],
        "both": np.stack([MU, MU + 0.1], 1),
    }
    per_foot = {"lanes": MU, "column": MU, "contacts": np.full(3, 0.2), "row": np.full(3, 0.2), "both": MU + 0.05}
    lanes = {} if shape in ("lanes", "column", "both") else {"e": np.zeros((3, 1))}
    for execution in ("native", "xla")[: 1 + (shape == "both")]:
        found = ji.ensemble(FEET, *ON_FEET, friction=given[shape], execution=execution, **lanes, **CALL)
        np.testing.assert_allclose(found.v[:, -1, 0], speed(per_foot[shape]), rtol=1e-12)


def test_derivatives_by_friction():
    exact = {"q": [[-G * T1**2 / 2, 0.0]] * 3, "v": [[-G * T1, 0.0]] * 3}
    # each step's velocity is exact, its position the sum of them: an error of h t g / 2
    close = {"q": {"atol": G * T1 * CALL["h"]}, "v": {"rtol": 1e-12}}
    found = ji.sensitivities(rough_block, *START, friction=MU, wrt="friction", **CALL)
    for name, expected in exact.items():
        np.testing.assert_allclose(found.jacobian[name]["friction"], expected, **close[name])
    status = jax.jit(
        lambda mu: ji.solve(rough_block, *START, friction=mu, save="final", sensitivity="none", **CALL).status
    )
    for wrong in (-0.1, jnp.nan):
        assert int(status(wrong)) & ji.Status.INPUT_INVALID


@pytest.mark.slow
def test_derivatives_by_friction_on_a_curved_surface_backwards():
    """Where a step is searched for obstacles that it leads through, which has no derivative by the coefficient."""
    dome = ji.Problem(
        lambda t, q, v, args: jnp.stack([0 * t, 0 * t - G]),
        lambda t, q, args: (q[1] + 0.1 * q[0] ** 2)[None],
        slip=lambda t, q, v, args: v[:1] - 0.2 * q[0] * v[1:],
        friction=0.3,
    )
    given = {"t1": 0.3, "steps": 30, "wrt": "friction"}
    of = lambda **how: ji.sensitivities(dome, [0.0, 0.05], [1.0, 0.0], **given, **how)
    forward, reverse = of(mode="forward"), of(mode="reverse", execution="xla")
    assert forward.trusted and reverse.trusted
    for name in ("q", "v"):
        np.testing.assert_allclose(reverse.jacobian[name]["friction"], forward.jacobian[name]["friction"], rtol=1e-12)


@pytest.mark.slow
def test_derivatives_of_one_motion_by_friction():
    own = ji.sensitivities(rough_block, *START, wrt="friction", **CALL)
    assert own.trusted and own.inputs["friction"] == 0.3
    # at other inputs, one of them no coefficient
    again, status = own.again({"friction": np.array([0.2, -0.1])})
    assert status[1] & ji.Status.INPUT_INVALID and not status[0]
    np.testing.assert_allclose(again.value["v"][:, 0], [speed(0.2)], rtol=1e-12)
    final = lambda mu: ji.solve(rough_block, *START, friction=mu, save="final", **CALL).v[-1, 0]
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(final)))(MU), [-G * T1] * 3, rtol=1e-12)


def test_float32_and_a_lane_that_fails():
    start = [np.asarray(x, np.float32) for x in START]
    found = ji.ensemble(rough_block, *start, friction=MU, **CALL)
    assert found.q.dtype == np.float32
    np.testing.assert_allclose(found.v[:, -1, 0], speed(MU), rtol=1e-5)
    gusts = ji.Problem(
        lambda t, q, v, args: jnp.stack([jnp.where(t > args["until"], jnp.nan, 0.0), -G]),
        lambda t, q, args: q[1:],
        slip=lambda t, q, v, args: v[:1],
        friction=0.3,
    )
    until = {"until": np.array([1.0, 0.1, 1.0])}
    found = ji.ensemble(gusts, *START, friction=MU, args=until, args_axes=0, **CALL)
    assert np.array_equal(found.failed, [False, True, False])
    np.testing.assert_allclose(found.v[[0, 2], -1, 0], speed(MU[[0, 2]]), rtol=1e-12)


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"friction": -0.1}, ValueError, "friction must be finite and >= 0, got -0.1"),
        ({"friction": [0.1, np.inf, 0.2]}, ValueError, "friction must be finite and >= 0"),
        ({"friction": np.zeros((3, 2))}, ValueError, r"one per contact, shape \(1,\)"),
        ({"friction": "rough"}, TypeError, "friction must be real numbers"),
        ({"friction": [0.1, 0.2], "v0": np.zeros((3, 2))}, ValueError, "one length.*'friction': 2"),
        ({"problem": FEET, "q0": [0.0] * 3, "v0": [0.0] * 3, "friction": [0.1, 0.2]}, ValueError, "give shape .1, 2., "
            "friction="),
        ({"problem": ji.Problem(lambda t, q, v, args: 0 * q), "friction": MU}, ValueError, "the problem says nothing "
            "of slip"),
    ],
)  # fmt: skip
def test_what_is_no_friction_is_refused_by_name(change, error, words):
    given = {"problem": rough_block, "q0": START[0], "v0": [START[1]] * 3, **CALL} | change
    with pytest.raises(error, match=words):
        ji.ensemble(given.pop("problem"), given.pop("q0"), given.pop("v0"), **given)


def test_derivatives_by_a_friction_that_is_a_function_are_refused():
    by_args = rough_block.replace(friction=lambda args: args["mu"])
    with pytest.raises(ValueError, match="a function of args: name 'args'"):
        ji.sensitivities(by_args, *START, args={"mu": 0.2}, wrt="friction", **CALL)
    with pytest.raises(ValueError, match="not stated: give slip and friction"):
        ji.sensitivities(ji.Problem(lambda t, q, v, args: 0 * q), *START, wrt="friction", **CALL)


def test_bodies_in_lists_have_none():
    disks = bodies.disks([0.1, 0.1])
    with pytest.raises(ValueError, match="the problem says nothing of slip"):
        ji.solve(disks, [0.0, 0.0, 1.0, 0.0], [0.0] * 4, t1=0.1, h=0.01, friction=0.3)


STATIC = np.array([0.3, 0.4, 0.5])


def pulled(static, mu=0.3):
    """Speed at T1 of the block that breaks away where 40 t = static g, exact but for the step in which it does,
    h (static - mu) g."""
    begin = np.asarray(static) * G / 40
    return 20 * (T1**2 - begin**2) - mu * G * (T1 - begin)


LATE = {"rtol": 0, "atol": 2e-2}
# of either coefficient: a block, its start, values, the speeds that they make, how near, and its name on the command
# line
EITHER = {
    "friction": ("rough_block", [V0, 0.0], MU, speed, {"rtol": 1e-12}, "--friction"),
    "static_friction": ("pulled_block", [0.0, 0.0], STATIC, pulled, LATE, "--static-friction"),
}
either = pytest.mark.parametrize("name", slow_but(["friction"], EITHER))


@either
def test_analyses_hand_it_on(name):
    block, v0, values, _, _, _ = EITHER[name]
    problem, start = getattr(study_systems, block), (START[0], v0)
    call = {"period": T1, "steps": 10, "cycles": 2, "scheme": ji.MoreauJean()}
    other = problem.replace(**{name: values[1]})
    found = analysis.stroboscopic(problem, *start, **{name: values[1]}, **call)
    assert np.array_equal(found.q, analysis.stroboscopic(other, *start, **call).q)
    diagram = analysis.bifurcation(problem, *start, parameter=name, values=values, skip=0, **call)
    assert np.all(np.diff(diagram.section.v[:, 0, 0]) < 0)
    if name == "friction":
        # lifted to a start, it falls for a step
        np.testing.assert_allclose(diagram.section.v[:, 0, 0], speed(values), atol=5e-2)
    options = {"t1": T1, "steps": (11, 21, 41), "scheme": ji.MoreauJean()}
    both = [ji.convergence(p, *start, **options | own) for p, own in ((problem, {name: values[1]}), (other, {}))]
    assert np.array_equal(both[0].position, both[1].position)
    with pytest.raises(ValueError, match=r"choose one of \['e', 'friction', 'static_friction'\]"):
        analysis.continue_orbit(problem, *start, parameter="mu", bounds=(0.1, 0.3), period=T1, steps=10)


@either
def test_studies_and_the_command_line(name, tmp_path, capsys):
    block, v0, values, exact, close, option = EITHER[name]
    base = {"q0": START[0], "v0": v0, "t1": T1, "h": 1e-2, "scheme": ji.MoreauJean()}
    made = lambda values: ji.Study(
        MemoryStore(), f"support.study_systems:{block}", ji.Design.grid(**{name: values}), **base
    )
    study = made(values)
    study.run()
    np.testing.assert_allclose(study.solution().v[:, -1, 0], exact(values), **close)
    data = study.dataset()
    assert data[name].attrs["units"] == "1" and data.v.dims[0] == name
    np.testing.assert_allclose(study.lane(1).v[-1, 0], exact(values[1]), **close)
    assert study.arguments()[name].shape == (3, 1)
    with pytest.raises(ValueError, match=f"design: {name}: {name} must be finite and >= 0"):
        made([-0.1, 0.2]).run()
    if name == "static_friction":
        low = made([0.2, 0.4])
        low.run()
        assert np.array_equal(low.solution().failed, [True, False])
    table = tmp_path / "study.toml"
    table.write_text(
        f'store = "{tmp_path}/{block}"\nproblem = "support.study_systems:{block}"\nq0 = [0.0, 0.0]\nv0 = {v0}\nt1 = '
        f"{T1}\nh = 0.01\n"
        f'scheme = "moreau-jean"\n{name} = {values[1]}\n[design]\n"v0[0]" = [{v0[0]}, {v0[0] + 1}]\n'
    )
    read = ji.Study.from_file(table)
    read.run()
    np.testing.assert_allclose(read.solution().v[0, -1, 0], exact(values[1]), **close)
    assert main(["run", "bouncing-ball", option, "0.3", "--out", str(tmp_path)]) != 0
    assert "says nothing of slip" in capsys.readouterr().err


def test_static_friction_is_taken_where_friction_is():
    """By lane and by contact, and of files of a solution."""
    rest = (START[0], [0.0, 0.0])
    found = ji.ensemble(pulled_block, *rest, static_friction=STATIC, **CALL)
    np.testing.assert_allclose(found.v[:, -1, 0], pulled(STATIC), **LATE)
    other = ji.ensemble(pulled_block, *rest, static_friction=STATIC[:, None], friction=0.3, **CALL)
    assert np.array_equal(found.q, other.q)
    one = ji.solve(rough_block.replace(force=pulled_block.force), *rest, static_friction=0.4, **CALL)
    assert np.array_equal(one.v[-1], found.v[1, -1])
    events = ji.solve(pulled_block, *rest, **CALL).slips(pulled_block)
    assert events.kind.tolist() == ["break"] and events.t[0] == pytest.approx(0.5 * G / 40, abs=2e-3)


@pytest.mark.slow
def test_derivatives_by_static_friction():
    rest, begin = (START[0], [0.0, 0.0]), 0.5 * G / 40
    slopes = ji.sensitivities(pulled_block, *rest, wrt=("static_friction", "friction"), **CALL)
    assert slopes.jacobian["v"]["static_friction"][0] == pytest.approx(-(0.5 - 0.3) * G * G / 40, rel=0.05)  # h
    assert slopes.jacobian["v"]["friction"][0] == pytest.approx(-G * (T1 - begin), rel=0.05)
    again, status = slopes.again({"static_friction": np.array([0.4, 0.2])})
    np.testing.assert_allclose(again.value["v"][:, 0], pulled([0.4]), **LATE)
    assert status[1] & ji.Status.INPUT_INVALID
