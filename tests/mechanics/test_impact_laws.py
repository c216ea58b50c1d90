"""Laws of impact: Newton's and Poisson's by all schemes that ask for one,
against the two stages written out in numpy."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from support.breadth import slow_but

LOCATED = [ji.EventDriven(order=5), ji.EventCorrected()]
SCHEMES = [*LOCATED, ji.MoreauJean()]
G = 9.81
MASS = np.array([1.0, 1.0, 1 / 3])
# a rod of length 2 whose lower end meets the floor; q is its centre and its angle
ROD = ji.Problem(
    lambda t, q, v, args: jnp.zeros(3),
    lambda t, q, args: q[1:2] - jnp.sin(q[2:]),
    MASS,
    slip=lambda t, q, v, args: v[:1] + jnp.sin(q[2:]) * v[2:],
    friction=lambda args: args["mu"],
    impact_law="poisson",
)


def stage(matrix, velocity, mu, least):
    """Impulses (normal, tangential) of one contact with normal impulse n >= least, by trial of every mode."""
    (a, b), (_, c) = matrix
    found = []
    for opens, way in itertools.product((True, False), (0, 1, -1)):
        # what each mode states of (n, t): n is the least or the gap does not move; the slip is zero or |t| = mu n
        normal = ([1, 0], least) if opens else ([a, b], -velocity[0])
        along = ([b, c], -velocity[1]) if way == 0 else ([way * mu, 1], 0)
        x = np.linalg.solve(*map(np.array, zip(normal, along, strict=True)))
        w = velocity + matrix @ x
        holds = x[0] >= least - 1e-12 and w[0] >= -1e-12 and abs(x[1]) <= mu * x[0] + 1e-12
        if holds and (way == 0 or way * w[1] >= -1e-12):
            found.append(x)
    return found[0]


def after_impact(q, v, e, mu):
    """Velocity of the rod behind an impact of its end by Poisson's law, and that behind the compression alone."""
    rows = np.array([[0, 1, -np.cos(q[2])], [1, 0, np.sin(q[2])]])
    matrix, response = rows @ np.diag(1 / MASS) @ rows.T, np.diag(1 / MASS) @ rows.T
    first = stage(matrix, rows @ v, mu, 0.0)
    middle = v + response @ first
    return middle + response @ stage(matrix, rows @ middle, mu, e * first[0])


def random_rods(lanes):
    """Angles, velocities, restitution and friction of rods whose lower ends fall at 1 m/s at least."""
    rng = np.random.default_rng(1)
    angle = rng.uniform(0.05, 3.09, lanes)
    v0 = rng.normal(size=(lanes, 3)) * [2, 1, 2]
    v0[:, 1] -= np.maximum(0, v0[:, 1] - np.cos(angle) * v0[:, 2]) + 1
    # the end meets the floor after .01 s
    q0 = np.stack([0 * angle, np.sin(angle), angle], axis=1)
    return q0, v0, rng.choice([0.3, 0.5, 0.9, 1.0], lanes), rng.uniform(0, 1.2, lanes)


@pytest.mark.parametrize("scheme", slow_but(SCHEMES[2:], SCHEMES), ids=lambda x: type(x).__name__)
def test_one_contact_without_friction_has_newtons_law(scheme):
    """A ball that bounces twice: both laws give e times the speed, in value and derivative;
    steps of first order agree to first order."""
    ball = ji.Problem(lambda t, q, v, args: jnp.full(1, -G), lambda t, q, args: q, restitution=0.8)
    poisson = ball.replace(impact_law="poisson")
    found = [
        ji.sensitivities(problem, [1.0], [0.0], t1=1.2, h=1e-3, scheme=scheme, wrt="q0") for problem in (ball, poisson)
    ]
    found = [np.array([x.value["q"][0], x.jacobian["q"]["q0"][0, 0]]) for x in found]
    # steps of first order: errors of both laws up to 12 h, on either side
    assert np.allclose(*found, rtol=0, atol=0.024 if isinstance(scheme, ji.MoreauJean) else 1e-13)


@pytest.mark.parametrize("scheme", slow_but(SCHEMES[2:], SCHEMES), ids=lambda x: type(x).__name__)
def test_impacts_with_friction_are_those_of_two_stages(scheme):
    """The end of a rod strikes a rough floor (Kane): velocities of the two stages, by which no energy is gained; by
    Newton's law some rods gain it."""
    q0, v0, e, mu = random_rods(400)
    h = 1e-7
    start = q0 - 0.3 * h * v0
    run = lambda problem: ji.ensemble(
        problem, start, v0, t1=h, h=h, args={"mu": mu}, args_axes=0, e=e[:, None], scheme=scheme, save="final"
    )
    found = run(ROD)
    expected = np.array([after_impact(*lane) for lane in zip(q0, v0, e, mu, strict=True)])
    # angles change by h times rates of up to 20; solvers are right to 1e-9 of the velocities
    assert np.allclose(found.v[:, -1], expected, rtol=0, atol=1e-5)
    assert not np.any(found.status & ji.Status.ENERGY_GAINED)
    kinetic = lambda v: v**2 @ MASS / 2
    assert np.all(kinetic(found.v[:, -1]) <= kinetic(v0) * (1 + 1e-6))
    newton = run(ROD.replace(impact_law="newton"))
    assert np.sum(newton.status & ji.Status.ENERGY_GAINED != 0) > 5


@pytest.mark.parametrize("scheme", slow_but(LOCATED[:1], SCHEMES), ids=lambda x: type(x).__name__)
def test_derivatives_across_an_impact_of_two_stages(scheme):
    """The Jacobian across an impact with friction is that of the two stages and of the time of the impact, by
    differences of the reference."""
    q0, v0, e, mu = (x[:40] for x in random_rods(40))
    q0, t1 = q0 - 0.01 * v0, 0.02

    def reference(q, v, e, mu):
        t = 0.01
        for _ in range(30):  # Newton's method for the time of the impact
            at = q + t * v
            t -= (at[1] - np.sin(at[2])) / (v[1] - np.cos(at[2]) * v[2])
        after = after_impact(q + t * v, v, e, mu)
        return np.concatenate([q + t * v + (t1 - t) * after, after])

    steps = 4 if scheme.traits.order is None else 2000
    found = ji.sensitivities(
        ROD, q0, v0, t1=t1, steps=steps, args={"mu": mu}, args_axes=0, e=e[:, None], scheme=scheme, wrt=("q0", "v0")
    )
    looked_at = found.trusted & (found.status == 0)
    assert np.sum(looked_at) >= 20
    for lane in np.flatnonzero(looked_at):
        x, of = np.concatenate([q0[lane], v0[lane]]), lambda x, k=lane: reference(x[:3], x[3:], e[k], mu[k])
        expected = np.stack([(of(x + dx) - of(x - dx)) / 2e-6 for dx in 1e-6 * np.eye(6)], axis=1)
        state = np.concatenate([found.value[row][lane] for row in "qv"])
        np.testing.assert_allclose(state, of(x), rtol=0, atol=1e-3 if isinstance(scheme, ji.MoreauJean) else 1e-7)
        own = np.block([[found.jacobian[row][column][lane] for column in ("q0", "v0")] for row in "qv"])
        error = np.max(np.abs(own - expected)) / np.max(np.abs(expected))
        # differences: 1e-9 by their step, more where the slip nearly stops; steps of first order: 10 h
        assert error < (0.01 if isinstance(scheme, ji.MoreauJean) else 1e-6), (lane, error)


# a block of width 2 and height 2 about its centre, whose corners meet the floor; no friction, no gravity
BLOCK = ji.Problem(
    lambda t, q, v, args: jnp.zeros(2),
    lambda t, q, args: q[0] + jnp.array([1.0, -1.0]) * q[1],
    np.array([1.0, 2 / 3]),
    impact_law="poisson",
)


@pytest.mark.parametrize("scheme", slow_but(LOCATED[1:], SCHEMES), ids=lambda x: type(x).__name__)
def test_a_corner_that_another_presses_rebounds(scheme):
    """A block stands on one corner and the other strikes: Newton's law leaves the first at rest or lets it go,
    Poisson's gives it back what pressed it."""
    e, v0 = np.array([0.5, 0.8]), np.array([-1.0, -1.0])
    rows, inverse = np.array([[1.0, 1.0], [1.0, -1.0]]), np.diag([1.0, 1.5])
    compression = np.linalg.solve(rows @ inverse @ rows.T, -rows @ v0)
    expected = v0 + inverse @ rows.T @ (compression * (1 + e))
    assert np.min(compression) > 0 and np.min(rows @ expected) > 0
    found = ji.solve(BLOCK, [0.001, 0.001], v0, t1=0.01, steps=200, e=e, scheme=scheme, save="final")
    # solvers are right to rounding for two contacts
    assert np.allclose(found.v[-1], expected, rtol=0, atol=1e-12)


class Sticky(ji.extend.ImpactLaw):
    """A law of one's own: nothing rebounds whose impact is slower than .5 m/s."""

    def velocity(self, e, before):
        return jnp.where(before < -0.5, e * before, 0)


def test_a_law_of_ones_own_and_what_is_refused():
    ball = ji.Problem(lambda t, q, v, args: jnp.zeros(1), lambda t, q, args: q, restitution=0.5, impact_law=Sticky())
    run = lambda v0, scheme: ji.solve(ball, [0.1], [v0], t1=1.0, steps=10, scheme=scheme, save="final").v[-1, 0]
    for scheme in SCHEMES:
        assert np.allclose([run(-1.0, scheme), run(-0.4, scheme)], [0.5, 0], rtol=0, atol=1e-12)
    assert "Sticky" in repr(ball) and "impact_law" not in repr(ball.replace(impact_law="newton"))
    with pytest.raises(ValueError, match=r"PaoliSchatzman.*Newton's law"):
        run(-1.0, ji.PaoliSchatzman())
    with pytest.raises(ValueError, match=r"'newton' or 'poisson', or an extend.ImpactLaw, got 'stronge'"):
        ball.replace(impact_law="stronge")
    with pytest.raises(TypeError, match="got the class PoissonImpact"):
        ball.replace(impact_law=ji.extend.PoissonImpact)
    disks = ji.bodies.disks(np.full(3, 0.1), friction=0.2, inertias=0.01, lists=True)
    with pytest.raises(ValueError, match="friction of listed bodies"):
        ji.MoreauJean().check(disks.replace(impact_law="poisson"), 0.5, 3)
