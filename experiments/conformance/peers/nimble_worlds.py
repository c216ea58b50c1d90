"""nimblephysics: spheres on prismatic joints before boxes, contacts as a linear
complementarity problem with restitution.

Settings are nimble's defaults but one: positions are moved by the new velocities
(`setParallelVelocityAndPositionUpdates(False)`), which is more exact in every case; its correction of penetrations made
no difference. The restitution of two bodies is the product of both. The Jacobian of each step is nimble's own
(`BackpropSnapshot.getStateJacobian`, `getActionJacobian`), forces come in as actions. Restitution and radii are plain
numbers in nimble: their columns are by central differences of 1e-2, ten steps' ways wide.
"""

import math

import nimblephysics as nimble
import numpy as np
from walls import WALLS, Motion, Slopes

RADIUS, CHANGE = 0.1, 1e-2
FUNCTIONS = {"sin": math.sin, "cos": math.cos, "sqrt": math.sqrt}


def add(world, place, axis=None, shape=None, e=1.0):
    """A body of unit mass, on a prismatic joint or, without an axis, welded."""
    skeleton = nimble.dynamics.Skeleton()
    if axis is None:
        joint, body = skeleton.createWeldJointAndBodyNodePair()
    else:
        joint, body = skeleton.createPrismaticJointAndBodyNodePair()
        joint.setAxis(np.array(axis))
    foot = nimble.math.Isometry3()
    foot.set_translation(np.array(place))
    joint.setTransformFromParentBodyNode(foot)
    if shape is not None:
        body.createShapeNode(shape).createCollisionAspect()
    body.setMass(1.0)
    body.setRestitutionCoeff(e)
    body.setFrictionCoeff(0.0)
    world.addSkeleton(skeleton)


def empty(h):
    world = nimble.simulation.World()
    world.setGravity(np.zeros(3))
    world.setTimeStep(h)
    world.setParallelVelocityAndPositionUpdates(False)
    return world


def lanes(motion, e, h):
    """Every coordinate upwards in a lane of its own, some above a floor."""
    world, ball, floor = (
        empty(h),
        nimble.dynamics.SphereShape(RADIUS),
        nimble.dynamics.BoxShape(np.array([4.0, 4.0, 1.0])),
    )
    for i in range(motion.d):
        wall = i in motion.bounded
        add(world, [10.0 * i, 0.0, 0.0], [0.0, 0.0, 1.0], ball if wall else None, e)
        if wall:
            add(world, [10.0 * i, 0.0, -RADIUS - 0.5], None, floor)
    return world


def pair(radius, e, h):
    """Two balls on one line."""
    world = empty(h)
    for restitution in (e, 1.0):
        add(world, [0.0, 0.0, 0.0], [1.0, 0.0, 0.0], nimble.dynamics.SphereShape(radius), restitution)
    return world


class Nimble:
    PACKAGES = ("nimblephysics", "numpy")
    HOW = "World, LCP with restitution, positions by the new velocities; Jacobians of steps by BackpropSnapshot; columns of e and radius by central differences of 1e-2"  # noqa: E501

    def march(self, case, theta, steps, slopes):
        """State (2d,) and derivative (2d, p) at the end."""
        values, h = dict(zip(case.parameters, theta, strict=True)), case.t1 / steps
        if case.name == "two-balls":
            # positions and velocities are the first four parameters
            return self._steps(pair(values["r"], values["e"], h), steps, slopes, np.array(theta[:4]), np.eye(4, 6))
        if case.name not in WALLS:
            raise NotImplementedError(case.name)
        motion, by = Motion(case, theta, FUNCTIONS), Slopes(case, theta)
        force = lambda k, x, dx: (motion.force(k * h, *np.split(x, 2)), by.force(k * h, x, dx) if slopes else None)
        world, start = lanes(motion, values["e"], h), np.concatenate(motion.start)
        x, dx = self._steps(world, steps, slopes, start, by.start, force)
        return np.array(motion.end(*np.split(x, 2))), by.end(x, dx)

    @staticmethod
    def _steps(world, steps, slopes, x, dx, force=None):
        world.setState(x)
        for k in range(steps):
            if force is not None:
                pull, dpull = force(k, x, dx)
                world.setAction(np.array(pull))
            snapshot = nimble.neural.forwardPass(world)
            x = np.array(world.getState())
            if slopes:
                dx = snapshot.getStateJacobian(world) @ dx + (
                    0.0 if force is None else snapshot.getActionJacobian(world) @ dpull
                )
        return x, dx

    def final_state(self, case, theta, steps):
        return self.march(case, theta, steps, slopes=False)[0]

    def jacobian(self, case, theta, steps):
        found = self.march(case, theta, steps, slopes=True)[1]
        for i, name in enumerate(case.parameters):
            if name == "e" or (case.name == "two-balls" and name == "r"):
                up, down = np.array(theta), np.array(theta)
                up[i] += CHANGE if name == "r" or theta[i] < 1 else 0.0
                down[i] -= CHANGE if theta[i] > 0 else 0.0
                slope = self.final_state(case, up, steps) - self.final_state(case, down, steps)
                found[:, i] = slope / (up[i] - down[i])
        return found


def adapter(variant):
    return Nimble()
