"""MuJoCo MJX: rigid bodies on slide joints, spheres against planes and spheres, MuJoCo's soft contact.

MuJoCo has no restitution. As its documentation advises for bounces, solref is given in the direct form
(-stiffness, -damping); solimp near 1 makes the contact that spring and damper. The damping ratio is the one whose
bounce has the wanted e, and the spring swings for h^(1/3) seconds: as h -> 0 the contact hardens and is resolved by
ever more steps. The exponent was searched (README): the velocity after a contact depends on where in its step it began,
the derivative of that goes as h over the square of the contact's time, and has a chance to converge only below an
exponent of 1/2. Without friction (condim 1). A spring and damper has no
e = 0: such cases have no entry here.
"""

import jax
import jax.numpy as jnp
import mujoco
from mujoco import mjx
from springs import differentiable_damping_ratio as damping_ratio

from jaximpact.conformance import JaxMotions

PACKAGES = ("mujoco", "mujoco-mjx")
HOW = "mjx.step in a loop, Euler; solref = (-stiffness, -damping) from e, contact time h^(1/3); jax.jacfwd"
RADIUS = 0.1

OPTION = '<option integrator="Euler" cone="pyramidal" gravity="0 0 0"><flag eulerdamp="disable"/></option>'
CONTACT = 'condim="1" solimp="0.9999 0.9999 0.001 0.5 2" friction="0 0 0"'


def body(axes: str) -> str:
    joints = "".join(f'<joint type="slide" axis="{axis}" damping="0"/>' for axis in axes.split(","))
    return f'<body>{joints}<geom type="sphere" size="{RADIUS}" mass="1" {CONTACT}/></body>'


def model(*elements: str):
    xml = f"<mujoco>{OPTION}<worldbody>{''.join(elements)}</worldbody></mujoco>"
    return mjx.put_model(mujoco.MjModel.from_xml_string(xml))


PLANE = f'<geom type="plane" size="9 9 1" {CONTACT}/>'
SIDE = f'<geom type="plane" size="9 9 1" zaxis="1 0 0" {CONTACT}/>'


def contact(m, e, h):
    """The model with the step, and the spring and damper of a bounce e that takes about h^(1/3) seconds."""
    frequency = jnp.pi / h ** (1 / 3)
    solref = jnp.stack([-(frequency**2), -2 * damping_ratio(e) * frequency])
    return m.tree_replace({"opt.timestep": h, "geom_solref": jnp.broadcast_to(solref, m.geom_solref.shape)})


def march(m, q0, v0, steps):
    d = mjx.make_data(m).replace(qpos=q0, qvel=v0)
    # a loop wants the types that a step returns
    types = jax.eval_shape(mjx.step, m, d)
    d = jax.tree.map(lambda x, like: jnp.asarray(x, like.dtype), d, types)
    d = jax.lax.fori_loop(0, steps, lambda _, d: mjx.step(m, d), d)
    return jnp.concatenate([d.qpos, d.qvel])


def floor_at(m, wall):
    """Planes moved by the sphere's radius: the sphere's centre is the point."""
    return m.replace(geom_pos=m.geom_pos.at[0].set(jnp.stack([0 * wall, 0 * wall, wall - RADIUS])))


def pull(m, *force):
    return m.tree_replace({"opt.gravity": jnp.stack(force)})


def ball(theta, t1, steps):
    y0, v0, e, g, wall = theta
    m = pull(floor_at(contact(BALL, e, t1 / steps), wall), 0 * g, 0 * g, -g)
    return march(m, y0[None], v0[None], steps)


def off_wall(theta, t1, steps):
    y0, v0, e, wall = theta
    return ball(jnp.stack([y0, v0, e, 0 * e, wall]), t1, steps)


def two_balls(theta, t1, steps):
    x1, x2, v1, v2, e, r = theta
    m = contact(PAIR, e, t1 / steps)
    m = m.replace(geom_size=jnp.broadcast_to(r, m.geom_size.shape))
    return march(m, jnp.stack([x1, x2]), jnp.stack([v1, v2]), steps)


def unit_flight(theta, t1, steps):
    """A wall on the other side: mirrored."""
    y0, v0, e, wall = theta
    return -ball(jnp.stack([-y0, -v0, e, 0 * e, -wall]), t1, steps)


def corner(theta, t1, steps):
    x0, y0, vx, vy, e, gx, gy, wx, wy = theta
    m = contact(CORNER, e, t1 / steps)
    walls = jnp.stack([jnp.stack([0 * wy, 0 * wy, wy - RADIUS]), jnp.stack([wx - RADIUS, 0 * wx, 0 * wx])])
    m = pull(m.replace(geom_pos=m.geom_pos.at[:2].set(walls)), -gx, 0 * gx, -gy)
    return march(m, jnp.stack([x0, y0]), jnp.stack([vx, vy]), steps)


def oscillator(theta, t1, steps):
    q0, v0, e, w2, wall, qeq = theta
    m = floor_at(contact(BALL, e, t1 / steps), wall)
    m = m.replace(jnt_stiffness=m.jnt_stiffness.at[0].set(w2), qpos_spring=m.qpos_spring.at[0].set(qeq))
    return march(m, q0[None], v0[None], steps)


BALL = model(PLANE, body("0 0 1"))
PAIR = model(body("1 0 0"), body("1 0 0"))
CORNER = model(PLANE, SIDE, body("1 0 0,0 0 1"))
MOTIONS = {
    "grav1d": ball,
    "grav1d-once": ball,
    "ball-e0.8": ball,
    "ball-e0.5": ball,
    "harm1d": oscillator,
    "corner": corner,
    "two-balls": two_balls,
    "off-wall": off_wall,
    "unit-flight": unit_flight,
}


def adapter(variant: str) -> JaxMotions:
    """All that MJX can state."""
    return JaxMotions(MOTIONS, HOW, PACKAGES)
