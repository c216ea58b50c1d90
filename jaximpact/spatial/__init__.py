"""Rigid bodies in space with joints, springs and contacts: makes a `Problem` from bodies and parts, and draws it.

    from jaximpact import spatial

    tossed = spatial.System(
        bodies={"box": spatial.box(centre=(0, 0, 0.5), sides=(0.2, 0.1, 0.05), mass=1.0)},
        parts=[spatial.Plane("box", at=(0, 0, 0), normal=(0, 0, 1), friction=0.4, restitution=0.3)],
    )
    problem = tossed.problem()
    q0, v0 = tossed.start(box=(1.0, 0, 0, 3.0, -2.0, 5.0))  # velocity of its centre, and angular velocity

All points are given in space as the system stands at the start, in metres; the axes of all bodies are those of the
world then. A body that moves freely has the coordinates of its centre of mass and a quaternion, ``box.x`` to
``box.qz``; one that a joint carries has those of the joint, ``leg.angle``. Only the direction of a quaternion counts,
p/|p|: it has no equation, and its length is led back to 1. Wherever a part takes a number (a mass, a stiffness, a
torque) it takes a function of ``args`` too, by which it can be swept and differentiated.
"""

from .body import Body, ball, box, capsule, cylinder, ellipsoid
from .contacts import AngleStop, Contact, Plane
from .forces import AngleSpring, Force, Motor, Spring, Torque
from .model import Model
from .model_files import from_mjcf
from .parts import Ball, Drive, Hinge, Rod, Slider, Universal, Weld
from .system import System

__all__ = [
    "AngleSpring",
    "AngleStop",
    "Ball",
    "Body",
    "Contact",
    "Drive",
    "Force",
    "Hinge",
    "Model",
    "Motor",
    "Plane",
    "Rod",
    "Slider",
    "Spring",
    "System",
    "Torque",
    "Universal",
    "Weld",
    "ball",
    "box",
    "capsule",
    "cylinder",
    "ellipsoid",
    "from_mjcf",
]
