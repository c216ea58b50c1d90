"""Random systems through one impact: corrected derivatives against the event-driven reference, to O(h).

The family is that of `random_systems`, all walls curved and moving. A case is drawn at its impact, from where the
motion is followed back to its start; so every case has an impact, and a normal speed that is not small.

The error is O(h (1 + |f''|/|f'-|)) with a factor of its own for every case: an impact is placed within its step, and
the acceleration changes by O(1) there. |f''|/|f'-| is at most 10 here, as 20 h |f''| <= |f'-| at the coarser h.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.flatten_util import ravel_pytree

import jaximpact as ji
from support.experiments.conformance import reference, relative_error
from support.random_systems import PROBLEM, force, gaps, mass

T1 = 1.0
STEPS = 200, 800
MARGIN = 0.05  # of the motion, free of impacts at both ends
# 20 h |f''| <= |f'-| bounds |f''|/|f'-| by 10, so h (1 + |f''|/|f'-|) by 0.014 at the finer h: ten times that
BOUND = 0.15


class Kinematics(NamedTuple):
    """Gaps f (m,), their rates f', accelerations f'' without contact forces, gradients G (m, d), M^-1 G' (d, m),
    Delassus matrix (m, m) and acceleration without contact forces (d,)."""

    gap: np.ndarray
    rate: np.ndarray
    second: np.ndarray
    gradient: np.ndarray
    response: np.ndarray
    delassus: np.ndarray
    free: np.ndarray


def _kinematics(args, t, q, v):
    rate = lambda t, q, v: jax.jvp(lambda t, q: gaps(t, q, args), (t, q), (jnp.ones_like(t), v))
    gradient = jax.jacfwd(lambda q: gaps(t, q, args))(q)
    inverse = jnp.linalg.inv(mass(q, args))
    free = inverse @ force(t, q, v, args)
    (gap, speed), (_, second) = jax.jvp(rate, (t, q, v), (jnp.ones_like(t), v, free))
    response = inverse @ gradient.T
    return Kinematics(gap, speed, second, gradient, response, gradient @ response, free)


@jax.jit
def kinematics(args, t, q, v):
    return _kinematics(args, t, q, v)


@jax.jit
def back_to_start(args, t, q, v, held):
    """State at 0 of the motion through (t, q, v) with the constraints of a mask held; RK4 in 100 steps."""
    h = -t / 100

    def slope(t, x):
        q, v = x
        k = _kinematics(args, t, q, v)
        both = held[:, None] & held[None, :]
        multiplier = jnp.linalg.solve(jnp.where(both, k.delassus, jnp.eye(held.size)), jnp.where(held, -k.second, 0))
        return jnp.stack([v, k.free + k.response @ multiplier])

    def step(k, x):
        s = t + k * h
        a = slope(s, x)
        b = slope(s + h / 2, x + h / 2 * a)
        c = slope(s + h / 2, x + h / 2 * b)
        return x + h / 6 * (a + 2 * b + 2 * c + slope(s + h, x + h * c))

    return lax.fori_loop(0, 100, step, jnp.stack([q, v]))


@jax.jit
def settled(args, q, v, touched):
    """The start projected onto the constraints of a mask, in the kinetic metric, so that a perturbed start stays in contact."""
    for _ in range(2):
        k = _kinematics(args, 0.0, q, v)
        q = q - k.response @ jnp.where(touched, k.gap / jnp.diagonal(k.delassus), 0)
    k = _kinematics(args, 0.0, q, v)
    return q, v - k.response @ jnp.where(touched, k.rate / jnp.diagonal(k.delassus), 0)


class Case(NamedTuple):
    """Data of one motion, its exact Jacobian (2d, p) in the order of `ravel_pytree`, the constraints touched at the
    start (m,) and |f''|/|f'-|."""

    q0: np.ndarray
    v0: np.ndarray
    e: np.ndarray
    args: dict
    jacobian: np.ndarray
    touched: np.ndarray
    stiffness: float


def draw(seed: int, e: float, d: int, second: str) -> Case:
    """The case of a seed, if it has one transversal impact. ``second``: "none", "far" or "touched", of constraint 2."""
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal
    m, root = (1 if second == "none" else 2), np.sqrt(d)
    args = {
        "spread": 0.7 * normal((d, d)) / root,
        "bend": np.asarray(0.5),
        "lean": rng.uniform(-np.pi, np.pi, d),
        "push": normal(d),
        "stiff": normal((d, d)) / root,
        "damp": 0.5 * normal((d, d)) / root,
        "drag": 0.3 * normal(d),
        "drive": normal(d),
        "offset": np.zeros(m),
        "normal": normal((m, d)) / root,
        "swell": rng.uniform(0.1, 0.4, m),
        "wave": normal((m, d)),
        "rate": rng.uniform(-2, 2, m),
    }
    hit, speed, q = rng.uniform(0.3, 0.7), rng.uniform(0.7, 2), 0.5 * normal(d)
    touched = np.array([False, second == "touched"])[:m]
    set_speed = touched | (np.arange(m) == 0)

    def moving(t, q, v, rate):
        """The velocity nearest to v in the kinetic metric with given gap rates of the constraints that matter."""
        k, (s,) = kinematics(args, t, q, v), np.nonzero(~np.isnan(rate))
        return v + np.asarray(k.response)[:, s] @ np.linalg.solve(
            np.asarray(k.delassus)[np.ix_(s, s)], (rate - k.rate)[s]
        )

    k = kinematics(args, hit, q, np.zeros(d))
    assume(abs(k.gradient[0]).max() > 0.2)
    if second == "touched":
        args["push"] = args["push"] - 6 * np.asarray(k.gradient)[1] / np.linalg.norm(k.gradient[1])
    args["offset"] = np.where(np.arange(m) == 1, 3.0 * (second == "far"), 0.0) - k.gap
    v = moving(hit, q, 0.5 * normal(d), np.where(set_speed, [-speed, 0.0][:m], np.nan))
    before = kinematics(args, hit, q, v)
    q0, v0 = np.asarray(back_to_start(args, hit, q, v, touched))
    assume(np.all(np.abs([q0, v0]) < 10))
    if second == "touched":  # to round-off
        q0, v0 = (np.asarray(x) for x in settled(args, q0, v0, touched))

    start = kinematics(args, 0.0, q0, v0)
    assume(np.all((start.gap > MARGIN) | touched))
    assume(np.all((start.second < 0) | ~touched))  # pressed, so that it lasts
    try:
        exact = reference(PROBLEM, q0, v0, T1, args, e, most_impacts=1)
    except RuntimeError:  # further impacts
        assume(False)
    assume([impact.constraint for impact in exact.impacts] == [0])
    end = kinematics(args, T1, exact.q, exact.v)
    soon = end.gap + MARGIN * end.rate + MARGIN**2 / 2 * np.minimum(end.second, 0)
    opened = np.array([i not in exact.closed for i in range(m)])
    assume(not np.any((soon < 0) & opened))
    speed = exact.impacts[0].speed
    stiffness = float(abs(before.second[0])) / speed
    assume(20 * T1 / STEPS[0] * stiffness <= 1)
    jacobian = np.hstack([exact.jacobian[name] for name in ("q0", "v0", "e", *sorted(args))])
    assume(np.max(np.abs(jacobian)) < 30)
    return Case(q0, v0, np.asarray(e), args, jacobian, touched, stiffness)


# the computation


@cache
def compiled(scheme, d: int, m: int, steps: int):
    """(theta, touched) -> Jacobian (2d, p) of the state at T1, and whether the motion failed."""
    like = {"spread": (d, d), "bend": (), "lean": d, "push": d, "stiff": (d, d), "damp": (d, d), "drag": d, "drive": d}
    like |= {"offset": m, "normal": (m, d), "swell": m, "wave": (m, d), "rate": m}
    _, unravel = ravel_pytree((np.zeros(d), np.zeros(d), np.zeros(()), {k: np.zeros(s) for k, s in like.items()}))

    def end(theta, touched):
        q0, v0, e, args = unravel(theta)
        q0, v0 = settled(args, q0, v0, touched)
        s = ji.solve(PROBLEM, q0, v0, t1=T1, steps=steps, e=e, args=args, scheme=scheme, save="final")
        return jnp.concatenate([s.q[-1], s.v[-1]]), s.failed

    return jax.jacfwd(end, has_aux=True)  # which compiles the steps once for every number of them


def measure(scheme, case: Case) -> list[float]:
    """Relative errors of the Jacobian at both numbers of steps."""
    theta, _ = ravel_pytree(tuple(case[:4]))
    errors = []
    for steps in STEPS:
        jacobian, failed = compiled(scheme, case.q0.size, case.args["offset"].size, steps)(theta, case.touched)
        assert not failed
        # at e = 0 a contact struck while another is closed has no derivative by e: with e > 0 both may bounce
        kink = [2 * case.q0.size] if case.e == 0 and np.any(case.touched) else []
        errors.append(relative_error(np.delete(jacobian, kink, 1), np.delete(case.jacobian, kink, 1)))
    return errors


def check(d: int, second: list[str], count: int, schemes: tuple):
    """Draw ``count`` cases; every error at the finer step stays below BOUND, and the median falls with h."""
    found = []

    # the same cases in every run, and no search for smaller ones: a seed is as good as any other
    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        seed=st.integers(0, 2**32 - 1),
        e=st.one_of(st.just(0.0), st.floats(0.02, 1.0), st.floats(0.3, 1.0)),
        second=st.sampled_from(second),
    )
    def one(seed, e, second):
        # lasting contact with e near 1 chatters, and no derivative follows that: documented, not covered
        assume(second != "touched" or e <= 0.9)
        case = draw(seed, e, d, second)
        for scheme in schemes:
            if e == 0 or not isinstance(scheme, ji.Maury):
                errors = measure(scheme, case)
                label = f"{type(scheme).__name__} d={d} seed={seed} e={e!r} second={second!r} |f''|/|f'|={case.stiffness:.3g}"
                found.append((label, errors))
                assert errors[1] <= BOUND, f"{label}: errors {errors} with {STEPS} steps"

    one()
    errors = np.array([pair for _, pair in found])
    worst, pair = max(found, key=lambda entry: entry[1][1])
    ratio = np.median(errors[:, 1] / errors[:, 0])
    summary = (
        f"{len(found)} Jacobians, median errors {np.median(errors, axis=0)}, ratio {ratio:.3f}; worst {pair}: {worst}"
    )
    print(summary)
    assert len(found) >= count, summary
    assert ratio <= 0.5, summary  # first order: 1/4 for a quarter of h, spread by the impact's phase within its step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("d", "scheme"),
    [(1, ji.MoreauJean()), (2, ji.PaoliSchatzman())],
    ids=["d1", "d2"],
)
def test_random_impacts(d, scheme):
    check(d, ["none"], 3, (scheme,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("d", "second", "count"),
    [
        pytest.param(1, ["none"], 70, id="d1"),
        pytest.param(2, ["none"], 50, id="d2"),
        pytest.param(2, ["far"], 20, id="d2-second-far"),
        pytest.param(2, ["touched"], 20, id="d2-second-touched"),
        pytest.param(3, ["none"], 30, id="d3"),
        pytest.param(4, ["none"], 20, id="d4"),
    ],
)
def test_many_random_impacts(d, second, count):
    check(d, second, count, (ji.PaoliSchatzman(), ji.MoreauJean(), ji.Maury()))
