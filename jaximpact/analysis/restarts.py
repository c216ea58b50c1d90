"""Motions begun again at rows of a solution: what lies between two rows, as accurate as the scheme."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..jaxtools.warnings import without_remarks
from ..mechanics.motion import Motion
from ..mechanics.problem import Problem
from ..mechanics.schemes.base import Scheme
from ..results import Solution
from ..simulation.canonical_arrays import full_axes
from ..simulation.ensemble import ensemble
from ..simulation.lanes import Lanes
from .forced_motions import admit


def run_between(
    problem: Problem,
    scheme: Scheme,
    rows: tuple[np.ndarray, np.ndarray, np.ndarray],
    lane: np.ndarray,
    row: np.ndarray,
    t1: np.ndarray,
    args: Any,
    args_axes: Any,
    e: Any,
    **options: Any,
) -> Solution:
    """Runs from rows (n,) of the lanes (n,) of a batch, whose ``rows`` are t, q and v, to times t1 (n,); e is (n, m) or None, ``options`` are those of `ensemble`."""
    n = len(lane)
    size = 1 << max(n - 1, 0).bit_length()  # few sizes, few compilations
    some = np.concatenate([np.arange(n), np.zeros(size - n, int)])
    lane, row = lane[some], row[some]
    t, q, v = (np.asarray(x)[lane, row] for x in rows)
    axes = full_axes(args, args_axes)
    args = jax.tree.map(lambda axis, x: x if axis < 0 else np.asarray(x)[lane], axes, args)
    unused: Any = dict.fromkeys(("t0", "t1", "h", "steps", "e"))
    starts = Lanes.of(Motion(q, v, args=args, **unused), Motion(0, 0, args=axes, **unused), size).only(
        "q0", "v0", "args"
    )
    q = np.asarray(admit(problem, t, starts.motion, starts.axes))
    with without_remarks():
        found = ensemble(
            problem, q, v, t0=t, t1=t1[some], steps=1, args=args,
            args_axes=jax.tree.map(lambda axis: None if axis < 0 else 0, axes), e=None if e is None else e[some], scheme=scheme, progress=False,
            **options,
        )  # fmt: skip
    return jax.tree.map(lambda x: x[:n], found)
