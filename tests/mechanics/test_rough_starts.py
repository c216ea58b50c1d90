"""Derivatives of motions that start on walls with friction, against motions that start beside them and fall back."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import Status
from support.breadth import slow

D, T1 = 4, 0.05
DRIVEN = ji.EventDriven(1e-12, 1e-14)


def gaps(t, q, args):
    return args["normal"] @ q + 0.5 * jnp.einsum("mij,i,j->m", args["bent"], q, q)


def slip(t, q, v, args):
    along = jnp.einsum("mkd,d->mk", args["tangent"] + jnp.einsum("mkde,e->mkd", args["turn"], q), v)
    return along[:, 0] if along.shape[1] == 1 else along


def friction(speed, args):
    """Of the speed of slip where ``weaker`` is not zero."""
    return args["mu"] * (1 - args["weaker"] * (1 - jnp.exp(-2 * jnp.abs(speed))))


def system(seed: int, m: int, k: int, slips: bool, weaker: float):
    """Start, data, and a direction in data that opens all gaps; curved walls, a full mass, forces of the velocity."""
    rng = np.random.default_rng([seed, m, k])
    normal, tangent, a = rng.normal(size=(m, D)), 0.7 * rng.normal(size=(m, k, D)), 0.2 * rng.normal(size=(D, D))
    bent, mu, load = 0.3 * rng.normal(size=(m, D, D)), rng.uniform(0.1, 0.4, m), rng.uniform(5, 15, m)
    rubs = rng.uniform(-0.7, 0.7, (m, k)) * mu[:, None] / np.sqrt(k) * (not slips)
    args = {
        "normal": normal, "tangent": tangent, "bent": bent + bent.transpose(0, 2, 1), "mu": mu, "weaker": weaker,
        "turn": 0.2 * rng.normal(size=(m, k, D, D)), "damping": 0.3 * rng.random((D, D)), "mass": np.eye(D) + a @ a.T,
        "force": -load @ normal - np.einsum("m,mk,mkd->d", load, rubs, tangent),
    }  # fmt: skip
    held = normal if slips else np.concatenate([normal, tangent.reshape(m * k, D)])
    v0, opens, other = rng.normal(size=D), np.linalg.pinv(normal) @ rng.uniform(0.5, 1.5, m), rng.normal(size=(2, D))
    v0 -= np.linalg.pinv(held) @ (held @ v0)
    opens += other[0] - np.linalg.pinv(normal) @ (normal @ other[0])
    return v0, args, np.concatenate([opens, other[1]])


def problem(k: int, of_speed: bool) -> ji.Problem:
    rubs = friction if of_speed else lambda args: args["mu"]
    force = lambda t, q, v, args: args["force"] - args["damping"] @ v
    return ji.Problem(force, gaps, lambda q, args: args["mass"], slip=slip, friction=rubs)


def along(found: ji.Sensitivities, ways: np.ndarray) -> np.ndarray:
    """Derivatives (B, 2D) along the directions (B, 2D)."""
    rows = [np.concatenate([found.jacobian[x][of] for of in ("q0", "v0")], axis=2) for x in ("q", "v")]
    return np.einsum("bij,bj->bi", np.concatenate(rows, axis=1), ways)


def check(k: int, of_speed: bool, kinds, eps: float) -> np.ndarray:
    """Checks trusted derivatives of systems ``kinds`` (seed, contacts, slips, share of friction that speed takes,
    restitution); returns which are trusted."""
    found = [system(seed, m, k, slips, weaker) for seed, m, slips, weaker, _ in kinds]
    v0, ways, e = np.array([x[0] for x in found]), np.array([x[2] for x in found]), np.array([x[-1] for x in kinds])
    args = {name: np.stack([x[1][name] for x in found]) for name in found[0][1]}
    options = {"args": args, "args_axes": 0, "e": e[:, None], "t1": T1, "steps": 1, "scheme": DRIVEN}
    of = problem(k, of_speed)

    def end(size: float) -> np.ndarray:
        run = ji.ensemble(of, size * ways[:, :D], v0 + size * ways[:, D:], save="final", **options)
        return np.concatenate([run.q[:, -1], run.v[:, -1]], axis=1)

    given = ji.sensitivities(of, 0 * v0, v0, **options)
    # a motion from a gap of eps falls back in a time of its root: the terms are D eps + C eps^1.5 + ...
    at = end(0.0)
    right = (8 * (end(eps / 4) - at) - (end(eps) - at)) / eps
    errors = np.max(np.abs(along(given, ways) - right), axis=1) / (1 + np.max(np.abs(right), axis=1))
    # terms of eps^2, with factors up to some hundreds after bounces between walls, and the rounding 1e-14 / eps
    assert np.all(errors[given.trusted] < 1e3 * eps), list(zip(kinds, errors, given.trusted, strict=True))
    assert np.all(given.status[~given.trusted] & int(Status.DERIVATIVE_EVENTS | Status.DERIVATIVE_JUMP))
    return given.trusted


def test_a_start_on_a_rough_wall():
    """Slip with and without restitution, with a coefficient of the speed; rest without restitution. Bounces of a
    contact at rest, each of which takes its slip, are told."""
    slips = [(seed, 1, True, weaker, e) for seed in range(3) for weaker in (0.0, 0.4) for e in (0.0, 0.5)]
    rests = [(seed, 1, False, 0.0, e) for seed in range(4) for e in (0.0, 0.5)]
    trusted = check(1, True, slips + rests, 1e-6)
    assert np.all(trusted[: len(slips)]) and trusted[len(slips) :].tolist() == [True, False] * 4


@pytest.mark.slow
def test_a_start_on_a_rough_wall_in_space():
    slips = [(seed, 1, True, weaker, e) for seed in range(6) for weaker in (0.0, 0.4) for e in (0.0, 0.5)]
    rests = [(seed, 1, False, 0.0, 0.0) for seed in range(6)]
    assert np.mean(check(2, True, slips + rests, 1e-5)) > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("of_speed", [False, True])
def test_a_start_on_two_rough_walls(of_speed):
    """In the plane friction is a part of the normal force, whichever wall is met first. Where it depends on the speed,
    or a contact rests, that matters, and is told."""
    slips, rests = ([(seed, 2, slips, 0.3, e) for seed in range(6) for e in (0.0, 0.3)] for slips in (True, False))
    trusted = check(1, of_speed, slips + rests, 3e-7)
    assert np.mean(trusted[:12]) == (not of_speed) and not np.any(trusted[12:])


INCLINE = ji.Problem(
    lambda t, q, v, args: args,
    lambda t, q, args: q[1:],
    slip=lambda t, q, v, args: v[:1],
    restitution=0.0,
    friction=0.5,
)


@pytest.mark.parametrize(
    ("scheme", "steps", "tolerance"),
    [slow(DRIVEN, 1, 1e-10), slow(ji.EventCorrected(), 50, 1e-10), (ji.MoreauJean(), 500, 1e-3)],
    ids=lambda x: type(x).__name__,
)
def test_a_start_on_a_rough_incline(scheme, steps, tolerance):
    """From beside it a block at rest falls along the force, and one that slips keeps mu times what its fall takes; one
    that begins to slip from rest has no derivative by a velocity, which stops first if it goes upwards. By the order
    of each scheme."""
    force = np.array([[2.0, -8.0], [2.0, -8.0], [5.0, -8.0]])
    options = {"t1": 0.25, "steps": steps, "scheme": scheme, "args": force, "args_axes": 0}
    found = ji.sensitivities(INCLINE, np.zeros((3, 2)), [[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]], **options)
    assert found.trusted.tolist() == [True, True, False]
    np.testing.assert_allclose(found.jacobian["q"]["q0"][:2, 0], [[1, 0.25], [1, 0.5]], rtol=0, atol=tolerance)
    np.testing.assert_allclose(found.jacobian["v"]["v0"][:2, 0], [[0, 0], [1, 0.5]], rtol=0, atol=tolerance)
    # by what does not move the start there is one
    by_force = ji.sensitivities(INCLINE, np.zeros((3, 2)), np.zeros((3, 2)), **options, wrt="args")
    assert np.all(by_force.trusted)
    np.testing.assert_allclose(by_force.jacobian["v"]["args"][2, 0], [0.25, 0.125], rtol=0, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("friction", [None, 0.3])
def test_bodies_on_a_list_that_start_on_a_floor(friction):
    """Disks that slide: without friction the floor takes their heights, exactly; with friction that is told."""
    radius, count = 0.1, 10
    disks = ji.bodies.disks(np.full(count, radius), walls=[None, (0, None)], gravity=(0.5, -9.81), friction=friction)
    q0 = np.stack([0.5 * np.arange(count), np.full(count, radius)], axis=1).ravel()
    v0 = np.tile([1.0, 0.0], count)
    found = ji.sensitivities(disks, q0, v0, t1=0.1, steps=20, scheme=ji.MoreauJean(), wrt="q0")
    assert found.trusted == (friction is None)
    if friction is None:
        np.testing.assert_allclose(found.jacobian["q"]["q0"], np.diag(np.tile([1.0, 0.0], count)), rtol=0, atol=1e-12)
    else:
        assert found.status == Status.DERIVATIVE_EVENTS
