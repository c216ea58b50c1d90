"""A trusted derivative is right on systems of whole numbers, where motions touch, rest, graze and meet walls at one
time as random ones never do.

States, velocities, forces, springs and a magnetic field of 0, 1 or 2, walls along the axes, oblique or curved. Trusted
Jacobians are compared with differences of located motions to either side, as far as the start may be moved there.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji

WRT = ("q0", "v0", "args", "e", "t1")
T1 = 1.7321  # no time at which whole numbers meet
SIDE = 1e-5  # of differences, off by its root where a start falls back to a wall
# of e = 0: of a contact that soon lets go again the bounces by SIDE may last until then, and the difference is another
# one
LITTLE = 1e-7
ACCURATE = ji.EventDriven(1e-12, 1e-12)
WALLS = {
    "two": lambda t, q, args: q,
    "oblique": lambda t, q, args: jnp.stack([q[0], q[0] + q[1]]),
    "box": lambda t, q, args: jnp.concatenate([q, 2.0 - q]),
    "curved": lambda t, q, args: jnp.stack([q[0], 4.0 - q[0] ** 2 - q[1] ** 2]),
}
# surfaces on which the force jumps: at times and places of whole numbers, which walls and starts have, too
SURFACES = {
    "time": lambda t, q, v: t - 1.0,
    "place": lambda t, q, v: q[0] - 1.0,
    "oblique": lambda t, q, v: q[0] + q[1] - 2.0,
    "speed": lambda t, q, v: v[1],
}
# a located motion has the derivative to the accuracy of the differences; the others to O(h), times what an impact makes
# of it
SCHEMES = {
    "EventDriven": (ji.EventDriven(1e-11, 1e-11), 1, 1e-2),
    "EventCorrected": (ji.EventCorrected(), 1500, 1e-2),
    "MoreauJean": (ji.MoreauJean(), 3000, 0.05),
    "PaoliSchatzman": (ji.PaoliSchatzman(), 3000, 0.05),
    "Maury": (ji.Maury(), 3000, 0.05),
}


def force(t, q, v, args):
    return args["force"] - args["spring"] * q - args["drag"] * v + args["field"] * jnp.stack([v[1], -v[0]])


def jumping(surface):
    """The force, and behind a surface one more."""

    def found(t, q, v, args):
        return force(t, q, v, args) + jnp.where(surface(t, q, v) > 0, args["jump"], 0 * args["jump"])

    return found


def draws(problem, count, seed, elastic):
    """Starts (B, 2), args and restitution (B,) of systems whose start is admissible."""
    rng = np.random.default_rng(seed)
    q, v = rng.choice([-1.0, 0.0, 1.0, 2.0], (count, 2)), rng.choice([-1.0, 0.0, 1.0], (count, 2))
    args = {"force": rng.choice([-1.0, 0.0, 1.0], (count, 2)), "spring": rng.choice([0.0, 0.0, 1.0, 2.0], count),
            "drag": rng.choice([0.0, 0.5], count), "field": rng.choice([0.0, 0.0, 1.0], count)}  # fmt: skip
    e = rng.choice([0.5, 1.0], count)
    e = e if elastic else 0 * e
    inside = admissible(problem, q, v)
    return q[inside], v[inside], {name: x[inside] for name, x in args.items()}, e[inside]


def admissible(problem, q, v):
    """Starts (B,) that are on no wall's other side, and do not point there."""
    gaps = lambda q, v: jax.jvp(lambda q: problem.gaps(0.0, q, None), (q,), (v,))
    found = [[np.asarray(x) for x in gaps(jnp.asarray(q), jnp.asarray(v))] for q, v in zip(q, v, strict=True)]
    return np.array([np.all(gap >= 0) and np.all(rate[gap == 0] >= 0) for gap, rate in found])


def moved(start, entry, by):
    """The numbers (q0, v0, args, e, t1) of all motions with one changed."""
    (name, k), (q, v, args, e, t1) = entry, start
    numbers = {"q0": q, "v0": v, **args, "e": e, "t1": t1}
    x = np.array(numbers[name], float)
    if k is None:
        x = x + by
    else:
        x[:, k] += by
    numbers[name] = x
    q, v, e, t1 = (numbers.pop(of) for of in ("q0", "v0", "e", "t1"))
    return (q, v, numbers, e, t1)


ENTRIES = [(name, k) for name in ("q0", "v0", "force") for k in (0, 1)]
ENTRIES += [(name, None) for name in ("spring", "drag", "field", "e", "t1")]


def kept(inside, new, old):
    """A new number where it is ``inside``, by lane; one that all lanes share as it is."""
    return new if np.ndim(new) == 0 else np.where(inside.reshape(-1, *[1] * (np.ndim(new) - 1)), new, old)


def differences(problem, start, little=None):
    """Of the end of located motions, (11, 2, B, 4): by each number, to either side;
    NaN where it may not be moved there.

    By e they are taken of ``little``, too, (1, 2, B, 4) behind those.
    """

    def end(q, v, args, e, t1):
        found = ji.ensemble(problem, q, v, t1=t1, steps=1, args=args, args_axes=0, e=e, scheme=ACCURATE, save="final")
        return np.concatenate([found.q[:, -1], found.v[:, -1]], axis=1), ~np.asarray(found.failed)

    middle, sound = end(*start)
    steps = [(of, SIDE) for of in ENTRIES] + [(("e", None), little)] * (little is not None)
    found = np.full((len(steps), 2, *middle.shape), np.nan)
    for entry, (of, size) in enumerate(steps):
        for side, by in enumerate((size, -size)):
            there = moved(start, of, by)
            inside = admissible(problem, *there[:2]) & (there[3] >= 0) & (there[3] <= 1)
            there = jax.tree.map(partial(kept, inside), there, start)
            end_there, fine = end(*there)
            known = (inside & fine & sound)[:, None]
            found[entry, side] = np.where(known, (end_there - middle) / by, np.nan)
    return found


def derivative(found, entry):
    """Of the end (B, 4) by a number, from the Jacobians."""
    name, k = entry
    of = lambda y: found.jacobian[y][name] if name in found.jacobian[y] else found.jacobian[y]["args"][name]
    x = np.concatenate([of("q"), of("v")], axis=1)
    return x.reshape(len(x), 4, -1)[..., 0 if k is None else k]


@pytest.mark.slow
@pytest.mark.parametrize("elastic", [True, False], ids=["elastic", "plastic"])
@pytest.mark.parametrize("walls", WALLS)
def test_a_trusted_derivative_is_right(walls, elastic):
    problem = ji.Problem(force, WALLS[walls])
    start = (*draws(problem, 150, 5, elastic), T1)
    either = differences(problem, start)
    q, v, args, e, _ = start
    for name, (scheme, steps, tolerance) in SCHEMES.items():
        if name == "Maury" and elastic:
            continue
        found = ji.sensitivities(problem, q, v, t1=T1, steps=steps, args=args, args_axes=0, e=e, scheme=scheme, wrt=WRT)
        jacobian = np.stack([derivative(found, entry) for entry in ENTRIES])[:, None]
        off = np.max(np.abs(jacobian - either), axis=-1) > tolerance * (1 + np.max(np.abs(either), axis=-1))
        wrong = np.any(off, axis=(0, 1)) & np.asarray(found.trusted)
        assert not wrong.any(), (name, np.flatnonzero(wrong), q[wrong], v[wrong])
        # many starts are on a wall, or at rest on one
        assert np.mean(found.trusted) > 0.3, name


@pytest.mark.slow
@pytest.mark.parametrize("elastic", [True, False], ids=["elastic", "plastic"])
@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("walls", ["two", "oblique"])
def test_a_trusted_derivative_across_jumps_is_right(walls, surface, elastic):
    problem = ji.Problem(jumping(SURFACES[surface]), WALLS[walls])
    q, v, args, e = draws(problem, 80, 11, elastic)
    args["jump"] = np.random.default_rng(12).choice([-1.0, 0.0, 1.0], q.shape)
    start, by_e = (q, v, args, e, T1), ENTRIES.index(("e", None))
    *either, little = differences(problem, start, LITTLE)
    either = np.stack(either)
    for name in ("EventDriven", "EventCorrected"):
        scheme, steps, tolerance = SCHEMES[name]
        found = ji.sensitivities(problem, q, v, t1=T1, steps=steps, args=args, args_axes=0, e=e, scheme=scheme, wrt=WRT)
        jacobian = np.stack([derivative(found, entry) for entry in ENTRIES])[:, None]

        def off(either, jacobian=jacobian, tolerance=tolerance):
            return np.max(np.abs(jacobian - either), axis=-1) > tolerance * (1 + np.max(np.abs(either), axis=-1))

        wrong = off(either)
        wrong[by_e] &= off(np.where(np.isnan(little), either[by_e], little)[None])[by_e]
        wrong = np.any(wrong, axis=(0, 1)) & np.asarray(found.trusted)
        assert not wrong.any(), (name, np.flatnonzero(wrong), q[wrong], v[wrong])
        assert np.mean(found.trusted) > 0.2, (name, np.mean(found.trusted))
