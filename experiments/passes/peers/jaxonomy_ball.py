"""jaxonomy: its own `BouncingBall` model (a zero-crossing event with a reset map), differentiated in reverse mode.

jaxonomy corrects the adjoint of an event for the event's time. The model has no lasting contact and one wall.
"""

import jax
import jax.numpy as jnp
import jaxonomy
from jaxonomy.models import BouncingBall

PACKAGES = ("jaxonomy",)
HOW = 'models.BouncingBall, simulate with diff_mode="reverse", tolerances 1e-9; jax.jacrev'
PHASES = 1  # there is no step size: one end time is enough

MODEL = BouncingBall()
CONTEXT = MODEL.create_context()


def ball(theta, t1, steps):
    y0, v0, e, g, wall = theta
    options = jaxonomy.SimulatorOptions(diff_mode="reverse", rtol=1e-9, atol=1e-9, max_major_steps=20)
    context = CONTEXT.with_continuous_state(jnp.stack([y0, v0]))
    context = context.with_parameters({"e": e, "g": g, "h0": wall})
    return jaxonomy.simulate(MODEL, context, (0.0, t1), options=options).context.continuous_state


def off_wall(theta, t1, steps):
    y0, v0, e, wall = theta
    return ball(jnp.stack([y0, v0, e, 0 * e, wall]), t1, steps)


MOTIONS = {"grav1d": ball, "grav1d-once": ball, "ball-e0.8": ball, "ball-e0.5": ball, "off-wall": off_wall}


def differentiate(motion, steps):
    """Outside of jit: `simulate` wants a concrete end time."""
    return lambda theta, t1: jax.jacrev(lambda x: (motion(x, float(t1), steps),) * 2, has_aux=True)(jnp.asarray(theta))
