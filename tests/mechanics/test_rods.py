"""Many impacts in a step of `EventCorrected`, and rods that fall, rock on two contacts and come to rest: where they
end, and what is told of their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import Status
from support.breadth import slow

SCHEME = ji.EventCorrected()


def final(problem, q0, v0, **options):
    options = {"scheme": SCHEME, "save": "final", **options}
    return ji.solve(problem, q0, v0, **options)


@pytest.mark.slow
def test_more_orthogonal_walls_at_once_than_a_step_locates():
    """Three coordinates reach their walls together, where two events are located:
    values and derivatives of each alone."""
    walls = ji.Problem(lambda t, q, v, args: jnp.zeros(3), lambda t, q, args: q, restitution=0.6)

    @jax.jit
    @lambda f: jax.jacfwd(f, (0, 1), has_aux=True)
    def run(q0, v0):
        s = final(walls, q0, v0, t1=0.5, steps=7)
        return (jnp.concatenate([s.q[-1], s.v[-1]]),) * 2

    jacobian, state = run(jnp.full(3, 0.3), jnp.full(3, -1.0))
    np.testing.assert_allclose(state, [0.12] * 3 + [0.6] * 3, atol=1e-13)
    eye = 0.6 * np.eye(3)
    np.testing.assert_allclose(np.hstack(jacobian), np.block([[-eye, -0.5 * eye], [0 * eye, -eye]]), atol=1e-12)


@pytest.mark.parametrize("e", [1.0, slow(0.6)])
def test_many_impacts_in_a_step(e):
    """Between walls a third of a step's way apart nothing is lost: it stays between them, no energy is made."""
    slot = ji.Problem(lambda t, q, v, args: jnp.zeros(1), lambda t, q, args: jnp.stack([q[0], args - q[0]]))
    s = final(slot, [0.001], [1.0], t1=1.0, h=1e-2, e=[e, e], args=0.003, save="all").raise_if_failed()
    speed = np.abs(np.asarray(s.v)[:, 0])
    assert s.penetration <= 1e-14 and np.all(np.diff(speed) <= 1e-13) and s.status == 0
    assert speed[-1] == pytest.approx(1.0, abs=1e-12) if e == 1 else speed[-1] < 0.05


ROD = ji.Problem(
    lambda t, q, v, args: jnp.array([-9.81, 0.0], q.dtype),
    lambda t, q, args: q[0] + jnp.sin(q[1]) * jnp.stack([-args["a"], args["b"]]),
    mass=lambda q, args: jnp.stack([jnp.ones((), q.dtype), args["inertia"]]),
)


@pytest.mark.parametrize("e", [0.0, 0.5])
def test_a_rod_that_rocks_on_two_contacts_comes_to_rest_on_both(e):
    """It rattled for ever, at velocities of h g, with a clean status; or sank,
    where an impact at one end pushes the other down."""
    rods = {"a": [0.7586, 1.6826, 1.3313], "b": [0.4021, 0.4324, 1.8236], "inertia": [0.3443, 2.555, 0.0454]}
    options = {"t1": 9.0, "h": 1e-2, "e": e, "scheme": SCHEME, "save": "final"}
    options |= {"args": {name: np.array(x) for name, x in rods.items()}, "args_axes": 0}
    found = ji.ensemble(ROD, [[0.8, 0.1], [0.8, -0.2], [0.8, 0.2]], np.zeros((3, 2)), **options)
    assert np.max(np.abs(found.q[:, -1])) < 1e-9  # what is left of one linearisation behind the last events of a step
    assert np.max(np.abs(found.v[:, -1])) < 1e-9
    assert not np.any(found.failed)


@pytest.mark.slow
def test_single_precision_overlooks_no_impact_of_a_falling_rod():
    """Gaps are left negative by the rounding of the path alone; a round-off taken for that of
    a thousand steps gave 6e-3."""
    rod = {name: np.float32(x) for name, x in (("a", 1.6826), ("b", 0.4324), ("inertia", 2.555))}
    start = np.array([0.8, -0.2], np.float32)
    found = final(ROD, start, np.zeros(2, np.float32), t1=np.float32(3), steps=303, e=np.float32(0.3), args=rod)
    assert found.penetration < 64 * np.finfo(np.float32).eps


@pytest.mark.slow
def test_a_rod_that_rocks_to_rest_has_derivatives_of_first_order():
    """Infinitely many impacts, also where each is inelastic."""
    rod = {"a": 0.7586, "b": 0.4021, "inertia": 0.3443}
    found = final(ROD, [0.8, 0.1], [0.0, 0.0], t1=3.0, steps=303, args=rod, sensitivity="corrected")
    assert Status(int(found.status)) & Status.DERIVATIVE_EVENTS


RODS = {"1-r": lambda r: (1 - r, r - 1), "1-r^2": lambda r: (1 - r * r, r - 1), "r^2": lambda r: (1 - r * r, r * r - 1)}


@pytest.mark.slow
@pytest.mark.parametrize("rod", RODS)
@pytest.mark.parametrize("e", [0.0, 0.5])
@pytest.mark.parametrize("scheme", [SCHEME, ji.MoreauJean()])
def test_a_rod_of_two_gaps_that_strikes_a_wall_is_trusted(rod, e, scheme):
    """Where an inelastic impact stops the body the round-off of what it had is no opening:
    it had doubtful derivatives."""
    gaps = lambda t, q, args: jnp.stack([*RODS[rod](jnp.sqrt(q @ q)), 0.3 - q[0]])
    problem = ji.Problem(lambda t, q, v, args: jnp.array([0.0, -9.81], q.dtype), gaps, restitution=e)
    start = [-0.5, -np.sqrt(0.75)]
    found = final(problem, start, [0.0, 0.0], t1=1.0, h=1e-3, scheme=scheme, sensitivity="corrected")
    # of remarks on derivatives there is none
    assert Status(int(found.status)) == (Status.IMPULSES_COUPLED if e and scheme is not SCHEME else Status.OK)


STACK = ji.Problem(
    lambda t, q, v, args: jnp.full(2, -9.81, q.dtype), lambda t, q, args: jnp.stack([q[0], q[1] - q[0] - 1])
)


@pytest.mark.parametrize(("problem", "q0"), [(ROD, [0.2, 0.0]), slow(STACK, [0.2, 1.2])], ids=["flat rod", "stack"])
def test_impacts_at_once_have_no_derivative(problem, q0):
    args = {"a": 1.0, "b": 1.0, "inertia": 0.3}
    found = final(problem, q0, [0.0, 0.0], t1=0.4, steps=401, e=0.5, args=args, sensitivity="corrected")
    # a stack that falls touches without a load
    assert Status(int(found.status)) == Status.DERIVATIVE_EVENTS | Status.IMPULSES_COUPLED
