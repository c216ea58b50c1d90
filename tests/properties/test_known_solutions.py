"""Analyses of a motion that is known: within a transformation of jax, at rest, and right to round-off."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import analysis
from support.breadth import slow

BALL = ji.Problem(lambda t, q, v, args: jnp.array([-9.81]), lambda t, q, args: q - args, restitution=0.5)


def test_impacts_of_a_known_motion_are_known_under_transformations():
    solution = ji.solve(BALL, [1.0], [0.0], t1=0.6, h=0.01, args=0.0)
    times = analysis.impacts(BALL, solution, args=0.0).t
    found = []

    def function(x):
        found.append(analysis.impacts(BALL, solution, args=0.0).t)
        return x * 2

    for call in (jax.jit(function), jax.grad(function), jax.jit(jax.vmap(function))):
        call(jnp.ones(3) if len(found) == 2 else 1.0)
    assert len(found) == 3
    for one in found:
        np.testing.assert_array_equal(one, times)


def test_an_analysis_of_what_is_traced_says_so():
    solution = ji.solve(BALL, [1.0], [0.0], t1=0.6, h=0.01, args=0.0)
    with pytest.raises(TypeError, match="impacts needs known numbers"):
        jax.jit(lambda wall: analysis.impacts(BALL, solution, args=wall).t)(0.0)


@pytest.mark.parametrize(
    ("dtype", "unit"),
    [
        (np.float32, 1e-12),
        (np.float64, 1000000000000.0),
        slow(np.float64, 1e-12),
        slow(np.float32, 1000000000000.0),
        slow(np.float32, 1.0),
        slow(np.float64, 1.0),
    ],
)
def test_a_body_at_rest_penetrates_by_round_off_alone(dtype, unit):
    wall = np.asarray(0.7 * unit, dtype)
    under = ji.Problem(lambda t, q, v, args: jnp.full(1, -9.81 * unit, q.dtype), lambda t, q, args: q - args)
    solution = ji.solve(under, np.array([wall]), np.zeros(1, dtype), t1=1.0, h=0.01, args=wall)
    # positions that rounding moves by some units in the last place, up and down
    up = (np.where(np.arange(101) % 2, 4, -4)[:, None] * np.finfo(dtype).eps * unit).astype(dtype)
    sunk = np.asarray(solution.q) + up
    solution = ji.Solution(**(vars(solution) | {"q": sunk, "penetration": np.max(wall - sunk)}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert analysis.check_hypotheses(under, solution, args=wall).failures == ()


def test_errors_at_round_off_have_no_order():
    # a rod that lies on two contacts: exact, up to 1e-17 which falls with h
    rod = ji.Problem(
        lambda t, q, v, args: jnp.array([-9.81, 0.0]),
        lambda t, q, args: q[0] + jnp.array([-0.5, 0.5]) * jnp.sin(q[1]) - 0.3,
        mass=np.array([1, 1 / 12]),
    )
    exact = lambda t: (np.stack([0 * t + 0.3, 0 * t], 1), np.zeros((len(t), 2)))
    found = ji.convergence(
        rod, [0.3, 0.0], [0.0, 0.0], t1=1.0, steps=(101, 211), scheme=ji.EventCorrected(), exact=exact
    )
    assert np.all(np.isnan([found.orders()["position"], found.orders()["velocity"]]))
    assert "at round-off" in found.table()
