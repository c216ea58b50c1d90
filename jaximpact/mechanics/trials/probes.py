"""Error of a trial's derivatives, estimated by two directional derivatives along the trial.

The error estimate of a trial holds for the motion, not for small changes of the motion. A pendulum at rest at its top,
a mode that is not excited or a force whose amplitude is zero leave no trace in the motion, and substeps grow beyond
what the linearised motion needs. The same Runge-Kutta step is therefore made with two tangents: one of the state, in a
direction with no zero component, and one of the arguments from an unchanged state; and their errors are estimated as
that of the motion is. The tangent by the arguments starts from zero in each trial: its error is compared with the
change that the same change of forces has caused since the motion began, or within the time scale of the system's
response where that is shorter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from ...jaxtools.shapes import PyTree
from ...jaxtools.tables import table
from .tableau import Rows, Tableau, estimate

if TYPE_CHECKING:
    from .trial import Hold


def error_of_changes(
    tableau: Tableau,
    rows: Rows,
    hold: Hold,
    times: Array,
    q: Array,
    v: Array,
    closed: Array,
    slack: Array,
    s: Array,
    args: object,
    least: Array,
    since: Array,
) -> Array:
    """Estimates the relative error () of the derivatives of a trial of length s with respect to
    its initial state and to args.

    Args:
        rows: rows of the tableau, one per stage.
        hold: function that gives accelerations, as `trial.held`.
        times, q, v: times, positions and velocities of the stages, (k,) and (k, d).
        closed, slack: as in `trial.Base`.
        least: change of positions () below which changes are only rounding.
        since: time () from the beginning of the motion to the beginning of the trial.
    """
    k, d = q.shape
    s = jnp.where(s > 0, s, 1)
    # numbers between 1/2 and 1 of either sign: no coordinate of a state is missing, and few combinations of them cancel
    generic = np.random.default_rng(0)
    numbers = generic.uniform(0.5, 1.0, (2, d)) * generic.choice([-1.0, 1.0], (2, d))
    of_state = jnp.asarray([[1.0], [0.0]], q.dtype)
    dq, dv = of_state * jnp.asarray(numbers[:1], q.dtype), of_state * jnp.asarray(numbers[1:], q.dtype) / s

    def change(t: Array, x: Array, y: Array, dx: Array, dy: Array, share: Array) -> Array:
        """Returns the derivative (d,) of the acceleration at time t, position x and velocity y along changes dx, dy
        (d,) and a change of args.

        The change of args is that of `generic_change` with ``share`` (), which is zero for the tangent by the state.
        """
        some = generic_change(args, share)
        return jax.jvp(lambda x, y, args: hold(t, x, y, closed, slack, args)[0], (x, y, args), (dx, dy, some))[1]

    def stage(kept: Array, row: tuple) -> tuple[Array, Array]:
        t, x, y, node, velocity, position = row
        dx = dq + s * (node * dv + s * jnp.tensordot(position, kept, 1))
        dy = dv + s * jnp.tensordot(velocity, kept, 1)
        found = jax.vmap(change, in_axes=(None, None, None, 0, 0, 0))(t, x, y, dx, dy, 1 - of_state[:, 0])
        return jnp.concatenate([found[None], kept[:-1]]), jnp.maximum(jnp.abs(dx), s * jnp.abs(dy))

    numbers_of = lambda *arrays: tuple(table(x, q.dtype) for x in arrays)
    frames = (times, q, v, *numbers_of(rows.node, rows.velocity, rows.position))
    kept, reached = lax.scan(stage, jnp.zeros((k, 2, d), q.dtype), frames)
    of_v, of_q = numbers_of(tableau.errors[:, ::-1], tableau.position_errors[:, ::-1])
    most = lambda x: jnp.max(jnp.abs(x), axis=(0, 2))
    reached, pushed = most(reached), most(kept)
    # where the acceleration changes by w^2 times a change of position, the response time is 1/w
    answers = jnp.sqrt(reached[0] / jnp.where(pushed[0] > 0, pushed[0], 1))
    span = jnp.where(pushed[0] > 0, jnp.minimum(since + s, answers), since + s)
    span = jnp.stack([s, jnp.maximum(span, s)])
    sizes = (jnp.maximum(jnp.maximum(reached, span * scale * pushed), least) for scale in (span, s))
    to_q, to_v = (
        s * s * jnp.tensordot(weights, kept, 1) / jnp.where(size > 0, size, 1)[None, :, None]
        for weights, size in zip((of_q, of_v), sizes, strict=True)
    )
    return jnp.max(estimate(jnp.stack([to_v, to_q], axis=1)))


def generic_change(args: object, share: Array) -> PyTree:
    """Returns a tangent of args: ``share`` () times the magnitudes of their numbers, or times 1 where a number is 0."""

    def of(x: ArrayLike) -> Array | np.ndarray:
        x = jnp.asarray(x)
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            return np.zeros(x.shape, jax.dtypes.float0)
        return (share * jnp.where(x == 0, 1, jnp.abs(x))).astype(x.dtype)

    return jax.tree.map(of, args)
