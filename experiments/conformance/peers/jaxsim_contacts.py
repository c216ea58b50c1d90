"""jaxsim: floating links of unit mass above its flat terrain, one a coordinate,
each with one collidable point at its centre.

jaxsim has no restitution. Its soft contact is the model of Hunt and Crossley, whose exponents are set to zero: a linear
spring and damper that does not pull, whose restitution does not depend on the speed. As for MuJoCo, the ratio of
damping is the one of the wanted e and the contact takes h^(1/3) seconds; an elastic contact has a damper of 1e-9, since
jaxsim divides by it. Plastic cases have no entry: a spring and damper has no e = 0; its rigid contact holds a body that
has sunk in by a part of a step until the force has lifted it out, and returns NaN as a derivative; its relaxed one
bounces (`lift` ends 20 % off). Semi-implicit Euler, jaxsim's default; forces come in as forces on links; inertial-fixed
velocities, which jaxsim recommends for differentiation; double precision; jax through `js.model.step` in a loop.
"""

import dataclasses
import os

os.environ.setdefault("JAX_ENABLE_X64", "1")  # jaxsim makes numbers as it is imported

import jax
import jax.numpy as jnp
import jaxsim.api as js
from jaxsim import VelRepr
from jaxsim.api.kin_dyn_parameters import ContactParameters
from jaxsim.rbda.contacts import SoftContacts, SoftContactsParams
from springs import differentiable_damping_ratio as damping_ratio
from walls import WALLS, Motion

from jaximpact.conformance import JaxMotions, get

PACKAGES = ("jaxsim",)
HOW = (
    "js.model.step in a loop, semi-implicit Euler; soft contact with a linear spring and damper from e, contact time "
    "h^(1/3); "
    "jax.jacfwd"
)
FUNCTIONS = {"sin": jnp.sin, "cos": jnp.cos, "sqrt": jnp.sqrt}
AWAY = 100.0  # the height of coordinates without a wall
SDF = """<sdf version="1.7"><model name="ball"><link name="ball"><inertial><mass>1</mass>
<inertia><ixx>1</ixx><iyy>1</iyy><izz>1</izz><ixy>0</ixy><ixz>0</ixz><iyz>0</iyz></inertia></inertial></link></model></sdf>"""


def model():
    made = js.model.JaxSimModel.build_from_model_description(
        SDF,
        contact_model=SoftContacts.build(),
        contact_params=SoftContactsParams.build(mu=0.0, p=0.0, q=0.0),
        gravity=0.0,
    )
    points = ContactParameters(body=(0,), point=jnp.zeros((1, 3)), enabled=(True,))
    return dataclasses.replace(
        made, kin_dyn_parameters=dataclasses.replace(made.kin_dyn_parameters, contact_parameters=points)
    )


BALL = model()


def spring(e, h):
    frequency = jnp.pi / h ** (1 / 3)
    damper = 2 * damping_ratio(e) * frequency + 1e-9
    return dataclasses.replace(BALL.contact_params, K=frequency**2, D=damper)


def motion(case):
    def run(theta, t1, steps):
        h, stated = t1 / steps, Motion(case, list(theta), FUNCTIONS)
        ball = dataclasses.replace(BALL, time_step=h, contact_params=spring(theta[case.columns.index("e")], h))
        foot = jnp.array([0.0 if i in stated.bounded else AWAY for i in range(stated.d)])
        place = lambda data: data.base_position[:, 2] - foot
        up = lambda x: jnp.stack([jnp.zeros_like(x), jnp.zeros_like(x), x], axis=-1)

        def build(height, speed):
            return js.data.JaxSimModelData.build(
                ball,
                base_position=up(height),
                base_linear_velocity=up(speed),
                velocity_representation=VelRepr.Inertial,
            )

        def push(data, force):
            wrench = jnp.concatenate([up(force), jnp.zeros(3)])[None]
            return js.model.step(ball, data, link_forces=wrench)

        def step(k, data):
            force = stated.force(k * h, list(place(data)), list(data._base_linear_velocity[:, 2]))
            return jax.vmap(push)(data, jnp.stack([jnp.asarray(f) + 0.0 * h for f in force]))

        r, v = (jnp.stack([x + 0.0 * h for x in values]) for values in stated.start)
        data = jax.lax.fori_loop(0, steps, step, jax.vmap(build)(r + foot, v))
        return jnp.stack(stated.end(list(place(data)), list(data._base_linear_velocity[:, 2])))

    return run


def adapter(variant):
    return JaxMotions({name: motion(get(name)) for name in WALLS if get(name).e}, HOW, PACKAGES)
