"""Newton with friction: a free sphere above a plane, in XPBD and in its semi-implicit solver. Single precision, Newton's only one.

Contacts are found anew at each step, as a sphere that turns has its lowest point elsewhere. All columns are by central differences of 1e-2, which are several steps' ways
wide and far above the round-off: XPBD is not differentiable by Newton's own guide, and the points that the collision finds, on which the torque of friction depends, carry no
derivative of a `warp.Tape`. XPBD has a coefficient of restitution; SemiImplicit a spring, and a damper on the way in, as in `newton_particles`, with a
contact of h^(1/3) seconds, four times the critical damping for e = 0, and friction that grows with slip up to mu times the normal force, at half the rate at which an
explicit step would overshoot. A block is a sphere of such an inertia that it does not turn. Angles are the sums of rates, as the case has them.
"""

import math

import newton
import numpy as np
import warp as wp
from newton_particles import contact

RADIUS, RIGID, PLASTIC, CHANGE = 0.1, 1e6, 4.0, 1e-2
START = ("e", "mu", "R", "I")  # whose change is a part of them


class Rough:
    PACKAGES, FRICTION = ("newton", "warp-lang"), True

    def __init__(self, solver):
        self.solver = solver
        law = {
            "XPBD": "SolverXPBD, restitution = e",
            "SemiImplicit": "SolverSemiImplicit, spring and damper from e, contact time h^(1/3), damping 4 for e = 0",
        }
        self.HOW = f"{law[solver]}; spheres, contacts found at each step, single precision; central differences of 1e-2"
        self.motions = {"disk-slips": self.disk, "disk-sticks": self.disk, "sphere-slips": self.sphere}
        self.motions |= {"turns-back": self.block, "stick-slip": self.block}

    def material(self, p, h, inertia, radius):
        if self.solver == "XPBD":
            return newton.ModelBuilder.ShapeConfig(mu=p["mu"], restitution=p["e"], density=0.0, gap=0.1)
        ke, kd = contact(p["e"], h) if p["e"] > 0 else ((math.pi / h ** (1 / 3)) ** 2, 0.0)
        kd = kd if p["e"] > 0 else 2 * PLASTIC * math.sqrt(ke)
        slope = 0.5 / (h * (1 + radius**2 / inertia))
        return newton.ModelBuilder.ShapeConfig(ke=ke, kd=kd, kf=slope, mu=p["mu"], density=0.0, gap=0.1)

    def march(self, p, h, steps, place, velocity, rates, force, inertia, radius):
        """Place, angles, velocity and rates of turning (3,); the force (3,) is a function of time."""
        builder = newton.ModelBuilder(up_axis=newton.Axis.Z, gravity=(0.0, 0.0, 0.0))
        material = self.material(p, h, inertia, radius)
        body = builder.add_body(
            xform=wp.transform(wp.vec3(*place), wp.quat_identity()),
            mass=1.0,
            inertia=wp.mat33(*(inertia * np.eye(3)).ravel()),
        )
        builder.add_shape_sphere(body, radius=radius, cfg=material)
        builder.add_ground_plane(cfg=material)
        model = builder.finalize(device="cpu")
        old, new, control = model.state(), model.state(), model.control()
        start = old.body_qd.numpy()
        start[0] = [*velocity, *rates]
        old.body_qd.assign(start)
        options = {"enable_restitution": True} if self.solver == "XPBD" else {"angular_damping": 0.0}
        if self.solver == "XPBD":
            options["angular_damping"] = 0.0
        solver = getattr(newton.solvers, f"Solver{self.solver}")(model, **options)
        pipeline = newton.CollisionPipeline(model, broad_phase="explicit")
        contacts = pipeline.contacts()
        angles = np.zeros(3)
        load = np.zeros((1, 6), np.float32)
        for k in range(steps):
            load[0, :3] = force(k * h)
            old.body_f.assign(load)
            pipeline.collide(old, contacts)
            solver.step(old, new, control, contacts, h)
            old, new = new, old
            found = old.body_qd.numpy()[0].astype(float)
            angles += h * found[3:]
        return old.body_q.numpy()[0, :3].astype(float), angles, found[:3], found[3:]

    def disk(self, p, h, steps):
        start = [0.0, 0.0, p["y0"]], [p["vx"], 0.0, p["vy"]], [0.0, -p["w"], 0.0]
        q, a, v, rate = self.march(p, h, steps, *start, lambda t: [0.0, 0.0, -p["g"]], p["I"], p["R"])
        return [p["x0"] + q[0], q[2], p["a0"] - a[1], v[0], v[2], -rate[1]]

    def sphere(self, p, h, steps):
        start = [0.0, 0.0, p["z0"]], [p["vx"], p["vy"], p["vz"]], [p["wx"], p["wy"], 0.0]
        q, a, v, rate = self.march(p, h, steps, *start, lambda t: [0.0, 0.0, -p["g"]], p["I"], p["R"])
        return [p["x0"] + q[0], p["y0"] + q[1], q[2], p["a0"] + a[0], p["b0"] + a[1], *v, *rate[:2]]

    def block(self, p, h, steps):
        slope, pull = p.get("alpha", 0.0), p.get("F", 0.0)
        weight = -p["g"] * np.array([math.sin(slope), 0.0, math.cos(slope)])
        start = [0.0, 0.0, RADIUS + p["y0"]], [p["vx"], 0.0, p["vy"]], [0.0, 0.0, 0.0]
        q, _, v, _ = self.march(p, h, steps, *start, lambda t: weight + np.array([pull * t, 0.0, 0.0]), RIGID, RADIUS)
        return [p["x0"] + q[0], q[2] - RADIUS, v[0], v[2]]

    def final_state(self, case, theta, steps):
        if case.name not in self.motions:
            raise NotImplementedError(case.name)
        p = dict(zip(case.parameters, map(float, theta), strict=True))
        return np.array(self.motions[case.name](p, case.t1 / steps, steps))

    def jacobian(self, case, theta, steps):
        if case.name not in self.motions:
            raise NotImplementedError(case.name)
        theta = np.asarray(theta, float)
        found = np.zeros((2 * len(case.position), len(theta)))
        for i, name in enumerate(case.parameters):
            if (
                name == "e" and theta[i] == 0
            ):  # the derivative by that of a plastic impact is zero, and nothing lies below it
                continue
            change = CHANGE * (min(1.0, theta[i]) if name in START else 1.0)
            up, down = theta.copy(), theta.copy()
            up[i], down[i] = theta[i] + change, theta[i] - change
            found[:, i] = (self.final_state(case, up, steps) - self.final_state(case, down, steps)) / (2 * change)
        return found


def adapter(variant):
    return Rough(variant)
