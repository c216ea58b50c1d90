"""Defects that were found once, each with the smallest case that shows it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact.extend import Contacts, Solved

BALL = ji.Problem(lambda t, q, v, args: jnp.array([0.0, -9.81]), lambda t, q, args: q[1:], restitution=0.5)
START = [0.0, 1.0], [0.0, 0.0]


@pytest.mark.parametrize(
    "scheme",
    [ji.PaoliSchatzman(), *(pytest.param(s, marks=pytest.mark.slow) for s in (ji.Maury(), ji.MoreauJean()))],
    ids=lambda s: type(s).__name__,
)
@pytest.mark.parametrize("dtype", [pytest.param(np.float32, marks=pytest.mark.slow), np.float64])
def test_dependent_contacts_do_not_cycle(scheme, dtype):
    """A plate on four feet in millimetres: round-off violations of the redundant foot entered and left for ever."""

    def feet(t, q, args):
        angle = jnp.arange(4, dtype=q.dtype) * (jnp.pi / 2) + args
        return q[0] + jnp.cos(angle) * q[1] + jnp.sin(angle) * q[2]

    plate = ji.Problem(lambda t, q, v, args: jnp.array([-9810.0, 0.0, 0.0]), feet, mass=jnp.array([1.0, 0.3, 0.2]))
    rng = np.random.default_rng(0)
    start = np.stack([np.full(60, 500.0), rng.uniform(-60, 60, 60), rng.uniform(-60, 60, 60)], axis=1).astype(dtype)
    angle = rng.uniform(0, 1, 60).astype(dtype)
    found = ji.ensemble(plate, start, np.zeros(3, dtype), t1=1.0, h=0.01, args=angle, args_axes=0, scheme=scheme)
    assert not np.any(found.failed), np.sum(found.failed)


@pytest.mark.slow
def test_rank_deficient_is_not_infeasible():
    """Forty constraints of rank thirteen with a common point: no false alarm."""
    rng = np.random.default_rng(4)

    @jax.jit  # one program for all ten: by itself each compiles its loops anew
    def status(jacobian, offset):
        contacts = Contacts.of(jnp.zeros(40), jacobian, jacobian.T)
        return Solved(ji.ActiveSet()).velocity(contacts, offset).status

    for _ in range(10):
        jacobian = rng.normal(size=(40, 13)) @ rng.normal(size=(13, 40))
        # feasible by construction: jacobian @ (v + x) >= 0 for a known x
        offset = jacobian @ rng.normal(size=40) + np.abs(rng.normal(size=40))
        # dependent gradients act together: a remark, no failure
        assert int(status(jacobian, offset)) == int(ji.Status.IMPULSES_COUPLED)


def test_known_numbers_are_checked_inside_jit():
    for change, message in (
        ({"t1": -1.0}, "t1 must be later"),
        ({"q0": [0.0, -1.0]}, "not admissible"),
        ({"scheme": ji.Maury()}, "inelastic"),
    ):
        given = {"q0": START[0], "v0": START[1], "t1": 1.0, "h": 0.01, **change}
        # the shift of the energy is all that is traced
        traced = lambda shift, given=given: ji.solve(BALL, **given).q + shift
        with pytest.raises(ValueError, match=message):
            jax.jit(traced)(1.0)


def test_saved_times_have_one_shape():
    run = lambda e, save=(0.0, 0.5, 1.0): ji.solve(BALL, *START, t1=1.0, steps=100, e=e, save=list(save)).t
    for call in (run, jax.jit(run)):
        np.testing.assert_allclose(call(0.5), [0.0, 0.5, 1.0])
    with pytest.raises(ValueError, match="strictly increasing"):
        jax.jit(lambda e: run(e, (0.5, 0.2)))(0.5)


def test_a_time_asked_for_is_a_row_of_every_lane():
    found = ji.ensemble(BALL, *START, t1=[0.3, 0.45], h=0.01, save=[0.1, 0.3])
    np.testing.assert_allclose(found.t, [[0.1, 0.3, 0.3], [0.1, 0.3, 0.45]])


def test_restitution_of_the_problem_is_no_lane_axis():
    walls = ji.Problem(lambda t, q, v, args: jnp.zeros(2), lambda t, q, args: q, restitution=jnp.array([0.2, 0.8]))
    found = ji.ensemble(walls, np.full((3, 2), 0.5), [-1.0, -1.0], t1=1.0, h=0.003, scheme=ji.MoreauJean())
    np.testing.assert_allclose(found.v[:, -1], [[0.2, 0.8]] * 3, atol=1e-14)


def test_function_of_the_state_with_lane_arguments():
    problem = ji.Problem(
        lambda t, q, v, args: jnp.stack([0.0 * args, -args]), lambda t, q, args: jnp.stack([args * q[1]])
    )
    gravity = np.array([9.0, 10.0, 11.0])
    found = ji.ensemble(
        problem, *START, t1=0.2, h=0.01, args=gravity, args_axes=0, save=lambda t, q, v, args: {"y": q[1], "one": 1.0}
    )
    assert found.values["y"].shape == (3, 21)
    np.testing.assert_allclose(found.values["y"][:, -1], 1 - gravity * 0.02, atol=1e-12)
    np.testing.assert_array_equal(found.values["one"], 1.0)


@pytest.mark.parametrize(
    "force",
    [
        lambda t, q, v, args: jnp.zeros(2) if q[1] < 0 else jnp.ones(2),
        lambda t, q, v, args: jnp.array([0.0, float(q[1])]),
        lambda t, q, v, args: np.sin(q),
    ],
)
def test_untraceable_functions(force):
    with pytest.raises(TypeError, match=r"force.* must be traceable: jnp.where in place of if"):
        ji.solve(ji.Problem(force), *START, t1=1.0, h=0.1)


def test_mass_of_a_derived_problem_is_fixed():
    spring = ji.Problem.from_potential(lambda q, args: 0.5 * q @ q, mass=2.0)
    with pytest.raises(ValueError, match="derived from its mass"):
        spring.replace(mass=4.0)
    assert float(spring.energy(0.0, jnp.array([0.0]), jnp.array([1.0]), None)) == 1.0


@pytest.mark.parametrize(
    "lagrangian",
    [
        lambda t, q, v, args: 0.5 * (1 + t) * v @ v,
        lambda t, q, v, args: 0.5 * v @ v + 0.1 * jnp.sum(v**4),
        # at the start alone it is quadratic
        lambda t, q, v, args: 0.5 * v @ v + jnp.sum((q - jnp.array(START[0])) ** 2 * v**4),
        lambda t, q, v, args: 0.5 * (1 + t * jnp.sum(q - jnp.array(START[0]))) * v @ v,
    ],
)
def test_lagrangians_outside_the_theory(lagrangian):
    with pytest.raises(ValueError, match="quadratic in v with a mass matrix independent of time"):
        ji.solve(ji.Problem.from_lagrangian(lagrangian), *START, t1=1.0, h=0.1)


def test_convergence_checks_its_references():
    run = lambda **options: ji.convergence(BALL, *START, **{"t1": 0.4, "steps": [11, 23], **options})
    flat = lambda t: (np.ones_like(t), np.zeros_like(t))
    with pytest.raises(ValueError, match=r"exact\(t\) must return q and v of shape \(12, 2\)"):
        run(exact=flat)
    good = lambda t: (np.stack([0 * t, 1 - 9.81 * t**2 / 2], 1), np.stack([0 * t, -9.81 * t], 1))
    with pytest.raises(ValueError, match="impulse must have shape"):
        run(exact=good, impulse=[0.0, 0.0])
    with pytest.raises(ValueError, match="impulse goes with exact"):
        run(impulse=[0.0])
    with pytest.raises(ValueError, match="whole numbers"):
        run(steps=[11, 23.5])
    assert run(exact=good, impulse=[0.0]).position.max() < 1e-12
