"""Friction beside gaps that are no distances: the normal velocity that ``slip`` may give makes it Coulomb's; without it
the gap counts as a distance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import Status, analysis, bodies, planar
from support.breadth import slow_but

G, ANGLE = 9.81, 0.5
S, C = np.sin(ANGLE), np.cos(ANGLE)
SCHEMES = {
    "moreau-jean": (ji.MoreauJean(), 100),
    "maury": (ji.Maury(), 100),
    "event-corrected": (ji.EventCorrected(), 20),
    "event-driven": (ji.EventDriven(rtol=1e-10, atol=1e-10), 5),
}
# static friction asks a located one
EVERY = pytest.mark.parametrize("name", slow_but(["moreau-jean"], SCHEMES))


def weight(t, q, v, args):
    return jnp.array([0.0, -G])


def along(t, q, v, args):
    return C * v[:1] - S * v[1:]


def whole(t, q, v, args):
    return S * v[:1] + C * v[1:], along(t, q, v, args)


def slope(slip=whole):
    """A block on an incline, whose gap is the height over it times a factor; args are friction and factor."""
    gap = lambda t, q, args: args[1] * (q[1:] + q[0] * np.tan(ANGLE))
    return ji.Problem(weight, gap, slip=slip, friction=lambda args: args[0])


@EVERY
def test_a_block_on_an_incline_whatever_its_gap(name):
    scheme, steps = SCHEMES[name]
    problem = slope()

    @jax.jit
    def speed(mu, factor):
        found = ji.solve(
            problem, [0.0, 0.0], [0.0, 0.0], t1=0.5, args=(mu, factor), scheme=scheme, save="final", steps=steps
        )
        return found.v[-1] @ np.array([C, -S]), found.status

    for factor in (1.0, 2.0, 1e3, 1e-3):
        tangent = lambda mu, factor=factor: jax.jvp(lambda mu: speed(mu, factor), (mu,), (1.0,))
        ((slides, status), (slope_there, _)), ((rests, other), _) = tangent(0.3), tangent(0.6)
        # constant forces: every scheme is exact
        np.testing.assert_allclose([slides, rests], [0.5 * G * (S - 0.3 * C), 0], atol=1e-12)
        np.testing.assert_allclose(slope_there, -0.5 * G * C, rtol=1e-12)
        assert status == other == 0


@pytest.mark.slow
def test_static_friction_is_scaled_too():
    """The block breaks away when the incline's share of a growing pull leaves the cone:
    (g sin + p t) / (g cos) = mu_s."""
    force = lambda t, q, v, args: jnp.stack([args * t * C, -G - args * t * S])
    gap = lambda t, q, args: 5 * (q[1:] + q[0] * np.tan(ANGLE))
    problem = ji.Problem(force, gap, slip=whole, friction=0.3, static_friction=0.8)
    at = (0.8 * C - S) * G / 2.0
    end = lambda pull: (
        ji.solve(
            problem,
            [0.0, 0.0],
            [0.0, 0.0],
            t1=1.5,
            args=pull,
            scheme=ji.EventDriven(rtol=1e-11, atol=1e-11, order=5),
            steps=3,
            save="final",
        ).v[-1]
        @ np.array([C, -S])
    )
    speed, slope = jax.jvp(end, (2.0,), (1.0,))
    exact = lambda p: (
        G * (S - 0.3 * C) * (1.5 - (0.8 * C - S) * G / p) + 0.5 * p * (1.5**2 - ((0.8 * C - S) * G / p) ** 2)
    )
    assert 0.5 < at < 1.5
    np.testing.assert_allclose([speed, slope], [exact(2.0), jax.grad(exact)(2.0)], rtol=1e-9)


def height(x):
    return 0.3 * x**2 * jnp.sin(2 * x) - 0.4 * x


def steepness(x):
    return jnp.sqrt(1 + jax.grad(height)(x) ** 2)


def over_hills(t, q, v, args):
    return ((v[0] + jax.grad(height)(q[0]) * v[1]) / steepness(q[0]))[None]


def of_hills(t, q, v, args):
    return ((v[1] - jax.grad(height)(q[0]) * v[0]) / steepness(q[0]))[None], over_hills(t, q, v, args)


def heights(t, q, args):
    return q[1:] - height(q[0])


def distances(t, q, args):
    return heights(t, q, args) / steepness(q[0])


START = np.array([0.1, float(height(0.1)) + 0.1]), np.array([1.0, -0.3])


@pytest.mark.slow
def test_hills_by_their_height_and_by_the_distance_to_them():
    """One motion through an impact, stated as the height with the whole velocity, and as a distance: states and
    Jacobians to the tolerance."""
    found = []
    for gap, slip in ((heights, of_hills), (distances, over_hills)):
        problem = ji.Problem(weight, gap, slip=slip, friction=lambda args: args)

        def end(mu, problem=problem):
            scheme = ji.EventDriven(rtol=1e-10, atol=1e-10)
            motion = ji.solve(problem, *START, t1=0.7, args=mu, scheme=scheme, steps=5, save="final")
            return jnp.concatenate([motion.q[-1], motion.v[-1]]), motion.status

        (state, status), (slope_there, _) = jax.jvp(end, (0.2,), (1.0,))
        assert status == 0
        found.append((state, slope_there))
    # rtol times the few events of the motion, and the derivative's growth through them
    np.testing.assert_allclose(*(x[0] for x in found), atol=1e-8)
    np.testing.assert_allclose(*(x[1] for x in found), atol=1e-7)


@pytest.mark.parametrize("name", slow_but(["moreau-jean"], SCHEMES))
def test_what_is_seen_to_be_no_distance_is_reported(name):
    scheme, steps = SCHEMES[name]
    off = lambda t, q, v, args: (v[1:], over_hills(t, q, v, args))  # not the velocity of that gap
    statements = {"height": (heights, over_hills)}
    if name == "moreau-jean":
        statements |= {"distance": (distances, over_hills), "another normal": (heights, off)}
    for which, (gap, slip) in statements.items():
        problem = ji.Problem(weight, gap, slip=slip, friction=0.2)
        found = ji.solve(problem, *START, t1=0.7, scheme=scheme, steps=steps)
        assert (Status(int(found.status)) & Status.GAP_NOT_DISTANCE != 0) == (which != "distance"), which
        assert not found.failed
        if which == "distance":
            assert not ji.check_hypotheses(problem, found).failures
        else:
            with pytest.warns(ji.JaximpactWarning, match="takes gaps for distances"):
                ji.check_hypotheses(problem, found)
    # a gap whose gradient never changes is seen at the start, without a contact
    doubled = ji.Problem(weight, lambda t, q, args: 2 * q[1:], slip=lambda t, q, v, args: v[:1], friction=0.2)
    assert (
        ji.solve(doubled, [0.0, 9.0], [0.0, 0.0], t1=0.5, scheme=scheme, steps=steps).status == Status.GAP_NOT_DISTANCE
    )


def test_gaps_of_planar_and_of_round_bodies_are_distances():
    """The rate of a gap at unit normal velocity is one: a gap changes by as much as either body
    is moved along its gradient."""
    parts = [
        planar.Wall("one", point=(0.5, 0.2), at=(0.0, -0.3), normal=(0.2, 1.0), radius=0.05),
        planar.Wall("one", "two", point=(0.5, 0.2), at=(0.8, 0.3), normal=(-1, 0.4), radius=0.05),
    ]
    shapes = {"one": planar.block((0.3, 0.1), 0.4, 0.2, mass=2.0), "two": planar.disk((1.0, 0.5), 0.3, mass=1.5)}
    problem = planar.System(shapes, parts).problem()
    gradients = lambda problem: jax.jit(jax.vmap(jax.jacfwd(lambda q: problem.gaps(0.0, q, None))))
    moved = gradients(problem)(np.random.default_rng(0).normal(size=(5, 6)))[..., :2]
    np.testing.assert_allclose(np.linalg.norm(moved, axis=-1), 1, rtol=1e-12)
    pair = bodies.disks([0.1, 0.2], walls=[None, (0, None)], friction=0.3, inertias="solid", lists=False)
    q = np.array([0.0, 0.1, 0.0, 0.3, 0.2, 0.0])
    for row in np.asarray(gradients(pair)(q[None])).reshape(-1, 2, 3):
        assert np.allclose(np.linalg.norm(row, axis=1)[np.any(row != 0, axis=1)], 1, rtol=1e-12)
    found = ji.solve(pair, q, np.zeros(6), t1=0.1, h=1e-2)
    assert int(found.status) & Status.GAP_NOT_DISTANCE == 0


def test_slips_know_the_scale():
    for mu, mode in ((0.3, analysis.ContactMode.SLIP), (0.6, analysis.ContactMode.STICK)):
        problem, args = slope(), (mu, 1e3)
        found = ji.solve(problem, [0.0, 0.0], [0.0, 0.0], t1=0.5, h=0.05, args=args, scheme=ji.MoreauJean(), save="all")
        assert set(np.unique(found.slips(problem, args=args).modes[2:])) == {mode}


@pytest.mark.parametrize(
    "slip, words",
    [
        (lambda t, q, v, args: (v[1], v[:1]), r"normal velocities of shape \(1,\)"),
        (lambda t, q, v, args: (v[1:], v[:1], v[:1]), "got 3 entries"),
        (lambda t, q, v, args: (v[1:] ** 2, v[:1]), "affine in v"),
    ],
)
def test_what_slip_may_not_return(slip, words):
    with pytest.raises(ValueError, match=words):
        ji.solve(slope(slip), [0.0, 0.0], [0.0, 0.0], t1=0.5, h=0.1, args=(0.3, 1.0))


FRICTIONLESS = ji.Problem(
    lambda t, q, v, args: jnp.stack([args["pull"], -G * jnp.ones(())]),
    lambda t, q, args: q[1:],
    slip=lambda t, q, v, args: v[:1],
    friction=lambda args: args["mu"],
)


@EVERY
def test_without_friction_nothing_sticks(name):
    """mu = 0 and no slip: derivatives by start and push are those of a free body, dq/dv0 = 1 and dq/dF = t^2/2;
    a body that sticks has none."""
    scheme, steps = SCHEMES[name]

    def end(speed, pull, mu):
        start = jnp.stack([speed, jnp.zeros_like(speed)])
        args = {"pull": pull, "mu": mu}
        found = ji.solve(FRICTIONLESS, [0.0, 0.0], start, t1=1.0, args=args, scheme=scheme, save="final", steps=steps)
        return found.q[-1, 0], found.status

    slopes = jax.jit(jax.jacfwd(end, argnums=(0, 1), has_aux=True))
    (by_speed, by_pull), status = slopes(0.0, 0.0, 0.0)
    # Maury's position is late by half a step of a force, h t / 2
    np.testing.assert_allclose([by_speed, by_pull], [1, 0.5], atol=1e-12 + (0.005 if name == "maury" else 0))
    assert status == 0
    (by_speed, by_pull), _ = slopes(0.0, 0.0, 0.3)
    # MoreauJean, which begins with a step of the mean velocity, keeps half a step of the start's
    np.testing.assert_allclose([by_speed, by_pull], 0, atol=1e-12 + (0.005 if name == "moreau-jean" else 0))


@pytest.mark.slow
def test_without_friction_in_sweeps_planar_systems_bodies_and_single_problems():
    pushed = lambda t, q, v, args: jnp.stack([args * jnp.ones(()), -G * jnp.ones(())])
    block = ji.Problem(pushed, lambda t, q, args: q[1:], slip=lambda t, q, v, args: v[:1], friction=0.0)
    swept = ji.sensitivities(
        block, [0.0, 0.0], [0.0, 0.0], t1=1.0, h=1e-2, args=0.0, wrt="args", friction=np.array([0.0, 0.3])
    )
    np.testing.assert_allclose(swept.jacobian["q"]["args"][:, 0], [0.5, 0], atol=1e-12)
    parts = [
        planar.Wall("b", point=(0, 0), at=(0, 0), normal=(0, 1)),
        planar.Wall("b", point=(0, 0), at=(5, 0), normal=(-1, 0), friction=0.5),
        planar.Force("b", at=(0, 0), force=lambda t, args: (args, 0.0)),
    ]
    system = planar.System({"b": planar.block((0, 0), 0.2, 0.2, mass=1.0)}, parts, gravity=G)
    problem, (q0, v0) = system.problem(), system.start(args=0.0)
    end = lambda push: ji.solve(problem, q0, v0, t1=1.0, h=1e-2, args=push).q[-1, 0]
    np.testing.assert_allclose(jax.grad(end)(0.0), 0.5, atol=1e-12)
    disk = bodies.disks(
        [0.1],
        walls=[None, (0, None)],
        force=lambda t, q, v, args: jnp.stack([args, -G, 0.0]),
        friction=0.0,
        inertias="solid",
    )
    end = lambda push: ji.solve(disk, [0, 0.1, 0], [0.0, 0, 0], t1=1.0, h=1e-2, args=push).q[-1, 0]
    np.testing.assert_allclose(jax.grad(end)(0.0), 0.5, atol=1e-12)
    by_offset = jax.jacfwd(lambda b: ji.extend.solve_contact(jnp.eye(2), b, 0.0).velocity)(jnp.array([[-1.0, 0.0]]))
    np.testing.assert_allclose(by_offset.reshape(2, 2), [[0, 0], [0, 1]], atol=1e-14)
