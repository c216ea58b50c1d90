"""Bodies with friction that tests of several schemes share: a ladder, a rod, a sled, a disk in a corner, blocks."""

import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

import jaximpact as ji

G = 9.81


def ladder(friction=(0.2, 0.15)):
    """A ladder between floor and wall, whose ends slide: two contacts on turning gaps."""
    ends = lambda q: (q[1] - jnp.sin(q[2]), q[0] - jnp.cos(q[2]))
    return ji.Problem(
        lambda t, q, v, args: jnp.array([0.0, -G, 0.0]),
        lambda t, q, args: jnp.stack(ends(q)),
        jnp.array([1.0, 1.0, 1 / 3]),
        slip=lambda t, q, v, args: jnp.stack([v[0] - jnp.sin(q[2]) * v[2], v[1] + jnp.cos(q[2]) * v[2]]),
        friction=jnp.asarray(friction),
    )


def ladder_angle(start, t1):
    """Angle and its rate while both ends slide, from the equations of motion solved for
    acceleration and normal forces."""

    def rate(t, y):
        angle, w = y
        s, c = np.sin(angle), np.cos(angle)
        # x'' = Nw - m1 s1 Nf, ...: unknowns w', Nf, Nw; the foot slides outwards, the top downwards
        foot, top = -0.2 * np.sign(-2 * s * w), -0.15 * np.sign(2 * c * w)
        matrix = np.array([
            [s, foot, 1.0],
            [-c, 1.0, top],
            [1 / 3, c + s * foot, -s - c * top],
        ])  # fmt: skip
        right = np.array([-c * w**2, G - s * w**2, 0.0])
        return w, np.linalg.solve(matrix, right)[0]

    return solve_ivp(rate, (0, t1), start, method="DOP853", rtol=1e-11, atol=1e-12).y[:, -1]


# a rod of half length 1 with one end above a floor
ROD = ji.Problem(
    lambda t, q, v, args: jnp.stack([0 * q[0], 0 * q[0] - G, 0 * q[0]]),
    lambda t, q, args: (q[1] - jnp.sin(q[2]))[None],
    lambda q, args: jnp.stack([jnp.ones_like(q[0]), jnp.ones_like(q[0]), 0 * q[0] + 1 / 3]),
    slip=lambda t, q, v, args: (v[0] + jnp.sin(q[2]) * v[2])[None],
    friction=lambda args: args["mu"],
)


# a rod on both its ends, pulled along with a force F
FEET = ji.Problem(
    lambda t, q, v, args: jnp.stack([args["F"], -G, 0.0]),
    lambda t, q, args: jnp.stack([q[1] - jnp.sin(q[2]), q[1] + jnp.sin(q[2])]),
    np.array([1.0, 1.0, 1 / 3]),
    slip=lambda t, q, v, args: jnp.stack([v[0], v[0]]),
    friction=0.3,
)


def leaning(angle, w):
    q0 = np.array([np.cos(angle), np.sin(angle), angle])
    return q0, np.array([-np.sin(angle) * w, np.cos(angle) * w, w])


def normals(args):
    """Of two walls at right angles, in a frame that is turned."""
    c, s = jnp.cos(args["turn"]), jnp.sin(args["turn"])
    return jnp.stack([jnp.stack([c, s]), jnp.stack([-s, c])])


CORNER = ji.Problem(
    lambda t, q, v, args: jnp.append(-args["g"] * normals(args)[1], 0),
    lambda t, q, args: normals(args) @ q[:2] - args["R"] - jnp.array([1.0, 0.0]) * args["far"],
    np.array([1.0, 1.0, 0.02]),  # a disk of radius .2
    slip=lambda t, q, v, args: normals(args)[::-1] @ v[:2] + args["R"] * v[2] * jnp.array([-1.0, 1.0]),
    friction=0.3,
)


# a block on a belt that takes its slip to d at its least
BELT = ji.Problem(
    lambda t, q, v, args: jnp.stack([0 * t, 0 * t - G]),
    lambda t, q, args: q[1:],
    slip=lambda t, q, v, args: v[:1] - (2 - 0.3 * G * t - 5 * (t - 0.5) ** 2 - args["d"]),
    friction=0.3,
)


def stopped(x):
    """Where a block of mass 1, pressed by 1 onto a plane, comes to rest that is thrown with (vx, vy) and pulled by -g
    along y, g < mu: closed form.

    With the angle p between slip and pull, d(s)/dt = g cos p - mu and s dp/dt = -g sin p: s is a power of z = tan(p/2),
    times 1 + z^2 over z.
    """
    g, mu, vx, vy = x
    z, power = jnp.tan(jnp.arctan2(vx, -vy) / 2), mu / g
    far = (vx**2 + vy**2) / (g * (1 + z**2) ** 2)
    return jnp.stack(
        [
            2 * far * z * (1 / (2 * power - 1) + z**2 / (2 * power + 1)),
            -far * (1 / (2 * power - 2) - z**4 / (2 * power + 2)),
        ]
    )


IN_SPACE = ji.Problem(
    lambda t, q, v, args: jnp.stack([0 * t, -args["g"], 0 * t - 1]),
    lambda t, q, args: q[2:],
    slip=lambda t, q, v, args: v[None, :2],
    friction=lambda args: args["mu"],
)
