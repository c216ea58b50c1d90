"""jaxsim with friction: a floating link of unit mass above its flat terrain, with one collidable point.

Contact is that of `jaxsim_contacts`: Hunt and Crossley's model made linear, whose damper gives the wanted e and whose
contact takes h^(1/3) seconds; for e = 0 the damping is four times the critical one, as for MuJoCo. Friction is jaxsim's
own: a spring and damper along the plane, of the same stiffness, whose force is at most mu times the normal one. Its
collidable points are points of a link; that of a disk or a sphere is put to its lowest point anew at each step, so that
it rolls. A block has its point at the centre of mass and does not turn. Two angles of a sphere are the sums of its
rates, as the case has them. Double precision; jax through `js.model.step` in a loop.
"""

import dataclasses

import jax
import jax.numpy as jnp
import jaxsim.api as js
from jaxsim import VelRepr
from jaxsim_contacts import BALL, PACKAGES
from springs import differentiable_damping_ratio

from jaximpact.conformance import JaxMotions

HOW = (
    "js.model.step in a loop, semi-implicit Euler; soft contact with a linear spring and damper from e, contact time "
    "h^(1/3), damping 4 for e = 0; "
    "collidable point of disks and spheres the lowest one of each step; jax.jacfwd"
)
PLASTIC = 4.0  # ratio of damping for e = 0


class Rough(JaxMotions):
    FRICTION = True


def contact(ratio, mu, h):
    frequency = jnp.pi / h ** (1 / 3)
    return dataclasses.replace(BALL.contact_params, K=frequency**2, D=2 * ratio * frequency, mu=mu)


def march(place, velocity, turning, force, ratio, mu, radius, inertia, t1, steps):
    """Place, angles, velocity and rates of turning (3,) at t1; the force (3,) is a function of time."""
    h = t1 / steps
    parameters = BALL.kin_dyn_parameters
    elements = inertia * jnp.array([[1.0, 0.0, 0.0, 1.0, 0.0, 1.0]])
    parameters = dataclasses.replace(
        parameters, link_parameters=dataclasses.replace(parameters.link_parameters, inertia_elements=elements)
    )
    link = dataclasses.replace(BALL, time_step=h, contact_params=contact(ratio, mu, h), kin_dyn_parameters=parameters)
    data = js.data.JaxSimModelData.build(
        link,
        base_position=place,
        base_linear_velocity=velocity,
        base_angular_velocity=turning,
        velocity_representation=VelRepr.Mixed,
    )

    def step(k, carry):
        data, angles = carry
        lowest = data.base_transform[:3, :3].T @ (radius * jnp.array([0.0, 0.0, -1.0]))
        points = dataclasses.replace(parameters.contact_parameters, point=lowest[None])
        rolling = dataclasses.replace(
            link, kin_dyn_parameters=dataclasses.replace(parameters, contact_parameters=points)
        )
        wrench = jnp.concatenate([force(k * h), jnp.zeros(3)])[None]
        data = js.model.step(rolling, data, link_forces=wrench)
        return data, angles + h * data.base_velocity[3:]

    data, angles = jax.lax.fori_loop(0, steps, step, (data, jnp.zeros(3)))
    return data.base_position, angles, data.base_velocity[:3], data.base_velocity[3:]


def round_body(place, velocity, turning, e, mu, g, radius, inertia, t1, steps):
    weight = jnp.stack([0 * g, 0 * g, -g])
    ratio = differentiable_damping_ratio(e)
    return march(place, velocity, turning, lambda t: weight, ratio, mu, radius, inertia, t1, steps)


def disk(theta, t1, steps):
    x, y, angle, vx, vy, w, *rest = theta
    o = 0 * x
    q, a, v, rate = round_body(
        jnp.stack([o, o, y]), jnp.stack([vx, o, vy]), jnp.stack([o, -w, o]), *rest, t1, steps
    )  # counter-clockwise, so that the slip is vx + R w
    return jnp.stack([x + q[0], q[2], angle - a[1], v[0], v[2], -rate[1]])


def sphere(theta, t1, steps):
    x, y, z, a, b, vx, vy, vz, wx, wy, *rest = theta
    o = 0 * x
    q, turned, v, rate = round_body(
        jnp.stack([o, o, z]), jnp.stack([vx, vy, vz]), jnp.stack([wx, wy, o]), *rest, t1, steps
    )
    return jnp.concatenate([jnp.stack([x + q[0], y + q[1], q[2], a + turned[0], b + turned[1]]), v, rate[:2]])


def block(x, y, vx, vy, mu, force, t1, steps):
    o = 0 * x
    still = jnp.stack([o, o, o])
    q, _, v, _ = march(jnp.stack([o, o, y]), jnp.stack([vx, o, vy]), still, force, PLASTIC, mu, 0.0, 1.0 + o, t1, steps)
    return jnp.stack([x + q[0], q[2], v[0], v[2]])


def turns_back(theta, t1, steps):
    x, y, vx, vy, _, mu, slope, g = theta
    pull = g * jnp.stack([-jnp.sin(slope), 0 * slope, -jnp.cos(slope)])
    return block(x, y, vx, vy, mu, lambda t: pull, t1, steps)


def stick_slip(theta, t1, steps):
    x, y, vx, vy, _, mu, pull, g = theta
    return block(x, y, vx, vy, mu, lambda t: jnp.stack([pull * t, 0 * g, -g]), t1, steps)


def adapter(variant):
    motions = {"disk-slips": disk, "disk-sticks": disk, "sphere-slips": sphere}
    return Rough(motions | {"turns-back": turns_back, "stick-slip": stick_slip}, HOW, PACKAGES)
