"""Rigid bodies in the plane with joints, springs and stops: makes a `Problem` from bodies and parts, and draws it.

    from jaximpact import planar

    four_bar = planar.System(
        bodies={
            "crank": planar.bar((0, 0), (0, 1), mass=1.0),
            "coupler": planar.bar((0, 1), (2, 1.5), mass=2.0),
            "rocker": planar.bar((2, 1.5), (2, 0), mass=1.5),
        },
        parts=[
            planar.Pin("crank", at=(0, 0)),
            planar.Pin("crank", "coupler", at=(0, 1)),
            planar.Pin("coupler", "rocker", at=(2, 1.5)),
            planar.Pin("rocker", at=(2, 0)),
            planar.Wall("rocker", point=(2, 1.5), at=(2.3, 1.5), normal=(-1, 0), name="stop"),
        ],
    )
    problem = four_bar.problem(restitution=0.6)
    q0, v0 = four_bar.start(crank=-2.0)  # the crank's angular velocity; the others follow

All points are given in the plane as the system stands at the start, in metres. The coordinates of a body are its centre
of mass and the angle by which it has turned since: ``crank.x``, ``crank.y``, ``crank.angle``. Wherever a part takes a
number (a mass, a stiffness, a torque) it takes a function of ``args`` too, by which it can be swept and differentiated.
"""

from .body import Body, bar, block, disk, plate
from .parts import (
    AngleSpring,
    AngleStop,
    Bumper,
    Clearance,
    Drive,
    Force,
    Motor,
    Pin,
    Rod,
    Slider,
    Slot,
    Spring,
    Wall,
)
from .system import System

__all__ = [
    "AngleSpring",
    "AngleStop",
    "Body",
    "Bumper",
    "Clearance",
    "Drive",
    "Force",
    "Motor",
    "Pin",
    "Rod",
    "Slider",
    "Slot",
    "Spring",
    "System",
    "Wall",
    "bar",
    "block",
    "disk",
    "plate",
]
