"""MuJoCo itself, in C, with finite differences of whole motions: slide joints, MuJoCo's soft contact.

The contact is set up as for MJX (`mjx_contacts`): restitution by a spring and damper in solref's direct form, contact time sqrt(h).
The Jacobian is by central differences of 1e-5, between the round-off of MuJoCo's contact and the curvature of the motion.
"""

import math

import mujoco
import numpy as np

PACKAGES = ("mujoco",)
HOW = "mj_step, Euler; solref = (-stiffness, -damping) from e, contact time sqrt(h); central differences of 1e-5"
RADIUS, CHANGE = 0.1, 1e-5

OPTION = '<option integrator="Euler" gravity="0 0 0"><flag eulerdamp="disable"/></option>'
CONTACT = 'condim="1" solimp="0.9999 0.9999 0.001 0.5 2" friction="0 0 0"'
PLANE = f'<geom type="plane" size="9 9 1" {CONTACT}/>'
SIDE = f'<geom type="plane" size="9 9 1" zaxis="1 0 0" {CONTACT}/>'


def body(axes):
    joints = "".join(f'<joint type="slide" axis="{axis}" damping="0"/>' for axis in axes.split(","))
    return f'<body>{joints}<geom type="sphere" size="{RADIUS}" mass="1" {CONTACT}/></body>'


def model(*elements):
    return mujoco.MjModel.from_xml_string(f"<mujoco>{OPTION}<worldbody>{''.join(elements)}</worldbody></mujoco>")


BALL, PAIR = model(PLANE, body("0 0 1")), model(body("1 0 0"), body("1 0 0"))
CORNER = model(PLANE, SIDE, body("1 0 0,0 0 1"))
for made in (BALL, CORNER):
    made.geom_sameframe[:] = 0  # planes that are moved are not where the body of the world is


def damping_ratio(e):
    """Of a spring and damper that lets go where its force vanishes: Schwager & Poeschel, Granular Matter 9 (2007), eq. (21)."""

    def loss(z):
        root = math.sqrt(1 - z * z)
        return z / root * (math.pi - math.atan2(2 * z * root, 1 - 2 * z * z)) + math.log(e)

    low, high = 0.0, 1.0 - 1e-12
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if loss(middle) < 0 else (low, middle)
    return 0.5 * (low + high)


def march(m, e, h, q0, v0, steps):
    m.opt.timestep = h
    frequency = math.pi / math.sqrt(h)
    # e = 1 is differentiated from below
    m.geom_solref[:] = [-(frequency**2), -2 * damping_ratio(min(e, 1.0)) * frequency if e < 1 else -1e-9]
    d = mujoco.MjData(m)
    d.qpos[:], d.qvel[:] = q0, v0
    for _ in range(steps):
        mujoco.mj_step(m, d)
    return np.concatenate([d.qpos, d.qvel])


def ball(p, h, steps):
    BALL.opt.gravity[:] = [0, 0, -p.get("g", 0.0)]
    BALL.geom_pos[0] = [0, 0, p["wall"] - RADIUS]
    BALL.jnt_stiffness[0], BALL.qpos_spring[0] = p.get("w2", 0.0), p.get("qeq", 0.0)
    return march(BALL, p["e"], h, p.get("y0", p.get("q0")), p["v0"], steps)


def unit_flight(p, h, steps):
    return -ball({"y0": -p["y0"], "v0": -p["v0"], "e": p["e"], "wall": -p["wall"]}, h, steps)


def two_balls(p, h, steps):
    PAIR.geom_size[:] = p["r"]
    return march(PAIR, p["e"], h, [p["x1"], p["x2"]], [p["v1"], p["v2"]], steps)


def corner(p, h, steps):
    CORNER.opt.gravity[:] = [-p["gx"], 0, -p["gy"]]
    CORNER.geom_pos[:2] = [[0, 0, p["wy"] - RADIUS], [p["wx"] - RADIUS, 0, 0]]
    return march(CORNER, p["e"], h, [p["x0"], p["y0"]], [p["vx"], p["vy"]], steps)


MOTIONS = dict.fromkeys(("grav1d", "grav1d-once", "ball-e0.8", "ball-e0.5", "harm1d", "off-wall"), ball)
MOTIONS |= {"unit-flight": unit_flight, "two-balls": two_balls, "corner": corner}


def final_state(case, theta, steps):
    if case.name not in MOTIONS:
        raise NotImplementedError(case.name)
    return MOTIONS[case.name](dict(zip(case.parameters, theta, strict=True)), case.t1 / steps, steps)


def jacobian(case, theta, steps):
    columns = []
    for i, name in enumerate(case.parameters):
        up, down = np.array(theta), np.array(theta)
        up[i] += CHANGE
        down[i] -= CHANGE
        if name == "e" and up[i] > 1:
            up[i] = theta[i]
        slope = final_state(case, up, steps) - final_state(case, down, steps)
        columns.append(slope / (up[i] - down[i]))
    return np.stack(columns, axis=1)
