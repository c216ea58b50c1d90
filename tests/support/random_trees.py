"""Random trees of bodies in space, and their accelerations by differentiated kinematics,
which share no formula with the package."""

import jax
import jax.numpy as jnp
import numpy as np

from jaximpact import spatial

KINDS = ("free", "ball", "hinge", "slider", "universal", "weld")


def random_body(rng, place):
    if rng.random() < 0.3:
        return spatial.box(place, rng.uniform(0.1, 0.5, 3), mass=rng.uniform(0.5, 2))
    if rng.random() < 0.3:
        return spatial.capsule(place, place + rng.normal(size=3), 0.1, mass=rng.uniform(0.5, 2))
    a = rng.normal(size=(3, 3))
    points = a @ a.T  # second moments of a mass: their inertia is one that a body has
    return spatial.Body(rng.uniform(0.5, 2), np.trace(points) * np.eye(3) - points, place)


def random_joint(kind, pair, rng):
    at, axis, other = rng.normal(size=(3, 3))
    if kind == "ball":
        return spatial.Ball(*pair, at=at)
    if kind == "hinge":
        return spatial.Hinge(*pair, at=at, axis=axis)
    if kind == "slider":
        return spatial.Slider(*pair, at=at, along=axis)
    if kind == "universal":
        return spatial.Universal(*pair, at=at, axes=(axis, other))
    return spatial.Weld(*pair) if kind == "weld" else None


def random_tree(rng, count, kinds=KINDS):
    """A system, and for each body (kind, parent, joint)."""
    bodies, parts, how = {}, [], []
    for i in range(count):
        name, place = f"body{i}", rng.normal(size=3)
        bodies[name] = random_body(rng, place)
        kind = kinds[rng.integers(len(kinds))]
        if i == 0 and kind == "weld":
            kind = "free"
        parent = f"body{rng.integers(i)}" if i and rng.random() < 0.8 else "ground"
        if kind == "weld" and parent == "ground":
            parent = "body0"
        pair = (name, parent) if rng.random() < 0.7 or parent == "ground" else (parent, name)
        joint = random_joint(kind, pair, rng)
        parts += [joint] if joint else []
        how.append((name, kind, parent, joint))
    return spatial.System(bodies, parts, gravity=(0.3, -0.2, -9.0)), how


def turn_by(p):
    w, u = p[0], p[1:]
    return ((w * w - u @ u) * jnp.eye(3) + 2 * jnp.outer(u, u) + 2 * w * hat(u)) / (w * w + u @ u)


def hat(u):
    return jnp.array([[0, -u[2], u[1]], [u[2], 0, -u[0]], [-u[1], u[0], 0]])


def turn_about(axis, angle):
    return turn_by(jnp.concatenate([jnp.cos(angle / 2)[None], jnp.sin(angle / 2) * axis]))


def poses(system, how, q):
    """Of each body its rotation and centre of mass, and the lengths of all quaternions."""
    maps, lengths = {"ground": (jnp.eye(3), jnp.zeros(3))}, []
    bodies, names = dict(system.bodies), system.problem().coordinates
    for name, kind, parent, joint in how:
        own = q[np.array([i for i, x in enumerate(names) if x.startswith(f"{name}.")], int)]
        if kind == "free":
            turn = turn_by(own[3:])
            maps[name] = turn, own[:3] - turn @ np.array(bodies[name].centre)
            lengths.append(own[3:])
            continue
        back = -1 if joint.a != name else 1
        if kind == "weld":
            step = jnp.eye(3), jnp.zeros(3)
        elif kind == "slider":
            step = jnp.eye(3), back * own[0] * np.array(joint.along)
        else:
            if kind == "ball":
                turn = turn_by(own)
                lengths.append(own)
            elif kind == "hinge":
                turn = turn_about(back * np.array(joint.axis), own[0])
            else:
                first, last = joint.axes[::back]
                turn = turn_about(back * np.array(first), own[0]) @ turn_about(back * np.array(last), own[1])
            step = turn, np.array(joint.at) - turn @ np.array(joint.at)
        outer, away = maps[parent]
        maps[name] = outer @ step[0], outer @ step[1] + away
    return [(maps[n][0], maps[n][0] @ np.array(b.centre) + maps[n][1], b) for n, b in system.bodies], lengths


def lagrangian(system, how, q, v):
    def state(q):
        found, lengths = poses(system, how, q)
        return [(r, x) for r, x, _ in found], lengths

    (places, lengths), (rates, stretches) = jax.jvp(state, (q,), (v,))
    total = 0.0
    for (turn, x), (rate, speed), (_, body) in zip(places, rates, system.bodies, strict=True):
        spin = turn.T @ rate
        w = jnp.stack([spin[2, 1], spin[0, 2], spin[1, 0]])
        total += 0.5 * body.mass * speed @ speed + 0.5 * w @ np.array(body.inertia) @ w
        total += body.mass * np.array(system.gravity) @ x
    # the length of a quaternion has an inertia of its own, of any size
    return total + sum(0.5 * 3.0 * (p @ dp) ** 2 / (p @ p) for p, dp in zip(lengths, stretches, strict=True))


def accelerations(system, how, q, v):
    """Accelerations (d,) by Lagrange's equations."""
    of = lambda q, v: lagrangian(system, how, q, v)
    slope = jax.grad(of, 1)
    mass = jax.jacfwd(slope, 1)(q, v)
    return jnp.linalg.solve(mass, jax.grad(of)(q, v) - jax.jvp(lambda x: slope(x, v), (q,), (v,))[1])
