"""brax: free spheres above a plane or each other, in its spring and positional pipelines.

Both have a restitution ("elasticity"). The generalized pipeline has none; through the free joints used here its
derivatives are NaN, through a slide joint they are not, so that it is not judged by these models. A force that changes
is a gravity of every step. Every other setting is brax's default; double precision; differentiated as brax is: jax
through `pipeline.step` in a loop.
"""

import jax
import jax.numpy as jnp
from brax.io import mjcf
from brax.positional import pipeline as positional
from brax.spring import pipeline as spring

from jaximpact.conformance import JaxMotions

PACKAGES = ("brax", "mujoco-mjx")
HOW = "pipeline.step in a loop, default settings, elasticity = e; jax.jacfwd"
RADIUS = 0.1
PIPELINES = {"spring": spring, "positional": positional}

PLANE = '<geom type="plane" size="9 9 1" friction="0 0 0"/>'
SPHERE = f'<body><freejoint/><geom type="sphere" size="{RADIUS}" mass="1" friction="0 0 0"/></body>'


def system(*elements: str):
    return mjcf.loads(f"<mujoco><option gravity='0 0 0'/><worldbody>{''.join(elements)}</worldbody></mujoco>")


def march(pipeline, sys, places, velocities, steps, pulled=lambda sys, k: sys):
    """Spheres of given places and velocities (n, 3) after some steps, the same; `pulled` is the system in step k."""
    count = places.shape[0]
    upright = jnp.broadcast_to(jnp.array([1.0, 0.0, 0.0, 0.0]), (count, 4))
    q = jnp.concatenate([places, upright], axis=1).ravel()
    qd = jnp.concatenate([velocities, jnp.zeros((count, 3))], axis=1).ravel()
    state = pipeline.init(sys, q, qd)
    state = jax.lax.fori_loop(0, steps, lambda k, s: pipeline.step(pulled(sys, k), s, jnp.zeros(0)), state)
    return state.q.reshape(count, 7)[:, :3], state.qd.reshape(count, 6)[:, :3]


def adapter(variant: str) -> JaxMotions:
    """One of the pipelines."""
    return JaxMotions(motions(variant), HOW, PACKAGES)


def motions(variant: str):
    pipeline = PIPELINES[variant]
    floor, pair = system(PLANE, SPHERE), system(SPHERE, SPHERE)

    def pull(sys, force):
        gravity = jnp.stack([0 * force, 0 * force, force])
        return sys.tree_replace({"gravity": gravity, "opt.gravity": gravity})

    def settings(sys, e, g, h):
        sys = sys.replace(elasticity=jnp.broadcast_to(e, sys.elasticity.shape))
        return pull(sys.tree_replace({"opt.timestep": h}), -g)

    def ball(theta, t1, steps, force=None):
        y0, v0, e, g, wall = theta
        h = t1 / steps
        sys = settings(floor, e, g, h)
        changing = {} if force is None else {"pulled": lambda sys, k: pull(sys, force(k * h))}
        up = jnp.array([[0.0, 0.0, 1.0]])
        sys = sys.replace(geom_pos=jnp.concatenate([(wall - RADIUS) * up, sys.geom_pos[1:]]))
        q, v = march(pipeline, sys, y0 * up, v0 * up, steps, **changing)
        return jnp.stack([q[0, 2], v[0, 2]])

    def off_wall(theta, t1, steps):
        y0, v0, e, wall = theta
        return ball(jnp.stack([y0, v0, e, 0 * e, wall]), t1, steps)

    def unit_flight(theta, t1, steps):
        y0, v0, e, wall = theta
        return -ball(jnp.stack([-y0, -v0, e, 0 * e, -wall]), t1, steps)

    def hop(theta, t1, steps):
        y0, v0, e, f, wall = theta
        return ball(jnp.stack([y0, v0, e, -f, wall]), t1, steps)

    def lift(theta, t1, steps):
        y0, v0, e, g, k, wall = theta
        return ball(jnp.stack([y0, v0, e, g, wall]), t1, steps, lambda t: k * t - g)

    def stick(theta, t1, steps):
        y0, v0, e, g, b, om, wall = theta
        return ball(jnp.stack([y0, v0, e, g, wall]), t1, steps, lambda t: -g - b * jnp.sin(om * t))

    def two_balls(theta, t1, steps):
        x1, x2, v1, v2, e, r = theta
        sys = settings(pair, e, 0 * e, t1 / steps)
        sys = sys.replace(geom_size=jnp.broadcast_to(r, sys.geom_size.shape))
        along = jnp.array([[1.0, 0.0, 0.0]])
        q, v = march(pipeline, sys, jnp.stack([x1, x2])[:, None] * along, jnp.stack([v1, v2])[:, None] * along, steps)
        return jnp.concatenate([q[:, 0], v[:, 0]])

    lasting = {"lift": lift, "zeno-lift": lift, "stick1d": stick}
    bounces = dict.fromkeys(("grav1d", "grav1d-once", "ball-e0.8", "ball-e0.5"), ball)
    return bounces | lasting | {"hop1d": hop, "two-balls": two_balls, "off-wall": off_wall, "unit-flight": unit_flight}
