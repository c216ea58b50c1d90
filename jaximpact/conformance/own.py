"""Adapter of jaximpact itself: a scheme and its kind of derivative, such as the variant "PaoliSchatzman corrected"."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..jaxtools.warnings import without_remarks
from ..mechanics import schemes
from ..simulation.public import sensitivities
from .cases import get
from .report import COARSE, FINE

if TYPE_CHECKING:
    from .cases import Case


class SchemeAdapter:
    """Adapter that computes states and Jacobians of the cases with one scheme of this library, by
    `jaximpact.sensitivities`."""

    PACKAGES = ("jaximpact", "jax")
    FRICTION = True

    def __init__(self, scheme: str, sensitivity: str) -> None:
        jax.config.update("jax_enable_x64", True)
        self.scheme, self.sensitivity = getattr(schemes, scheme)(), sensitivity
        self.HOW = f'jaximpact.sensitivities, mode="forward", sensitivity="{sensitivity}"'
        self.plastic = self.scheme.traits.restitution == "none"
        self._group = cache(self._compute)

    def final_state(self, case: Case, theta: Sequence[float], steps: int) -> np.ndarray:
        return self._both(case.name, tuple(theta), steps)[0]

    def jacobian(self, case: Case, theta: Sequence[float], steps: int) -> np.ndarray:
        return self._both(case.name, tuple(theta), steps)[1]

    def _both(self, name: str, theta: tuple[float, ...], steps: int) -> tuple[np.ndarray, np.ndarray]:
        """State (2d,) and Jacobian (2d, p) of the case ``name`` for one step count.

        All step counts that `Case.steps` gives for the same step size are computed together, and kept.
        """
        groups = (get(name).steps(h) for h in (FINE, COARSE))
        group = next((counts for counts in groups if steps in counts), (steps,))
        states, jacobians = self._group(name, theta, group)
        return states[group.index(steps)], jacobians[group.index(steps)]

    def _compute(self, name: str, theta: tuple[float, ...], steps: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        case = get(name)
        if (self.plastic and case.e) or (case.slip and not self.scheme.traits.friction):
            raise NotImplementedError(name)

        def start(x: Array) -> dict:
            q0, v0, e, args = case.start(x)
            return {"q0": q0, "v0": v0, "e": e} | ({"args": args} if args else {})

        q0, v0, e, args = case.start(np.array(theta))
        with without_remarks():
            found = sensitivities(
                case.problem,
                q0,
                v0,
                t1=case.t1,
                h=case.t1 / np.array(steps),
                e=e,
                args=args or None,
                scheme=self.scheme,
                wrt=("q0", "v0", "e", *(["args"] if args else [])),
                mode="forward",
                sensitivity=self.sensitivity,
                progress=False,
            )
        # by the start, then by the parameters that make it
        _, value, _, _, by_start = found._flat()
        columns = lambda x: jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(start(x))])
        return value, by_start @ np.asarray(jax.jacfwd(columns)(jnp.asarray(theta)))


def adapter(variant: str) -> SchemeAdapter:
    """Adapter for a variant, which names a scheme and a derivative."""
    scheme, sensitivity = variant.split()
    return SchemeAdapter(scheme, sensitivity)
