"""MuJoCo itself, in C, with finite differences of whole motions: slide joints, MuJoCo's soft contact.

The contact is set up as for MJX (`mjx_contacts`): restitution by a spring and damper in solref's direct form. The
Jacobian is by central differences. The variant "CHANGE EXPONENT" gives the change of a parameter and the exponent of h
that is the contact's time. In the table are "1e-5 1/3", a change between the round-off of MuJoCo's contact and the
curvature of the motion, which finds the derivative of the steps; and "3e-2 1/2", over which many phases of a step at
which an impact can happen are passed, which averages the steps away and pays in curvature.
The exponents are the better ones for each.
"""

import math
from fractions import Fraction

import mujoco
import numpy as np
from springs import damping_ratio

RADIUS = 0.1

OPTION = '<option integrator="Euler" gravity="0 0 0"><flag eulerdamp="disable"/></option>'
CONTACT = 'condim="1" solimp="0.9999 0.9999 0.001 0.5 2" friction="0 0 0"'
PLANE = f'<geom type="plane" size="9 9 1" {CONTACT}/>'
SIDE = f'<geom type="plane" size="9 9 1" zaxis="1 0 0" {CONTACT}/>'


def body(axes, radius=RADIUS):
    joints = "".join(f'<joint type="slide" axis="{axis}" damping="0"/>' for axis in axes.split(","))
    return f'<body>{joints}<geom type="sphere" size="{radius}" mass="1" {CONTACT}/></body>'


def model(*elements):
    return mujoco.MjModel.from_xml_string(f"<mujoco>{OPTION}<worldbody>{''.join(elements)}</worldbody></mujoco>")


BALL = model(PLANE, body("0 0 1"))
CORNER = model(PLANE, SIDE, body("1 0 0,0 0 1"))
for made in (BALL, CORNER):
    made.geom_sameframe[:] = 0  # planes that are moved are not where the body of the world is


class Differences:
    PACKAGES = ("mujoco",)

    def __init__(self, change, exponent):
        self.change, self.exponent = float(change), float(Fraction(exponent))
        self.HOW = f"mj_step, Euler; solref = (-stiffness, -damping) from e, contact time h^({exponent}); central differences of {change}"  # noqa: E501
        bounces = ("grav1d", "grav1d-once", "ball-e0.8", "ball-e0.5", "harm1d", "off-wall")
        self.motions = dict.fromkeys(bounces, self.ball)
        self.motions |= {"unit-flight": self.unit_flight, "two-balls": self.two_balls, "corner": self.corner}

    def march(self, m, e, h, q0, v0, steps):
        m.opt.timestep = h
        frequency = math.pi / h**self.exponent
        # e = 1 is differentiated from below
        m.geom_solref[:] = [-(frequency**2), -2 * damping_ratio(min(e, 1.0)) * frequency if e < 1 else -1e-9]
        d = mujoco.MjData(m)
        d.qpos[:], d.qvel[:] = q0, v0
        for _ in range(steps):
            mujoco.mj_step(m, d)
        return np.concatenate([d.qpos, d.qvel])

    def ball(self, p, h, steps):
        BALL.opt.gravity[:] = [0, 0, -p.get("g", 0.0)]
        BALL.geom_pos[0] = [0, 0, p["wall"] - RADIUS]
        BALL.jnt_stiffness[0], BALL.qpos_spring[0] = p.get("w2", 0.0), p.get("qeq", 0.0)
        return self.march(BALL, p["e"], h, p.get("y0", p.get("q0")), p["v0"], steps)

    def unit_flight(self, p, h, steps):
        return -self.ball({"y0": -p["y0"], "v0": -p["v0"], "e": p["e"], "wall": -p["wall"]}, h, steps)

    def two_balls(self, p, h, steps):
        pair = model(body("1 0 0", p["r"]), body("1 0 0", p["r"]))  # made anew: bounding boxes follow the radius
        return self.march(pair, p["e"], h, [p["x1"], p["x2"]], [p["v1"], p["v2"]], steps)

    def corner(self, p, h, steps):
        CORNER.opt.gravity[:] = [-p["gx"], 0, -p["gy"]]
        CORNER.geom_pos[:2] = [[0, 0, p["wy"] - RADIUS], [p["wx"] - RADIUS, 0, 0]]
        return self.march(CORNER, p["e"], h, [p["x0"], p["y0"]], [p["vx"], p["vy"]], steps)

    def final_state(self, case, theta, steps):
        if case.name not in self.motions:
            raise NotImplementedError(case.name)
        return self.motions[case.name](dict(zip(case.parameters, theta, strict=True)), case.t1 / steps, steps)

    def ends(self, name, x):
        """What a parameter is raised and lowered to; twice the same for one whose derivative is zero."""
        up = x + self.change
        return (x if name == "e" and up > 1 else up), x - self.change

    def jacobian(self, case, theta, steps):
        columns = []
        for i, name in enumerate(case.parameters):
            up, down = np.array(theta), np.array(theta)
            up[i], down[i] = self.ends(name, theta[i])
            if up[i] == down[i]:
                columns.append(np.zeros(2 * len(case.position)))
                continue
            slope = self.final_state(case, up, steps) - self.final_state(case, down, steps)
            columns.append(slope / (up[i] - down[i]))
        return np.stack(columns, axis=1)


def adapter(variant):
    return Differences(*(variant or "1e-5 1/3").split())
