"""brax with friction: a free sphere above a plane, in its spring and positional pipelines.

As in `brax_pipelines`: restitution is its "elasticity", all other settings are brax's default, double precision, jax
through `pipeline.step` in a loop. Angles are sums of the rates of turning, in the frame of the plane. A block is a
sphere of such an inertia that it does not turn. A slope, and a force that grows, are the gravity of each step.
"""

import jax
import jax.numpy as jnp
from brax_pipelines import HOW, PACKAGES, PIPELINES, RADIUS, system

from jaximpact.conformance import JaxMotions

PLANE = '<geom type="plane" size="99 99 1"/>'
SPHERE = f'<body><freejoint/><geom type="sphere" size="{RADIUS}" mass="1"/></body>'
RIGID = 1e9  # inertia of a block


class Rough(JaxMotions):
    FRICTION = True


def adapter(variant: str) -> JaxMotions:
    """One of the pipelines."""
    return Rough(motions(PIPELINES[variant]), HOW, PACKAGES)


def motions(pipeline):
    floor = system(PLANE, SPHERE)

    def march(place, velocity, turning, gravity, e, mu, radius, inertia, t1, steps):
        """Place, angles, velocity and rates of turning (3,) of a sphere at t1;
        the gravity (3,) is a function of time."""
        h = t1 / steps
        sys = floor.replace(
            elasticity=jnp.broadcast_to(e, floor.elasticity.shape),
            geom_friction=floor.geom_friction.at[:, 0].set(mu),
            geom_size=floor.geom_size.at[1].set(radius),
        )
        sys = sys.tree_replace({"opt.timestep": h, "link.inertia.i": inertia * jnp.eye(3)[None]})
        upright = jnp.array([1.0, 0.0, 0.0, 0.0])
        state = pipeline.init(sys, jnp.concatenate([place, upright]), jnp.concatenate([velocity, turning]))

        def step(k, carry):
            state, angles = carry
            g = gravity(k * h)
            state = pipeline.step(sys.tree_replace({"gravity": g, "opt.gravity": g}), state, jnp.zeros(0))
            return state, angles + h * state.xd.ang[0]

        state, angles = jax.lax.fori_loop(0, steps, step, (state, jnp.zeros(3)))
        return state.q[:3], angles, state.qd[:3], state.xd.ang[0]

    def disk(theta, t1, steps):
        x, y, angle, vx, vy, w, e, mu, g, radius, inertia = theta
        zero, weight = 0 * g, jnp.stack([0 * g, 0 * g, -g])
        start = jnp.stack([zero, zero, y]), jnp.stack([vx, zero, vy]), jnp.stack([zero, -w, zero])
        q, a, v, rate = march(*start, lambda t: weight, e, mu, radius, inertia, t1, steps)
        return jnp.stack([x + q[0], q[2], angle - a[1], v[0], v[2], -rate[1]])

    def sphere(theta, t1, steps):
        x, y, z, a, b, vx, vy, vz, wx, wy, e, mu, g, radius, inertia = theta
        zero, weight = 0 * g, jnp.stack([0 * g, 0 * g, -g])
        start = jnp.stack([zero, zero, z]), jnp.stack([vx, vy, vz]), jnp.stack([wx, wy, zero])
        q, turned, v, rate = march(*start, lambda t: weight, e, mu, radius, inertia, t1, steps)
        return jnp.concatenate([jnp.stack([x + q[0], y + q[1], q[2], a + turned[0], b + turned[1]]), v, rate[:2]])

    def block(x, y, vx, vy, e, mu, force, t1, steps):
        zero = 0 * x
        start = jnp.stack([zero, zero, RADIUS + y]), jnp.stack([vx, zero, vy]), jnp.zeros(3)
        q, _, v, _ = march(*start, force, e, mu, RADIUS, RIGID, t1, steps)
        return jnp.stack([x + q[0], q[2] - RADIUS, v[0], v[2]])

    def turns_back(theta, t1, steps):
        x, y, vx, vy, e, mu, slope, g = theta
        pull = g * jnp.stack([-jnp.sin(slope), 0 * slope, -jnp.cos(slope)])
        return block(x, y, vx, vy, e, mu, lambda t: pull, t1, steps)

    def stick_slip(theta, t1, steps):
        x, y, vx, vy, e, mu, pull, g = theta
        return block(x, y, vx, vy, e, mu, lambda t: jnp.stack([pull * t, 0 * g, -g]), t1, steps)

    found = {"disk-slips": disk, "disk-sticks": disk, "sphere-slips": sphere}
    return found | {"turns-back": turns_back, "stick-slip": stick_slip}
