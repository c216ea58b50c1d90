"""Newton with friction: a free sphere above a plane, in XPBD and in its semi-implicit solver. Single precision,
Newton's only one.

Contacts are found anew at each step, as a sphere that turns has its lowest point elsewhere. All columns are by central
differences of 1e-2, which are several steps' ways wide and far above the round-off: XPBD is not differentiable by
Newton's own guide, and the points that the collision finds, on which the torque of friction depends, carry no
derivative of a `warp.Tape`; all the motions of a Jacobian are worlds of one model. XPBD has a coefficient of
restitution; SemiImplicit a spring, and a damper on the way in, as in `newton_particles`, with a contact of h^(1/3)
seconds, four times the critical damping for e = 0, and friction that grows with slip up to mu times the normal force,
at half the rate at which an explicit step would overshoot. A block is a sphere of such an inertia that it does not
turn. Angles are the sums of rates, as the case has them.
"""

import math
from typing import NamedTuple

import newton
import numpy as np
import warp as wp
from newton_particles import contact

RADIUS, RIGID, PLASTIC, CHANGE = 0.1, 1e6, 4.0, 1e-2
START = ("e", "mu", "R", "I")  # whose change is a part of them


class Start(NamedTuple):
    """A sphere of mass 1 and what it is of; the force is weight and pull times the time, along x."""

    p: dict
    place: list
    velocity: list
    rates: list
    weight: list
    inertia: float
    radius: float
    pull: float = 0.0


def disk(p):
    start = [0.0, 0.0, p["y0"]], [p["vx"], 0.0, p["vy"]], [0.0, -p["w"], 0.0], [0.0, 0.0, -p["g"]]
    return Start(p, *start, p["I"], p["R"])


def end_of_disk(p, q, a, v, rate):
    return [p["x0"] + q[0], q[2], p["a0"] - a[1], v[0], v[2], -rate[1]]


def sphere(p):
    start = [0.0, 0.0, p["z0"]], [p["vx"], p["vy"], p["vz"]], [p["wx"], p["wy"], 0.0], [0.0, 0.0, -p["g"]]
    return Start(p, *start, p["I"], p["R"])


def end_of_sphere(p, q, a, v, rate):
    return [p["x0"] + q[0], p["y0"] + q[1], q[2], p["a0"] + a[0], p["b0"] + a[1], *v, *rate[:2]]


def block(p):
    slope = p.get("alpha", 0.0)
    weight = [-p["g"] * math.sin(slope), 0.0, -p["g"] * math.cos(slope)]
    start = [0.0, 0.0, RADIUS + p["y0"]], [p["vx"], 0.0, p["vy"]], [0.0, 0.0, 0.0], weight
    return Start(p, *start, RIGID, RADIUS, p.get("F", 0.0))


def end_of_block(p, q, a, v, rate):
    return [p["x0"] + q[0], q[2] - RADIUS, v[0], v[2]]


class Rough:
    PACKAGES, FRICTION = ("newton", "warp-lang"), True

    def __init__(self, solver):
        self.solver = solver
        law = {
            "XPBD": "SolverXPBD, restitution = e",
            "SemiImplicit": "SolverSemiImplicit, spring and damper from e, contact time h^(1/3), damping 4 for e = 0",
        }
        self.HOW = f"{law[solver]}; spheres, contacts found at each step, single precision; central differences of 1e-2"
        self.starts = {
            "disk-slips": (disk, end_of_disk),
            "disk-sticks": (disk, end_of_disk),
            "sphere-slips": (sphere, end_of_sphere),
            "turns-back": (block, end_of_block),
            "stick-slip": (block, end_of_block),
        }

    def material(self, p, h, inertia, radius):
        if self.solver == "XPBD":
            return newton.ModelBuilder.ShapeConfig(mu=p["mu"], restitution=p["e"], density=0.0, gap=0.1)
        frequency = math.pi / h ** (1 / 3)
        ke, kd = contact(p["e"], h) if p["e"] > 0 else (frequency**2, 2 * PLASTIC * frequency)
        slope = 0.5 / (h * (1 + radius**2 / inertia))
        return newton.ModelBuilder.ShapeConfig(ke=ke, kd=kd, kf=slope, mu=p["mu"], density=0.0, gap=0.1)

    def march(self, starts, h, steps):
        """A world for each start: place, angles, velocity and rates of turning, each (3,)."""
        builder = newton.ModelBuilder(up_axis=newton.Axis.Z, gravity=(0.0, 0.0, 0.0))
        for start in starts:
            builder.begin_world()
            material = self.material(start.p, h, start.inertia, start.radius)
            body = builder.add_body(
                xform=wp.transform(wp.vec3(*start.place), wp.quat_identity()),
                mass=1.0,
                inertia=wp.mat33(*(start.inertia * np.eye(3)).ravel()),
            )
            builder.add_shape_sphere(body, radius=start.radius, cfg=material)
            builder.add_ground_plane(cfg=material)
            builder.end_world()
        model = builder.finalize(device="cpu")
        old, new, control = model.state(), model.state(), model.control()
        old.body_qd.assign(np.array([[*start.velocity, *start.rates] for start in starts], np.float32))
        options = {"enable_restitution": True} if self.solver == "XPBD" else {}
        solver = getattr(newton.solvers, f"Solver{self.solver}")(model, angular_damping=0.0, **options)
        pipeline = newton.CollisionPipeline(model, broad_phase="explicit")
        contacts = pipeline.contacts()
        angles = np.zeros((len(starts), 3))
        load = np.zeros((len(starts), 6), np.float32)
        weight, pull = (np.array([getattr(start, name) for start in starts]) for name in ("weight", "pull"))
        for k in range(steps):
            load[:, :3] = weight
            load[:, 0] += pull * k * h
            old.body_f.assign(load)
            pipeline.collide(old, contacts)
            solver.step(old, new, control, contacts, h)
            old, new = new, old
            found = old.body_qd.numpy().astype(float)
            angles += h * found[:, 3:]
        return old.body_q.numpy()[:, :3].astype(float), angles, found[:, :3], found[:, 3:]

    def final_states(self, case, thetas, steps):
        if case.name not in self.starts:
            raise NotImplementedError(case.name)
        start, end = self.starts[case.name]
        given = [dict(zip(case.parameters, map(float, theta), strict=True)) for theta in thetas]
        found = self.march([start(p) for p in given], case.t1 / steps, steps)
        return np.array([end(p, *one) for p, *one in zip(given, *found, strict=True)])

    def final_state(self, case, theta, steps):
        return self.final_states(case, [theta], steps)[0]

    def jacobian(self, case, theta, steps):
        theta = np.asarray(theta, float)
        found = np.zeros((2 * len(case.position), len(theta)))
        # the derivative by e of a plastic impact is zero, and nothing lies below it
        moved = [i for i, name in enumerate(case.parameters) if not (name == "e" and theta[i] == 0)]
        size = [min(1.0, x) if name in START else 1.0 for name, x in zip(case.parameters, theta, strict=True)]
        change = CHANGE * np.array(size)[moved]
        shifts = change[:, None] * np.eye(len(theta))[moved]
        ends = self.final_states(case, [*(theta + shifts), *(theta - shifts)], steps)
        found[:, moved] = ((ends[: len(moved)] - ends[len(moved) :]) / (2 * change[:, None])).T
        return found


def adapter(variant):
    return Rough(variant)
