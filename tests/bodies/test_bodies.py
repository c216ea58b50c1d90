"""Many bodies: the same as dense constraints, near pairs against a k-d tree, exact motions,
what is kept over whole runs."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial import cKDTree

import jaximpact as ji
from jaximpact.bodies import Bodies, ConjugateGradients, disks, spheres
from support.breadth import slow

TIGHT = ConjugateGradients(tolerance=1e-12)


def grid(count, spacing, space=2, noise=0.0, seed=0):
    """Centres of bodies on a square or cubic grid, (count * space,)."""
    side = int(np.ceil(count ** (1 / space)))
    places = np.array(list(itertools.product(range(side), repeat=space)))[:count]
    shift = noise * np.random.default_rng(seed).uniform(-1, 1, places.shape)
    return (spacing * (places + 0.5) + shift).ravel()


def pile(count, **options):
    """Disks of several sizes over the floor of a box, and where they start."""
    radii = 0.1 * np.random.default_rng(1).uniform(0.8, 1.2, count)
    q0 = grid(count, 0.26, noise=0.005)
    width = 0.26 * np.ceil(np.sqrt(count))
    return disks(radii, walls=[(0, width), (0, None)], gravity=9.81, **options), q0


def dense(radii, width):
    """The same constraints as one function of all coordinates."""
    i, j = np.triu_indices(len(radii), 1)

    def gaps(t, q, args):
        p = q.reshape(-1, 2)
        pairs = jnp.sqrt(jnp.sum((p[i] - p[j]) ** 2, axis=1)) - (radii[i] + radii[j])
        walls = jnp.stack([p[:, 0] - radii, width - radii - p[:, 0], p[:, 1] - radii], axis=1)
        return jnp.concatenate([pairs, walls.ravel()])

    return gaps


@pytest.fixture(scope="module")
def four():
    """Four disks that fall into a box: by all pairs, with rows of every step."""
    problem, q0 = pile(4, lists=False)
    return problem, q0, ji.solve(problem, q0, 0 * q0, t1=0.5, h=5e-3, scheme=ji.Maury(), execution="xla")


def test_stated_locally_and_as_one_function(four):
    problem, q0, local = four
    radii = 0.1 * np.random.default_rng(1).uniform(0.8, 1.2, 4)
    whole = problem.replace(constraints=dense(radii, 0.52))
    found = ji.solve(whole, q0, 0 * q0, t1=0.5, h=5e-3, scheme=ji.Maury(), execution="xla")
    # round-off of 100 steps
    for name in ("q", "v", "impulse"):
        assert np.allclose(getattr(local, name), getattr(found, name), rtol=0, atol=1e-11), name


@pytest.mark.parametrize(
    ("scheme", "e"),
    [
        pytest.param(ji.Maury(), 0.0, marks=pytest.mark.slow),  # test_bodies_analysis compares its impacts
        pytest.param(ji.MoreauJean(), 0.5, marks=pytest.mark.slow),
        pytest.param(ji.PaoliSchatzman(), 0.5, marks=pytest.mark.slow),
    ],
    ids=["maury", "moreau-jean", "paoli-schatzman"],
)
def test_listed_pairs_and_all_pairs(four, scheme, e):
    problem, q0, reference = four
    listed, _ = pile(4, lists=True)
    if e > 0:
        reference = ji.solve(problem, q0, 0 * q0, t1=0.5, h=5e-3, scheme=scheme, e=e)
    found = ji.solve(listed, q0, 0 * q0, t1=0.5, h=5e-3, scheme=scheme, projection=TIGHT, e=e)
    # positions of a metre are known to 32 roundings, over a step of 5 ms
    floor = 4e-12 if isinstance(scheme, ji.PaoliSchatzman) else 1e-12
    assert found.residual <= floor and not found.failed
    # 100 steps solved to 1e-12 m/s, of bodies whose impacts amplify what differs
    assert np.allclose(found.q, reference.q, rtol=0, atol=1e-9)
    assert np.allclose(found.v, reference.v, rtol=0, atol=1e-7)


@pytest.mark.parametrize("friction", [{}, slow({"friction": 0.3, "inertias": "solid"})], ids=["smooth", "rough"])
def test_listed_pairs_under_a_force_that_depends_on_the_velocity(friction):
    places = np.array([[0.2, 0.12], [0.2, 0.33]])
    start = np.concatenate([places, np.zeros((2, len(friction) // 2))], axis=1)
    down = jnp.zeros_like(start).at[:, 1].set(-9.81).ravel()
    found = []
    for lists in (True, False):
        problem = disks(
            np.full(2, 0.1), walls=[None, (0, None)], force=lambda t, q, v, args: down - v, lists=lists, **friction
        )
        # the method of lists, of all pairs too, to 1e-10 m/s in each of 50 steps
        solver = ConjugateGradients(tolerance=1e-10)
        found.append(
            ji.solve(
                problem, start.ravel(), 0 * start.ravel(), t1=0.1, steps=50, scheme=ji.MoreauJean(), projection=solver
            )
        )
    assert all(x.status == 0 for x in found) and found[0].impulse[-1].max() > 0
    # fixed-point iterations with lists, Newton's with all pairs: two leave (h/2)^2 of a velocity of 1 m/s in each step
    assert np.allclose(found[0].q[-1], found[1].q[-1], rtol=0, atol=50 * 1e-6 * 2e-3)


@pytest.mark.slow
def test_conjugate_gradients_of_any_contacts(four):
    problem, q0, reference = four
    found = ji.solve(problem, q0, 0 * q0, t1=0.5, h=5e-3, scheme=ji.Maury(), projection=TIGHT)
    # by products of dense contacts, as on other devices
    assert found.residual <= 1e-12 and np.allclose(found.q, reference.q, rtol=0, atol=1e-9)


@pytest.mark.parametrize("search", ["cells", "tree"])
@pytest.mark.parametrize(
    "box",
    [None, (1.3, 2.0), (3.0, 2.0, 1.3)]
    + [pytest.param(box, marks=pytest.mark.slow) for box in ((3.0, None), (3.0, 3.0), (None, None, 4.0))],
)
def test_neighbours_are_those_of_a_tree(search, box):
    space = 2 if box is None else len(box)
    rng = np.random.default_rng(4)
    points = rng.uniform(-1.0, 4.0, (150, space))
    points[0] = 1e3  # one that flew away
    if box is None:
        points[1] = 1e300  # as far as numbers go
    bodies = Bodies(150, lambda a, b, x, y: 0.0, 0.4, box=box, skin=0.1, search=search, pairs=6000, members=150)
    search = jax.jit(lambda q: bodies.neighbours(0.0, q, None))
    found = search(jnp.asarray(points.ravel()))
    lengths = np.array([0.0 if x is None else x for x in (box or (None,) * space)])
    inside = np.where(lengths > 0, points % np.where(lengths > 0, lengths, 1), points)
    expected = cKDTree(np.clip(inside, -1e9, 1e9), boxsize=lengths).query_pairs(0.5)
    count = int(found.pairs)
    assert not found.lost and count == len(expected) > 0
    pairs = list(zip(np.asarray(found.i)[:count].tolist(), np.asarray(found.j)[:count].tolist(), strict=True))
    assert pairs == sorted(expected)
    assert np.all(np.asarray(found.i)[count:] == 150)
    points[3] = np.nan  # of which no list has to grow
    found = search(jnp.asarray(points.ravel()))
    assert found.pairs == 0 and found.members == 0 and not found.lost


@pytest.mark.slow
def test_growing_disks_push_each_other_away():
    # two of different masses, far from a ring of equal ones
    count, growth = 24, 0.2
    angle = 2 * np.pi * np.arange(count) / count
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=1).ravel()
    radius = 0.9 * np.sin(np.pi / count)
    radii = np.append([0.3, 0.2], np.full(count, radius))
    rates, masses = np.append([0.1, 0.3], np.full(count, growth)), np.append([1.0, 3.0], np.ones(count))
    q0 = np.concatenate([[10.0, 0.0, 10.6, 0.0], ring])
    problem = disks(radii, growth=rates, masses=masses)
    found = ji.solve(problem, q0, 0 * q0, t1=1.0, h=1e-2, projection=TIGHT).raise_if_failed()
    # they touch at t = 0.25, and then are as far apart as their radii say; the centre of mass stays
    expected = np.array([10.45 - 0.9 * 3 / 4, 0, 10.45 + 0.9 / 4, 0])
    assert np.allclose(found.q[-1, :4], expected, rtol=0, atol=1e-11)
    assert np.allclose(found.v[-1, :4], [-0.3, 0, 0.1, 0], rtol=0, atol=1e-11)
    # distances of neighbours are linear in the ring's radius, so that the scheme is exact
    wide = (radius + growth) / np.sin(np.pi / count)
    assert wide > 1.1
    assert np.allclose(found.q[-1, 4:], wide * ring, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_an_inelastic_chain_beside_a_column():
    count, gap, h = 12, 0.05, 1e-2
    row = np.stack([(2 + gap) * np.arange(count), np.ones(count)], axis=1).ravel()
    column = np.stack([np.full(count, -9.0), 0.5 + np.arange(count)], axis=1).ravel()
    radii = np.repeat([0.5, 1.0], count)
    problem = disks(radii, walls=[None, (0, None)], gravity=10.0, masses=np.repeat([2.0, 1.0], count))
    v0 = np.zeros(4 * count)
    v0[2 * count] = 1.0
    meet = gap * sum(range(1, count))  # the k-th is reached after gaps of k bodies moving at 1/k
    found = ji.solve(problem, np.append(column, row), v0, t1=meet + 1.0, h=h, projection=TIGHT).raise_if_failed()
    chain = np.asarray(found.q[-1]).reshape(-1, 2)[count:]
    assert np.allclose(np.diff(chain[:, 0]), 2.0, rtol=0, atol=1e-10)
    assert np.allclose(np.asarray(found.v[-1])[2 * count :: 2], 1 / count, rtol=0, atol=1e-10)
    # momentum, hence the centre of mass
    start = np.mean(row[::2])
    assert np.isclose(np.mean(chain[:, 0]), start + (meet + 1.0) / count, rtol=0, atol=1e-10)
    assert found.pairs.shape == (*found.impulse.shape, 2)
    pairs, impulse = np.asarray(found.pairs[-1]), np.asarray(found.impulse[-1])
    carried = {tuple(p): x for p, x in zip(pairs.tolist(), impulse, strict=True) if x > 0 and p[0] < count}
    # each contact carries the weight above it over a step; obstacle 0 is -1
    expected = {(0, -1): count} | {(i, i + 1): count - 1 - i for i in range(count - 1)}
    assert carried.keys() == expected.keys()
    assert all(np.isclose(carried[k], expected[k] * 20.0 * h, rtol=1e-9) for k in expected)


@pytest.fixture(scope="module")
def heap():
    """Twelve disks that come to rest in a box, and how."""
    problem, q0 = pile(12)
    return problem, q0, ji.solve(problem, q0, 0 * q0, **HEAP).raise_if_failed()


HEAP = {"t1": 1.0, "h": 2e-3, "save": 20}


@pytest.mark.slow
@pytest.mark.parametrize("count", [12, 60])
def test_a_pile_loses_energy_and_never_overlaps(count, heap):
    if count == 12:
        found = heap[2]
    else:
        problem, q0 = pile(count)
        found = ji.solve(problem, q0, 0 * q0, **HEAP).raise_if_failed()
    energy = np.asarray(found.energy)
    # of a scheme of first order energy dips by h g v at most within a step, and grows by none: solved to 1e-8 m/s
    assert np.max(np.diff(energy)) < 1e-6 * energy[0]
    assert energy[-1] < 0.9 * energy[0]
    # linearised gaps of convex constraints are kept: 500 steps at 1e-8 m/s
    assert found.penetration < 1e-8


@pytest.mark.slow
def test_momentum_in_a_periodic_box():
    rng = np.random.default_rng(2)
    q0, v0 = grid(27, 1.0, space=3, noise=0.1), rng.normal(size=81)
    v0 -= np.tile(v0.reshape(-1, 3).mean(axis=0), 27)
    problem = spheres(np.full(27, 0.35), periodic=(3.0, 3.0, 3.0), restitution=0.6)
    found = ji.solve(problem, q0, v0, t1=1.0, h=5e-3, scheme=ji.MoreauJean(), save=10).raise_if_failed()
    momentum = np.asarray(found.v).reshape(len(found.t), -1, 3).sum(axis=1)
    assert np.max(np.abs(momentum)) < 1e-12 * 27
    energy = np.asarray(found.energy)
    assert energy[-1] < 0.8 * energy[0]


@pytest.mark.slow
def test_bodies_too_fast_for_the_list(heap):
    problem, q0, _ = heap
    found = ji.solve(problem, q0, np.full(24, -50.0), **HEAP)
    assert int(found.status) & ji.Status.GAP_UNRESOLVED and found.failed


@pytest.mark.slow
def test_a_reach_that_becomes_too_short():
    gap = lambda a, b, r, s: jnp.sqrt(jnp.sum((a - b) ** 2)) - (r + s)
    problem, q0 = still(gap=gap, each=lambda t, args: jnp.full(10, 0.5) + 0.1 * t)
    found = ji.solve(problem, q0, 0 * q0, t1=1.0, h=0.25, save="final")
    assert int(found.status) & ji.Status.GAP_UNRESOLVED and found.failed


WEAK = {"t1": 0.4, "h": 4e-3, "save": 25}


@pytest.fixture(scope="module")
def weak():
    """Three piles of listed disks, their starts and args, and how they fall; the force of the last is no number from
    t = 0.1 on."""
    problem, q0 = pile(4, force=lambda t, q, v, args: jnp.where(args > 0.5, jnp.sqrt(0.1 - t), 0.0) + 0 * q, lists=True)
    starts, args = np.stack([q0, q0 + 0.003, q0]), np.array([0.0, 0.0, 1.0])
    return problem, starts, args, ji.ensemble(problem, starts, 0 * starts, args=args, args_axes=0, **WEAK)


@pytest.mark.parametrize("alone", [slow(True), False])
def test_an_ensemble_is_its_motions(weak, alone):
    problem, starts, args, many = weak
    assert many.failed.tolist() == [False, False, True]
    assert many.status[2] & ji.Status.NON_FINITE
    # which the others do not feel, to the last bit
    good = ji.ensemble(problem, starts, 0 * starts, args=0 * args, args_axes=0, **WEAK)
    assert not np.any(good.failed)
    for name in ("q", "v", "impulse", "residual", "iterations", "status"):
        assert np.array_equal(getattr(many, name)[:2], getattr(good, name)[:2]), name
    for lane in range(2 * alone):
        one = ji.solve(problem, starts[lane], 0 * starts[lane], args=args[lane], **WEAK)
        # the same arithmetic, in another order
        assert np.allclose(many.q[lane], one.q, rtol=0, atol=1e-9)
        assert np.array_equal(many.pairs[lane], one.pairs)


@pytest.mark.slow
def test_single_precision_stays_single():
    problem, q0 = pile(12)
    q0 = q0.astype(np.float32)
    found = ji.solve(problem, q0, [0.0] * 24, t1=0.5, h=np.float32(5e-3), projection=ConjugateGradients(tolerance=1e-4))
    for name in ("t", "q", "v", "z", "impulse", "energy", "penetration", "residual"):
        assert getattr(found, name).dtype == jnp.float32, name
    assert not found.failed
    assert found.residual < 1e-3 and found.penetration < 1e-5


def test_a_file_keeps_pairs(weak, tmp_path):
    found = weak[3]
    back = ji.load(found.save(tmp_path / "pile.npz"))
    np.testing.assert_array_equal(back.pairs, found.pairs)
    np.testing.assert_array_equal(back.impulse, found.impulse)


def still(**changes):
    """Ten disks on a line, and where they are."""
    stated = {"number": 10, "gap": lambda a, b, x, y: jnp.sqrt(jnp.sum((a - b) ** 2)) - 1.0, "reach": 1.0}
    force = lambda t, q, v, args: 0 * q
    return ji.Problem(force, Bodies(**stated | changes)), np.stack([1.1 * np.arange(10), np.zeros(10)], axis=1).ravel()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reach": 0.5}, "reach is 0.5, too small: body . and another like it have gap -0.5"),
        ({"gap": lambda a, b, x, y: a[0] + 2.0 - 0 * b[0]}, r"gap\(q_i, q_j, a_i, a_j\) is not symmetric"),
        ({"number": 7}, "q0 has 20 coordinates, which 7 bodies cannot share"),
        ({"number": 4}, "a body has 5 coordinates: give Bodies"),
        ({"gap": lambda a, b, x, y: a - b}, "must return one number"),
        ({"each": lambda t, args: jnp.ones(3)}, "leading axis of 10 bodies"),
        ({"obstacles": lambda t, x, a: x[0]}, r"must return shape \(k,\)"),
        ({"box": (1.0,)}, "has 1 lengths, positions have 2"),
        ({"reach": -1.0}, "must be a positive number"),
        ({"number": 0}, "whole number >= 1"),
        ({"search": "octree"}, "choose 'cells', 'tree' or None"),
        ({"box": (2.0, None)}, "no longer than"),
        ({"number": 4, "box": (1.5, None)}, "1.5 is shorter than twice the reach, 1:"),
        ({"box": 5.0}, "one for each direction of position; got 5.0"),
        ({"lists": "yes"}, "choose True, False or None"),
        ({"reach": lambda t, args: jnp.nan + 0 * t}, r"reach\(t, args\) must return a positive number, got nan at t0"),
        ({"gap": lambda a, b, x, y: jnp.nan * a[0]}, "constraints are not finite at q0"),
    ],
)
def test_statements_that_cannot_be_right(changes, message):
    with pytest.raises(ValueError, match=message):
        problem, q0 = still(**changes)
        if problem.constraints.number == 4 and problem.constraints.box:
            q0 = q0[:8]
        ji.solve(problem, q0, 0 * q0, t1=0.1, h=1e-2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: still(gap=lambda a, b, x, y: 1)[0],
            r"gap\(q_i, q_j, a_i, a_j\) must return a real number, got dtype int",
        ),
        (lambda: disks(["a"]), r"radii must be numbers, got \['a'\]"),
        (lambda: disks([]), r"radii must have shape \(N,\), one for each body, got shape \(0,\)"),
        (lambda: disks([1.0], walls=3), r"walls must be 2 pairs \(lower, upper\), one for each direction; got 3"),
        (lambda: disks([1.0], walls=[("a", None), None]), "walls must be numbers, got 'a'"),
    ],
)
def test_arguments_that_are_no_numbers(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        problem = make()
        ji.solve(problem, np.zeros(20), np.zeros(20), t1=0.1, h=1e-2)


def test_bodies_that_overlap():
    problem, q0 = still(gap=lambda a, b, x, y: jnp.sqrt(jnp.sum((a - b) ** 2)) - 1.2, reach=1.2)
    with pytest.raises(ValueError, match=r"9 pairs of bodies overlap at t0, the most bodies \d and \d by 0.1"):
        ji.solve(problem, q0, 0 * q0, t1=0.1, h=1e-2)
    # in one place, where their gaps have no gradient
    with pytest.raises(ValueError, match=r"45 pairs of bodies overlap at t0, the most bodies \d and \d by 1.2"):
        ji.solve(problem, 0 * q0, 0 * q0, t1=0.1, h=1e-2)


def test_room_that_no_memory_has():
    count = 100_000
    with pytest.raises(
        ValueError, match=r"room for \d{10} pairs of 100000 bodies .* takes .* GiB of memory.*all in one place"
    ):
        ji.solve(disks(np.ones(count)), np.zeros(2 * count), np.zeros(2 * count), t1=0.1, h=1e-2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": ji.EventCorrected()}, "EventCorrected takes no list of near pairs: use Maury"),
        ({"scheme": ji.PaoliSchatzman(metric="geodesic")}, "PaoliSchatzman takes no list"),
        ({"scheme": ji.PaoliSchatzman(force="centred")}, "force='centred'.* takes no list.*use force='explicit'"),
        ({"scheme": ji.PaoliSchatzman(normal="explicit")}, "normal='explicit'.* takes no list.*use normal='implicit'"),
        ({"projection": ji.ActiveSet()}, "use ConjugateGradients"),
        ({"projection": ji.ADMM()}, "use ConjugateGradients"),
        ({"execution": "native"}, "takes no list"),
        ({"e": np.zeros(3)}, "one number"),
        ({"e": 0.5}, "inelastic impacts only"),
    ],
)
def test_methods_without_lists(options, message):
    problem, q0 = still()
    with pytest.raises(ValueError, match=message):
        ji.solve(problem, q0, 0 * q0, t1=0.1, h=1e-2, **options)


def test_mass_matrix_of_listed_bodies():
    problem, q0 = still()
    with pytest.raises(ValueError, match="of listed bodies give a number, a diagonal"):
        ji.solve(problem.replace(mass=np.eye(20)), q0, 0 * q0, t1=0.1, h=1e-2)


def narrow(lists):
    """Five disks of radii in ``args`` that fall into a narrow box."""

    def gap(a, b, r, s):
        return jnp.sqrt(jnp.sum((a - b) ** 2)) - (r + s)

    def walls(t, x, r):
        return jnp.stack([x[1] - r, x[0] - r, 1.2 - x[0] - r])

    # not the same everywhere: disks that fall together would push each other by round-off alone
    weight = lambda t, q, v, args: jnp.tile(jnp.stack([0 * args["g"], -args["g"]]), 5) - 3.0 * q
    return ji.Problem(weight, Bodies(5, gap, 0.5, obstacles=walls, each=lambda t, args: args["r"], lists=lists))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [ji.Maury(), ji.PaoliSchatzman()], ids=["maury", "paoli-schatzman"])
@pytest.mark.parametrize("sensitivity", ["discrete", "corrected"])
def test_derivatives_are_those_of_dense_constraints(sensitivity, scheme):
    q0 = jnp.array([0.2, 0.3, 0.6, 0.35, 1.0, 0.3, 0.4, 0.75, 0.8, 0.8])
    radii = jnp.array([0.12, 0.15, 0.13, 0.14, 0.16])

    def end(q, radii, g, lists):
        options = {"scheme": scheme, "projection": TIGHT if lists else ji.ActiveSet(), "sensitivity": sensitivity}
        args = {"r": radii, "g": g}
        return ji.solve(narrow(lists), q, 0 * q, t1=0.45, steps=90, args=args, save="final", **options).q[-1]

    jacobians = {}
    for name, derivative, lists in (
        ("dense", jax.jacfwd, False),
        ("forward", jax.jacfwd, True),
        ("reverse", jax.jacrev, True),
    ):
        found = derivative(end, argnums=(0, 1, 2))(q0, radii, jnp.asarray(9.81), lists)
        jacobians[name] = np.concatenate([np.asarray(x).reshape(10, -1) for x in found], axis=1)
    assert np.max(np.abs(jacobians["dense"])) > 1
    # both modes differentiate the same steps
    assert np.allclose(jacobians["forward"], jacobians["reverse"], rtol=0, atol=1e-9)
    # impulses to 1e-12 m/s, and which contacts act is no matter of round-off
    assert np.allclose(jacobians["forward"], jacobians["dense"], rtol=0, atol=1e-9)


@pytest.mark.slow
def test_velocities_after_an_impact_have_the_derivative_at_their_time():
    pull = lambda t, q, v, args: -20.0 * q

    def end(state, lists):
        problem, projection = disks([0.2, 0.25], force=pull, lists=lists), TIGHT if lists else ji.ActiveSet()
        options = {"scheme": ji.PaoliSchatzman(), "e": 0.5, "projection": projection, "save": "final"}
        found = ji.solve(problem, state[:4], state[4:], t1=0.3, steps=30, **options)
        return jnp.concatenate([found.q[-1], found.v[-1]])

    state = jnp.array([-0.5, 0.02, 0.6, 0.0, 3.0, 0.0, -1.0, 0.2])
    dense = jax.jacfwd(end)(state, False)
    # apart again: velocities lag by h/2, which the derivative makes up for by h/2 da/dq = 0.1 dq; 1e-12 m/s over 30
    # steps
    assert np.allclose(jax.jacrev(end)(state, True), dense, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("lists", [False, True])
def test_an_impact_at_the_end_is_told_of_lists_as_of_all_pairs(lists):
    """Two disks fly at each other and meet at .14 s: a derivative is not to be trusted where a motion ends just behind
    that, and later it is."""
    problem, projection = disks([0.2, 0.25], lists=lists), TIGHT if lists else ji.ActiveSet()
    options = {"scheme": ji.Maury(), "projection": projection, "sensitivity": "corrected", "save": "final"}
    ends = [ji.solve(problem, [-0.5, 0, 0.6, 0], [3.0, 0, -1.7, 0], t1=t1, h=1e-2, **options) for t1 in (0.14, 0.3)]
    assert [ji.Status(int(found.status)) for found in ends] == [ji.Status.DERIVATIVE_AT_END, ji.Status.OK]
