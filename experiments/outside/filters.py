"""Filters of dynamax and cuthbert whose transition is a motion with impacts, beside a loop over `analysis.predict`.

Both take a transition x -> f(x) and differentiate it: with `jaximpact.solve` inside, the Jacobian has the saltation of
the impacts. The ball, the camera and the prior are those of `cases/track_ball.py`. Neither library is installed with
jaximpact (`pip install dynamax cuthbert`); one that is missing is skipped.

    python experiments/outside/filters.py
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import jaximpact as ji  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from cases.track_ball import BALL, DEVIATION, FRAMES, MEAN, NOISE, RATE, balls, lift, located, run_filter  # noqa: E402
from outside.tables import write_table  # noqa: E402

PRIOR, R = np.diag(DEVIATION**2), NOISE**2


def transition(x):
    """x = (height, velocity, drag, restitution) one frame later."""
    end = ji.solve(
        BALL, x[:1] + lift(x), x[1:2], t1=1 / RATE, args={"drag": x[2]}, e=jnp.clip(x[3], 0.0, 1.0), save="final"
    )
    return jnp.concatenate([end.q[-1], end.v[-1], x[2:]])


def by_dynamax(seen):
    """Means (frames, 4) by its extended Kalman filter, from the state at the first frame."""
    from dynamax.nonlinear_gaussian_ssm import ParamsNLGSSM, extended_kalman_filter

    f = jax.jacfwd(transition)(MEAN)
    first = transition(jnp.asarray(MEAN)), f @ PRIOR @ f.T
    model = ParamsNLGSSM(*first, transition, 0 * jnp.eye(4), lambda x: x[:1], R * jnp.eye(1))
    return extended_kalman_filter(model, jnp.asarray(seen)[:, None]).filtered_means


def by_cuthbert(seen):
    """Means (frames, 4) by its filter in square-root form."""
    from cuthbert.filtering import filter as run
    from cuthbert.gaussian.moments import build_filter

    move = lambda state, k: (lambda x: (transition(x), jnp.zeros((4, 4))), state.mean)
    see = lambda state, k: (lambda x: (x[:1], NOISE * jnp.eye(1)), state.mean, jnp.asarray(seen)[k][None])
    model = build_filter(jnp.asarray(MEAN), jnp.diag(DEVIATION), move, see)
    states = run(model, jnp.arange(FRAMES), model.init_prepare())
    return states.mean[1:]


def main(arguments: list[str] | None = None) -> list[dict]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/outside"))
    options = parser.parse_args(arguments)
    truth, seen, _ = balls(8)
    own = run_filter(located("linear"), seen)[0]
    lines = []
    for name, function in (("dynamax", by_dynamax), ("cuthbert", by_cuthbert)):
        try:
            means = np.stack([jax.jit(function)(z) for z in seen])
        except ImportError as error:
            print(f"{name}: not installed ({error})")
            continue
        end = means[:, -1, 2:] - truth[:, -1, 2:]
        away = np.abs(means - own).max()
        lines.append({"filter": name, "largest distance from predict": f"{away:.1e}",
            "rms error of drag": f"{np.sqrt(np.mean(end[:, 0] ** 2)):.4f}",
                      "of restitution": f"{np.sqrt(np.mean(end[:, 1] ** 2)):.4f}"})  # fmt: skip
        print(", ".join(f"{key} {x}" for key, x in lines[-1].items()))
    if lines:
        write_table(options.out / "filters.csv", lines)
    return lines


if __name__ == "__main__":
    main()
