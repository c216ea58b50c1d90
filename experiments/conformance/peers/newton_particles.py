"""Newton (Warp, on a CPU): particles, spheres and joints before planes, in its semi-implicit solver, Featherstone's and
XPBD. Single precision, Newton's only one.

**SemiImplicit**, particles, differentiated by `warp.Tape` as in Newton's example `diffsim_ball`: contacts are found
once and for all with a wide gap and `requires_grad`, the tape holds all steps. A spring, and a damper while the
particle comes nearer: its restitution is exp(-z acos z / sqrt(1 - z^2)) for the ratio z of damping, whatever the speed,
and the contact is given h^(1/3) seconds. It cannot be 0. Stiffness and damping are plain numbers in Newton: the column
of e is by central differences of 1e-3; all others are the tape's.

**Featherstone**, spheres on prismatic joints, in joint coordinates: the same law of contact, on bodies, the same tape.

**XPBD**, rigid spheres with a coefficient of restitution (`enable_restitution`). Newton's guide to its solvers names
XPBD as not differentiable, and a tape through it gives what is off by orders of magnitude; all columns are by central
differences of 1e-2, which are several steps' ways wide and far above the round-off.

Constant forces are written into the state's forces, once and for all: forces that change in time or with the state have
no entry here. Of XPBD's cases, which take 2 p + 1 motions each, those are here that a CPU does in minutes.
"""

import math
from contextlib import nullcontext
from typing import Any

import newton
import numpy as np
import warp as wp
from walls import Motion

RADIUS = 0.1


@wp.kernel
def push(force: wp.array[Any], total: wp.array[Any]):
    i = wp.tid()
    wp.atomic_add(total, i, force[i])


def damping_ratio(e):
    """Of a spring that is damped on the way in alone."""
    low, high = 0.0, 1.0 - 1e-12
    for _ in range(60):
        z = 0.5 * (low + high)
        low, high = (z, high) if math.exp(-z * math.acos(z) / math.sqrt(1 - z * z)) > e else (low, z)
    return low


def contact(e, h):
    """Stiffness and damping of unit mass: a contact of h^(1/3) seconds."""
    z = damping_ratio(e) if e < 1 else 0.0
    frequency = (math.acos(z) / math.sqrt(1 - z * z) + 0.5 * math.pi) / h ** (1 / 3)
    return frequency**2, 2 * z * frequency


class Particles:
    PACKAGES = ("newton", "warp-lang")
    CASES = ("grav1d", "grav1d-once", "struck", "unit-flight", "late", "corner", "off-wall", "ball-e0.8", "ball-e0.5")
    CHANGE = 1e-3
    UP = (slice(None), 2)  # where a height is in an array of all
    HOW = (
        "SolverSemiImplicit, particles, single precision; spring and damper from e, contact time h^(1/3); warp.Tape; "
        "column of e by central differences of 1e-3"
    )

    def __init__(self, solver):
        self.solver = solver

    def model(self, d, e, h, grad):
        builder = newton.ModelBuilder(up_axis=newton.Axis.Z, gravity=(0.0, 0.0, 0.0))
        ke, kd = (1e4, 0.0) if self.solver == "XPBD" else contact(e, h)
        material = newton.ModelBuilder.ShapeConfig(ke=ke, kd=kd, kf=0.0, mu=0.0, restitution=e, density=0.0, gap=1e2)
        for i in range(d):
            self.add(builder, wp.vec3(10.0 * i, 0.0, 1.0), material)
        builder.add_ground_plane(cfg=material)
        model = builder.finalize(device="cpu", requires_grad=grad)
        model.particle_grid = None  # lanes do not touch each other
        model.soft_contact_ke, model.soft_contact_kd, model.soft_contact_kf, model.soft_contact_mu = ke, kd, 0.0, 0.0
        return model

    def add(self, builder, place, material):
        builder.add_particle(pos=place, vel=wp.vec3(0.0, 0.0, 0.0), mass=1.0, radius=RADIUS)

    @staticmethod
    def arrays(state, control):
        """Places, velocities and forces."""
        return state.particle_q, state.particle_qd, state.particle_f

    def push(self, force, state, control):
        wp.launch(push, dim=force.shape[0], inputs=[force, self.arrays(state, control)[2]], device="cpu")

    def march(self, case, theta, steps, grad):
        """End, and with grad the arrays of the end and of the start, and the tape between them."""
        if case.name not in self.CASES:
            raise NotImplementedError(case.name)
        h, e, motion = case.t1 / steps, theta[list(case.parameters).index("e")], Motion(case, theta, {})
        model = self.model(motion.d, e, h, grad)
        states = [model.state() for _ in range(steps + 1 if grad else 2)]
        r, v = motion.start
        heights = [x + RADIUS for x in r], v, motion.force(0.0, r, v)
        control = model.control()
        force = wp.zeros_like(self.arrays(states[0], control)[2])
        start = (*self.arrays(states[0], control)[:2], force)
        for array, values in zip(start, heights, strict=True):
            numbers = array.numpy()
            numbers[self.UP] = values
            array.assign(numbers)
        force.requires_grad = grad
        pipeline = newton.CollisionPipeline(model, broad_phase="explicit", soft_contact_gap=1e3, requires_grad=grad)
        contacts = pipeline.contacts()
        pipeline.collide(states[0], contacts)
        options = {"enable_restitution": True} if self.solver == "XPBD" else {}
        solver = getattr(newton.solvers, f"Solver{self.solver}")(model, **options)
        tape = wp.Tape()
        with tape if grad else nullcontext():
            for k in range(steps):
                old, new = states[k % len(states)], states[(k + 1) % len(states)]
                old.clear_forces()
                self.push(force, old, control)
                solver.step(old, new, control, contacts, h)
        last = self.arrays(states[steps % len(states)], control)[:2]
        found = motion.end(*(last[0].numpy()[self.UP] - RADIUS, last[1].numpy()[self.UP]))
        return np.array(found, float), last, start, tape

    def final_state(self, case, theta, steps):
        return self.march(case, theta, steps, grad=False)[0]

    def jacobian(self, case, theta, steps):
        _, last, start, tape = self.march(case, theta, steps, grad=True)
        slopes = []
        for out in last:
            up = np.zeros_like(out.numpy())
            up[self.UP] = 1
            ones = wp.array(up, dtype=out.dtype, device="cpu")
            tape.backward(grads={out: ones})  # lanes do not touch: all of them at once
            slopes.append([x.grad.numpy()[self.UP].astype(float) for x in start])
            tape.zero()
        slopes = np.array(slopes)  # (q or v, by place, velocity or force, lane)
        columns = []
        for i, name in enumerate(case.parameters):
            columns.append(
                self._difference(case, theta, steps, i) if name == "e" else self._column(case, theta, i, slopes)
            )
        return np.stack(columns, axis=1)

    def _column(self, case, theta, i, slopes):
        """The chain from one parameter to the start and from the lanes' ends to (q, v), by a complex step."""
        moved = [complex(x) for x in theta]
        moved[i] += 1e-30j
        motion = Motion(case, moved, {})
        r, v = motion.start
        change = np.imag([r, v, motion.force(0.0, r, v)]) / 1e-30
        ends = np.einsum("abi,bi->ai", slopes, change)
        return np.imag(motion.end(*(1e-30j * ends))) / 1e-30

    def _difference(self, case, theta, steps, i):
        up, down = list(theta), list(theta)
        up[i], down[i] = theta[i] + self.CHANGE, theta[i] - self.CHANGE
        if list(case.parameters)[i] == "e":
            up[i], down[i] = min(up[i], 1.0), max(down[i], 0.0)
        return (self.final_state(case, up, steps) - self.final_state(case, down, steps)) / (up[i] - down[i])


class Spheres(Particles):
    """Rigid bodies, which XPBD's restitution is meant for."""

    CASES, CHANGE = ("grav1d", "grav1d-once", "struck", "unit-flight", "late", "corner", "off-wall", "hop1d"), 1e-2
    HOW = "SolverXPBD, spheres, single precision; restitution = e; central differences of 1e-2, since XPBD is not differentiable"  # noqa: E501

    def jacobian(self, case, theta, steps):
        return np.stack([self._difference(case, theta, steps, i) for i in range(len(theta))], axis=1)

    def add(self, builder, place, material):
        body = builder.add_body(
            xform=wp.transform(place, wp.quat_identity()), mass=1.0, inertia=wp.mat33(*np.eye(3).ravel())
        )
        builder.add_shape_sphere(body, radius=RADIUS, cfg=material)

    @staticmethod
    def arrays(state, control):
        return state.body_q, state.body_qd, state.body_f


class Joints(Particles):
    """Prismatic joints, each a coordinate of its own."""

    UP = slice(None)
    HOW = (
        "SolverFeatherstone, spheres on prismatic joints, single precision; spring and damper from e, contact time "
        "h^(1/3); warp.Tape; "
        "column of e by central differences of 1e-3"
    )

    def add(self, builder, place, material):
        body = builder.add_link(mass=1.0, inertia=wp.mat33(*np.eye(3).ravel()))
        builder.add_shape_sphere(body, radius=RADIUS, cfg=material)
        foot = wp.transform(wp.vec3(place[0], 0.0, 0.0), wp.quat_identity())
        joint = builder.add_joint_prismatic(-1, body, parent_xform=foot, axis=(0.0, 0.0, 1.0), armature=0.0)
        builder.add_articulation([joint])

    @staticmethod
    def arrays(state, control):
        return state.joint_q, state.joint_qd, control.joint_f

    def push(self, force, state, control):
        control.joint_f = force


def adapter(variant):
    return {"SemiImplicit": Particles, "Featherstone": Joints, "XPBD": Spheres}[variant](variant)
