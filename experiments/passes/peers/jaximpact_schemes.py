"""jaximpact itself: a scheme, and which derivative of it (``Scheme sensitivity`` is the variant)."""

import inspect

import jax.numpy as jnp

import jaximpact as ji
from passes import cases

PACKAGES = ("jaximpact",)
HOW = "jax.jacfwd through jaximpact.solve"


def motion(case, scheme, choice):
    def run(theta, t1, steps):
        q0, v0, e, args = case.start(theta)
        found = ji.solve(
            case.problem, q0, v0, t1=t1, steps=steps, scheme=scheme, args=args, e=e, save="final", **choice
        )
        return jnp.concatenate([found.q[-1], found.v[-1]])

    return run


def motions(variant: str):
    name, sensitivity = variant.split()
    if not hasattr(ji, name):
        raise ImportError(f"this version of jaximpact has no {name}")
    choice = {} if sensitivity == "default" else {"sensitivity": sensitivity}
    if choice and "sensitivity" not in inspect.signature(ji.solve).parameters:
        if sensitivity == "corrected":
            raise ImportError("this version of jaximpact has no corrected sensitivities")
        choice = {}
    scheme = getattr(ji, name)()
    plastic = name == "Maury"
    return {case.name: motion(case, scheme, choice) for case in cases.CASES.values() if case.e == 0 or not plastic}
