"""Random lifts and belts whose speeds jump: bodies on them by `EventDriven`, with the lift as a joint,
and as a gap that moves.

The two share neither the location of a kink nor the impact at it: a gap that kinks in time is met by substeps of any
length. Derivatives are held against differences.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji

G, T1, COUNT, TIGHT = 9.81, 1.0, 90, ji.EventDriven(1e-10, 1e-10)
height = lambda t, args: jnp.sum(args["dy"] * jnp.maximum(t - args["ty"], 0))
belt = lambda t, args: jnp.sum(jnp.where(t > args["tx"], args["dx"], 0))
force = lambda t, q, v, args: jnp.array([args["push"], -G, 0.0])[: q.shape[0]]


def problems(rough):
    """The lift as a third coordinate that a joint drives, and as part of the gap."""
    rubs = {"slip": lambda t, q, v, args: v[:1] - belt(t, args), "friction": lambda args: args["mu"]} if rough else {}
    joint = ji.Problem(
        force, lambda t, q, args: q[1:2] - q[2:], joints=lambda t, q, args: q[2:] - height(t, args), **rubs
    )
    return joint, ji.Problem(force, lambda t, q, args: q[1:2] - height(t, args), **rubs)


def draw():
    """Args, restitution, of which two thirds are 0 (bounces that die out have no derivatives), and speeds."""
    rng = np.random.default_rng(3)
    times = lambda: np.sort(rng.uniform(0.05, 0.9, (COUNT, 3)), axis=1)
    args = {
        "ty": times(), "dy": rng.uniform(-1, 1, (COUNT, 3)), "tx": times(), "dx": rng.uniform(-2, 2, (COUNT, 3)),
        "push": rng.uniform(-2, 2, COUNT), "mu": rng.uniform(0.05, 0.6, COUNT),
    }  # fmt: skip
    return args, rng.uniform(0, 0.8, COUNT) * (np.arange(COUNT) % 3 == 0), rng.uniform(-1, 1, COUNT)


@pytest.mark.slow
@pytest.mark.parametrize("rough", [True, False], ids=["rough", "smooth"])
def test_joints_that_kink_and_belts_that_jump(rough):
    args, e, speed = draw()
    joint, gap = problems(rough)
    q0, v0 = np.zeros((COUNT, 3)), speed[:, None] * np.eye(3)[0]
    call = {"t1": T1, "args": args, "args_axes": 0, "e": e}
    found = ji.sensitivities(joint, q0, v0, **call, scheme=TIGHT, wrt=("args", "v0"))
    own, other = (ji.ensemble(p, q0[:, :d], v0[:, :d], **call, scheme=TIGHT) for p, d in ((joint, 3), (gap, 2)))
    clean = ~np.asarray(own.failed) & ~np.asarray(other.failed)
    off = np.max(np.abs(found.value["q"][:, :2] - other.q[:, -1]), axis=1)
    print(
        f"\nlifts, rough {rough}: {np.sum(clean)} of {COUNT} clean, {np.sum(found.trusted)} trusted, apart "
        f"{np.max(off[clean]):.1e}"
    )
    # some hundreds of substeps of 1e-10 each
    assert np.mean(clean) > 0.9 and np.max(off[clean]) < 1e-7
    rng, d = np.random.default_rng(5), 1e-6
    final = lambda args: ji.ensemble(joint, q0, v0, **call | {"args": args}, scheme=ji.EventDriven(1e-12, 1e-12)).q[
        :, -1
    ]
    for key, numbers in args.items():
        way = np.abs(rng.normal(size=numbers.shape))
        differences = (final(args | {key: numbers + d * way}) - final(args | {key: numbers - d * way})) / (2 * d)
        jacobian = found.jacobian["q"]["args"][key]
        along = np.einsum("nij,nj->ni", jacobian, way) if jacobian.ndim == 3 else jacobian * way[:, None]
        wrong = np.max(np.abs(differences - along), axis=1) / (1 + np.max(np.abs(along), axis=1))
        # differences at 1e-6 of states to 1e-12 have six digits
        assert np.sum(found.trusted) > COUNT / 3 and np.max(wrong[found.trusted]) < 1e-5, key
