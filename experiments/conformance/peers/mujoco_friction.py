"""MuJoCo with friction, in C, with finite differences of whole motions:
a sphere on slide joints and hinges before a plane.

Restitution is that of `mujoco_differences`: a spring and damper in solref's direct form, whose contact takes h^(1/3) or
h^(1/2) seconds. For e = 0 the damping is four times the critical one, which leaves a hundredth of the speed. Friction
is MuJoCo's, on an elliptic cone (condim 3, impratio 100, as its documentation advises against slip), with a time
constant of its own, a third of the contact's time: with that of the normal spring slip does not end within an impact,
and with two steps, the least, the convex cone throws what slips too far up. Places along the plane and angles count
from zero. Two angles of a sphere are the integrals of its rates, as the case has them: the sum of steps of a ball
joint's. The variant "CHANGE EXPONENT" gives the change of a parameter and the exponent of h that is the contact's time.
"""

import math
from fractions import Fraction

import mujoco
import mujoco_differences
import numpy as np
from springs import damping_ratio

POSITIVE = ("I", "R", "mu")  # whose change is a part of them
PLASTIC = 4.0  # ratio of damping for e = 0
ALONG = '<joint type="slide" axis="1 0 0"/>'
ACROSS = '<joint type="slide" axis="0 1 0"/>'
UP = '<joint type="slide" axis="0 0 1"/>'
TURN = '<joint type="hinge" axis="0 -1 0"/>'  # counter-clockwise, so that the slip is vx + R w
BALL = '<joint type="ball"/>'
PAIR = '<contact><pair geom1="ball" geom2="floor" condim="3" solimp="0.9999 0.9999 0.001 0.5 2"/></contact>'


def model(p, h, exponent, *joints):
    """A sphere of mass 1 on joints, above a plane, and the contact for a step h; made anew, since what MuJoCo computes
    beforehand follows radius and inertia."""
    inertia = " ".join([str(p.get("I", 1.0))] * 3)
    option = f'<option timestep="{h}" integrator="Euler" cone="elliptic" impratio="100" gravity="0 0 0"><flag eulerdamp="disable"/></option>'  # noqa: E501
    body = f'<body>{"".join(joints)}<inertial pos="0 0 0" mass="1" diaginertia="{inertia}"/>'
    geoms = f'<geom type="sphere" size="{p.get("R", 0.1)}" name="ball"/></body><geom type="plane" size="99 99 1" name="floor"/>'  # noqa: E501
    made = mujoco.MjModel.from_xml_string(f"<mujoco>{option}<worldbody>{body}{geoms}</worldbody>{PAIR}</mujoco>")
    frequency = math.pi / h**exponent
    ratio = PLASTIC if p["e"] <= 0 else damping_ratio(min(p["e"], 1 - 1e-9))
    made.pair_solref[:] = [-(frequency**2), -2 * ratio * frequency]
    made.pair_solreffriction[:] = [h**exponent / 3, 1]
    made.pair_friction[:, :2] = p["mu"]
    return made


class Differences(mujoco_differences.Differences):
    FRICTION = True

    def __init__(self, change, exponent):
        self.change, self.exponent = float(change), float(Fraction(exponent))
        self.HOW = (
            f"mj_step, Euler; solref = (-stiffness, -damping) from e, contact time h^({exponent}), damping 4 for e = "
            "0; elliptic cone, impratio 100, friction within a third of the contact's time; "
            f"central differences of {change}"
        )
        self.motions = {"disk-slips": self.disk, "disk-sticks": self.disk, "sphere-slips": self.sphere}
        self.motions |= {"turns-back": self.block, "stick-slip": self.block}

    def disk(self, p, h, steps):
        m = model(p, h, self.exponent, ALONG, UP, TURN)
        m.opt.gravity[:] = [0, 0, -p["g"]]
        d = started(m, [0.0, p["y0"], 0.0], [p["vx"], p["vy"], p["w"]])
        mujoco.mj_step(m, d, steps)
        return np.concatenate([np.add(d.qpos, [p["x0"], 0, p["a0"]]), d.qvel])

    def sphere(self, p, h, steps):
        m = model(p, h, self.exponent, ALONG, ACROSS, UP, BALL)
        m.opt.gravity[:] = [0, 0, -p["g"]]
        d = started(m, [0.0, 0.0, p["z0"], 1, 0, 0, 0], [p["vx"], p["vy"], p["vz"], p["wx"], p["wy"], 0.0])
        angles, matrix = np.zeros(3), np.zeros(9)
        for _ in range(steps):
            mujoco.mj_step(m, d)
            mujoco.mju_quat2Mat(matrix, d.qpos[3:])
            rates = matrix.reshape(3, 3) @ d.qvel[3:]  # a ball joint has them in its body's frame
            angles += h * rates
        q = [*d.qpos[:3], *angles[:2]]
        return np.concatenate([np.add(q, [p["x0"], p["y0"], 0, p["a0"], p["b0"]]), d.qvel[:3], rates[:2]])

    def block(self, p, h, steps):
        """One that cannot turn; the slope is in the gravity, a pull F t in the applied force."""
        m, radius = model(p, h, self.exponent, ALONG, UP), 0.1
        slope, pull = p.get("alpha", 0.0), p.get("F", 0.0)
        m.opt.gravity[:] = [-p["g"] * math.sin(slope), 0, -p["g"] * math.cos(slope)]
        d = started(m, [0.0, radius + p["y0"]], [p["vx"], p["vy"]])
        if not pull:
            mujoco.mj_step(m, d, steps)
        for k in range(steps if pull else 0):
            d.qfrc_applied[0] = pull * h * k
            mujoco.mj_step(m, d)
        return np.concatenate([np.add(d.qpos, [p["x0"], -radius]), d.qvel])

    def ends(self, name, x):
        if name == "e" and x == 0:  # that of a plastic impact is zero, and MuJoCo's has no number for it
            return x, x
        change = self.change * (min(1.0, x) if name in POSITIVE else 1.0)
        return x + change, x - change


def started(m, q0, v0):
    d = mujoco.MjData(m)
    d.qpos[:], d.qvel[:] = q0, v0
    return d


def adapter(variant):
    return Differences(*(variant or "1e-5 1/3").split())
