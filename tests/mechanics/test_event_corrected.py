"""`EventCorrected`: second order in position, velocity and derivative, against closed forms and exact Jacobians.

A median over four neighbouring step counts stands for the error at one h: it depends on where in its step an impact
falls. Where force and walls make the path piecewise a polynomial of degree three, the scheme is exact up to round-off.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import Status, catalogue
from support.breadth import slow, slow_but
from support.spring import ONCE, SPRING, TIMES, once, struck

SCHEME = ji.EventCorrected()
PHASES = np.array([0, 1, 3, 7])

fall = lambda t, q, v, args: jnp.full_like(q, -args["g"])
BALL = ji.Problem(fall, lambda t, q, args: q, energy=lambda t, q, v, args: 0.5 * v @ v + args["g"] * q[0])


def final(problem, q0, v0, **options):
    options = {"scheme": SCHEME, "save": "final", **options}
    return ji.solve(problem, q0, v0, **options)


# values and derivatives against closed forms


@pytest.mark.slow  # by default `test_restitution.py` asserts the order of a spring's states and derivatives
def test_oscillator_against_a_wall_is_second_order():
    x, t1, errors = jnp.array([1.0, 0.0, 0.8, 2.0, 0.3]), 1.7, []
    state, jacobian = map(np.asarray, (struck(x, t1), jax.jit(jax.jacfwd(lambda x: struck(x, t1)))(x)))
    assert state[0] > 0.3  # one impact
    for h in (2e-2, 2e-3):
        call = {"t1": t1, "h": t1 / (round(t1 / h) + PHASES), "wrt": ("q0", "v0", "e", "args"), "scheme": SCHEME}
        found = ji.sensitivities(SPRING, [1.0], [0.0], **ONCE | call)
        states = np.concatenate([found.value[x] for x in "qv"], axis=1)
        columns = [[part["q0"], part["v0"], part["e"], *part["args"].values()] for part in found.jacobian.values()]
        slopes = np.stack([np.stack([np.reshape(x, 4) for x in row], axis=1) for row in columns], axis=1)
        apart = np.max(np.abs(slopes - jacobian), axis=(1, 2)) / np.max(np.abs(jacobian))
        errors.append(np.median([np.max(np.abs(states - state), axis=1), apart], axis=1))
    assert np.all(np.log10(errors[0] / errors[1]) >= 1.8), errors
    assert np.all(errors[1] <= 1e-4), errors  # a few (w h)^2


@pytest.mark.slow
def test_oblique_walls_hit_at_once():
    """A particle flies into the edge of three walls: v+ = -e v-, as v- lies in the cone of their outward normals.

    One after the other would be another motion, whatever h. Turned by a little, one wall comes first by far less than
    round-off could tell: the same motion.
    """
    angles = np.radians([60, 90, 120])
    normals = np.stack([np.cos(angles), np.sin(angles)], 1)
    walls = ji.Problem(lambda t, q, v, args: jnp.zeros(2), lambda t, q, args: jnp.asarray(normals) @ q)
    v0, e, t1 = np.array([-0.3, -1.0]), 0.5, 1.0
    start = -0.6137 * v0 + np.array([[0.0, 0.0], [1e-15, -1e-15]])
    for steps in (17, 100):
        s = ji.ensemble(walls, start, v0, t1=t1, h=t1 / steps, e=e, scheme=SCHEME, save="final")
        np.testing.assert_allclose(s.v[:, -1], [-e * v0] * 2, atol=1e-13)
        np.testing.assert_allclose(s.q[:, -1], [-e * v0 * (t1 - 0.6137)] * 2, atol=1e-13)
    s = final(walls, start[0], v0, t1=t1, steps=17, e=e, sensitivity="corrected")
    assert Status(int(s.status)) == Status.DERIVATIVE_EVENTS | Status.IMPULSES_COUPLED


@pytest.mark.slow
@pytest.mark.parametrize("e", [0.0, 0.5])
def test_imploding_icosahedron(e):
    """Twelve balls on the corners of an icosahedron, which grow, meet at the centre: thirty contacts at one instant,
    and symmetry says what follows."""
    golden = (1 + np.sqrt(5)) / 2
    signs = [(a, b * golden) for a in (1, -1) for b in (1, -1)]
    corners = np.array([p for a, b in signs for p in ((0, a, b), (a, b, 0), (b, 0, a))]) / np.hypot(1, golden)
    apart = np.linalg.norm(corners[:, None] - corners[None], axis=-1)
    edge = apart[0, 1:].min()
    first, second = np.nonzero(np.triu(apart < 1.01 * edge, 1))
    assert len(first) == 30
    growth = 0.1  # of the edge, in a unit of time: gaps close at 1 + growth, and open at e times that
    after = e * (1 + growth) + growth

    def gaps(t, q, args):
        x = q.reshape(12, 3)
        # they touch half way
        return jnp.linalg.norm(x[first] - x[second], axis=1) - (0.5 + growth * (t - 0.5)) * edge

    problem = ji.Problem(lambda t, q, v, args: 0 * q, gaps)
    found = final(problem, corners.ravel(), -corners.ravel(), t1=0.9, steps=101, e=e, sensitivity="corrected")
    # 0.5 inwards, and what is left of 0.9 outwards; straight pieces: to round-off
    np.testing.assert_allclose(found.q[-1], (0.5 + 0.4 * after) * corners.ravel(), atol=1e-12)
    assert not found.failed and int(found.status) & int(ji.Status.DERIVATIVE_EVENTS)


def test_rows_between_steps_are_second_order():
    """Position and velocity at given times, before, within and after the step of an impact, over three halvings of h.

    A row does not depend on where the motion ends.
    """
    h = 0.03 / 2.0 ** np.arange(4)
    options = {"scheme": SCHEME, "h": np.tile(h, 2), "t1": np.repeat([1.2, 1.05], 4), "save": TIMES}
    s = ji.ensemble(SPRING, [1.0], [0.0], **ONCE | options)
    for found, exact in zip((s.q[:4, :-1, 0], s.v[:4, :-1, 0]), once(TIMES), strict=True):
        error = np.max(np.abs(found - exact), axis=1)
        assert np.log2(error[0] / error[-1]) / 3 >= 1.9, error
        assert error[-1] <= 2 * (2 * h[-1]) ** 2  # (w h)^2 over a phase of two
    np.testing.assert_array_equal(s.q[:4, :-1], s.q[4:, :-1])
    np.testing.assert_array_equal(s.v[:4, :-1], s.v[4:, :-1])


@pytest.mark.slow
def test_impact_opens_another_contact():
    """Pressed against x = 0 and sliding up, a particle meets x - y + 1 = 0, which throws it off both.

    Exact for a time s after: v+ = v - (1 + e) (G v) G/|G|^2 with G = (1, -1), then the constant force (-1, 0).
    """
    walls = lambda t, q, args: jnp.stack([q[0], q[0] - q[1] + 1])
    slant = ji.Problem(lambda t, q, v, args: jnp.array([-1.0, 0.0]), walls)

    @jax.jit
    @lambda f: jax.jacfwd(f, (0, 1), has_aux=True)
    def run(x, e):
        s = final(slant, [0.0, 0.0], jnp.stack([0.0 * x, x]), t1=1.4, steps=41, e=e)
        found = jnp.concatenate([s.q[-1], s.v[-1], s.impulse[-1]])
        return found, found

    def exact(x, e):
        left = 1.4 - 1 / x
        u = 0.5 * (1 + e) * x
        return jnp.stack([u * left - 0.5 * left**2, 1 + (x - u) * left, u - left, x - u, 1 / x, u])

    at = 1.1, 0.5
    jacobian, state = run(*at)
    np.testing.assert_allclose(state, exact(*at), atol=1e-12)
    for found, expected in zip(jacobian, jax.jacfwd(exact, (0, 1))(*at), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-11)


# invariants and modes of use


@pytest.mark.slow
def test_zeno_ball_comes_to_rest():
    """e = 1/2: it rests on the floor, exactly, and the impulses account for every change of momentum."""
    given = {"args": {"g": 9.81}, "e": 0.5, "save": "all", "sensitivity": "corrected"}
    s = final(BALL, [1.0], [0.0], t1=3.0, h=1e-2, **given).raise_if_failed()
    still = np.asarray(s.t) > 3 * np.sqrt(2 / 9.81)  # (1 + e)/(1 - e) times the first fall
    np.testing.assert_allclose(s.q[still], 0, atol=1e-14)
    np.testing.assert_allclose(s.v[still], 0, atol=1e-14)
    assert s.penetration <= 1e-14
    assert Status(int(s.status)) == Status.DERIVATIVE_EVENTS
    np.testing.assert_allclose(s.impulse[-1], 9.81 * 3, rtol=1e-13)
    mean = lambda e: jnp.sum(final(BALL, [1.0], [0.0], t1=2.0, steps=801, args={"g": 9.81}, e=e, save="all").q)
    # integral of q over [0, T]: with fall time T0, (2/3) T0 h (1 + 2 (e^3 + e^6 + ...)) for heights h e^2k
    exact = lambda e: 2 / 3 * np.sqrt(2 / 9.81) * (1 + 2 * e**3 / (1 - e**3))
    slope = (exact(0.5 + 1e-5) - exact(0.5 - 1e-5)) / 2e-5
    # 2 h, as the last bounces are cut off
    assert jax.jit(jax.jacfwd(mean))(0.5) * 2 / 801 == pytest.approx(slope, abs=5e-3)


@pytest.mark.parametrize(
    ("problem", "v0", "args", "t1", "save", "within"),
    [
        # parabolas are exact, also where a flight from the floor takes no step (v0 = .05 m/s: h) or a few (.3: 6 h)
        *((BALL, v0, {"g": 9.81}, 3.0, "all", 1e-12) for v0 in (0.0, 0.05, 0.3)),
        slow(SPRING, 0.0, {"w": 2.0, "wall": -0.4}, 20.0, "final", 20 * 2 * 0.02**3),  # (w h)^3 per unit of phase
    ],
)
def test_energy_at_unit_restitution(problem, v0, args, t1, save, within):
    q0, v0 = np.array([0.0 if v0 else 1.0]), np.array([v0])
    s = final(problem, q0, v0, t1=t1, h=1e-2, args=args, e=1.0, save=save)
    np.testing.assert_allclose(s.energy, problem.energy(0.0, q0, v0, args), rtol=within)


@pytest.mark.slow
def test_sliding_on_a_moving_curved_wall_stays_on_it():
    """A bead inside a disk that grows and shakes: gap and gap velocity vanish to round-off after it has landed."""
    shape = lambda t, q, args: jnp.stack([(1 + 0.1 * jnp.sin(t)) ** 2 - (q[0] - 0.2 * jnp.sin(2 * t)) ** 2 - q[1] ** 2])
    bead = ji.Problem(lambda t, q, v, args: jnp.array([0.0, -9.81]), shape, mass=jnp.array([1.0, 2.0]))
    s = final(bead, [0.3, -0.5], [0.0, 0.0], t1=2.0, h=1e-2, save="all").raise_if_failed()
    landed = np.asarray(s.t) > 0.6
    gaps = jax.vmap(lambda t, q: shape(t, q, None))(s.t, s.q)
    assert np.max(np.abs(gaps[landed])) < 1e-12
    assert np.all(np.diff(np.asarray(s.impulse)[landed, 0]) > 0)


@pytest.mark.slow
def test_plank_lands_on_dependent_contacts():
    """Four contacts under a plank with three coordinates, e = 1/2: it comes to rest flat, sliding on at its speed."""
    feet = lambda t, q, args: q[1] + jnp.sin(q[2]) * jnp.array([-1.0, -0.3, 0.3, 1.0])
    plank = ji.Problem(lambda t, q, v, args: jnp.array([0.0, -9.81, 0.0]), feet, mass=jnp.array([1.0, 1.0, 0.4]))
    s = final(plank, [0.0, 0.5, 0.2], [1.0, 0.0, 0.0], t1=2.0, h=1e-2, e=0.5).raise_if_failed()
    np.testing.assert_allclose(s.q[-1], [2.0, 0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(s.v[-1], [1.0, 0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(np.sum(s.impulse[-1]), 9.81 * 2, rtol=1e-12)
    # a step with more impacts than it locates returns to the surfaces by one linearisation: (h^2 g)^2 may be left
    assert s.penetration <= 1e-6


def test_restitution_per_contact_and_no_constraints():
    """A ball between a floor with e = 1 and a wall with e = 1/2; and a spring without constraints, q = cos t."""
    slot = ji.Problem(lambda t, q, v, args: jnp.zeros(1), lambda t, q, args: jnp.stack([q[0], args - q[0]]))
    s = final(slot, [0.5], [-1.0], t1=2.5, h=2.5e-2, e=[1.0, 0.5], args=1.0, save="all")
    np.testing.assert_allclose([s.q[-1, 0], s.v[-1, 0]], [0.5, -0.5], atol=1e-12)
    s = final(ji.Problem(lambda t, q, v, args: -q), [1.0], [0.0], t1=1.0, steps=100)
    assert abs(s.q[-1, 0] - np.cos(1)) <= 1e-4 / 6  # h^2/6


@pytest.mark.parametrize("gap", [0.0, 1e-3])
def test_impulses_through_a_contact_that_touched_are_told(gap):
    """Three equal balls: 1e-3 apart one after the other is hit, v = (0, 0, 1); touching ones share the impact,
    as the law of Newton has it."""
    balls = ji.Problem(lambda t, q, v, args: jnp.zeros(3), lambda t, q, args: q[1:] - q[:-1] - 1, restitution=1.0)
    found = final(balls, [-1.0, 1.0, 2.0 + gap], [1.0, 0.0, 0.0], t1=2.0, steps=1009, sensitivity="corrected")
    # those that touch carry no load at the start
    doubts = Status.IMPULSES_COUPLED | Status.DERIVATIVE_EVENTS
    assert Status(int(found.status)) == (doubts if gap == 0 else Status.OK)
    np.testing.assert_allclose(found.v[-1], np.array([-1, 2, 2]) / 3 if gap == 0 else [0, 0, 1], atol=1e-12)


KINKS = {
    # a body that rests on a wall which falls away at t = 1/4 flies on: exact at t = .35
    "falls": (lambda t, q, args: q - jnp.where(t < 0.25, t, 0.5 - t), 1.0, 0.35, 0.25 + 0.1 - 0.5 * 9.81 * 0.01),
    "stops": (lambda t, q, args: q - jnp.minimum(t, 0.5), 1.0, 0.6, 0.5 + 0.1 - 0.5 * 9.81 * 0.01),
    # one that begins to rise takes the body along, e = 0
    "rises": (lambda t, q, args: q - jnp.maximum(t - 0.25, 0.0), 0.0, 0.35, 0.1),
}


@pytest.mark.parametrize("name", slow_but(["falls"], KINKS))
def test_lasting_contacts_at_kinks_of_gaps(name):
    """The kink is met at the end of its step: of first order, h times the jump of the velocity."""
    gap, v0, t1, exact = KINKS[name]
    body = ji.Problem(lambda t, q, v, args: jnp.array([-9.81]), gap)
    for steps in (101, 1009):
        found = final(body, [0.0], [v0], t1=t1, steps=steps, sensitivity="corrected")
        assert abs(found.q[-1, 0] - exact) < 2 * t1 / steps
        assert Status(int(found.status)) & Status.DERIVATIVE_JUMP


@pytest.mark.parametrize(("case", "t1"), [("a", 5.0), slow("c", 8.0), slow("d", 4.0)])
def test_a_contact_without_force_is_left_where_its_surface_curves_away(case, t1):
    """On the valley of Adly and Thieu paths are pieces of polynomials: exact at every h; errors were 7e-4,
    6e-4 and 4e-3 h / .01."""
    entry = catalogue.get("adly-thieu")
    motion = entry.cases[case]
    q, v = motion.exact(np.array([t1]))
    for steps in (501, 2003):
        found = final(entry.problem, motion.q0, motion.v0, t1=t1, steps=steps, e=motion.restitution, args=motion.args)
        np.testing.assert_allclose(found.q[-1], q[0], atol=1e-12)
        np.testing.assert_allclose(found.v[-1], v[0], atol=1e-12)


def test_a_gap_that_nearly_closes_where_a_step_ends_is_told():
    """The minimum 1e-4 at t = 1 is that of the step before: its rate there is zero but for rounding,
    and in the next step no fall."""
    rising = ji.Problem(lambda t, q, v, args: jnp.ones_like(q), lambda t, q, args: q, restitution=0.5)
    run = lambda n: ji.solve(rising, [0.5001], [-1.0], t1=2.0, steps=n, scheme=SCHEME, sensitivity="corrected")
    assert [int(run(n).status) for n in (150, 151)] == [Status.DERIVATIVE_EVENTS] * 2


def test_a_contact_only_just_met_in_a_long_step_gains_nothing():
    """Two starts 2e-7 apart, of which one meets the wall at a speed of rounding: parabola and trial differ there, and
    Newton's step for the time of that impact led 1e9 s away, to a speed of 1e17."""
    damped = ji.Problem(lambda t, q, v, args: 1.1719565157875076 - q - v, lambda t, q, args: q)
    run = lambda q: final(damped, [q], [-0.5056732577328568], e=1.0, t1=0.4, h=0.4)
    ends = [run(0.09021653891165138 + shift) for shift in (-1e-7, 0.0, 1e-7)]
    for end in ends[:2]:
        # the speed goes by the root of the shift: 2 (2 a 1e-7)^(1/2) with an acceleration of 1.6
        np.testing.assert_allclose([end.q[-1], end.v[-1]], [ends[2].q[-1], ends[2].v[-1]], atol=1.2e-3)
