"""A derivative across a jump of the force, the mass or the velocity of a gap in contact is right or not trusted;
across a kink it is trusted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from support.breadth import slow, slow_but

SCHEMES = [ji.PaoliSchatzman(), ji.MoreauJean(), ji.EventCorrected()]
KNOTS = np.linspace(-2.0, 2.0, 9)
G = 9.81


def over(schemes, default=slice(-1, None)):
    """A test for some schemes, and in the slow suite for the others."""
    fast = schemes[default]
    marks = [() if s in fast else pytest.mark.slow for s in schemes]
    return pytest.mark.parametrize(
        "scheme", [pytest.param(s, marks=m) for s, m in zip(schemes, marks, strict=True)], ids=repr
    )


def named(cases, others=()):
    """A test for each case; in the slow suite for ``others``, which are made of the same operations."""
    return pytest.mark.parametrize("name", slow_but(cases.keys() - set(others), cases))


def read(table):
    return lambda q: jnp.interp(q, jnp.asarray(KNOTS, q.dtype), jnp.asarray(table, q.dtype))


def added(step):
    """A loop of three turns."""
    return lambda q: jax.lax.fori_loop(0, 3, lambda i, y: 0.5 * y - step(q - 0.1 * i), jnp.zeros_like(q))


def counted(q):
    """Counts quarters in q, in a loop whose number of turns depends on q."""
    return jax.lax.while_loop(lambda x: x[0][0] > 0.25, lambda x: (x[0] - 0.25, x[1] + 1), (q, jnp.zeros_like(q)))[1]


def summed(q):
    """A loop whose number of turns is not static, with a jump inside."""
    turn = lambda x: (x[0] + 1, x[1] - jnp.where(q > 0.2, 1.0, 0.0))
    return jax.lax.while_loop(lambda x: x[0] < 3, turn, (0, jnp.zeros_like(q)))[1]


def cube_root(q):
    """Solves x + x^3 = q by Newton's method."""
    off = lambda x: x + x**3 - q
    turn = lambda x: x - off(x) / (1 + 3 * x * x)
    return jax.lax.while_loop(lambda x: jnp.abs(off(x))[0] > 1e-10, turn, q)


def near_cut(x):
    return jnp.arctan2(-x, jnp.full_like(x, -1.0))


def where_positive(x):
    return jnp.where(x > 0, 1.0, 0.0)


JUMPS = {
    "where": lambda t, q, v, s: -jnp.where(q > 0, 1.0, 0.0),
    "threshold in args": lambda t, q, v, s: -jnp.where(q > 0.1 * s, 1.0, 0.0),
    "time in args": lambda t, q, v, s: jnp.where(t < s, jnp.ones_like(q), -jnp.ones_like(q)),
    "sign": lambda t, q, v, s: -2.0 * jnp.sign(v - 0.30123),
    "floor": lambda t, q, v, s: -jnp.floor(1.5 * q),
    "remainder": lambda t, q, v, s: jnp.mod(q + 0.3, 1.0),
    "cut of an angle": lambda t, q, v, s: near_cut(q),
    "cond": lambda t, q, v, s: jax.lax.cond(q[0] > 0, lambda q: -q - 1.0, lambda q: -q, q),
    "loop": lambda t, q, v, s: added(where_positive)(q),
    "loop that counts": lambda t, q, v, s: counted(q),
    "loop of unknown length": lambda t, q, v, s: summed(q),
    "integer": lambda t, q, v, s: -((q > 0).astype(jnp.int32) * 3).astype(q.dtype),
    "place": lambda t, q, v, s: jnp.asarray([0.5, -1.0], q.dtype)[jnp.argmax(jnp.stack([0 * q[0], q[0]]))][None],
    "staircase": lambda t, q, v, s: jnp.take(jnp.asarray(KNOTS), jnp.searchsorted(jnp.asarray(KNOTS), -q)),
    "angle of a ratio": lambda t, q, v, s: -0.5 - 0.3 * jnp.arctan(1.0 / q),
    "angle of a tangent": lambda t, q, v, s: -0.5 + 0.2 * jnp.arctan(jnp.tan(3 * q)),
    "length of one number": lambda t, q, v, s: -0.5 - q / jnp.linalg.norm(q),
    "length by powers": lambda t, q, v, s: -0.5 - (q * jax.lax.rsqrt(q @ q) + q / (q[0] ** 4) ** 0.25) / 2,
    "length but at rest": lambda t, q, v, s: -0.5 - q / jnp.sqrt(jnp.where(q @ q > 0, q @ q, 1.0)),
    "length by a logarithm": lambda t, q, v, s: -0.5 - q / jnp.cbrt(q * q) * jnp.exp(-jnp.log(q**2) / 6),
    "with a kink": lambda t, q, v, s: -jnp.where(q > 0, 1.0, 0.0) - 0.1 * jnp.abs(q - 1e-3),
}
# [[dq/dq0, dq/dv0], [dv/dq0, dv/dv0]] at 1.5: from q = -1 at v = 1 the one crosses at t = 1, the other slows down by 2
# until it slides, by v0 - c in all
EXACT = {"where": [[0.5, 1.0], [-1.0, 0.0]], "sign": [[1.0, (1 - 0.30123) / 2], [0.0, 0.0]]}
# the lengths: q grows by 1/2 until it is zero at the speed 2^(1/2), then falls by 3/2
TIME, SPEED = 2 * (2**0.5 - 1), 2**0.5 - 1.5 * (1.5 - 2 * (2**0.5 - 1))
BY_LENGTH = [
    [-(0.125**0.5) * (1.5 - TIME) + SPEED * 0.5**0.5, 0.5**0.5 * (1.5 - TIME) + SPEED * 2 * (1 - 0.5**0.5)],
    [-(2**0.5), 0.5**0.5 - 3 * (1 - 0.5**0.5)],
]
EXACT |= {name: BY_LENGTH for name in JUMPS if name.startswith("length")}
KINKS = {
    "smooth": lambda t, q, v, s: -q,
    "abs": lambda t, q, v, s: -jnp.abs(q),
    "play": lambda t, q, v, s: 30.0 * (jnp.maximum(-0.1 - q, 0.0) - jax.nn.relu(q - 0.1)),
    "clip": lambda t, q, v, s: -jnp.clip(q, -0.1, 0.1),
    "drag": lambda t, q, v, s: -1.0 - v * jnp.abs(v),
    "table": lambda t, q, v, s: read(KNOTS**2)(q),
    "equal branches": lambda t, q, v, s: jnp.where(q > 0, q * q, jnp.sin(q)),
    "fitted pieces": lambda t, q, v, s: jnp.where(q > 0, 1.0 + q * q, 1.0000001 + q),
    "cube root": lambda t, q, v, s: -jnp.cbrt(q),
    "root of one side": lambda t, q, v, s: jnp.where(q > 0.013, jnp.sqrt(q - 0.013), 0.0),
    "triangle wave": lambda t, q, v, s: jnp.abs(jnp.mod(q + 0.3, 1.0) - 0.5),
    "closed angle": lambda t, q, v, s: jnp.sin(near_cut(q)),
    "largest": lambda t, q, v, s: -jnp.max(jnp.stack([q, 0.5 * q, 0 * q]), axis=0),
    "sorted": lambda t, q, v, s: -jnp.sort(jnp.stack([q[0], 0.5 * q[0], 0 * q[0]]))[1:2],
    "magnitude": lambda t, q, v, s: -jnp.abs(jax.lax.complex(q, jnp.ones_like(q))),
    "loop": lambda t, q, v, s: added(jnp.abs)(q),
    "loop that converges": lambda t, q, v, s: cube_root(q),
    "fixed time": lambda t, q, v, s: jnp.where(t < 0.4, jnp.ones_like(q), -jnp.ones_like(q)),
    "a branch of data": lambda t, q, v, s: jnp.where(s > 0.2, -q, q),
}


def status_of(problem, q0, v0, scheme, t1=1.5, **kwargs):
    """Status of a motion whose derivatives are taken."""
    found = ji.solve(problem, q0, v0, t1=t1, h=0.01, scheme=scheme, sensitivity="corrected", **kwargs)
    return ji.Status(int(found.status))


@over(SCHEMES)
@named(JUMPS, JUMPS.keys() - {"sign"})
def test_jump_of_a_force_is_told_or_right(scheme, name):
    problem, q0, v0, options = ji.Problem(JUMPS[name]), [-1.0], [1.0], {"t1": 1.5, "args": 0.5, "wrt": ("q0", "v0")}
    found = ji.sensitivities(problem, q0, v0, h=0.005, scheme=scheme, **options)
    if not found.trusted:
        # an implicit scheme may fail at a jump, which speaks against a derivative too
        told = ji.Status.DERIVATIVE_JUMP | ji.Status.STEP_UNSTABLE
        assert int(found.status) & int(told)
        return
    slopes = lambda found: [[found.jacobian[x][by].item() for by in ("q0", "v0")] for x in "qv"]
    if (right := EXACT.get(name)) is None:
        driven = ji.sensitivities(problem, q0, v0, steps=3, scheme=ji.EventDriven(), **options)
        assert driven.trusted
        right = slopes(driven)
    # of h times the speed and the forces, or its square where jumps are located
    np.testing.assert_allclose(slopes(found), right, atol=3e-4 if scheme == SCHEMES[2] else 0.03)


LOCATED = [(ji.EventCorrected(), {"h": 0.00501}), (ji.EventDriven(order=5), {"steps": 300})]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "scheme", "options"),
    [
        ("place", *LOCATED[0]), *(slow("speed", *located) for located in LOCATED), slow("place", *LOCATED[1]),
        *(slow("place, turned over", *located) for located in LOCATED),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)  # fmt: skip
def test_a_number_divided_by_its_length_has_the_derivatives_of_a_sign(of, scheme, options):
    """On one side q/(-q) is constant, but near zero its computed slope is rounding over q."""
    forces = {
        "place": lambda t, q, v, s: -0.5 - q / jnp.linalg.norm(q),
        "place, turned over": lambda t, q, v, s: -0.5 - jnp.abs(q) / q,
        "speed": lambda t, q, v, s: -1.0 - 0.3 * v / jnp.linalg.norm(v),
    }
    call = {"t1": 1.5, "args": 0.5, "wrt": ("q0", "v0"), "scheme": scheme, **options}
    found = ji.sensitivities(ji.Problem(forces[of]), [-1.0], [1.0], **call)
    # from the speed 1 it stops at the time 1/1.3, then falls by 0.7
    of_speed = [[1.0, 1 / 1.3 + 0.7 / 1.3 * (1.5 - 1 / 1.3)], [0.0, 0.7 / 1.3]]
    assert found.trusted
    slopes = [[found.jacobian[x][by].item() for by in ("q0", "v0")] for x in "qv"]
    # the root of the rounding, at which slopes are least in error
    np.testing.assert_allclose(slopes, of_speed if of == "speed" else BY_LENGTH, atol=1e-7)


@pytest.mark.parametrize("name", ["floor", slow("cut of an angle"), slow("cond"), "place", "loop"])
def test_operations_that_jump_are_seen(name):
    """By motions that start on their surface, which have no derivative."""
    assert status_of(ji.Problem(JUMPS[name]), [0.0], [1.0], SCHEMES[2], 0.1, args=0.5) == ji.Status.DERIVATIVE_JUMP


def test_jumps_inside_a_loop_of_unknown_length_are_told():
    """One lane counts in a loop, one asks in it, one converges."""
    forces = [counted, summed, cube_root]
    problem = ji.Problem(lambda t, q, v, n: jax.lax.switch(n, forces, q))
    call = {"t1": 0.4, "h": 0.01, "scheme": SCHEMES[2], "args_axes": 0, "progress": False, "wrt": "v0"}
    found = ji.sensitivities(problem, np.zeros((3, 1)), np.ones((3, 1)), args=np.arange(3), **call)
    assert found.status.tolist() == [ji.Status.DERIVATIVE_JUMP, ji.Status.DERIVATIVE_JUMP, 0]


KINKED = [
    "triangle wave",
    "closed angle",
    "root of one side",
    "cube root",
    "smooth",
    "clip",
    "table",
    "largest",
    "fitted pieces",
    "a branch of data",
    "sorted",
    "equal branches",
    "loop that converges",
    "drag",
]


@over(SCHEMES)
@named(KINKS, KINKED)
def test_kink_of_a_force_is_no_jump(scheme, name):
    status = status_of(ji.Problem(KINKS[name]), [-1.0], [1.0], scheme, args=0.5)
    expected = ji.Status.OK
    if "root" in name:
        # its slope is infinite, and its derivative no number or inaccurate
        status &= ~ji.Status.STEP_UNSTABLE
        expected = ji.Status.DERIVATIVE_JUMP
    assert status == expected


@over([*SCHEMES, ji.EventDriven()], default=slice(0, 1))
@pytest.mark.parametrize(("force", "told"), [slow(KINKS["table"], 0), (JUMPS["staircase"], ji.Status.DERIVATIVE_JUMP)])
def test_start_on_an_entry_of_a_table(scheme, force, told):
    """The next turn of a search in a table asks of other entries on the other side, where nothing but the first may
    jump; zero has a rate, too."""
    starts = [(q, v) for q in KNOTS[1:-1] for v in (1.0, -1.0)]
    found = [status_of(ji.Problem(force), [q], [v], scheme, t1=0.1, args=0.5) for q, v in starts]
    assert found == [told] * len(starts)


# a drag that jumps with the velocity, where contacts rub: `MoreauJean` passes it in no free flight
DRAGGED = ji.Problem(
    lambda t, q, v, args: jnp.stack([-1.0 - jnp.where(v[0] > 0.5, 1.0, 0.0), -10 + 0 * q[1]]), lambda t, q, args: q[1:],
    slip=lambda t, q, v, args: v[:1], friction=0.02,
)  # fmt: skip


def test_wrong_derivative_across_a_jump_is_not_trusted():
    assert status_of(DRAGGED, [0.0, 0.0], [1.0, 0.0], SCHEMES[1], 0.4) == ji.Status.DERIVATIVE_JUMP


def test_values_alone_have_no_doubts():
    for scheme in SCHEMES[::2]:
        found = ji.solve(ji.Problem(JUMPS["where"]), [-1.0], [1.0], t1=1.5, h=0.01, args=0.5, scheme=scheme)
        assert int(found.status) == 0


@pytest.mark.parametrize(("scheme", "within"), [(SCHEMES[1], 0.02), slow(SCHEMES[2], 1e-9)], ids=["steps", "located"])
def test_fixed_time_of_a_jump_matters_to_derivatives_by_time(scheme, within):
    """F = 1 up to t = .4, then -1: dv/dt0 = dv/dt1 = -1, not the mean force, to 2 h by steps."""
    clock, options = ji.Problem(KINKS["fixed time"]), {"args": 0.5, "scheme": scheme}
    found = ji.sensitivities(clock, [0.0], [1.0], t1=1.0, h=0.01, wrt=("q0", "t0", "t1"), **options)
    assert found.trusted
    np.testing.assert_allclose([found.jacobian["v"][x].item() for x in ("q0", "t0", "t1")], [0, -1, -1], atol=within)


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "within"), [(SCHEMES[1], 0.02), (SCHEMES[2], 1e-9)], ids=["steps", "located"])
def test_fixed_time_of_a_jump_matters_where_jax_differentiates(scheme, within):
    def last(t1):
        found = ji.solve(ji.Problem(KINKS["fixed time"]), [0.0], [1.0], t1=t1, steps=100, args=0.5, scheme=scheme)
        return found.v[-1, 0], found.status

    slope, status = jax.jacfwd(last, has_aux=True)(1.0)
    assert status == 0 and abs(slope + 1) < within


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_impact_that_turns_the_velocity_crosses_nothing(scheme):
    # the force of a drag that is not even jumps with the velocity at an impact, and the saltation knows of that
    ball = ji.Problem(lambda t, q, v, args: -G - jnp.where(v > 0, 2.0, 1.0), lambda t, q, args: q, restitution=0.7)
    found = ji.sensitivities(ball, [1.0], [-0.1], t1=0.55, h=1e-3, scheme=scheme, wrt="q0")
    # w = sqrt(v0^2 + 2 a q0) at t*, then e w - (g + 2) (t1 - t*)
    down, up = G + 1, G + 2
    slope = (0.7 * down + up) / np.sqrt(0.01 + 2 * down)
    assert found.trusted and abs(found.jacobian["v"]["q0"].item() - slope) < 0.01 * slope  # O(h)


@over(SCHEMES[:2])
def test_forces_that_balance_at_rest_cross_nothing(scheme):
    held = ji.Problem(lambda t, q, v, args: -G - jnp.sign(v), lambda t, q, args: q)
    assert status_of(held, [0.0], [0.0], scheme, 0.5) == 0


def plane(t, q, v, args):
    return jnp.zeros_like(q).at[-1].set(-G)


def over_terrain(height):
    return lambda t, q, s: q[1:] - height(q[:1])


def wall(shape):
    return lambda t, q, s: q - shape(t, s)


# gaps, q0, v0, e, and whether something jumps in contact
GAPS = {
    "wall that falls away": (wall(lambda t, s: jnp.where(t < s, t, 2 * s - t)), [0.0], [1.0], 0.0, True),
    "wall that comes": (wall(lambda t, s: jnp.maximum(0.0, t - s)), [0.0], [0.0], 0.0, True),
    "wall in flight": (wall(lambda t, s: jnp.where(t < s, t, 2 * s - t)), [2.0], [1.0], 0.5, False),
    "valley of lines": (over_terrain(jnp.abs), [-0.25, 0.25], [1.0, -1.0], 0.0, True),
    "valley of lines in flight": (over_terrain(read(np.abs(KNOTS))), [-0.25, 3.0], [1.0, 0.0], 0.0, False),
    "plane as a table": (over_terrain(read(0.3 * KNOTS)), [-0.6, -0.18], [0.7, 0.21], 0.0, False),
    "round valley": (over_terrain(lambda x: jnp.where(x > 0, x * x, 0.0)), [-0.3, 0.0], [1.0, 0.0], 0.0, False),
    "edge that falls away": (
        over_terrain(lambda x: -jnp.where(x > 0, 9 * x * x, 0.0)),
        [-0.3, 0.0],
        [1.0, 0.0],
        0.0,
        True,
    ),
    "edge to follow": (over_terrain(lambda x: -jnp.where(x > 0, 4 * x * x, 0.0)), [-0.3, 0.0], [1.0, 0.0], 0.0, False),
    "step down": (over_terrain(lambda x: jnp.where(x > 0, -1.0, 0.0)), [-0.3, 0.0], [1.0, 0.0], 0.0, True),
}


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        (scheme, name)
        if (scheme == SCHEMES[2] and name in ("wall in flight", "valley of lines"))
        or (scheme, name) in ((SCHEMES[1], "valley of lines"), (SCHEMES[1], "edge that falls away"))
        else slow(scheme, name)
        for scheme in (*SCHEMES, ji.Maury(), ji.EventDriven())
        for name in GAPS
    ],
    ids=repr,
)
def test_kink_of_a_gap_counts_in_contact(scheme, name):
    gaps, q0, v0, e, jumps = GAPS[name]
    if e and scheme == ji.Maury():
        return
    status = status_of(ji.Problem(plane, gaps), q0, v0, scheme, 0.48, args=0.25, e=e)
    assert (ji.Status.DERIVATIVE_JUMP in status) == jumps or ji.Status.CONTACTS_NOT_SOLVED in status


def heavier(q0):
    """(q, v) at 1.5 of q'' = -q up to 0, with velocity 1 at the start, and of 2 q'' = -q behind it."""
    rest, speed, rate = 1.5 - jnp.arctan(-q0), jnp.sqrt(1 + q0**2), jnp.sqrt(0.5)
    return jnp.stack([speed / rate * jnp.sin(rate * rest), speed * jnp.cos(rate * rest)])


@pytest.mark.parametrize("step", [where_positive, slow(jax.nn.relu)])
def test_mass_that_jumps_is_located(step):
    cart = ji.Problem.from_potential(lambda q, args: 0.5 * q @ q, mass=lambda q, args: jnp.diag(1.0 + step(q)))
    options = {"t1": 1.5, "wrt": "q0"}
    found = ji.sensitivities(cart, [-1.0], [1.0], h=0.01, scheme=SCHEMES[2], **options)
    assert found.trusted
    if step is where_positive:
        right = jax.jit(jax.jacfwd(heavier))(-1.0)
    else:
        driven = ji.sensitivities(cart, [-1.0], [1.0], steps=3, scheme=ji.EventDriven(), **options)
        right = [driven.jacobian[output]["q0"].item() for output in "qv"]
    np.testing.assert_allclose([found.jacobian[output]["q0"].item() for output in "qv"], right, atol=3e-4)  # of h^2


@over(SCHEMES)
def test_friction_steeper_than_a_step_is_told(scheme):
    # v0 / (mu g) is right, 0 at rest; a step changes the velocity by .03, and the width of the friction is .001
    def force(t, q, v, width):
        return jnp.stack([-0.3 * G * jnp.tanh(v[0] / width), jnp.asarray(-G, q.dtype)])

    block, speeds = ji.Problem(force, lambda t, q, args: q[1:]), np.append(np.linspace(0.9, 1.1, 21), 0.0)
    v0 = np.stack([speeds, 0 * speeds], axis=1)
    for width, trusted in ((1e-6, False), (1e-3, False), (0.1, True)):
        found = ji.sensitivities(block, 0 * v0, v0, t1=1.0, h=0.01, args=width, scheme=scheme, wrt="v0")
        slopes = found.jacobian["q"]["v0"][:, 0, 0] * 0.3 * G
        right = np.append(np.abs(slopes[:-1] / speeds[:-1] - 1) < 0.1, np.abs(slopes[-1]) < 2 * width)
        assert np.all(right | ~found.trusted) and np.all(found.trusted[:-1]) == trusted


# pulled against dry friction on a belt, from rest on it
PULLED = ji.Problem(lambda t, q, v, args: args["pull"] - args["drag"] * jnp.sign(v - args["belt"]))
STARTED = [(ji.MoreauJean(), 200), (ji.EventDriven(order=5), 1)]
STARTED += [slow(s, 200) for s in (ji.EventCorrected(), ji.PaoliSchatzman(), ji.Maury())]


def by(problem, q0, v0, wrt, scheme, steps, **options):
    return ji.sensitivities(problem, q0, v0, wrt=wrt, steps=steps, scheme=scheme, **options)


BEGUN = {"t1": 1.0, "args": {"pull": 3.0, "drag": 1.0, "belt": 0.0}}


@pytest.mark.parametrize(("scheme", "steps"), [slow(*STARTED[0]), *STARTED[1:]], ids=lambda x: type(x).__name__)
def test_a_start_on_a_border_matters_to_what_moves_the_start(scheme, steps):
    """Off the border, and along it."""
    off, along = (by(PULLED, [0.0], [0.0], wrt, scheme, steps, **BEGUN) for wrt in ("v0", "q0"))
    assert off.status == ji.Status.DERIVATIVE_JUMP
    assert along.trusted and abs(along.jacobian["q"]["q0"].item() - 1) < 1e-12


@pytest.mark.parametrize(
    ("scheme", "steps"), [STARTED[0], *(slow(*x) for x in STARTED[1:2]), *STARTED[2:]], ids=lambda x: type(x).__name__
)
def test_a_start_on_a_border_matters_to_what_moves_the_border(scheme, steps):
    """v = (pull - drag) t on one side, by whatever leaves start and border where they are; to the order of the scheme,
    h = 1/200."""

    def place(some):
        found = ji.solve(PULLED, [0.0], [0.0], t1=1.0, args=BEGUN["args"] | some, steps=steps, scheme=scheme)
        return found.q[-1, 0], found.status

    forward = jax.jacfwd(place, has_aux=True)
    found, status = forward({"pull": 3.0, "drag": 1.0})
    assert status == 0
    within = 1e-8 if steps == 1 else 1.5 / steps
    np.testing.assert_allclose([found["pull"], found["drag"]], [0.5, -0.5], rtol=0, atol=within)
    assert int(forward({"belt": 0.0})[1]) == ji.Status.DERIVATIVE_JUMP
    assert by(PULLED, [0.0], [0.0], "args", scheme, steps, **BEGUN).status == ji.Status.DERIVATIVE_JUMP


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "steps"), STARTED[1:], ids=lambda x: type(x).__name__)
def test_a_force_that_begins_at_the_start_matters_to_derivatives_by_it(scheme, steps):
    switched = ji.Problem(lambda t, q, v, args: jnp.where(t > 1.0, args, 2.0 * args) + 0 * q)
    told = lambda wrt: by(switched, [0.0], [0.0], wrt, scheme, steps, t0=1.0, t1=2.0, args=3.0).status
    assert told("t0") == ji.Status.DERIVATIVE_JUMP and told(("args", "q0")) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "steps"), STARTED[1:], ids=lambda x: type(x).__name__)
def test_a_border_at_a_wall_on_which_the_start_is_put_matters_to_the_walls_place(scheme, steps):
    force = lambda t, q, v, args: jnp.stack([1.0 + jnp.where(q[1] > 0.5, 1.0, 0.0), -9.81])
    walled = ji.Problem(force, lambda t, q, args: q[1:] - args)

    def place(wall):
        found = ji.solve(walled, [0.0, 0.5], [0.0, 0.0], t1=1.0, steps=steps, scheme=scheme, args=wall)
        return found.q[-1, 0], found.status

    assert int(jax.jacfwd(place, has_aux=True)(0.5)[1]) & ji.Status.DERIVATIVE_JUMP
