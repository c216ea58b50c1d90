"""What cannot raise sets a bit: data that are traced, steps that are too large,
constraints and masses gone bad on the way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import Status
from jaximpact.mechanics.status import BEFORE, CAUSES, bit_numbers, translate_bits
from support import methods
from support.breadth import slow, slow_but

SCHEMES = [methods.SCHEMES[name].scheme for name in methods.EVERY]
EXPLICIT = [
    ji.PaoliSchatzman(),
    ji.PaoliSchatzman(force="mean"),
    ji.Maury(),
    ji.MoreauJean(theta=0.0),
    ji.EventCorrected(),
]


def over(schemes):
    """A test for the first scheme, and in the slow suite for the others."""
    return pytest.mark.parametrize("scheme", slow_but(schemes[:1], schemes), ids=repr)


fall = lambda t, q, v, args: jnp.full_like(q, -10.0)
floor = lambda t, q, args: q
spring = lambda t, q, v, args: -args["k"] * q - args["c"] * v
BETWEEN = ji.Problem(spring, lambda t, q, args: jnp.concatenate([0.8 - q, 0.8 + q]))


def has(solution, bit):
    return np.asarray(solution.status & int(bit)) != 0


H = 0.01
# one vmapped program a scheme: (q0, restitution, stiffness, damping, walls at +-, t1), and the bit that is due
LANES = {
    "fine": (0.5, 0.0, 1.0, 0.0, 0.8, 2.0, 0),
    "outside": (0.81, 0.0, 1.0, 0.0, 0.8, 2.0, Status.INPUT_INVALID),
    "on the wall": (0.8, 0.0, 1.0, 0.0, 0.8, 2.0, 0),
    "e < 0": (0.5, -0.1, 1.0, 0.0, 0.8, 2.0, Status.INPUT_INVALID),
    "e > 1": (0.5, 1.5, 1.0, 0.0, 0.8, 2.0, Status.INPUT_INVALID),
    "e NaN": (0.5, np.nan, 1.0, 0.0, 0.8, 2.0, Status.INPUT_INVALID),
    "backwards": (0.5, 0.0, 1.0, 0.0, 0.8, -2.0, Status.INPUT_INVALID),
    "near the bound": (0.5, None, (1.9 / H) ** 2, 0.0, 0.8, 2.0, 0),
    "stiff": (0.5, None, (2.1 / H) ** 2, 0.0, 0.8, 2.0, Status.STEP_UNSTABLE),
    "stiffer": (0.5, None, (3.0 / H) ** 2, 0.0, 0.8, 2.0, Status.STEP_UNSTABLE),
    "very stiff": (0.5, None, (100.0 / H) ** 2, 0.0, 0.8, 2.0, Status.STEP_UNSTABLE),
    "damped": (0.5, None, 1.0, 1.9 / H, 1e300, 2.0, 0),
    "too damped": (0.5, None, 1.0, 2.1 / H, 1e300, 2.0, Status.STEP_UNSTABLE),
    "far too damped": (0.5, None, 1.0, 30 / H, 1e300, 2.0, Status.STEP_UNSTABLE),
}
BITS = Status.INPUT_INVALID | Status.STEP_UNSTABLE


@over(EXPLICIT)
def test_data_that_are_traced_and_steps_too_large_set_bits(scheme):
    """The walls keep finite what is unstable."""
    system = ji.Problem(spring, lambda t, q, args: jnp.concatenate([args["wall"] - q, args["wall"] + q]))
    bouncing = 0.0 if isinstance(scheme, ji.Maury) else 0.5

    def motion(q0, e, k, c, wall, t1):
        args = {"k": k, "c": c, "wall": wall}
        return ji.solve(system, q0[None], [0.3], t1=t1, steps=200, args=args, e=e, scheme=scheme, save="final")

    table = [[bouncing if x is None else x for x in lane[:-1]] for lane in LANES.values()]
    found = jax.vmap(motion)(*map(jnp.array, zip(*table, strict=True)))
    set_bits = {name: int(status) & int(BITS) for name, status in zip(LANES, found.status, strict=True)}
    assert set_bits == {name: int(lane[-1]) for name, lane in LANES.items()}
    failed = np.array([lane[-1] != 0 for lane in LANES.values()])
    assert np.all(np.isfinite(found.failed_at[failed]))
    assert found.failed_at[1] == 0.0


def test_maury_says_that_a_traced_restitution_is_not_its_own():
    ball = ji.Problem(fall, floor)
    found = jax.jit(lambda e: ji.solve(ball, [0.01], [0.0], t1=0.1, steps=10, e=e, scheme=ji.Maury()))(0.5)
    assert has(found, Status.INPUT_INVALID)


def test_ensembles_notice_instability_as_a_motion_does():
    args = {"k": np.array([1.9e2, 1e4]) ** 2, "c": 0.0}
    found = ji.ensemble(BETWEEN, [0.5], [0.3], t1=2.0, h=0.01, args=args, args_axes={"k": 0, "c": None})
    np.testing.assert_array_equal(has(found, Status.STEP_UNSTABLE), [False, True])


def test_implicit_schemes_take_stiff_forces():
    for scheme, t1, k, c in ((ji.MoreauJean(), 2.0, 1e8, 0.0), (ji.PaoliSchatzman(force="centred"), 0.5, 3.5e4, 50.0)):
        assert not ji.solve(BETWEEN, [0.5], [0.3], t1=t1, h=0.01, args={"k": k, "c": c}, scheme=scheme).failed


@over(EXPLICIT)
def test_a_force_that_varies_in_time_is_not_taken_for_a_stiff_one(scheme):
    """A body in lasting contact under forces that are switched and reverse within few steps."""
    push = lambda t, q, v, args: 100 * jnp.sign(jnp.sin(args * t)) * jnp.ones_like(q) - 1.0
    for rate in (1e2, 1e3):
        found = ji.solve(ji.Problem(push, floor), [0.0], [0.0], t1=2.0, h=0.01, args=rate, scheme=scheme, save="final")
        assert not found.failed, rate


# a force that jumps, read in steps of h = 0.01: (v0, push, friction, stiffness of a staircase), and whether a step
# resolves it
JUMPS = {
    "friction stops a body": (1.0, 0.0, 4.0, 0.0, True),
    "friction holds a body": (0.0, 1.0, 10.0, 0.0, True),
    "friction loses against a push": (0.0, 3.0, 2.0, 0.0, True),
    "a brake that stops it in a step": (1.3, 0.0, 300.0, 0.0, False),
    "a brake that holds it": (0.0, -1.0, 1e6, 0.0, False),
    "a staircase": (1.0, 0.0, 0.0, (0.5 / H) ** 2, True),
    "a staircase that is too stiff": (1.0, 0.0, 0.0, (3.0 / H) ** 2, False),
}


@pytest.mark.parametrize("scheme", [SCHEMES[0], slow(SCHEMES[1]), SCHEMES[2]], ids=repr)
def test_a_jump_of_the_force_is_no_stiffness(scheme):
    """What holds a body leaves it h times the jump of velocity, and that over the time of the motion, 1."""

    def force(t, q, v, args):
        return args["push"] - args["friction"] * jnp.sign(v) - args["k"] * 1e-3 * jnp.round(q / 1e-3)

    v0, push, friction, k, _ = map(np.array, zip(*JUMPS.values(), strict=True))
    args = {"push": push, "friction": friction, "k": k}
    common = {"t1": 1.0, "h": H, "args": args, "args_axes": 0, "scheme": scheme}
    found = ji.ensemble(ji.Problem(force), [0.5], v0[:, None], **common)
    failed = dict(zip(JUMPS, np.asarray(found.failed), strict=True))
    assert failed == {name: not lane[-1] for name, lane in JUMPS.items()}
    ends = 0.5 + np.array([v0[0] ** 2 / 2 / friction[0], 0, (push[2] - friction[2]) / 2])
    jumps = 2 * friction[:3]
    assert np.all(np.abs(found.q[:3, -1, 0] - ends) <= H * (jumps + np.abs(v0[:3])))
    assert np.all(np.abs(found.v[:3, -1, 0] - [0, 0, 1.0]) <= H * jumps)


@over(SCHEMES)
def test_a_mass_that_loses_its_symmetry_sets_a_bit(scheme):
    mass = lambda q, args: jnp.eye(2) + jnp.where(q[0] > args, 0.2, 0.0) * jnp.array([[0.0, 1.0], [0.0, 0.0]])
    free = ji.Problem(lambda t, q, v, args: jnp.zeros(2), lambda t, q, args: q, mass)
    found = ji.solve(free, [0.4, 1.0], [1.0, 0.0], t1=0.2, h=0.01, args=0.5, scheme=scheme)
    assert has(found, Status.MASS_INVALID) and abs(found.failed_at - 0.1) < 0.03
    assert not ji.solve(free, [0.4, 1.0], [1.0, 0.0], t1=0.2, h=0.01, args=9.0, scheme=scheme).failed


@over([ji.Maury(), ji.MoreauJean(), ji.EventCorrected()])
def test_a_contact_whose_gradient_vanishes_sets_a_bit(scheme):
    """The set q^2 >= 0 is everything, yet its linearisations push; EventCorrected passes through it, as is right, but
    stops at q^3. A narrow bowl is clean."""
    power = 3 if isinstance(scheme, ji.EventCorrected) else 2

    def told(gap, q0, v0):
        system = ji.Problem(lambda t, q, v, args: -jnp.eye(2)[1], lambda t, q, args: jnp.stack([gap(q)]))
        found = ji.solve(system, q0, v0, t1=2.0, h=1e-2, scheme=scheme, save="final")
        return has(found, Status.CONTACTS_NOT_SOLVED)

    assert told(lambda q: q[1] ** power, [0.0, 1.0], [0.0, 0.0])
    assert not told(lambda q: q[1] - jnp.cos(3 * q[0]), [0.5, 1.0], [0.3, 0.0])


@pytest.mark.parametrize("h", [1e-2, slow(1e-3)])
def test_newtons_method_that_does_not_converge_sets_a_bit(h):
    """v' = q^3 from (1, 1/sqrt 2 + 1/2): infinite in finite time; it is,
    or it says that the step's equation is not solved."""
    system, options = ji.Problem(lambda t, q, v, args: args * q**3, floor), {"h": h, "scheme": ji.MoreauJean()}
    blown, steep = (ji.solve(system, [1.0], [1.0], t1=t1, args=a, **options) for t1, a in ((1.6, 1.0), (0.5, -1.0)))
    assert blown.failed and steep.status == 0


@over(SCHEMES)
def test_float32_moves_by_less_than_the_resolution_of_its_position(scheme):
    free = ji.Problem(lambda t, q, v, args: jnp.zeros_like(q), floor)
    found = ji.solve(free, np.float32([10.0]), np.float32([4e-4]), t1=1.0, h=1e-3, scheme=scheme, save="final")
    # a rounding of the final position, and 1000 of the increments
    np.testing.assert_allclose(found.q[-1, 0], 10.0004, rtol=0, atol=1.2 * np.finfo(np.float32).eps * 8)


def test_float32_tells_a_micrometre_from_contact():
    ball = ji.Problem(fall, floor)
    scheme = ji.MoreauJean()
    found = ji.solve(ball, np.float32([1e-6]), np.float32([-1.0]), t1=0.01, h=1e-3, e=0.5, scheme=scheme, save="final")
    assert not has(found, Status.START_VELOCITY_PROJECTED) and found.v[-1, 0] > 0.3


def test_a_gap_without_a_derivative_at_its_zero_fails_at_a_time():
    bad = ji.Problem(fall, lambda t, q, args: jnp.sqrt(q - 1))
    found = ji.solve(bad, [1.0], [0.0], t1=0.1, h=0.01)
    assert found.failed and np.isfinite(found.failed_at)


def test_a_body_at_rest_is_stable_whichever_way_its_forces_are_rounded():
    """Native code works out a product within a sum to more digits than alone:
    9.81 * 10 and 98.1 balance in one of two places."""
    hung = ji.Problem(lambda t, q, v, args: jnp.where(v < 0, 98.1 - 9.81 * args, 0.0), floor, 10.0)
    found = ji.solve(hung, [1.0], [1e-19], t1=1.0, h=0.01, args=10.0, save="final")
    assert 9.81 * 10 != 98.1 and found.status == 0


@pytest.mark.parametrize("execution", ["native", slow("xla")])
def test_a_stack_at_rest_is_stable(execution):
    """Masses 1 and 10 under gravity and a spring; h times the frequency is .03."""
    masses = np.array([1.0, 10.0])
    stack = ji.Problem(
        lambda t, q, v, args: -9.81 * args * masses - args * q,
        lambda t, q, args: jnp.stack([q[0], q[1] - q[0] - 1]),
        masses,
    )
    for scheme in (ji.EventCorrected(), ji.PaoliSchatzman()):
        found = ji.solve(stack, [0.0, 1.0], [0.0, 0.0], t1=1.0, h=0.01, args=7.3, scheme=scheme, execution=execution)
        assert found.status == 0


def test_bits_are_few_and_their_old_names_and_numbers_are_known():
    """At most 20 bits, so that int32 has room for those of others; every name and number
    of before means one of them."""
    assert len(list(Status)) <= 20 and set(CAUSES) == set(Status) and max(Status) < 1 << 31
    assert set(BEFORE) <= set(Status.__members__)
    for name, number in BEFORE.items():
        assert translate_bits(np.array([number, 0], np.int32), BEFORE).tolist() == [int(Status[name]), 0]
    everything = sum(BEFORE.values())
    known = sum(bit_numbers().values())
    assert translate_bits(np.int32([everything]), BEFORE)[0] == known - Status.GAP_NOT_DISTANCE
    assert translate_bits(np.int32([known]), bit_numbers())[0] == known
