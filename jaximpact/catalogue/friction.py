"""Coulomb friction with exact motions: a block on a slope, an oscillator on a belt, a spinning disk,
a rocking block."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from scipy.special import ellipj, ellipk, ellipkinc

from ..mechanics.problem import Problem
from .base import Case, Entry, Motion

GRAVITY = 9.81


def _of_pieces(begins: Sequence[float], pieces: Sequence[Callable]) -> Motion:
    """Joins pieces to one motion, t (k,) -> (q, v), each (k, d).

    ``begins[n]``: time at which piece n begins; ``pieces[n](s) -> (q, v)``: the piece at times s (k,) since then,
    d arrays () or (k,) each.
    """
    starts = np.array(begins)

    def exact(t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        t = np.asarray(t, float)
        now = np.maximum(np.searchsorted(starts, t, side="right") - 1, 0)
        found = [pieces[n](t - starts[n]) for n in range(len(starts))]
        q, v = (np.stack([np.stack(np.broadcast_arrays(t, *x[i])[1:], -1) for x in found]) for i in (0, 1))
        each = np.arange(len(t))
        return q[now, each], v[now, each]

    return exact


def _friction(args):
    return args["friction"]


def _floor(t, q, args):
    return q[1:2]


# F01: block on a slope


def _slope_force(t, q, v, args):
    g, slope = args["gravity"], args["slope"]
    return jnp.stack([-g * jnp.sin(slope) + 0 * q[0], -g * jnp.cos(slope) + 0 * q[1]])


def _along(t, q, v, args):
    return v[:1]


def _slope_energy(t, q, v, args):
    slope = args["slope"]
    return 0.5 * v @ v + args["gravity"] * (jnp.sin(slope) * q[0] + jnp.cos(slope) * q[1])


def _block(mu: float, t1: float, note: str) -> Case:
    """Case of a block that slides up at 3 m/s until its speed is zero, and then slides down or stays."""
    slope, speed = 0.6, 3.0
    down, held = GRAVITY * np.sin(slope), mu * GRAVITY * np.cos(slope)
    top, height = speed / (down + held), speed**2 / (2 * (down + held))
    back = max(down - held, 0.0)
    up = lambda s: ((speed * s - (down + held) * s**2 / 2, 0.0), (speed - (down + held) * s, 0.0))
    then = lambda s: ((height - back * s**2 / 2, 0.0), (-back * s, 0.0))
    args = {"gravity": GRAVITY, "slope": slope, "friction": mu}
    impulse = np.array([GRAVITY * np.cos(slope) * t1])
    start = np.zeros(2), np.array([speed, 0.0])
    return Case(*start, t1, 0.0, args, _of_pieces([0.0, top], [up, then]), impulse, np.zeros(0), note=note)


# F02: oscillator on a belt


def _belt_force(t, q, v, args):
    return jnp.stack([-args["stiffness"] * q[0], -args["gravity"] + 0 * q[1]])


def _against_belt(t, q, v, args):
    return v[:1] - args["belt"]


def _static_friction(args):
    return args["static_friction"]


def _belt(t1: float, note: str) -> Case:
    """Case of the periodic motion of a unit mass on a spring and a moving belt.

    The belt carries it to x = mu_s g / stiffness, where it begins to slip. Then it oscillates about mu g / stiffness
    until its speed is that of the belt again.
    """
    w, belt, mu, static = 3.0, 0.5, 0.2, 0.35
    centre, breaks = (x * GRAVITY / w**2 for x in (mu, static))
    reach = breaks - centre
    swing = 2 * (np.pi - np.arctan(reach * w / belt)) / w
    carried = lambda x: lambda s: ((x + belt * s, 0.0), (belt, 0.0))
    swings = lambda s: (
        (centre + reach * np.cos(w * s) + belt / w * np.sin(w * s), 0.0),
        (belt * np.cos(w * s) - reach * w * np.sin(w * s), 0.0),
    )
    begins, pieces = [0.0, breaks / belt], [carried(0.0), swings]
    while begins[-1] < t1:
        begins += [begins[-1] + swing, begins[-1] + swing + 2 * reach / belt]
        pieces += [carried(centre - reach), swings]
    args = {"gravity": GRAVITY, "stiffness": w**2, "belt": belt, "friction": mu, "static_friction": static}
    start = np.zeros(2), np.array([belt, 0.0])
    impulse = np.array([GRAVITY * t1])
    return Case(*start, t1, 0.0, args, _of_pieces(begins, pieces), impulse, np.zeros(0), note=note)


# F03: spinning disk


def _fall(t, q, v, args):
    return jnp.stack([0 * q[0], -args["gravity"] + 0 * q[1], 0 * q[2]])


def _disk_mass(q, args):
    one = jnp.ones_like(q[0])
    return jnp.stack([one, one, 0.5 * args["radius"] ** 2 + 0 * q[0]])


def _above(t, q, args):
    return q[1:2] - args["radius"]


def _rim(t, q, v, args):
    return v[:1] + args["radius"] * v[2:]


def _disk_energy(t, q, v, args):
    return 0.5 * (v[0] ** 2 + v[1] ** 2 + 0.5 * (args["radius"] * v[2]) ** 2) + args["gravity"] * q[1]


def _disk(e: float, mu: float, t1: float, note: str) -> Case:
    """Case of a disk dropped from 1 m with a spin of 6 rad/s.

    Its mass is 1: the impulse of friction in an impact is mu times the percussion,
    or a third of the slip velocity if that is less.
    """
    radius, q, v = 0.2, np.array([0.0, 1.0, 0.0]), np.array([1.0, 0.0, 6.0])
    start, weight = (q, v), np.array([0.0, -GRAVITY, 0.0])
    along = np.array([1.0, 0.0, 2.0 / radius])  # M^-1 T'
    flies = lambda q, v: (
        lambda s: (
            tuple(q[i] + v[i] * s + weight[i] * s**2 / 2 for i in range(3)),
            tuple(v[i] + weight[i] * s for i in range(3)),
        )
    )
    begins, pieces, impacts, impulse = [0.0], [flies(q, v)], [], 0.0
    while True:
        lasts = (v[1] + np.sqrt(v[1] ** 2 + 2 * GRAVITY * (q[1] - radius))) / GRAVITY
        time = begins[-1] + lasts
        if time > t1:
            break
        q, v = (np.array(x) for x in pieces[-1](lasts))
        q[1] = radius
        push = -(1 + e) * v[1]
        slip = v[0] + radius * v[2]
        v = v - np.sign(slip) * min(abs(slip) / 3, mu * push) * along
        v[1] = -e * (v[1])
        impulse += push
        impacts.append(time)
        begins.append(time)
        if e == 0:
            _slide_and_roll(begins, pieces, q, v, mu, along, radius)
            impulse += GRAVITY * (t1 - time)
            break
        pieces.append(flies(q, v))
    args = {"gravity": GRAVITY, "radius": radius, "friction": mu}
    exact = _of_pieces(begins, pieces)
    return Case(*start, t1, e, args, exact, np.array([impulse]), np.array(impacts), note=note)


def _slide_and_roll(begins: list, pieces: list, q, v, mu: float, along, radius: float) -> None:
    """Appends the motion of a disk on the floor from (q, v) on, as two pieces.

    It slides with friction mu g until its slip ends, then rolls without friction. ``begins`` and ``pieces``: as of
    `_of_pieces`, changed in place; the last entry of ``begins`` is the time at which it begins to slide. ``along``
    (3,): M^-1 times the gradient of the slip velocity.
    """
    slip = v[0] + radius * v[2]
    a, lasts = -np.sign(slip) * mu * GRAVITY * along, abs(slip) / (3 * mu * GRAVITY)
    slides = lambda s: (
        tuple(q[i] + v[i] * s + a[i] * s**2 / 2 for i in range(3)),
        tuple(v[i] + a[i] * s for i in range(3)),
    )
    p, w = (np.array(x) for x in slides(lasts))
    pieces += [slides, lambda s: (tuple(p[i] + w[i] * s for i in range(3)), tuple(w))]
    begins.append(begins[-1] + lasts)


# F04: rocking block


def _block_mass(q, args):
    one = jnp.ones_like(q[0])
    return jnp.stack([one, one, (args["width"] ** 2 + args["height"] ** 2) / 12 + 0 * q[0]])


def _corners(q, args):
    """Positions (2, 2) of the left and the right lower corner."""
    s, c = jnp.sin(q[2]), jnp.cos(q[2])
    half = 0.5 * args["width"] * jnp.array([-1.0, 1.0], q.dtype)
    deep = 0.5 * args["height"]
    return jnp.stack([q[0] + half * c + deep * s, q[1] + half * s - deep * c], axis=1)


def _feet(t, q, args):
    return _corners(q, args)[:, 1]


def _feet_slip(t, q, v, args):
    s, c = jnp.sin(q[2]), jnp.cos(q[2])
    half = 0.5 * args["width"] * jnp.array([-1.0, 1.0], q.dtype)
    return v[0] + v[2] * (0.5 * args["height"] * c - half * s)


def _rocking_energy(t, q, v, args):
    inertia = (args["width"] ** 2 + args["height"] ** 2) / 12
    return 0.5 * (v[0] ** 2 + v[1] ** 2 + inertia * v[2] ** 2) + args["gravity"] * q[1]


def _rocking(t1: float, note: str) -> Case:
    """Case of a block released at rest on its left foot, tilted by 0.12 rad; it then rocks from one foot to the other.

    About a foot it is an inverted pendulum: cos(f/2) = k cd(p s), with f the angle of the diagonal from the vertical, s
    the time since the angular velocity was zero, p a constant and k the modulus. When the block stands flat f is the
    ``slope`` of the diagonal; the impact then leaves a share 1 - 3/2 sin^2(slope) of the angular velocity (Housner).
    """
    b, h, mu = 0.2, 0.8, 0.7
    slope, diagonal = np.arctan2(b, h), np.hypot(b, h)
    p, left = np.sqrt(3 * GRAVITY / (4 * diagonal)), 1 - 1.5 * np.sin(slope) ** 2

    def rocks(side: int, k: float, turn: float) -> Callable:
        """Piece of the motion on the left foot (``side`` 1) or the right one (-1), with modulus k.

        ``turn``: time since the beginning of the piece at which the angular velocity is zero.
        """

        def piece(s):
            sn, cn, dn, _ = ellipj(p * (s - turn), k**2)
            angle = side * (slope - 2 * np.arccos(np.clip(k * cn / dn, -1, 1)))
            rate = -side * 2 * k * p * np.sqrt(1 - k**2) * sn / dn
            c, s_ = np.cos(angle), np.sin(angle)
            x, y = b * (1 - side) + side * b * c - h * s_, side * b * s_ + h * c
            return (x, y, angle), ((-side * b * s_ - h * c) * rate, (side * b * c - h * s_) * rate, rate)

        return piece

    begins, pieces, impulse = [0.0], [rocks(1, np.cos((slope - 0.12) / 2), 0.0)], np.zeros(2)
    side, k, turn = 1, np.cos((slope - 0.12) / 2), 0.0
    upward = lambda n, s: float(pieces[n](np.array(s))[1][1])
    while True:
        quarter = (ellipk(k**2) - ellipkinc(np.arcsin(np.cos(slope / 2) / k), k**2)) / p  # from its turn to the floor
        lasts = turn + quarter
        inside = min(lasts, t1 - begins[-1])
        impulse[(1 - side) // 2] += GRAVITY * inside + upward(-1, inside) - upward(-1, 0.0)
        if begins[-1] + lasts > t1:
            break
        before = upward(-1, lasts)
        rate = left * 2 * p * np.sqrt(k**2 - np.cos(slope / 2) ** 2)
        k = np.sqrt(np.cos(slope / 2) ** 2 + (rate / (2 * p)) ** 2)
        side, turn = -side, (ellipk(k**2) - ellipkinc(np.arcsin(np.cos(slope / 2) / k), k**2)) / p
        begins.append(begins[-1] + lasts)
        pieces.append(rocks(side, k, turn))
        impulse[(1 - side) // 2] += upward(-1, 0.0) - before
    args = {"gravity": GRAVITY, "width": 2 * b, "height": 2 * h, "friction": mu}
    exact = _of_pieces(begins, pieces)
    q0, v0 = (x[0] for x in exact(np.zeros(1)))
    return Case(q0, 0 * v0, t1, 0.0, args, exact, impulse, np.array(begins[1:]), note=note)


ENTRIES: tuple[Entry, ...] = (
    Entry(
        id="F01",
        name="block-on-slope",
        title="Block on a rough slope",
        statement="A block on a slope, x upwards along it and y >= 0 across: x'' = -g sin(slope) -+ friction g "
        "cos(slope). "
        "args: gravity, slope, friction.",
        problem=Problem(
            _slope_force, _floor, slip=_along, friction=_friction, energy=_slope_energy, coordinates=("x", "y")
        ),
        cases={
            "returns": _block(0.3, 1.5, "friction below tan(slope): it turns round without a rest"),
            "stays": _block(0.8, 1.0, "friction above tan(slope): it comes to rest and stays"),
        },
        hypotheses="One contact in the plane within Painleve's bound, e = 0.",
        source="Polynomials between the events.",
    ),
    Entry(
        id="F02",
        name="belt-oscillator",
        title="Stick-slip oscillator on a belt",
        statement="A mass on a spring lies on a belt: x'' = -stiffness x - Coulomb's friction of the slip x' - belt, y "
        ">= 0 pressed by "
        "gravity. args: gravity, stiffness, belt, friction, static_friction.",
        problem=Problem(
            _belt_force,
            _floor,
            slip=_against_belt,
            friction=_friction,
            static_friction=_static_friction,
            coordinates=("x", "y"),
        ),
        cases={
            "stick-slip": _belt(
                6.0, "static friction above the sliding one: a periodic motion with a break and a stop a turn"
            )
        },
        hypotheses="One contact in the plane, normal force constant.",
        source="Straight lines and circular functions between the events.",
    ),
    Entry(
        id="F03",
        name="spinning-disk",
        title="Spinning disk on a rough floor",
        statement="A disk falls with spin on a floor, slip x' + radius angle'. args: gravity, radius, friction.",
        problem=Problem(
            _fall,
            _above,
            _disk_mass,
            slip=_rim,
            friction=_friction,
            energy=_disk_energy,
            coordinates=("x", "y", "angle"),
        ),
        cases={
            "slips": _disk(
                0.7, 0.1, 2.0, "slips in the first impact, and sticks in the second, from which on it does not slip"
            ),
            "sticks": _disk(0.7, 0.4, 2.0, "sticks in every impact"),
            "rolls": _disk(0.0, 0.1, 1.5, "lands, slides, and rolls from then on"),
        },
        hypotheses="One contact, normal and tangent not coupled by the mass: no energy is gained at any e.",
        source="Polynomials between the impacts; R. L. Garwin, Am. J. Phys. 37 (1969), for a ball whose tangential "
        "restitution is not 0.",
    ),
    Entry(
        id="F04",
        name="rocking-block",
        title="Rocking block",
        statement="A block on two feet rocks on a floor that is rough enough for it not to slip, e = 0. args: gravity, "
        "width, height, friction.",
        problem=Problem(
            _fall,
            _feet,
            _block_mass,
            slip=_feet_slip,
            friction=_friction,
            energy=_rocking_energy,
            coordinates=("x", "y", "angle"),
        ),
        cases={"rocks": _rocking(3.0, "at an impact the other foot sticks, and the one it stood on is lifted")},
        hypotheses="Two contacts that load each other, one of which sticks at a time, e = 0.",
        source="G. W. Housner, Bull. Seismol. Soc. Am. 53 (1963); Jacobi's elliptic functions.",
    ),
)
