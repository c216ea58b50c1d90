"""The look for obstacles that a step leads through: of many contacts only those that may matter are compared."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact.mechanics import tunnelling
from jaximpact.mechanics.tunnelling import StepPath, loses_the_gap
from support.breadth import slow

FIRST, SECOND = np.triu_indices(9, 1)


def gaps(t, q, args):
    centre = q.reshape(-1, 2)
    distance = jnp.linalg.norm(centre[FIRST] - centre[SECOND], axis=1)
    return jnp.concatenate([distance - args, q - 0.1, 2.0 - q])


@pytest.mark.parametrize(
    "constraints", [gaps, slow(lambda t, q, args: jnp.abs(gaps(t, q, args)) - 0.01)], ids=["disks", "kinks"]
)
def test_many_contacts_give_what_all_of_them_give(constraints, monkeypatch):
    """72 contacts of nine disks on ways of up to ten radii, a third of which lead through another disk
    or turn a normal that acts."""
    rng = np.random.default_rng(0)
    q, shift = rng.uniform(0.2, 1.8, (200, 18)), rng.normal(size=(200, 18)) * rng.uniform(0, 0.3, (200, 1))
    acting = rng.uniform(size=(200, 72)) < rng.choice([0, 0.05, 0.6], (200, 1))
    problem = ji.Problem(lambda t, q, v, args: 0 * q, constraints, jnp.linspace(1.0, 2.0, 18))

    def told():
        one = lambda q, shift, acting: loses_the_gap(
            problem, StepPath(jnp.zeros(()), jnp.ones(()), q, shift, 0.1), acting
        )
        return jax.jit(jax.vmap(one))(q, shift, acting)

    found = told()
    monkeypatch.setattr(tunnelling, "MANY", 100)
    np.testing.assert_array_equal(found, told())
    assert 0.1 < np.mean(found) < 0.9


@pytest.mark.parametrize("execution", [slow("native"), slow("xla")])
def test_way_through_one_of_many_obstacles_is_told_without_impulses(execution):
    """Ten small disks, the second of which a point passes within its second step of .01;
    of few contacts a full step looks."""
    centres = np.stack([np.linspace(-0.15, 5.25, 10), np.zeros(10)], axis=1)
    problem = ji.Problem(
        lambda t, q, v, args: 0 * q, lambda t, q, args: jnp.linalg.norm(q[None] - centres, axis=1) - args, 1.0
    )
    q0, v0 = jnp.array([0.0, 0.01]), jnp.array([30.0, 0.0])
    found = ji.solve(problem, q0, v0, t1=0.05, steps=5, e=1.0, args=0.05, execution=execution, save="final")
    assert ji.Status(int(found.status)) == ji.Status.GAP_UNRESOLVED
    np.testing.assert_allclose([found.failed_at, found.q[-1, 0]], [0.02, 1.5], rtol=1e-12)
