"""The first experiment of DiffMJX: the derivative of a bounce by the place it starts from, exact on all of its starts.

A. Paulus, A. R. Geist, P. Schumacher, V. Musil, S. Rappenecker, G. Martius, Differentiable simulation of hard contacts
with soft gradients for learning and control, arXiv 2506.14186 (experiments/01_toyexample of their repository): a point
with velocity -1 and no force, an elastic wall at 0, the loss |q(2) - 1| over 2000 starts from 0 to 3, with steps of 0.1
and 1e-4. Their point: autodiff through a step that turns the velocity round where q < 0 has the derivative +1 of q(2)
throughout, at any step, as a time of impact that moves is not seen; where the point has bounced, -1 is right, so that
the loss has the wrong slope on two thirds of the starts. A soft wall with a damped spring has a derivative of the right
sign at small steps. Their numbers are in pictures only; the slopes of the hard step are computed here again,
from its description.

Not repeated: their third experiment, two rolling balls on a soft table in space with the friction of MuJoCo. Their
motion is that of the soft contact's parameters, their results are pictures, and there is no limit as the contact
becomes hard that would be exact.

    python experiments/outside/bounce_gradient.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402

import jaximpact as ji  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from outside.tables import run_comparison  # noqa: E402

GOAL, TIME = 1.0, 2.0
STARTS = np.linspace(0.0, 3.0, 2000)
PUCK = ji.Problem(lambda t, q, v, args: jnp.zeros(1), lambda t, q, args: q, restitution=1.0)


def exact(q0: np.ndarray) -> np.ndarray:
    """Slope of |q(2) - 1| over the start: it comes back from the wall at 2 - q0, or has not met it yet."""
    end, slope = np.abs(q0 - TIME), np.sign(q0 - TIME)
    return np.sign(end - GOAL) * slope


def of_a_step_that_turns_round(steps: int) -> np.ndarray:
    """Slopes by autodiff through steps that turn the velocity round behind the wall."""
    h = TIME / steps

    def loss(q0):
        def step(state, _):
            q, v = state
            v = jnp.where(q < 0, -v, v)
            return (q + h * v, v), None

        (q, _), _ = lax.scan(step, (q0, jnp.asarray(-1.0)), length=steps)
        return jnp.abs(q - GOAL)

    return np.asarray(jax.jit(jax.vmap(jax.grad(loss)))(STARTS))


def ours(steps: int, scheme) -> np.ndarray:
    """Slopes by reverse mode through jaximpact."""

    def loss(q0):
        end = ji.solve(PUCK, q0[None], jnp.array([-1.0]), t1=TIME, steps=steps, scheme=scheme, save="final").q[-1, 0]
        return jnp.abs(end - GOAL)

    return np.asarray(jax.jit(jax.vmap(jax.grad(loss)))(STARTS))


def compare() -> list[dict]:
    """One line for each way and step: on how many starts the slope is wrong, and by how much elsewhere."""
    # within a step of an impact at the end, of the goal and of the wall the loss of a step of h has its kinks elsewhere
    lines = []
    ways = {"a step that turns round": of_a_step_that_turns_round}
    ways |= {
        type(s).__name__: (lambda n, s=s: ours(n, s))
        for s in (ji.EventCorrected(), ji.MoreauJean(), ji.PaoliSchatzman())
    }
    for name, way in ways.items():
        for steps in (20, 2000) if name != "a step that turns round" else (20, 20_000):
            slope, h = way(steps), TIME / steps
            kinks = np.min(np.abs(STARTS[:, None] - np.array([0.0, 1.0, 2.0, 3.0])), axis=1) < 2 * h
            off = np.abs(slope - exact(STARTS))[~kinks]
            lines.append({"way": name, "h": h, "starts": int((~kinks).sum()), "wrong": int(np.sum(off > 0.5)),
                          "largest error of the others": f"{np.max(off[off <= 0.5], initial=0):.1e}"})  # fmt: skip
    return lines


def main(arguments: list[str] | None = None) -> list[dict]:
    return run_comparison(compare, __file__, __doc__, arguments)


if __name__ == "__main__":
    main()
