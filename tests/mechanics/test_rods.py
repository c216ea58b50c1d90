"""Rods that fall, rock on two contacts and come to rest, by `EventCorrected`: where they end,
and what is told of their derivatives."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import Status

SCHEME = ji.EventCorrected()


def final(problem, q0, v0, **options):
    options = {"scheme": SCHEME, "save": "final", **options}
    return ji.solve(problem, q0, v0, **options)


ROD = ji.Problem(
    lambda t, q, v, args: jnp.array([-9.81, 0.0], q.dtype),
    lambda t, q, args: q[0] + jnp.sin(q[1]) * jnp.stack([-args["a"], args["b"]]),
    mass=lambda q, args: jnp.stack([jnp.ones((), q.dtype), args["inertia"]]),
)


@pytest.mark.parametrize("e", [0.0, 0.5])
def test_a_rod_that_rocks_on_two_contacts_comes_to_rest_on_both(e):
    """It rattled for ever, at velocities of h g, with a clean status; or sank,
    where an impact at one end pushes the other down."""
    rods = {
        "a": np.array([0.7586, 1.6826, 1.3313]),
        "b": np.array([0.4021, 0.4324, 1.8236]),
        "inertia": np.array([0.3443, 2.555, 0.0454]),
    }
    start = np.array([[0.8, 0.1], [0.8, -0.2], [0.8, 0.2]])
    found = ji.ensemble(
        ROD, start, np.zeros((3, 2)), t1=9.0, h=1e-2, e=e, args=rods, args_axes=0, scheme=SCHEME, save="final"
    )
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


RODS = {
    "1-r": lambda r: (1 - r, r - 1),
    "1-r^2": lambda r: (1 - r * r, r - 1),
    "r^2": lambda r: (1 - r * r, r * r - 1),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "rod", ["1-r", pytest.param("1-r^2", marks=pytest.mark.slow), pytest.param("r^2", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("e", [0.0, pytest.param(0.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("scheme", [SCHEME, pytest.param(ji.MoreauJean(), marks=pytest.mark.slow)])
def test_a_rod_of_two_gaps_that_strikes_a_wall_is_trusted(rod, e, scheme):
    """Where an inelastic impact stops the body the round-off of what it had is no opening:
    it had doubtful derivatives."""

    def gaps(t, q, args):
        return jnp.stack([*RODS[rod](jnp.sqrt(q @ q)), 0.3 - q[0]])

    problem = ji.Problem(lambda t, q, v, args: jnp.array([0.0, -9.81], q.dtype), gaps, restitution=e)
    start = [-0.5, -np.sqrt(0.75)]
    found = final(problem, start, [0.0, 0.0], t1=1.0, h=1e-3, scheme=scheme, sensitivity="corrected")
    # of remarks on derivatives there is none
    assert Status(int(found.status)) == (Status.IMPULSES_COUPLED if e and scheme is not SCHEME else Status.OK)


@pytest.mark.parametrize(
    ("problem", "q0"),
    [
        pytest.param(None, [0.2, 0.0], id="a rod that falls flat"),
        pytest.param(
            ji.Problem(
                lambda t, q, v, args: jnp.full(2, -9.81, q.dtype), lambda t, q, args: jnp.stack([q[0], q[1] - q[0] - 1])
            ),
            [0.2, 1.2],
            id="a stack that touches",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_impacts_at_once_have_no_derivative(problem, q0):
    args = {"a": 1.0, "b": 1.0, "inertia": 0.3}
    found = final(problem or ROD, q0, [0.0, 0.0], t1=0.4, steps=401, e=0.5, args=args, sensitivity="corrected")
    told = Status.DERIVATIVE_EVENTS | Status.IMPULSES_COUPLED
    # a stack that falls touches without a load
    assert Status(int(found.status)) == (told if problem is None else told | Status.DERIVATIVE_EVENTS)
