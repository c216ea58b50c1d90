"""A block with static friction on a shaken table, and its motions with every event located."""

from functools import cache

import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

import jaximpact as ji

G = 9.81


NUMBERS = {"F": 0.0, "k": 0.0, "B": 0.0, "w": 7.0, "c": 0.0, "A": 0.0, "mu": 0.3, "static": 0.45}


def pushed(t, x, v, args, m=np):
    """Force on a block of mass 1, with the functions of a module m."""
    return args["F"] - args["k"] * x + args["B"] * m.sin(args["w"] * t) - args["c"] * v


def shaken(t, args, m=np):
    """Velocity of the table below it."""
    return args["A"] * args["w"] * m.cos(args["w"] * t)


BLOCK = ji.Problem(
    lambda t, q, v, args: jnp.stack([pushed(t, q[0], v[0], args, jnp), 0 * t - G]),
    lambda t, q, args: q[1:],
    slip=lambda t, q, v, args: v[:1] - shaken(t, args, jnp),
    friction=lambda args: args["mu"],
    static_friction=lambda args: args["static"],
)


def located(args, x, v, t1, times=None):
    """State (2,) at t1 and the kinds of events of the block, by Dormand and Prince's method between events; the list
    ``times`` gets theirs."""
    speed = lambda t: np.real(shaken(t, args))
    needed = lambda t, x: np.imag(shaken(t + 1e-30j, args)) / 1e-30 - pushed(t, x, speed(t), args)  # to stick
    limit, t, events = args["static"] * G, 0.0, []
    way = 0.0 if np.isclose(v, speed(0.0)) else np.sign(v - speed(0.0))
    while t < t1:
        if way == 0:
            rates, end = lambda t, y: [speed(t), 0], lambda t, y: abs(needed(t, y[0])) - limit
            end.direction = 1
        else:
            rates = lambda t, y, way=way: [y[1], pushed(t, *y, args) - way * args["mu"] * G]
            end = lambda t, y, way=way: way * (y[1] - speed(t))
            end.direction = -1
        end.terminal = True
        options = {"method": "DOP853", "rtol": 1e-12, "atol": 1e-13, "max_step": 0.02 * t1}
        found = solve_ivp(rates, (t, t1), [x, v], events=end, **options)
        t, (x, v) = found.t[-1], found.y[:, -1]
        v = speed(t) if way == 0 else v
        if found.status == 1:
            push = needed(t, x)
            new = 0 if way and abs(push) <= limit else -np.sign(push)
            events.append("break" if way == 0 else "reversal" if new else "stop")
            if times is not None:
                times.append(t)
            v, way = speed(t), new
    return np.array([x, v]), events


# numbers, start, end, and the events on the way
MOTIONS = {
    "shaken table": ({"A": 0.1, "mu": 0.35, "static": 0.4}, (0.0, 0.7), 1.2, ["break", "stop"] * 2 + ["break"]),
    "shaken, turns round": ({"A": 0.1, "mu": 0.1, "static": 0.3}, (0.0, 0.0), 1.2, ["reversal"] * 3),
    "oscillator": ({"k": 30.0, "B": 8.0, "w": 4.0}, (0.05, 0.0), 2.0, ["break", "stop", "break", "reversal"]),
}


def slopes_of(args, x, v, t1, varied, share):
    """Derivatives (2, k) of the located state by ``varied`` args, as differences over a ``share`` of each."""
    slopes = []
    for key in varied:
        step = share * args[key]
        sides = [located(args | {key: args[key] + s}, x, v, t1)[0] for s in (step, -step)]
        slopes.append((sides[0] - sides[1]) / (2 * step))
    return np.stack(slopes, axis=1)


@cache
def exact(name):
    """Args of a motion of `MOTIONS`, those that are not zero, its state (2,) and the slopes (2, k) by them."""
    changes, (x, v), t1, events = MOTIONS[name]
    args = NUMBERS | changes
    state, found = located(args, x, v, t1)
    assert found == events
    varied = [key for key in args if args[key]]
    return args, varied, state, slopes_of(args, x, v, t1, varied, 1e-5)


def errors(name, scheme, steps):
    """Largest errors of state and slopes, (2,), of a motion by a scheme, and what `sensitivities` found."""
    _, (x, v), t1, _ = MOTIONS[name]
    args, varied, state, slopes = exact(name)
    call = {"t1": t1, "steps": steps, "args": args, "wrt": "args", "scheme": scheme}
    found = ji.sensitivities(BLOCK, [x, 0.0], [v, 0.0], **call)
    value = np.array([found.value[part][0] for part in "qv"])
    own = np.array([[found.jacobian[part]["args"][key][0] for key in varied] for part in "qv"])
    return np.array([np.max(np.abs(value - state)), np.max(np.abs(own - slopes))]), found
