"""Kalman filters that track a bouncing ball: by located motions, linear and with sigma points,
and by plain AD of a time-stepping scheme.

A camera sees the height of a ball 60 times a second, with an error of 5 mm, for three seconds and some ten bounces.
Height, velocity, drag and restitution are estimated together, from a prior that all filters share and that the starts
are drawn from. 300 balls, each with errors of its own (seed 0).

Printed for each filter: mean and scatter of the estimated drag, the scatter that the filter says it has, the same of
the restitution, root of the mean squared error of the height after half a second, median of the normalised error
squared (3.36 where it is right), and the share of the frames whose normalised error squared, (x - m)' C^-1 (x - m),
lies beyond the value that four normal numbers exceed in 1 % of cases: of frames within 1 ms of an impact, of those
within 4 ms, and of the others.

    python experiments/cases/track_ball.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import jaximpact as ji  # noqa: E402
from jaximpact import analysis  # noqa: E402
from jaximpact.plots.style import COLOURS, DARK, GREY, new_figure, tidy  # noqa: E402

G, DRAG, RESTITUTION = 9.81, 0.035, 0.82
RATE, FRAMES, NOISE = 60.0, 180, 5e-3  # of the camera [1/s], [m]
MEAN, DEVIATION = np.array([1.0, 0.0, 0.05, 0.8]), np.array([0.03, 0.3, 0.05, 0.05])
BEYOND = 13.28  # what the sum of four squared normal numbers exceeds in 1 % of cases
SETTLED = 30  # frames after which heights are compared
NEAR = {"within 1 ms": (0, 1e-3), "1 to 4 ms": (1e-3, 4e-3), "others": (4e-3, np.inf)}
BALL = ji.Problem(lambda t, q, v, args: -G - args["drag"] * v * jnp.abs(v), lambda t, q, args: q)
TIMES = np.arange(1, FRAMES + 1) / RATE
UPDATE = jax.vmap(lambda m, c, z: kalman_update(m, c, z, NOISE**2))


def kalman_update(m, c, z, r):
    """Mean and covariance after a measurement z of the height with variance r, in Joseph's form."""
    gain = c[:, 0] / (c[0, 0] + r)
    keep = jnp.eye(len(m)).at[:, 0].add(-gain)
    return m + gain * (z - m[0]), keep @ c @ keep.T + r * jnp.outer(gain, gain)


def lift(x):
    """How far a ball below the floor is lifted, as a constant: so far that it strikes at once,
    as a start on the floor would not rebound."""
    return jax.lax.stop_gradient(jnp.maximum(1e-4 / RATE * jnp.maximum(-x[1], 0.0) - x[0], 0.0))


def located(method: str):
    """Prediction of a frame by `analysis.predict`."""
    own = {"args": {"drag": 0.0}, "unknown": ("args.drag", "e"), "method": method}
    return lambda m, c, t0, t: analysis.predict(BALL, m, c, t, t0=t0, **own)


def plain(m, c, t0, t):
    """The same by plain AD of Moreau's scheme, in 1 ms steps."""

    def move(x):
        given = {"args": {"drag": x[2]}, "e": jnp.clip(x[3], 0, 1), "steps": 17, "save": "final"}
        end = ji.solve(
            BALL, x[:1] + lift(x), x[1:2], t0=t0, t1=t, scheme=ji.MoreauJean(), sensitivity="discrete", **given
        )
        y = jnp.concatenate([end.q[-1], end.v[-1], x[2:]])
        return y, (y, end.status)

    def one(x, c):
        jacobian, (y, status) = jax.jacfwd(move, has_aux=True)(x)
        return analysis.Prediction(y, jacobian @ c @ jacobian.T, jacobian, c @ jacobian.T, status)

    return jax.vmap(one)(m, c)


FILTERS = {"located, linear": located("linear"), "located, sigma points": located("sigma"), "plain AD": plain}


def compiled_filter(predict):
    """Function from what the camera sees of all balls (B, frames) to means,
    covariances and statuses after each frame."""

    @jax.jit
    def run(z):
        def frame(state, now):
            k, seen = now
            found = predict(*state, k / RATE, (k + 1) / RATE)
            state = UPDATE(found.mean, found.covariance, seen)
            return state, (*state, found.status)

        start = jnp.tile(MEAN, (len(z), 1)), jnp.tile(np.diag(DEVIATION**2), (len(z), 1, 1))
        return jax.lax.scan(frame, start, (jnp.arange(FRAMES, dtype=float), z.T))[1]

    return run


def run_filter(predict, z):
    """Means (B, frames, 4) and covariances of all balls after each frame, and statuses."""
    return tuple(np.swapaxes(x, 0, 1) for x in jax.device_get(compiled_filter(predict)(z)))


def balls(count: int, seed: int = 0):
    """True states (count, frames, 4), what the camera sees (count, frames),
    and how long each frame is from the nearest impact [s]."""
    random = np.random.default_rng(seed)
    x = MEAN + DEVIATION * random.standard_normal((count, 4))
    x[:, 2:] = DRAG, RESTITUTION
    options = {"args": {"drag": DRAG}, "e": RESTITUTION, "save": ji.Events(times=TIMES, impacts=16)}
    run = ji.ensemble(BALL, x[:, :1], x[:, 1:2], t1=TIMES[-1], **options).raise_if_failed()
    states = np.concatenate([run.q[:, :FRAMES], run.v[:, :FRAMES], np.tile(x[:, None, 2:], (1, FRAMES, 1))], axis=2)
    impacts = np.nan_to_num(np.asarray(run.events.t), nan=np.inf)
    away = np.min(np.abs(TIMES[None, :, None] - impacts[:, None, :]), axis=2)
    return states, states[:, :, 0] + NOISE * random.standard_normal((count, FRAMES)), away


def figures(mean, covariance, truth, away) -> dict:
    """What is compared of a filter."""
    error = mean - truth
    inverse = np.linalg.pinv(covariance, hermitian=True)
    squared = np.einsum("bfi,bfij,bfj->bf", error, inverse, error)
    drag, e = mean[:, -1, 2], mean[:, -1, 3]
    spread = np.sqrt(covariance[:, -1, 2, 2].mean())
    found = {
        "drag": drag.mean(),
        "scatter": drag.std(),
        "said": spread,
        "restitution": e.mean(),
        "its scatter": e.std(),
    }
    found |= {"rmse of height [m]": np.sqrt(np.mean(error[:, SETTLED:, 0] ** 2)), "median squared": np.median(squared)}
    return found | {key: np.mean(squared[(away >= a) & (away < b)] > BEYOND) for key, (a, b) in NEAR.items()}


def main(arguments: list[str] | None = None) -> list[dict]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/track_ball"))
    parser.add_argument("--balls", type=int, default=300)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    truth, seen, away = balls(options.balls)
    runs = {name: run_filter(predict, seen) for name, predict in FILTERS.items()}
    lines = [{"filter": name} | figures(*run[:2], truth, away) for name, run in runs.items()]
    for line in lines:
        print(", ".join(f"{key} {x:.3g}" if key != "filter" else str(x) for key, x in line.items()))
    off = np.sqrt(np.mean((runs["plain AD"][0] - truth)[:, :, 0] ** 2, axis=1))
    shown = int(np.argsort(off)[len(off) // 2])  # a ball on which plain AD does as on most
    figure = new_figure(11, 3.6)
    first, second, third = figure.subplots(1, 3)
    for (name, (mean, covariance, _)), line, color in zip(runs.items(), lines, COLOURS, strict=False):
        if name != "located, sigma points":  # as the linear one
            first.plot(TIMES, 1e3 * (mean - truth)[shown, :, 0], color=color, linewidth=1.2)
            band = 2e3 * np.sqrt(covariance[shown, :, 0, 0])
            first.fill_between(TIMES, -band, band, color=color, alpha=0.25, linewidth=0)
        second.plot(mean[:, -1, 2], mean[:, -1, 3], ".", color=color, markersize=3, label=name)
        third.plot(range(3), [line[key] for key in NEAR], "o-", color=color, label=name)
    first.set(
        xlabel="time [s]",
        ylabel="error of the height [mm]",
        ylim=(-10, 10),
        title="a ball, and two standard deviations",
    )
    second.plot(DRAG, RESTITUTION, "+", color=DARK, markersize=14, label="truth")
    second.set(xlabel="drag [1/m]", ylabel="restitution", title="estimates after 3 s, 300 balls")
    second.legend(fontsize="x-small")
    third.axhline(0.01, color=GREY, linewidth=1)
    third.set_xticks(range(3), NEAR)
    third.set(yscale="log", xlabel="frames, by time to an impact", title="errors beyond the 1 % bound, share")
    for axes in (first, second, third):
        tidy(axes)
    figure.savefig(options.out / "track.png", dpi=110)
    return lines


if __name__ == "__main__":
    main()
