"""A motion is one, however it is computed: by native code and by XLA, among others and alone, forwards and backwards,
in single precision.

Of every kind of problem, by every scheme that takes it. `test_methods` asks the same of a ball,
of every scheme there is.
"""

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import catalogue
from support import static_friction
from support.experiments.friction import DISK, MOTIONS
from support.sliding_bodies import IN_SPACE
from support.symplectic_euler import SymplecticEuler

G = 9.81
SCHEMES = {
    "PaoliSchatzman": ji.PaoliSchatzman(),
    "MoreauJean": ji.MoreauJean(),
    "Maury": ji.Maury(),
    "EventCorrected": ji.EventCorrected(),
    "EventDriven": ji.EventDriven(trials=60),  # a bound, without which there is no way back
    "SymplecticEuler": SymplecticEuler(),  # as users write one
}
FRICTION = ("MoreauJean", "Maury", "EventCorrected", "EventDriven")


class Case(NamedTuple):
    """A problem, its start, its numbers, options of the call, and the schemes that take it."""

    problem: ji.Problem
    q0: Any
    v0: Any
    args: dict[str, Any]
    options: dict[str, Any]
    schemes: tuple[str, ...]


def force(t, q, v, args):
    turning = jnp.stack([0.05 * v[1] ** 2, -0.1 * v[0] * v[1]])  # of the mass below
    return jnp.stack([-G - args["drag"] * v[0], -args["k"] * q[1]]) + turning


def weight(t, q, v, args):
    return jnp.stack([0 * t, args["g"] + 0 * t])


WALLED = ji.Problem(
    force,
    lambda t, q, args: jnp.stack([q[0] - 0.1 * q[1], 1.5 - q[1]]),
    mass=lambda q, args: jnp.diag(jnp.stack([jnp.ones_like(q[0]), 2.0 + 0.1 * q[0]])),
)
PUCK = ji.Problem(
    lambda t, q, v, args: 0 * q,
    lambda t, q, args: jnp.stack([q[0], 1 - q[0]]),
    restitution=lambda w, args: jnp.stack([jnp.ones_like(w[0]), args["c"]]) * (1 - 0.1 * w),
)
PENDULUM = ji.Problem(
    weight,
    lambda t, q, args: q[:1] + args["wall"],
    joints=lambda t, q, args: (jnp.sqrt(q @ q) - 1)[None],
    restitution=0.5,
)
LADDER = ji.Problem(
    lambda t, q, v, args: jnp.stack([0 * t, args["g"] + 0 * t, 0 * t]),
    lambda t, q, args: jnp.stack([q[1] - jnp.sin(q[2]), q[0] - jnp.cos(q[2])]),
    mass=np.array([1.0, 1.0, 1 / 3]),
)
PUSHED = ji.Problem(
    lambda t, q, v, args: -q - args["drag"] * v - jnp.where(q > args["place"] + 0.1 * t, args["push"], 0.0)
)
BELT = ji.Problem(lambda t, q, v, args: -q - args["hold"] * jnp.sign(v - args["belt"]))
BALL = ji.Problem(lambda t, q, v, args: jnp.full_like(q, -args["g"]), lambda t, q, args: q, restitution=0.8)
DRAWN = ji.Problem(
    lambda t, q, v, args: jnp.stack([args["k"] * t * (1.5 - t), -G + 0 * t]), lambda t, q, args: q[1:],
    slip=lambda t, q, v, args: v[:1], friction=lambda args: args["mu"], static_friction=lambda args: args["mu"] + 0.1,
)  # fmt: skip
THROWN, _, _ = MOTIONS["bounces, slips, sticks"]
SHAKEN, (PLACE, SPEED), END, _ = static_friction.MOTIONS["oscillator"]
RESTS = ji.Events(impacts=4, kinds=("break", "stop"))
CASES = {
    "M(q)": Case(WALLED, [0.3, 0.5], [-1.0, 2.0], {"k": 3.0, "drag": 0.1}, {"t1": 0.6, "e": 0.6}, tuple(SCHEMES)),
    "friction": Case(
        DISK, THROWN["q0"], THROWN["v0"], {x: float(THROWN[x]) for x in ("mu", "gx", "gy", "R", "I")},
        {"t1": 1.3, "e": float(THROWN["e"])}, FRICTION,
    ),
    "static friction": Case(
        static_friction.BLOCK, [PLACE, 0.0], [SPEED, 0.0],
        {"mu": 0.3, "static": 0.45} | static_friction.NUMBERS | SHAKEN, {"t1": END, "e": 0.0}, FRICTION,
    ),
    "friction in space": Case(
        IN_SPACE, np.zeros(3), [1.0, 0.4, 0.0], {"mu": 1.0, "g": 0.5}, {"t1": 0.9}, (FRICTION[0], *FRICTION[2:]),
    ),
    "restitution of the speed": Case(
        PUCK, [0.4], [1.3], {"c": 0.3}, {"t1": 2.0}, ("MoreauJean", "EventCorrected", "EventDriven")
    ),
    "joints": Case(
        PENDULUM, [np.sin(1.2), -np.cos(1.2)], [0.0, 0.0], {"g": -G, "wall": 0.3}, {"t1": 0.8},
        ("MoreauJean", "EventCorrected", "EventDriven"),
    ),
    "contacts that turn": Case(
        LADDER, [np.cos(1.0), np.sin(1.0), 1.0], [0.3 * np.sin(1.0), -0.3 * np.cos(1.0), -0.3], {"g": -G}, {"t1": 0.3},
        ("EventDriven", "MoreauJean"),
    ),
    "a force that jumps": Case(
        PUSHED, [-1.0], [1.4], {"drag": 0.2, "place": 0.3, "push": 0.7}, {"t1": 1.6},
        ("MoreauJean", "PaoliSchatzman", "EventCorrected", "EventDriven"),
    ),
    "a force that holds": Case(
        BELT, [1.0], [-0.8], {"hold": 1.0, "belt": 0.5}, {"t1": 6.0}, ("EventDriven", "EventCorrected")
    ),
    "an end": Case(
        BALL, [1.3], [0.0], {"g": G}, {"t1": 3.0, "until": lambda t, q, v, args: q[0] - 0.5, "save": [0.1]},
        ("EventDriven",)
    ),
    "impacts kept": Case(BALL, [1.3], [0.0], {"g": G}, {"t1": 2.6, "save": ji.Events(impacts=6)}, ("EventDriven",)),
    "events kept": Case(DRAWN, [0.0, 0.0], [0.0, 0.0], {"k": 8.0, "mu": 0.3}, {"t1": 1.9, "save": RESTS},
    ("EventDriven",)),
}  # fmt: skip


def of_catalogue(name, **more):
    entry = catalogue.get(name)
    case = next(iter(entry.cases.values()))
    schemes = [x for x in SCHEMES if x != "Maury" or not case.restitution]
    return Case(
        entry.problem, case.q0, case.v0, case.args, {"t1": case.t1, "e": case.restitution} | more, tuple(schemes)
    )


OWN = tuple(CASES)
CASES |= {name: of_catalogue(name) for name in ("bowl", "polar-particle", "groove", "adly-thieu")}
CASES["bowl, gradients"] = of_catalogue("bowl", projection=ji.ProjectedGradient())._replace(schemes=("PaoliSchatzman",))
# what the default suite asks of
CHEAP = [("M(q)", "PaoliSchatzman"), ("friction", "MoreauJean"), ("a force that jumps", "MoreauJean")]


def every(default=(), names=CASES, first=False):
    """Of every case by every scheme, or by the first; in the slow suite but for some."""
    pairs = [(name, x) for name in names for x in CASES[name].schemes[: 1 if first else None]]
    marks = [[] if pair in default else [pytest.mark.slow] for pair in pairs]
    return pytest.mark.parametrize(
        ("name", "scheme"), [pytest.param(*p, marks=m, id="-".join(p)) for p, m in zip(pairs, marks, strict=True)]
    )


def solve(name, scheme, args, shift=0.0, **options):
    case = CASES[name]
    given = {"save": "final"} | case.options | options
    if scheme == "Maury":
        given["e"] = 0.0
    steps = {} if scheme == "EventDriven" else {"steps": 200}
    q0, v0 = (jnp.asarray(x, jnp.result_type(shift)) for x in (case.q0, case.v0))
    return ji.solve(case.problem, q0, v0 + shift, args=args, scheme=SCHEMES[scheme], **steps, **given)


def numbers(found):
    """All that a motion tells but for the work that it took: real numbers, and the others."""
    told = (
        found.t,
        found.q,
        found.v,
        found.impulse,
        found.friction_impulse,
        found.joint_impulse,
        found.stopped,
        found.events,
    )
    leaves = jax.tree.leaves(told)
    is_real = [jnp.issubdtype(x.dtype, jnp.floating) for x in leaves]
    return [x for x, y in zip(leaves, is_real, strict=True) if y], (
        [x for x, y in zip(leaves, is_real, strict=True) if not y],
        found.status,
        found.failed,
    )


def pushed(name, scheme, args, shift=0.0, **options):
    """Numbers of a motion whose start is faster by a shift, their derivative along all args, and the rest."""

    def told(args, shift):
        return numbers(solve(name, scheme, args, shift, **options))

    change = jax.tree.map(jnp.ones_like, args), jnp.zeros_like(shift)
    return jax.jvp(told, (args, shift), change, has_aux=True)


@cache
def alone(name, scheme):
    """A motion with changed numbers, by itself."""
    args = {key: jnp.asarray(0.99 * x) for key, x in CASES[name].args.items()}
    return jax.jit(lambda: pushed(name, scheme, args, jnp.zeros(())))()


def close(found, expected, within):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=within, atol=within * (1 + np.nanmax(np.abs(y), initial=0)))


def check_lanes(name, scheme, execution):
    """The last lane is NaN and fails, no other does; a few roundings a step, amplified by impacts."""
    args = CASES[name].args
    scales, shifts = jnp.array([1.0, 0.99, 1.0]), jnp.array([0.0, 0.0, np.nan])
    lanes = {key: jnp.multiply.outer(scales, x) for key, x in args.items()}
    run = lambda args, shift: pushed(name, scheme, args, shift, execution=execution)
    *found, (rest, status, failed) = jax.jit(jax.vmap(run))(lanes, shifts)
    *expected, (its_rest, its_status, its_failed) = alone(name, scheme)
    close([x[1] for x in jax.tree.leaves(found)], expected, 1e-8)
    close([x[1] for x in rest], its_rest, 0)
    assert (
        status[1] == its_status and failed.tolist()[1:] == [its_failed, True] and np.all(status & ~sum(ji.Status) == 0)
    )


@every(default=CHEAP)
def test_a_lane_is_the_motion_alone_whatever_the_others(name, scheme):
    """With its derivative."""
    check_lanes(name, scheme, "native")


@every(first=True)
def test_lanes_of_xla_are_motions_of_native_code(name, scheme):
    check_lanes(name, scheme, "xla")


@every(names=OWN)
def test_backwards_is_forwards(name, scheme):
    """Derivatives by the start and by all numbers: the same sums in another order, amplified by impacts."""

    def end(args, shift):
        found = solve(name, scheme, args, shift)
        times = [] if found.events is None else [jnp.nan_to_num(found.events.t)]
        return jnp.concatenate([found.q[-1], found.v[-1], found.t[-1:], *times])

    at = jax.tree.map(jnp.asarray, CASES[name].args), jnp.zeros(len(CASES[name].v0))
    forward, backward = (jax.jit(by(end, (0, 1)))(*at) for by in (jax.jacfwd, jax.jacrev))
    close(backward, forward, 1e-8)
    assert any(np.any(np.abs(x) > 0.1) for x in jax.tree.leaves(forward))


@every(default=[("static friction", "EventDriven")], names=OWN)
def test_single_precision_stays_and_has_its_digits(name, scheme):
    """With its derivative: roundings of 200 steps, amplified by impacts."""
    low, high = (
        pushed(name, scheme, jax.tree.map(kind, CASES[name].args), kind(0)) for kind in (np.float32, np.float64)
    )
    close(low[0], high[0], 2e-3)
    close(low[1], high[1], 2e-2)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(low[:2])) and not low[2][2]
