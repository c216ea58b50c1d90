"""Restitution and drag of each ball, release height and timing offset of each drop, by optax and gradients of `solve`.

First by least squares with Huber's loss, to find which measured contact is which simulated one; then by generalised
least squares, because errors add up along a drop: every impact changes the speed by a little chance, and all later
flights with it. The covariance of the errors of contact times t_k is that of trigger and impacts,

    C_kl = jitter^2 delta_kl + scatter^2 sum over impacts j before k and l of (t_k - t_j)(t_l - t_j).
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from bounces.data import Drop
from bounces.matching import HUBER, match
from jax.flatten_util import ravel_pytree
from scipy.optimize import brute, fmin
from scipy.special import erf, huber

from .model import GRAVITY, flight_law, jacobians, simulate

START_E = 0.5  # every ball starts with it, without drag and at nominal heights
STAGES = (3, 4, 6, 9, 13, 99, 99, 99)  # contacts of a drop in use at most: first the early ones, then ever more
POLISH = 3  # stages of generalised least squares after them
FAR = 0.2  # scale of the loss in the first stage: by this the first flights may be off [s]
NEAR = 20e-3  # and in the second; from then on it follows the residuals down to the jitter
SHRINK = 0.5  # at most by this factor at a time, so that contacts left out can come back
SIGMA = 1.48  # standard deviation / median absolute deviation of normal errors
ITERATIONS = 6  # of L-BFGS in a stage; the first is already a Gauss-Newton step
REACH = (1.0, 0.1, 0.1, 20e-3)  # largest steps in logit e, c [1/m], log height, offset [s] where the data say nothing
FIXED = 1e-9  # how far a fixed parameter may move
SCATTER = 5e-3  # relative scatter of restitution to start from; without it the timing offsets would hide the scatter
NOISE, GRID = ((1e-4, 2e-2), (1e-5, 5e-2)), 9  # bounds of jitter [s] and scatter, and points between them
NORMAL = erf(HUBER / np.sqrt(2))  # for normal errors the mean of the derivative of Huber's loss times its argument
SPARE = 4  # contacts simulated beyond the longest record: room for missed ones
MARGIN = 1.15  # simulated over needed duration, so that the last contact in use stays inside


class Parameters(NamedTuple):
    """What is fitted; a ball's or a drop's numbers."""

    logit: jax.Array  # of e, (balls,)
    drag: jax.Array  # c [1/m], (balls,)
    height: jax.Array  # log of release height over nominal height, (drops,)
    offset: jax.Array  # timing error of the first contact [s], (drops,)


class Table(NamedTuple):
    """The measured drops as arrays, padded to the length of the longest; fixed during a stage."""

    ball: jax.Array  # number of the ball, (drops,)
    nominal: jax.Array  # nominal height [m], (drops,)
    times: jax.Array  # measured contacts [s], (drops, contacts)
    index: jax.Array  # contact number of each of them, -1 where it is out, (drops, contacts)
    white: jax.Array  # makes the errors independent, of variance 1 [1/s], (drops, contacts, contacts)
    horizon: jax.Array  # simulated time [s], (drops,)


@dataclass(frozen=True)
class Fit:
    """The fit of all balls; errors are standard errors."""

    balls: list[str]
    drops: list[Drop]
    ball: np.ndarray  # number of each drop's ball (drops,)
    e: np.ndarray  # (balls,)
    c: np.ndarray  # [1/m] (balls,)
    covariance: np.ndarray  # of logit e and c, Gauss-Newton, as if residuals were independent (balls, 2, 2)
    clustered: np.ndarray  # the same, but residuals of one drop may depend on each other (balls, 2, 2)
    times: np.ndarray  # measured contacts, padded [s] (drops, contacts)
    height: np.ndarray  # [m] (drops,)
    offset: np.ndarray  # [s] (drops,)
    index: np.ndarray  # contact number of each measured contact, -1 where rejected or none (drops, contacts)
    model: np.ndarray  # simulated contacts [s] (drops, count)
    residual: np.ndarray  # measured minus simulated [s], NaN where rejected or none (drops, contacts)
    surprise: np.ndarray  # the same less what was to be expected after the contacts before it [s] (drops, contacts)
    noise: np.ndarray  # jitter of the trigger [s], relative scatter of e from impact to impact (balls, 2)
    history: np.ndarray  # e and c at the end of each stage (stages + 1, balls, 2)
    law_error: float  # largest difference of a simulated contact in use from the exact law of flight [s]

    def errors(self, covariance: np.ndarray) -> np.ndarray:
        """Standard errors of e and c from one of the covariances: (balls, 2)."""
        slope = np.stack([self.e * (1 - self.e), np.ones_like(self.e)], axis=1)  # de/d logit e
        return slope * np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))

    def rms(self, ball: int) -> float:
        """Root mean square of the residuals of a ball [s]."""
        return np.sqrt(np.nanmean(self.residual[self.ball == ball] ** 2))

    def typical(self, ball: int) -> float:
        """Robust standard deviation of the surprises of a ball [s]."""
        return SIGMA * np.nanmedian(np.abs(self.surprise[self.ball == ball]))


def arguments(x: Parameters, table: Table) -> tuple:
    """e, c, height and horizon of every drop."""
    e = jax.nn.sigmoid(x.logit)[table.ball]
    return e, x.drag[table.ball], table.nominal * jnp.exp(x.height), table.horizon


def residuals(x: Parameters, table: Table, model) -> jax.Array:
    """Measured minus simulated contact times [s], 0 for contacts that are out."""
    off = table.times + x.offset[:, None] - jnp.take_along_axis(model, jnp.maximum(table.index, 0), axis=1)
    return jnp.where(table.index >= 0, off, 0)


def loss(x: Parameters, table: Table, count: int, steps: int):
    """Huber's loss of all contacts in use."""
    model = simulate(*arguments(x, table), count=count, steps=steps)
    off = jnp.einsum("dij,dj->di", table.white, residuals(x, table, model))
    return optax.losses.huber_loss(off, delta=HUBER).sum()


def linearised(x: Parameters, table: Table, count: int, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """White residuals (drops, contacts), their robust weights, and their derivatives with respect to the ball's logit e
    and c and the drop's height and offset (drops, contacts, 4)."""
    e, c, height, horizon = arguments(x, table)
    model = simulate(e, c, height, horizon, count=count, steps=steps)
    slopes = np.asarray(jacobians(e, c, height, horizon, count=count, steps=steps))
    slopes = slopes * np.stack([e * (1 - e), np.ones_like(c), height], axis=-1)[:, None]
    rows = np.take_along_axis(slopes, np.maximum(table.index, 0)[..., None], axis=1)
    rows = np.concatenate([-rows, np.ones((*table.index.shape, 1))], axis=-1)
    rows = table.white @ np.where(table.index[..., None] >= 0, rows, 0)
    off = np.einsum("dij,dj->di", table.white, residuals(x, table, model))
    return off, np.minimum(1, HUBER / np.maximum(np.abs(off), 1e-12)), rows


def positions(table: Table) -> np.ndarray:
    """Places of a drop's four parameters in the vector of all: (drops, 4)."""
    balls, drops, d = table.ball.max() + 1, len(table.ball), np.arange(len(table.ball))
    return np.stack([table.ball, balls + table.ball, 2 * balls + d, 2 * balls + drops + d], axis=1)


def normal_matrix(table: Table, weights, rows) -> np.ndarray:
    """J' W J of all parameters together."""
    place = positions(table)
    total = np.zeros((place.max() + 1,) * 2)
    blocks = np.einsum("dk,dki,dkj->dij", weights, rows, rows)
    np.add.at(total, (place[:, :, None], place[:, None, :]), blocks)
    return total


def whitening(table: Table, weights, rows, free: Parameters) -> np.ndarray:
    """Matrix S such that the loss at x + S y has about the Hessian 1 in y: S S' = (J' W J + damping)^-1.

    The damping keeps steps within REACH where the data say little, and fixed parameters where they are. It only changes
    coordinates, not the optimum.
    """
    reach = np.concatenate([r * part + FIXED for part, r in zip(free, REACH, strict=True)])
    return np.linalg.inv(np.linalg.cholesky(normal_matrix(table, weights, rows) + np.diag(reach**-2.0))).T


@partial(jax.jit, static_argnames=("count", "steps"))
def descend(x: Parameters, table: Table, matrix, count: int, steps: int) -> Parameters:
    """ITERATIONS of L-BFGS in whitened coordinates."""
    flat, unflatten = ravel_pytree(x)
    optimiser = optax.lbfgs(scale_init_precond=False)  # the coordinates are scaled already
    value = lambda y: loss(unflatten(flat + matrix @ y), table, count, steps)

    def iterate(carry, _):
        y, state = carry
        # what the line search found at its end, computed anew only at the start
        here, gradient = optax.value_and_grad_from_state(value)(y, state=state)
        change, state = optimiser.update(gradient, state, y, value=here, grad=gradient, value_fn=value)
        return (optax.apply_updates(y, change), state), None

    y = jnp.zeros_like(flat)
    (y, _), _ = jax.lax.scan(iterate, (y, optimiser.init(y)), length=ITERATIONS)
    return unflatten(flat + matrix @ y)


def match_all(table: Table, x: Parameters, model, lengths, scale) -> np.ndarray:
    """Contact numbers of the first ``lengths`` measured contacts of each drop, -1 elsewhere."""
    index = np.full(table.times.shape, -1)
    for d, n in enumerate(lengths):
        index[d, :n] = match(table.times[d, :n] + x.offset[d], model[d][None], scale[table.ball[d]])[1]
    return index


def next_scale(table: Table, x: Parameters, model, lengths, old, jitter: float) -> np.ndarray:
    """Scale of the loss of each ball (balls,) from the distances of measured contacts to the nearest simulated ones.

    The median over all measured contacts: a scale that knew only those matched would lock onto a few of them.
    """
    scale = np.empty_like(old)
    for ball in range(len(old)):
        off = [
            np.abs(table.times[d, : lengths[d]] + x.offset[d] - model[d][:, None]).min(axis=0)
            for d in np.flatnonzero(table.ball == ball)
        ]
        scale[ball] = np.clip(SIGMA * np.median(np.concatenate(off)), max(jitter, SHRINK * old[ball]), NEAR)
    return scale


def factors(index, model, noise) -> np.ndarray:
    """Inverse Cholesky factors of the covariances C of drops (drops, contacts, contacts); 0 for contacts that are out.

    Contact numbers (drops, contacts), simulated contacts (drops, count) [s], noise (drops, 2) or (2,) as in `Fit`.
    """
    used = index >= 0
    since = np.take_along_axis(model, np.maximum(index, 0), axis=1)[:, :, None] - model[:, None]
    lever = np.where(used[:, :, None], np.maximum(since, 0), 0)
    jitter, scatter = (part[..., None, None] for part in np.moveaxis(np.asarray(noise), -1, 0))
    trigger = np.where(used[:, None], jitter**2, 1) * np.eye(index.shape[1])
    factor = np.linalg.cholesky(trigger + scatter**2 * lever @ lever.mT)
    return np.where(used[:, None] & used[:, :, None], np.linalg.inv(factor), 0)


def noise_of(table: Table, off, model) -> np.ndarray:
    """Jitter of the trigger [s] and relative scatter of restitution of each ball (balls, 2), the likeliest.

    Given residuals (drops, contacts) [s]. Huber's loss in place of squares, and one degree of freedom less for each
    number fitted.
    """
    found = []
    for ball in range(table.ball.max() + 1):
        members = table.ball == ball
        index, times, rest = table.index[members], model[members], off[members]
        contacts = np.sum(index >= 0)
        share = NORMAL * max(1 - (2 + 2 * len(index)) / contacts, 0.1)

        def surprise(logs, index=index, times=times, rest=rest, share=share):
            """Minus the logarithm of the likelihood."""
            white = factors(index, times, np.exp(logs))
            diagonal = np.diagonal(white, axis1=1, axis2=2)[index >= 0]
            return huber(HUBER, np.einsum("dij,dj->di", white, rest)).sum() - share * np.log(diagonal).sum()

        grid = tuple(slice(np.log(low), np.log(high), GRID * 1j) for low, high in NOISE)
        found.append(brute(surprise, grid, finish=partial(fmin, disp=False)))
    return np.exp(found)


def fit_all(drops: list[Drop], steps: int, jitter: float, drag: bool = True) -> Fit:
    """Fit all drops of all balls at once; jitter is the timing error of the trigger [s]. Without ``drag`` c stays 0."""
    balls = list(dict.fromkeys(drop.ball for drop in drops))
    ball = np.array([balls.index(drop.ball) for drop in drops])
    recorded = np.array([len(drop.times) for drop in drops])
    longest = int(recorded.max())
    count = longest + SPARE
    times = np.zeros((len(drops), longest))
    for row, drop in zip(times, drops, strict=True):
        row[: len(drop.times)] = drop.times
    nominal = np.array([drop.drop_height_cm / 100 for drop in drops])
    x = Parameters(*(np.zeros(n) for n in (len(balls), len(balls), len(drops), len(drops))))
    x = x._replace(logit=x.logit + np.log(START_E / (1 - START_E)))
    free = Parameters(*(np.ones_like(part) for part in x))
    free = free if drag else free._replace(drag=np.zeros(len(balls)))
    # the first contacts are matched by their order
    index = np.where(np.arange(longest) < STAGES[0], np.arange(longest), -1) + np.zeros((len(drops), 1), int)
    table = Table(
        ball, nominal, times, index, np.eye(longest) / FAR + np.zeros((len(drops), 1, 1)), np.zeros(len(drops))
    )
    scale, noise = np.full(len(balls), FAR), np.full((len(balls), 2), (jitter, SCATTER))

    history = [np.stack([jax.nn.sigmoid(x.logit), x.drag], axis=1)]
    for stage in range(len(STAGES) + POLISH):
        most = np.minimum(STAGES[min(stage, len(STAGES) - 1)], recorded)
        last = np.take_along_axis(times, most[:, None] - 1, axis=1)[:, 0]
        horizon = MARGIN * (last + np.sqrt(2 * nominal * np.exp(np.maximum(x.height, 0)) / GRAVITY))
        table = table._replace(horizon=horizon)
        model = np.asarray(simulate(*arguments(x, table), count=count, steps=steps))
        if 0 < stage < len(STAGES):
            scale = next_scale(table, x, model, most, scale, jitter)
            table = table._replace(index=match_all(table, x, model, most, scale))
            table = table._replace(white=np.eye(longest) / scale[ball][:, None, None])
        if stage >= len(STAGES):
            if stage > len(STAGES):
                noise = noise_of(table, np.asarray(residuals(x, table, model)), model)
            table = table._replace(white=factors(table.index, model, noise[ball]))
        _, weights, rows = linearised(x, table, count, steps)
        x = descend(x, table, whitening(table, weights, rows, free), count, steps)
        x = Parameters(*(np.asarray(part) for part in x))
        history.append(np.stack([jax.nn.sigmoid(x.logit), x.drag], axis=1))

    off, weights, rows = linearised(x, table, count, steps)
    independent, clustered = covariances(table, off, weights, rows, free)
    e, c, height, _ = arguments(x, table)
    model = np.asarray(simulate(*arguments(x, table), count=count, steps=steps))
    laws = np.array([flight_law(*numbers, count) for numbers in zip(e, c, height, strict=True)])
    used = table.index >= 0
    wrong = np.take_along_axis(np.abs(laws - model), np.maximum(table.index, 0), axis=1)
    diagonal = np.diagonal(table.white, axis1=1, axis2=2)
    return Fit(
        balls=balls,
        drops=drops,
        ball=ball,
        e=history[-1][:, 0],
        c=history[-1][:, 1],
        covariance=independent,
        clustered=clustered,
        times=times,
        height=np.asarray(height),
        offset=x.offset,
        index=table.index,
        model=model,
        residual=np.where(used, residuals(x, table, model), np.nan),
        surprise=np.where(used, off / np.where(used, diagonal, 1), np.nan),
        noise=noise,
        history=np.array(history),
        law_error=wrong[used].max(),
    )


def covariances(table: Table, off, weights, rows, free: Parameters) -> tuple[np.ndarray, np.ndarray]:
    """Two covariances of each ball's logit e and c, heights and offsets being unknown, too: (balls, 2, 2) each.

    Gauss-Newton: s^2 A^-1 with A = J' W J and s^2 = sum w r^2/(n - p) of the ball, right where white residuals are
    independent. Clustered by drops (Liang, Zeger, Biometrika 73 (1986)): A^-1 (sum of g g') A^-1 with the gradients g
    of the drops, times D/(D - 1) for D drops, which lets residuals of one drop depend on each other in any way;
    NaN for one drop.
    """
    varied = np.flatnonzero(np.concatenate(free))
    inverse = np.zeros((np.concatenate(free).size,) * 2)
    inverse[np.ix_(varied, varied)] = np.linalg.inv(normal_matrix(table, weights, rows)[np.ix_(varied, varied)])
    gradients = np.zeros((len(table.ball), len(inverse)))
    np.put_along_axis(gradients, positions(table), np.einsum("dk,dk,dki->di", weights, off, rows), axis=1)
    sandwich = inverse @ gradients.T @ gradients @ inverse
    independent, clustered = [], []
    for ball in range(table.ball.max() + 1):
        members, shared = table.ball == ball, np.ix_(*[[ball, table.ball.max() + 1 + ball]] * 2)
        drops, contacts = members.sum(), (table.index[members] >= 0).sum()
        fitted = np.count_nonzero(inverse[shared].diagonal()) + 2 * drops
        spread = (weights[members] * off[members] ** 2).sum() / max(contacts - fitted, 1)
        independent.append(spread * inverse[shared])
        clustered.append(sandwich[shared] * (drops / (drops - 1) if drops > 1 else np.nan))
    return np.array(independent), np.array(clustered)
