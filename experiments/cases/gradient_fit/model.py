"""Contact times of a bouncing ball with air drag as differentiable functions of its parameters."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jaximpact as ji

GRAVITY = 9.81  # [m/s^2]


def fall(t, q, v, args):
    """Gravity and quadratic drag, for unit mass [m/s^2]."""
    return -GRAVITY - args["c"] * v * jnp.abs(v)


BALL = ji.Problem(fall, lambda t, q, args: q)


def contact_times(e, c, height, horizon, *, count: int, steps: int) -> Array:
    """Times (count,) of the first contacts of one drop from rest, from the first one [s].

    Restitution e, drag coefficient c [1/m], release height of the ball's lowest point [m], scalars; simulated for
    ``horizon`` [s] in ``steps`` steps, which must be short beside the flights. A contact that is not reached counts as
    one at the horizon.

    At an impact a trajectory has no derivative, but its last row before the impact has one, and from there the ball
    needs less than a step h to the floor: with the acceleration of that row the time of contact is off by c g h^3/3,
    far below a microsecond.
    """
    solution = ji.solve(
        BALL,
        height[None],
        jnp.zeros(1, height.dtype),
        t1=horizon,
        steps=steps,
        e=e,
        args={"c": c},
        # second order: e and c are wanted to four digits, and a scheme of first order needs a hundred times the steps
        scheme=ji.EventCorrected(),
    )
    t, q, v = solution.t, solution.q[:, 0], solution.v[:, 0]
    # an impact is between a row that goes down and one that goes up
    (last,) = jnp.nonzero((v[:-1] < 0) & (v[1:] > 0), size=count, fill_value=steps)
    reached = last < steps
    t, q, v = t[last], jnp.where(reached, q[last], 1), jnp.where(reached, v[last], -1)
    down = GRAVITY - c * v**2
    contact = jnp.where(reached, t + (v + jnp.sqrt(v**2 + 2 * down * q)) / down, horizon)
    return contact - contact[0]


@partial(jax.jit, static_argnames=("count", "steps"))
def simulate(e, c, height, horizon, count: int, steps: int) -> Array:
    """`contact_times` of many drops: arguments (drops,), result (drops, count)."""
    return jax.vmap(partial(contact_times, count=count, steps=steps))(e, c, height, horizon)


@partial(jax.jit, static_argnames=("count", "steps"))
def jacobians(e, c, height, horizon, count: int, steps: int) -> Array:
    """Derivatives of the contact times with respect to e, c and height: (drops, count, 3)."""
    rows = jax.jacfwd(partial(contact_times, count=count, steps=steps), argnums=(0, 1, 2))
    return jnp.stack(jax.vmap(rows)(e, c, height, horizon), axis=-1)


def flight_law(e, c: float, height: float, count: int) -> np.ndarray:
    """Times (count,) of the contacts by the exact law of flight under quadratic drag, from the first one [s].

    Restitution e, one number or one for each impact (count - 1,). Up with speed v: height ln(1 + c v^2/g)/2c in time
    atan(v sqrt(c/g))/sqrt(c g); down from height H: speed sqrt((1 - exp(-2 c H)) g/c) in time acosh(exp(c H))/sqrt(c
    g). Complex numbers cover c < 0, the smallest c the vacuum.
    """
    c = complex(c if abs(c) > 1e-6 else 1e-6)
    times, top = [0.0], height
    for restitution in np.broadcast_to(e, count - 1):
        up = restitution * np.sqrt(-np.expm1(-2 * c * top) * GRAVITY / c)
        top = np.log(1 + c * up**2 / GRAVITY) / (2 * c)
        flight = np.arctan(up * np.sqrt(c / GRAVITY)) + np.arccosh(np.exp(c * top))
        times.append(times[-1] + (flight / np.sqrt(c * GRAVITY)).real)
    return np.array(times)
