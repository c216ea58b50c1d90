"""Genesis (rigid bodies on a CPU, double precision, `requires_grad`): a free sphere above a plane, differentiated by
`backward` through the steps.

Genesis has MuJoCo's soft contact with solref as a time constant and a ratio of damping, and no restitution: both are
set so that the contact is the spring and damper that `mujoco_differences` has, with the wanted e and a contact of
h^(1/3) seconds. The place and the velocity of the end are differentiated in two environments of one scene. Restitution
and gravity are numbers of a scene: their columns are by central differences of 1e-2. A scene is built for each number
of steps, and goes back through the steps in some 20 ms each; of the cases that could be stated so,
those are here that a CPU does in minutes.
"""

import math

import genesis as gs
import numpy as np
import torch
from springs import damping_ratio
from walls import Motion, Slopes

RADIUS, CHANGE = 0.1, 1e-2
gs.init(backend=gs.cpu, precision="64", logging_level="error", seed=0)


def scene(e, h, gravity, grad):
    made = gs.Scene(
        show_viewer=False,
        sim_options=gs.options.SimOptions(dt=h, substeps=1, gravity=(0.0, 0.0, -gravity), requires_grad=grad),
    )
    plane = made.add_entity(gs.morphs.Plane())
    material = gs.materials.Rigid(rho=3 / (4 * math.pi * RADIUS**3))
    ball = made.add_entity(gs.morphs.Sphere(radius=RADIUS, pos=(0.0, 0.0, 2.0)), material=material)
    made.build(n_envs=2)
    ratio = max(damping_ratio(e) if e < 1 else 0.0, 1e-6)
    frequency = math.pi / h ** (1 / 3)
    for geom in (*plane.geoms, *ball.geoms):
        geom.set_sol_params(torch.tensor([1 / (ratio * frequency), ratio, 0.9999, 0.9999, 0.001, 0.5, 2.0]))
    return made, ball


class Spheres:
    PACKAGES = ("genesis-world", "torch")
    CASES = ("grav1d-once", "unit-flight", "off-wall")
    HOW = (
        "rigid solver, requires_grad, double precision; time constant and damping ratio from e, contact time h^(1/3); "
        "backward through all steps; "
        "columns of e and g by central differences of 1e-2"
    )

    def march(self, case, theta, steps, grad):
        """End (2,), and with grad its derivative by place and velocity of the start (2, 2)."""
        if case.name not in self.CASES:
            raise NotImplementedError(case.name)
        values, motion = dict(zip(case.parameters, theta, strict=True)), Motion(case, theta, {})
        made, ball = scene(values["e"], case.t1 / steps, values.get("g", 0.0), grad)
        (r,), (v,) = motion.start
        start = [torch.zeros(2, n, dtype=torch.float64) for n in (3, 6)]
        start[0][:, 2], start[1][:, 2] = r + RADIUS, v
        for x in start:
            x.requires_grad_(grad)
        ball.set_pos(start[0], relative=False)
        ball.set_dofs_velocity(start[1])
        for _ in range(steps):
            made.step()
        (last,) = (x for x in made.get_state().solvers_state if hasattr(x, "dofs_vel"))
        height, speed = last.qpos[:, 2], last.dofs_vel[:, 2]
        end = np.array(motion.end([height[0].item() - RADIUS], [speed[0].item()]))
        if not grad:
            return end, None
        (height[0] + speed[1]).backward()
        return end, np.stack([x.grad[:, 2].numpy() for x in start], axis=1)

    def final_state(self, case, theta, steps):
        return self.march(case, theta, steps, grad=False)[0]

    def jacobian(self, case, theta, steps):
        by, slopes = Slopes(case, theta), self.march(case, theta, steps, grad=True)[1]
        found = by.end(np.zeros(2), slopes @ by.start)
        for i, name in enumerate(case.parameters):
            if name in ("e", "g"):
                up, down = np.array(theta), np.array(theta)
                up[i] += CHANGE if name == "g" or theta[i] < 1 else 0.0
                down[i] -= CHANGE
                found[:, i] = (self.final_state(case, up, steps) - self.final_state(case, down, steps)) / (
                    up[i] - down[i]
                )
        return found


def adapter(variant):
    return Spheres()
