"""Drake with AutoDiffXd: its discrete contact (SAP), its continuous hydroelastic contact,
and its hybrid systems with witness functions.

**SAP**: spheres of unit mass on prismatic joints before half-spaces, `MultibodyPlant` in discrete mode with the contact
approximation "sap", point contact, no friction. Drake has no restitution. SAP's compliance is a linear spring with
relaxation time tau, whose force does not pull: k x (1 + tau x'/x), the spring and damper whose restitution does not
depend on the speed. As for MuJoCo, the ratio of damping is the one of the wanted e and the contact takes h^(1/3)
seconds: as h -> 0 it hardens and is resolved by ever more steps. Plastic cases have the rigid contact that Drake makes
of a stiffness no step resolves (its near-rigid regime), which does not bounce, with a relaxation time of sqrt(h).
Forces come in at the port of generalized forces. Stiffness and relaxation time are no AutoDiffXd in Drake: the column
of e is by central differences of 1e-5; all others are Drake's automatic derivatives.

**Hydroelastic**: spheres on prismatic joints, rigid, before a compliant half-space, `MultibodyPlant` in continuous
time, integrated with error control (runge_kutta3, accuracy 1e-7; with 1e-6 the derivatives of slow impacts are off).
The pressure grows from zero with the depth, and so does the area: the force begins smoothly. It is k x^2 (1 + d x'),
after Hunt and Crossley, of which the restitution depends on the speed u of the impact: with z = d u, z (1 + e) =
log((1 + z) / (1 - e z)), whatever the elastic part. So the dissipation d that the wanted e takes is computed from the
speed at which the wall is met, and cases of one impact on each wall, under constant forces, have an entry, but for
`late`, which is so fast that a contact of 1e-2 s is deeper than the sphere. The stiffness is the one of a contact that
takes about h seconds: as h -> 0 it hardens; a number of steps means this alone. The sphere is a mesh, whose facets
lean: with edges of a quarter of the radius a hundredth of the dissipation is lost, which `off-wall` and `ball-e0.8`
show; they have edges of an eighth, at three times the work. Dissipation is a plain number in Drake: the derivative by
it is a central difference, and its own by the parameters are multiplied by hand.

**Witness**: a ball as a `LeafSystem`; the `Simulator` isolates the witness function's zero and resets the velocity.
Runge-Kutta 3 with accuracy 1e-9. The variant "plain" resets v to -e v; the time that Drake isolates carries no
derivative, as its documentation of `WitnessFunction` leaves it to the user. The variant "saltation" adds to the reset
what the time's derivative owes, by hand.
"""

import math

import numpy as np
from pydrake.autodiffutils import AutoDiffXd
from pydrake.geometry import (
    AddCompliantHydroelasticPropertiesForHalfSpace,
    AddContactMaterial,
    AddRigidHydroelasticProperties,
    HalfSpace,
    ProximityProperties,
    Sphere,
)
from pydrake.math import RigidTransform, cos, sin, sqrt
from pydrake.multibody.plant import (
    AddMultibodyPlantSceneGraph,
    ContactModel,
    CoulombFriction,
    DiscreteContactApproximation,
)
from pydrake.multibody.tree import FixedOffsetFrame, PrismaticJoint, SpatialInertia, UnitInertia
from pydrake.systems.analysis import ApplySimulatorConfig, Simulator_, SimulatorConfig
from pydrake.systems.framework import DiagramBuilder, LeafSystem_, UnrestrictedUpdateEvent_, WitnessFunctionDirection
from springs import damping_ratio
from walls import Motion, parsed

FUNCTIONS = {"sin": sin, "cos": cos, "sqrt": sqrt}
RADIUS, CHANGE, RIGID = 0.1, 1e-5, 1e12


def properties(stiffness, relaxation):
    found = ProximityProperties()
    AddContactMaterial(point_stiffness=stiffness, friction=CoulombFriction(0.0, 0.0), properties=found)
    found.AddProperty("material", "relaxation_time", relaxation)
    return found


def diagram(bounded, d, h, e):
    """d points on prismatic joints, some with a half-space below, as a diagram of AutoDiffXd."""
    if e == 0:
        stiffness, relaxation = RIGID, math.sqrt(h)
    else:
        frequency = math.pi / h ** (1 / 3)
        # of two equal materials in contact the stiffness is half of each one's, the relaxation time the sum of both
        stiffness, relaxation = 2 * frequency**2, damping_ratio(e) / frequency if e < 1 else 0.0
    builder = DiagramBuilder()
    plant, _ = AddMultibodyPlantSceneGraph(builder, time_step=h)
    plant.set_discrete_contact_approximation(DiscreteContactApproximation.kSap)
    plant.mutable_gravity_field().set_gravity_vector(np.zeros(3))
    for i in range(d):
        body = plant.AddRigidBody(f"body{i}", SpatialInertia(1.0, np.zeros(3), UnitInertia.SolidSphere(RADIUS)))
        place = RigidTransform([10.0 * i, 0, 0])  # each coordinate is a lane of its own
        plant.AddJoint(
            PrismaticJoint(
                f"r{i}",
                plant.AddFrame(FixedOffsetFrame(f"lane{i}", plant.world_frame(), place)),
                body.body_frame(),
                [0, 0, 1],
            )
        )
        if i in bounded:
            plant.RegisterCollisionGeometry(
                body, RigidTransform(), Sphere(RADIUS), f"ball{i}", properties(stiffness, relaxation)
            )
    if bounded:
        floor = RigidTransform([0, 0, -RADIUS])
        plant.RegisterCollisionGeometry(
            plant.world_body(), floor, HalfSpace(), "floor", properties(stiffness, relaxation)
        )
    plant.Finalize()
    return builder.Build().ToAutoDiffXd()


def dual(theta):
    return [AutoDiffXd(x, np.eye(len(theta))[i]) for i, x in enumerate(theta)]


def split(y, p):
    """Values and derivatives of AutoDiffXd numbers; constants have none."""
    derivatives = [x.derivatives() if x.derivatives().size else np.zeros(p) for x in y]
    return np.array([x.value() for x in y]), np.array(derivatives)


class Sap:
    PACKAGES = ("drake",)
    HOW = (
        "MultibodyPlant<AutoDiffXd>, SAP, point contact; linear spring and relaxation time from e, contact time "
        "h^(1/3), rigid for e = 0; "
        "column of e by central differences"
    )

    def march(self, case, theta, steps):
        """Values and derivatives at the end."""
        h = case.t1 / steps
        e = float(theta[list(case.parameters).index("e")])
        motion = Motion(case, dual(theta), FUNCTIONS)
        system = diagram(motion.bounded, motion.d, h, e)
        plant = system.GetSubsystemByName("plant")
        simulator = Simulator_[AutoDiffXd](system)
        context = plant.GetMyMutableContextFromRoot(simulator.get_mutable_context())
        r, v = motion.start
        plant.SetPositionsAndVelocities(context, np.array([*r, *v]))
        port = plant.get_applied_generalized_force_input_port()
        for k in range(steps):
            now = plant.GetPositionsAndVelocities(context)
            force = motion.force(k * h, list(now[: motion.d]), list(now[motion.d :]))
            port.FixValue(context, np.array([AutoDiffXd(0.0) + f for f in force]))
            simulator.AdvanceTo((k + 0.5) * h)
        now = plant.GetPositionsAndVelocities(context)
        return split(motion.end(list(now[: motion.d]), list(now[motion.d :])), len(theta))

    def final_state(self, case, theta, steps):
        return self.march(case, theta, steps)[0]

    def jacobian(self, case, theta, steps):
        found = self.march(case, theta, steps)[1]
        i, up, down = list(case.parameters).index("e"), np.array(theta), np.array(theta)
        if theta[i] == 0:
            return found  # a rigid contact does not bounce
        up[i], down[i] = min(theta[i] + CHANGE, 1.0), theta[i] - CHANGE
        slope = self.final_state(case, up, steps) - self.final_state(case, down, steps)
        found[:, i] = slope / (up[i] - down[i])
        return found


def compliance(e):
    """z = d u of Hunt and Crossley's contact, and its derivative by e."""
    if e == 1:
        return 0.0, -1.5
    low, high = 0.0, 1.0 / e
    for _ in range(200):
        z = 0.5 * (low + high)
        low, high = (z, high) if math.log((1 + z) / (1 - e * z)) < z * (1 + e) else (low, z)
    by_e, by_z = z / (1 - e * z) - z, 1 / (1 + z) + e / (1 - e * z) - 1 - e
    return z, -by_e / by_z


FALL = "sqrt(v0**2 + 2*g*(y0 - wall))"
# the speed at which each coordinate meets its wall, of cases of one impact each
SPEEDS = {
    "grav1d-once": [FALL],
    "ball-e0.8": [FALL],
    "unit-flight": ["v0"],
    "off-wall": ["-v0"],
    "struck": ["c - v0"],
    "corner": ["sqrt(vx**2 + 2*gx*(x0 - wx))", "sqrt(vy**2 + 2*gy*(y0 - wy))"],
}
EDGES = {"off-wall": RADIUS / 8, "ball-e0.8": RADIUS / 8}  # of the sphere's mesh; of other cases RADIUS / 4


class Hydroelastic:
    PACKAGES = ("drake",)
    HOW = (
        "continuous MultibodyPlant<AutoDiffXd>, hydroelastic contact, runge_kutta3, accuracy 1e-7; mesh of a quarter "
        "of the radius, of an eighth in "
        "off-wall and ball-e0.8; dissipation from e and the speed of the impact, contact time of about h; derivative "
        "by the dissipation by central differences"
    )

    def __init__(self):
        self.found = {}

    @staticmethod
    def diagram(speed, h, dissipation, edge):
        depth = speed * h / 2.8  # of a contact with the force k x^2
        stiffness = 1.5 * speed**2 / depth**3
        builder = DiagramBuilder()
        plant, _ = AddMultibodyPlantSceneGraph(builder, time_step=0.0)
        plant.set_contact_model(ContactModel.kHydroelasticsOnly)
        plant.mutable_gravity_field().set_gravity_vector(np.zeros(3))
        body = plant.AddRigidBody("body", SpatialInertia(1.0, np.zeros(3), UnitInertia.SolidSphere(RADIUS)))
        plant.AddJoint(PrismaticJoint("r", plant.world_frame(), body.body_frame(), [0, 0, 1]))
        ball, floor = ProximityProperties(), ProximityProperties()
        AddRigidHydroelasticProperties(edge, ball)
        # force = modulus pi RADIUS x^2 over a thickness of 1
        AddCompliantHydroelasticPropertiesForHalfSpace(1.0, stiffness / (math.pi * RADIUS), floor)
        for made in (ball, floor):
            AddContactMaterial(dissipation=dissipation, friction=CoulombFriction(0.0, 0.0), properties=made)
        plant.RegisterCollisionGeometry(body, RigidTransform(), Sphere(RADIUS), "ball", ball)
        plant.RegisterCollisionGeometry(
            plant.world_body(), RigidTransform([0, 0, -RADIUS]), HalfSpace(), "floor", floor
        )
        plant.Finalize()
        return builder.Build().ToAutoDiffXd()

    def lane(self, case, start, force, speed, h, dissipation):
        """One coordinate at the end, (r, v)."""
        system = self.diagram(speed, h, dissipation, EDGES.get(case.name, RADIUS / 4))
        plant = system.GetSubsystemByName("plant")
        simulator = Simulator_[AutoDiffXd](system)
        ApplySimulatorConfig(
            SimulatorConfig(integration_scheme="runge_kutta3", accuracy=1e-7, max_step_size=0.02), simulator
        )
        context = plant.GetMyMutableContextFromRoot(simulator.get_mutable_context())
        plant.SetPositionsAndVelocities(context, np.array([AutoDiffXd(0.0) + x for x in start]))
        plant.get_applied_generalized_force_input_port().FixValue(context, np.array([AutoDiffXd(0.0) + force]))
        simulator.AdvanceTo(case.t1)
        return plant.GetPositionsAndVelocities(context)

    def march(self, case, theta, steps):
        """Values and derivatives at the end, which are asked for one after the other."""
        if (case.name, steps) not in self.found:
            self.found[case.name, steps] = self._march(case, theta, case.t1 / steps)
        return self.found[case.name, steps]

    def _march(self, case, theta, h):
        if case.name not in SPEEDS:
            raise NotImplementedError(case.name)
        numbers, p = dual(theta), len(theta)
        motion, ends = Motion(case, numbers, FUNCTIONS), []
        e = list(case.parameters).index("e")
        z, by_e = compliance(theta[e])
        forces = motion.force(0.0, *motion.start)
        for formula, force, *start in zip(SPEEDS[case.name], forces, *motion.start, strict=True):
            speed = AutoDiffXd(0.0) + eval(parsed(formula), {"__builtins__": {}}, {**FUNCTIONS, **motion.values})
            run = lambda d, u=speed, f=force, s=start: split(self.lane(case, s, f, u.value(), h, d), p)
            d = z / speed.value()
            values, found = run(d)
            change = np.eye(p)[e] * by_e / speed.value() - d / speed.value() * split([speed], p)[1][0]
            step = 1e-2 / speed.value()
            if d > step:
                by_d = (run(d + step)[0] - run(d - step)[0]) / (2 * step)
            else:  # of second order from one side
                by_d = (4 * run(d + step)[0] - run(d + 2 * step)[0] - 3 * values) / (2 * step)
            found = found + np.outer(by_d, change)
            ends.append([AutoDiffXd(x, y) for x, y in zip(values, found, strict=True)])
        return split(motion.end(*map(list, zip(*ends, strict=True))), p)

    def final_state(self, case, theta, steps):
        return self.march(case, theta, steps)[0]

    def jacobian(self, case, theta, steps):
        return self.march(case, theta, steps)[1]


class Ball(LeafSystem_[AutoDiffXd]):
    """A case of single impacts as a hybrid system: state (r, v), one witness function a wall."""

    def __init__(self, motion, saltation):
        super().__init__()
        self.motion, self.saltation, d = motion, saltation, motion.d
        self.DeclareContinuousState(d, d, 0)
        self.witnesses = [self._witness(i) for i in motion.bounded]

    def _witness(self, i):
        def strike(system, context, event, state):
            # a change, since Drake begins simultaneous events of other walls at the same context
            now, found = context.get_continuous_state_vector().CopyToVector(), state.get_mutable_continuous_state()
            found.SetFromVector(found.CopyToVector() + self._reset(context, i) - now)

        event = UnrestrictedUpdateEvent_[AutoDiffXd](system_callback=strike)
        gap = lambda context: context.get_continuous_state_vector().CopyToVector()[i]
        return self.MakeWitnessFunction(f"wall {i}", WitnessFunctionDirection.kPositiveThenNonPositive, gap, event)

    def DoGetWitnessFunctions(self, context):
        return self.witnesses

    def DoCalcTimeDerivatives(self, context, derivatives):
        state = context.get_continuous_state_vector().CopyToVector()
        derivatives.get_mutable_vector().SetFromVector(self._field(context.get_time(), state))

    def _field(self, t, state):
        r, v = list(state[: self.motion.d]), list(state[self.motion.d :])
        return np.array([*v, *(AutoDiffXd(0.0) + f for f in self.motion.force(t, r, v))])

    def _reset(self, context, i):
        t, state, j = context.get_time(), context.get_continuous_state_vector().CopyToVector(), self.motion.d + i
        # the time to the wall: nearly zero, and its derivative is that of the impact's time
        lead = -state[i] / state[j] if self.saltation else AutoDiffXd(0.0)
        state = state + self._field(t, state) * lead
        state[j] = -self.motion.values["e"] * state[j]
        return state - self._field(t, state) * lead


class Witness:
    PACKAGES, STEPS = ("drake",), False

    def __init__(self, saltation):
        self.saltation = saltation
        self.HOW = "Simulator<AutoDiffXd> with witness functions, runge_kutta3, accuracy 1e-9; v reset to -e v" + (
            ", and a saltation of the impact's time by hand" if saltation else ""
        )

    def march(self, case, theta):
        if case.impacts is None or {"lasting contact", "accumulation"} & set(case.tags):
            raise NotImplementedError(case.name)
        motion = Motion(case, dual(theta), FUNCTIONS)
        simulator = Simulator_[AutoDiffXd](Ball(motion, self.saltation))
        ApplySimulatorConfig(
            SimulatorConfig(integration_scheme="runge_kutta3", accuracy=1e-9, max_step_size=0.05), simulator
        )
        context = simulator.get_mutable_context()
        context.SetAccuracy(1e-9)  # of the witness function's zero
        r, v = motion.start
        context.SetContinuousState(np.array([AutoDiffXd(0.0) + x for x in (*r, *v)]))
        simulator.AdvanceTo(case.t1)
        end = context.get_continuous_state_vector().CopyToVector()
        return split(motion.end(list(end[: motion.d]), list(end[motion.d :])), len(theta))

    def final_state(self, case, theta, steps):
        return self.march(case, theta)[0]

    def jacobian(self, case, theta, steps):
        return self.march(case, theta)[1]


def adapter(variant):
    contacts = {"sap": Sap, "hydroelastic": Hydroelastic}
    return contacts[variant]() if variant in contacts else Witness(saltation=variant == "saltation")
