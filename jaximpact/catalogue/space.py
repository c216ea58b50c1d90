"""Rigid bodies in space with exact motions: a free top, and a ball on a rough incline. `jaximpact.spatial` states such
bodies; here all is written out.

The orientation is that of p/|p|, p a quaternion (w, x, y, z). With a kinetic energy c (|p|')^2/2 besides that of the
rotation, c = 4/3 of the sum of the principal moments, |p| is a coordinate of its own, on which nothing acts.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from scipy.special import ellipj

from ..mechanics.problem import Problem
from .base import Case, Entry, Motion
from .friction import GRAVITY, _of_pieces

NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)


def _rates(p, xp=jnp):
    """2 E(p)/|p|^2 (3, 4), which times p' is the angular velocity in the axes of the body."""
    w, x, y, z = (2 / (p @ p)) * p
    return xp.stack([xp.stack(row) for row in ([-x, w, z, -y], [-y, -z, w, x], [-z, y, -x, w])])


# R01: a free top


def _turning_mass(p, args):
    moments, rates = args["moments"], _rates(p)
    return rates.T @ (moments[:, None] * rates) + 4 / 3 * jnp.sum(moments) * jnp.outer(p, p) / (p @ p)


def _turning_force(t, p, v, args):
    moments, rates = args["moments"], _rates(p)
    spin, stretch = rates @ v, 2 * (p @ v) / (p @ p)
    along = 4 / 3 * jnp.sum(moments) * (stretch**2 / 4 - v @ v / (p @ p))
    return rates.T @ (stretch * moments * spin - jnp.cross(spin, moments * spin)) + along * p


def _turning_energy(t, p, v, args):
    return 0.5 * v @ _turning_mass(p, args) @ v


def _beyond_reach(t, p, args):
    w, x, y, z = p
    return 2 - jnp.stack([2 * (x * z - w * y)]) / (p @ p)


def _spins(t, moments, first: float, last: float):
    """Angular velocity (k, 3) in the axes of the body from (first, 0, last), with L^2 >= 2 E J_2: Landau and Lifshitz,
    Mechanics, section 37."""
    a, b, c = moments
    twice, square = a * first**2 + c * last**2, (a * first) ** 2 + (c * last) ** 2
    inner, outer = twice * c - square, square - twice * a
    sn, cn, dn, _ = ellipj(np.asarray(t) * np.sqrt((c - b) * outer / (a * b * c)), (b - a) * inner / ((c - b) * outer))
    sizes = np.sqrt([inner / (a * (c - a)), inner / (b * (c - b)), outer / (c * (c - a))])
    return np.stack([sizes[0] * cn, sizes[1] * sn, sizes[2] * dn], axis=-1)


def free_top(moments, first: float, last: float) -> Motion:
    """Exact motion of a top whose angular momentum is along z and in its axes (J_1 first, 0, J_3 last).

    n = L/|L| in its axes follows from elliptic functions. With the least rotation of n to z, the top has turned about z
    by an angle whose rate is known, (1 + 2 E / (|L| ...)): it is integrated,
    by Gauss's rule on pieces that are short beside a period.
    """
    moments = np.asarray(moments, float)
    size = np.hypot(moments[0] * first, moments[2] * last)

    def tilt(t):
        """The quaternion (k, 4) of the rotation of n to z, and the rate (k,) of the angle about z."""
        spin = _spins(t, moments, first, last)
        n = moments * spin / size
        rate = np.cross(n, spin)
        # of p = (1 + n_3, n_2, -n_1, 0): the rotation's angular velocity along n
        x, y, w = n[..., 1], -n[..., 0], 1 + n[..., 2]
        dx, dy, dw = rate[..., 1], -rate[..., 0], rate[..., 2]
        own = np.stack([w * dx - x * dw, w * dy - y * dw, y * dx - x * dy], axis=-1) / w[..., None]
        return np.stack([w, x, y, 0 * x], -1) / np.sqrt(2 * w)[..., None], np.sum((spin - own) * n, axis=-1)

    def exact(t):
        t = np.asarray(t, float)
        count = max(1, int(np.ceil(np.max(t, initial=0.0) * np.max(np.abs(_spins(0.0, moments, first, last))) / 0.2)))
        ends = np.linspace(0, 1, count + 1)[:, None] * t
        half = (ends[1:] - ends[:-1]) / 2
        rates = tilt((ends[1:] + ends[:-1])[..., None] / 2 + half[..., None] * NODES)[1]
        angle = np.sum(half * (rates @ WEIGHTS), axis=0) / 2
        w, x, y, _ = tilt(t)[0].T
        c, s = np.cos(angle), np.sin(angle)
        p = np.stack([c * w, c * x - s * y, c * y + s * x, s * w], axis=1)
        spins = _spins(t, moments, first, last)
        return p, np.stack([_rates(a, np).T @ b / 4 for a, b in zip(p, spins, strict=True)])

    return exact


def _top(moments, first: float, last: float, t1: float, note: str) -> Case:
    exact = free_top(moments, first, last)
    q0, v0 = (x[0] for x in exact(np.zeros(1)))
    return Case(q0, v0, t1, 0.0, {"moments": np.array(moments)}, exact, np.zeros(1), np.zeros(0), note=note)


# R02: a ball on a rough incline


def _ball_mass(q, args):
    moment, n = 0.4 * args["radius"] ** 2, q[3:] @ q[3:]
    return jnp.diag(jnp.concatenate([jnp.ones(3, q.dtype), 4 * moment / n * jnp.ones(4, q.dtype)]))


def _ball_force(t, q, v, args):
    p, rate = q[3:], v[3:]
    n, g, slope = p @ p, args["gravity"], args["slope"]
    turning = 4 * 0.4 * args["radius"] ** 2 * (2 * (p @ rate) * rate - (rate @ rate) * p) / n**2
    return jnp.concatenate([jnp.stack([g * jnp.sin(slope), 0 * g, -g * jnp.cos(slope)]), turning])


def _ball_gap(t, q, args):
    return q[2:3] - args["radius"]


def _ball_slip(t, q, v, args):
    w, x, y, z = (2 / (q[3:] @ q[3:])) * q[3:]
    about_x, about_y = jnp.stack([-x, w, -z, y]) @ v[3:], jnp.stack([-y, z, w, -x]) @ v[3:]
    return jnp.stack([v[0] - args["radius"] * about_y, v[1] + args["radius"] * about_x])[None]


def _ball_energy(t, q, v, args):
    g, slope = args["gravity"], args["slope"]
    return 0.5 * v @ _ball_mass(q, args) @ v + g * (jnp.cos(slope) * q[2] - jnp.sin(slope) * q[0])


def _friction(args):
    return args["friction"]


def _ball_on_incline(slope: float, mu: float, speed: float, t1: float, note: str) -> Case:
    """Case of a ball that starts without spin down the slope: it rolls with 5/7 g sin where friction suffices, else it
    slips, forever or until it rolls."""
    radius = 0.1
    down, held = GRAVITY * np.sin(slope), mu * GRAVITY * np.cos(slope)
    # speed and angular velocity while it slips: u' = down - held, and r w' = 5/2 held
    begins, pieces = [0.0], []

    def piece(x, u, angle, spin, a, b):
        def found(s):
            turn, rate = angle + spin * s + b * s**2 / 2, spin + b * s
            cos, sin = np.cos(turn / 2), np.sin(turn / 2)
            place = (x + u * s + a * s**2 / 2, 0.0, radius, cos, 0.0, sin, 0.0)
            return place, (u + a * s, 0.0, 0.0, -sin * rate / 2, 0.0, cos * rate / 2, 0.0)

        return found

    rolls = 5 / 7 * down
    state = (0.0, speed, 0.0, 0.0)
    slips = speed / (3.5 * held - down) if 3.5 * held > down else np.inf
    if slips > 0:
        pieces.append(piece(*state, down - held, 2.5 * held / radius))
        s = slips if np.isfinite(slips) else 0.0
        u = speed + (down - held) * s
        state = (speed * s + (down - held) * s**2 / 2, u, 1.25 * held / radius * s**2, u / radius)
    if np.isfinite(slips):
        begins = [0.0, slips] if slips > 0 else [0.0]
        pieces.append(piece(*state, rolls, rolls / radius))
    exact = _of_pieces(begins, pieces)
    args = {"gravity": GRAVITY, "slope": slope, "friction": mu, "radius": radius}
    q0, v0 = (x[0] for x in exact(np.zeros(1)))
    impulse = np.array([GRAVITY * np.cos(slope) * t1])
    return Case(q0, v0, t1, 0.0, args, exact, impulse, np.zeros(0), note=note)


_QUATERNION = ("qw", "qx", "qy", "qz")

ENTRIES: tuple[Entry, ...] = (
    Entry(
        id="R01",
        name="free-top",
        title="Free top",
        statement="A rigid body that turns freely about its centre of mass, by a quaternion p of any length; a wall "
        "out of its reach. args: its principal "
        "moments (3,).",
        problem=Problem(
            _turning_force,
            _beyond_reach,
            _turning_mass,
            energy=_turning_energy,
            coordinates=_QUATERNION,
            quaternions=(0,),
        ),
        cases={
            "asymmetric": _top((1.5, 2.0, 3.0), 2.0, 1.6, 5.0, "near the axis that is unstable"),
            "flat": _top((1.5, 1.6, 3.0), 0.5, 3.0, 5.0, "wobbles about its largest moment"),
        },
        hypotheses="No contact.",
        source="Landau and Lifshitz, Mechanics, section 37.",
    ),
    Entry(
        id="R02",
        name="ball-on-incline",
        title="Ball on a rough incline",
        statement="A uniform ball on a plane inclined by ``slope``, x down it and z across, with Coulomb friction. It "
        "rolls if tan(slope) <= 7/2 of the coefficient. "
        "args: gravity, slope, friction, radius.",
        problem=Problem(
            _ball_force,
            _ball_gap,
            _ball_mass,
            energy=_ball_energy,
            slip=_ball_slip,
            friction=_friction,
            coordinates=("x", "y", "z", *_QUATERNION),
            quaternions=(3,),
            contacts=("incline",),
            units={"x": "m", "y": "m", "z": "m", "incline": "m"},
        ),
        cases={
            "slides": _ball_on_incline(0.7, 0.2, 0.0, 1.0, "slips for all times"),
            "rolls": _ball_on_incline(0.3, 0.2, 0.0, 1.0, "rolls from the start"),
            "thrown": _ball_on_incline(0.3, 0.3, 2.0, 1.0, "slips, and then rolls"),
        },
        hypotheses="Friction, one contact that lasts.",
        source="Textbooks of mechanics.",
    ),
)
