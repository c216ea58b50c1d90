"""A trusted derivative is right on systems of whole numbers, where motions touch, rest, graze and meet walls at one time as random ones never do.

States, velocities, forces, springs and a magnetic field of 0, 1 or 2, walls along the axes, oblique or curved. Trusted Jacobians are compared with differences of
located motions to either side, as far as the start may be moved there.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji

T1 = 1.7321  # no time at which whole numbers meet
SIDE = 1e-5  # of differences, off by its root where a start falls back to a wall
ACCURATE = ji.EventDriven(1e-12, 1e-12)
WALLS = {
    "two": lambda t, q, args: q,
    "oblique": lambda t, q, args: jnp.stack([q[0], q[0] + q[1]]),
    "box": lambda t, q, args: jnp.concatenate([q, 2.0 - q]),
    "curved": lambda t, q, args: jnp.stack([q[0], 4.0 - q[0] ** 2 - q[1] ** 2]),
}
# a located motion has the derivative to the accuracy of the differences; the others to O(h), times what an impact makes of it
SCHEMES = {
    "EventDriven": (ji.EventDriven(1e-11, 1e-11), 1, 1e-2),
    "EventCorrected": (ji.EventCorrected(), 1500, 1e-2),
    "MoreauJean": (ji.MoreauJean(), 3000, 0.05),
    "PaoliSchatzman": (ji.PaoliSchatzman(), 3000, 0.05),
    "Maury": (ji.Maury(), 3000, 0.05),
}


def force(t, q, v, args):
    return args["force"] - args["spring"] * q - args["drag"] * v + args["field"] * jnp.stack([v[1], -v[0]])


def draws(problem, count, seed, elastic):
    """Starts (B, 2), args and restitution (B,) of systems whose start is admissible."""
    rng = np.random.default_rng(seed)
    q, v = rng.choice([-1.0, 0.0, 1.0, 2.0], (count, 2)), rng.choice([-1.0, 0.0, 1.0], (count, 2))
    args = {"force": rng.choice([-1.0, 0.0, 1.0], (count, 2)), "spring": rng.choice([0.0, 0.0, 1.0, 2.0], count),
            "drag": rng.choice([0.0, 0.5], count), "field": rng.choice([0.0, 0.0, 1.0], count)}  # fmt: skip
    e = rng.choice([0.5, 1.0], count)
    if not elastic:
        # a plastic stop in a field alone has no force on it, and is not told from one that lasts
        args["field"], e = 0 * args["field"], 0 * e
    inside = admissible(problem, q, v)
    return q[inside], v[inside], {name: x[inside] for name, x in args.items()}, e[inside]


def admissible(problem, q, v):
    """Starts (B,) that are on no wall's other side, and do not point there."""
    gaps = lambda q, v: jax.jvp(lambda q: problem.gaps(0.0, q, None), (q,), (v,))
    found = [[np.asarray(x) for x in gaps(jnp.asarray(q), jnp.asarray(v))] for q, v in zip(q, v, strict=True)]
    return np.array([np.all(gap >= 0) and np.all(rate[gap == 0] >= 0) for gap, rate in found])


def differences(problem, q, v, args, e):
    """Of the end of located motions, (4, 2, B, 4): by each entry of the start, to either side; NaN where it may not be moved there."""

    def end(q, v):
        found = ji.ensemble(problem, q, v, t1=T1, steps=1, args=args, args_axes=0, e=e, scheme=ACCURATE, save="final")
        return np.concatenate([found.q[:, -1], found.v[:, -1]], axis=1), ~np.asarray(found.failed)

    middle, sound = end(q, v)
    found = np.full((4, 2, *middle.shape), np.nan)
    for entry in range(4):
        for side, sign in enumerate((1, -1)):
            moved = np.concatenate([q, v], axis=1)
            moved[:, entry] += sign * SIDE
            inside = admissible(problem, moved[:, :2], moved[:, 2:])
            there, fine = end(*np.split(np.where(inside[:, None], moved, np.concatenate([q, v], axis=1)), 2, axis=1))
            known = (inside & fine & sound)[:, None]
            found[entry, side] = np.where(known, (there - middle) / (sign * SIDE), np.nan)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("elastic", [True, False], ids=["elastic", "plastic"])
@pytest.mark.parametrize("walls", WALLS)
def test_a_trusted_derivative_is_right(walls, elastic):
    problem = ji.Problem(force, WALLS[walls])
    q, v, args, e = draws(problem, 150, 5, elastic)
    either = differences(problem, q, v, args, e)
    for name, (scheme, steps, tolerance) in SCHEMES.items():
        if name == "Maury" and elastic:
            continue
        found = ji.sensitivities(problem, q, v, t1=T1, steps=steps, args=args, args_axes=0, e=e, scheme=scheme)
        jacobian = np.concatenate(
            [
                np.concatenate([found.jacobian[y][x].reshape(-1, 2, 2) for x in ("q0", "v0")], axis=2)
                for y in ("q", "v")
            ],
            axis=1,
        )
        by_entry = np.moveaxis(jacobian, 2, 0)[:, None]
        off = np.max(np.abs(by_entry - either), axis=-1) > tolerance * (1 + np.max(np.abs(either), axis=-1))
        wrong = np.any(off, axis=(0, 1)) & np.asarray(found.trusted)
        assert not wrong.any(), (name, np.flatnonzero(wrong), q[wrong], v[wrong])
        # many starts are on a wall, or at rest on one
        assert np.mean(found.trusted) > 0.3, name
