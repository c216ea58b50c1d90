"""Drake with friction: spheres and blocks before a half-space, `MultibodyPlant` in discrete mode with SAP and point
contact, derivatives by AutoDiffXd.

Contact is that of `drake_simulators`: a spring and a relaxation time from e, whose contact takes h^(1/3) seconds; for
e = 0 the rigid one with a relaxation time of sqrt(h) (with h or none blocks hop more). SAP solves a convex problem, in
which a contact that slips is pushed apart by mu times its slip. Radius, inertia, friction and restitution are plain
numbers in Drake's contact, or were left so: their columns are by central differences of 1e-5, all others Drake's
automatic derivatives. Two angles of a sphere are the integrals of its rates, as the case has them: the sum of steps.
"""

import math

import numpy as np
from drake_simulators import CHANGE, RIGID, split
from pydrake.autodiffutils import AutoDiffXd
from pydrake.geometry import AddContactMaterial, HalfSpace, ProximityProperties, Sphere
from pydrake.math import RigidTransform, cos, sin
from pydrake.multibody.plant import AddMultibodyPlantSceneGraph, CoulombFriction, DiscreteContactApproximation
from pydrake.multibody.tree import PrismaticJoint, RevoluteJoint, SpatialInertia, UnitInertia
from pydrake.systems.analysis import Simulator_
from pydrake.systems.framework import DiagramBuilder
from springs import damping_ratio

PLAIN = ("e", "mu", "R", "I")  # numbers without automatic derivatives
ALONG, UP, TURN = (1, 0, 0), (0, 0, 1), (0, -1, 0)  # counter-clockwise, so that the slip is vx + R w


def properties(p, h):
    if p["e"] <= 0:
        stiffness, relaxation = RIGID, math.sqrt(h)
    else:
        frequency = math.pi / h ** (1 / 3)
        # of two equal materials in contact the stiffness is half of each one's, the relaxation time the sum of both
        stiffness, relaxation = 2 * frequency**2, damping_ratio(min(p["e"], 1 - 1e-9)) / frequency
    found = ProximityProperties()
    AddContactMaterial(point_stiffness=stiffness, friction=CoulombFriction(p["mu"], p["mu"]), properties=found)
    found.AddProperty("material", "relaxation_time", relaxation)
    return found


def chain(plant, body, joints):
    """Joints from the world to a body, by bodies almost without mass between."""
    parent = plant.world_body()
    for n, (kind, axis) in enumerate(joints):
        child = (
            body
            if n == len(joints) - 1
            else plant.AddRigidBody(f"link{n}", SpatialInertia(0.0, np.zeros(3), UnitInertia(0, 0, 0)))
        )
        plant.AddJoint(kind(f"joint{n}", parent.body_frame(), child.body_frame(), axis))
        parent = child


def diagram(p, h, joints):
    """A sphere of mass 1, on joints or free, above a floor."""
    radius = p.get("R", 0.1)
    builder = DiagramBuilder()
    plant, _ = AddMultibodyPlantSceneGraph(builder, time_step=h)
    plant.set_discrete_contact_approximation(DiscreteContactApproximation.kSap)
    plant.mutable_gravity_field().set_gravity_vector(np.zeros(3))
    inertia = p.get("I", 1.0)
    body = plant.AddRigidBody("ball", SpatialInertia(1.0, np.zeros(3), UnitInertia(inertia, inertia, inertia)))
    if joints:
        chain(plant, body, joints)
    material = properties(p, h)
    plant.RegisterCollisionGeometry(body, RigidTransform(), Sphere(radius), "ball", material)
    plant.RegisterCollisionGeometry(plant.world_body(), RigidTransform(), HalfSpace(), "floor", material)
    plant.Finalize()
    return builder.Build()


class Run:
    """One motion, of AutoDiffXd numbers or plain ones."""

    def __init__(self, p, h, joints, q0, v0):
        plain = {k: (x.value() if isinstance(x, AutoDiffXd) else x) for k, x in p.items()}
        system = diagram(plain, h, joints)
        self.automatic = any(isinstance(x, AutoDiffXd) for x in p.values())
        system = system.ToAutoDiffXd() if self.automatic else system
        self.plant, self.h, self.k = system.GetSubsystemByName("plant"), h, 0
        self.simulator = (Simulator_[AutoDiffXd] if self.automatic else Simulator_[float])(system)
        self.context = self.plant.GetMyMutableContextFromRoot(self.simulator.get_mutable_context())
        self.plant.SetPositionsAndVelocities(self.context, self.numbers([*q0, *v0]))

    def numbers(self, x):
        return np.array([AutoDiffXd(0.0) + y for y in x]) if self.automatic else np.array(x, float)

    def step(self, force):
        self.plant.get_applied_generalized_force_input_port().FixValue(self.context, self.numbers(force))
        self.simulator.AdvanceTo((self.k + 0.5) * self.h)  # the update is at the beginning of a step
        self.k += 1
        found = self.plant.GetPositionsAndVelocities(self.context)
        return list(found[: self.plant.num_positions()]), list(found[self.plant.num_positions() :])


class Friction:
    PACKAGES, FRICTION = ("drake",), True

    HOW = (
        "MultibodyPlant<AutoDiffXd>, SAP, point contact; linear spring and relaxation time from e, contact time "
        "h^(1/3), rigid for e = 0; "
        "columns of e, mu, R and I by central differences of 1e-5"
    )

    def __init__(self):
        self.motions = {"disk-slips": self.disk, "disk-sticks": self.disk, "sphere-slips": self.sphere}
        self.motions |= {"turns-back": self.block, "stick-slip": self.block}

    def disk(self, p, h, steps):
        joints = [(PrismaticJoint, ALONG), (PrismaticJoint, UP), (RevoluteJoint, TURN)]
        run = Run(p, h, joints, [p["x0"], p["y0"], p["a0"]], [p["vx"], p["vy"], p["w"]])
        for _ in range(steps):
            q, v = run.step([0.0, -p["g"], 0.0])
        return [*q, *v]

    def block(self, p, h, steps):
        """One that cannot turn; the slope and a pull F t are forces."""
        slope, pull, radius = p.get("alpha", 0.0), p.get("F", 0.0), 0.1
        joints = [(PrismaticJoint, ALONG), (PrismaticJoint, UP)]
        run = Run(p, h, joints, [p["x0"], radius + p["y0"]], [p["vx"], p["vy"]])
        tilt = (sin(slope), cos(slope)) if isinstance(slope, AutoDiffXd) else (math.sin(slope), math.cos(slope))
        for k in range(steps):
            q, v = run.step([pull * (h * k) - p["g"] * tilt[0], -p["g"] * tilt[1]])
        return [q[0], q[1] - radius, *v]

    def sphere(self, p, h, steps):
        """A free body: its velocities are those of rotation and of the centre, in the world's frame."""
        start = [1.0, 0, 0, 0, p["x0"], p["y0"], p["z0"]], [p["wx"], p["wy"], 0.0, p["vx"], p["vy"], p["vz"]]
        run = Run(p, h, [], *start)
        angles = [p["a0"], p["b0"]]
        for _ in range(steps):
            q, v = run.step([0.0, 0, 0, 0, 0, -p["g"]])
            angles = [angle + h * rate for angle, rate in zip(angles, v[:2], strict=True)]
        return [*q[4:], *angles, *v[3:], *v[:2]]

    def final_state(self, case, theta, steps):
        if case.name not in self.motions:
            raise NotImplementedError(case.name)
        p = dict(zip(case.parameters, map(float, theta), strict=True))
        return np.array(self.motions[case.name](p, case.t1 / steps, steps))

    def jacobian(self, case, theta, steps):
        if case.name not in self.motions:
            raise NotImplementedError(case.name)
        names, theta = list(case.parameters), np.asarray(theta, float)
        numbers = [
            x if name in PLAIN else AutoDiffXd(x, np.eye(len(theta))[i])
            for i, (name, x) in enumerate(zip(names, theta, strict=True))
        ]
        p = dict(zip(names, numbers, strict=True))
        end = [AutoDiffXd(0.0) + x for x in self.motions[case.name](p, case.t1 / steps, steps)]
        found = split(end, len(theta))[1]
        for i, name in enumerate(names):
            if name not in PLAIN or (name == "e" and theta[i] == 0):  # a rigid contact does not bounce
                continue
            change = CHANGE * (min(1.0, theta[i]) if name != "e" else 1.0)
            up, down = theta.copy(), theta.copy()
            up[i], down[i] = theta[i] + change, theta[i] - change
            found[:, i] = (self.final_state(case, up, steps) - self.final_state(case, down, steps)) / (2 * change)
        return found


def adapter(variant):
    return Friction()
