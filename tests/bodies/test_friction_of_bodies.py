"""Friction and rotation of bodies: exact motions of disks and spheres that slide, roll and strike each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import analysis
from jaximpact.bodies import Bodies, ConjugateGradients, disks, spheres
from jaximpact.bodies.round import _tangents

GRAVITY, MU = 9.81, 0.3
FLOOR = [None, (0, None)]


LEVEL = np.array([0.0, -GRAVITY, 0.0])


@pytest.fixture(scope="module")
def disk():
    """A solid disk on a floor, whose weight is given in the call."""
    return disks([0.1], walls=FLOOR, force=lambda t, q, v, args: args, friction=MU, inertias="solid")


def test_a_disk_slides_until_it_rolls(disk):
    found = ji.solve(disk, [0, 0.1, 0], [1.0, 0, 0], t1=1.0, h=1e-3, args=LEVEL)
    # the friction mu m g slows it and turns it until it rolls, at two thirds of its speed from 1 / (3 mu g) on
    assert np.allclose(found.v[-1], [2 / 3, 0, -2 / 0.3], rtol=0, atol=1e-12)
    # a step in which sliding ends is off by h times the speed that it loses, h mu g
    assert np.allclose(found.q[-1, 0], 2 / 3 + 1 / (18 * MU * GRAVITY), rtol=0, atol=1e-6 * MU * GRAVITY)
    assert np.allclose(found.friction_impulse[-1].sum(), -1 / 3, rtol=0, atol=1e-12) and found.status == 0
    # a third of its energy goes to friction; in the step in which sliding ends, what that has
    kept = analysis.balance(disk, found, args=LEVEL)
    assert np.isclose(kept.friction[-1], 1 / 6, rtol=0, atol=1e-3 * MU * GRAVITY)
    assert kept.energy_error < 1e-3 * MU * GRAVITY and kept.loss[-1] == 0


@pytest.mark.slow
def test_derivative_of_where_a_disk_rolls_to(disk):
    end = lambda mu: ji.solve(disk, [0, 0.1, 0], [1.0, 0, 0], t1=1.0, h=1e-3, friction=mu, args=LEVEL).q[-1, 0]
    exact = -1 / (18 * MU**2 * GRAVITY)
    # of first order: half a step in a hundred is measured, one allowed
    assert abs(jax.grad(end)(MU) / exact - 1) < 1e-2


@pytest.mark.parametrize("ratio", [0.5, 0.99, 1.01])
def test_a_disk_rolls_on_slopes_up_to_three_times_mu(disk, ratio):
    angle = np.arctan(3 * MU * ratio)
    down, across = GRAVITY * np.sin(angle), GRAVITY * np.cos(angle)
    found = ji.solve(disk, [0, 0.1, 0], [0.0, 0, 0], t1=1.0, h=1e-3, args=np.array([down, -across, 0]))
    expected = (down / 3 * 2, -down / 0.3 * 2) if ratio < 1 else (down - MU * across, -2 * MU * across / 0.1)
    assert np.allclose(found.v[-1, [0, 2]], np.array(expected), rtol=1e-12, atol=0) and found.status == 0


@pytest.mark.slow
def test_a_sphere_slides_until_it_rolls():
    ball = spheres([0.1], walls=[None, None, (0, None)], gravity=GRAVITY, friction=MU, inertias="solid")
    found = ji.solve(ball, [0, 0, 0.1, 0, 0, 0], [0.6, 0.8, 0, 0, 0, 5.0], t1=1.0, h=1e-2)
    # five sevenths of the speed; what turns about the vertical is not rubbed
    rolling = np.array([0.6, 0.8, 0, -8.0, 6.0, 0]) * 5 / 7 + [0, 0, 0, 0, 0, 5.0]
    assert np.allclose(found.v[-1], rolling, rtol=0, atol=1e-12) and found.status == 0


@pytest.fixture(scope="module")
def pair():
    return disks([0.1, 0.2], masses=[1.0, 2.0], friction=MU, inertias="solid")


@pytest.mark.parametrize("mu", [0.1, 2.0], ids=["slips", "sticks"])
def test_an_oblique_impact_of_two_disks(pair, mu):
    masses, radii, e, h = np.array([1.0, 2.0]), np.array([0.1, 0.2]), 0.5, 1e-9
    q0, v0 = np.array([0, 0, 0, 0.3 + h, 0, 0]), np.array([1.0, 0, 3.0, -1, 0.2, -2])
    found = ji.solve(pair, q0, v0, t1=2 * h, h=h, e=e, friction=mu)
    inverse = np.sum(1 / masses)
    normal = (1 + e) * 2.0 / inverse
    slip = 0 - 0.2 + 0.1 * 3 - 0.2 * 2
    # of solid disks the tangential mass is a third of that between centres
    along = -np.sign(slip) * min(mu * normal, abs(slip) / (3 * inverse))
    push = np.array([-normal, along])
    inertias = masses * radii**2 / 2
    expected = v0 + np.concatenate(
        [push / masses[0], [0.1 * along / inertias[0]], -push / masses[1], [0.2 * along / inertias[1]]]
    )
    # the disks turn about each other by a thousandth of a millionth in the step
    assert np.allclose(found.v[-1], expected, rtol=0, atol=1e-7)
    # what the impulses take, by the mean of velocities before and after
    kept = analysis.balance(pair, found, e=e)
    assert np.isclose(kept.loss[-1], normal * (1 - e) * 2.0 / 2, rtol=1e-6) and kept.energy_error < 1e-6
    left = slip + 3 * inverse * along
    assert np.isclose(kept.friction[-1], -along * (slip + left) / 2, rtol=1e-6) and kept.momentum_error < 1e-6
    assert found.status == 0


@pytest.mark.slow
def test_friction_across_a_periodic_boundary():
    v0 = np.array([1.0, 0.5, 0, -1.0, 0, 0])
    pair = disks([0.1, 0.1], periodic=(1.0, None), friction=MU, inertias="solid")
    starts = [0.3, 0, 0, 0.51, 0, 0], [0.9, 0, 0, 0.11, 0, 0]
    found = [ji.solve(pair, np.array(q0), v0, t1=0.05, h=1e-2) for q0 in starts]
    # round-off of positions
    assert np.allclose(found[0].v, found[1].v, rtol=0, atol=1e-12) and np.any(found[0].friction_impulse != 0)


def test_tangents_are_orthonormal():
    n = np.random.default_rng(0).standard_normal((40, 3))
    n = np.concatenate([n / np.linalg.norm(n, axis=1, keepdims=True), np.eye(3), -np.eye(3)])
    frame = np.stack([n, *jax.vmap(_tangents)(jnp.asarray(n))], axis=1)
    assert np.allclose(frame @ frame.transpose(0, 2, 1), np.eye(3), rtol=0, atol=1e-14)


def test_what_is_refused():
    apart = lambda a, b, x, y: a[0] - b[0]
    slip = lambda a, b, va, vb, x, y: (va - vb)[:1]
    force = lambda t, q, v, args: 0 * q
    with pytest.raises(ValueError, match="inertias must be positive"):
        disks([0.1, 0.1], inertias=[0.0, 1.0])
    with pytest.raises(ValueError, match="'solid'"):
        disks([0.1], inertias="hollow")
    with pytest.raises(ValueError, match="constant radii"):
        disks([0.1], inertias="solid", growth=0.1)
    with pytest.raises(ValueError, match="friction must be finite and >= 0"):
        ji.solve(disks([0.1, 0.1], friction=-0.1), [0, 0, 1.0, 0], np.zeros(4), t1=1.0, h=0.1)
    with pytest.raises(ValueError, match="obstacle_slip"):
        Bodies(2, apart, 1.0, slip=slip, obstacles=lambda t, x, a: x)
    with pytest.raises(ValueError, match=r"Bodies\(slip=\.\.\.\)"):
        ji.Problem(force, Bodies(2, apart, 1.0), slip=lambda t, q, v, args: v, friction=0.1)
    with pytest.raises(ValueError, match="of two bodies to Bodies"):
        ji.Problem(force, Bodies(2, apart, 1.0), friction=0.1)
    with pytest.raises(ValueError, match="slip is the velocity"):
        ji.Problem(force, Bodies(2, apart, 1.0, slip=slip))
    bad = Bodies(2, apart, 1.0, slip=lambda *given: jnp.zeros(3))
    with pytest.raises(ValueError, match="must return shape"):
        ji.solve(ji.Problem(force, bad, friction=0.1), [0.0, 0, 1, 0], np.zeros(4), t1=1.0, h=0.1)


def falling(count, lists, turns=True):
    """Disks on a grid that fall into a box, and where they start."""
    rng = np.random.default_rng(1)
    radii = 0.1 * rng.uniform(0.8, 1.2, count)
    centres = 0.26 * (np.stack(np.divmod(np.arange(count), 4), axis=1) + 0.5) + 0.005 * rng.uniform(-1, 1, (count, 2))
    inertias = "solid" if turns else None
    problem = disks(radii, walls=[(0, 1.04), (0, None)], gravity=GRAVITY, friction=MU, inertias=inertias, lists=lists)
    return problem, (np.concatenate([centres, np.zeros((count, 1))], axis=1) if turns else centres).ravel()


@pytest.mark.slow
@pytest.mark.parametrize(("turns", "scheme"), [(True, None), (False, None), (True, ji.Maury()), (False, ji.Maury())])
def test_listed_pairs_and_all_pairs(turns, scheme):
    found = listed_and_all(6 if turns else 12, turns, scheme)[0]
    if scheme is not None:
        # distances are convex: no step ends inside another body, up to the solver's tolerance of 1e-12 m/s
        assert found.penetration < 1e-12


def listed_and_all(count, turns, scheme=None):
    """Runs by lists and by all pairs, which are the same."""
    runs = []
    for lists in (True, False):
        problem, q0 = falling(count, lists, turns)
        solver = ConjugateGradients(tolerance=1e-12) if lists else None
        runs.append(ji.solve(problem, q0, 0 * q0, t1=0.3, h=5e-3, projection=solver, scheme=scheme))
    listed, dense = runs
    assert listed.residual <= 1e-12 and not listed.failed and not dense.failed
    # 60 steps solved to 1e-12 m/s, of bodies whose impacts amplify what differs
    assert np.allclose(listed.v, dense.v, rtol=0, atol=1e-9) and np.any(listed.impulse[-1] > 0)
    # impulses of the last step, by pair
    step = [x.friction_impulse[-1] - (0 if x is listed else x.friction_impulse[-2]) for x in runs]
    assert np.allclose(np.sort(np.abs(step[0]).ravel())[-4:], np.sort(np.abs(step[1]).ravel())[-4:], rtol=0, atol=1e-9)
    return runs


@pytest.mark.slow
def test_analyses_of_listed_pairs_and_all_pairs():
    count, turns, runs = 6, True, listed_and_all(6, True)
    of_listed, of_all = (
        analysis.impacts(falling(count, lists, turns)[0], x) for x, lists in zip(runs, (True, False), strict=True)
    )
    assert len(of_listed) == len(of_all) > 4
    # slips of listed pairs are those of all pairs that push
    slips = [x.slips(falling(count, lists, turns)[0]) for x, lists in zip(runs, (True, False), strict=True)]
    assert slips[0].kind.tolist() == slips[1].kind.tolist()
    assert np.allclose(slips[0].t, slips[1].t, rtol=0, atol=1e-8) and np.isclose(
        slips[0].lost, slips[1].lost, rtol=1e-8
    )
    kept = [analysis.balance(falling(count, lists, turns)[0], x) for x, lists in zip(runs, (True, False), strict=True)]
    for name in ("friction", "loss", "driven", "energy", "momentum"):
        assert np.allclose(getattr(kept[0], name), getattr(kept[1], name), rtol=0, atol=1e-8), name
    assert kept[0].friction[-1] > 1e-3
    for name in ("t", "before", "after", "impulse"):
        # times are found from gaps and speeds, of metres a second: as exact as these
        assert np.allclose(np.sort(getattr(of_listed, name)), np.sort(getattr(of_all, name)), rtol=0, atol=1e-8), name


@pytest.mark.slow
def test_a_listed_body_breaks_away_at_static_friction():
    """A block at 1 m/s that is pulled ever harder: 1 - mu g t + F t^2 / 2 = 0 where it stops,
    F t = static g where it breaks away."""
    pull, static = 4.0, 1.5 * MU
    block = disks(
        [0.1], walls=FLOOR, gravity=GRAVITY, force=lambda t, q, v, args: jnp.stack([pull * t, 0 * t]), friction=MU,
        static_friction=static, lists=True,
    )  # fmt: skip
    found = ji.solve(block, [0, 0.1], [1.0, 0], t1=1.5, h=1e-3)
    stop, begin = min(np.roots([pull / 2, -MU * GRAVITY, 1.0])), static * GRAVITY / pull
    events = found.slips(block)
    assert events.kind.tolist() == ["stop", "break"] and found.status == 0
    assert events.pairs[events.contact].tolist() == [[0, -1]] * 2
    # both are continued with forces that are linear in time: h^2
    assert np.allclose(events.t, [stop, begin], rtol=0, atol=1e-5)
    speed = pull * (1.5**2 - begin**2) / 2 - MU * GRAVITY * (1.5 - begin)
    assert np.isclose(
        found.v[-1, 0], speed, rtol=0, atol=1e-3 * (static - MU) * GRAVITY
    )  # a step may be of the other kind


@pytest.mark.slow
def test_impulses_of_one_body_in_a_corner_are_not_unique_whatever_others_do():
    """Two contacts that stick have four rows for three coordinates; a disk on the floor has two,
    and one in flight none."""
    push = jnp.array([-5.0, -GRAVITY, 0, 0, -GRAVITY, 0])
    problem = disks(
        [0.1, 0.1], walls=[(0, None), (0, None)], friction=0.9, inertias="solid", lists=True,
        force=lambda t, q, v, args: push.astype(q.dtype),
    )  # fmt: skip
    told = [
        int(ji.solve(problem, [x, 0.1, 0, 2.0, 2.0, 0], np.zeros(6), t1=0.02, h=1e-2, save="final").status)
        for x in (0.1, 1.0)
    ]
    assert told == [ji.Status.IMPULSES_NOT_UNIQUE, 0]


@pytest.mark.slow
@pytest.mark.parametrize("lists", [False, True])
def test_where_tangents_jump_a_slip_does_not_turn_round(lists):
    """A ball slides across the equator of another one, where the tangents of `spheres` are others: as if static
    friction were that of slip."""

    def pressed(t, q, v, args):
        n = (q[3:] - q[:3]) / jnp.linalg.norm(q[3:] - q[:3])
        return jnp.concatenate([0 * n, -10 * n])

    angle, way = 0.2, 0.3
    up = np.array([np.sin(angle) * np.cos(way), np.sin(way), np.cos(angle) * np.cos(way)])
    start = np.r_[np.zeros(3), 1.1 * np.cos(angle), 0, -1.1 * np.sin(angle)], np.r_[np.zeros(3), 0.8 * up]
    balls = spheres([1.0, 0.1], masses=[1e9, 1.0], force=pressed, friction=0.02, static_friction=20.0, lists=lists)
    found = ji.solve(balls, *start, t1=1.0, h=1e-2)
    # the static coefficient would stop it; steps along chords press harder than 10 N by O(h)
    x = found.q[:, 5]
    assert x[0] < 0 < x[-1] and np.linalg.norm(found.v[-1, 3:]) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("derivatives", [False, True])
def test_events_are_located_where_tangents_jump(derivatives):
    """A ball, pressed onto another one by 10 N, slides through its equator round a great circle of radius r,
    and stops on the way.

    Its speed is sqrt(10 r) tanh(c - mu sqrt(10/r) t), its angle log(cosh c / cosh(c - mu sqrt(10/r) t)) / mu.
    """
    radius, angle, way, t1 = 1.1, 0.3, 0.3, 1.5
    begin = np.array([np.cos(angle), 0, -np.sin(angle)])
    ahead = np.array([np.sin(angle) * np.cos(way), np.sin(way), np.cos(angle) * np.cos(way)])

    def pressed(t, q, v, args):
        n = (q[3:] - q[:3]) / jnp.linalg.norm(q[3:] - q[:3])
        return jnp.concatenate([0 * n, -10 * n])

    balls = spheres([1.0, 0.1], masses=[1e12, 1.0], force=pressed, friction=lambda mu: mu)
    mu, speed = 0.4, 2.5
    start = np.r_[np.zeros(3), radius * begin], np.r_[np.zeros(3), speed * ahead]

    def right(mu):
        turned = jnp.log(jnp.cosh(jnp.arctanh(speed / np.sqrt(10 * radius)))) / mu  # until it stops
        return radius * (begin * jnp.cos(turned) + ahead * jnp.sin(turned))

    expected, slope = jax.jvp(right, (mu,), (1.0,))
    assert expected[2] > 0.4 > -0.2 > start[0][5]
    call = {"t1": t1, "h": t1 / np.array([40, 120]), "args": mu, "scheme": ji.EventCorrected()}
    if derivatives:
        found = ji.sensitivities(balls, *start, **call, wrt="args")
        assert found.trusted.all()
        pairs = [(found.value["q"], expected), (found.jacobian["q"]["args"], slope)]
    else:
        found = ji.ensemble(balls, *start, **call)
        assert not found.status.any()
        pairs = [(found.q[:, -1], expected)]
    apart = np.array([np.max(np.abs(np.asarray(x)[:, 3:] - np.asarray(y)), axis=1) for x, y in pairs])
    assert np.all(apart[:, 1] < [1e-3, 1e-2][: len(pairs)])
    assert np.all(apart[:, 1] < apart[:, 0] / 3**1.8), apart  # second order


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [ji.MoreauJean(), ji.EventCorrected()], ids=["MoreauJean", "EventCorrected"])
def test_a_motion_does_not_depend_on_the_tangents(scheme):
    """A ball slides over another one and strikes a third: turned as a whole, by which its slip crosses the equator at
    another time, or not at all."""

    def pressed(t, q, v, args):
        n = (q[3:6] - q[:3]) / jnp.linalg.norm(q[3:6] - q[:3])
        return jnp.concatenate([0 * n, -10 * n, 0 * n])

    balls = spheres([1.0, 0.1, 0.2], masses=[1e12, 1.0, 1e12], force=pressed, friction=lambda mu: mu)

    def end(mu, turn):
        place = turn @ np.array([1.1 * np.cos(0.2), 0, -1.1 * np.sin(0.2)])
        other = turn @ np.array([1.25 * np.cos(0.27), 0.05, 1.25 * np.sin(0.27)])
        speed = turn @ np.array([1.5 * np.sin(0.2), 0.1, 1.5 * np.cos(0.2)])
        start = jnp.concatenate([jnp.zeros(3), place, other]), jnp.concatenate([jnp.zeros(3), speed, jnp.zeros(3)])
        call = {"t1": 0.5, "steps": 100, "args": mu, "e": 0.5, "scheme": scheme, "sensitivity": "corrected"}
        found = ji.solve(balls, *start, save="final", **call)
        return turn.T @ found.v[-1, 3:6]

    (c, s), (d, e) = ((np.cos(x), np.sin(x)) for x in (0.7, 1.1))
    turned = np.array([[c, -s * d, s * e], [s, c * d, -c * e], [0, e, d]])
    runs = [jax.jvp(lambda mu, turn=turn: end(mu, turn), (0.2,), (1.0,)) for turn in (jnp.eye(3), jnp.asarray(turned))]
    # derivatives to rounding, times what an oblique impact amplifies
    assert np.allclose(runs[0][0], runs[1][0], rtol=0, atol=1e-12)
    assert np.allclose(runs[0][1], runs[1][1], rtol=0, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("turns", [True, False])
def test_static_friction_of_listed_pairs_and_of_all_pairs(turns):
    runs = []
    for lists in (True, False):
        problem, q0 = falling(9, lists, turns)
        swing = np.zeros(3 if turns else 2)
        swing[0] = 6.0
        pull = lambda t, q, v, args, of=problem.force, swing=swing: (
            of(t, q, v, args) + jnp.tile(jnp.sin(3 * t) * swing, 9)
        )
        shaken = problem.replace(force=pull, friction=0.2, static_friction=0.4)
        solver = ConjugateGradients(tolerance=1e-12) if lists else None
        found = ji.solve(shaken, q0, 0 * q0, t1=1.0, h=2.5e-3, projection=solver)
        runs.append((found, found.slips(shaken)))
    (listed, events), (dense, _) = runs
    assert np.sum(events.kind == "break") > 10 and not listed.failed
    # 400 steps solved to 1e-12 m/s, of bodies whose impacts amplify what differs
    assert np.allclose(listed.v, dense.v, rtol=0, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("static", [{}, {"static_friction": 0.5}], ids=["sliding", "static"])
def test_derivatives_of_listed_pairs_are_those_of_all_pairs(static):
    """Two disks fall onto a floor and each other, slip, stick and roll: forward and reverse mode, and two lanes."""
    q0 = np.array([[0, 0.15, 0, 0.21, 0.27, 0], [0, 0.14, 0, 0.2, 0.29, 0]])
    v0 = np.array([[0.4, 0, 1, -0.8, 0, 2], [0.3, 0.1, -1, -0.7, 0, 2]])

    def jacobian(lists, mode, q0, v0, **options):
        problem = disks([0.1, 0.12], walls=FLOOR, gravity=GRAVITY, friction=MU, inertias="solid", lists=lists, **static)
        call = {"t1": 0.3, "h": 1e-3, "wrt": ("q0", "v0", "friction", *static), "mode": mode}
        found = ji.sensitivities(problem, q0, v0, **call, **options)
        rows = [[x[y].reshape(len(q0), 6, -1) for y in call["wrt"]] for x in found.jacobian.values()]
        return np.block(rows), found.status

    dense, status = jacobian(False, "forward", q0, v0)
    sharp = ConjugateGradients(tolerance=1e-12)
    assert np.max(np.abs(dense)) > 3
    for mode in ("forward", "reverse"):
        listed, told = jacobian(True, mode, q0, v0, projection=sharp)
        # impulses to 1e-12 m/s, times what an impact amplifies
        assert np.allclose(listed, dense, rtol=0, atol=1e-9 * np.max(np.abs(dense)))
        assert np.all((told ^ status) & ~int(ji.Status.IMPULSES_NOT_UNIQUE) == 0)
    alone, _ = jacobian(True, "forward", q0[1:], v0[1:], projection=sharp)
    assert np.allclose(alone[0], listed[1], rtol=0, atol=1e-9 * np.max(np.abs(dense)))


def test_what_lists_refuse():
    problem, q0 = falling(4, lists=True)
    call = lambda problem, **options: ji.solve(problem, q0, 0 * q0, t1=0.01, h=5e-3, **options)
    with pytest.raises(ValueError, match="of bodies in lists with friction only the derivative of the motion"):
        call(problem, sensitivity="discrete")
    # what it costs is asked for by name
    with pytest.raises(ValueError, match="have no derivative: use sensitivity='corrected'"):
        jax.grad(lambda mu: call(problem, friction=mu).q[-1, 0])(0.3)
    with pytest.raises(ValueError, match="static_friction must be one number"):
        call(problem.replace(static_friction=np.full(3, 0.5)))
    with pytest.raises(ValueError, match="must be finite and not below friction"):
        call(problem.replace(static_friction=0.5 * MU))
    with pytest.raises(ValueError, match="friction must be one number"):
        call(problem, friction=np.full(3, 0.3))
    with pytest.raises(ValueError, match="must return one number: listed"):
        call(problem.replace(friction=lambda args: jnp.full(problem.count(0.0, jnp.asarray(q0), None), 0.3)))
    with pytest.raises(ValueError, match="takes no friction"):
        call(problem, scheme=ji.PaoliSchatzman())
