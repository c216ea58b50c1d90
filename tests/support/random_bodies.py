"""Random bodies with several contacts at once: points in wedges, blocks in corners, stools on three and four feet;
at rest, and dropped.

A contact is a point of a body at a wall, so that gaps bend as the body turns. Blocks and stools have more contacts than
they need. The load goes smoothly from one to another and back, along forces that reactions at all contacts balance.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import jaximpact as ji

from .random_systems import UNIT, System, real

SIZES = {"wedge": 2, "block in a corner": 3, "three legs": 6, "four legs": 6}  # coordinates of each kind
KINDS = list(SIZES)
MASSES = {2: np.ones(2), 3: np.array([1, 1, 0.02]), 6: np.array([1, 1, 1, 0.02, 0.02, 0.03])}
H_FEET = 0.1  # height of a stool above its feet, which stand on a circle of radius 0.2


def placed(q, points):
    """Points (m, n) of a body whose pose is (x, y), (x, y, turn), or (x, y, z) and three turns."""
    n = points.shape[1]
    turn = jnp.eye(n)
    for axis, angle in enumerate(q[n:]):
        i, j = [(1, 2), (0, 2), (0, 1)][axis] if n == 3 else (0, 1)
        c, s = jnp.cos(angle), jnp.sin(angle)
        turn = turn @ jnp.eye(n).at[np.array([i, i, j, j]), np.array([i, j, i, j])].set(jnp.array([c, -s, s, c]))
    return q[None, :n] + points @ turn.T


def force(t, q, v, args):
    own = real(args)
    return own["push"] + own["load"][0] + jnp.sin(own["pace"] * t) ** 2 * (own["load"][1] - own["load"][0])


def gaps(t, q, args):
    own = real(args)
    return jnp.sum(own["normal"] * placed(q, own["points"]), axis=1) + own["offset"]


def slip(t, q, v, args):
    own = real(args)
    along = jnp.einsum("mkn,mn->mk", own["tangents"], jax.jvp(lambda q: placed(q, own["points"]), (q,), (v,))[1])
    return along[:, 0] if along.shape[1] == 1 else along


def scaled_gaps(t, q, args):
    """Gaps that are no distances: their scales differ, and change along the motion."""
    own = real(args)
    return gaps(t, q, args) * own["scale"] * jnp.exp(jnp.sin(5 * q[0]))


def whole_velocity(t, q, v, args):
    return jax.jvp(lambda q: gaps(t, q, args), (q,), (v,))[1], slip(t, q, v, args)


def problem(kind: str, scaled: bool = False, rough: bool = True) -> ji.Problem:
    """The problem of all systems of a kind; not ``rough``, without any friction."""
    smooth = ji.Problem(force, scaled_gaps if scaled else gaps, MASSES[SIZES[kind]])
    return (
        smooth.replace(slip=whole_velocity if scaled else slip, friction=lambda a: real(a)["mu"]) if rough else smooth
    )


def shape(kind: str, rng, regular: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points (m, n), normals (m, n) and tangents (m, k, n) of the contacts of a body."""
    if kind in ("wedge", "block in a corner"):
        first = 0.0 if regular else rng.uniform(0, 2 * np.pi)
        opening = rng.uniform(0.7, 2.4) if kind == "wedge" else np.pi / 2
        angles = first + opening * np.repeat([0, 1], 1 if kind == "wedge" else 2)
        normal = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
        a, b = rng.uniform(0.1, 0.3, 2)
        corners = np.array([[-a, -b], [-a, b], [-a, -b], [a, -b]]) @ normal[[0, -1]]
        along = np.stack([-normal[:, 1], normal[:, 0]], axis=-1)
        return (np.zeros((2, 2)) if kind == "wedge" else corners), normal, along[:, None]
    feet = 3 if kind == "three legs" else 4
    angles = 2 * np.pi * np.arange(feet) / feet + (0 if regular else rng.uniform(-0.3, 0.3, feet))
    points = np.stack([0.2 * np.cos(angles), 0.2 * np.sin(angles), np.full(feet, -H_FEET)], axis=-1)
    x, y, z = np.eye(3)
    return points, np.tile(z, (feet, 1)), np.tile([x, y], (feet, 1, 1))


@jax.jit
def rows_at_rest(q, points):
    """Derivatives (m, n, d) of the points by the pose."""
    return jax.jacfwd(placed)(q, points)


def draw(kind: str, seed: int, reach: float = 0.8, regular: bool = False) -> System:
    """A body that all its walls touch, loaded by what reactions of up to ``reach`` times friction balance."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    points, normal, tangents = (np.rint(x / UNIT) * UNIT for x in shape(kind, rng, regular))  # as they are handed over
    (m, k, _), d = tangents.shape, SIZES[kind]
    by_pose = np.asarray(rows_at_rest(np.zeros(d), points))
    rows = np.einsum("mkn,mnd->mkd", np.concatenate([normal[:, None], tangents], axis=1), by_pose)
    mu = rng.uniform(0.1, 1, m) * (rng.random(m) < 0.85)
    # in a wedge the second wall may be far away, and bears no load
    far = 5.0 * (np.arange(m) > 0) * (kind == "wedge") * (rng.random() < 0.3)
    loads = []
    for _ in range(2):
        bears = rng.uniform(0.5, 3, m) * (far == 0)
        along = rng.uniform(-1, 1, (m, k))
        along *= (reach * rng.uniform(0, 1, m) * mu * bears / np.linalg.norm(along, axis=1))[:, None]
        loads.append(-np.einsum("mk,mkd->d", np.column_stack([bears, along]), rows))
    args = {
        "push": np.zeros(d), "offset": far - np.sum(normal * points, axis=1), "load": np.array(loads),
        "pace": rng.uniform(1, 5), "points": points, "normal": normal, "tangents": tangents, "mu": mu,
        "scale": np.exp(rng.uniform(-2, 2, m)),
    }  # fmt: skip
    return System(seed, np.zeros(d), np.zeros(d), 0.0, args)


def drop(kind: str, seed: int) -> System:
    """The body a few centimetres from its walls, a little turned and moving, with loads that friction may not hold."""
    system = draw(kind, seed, reach=1.5)
    rng = np.random.default_rng([seed, KINDS.index(kind), 1])
    n, d = system.args["points"].shape[1], system.q0.size
    turned = np.concatenate([np.zeros(n), rng.uniform(-0.05, 0.05, d - n)])
    open_by = np.asarray(gaps(0.0, turned, system.args))
    normals, wall = np.unique(system.args["normal"].round(12), axis=0, return_inverse=True)
    lift = np.array([max(0, -min(open_by[wall.ravel() == w])) for w in range(len(normals))])
    turned[:n] += np.linalg.lstsq(normals, lift + rng.uniform(0.001, 0.03, lift.size), rcond=None)[0]
    v0 = np.concatenate([0.3 * rng.standard_normal(n), 0.5 * rng.standard_normal(d - n)])
    e = rng.uniform(0.05, 0.6) * (rng.random() < 0.3)
    return system._replace(q0=turned, v0=v0, e=e)


def slide(kind: str, seed: int) -> System:
    """The stool on its feet, on a floor that leans by a little: it slides, spins and comes to rest, on all feet at one
    instant."""
    system = draw(kind, seed)
    rng = np.random.default_rng([seed, KINDS.index(kind), 2])
    m, lean = len(system.args["mu"]), rng.uniform(-0.08, 0.08, 2)
    args = system.args | {
        "load": np.tile([*(9.81 * lean), -9.81, 0, 0, 0], (2, 1)), "mu": rng.uniform(0.2, 0.4, m)
    }  # fmt: skip
    v0 = np.array([*(0.7 * rng.standard_normal(2)), 0, 0, 0, 4 * rng.standard_normal() * (rng.random() < 0.7)])
    return system._replace(v0=v0, args=args)
