"""The fourth experiment of DiffMJX: a tossed cube, and how its place after a second follows from its velocity up;
with a hard contact.

A. Paulus, A. R. Geist, P. Schumacher, V. Musil, S. Rappenecker, G. Martius, Differentiable simulation of hard contacts
with soft gradients for learning and control, arXiv 2506.14186 (experiments/04_time-toss of their repository): a cube of
0.1 m and 0.1 kg, turned by 60 degrees about x, falls from 0.2 m with (-0.1, -2) m/s at gravity 2 onto a floor, friction
1; y after a second, and its derivative by the velocity of -2. Their reference (results/cube_results.csv) is the motion
of MuJoCo's soft contact (critically damped, time constant 5 ms, constraints that grow over a millimetre) with smoothed
collisions: adaptive steps at a tolerance of 1e-10 have the difference of +-0.01, 0.17146, and autodiff 0.17267.

A hard contact has no number to compare with these: which corner strikes first, and how often, follows from the
softness. The table says so in numbers: the plane motion of the cube with perfect corners, for three coefficients of
restitution, by forward and reverse mode and by differences; and where `mujoco` can be imported, MuJoCo's own contact,
which is not smoothed, as it becomes stiffer.

    python experiments/outside/tossed_cube.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402

import jaximpact as ji  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from outside.tables import run_comparison  # noqa: E402

HALF, MASS, GRAVITY, FRICTION = 0.05, 0.1, 2.0, 1.0
CORNERS = HALF * jnp.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
START, SIDEWAYS, UP = jnp.array([0.0, 0.2, jnp.pi / 3]), -0.1, -2.0
# of the line dfx_tsit5backsolve_1e-10_tol of their results
THEIRS = {"y(1)": "-0.301795", "reverse mode": "0.17267", "difference of 1e-2": "0.17146"}


def corners(q):
    """Places (4, 2) of the corners of a cube at (y, z, angle)."""
    cos, sin = jnp.cos(q[2]), jnp.sin(q[2])
    return q[None, :2] + CORNERS @ jnp.array([[cos, sin], [-sin, cos]])


CUBE = ji.Problem(
    lambda t, q, v, args: jnp.array([0.0, -MASS * GRAVITY, 0.0]),
    lambda t, q, args: corners(q)[:, 1],
    mass=jnp.array([MASS, MASS, MASS * (2 * HALF) ** 2 / 6]),
    slip=lambda t, q, v, args: jax.jvp(lambda x: corners(x)[:, 0], (q,), (v,))[1],
    friction=FRICTION,
    coordinates=("y", "z", "angle"),
)


def place(up, e: float, steps: int = 4000):
    """y after a second, and the status, of the cube that begins with the velocity ``up``."""
    end = ji.solve(
        CUBE, START, jnp.array([SIDEWAYS, 0.0, 0.0]).at[1].set(up), e=e, t1=1.0, steps=steps,
        scheme=ji.EventCorrected(), save="final",
    )  # fmt: skip
    return end.q[-1, 0], end.status


def hard(e: float) -> dict:
    """Place and derivative of a cube with hard corners, which forward mode, reverse mode and differences have."""
    y, status = place(UP, e)
    assert int(status) == 0, ji.Status(int(status))
    forward, backward = (derivative(lambda up: place(up, e)[0])(UP) for derivative in (jax.jacfwd, jax.grad))
    near = (place(UP + 1e-5, e)[0] - place(UP - 1e-5, e)[0]) / 2e-5
    wide = (place(UP + 1e-2, e)[0] - place(UP - 1e-2, e)[0]) / 2e-2
    return {"contact": f"hard, e = {e}", "y(1)": f"{y:.6f}", "forward mode": f"{forward:.6f}",
        "reverse mode": f"{backward:.6f}",
            "difference of 1e-5": f"{near:.6f}", "difference of 1e-2": f"{wide:.4f}"}  # fmt: skip


def soft(constant: float, depth: float, timestep: float = 3e-5) -> dict:
    """The same of MuJoCo, not smoothed: a contact with a time constant, and constraints that grow over a depth."""
    import mujoco

    model = mujoco.MjModel.from_xml_string(
        f"""<mujoco><option gravity="0 0 -{GRAVITY}" timestep="{timestep}" solver="Newton" iterations="100" tolerance="1e-14" integrator="RK4">
        <flag refsafe="disable" eulerdamp="disable"/></option><worldbody>
        <geom type="plane" size="20 20 1" solref="{constant} 1" solimp="0 .95 {depth} .5 2" friction="{FRICTION} .005 .0001"/>
        <body pos="0 0 .1"><freejoint/><geom type="box" size="{HALF} {HALF} {HALF}" mass="{MASS}" euler="60 0 0" friction="{FRICTION} .005 .0001"
        solref="{constant} 1" solimp="0 .95 {depth} .5 2"/></body></worldbody></mujoco>"""  # noqa: E501
    )

    def place_of(up: float) -> float:
        data = mujoco.MjData(model)
        data.qpos[2], data.qvel[1], data.qvel[2] = float(START[1]), SIDEWAYS, up
        for _ in range(round(1 / timestep)):
            mujoco.mj_step(model, data)
        return data.qpos[1]

    wide = (place_of(UP + 1e-2) - place_of(UP - 1e-2)) / 2e-2
    return {
        "contact": f"MuJoCo, {1e3 * constant:g} ms",
        "y(1)": f"{place_of(UP):.4f}",
        "difference of 1e-2": f"{wide:.3f}",
    }


def compare() -> list[dict]:
    """One line for each contact: their own first."""
    hard_ones = [hard(e) for e in (0.0, 0.1, 0.2)]
    names = dict.fromkeys(hard_ones[0], "")
    lines = [{**names, "contact": "DiffMJX, 5 ms, smoothed", **THEIRS}, *hard_ones]
    try:
        lines += [{**names, **soft(5e-3 / 2**k, 1e-3 / 4**k)} for k in range(3)]
    except ImportError:
        print("MuJoCo is not installed: its lines are left out")
    return lines


def main(arguments: list[str] | None = None) -> list[dict]:
    return run_comparison(compare, __file__, __doc__, arguments)


if __name__ == "__main__":
    main()
