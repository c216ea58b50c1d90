"""jaxonomy: its own `BouncingBall` model (a zero-crossing event with a reset map), differentiated in reverse mode.

jaxonomy corrects the adjoint of an event for the event's time. The model has no lasting contact and one wall.
"""

import jax
import jax.numpy as jnp
import jaxonomy
from jaxonomy.models import BouncingBall

PACKAGES = ("jaxonomy",)
HOW = 'models.BouncingBall, simulate with diff_mode="reverse", tolerances 1e-9; jax.jacrev'
STEPS = False

jax.config.update("jax_enable_x64", True)
MODEL = BouncingBall()
CONTEXT = MODEL.create_context()


def ball(theta, t1):
    y0, v0, e, g, wall = theta
    options = jaxonomy.SimulatorOptions(diff_mode="reverse", rtol=1e-9, atol=1e-9, max_major_steps=20)
    context = CONTEXT.with_continuous_state(jnp.stack([y0, v0]))
    context = context.with_parameters({"e": e, "g": g, "h0": wall})
    return jaxonomy.simulate(MODEL, context, (0.0, t1), options=options).context.continuous_state


def off_wall(theta, t1):
    y0, v0, e, wall = theta
    return ball(jnp.stack([y0, v0, e, 0 * e, wall]), t1)


MOTIONS = {"grav1d": ball, "grav1d-once": ball, "ball-e0.8": ball, "ball-e0.5": ball, "off-wall": off_wall}


def motion(case):
    if case.name not in MOTIONS:
        raise NotImplementedError(case.name)
    return lambda theta: MOTIONS[case.name](theta, case.t1)


def final_state(case, theta, steps):
    return motion(case)(jnp.asarray(theta))


def jacobian(case, theta, steps):
    """Outside of jit: `simulate` wants a concrete end time."""
    return jax.jacrev(motion(case))(jnp.asarray(theta))
