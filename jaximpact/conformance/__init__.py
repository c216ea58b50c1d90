"""Conformance suite for impact simulators: motions whose final state and Jacobian are known.

    python -m jaximpact.conformance --adapter mine.py

An adapter is a file with two functions; see `jaximpact.conformance.worker`, which runs it,
and needs nothing of this package.
"""

from .cases import Case, cases, frictional_cases, get
from .jax_motions import JaxMotions
from .report import COARSE, FINE, Cell, Column, Report
from .runner import Adapter, adapters_of_jaximpact, run

__all__ = [
    "COARSE",
    "FINE",
    "Adapter",
    "Case",
    "Cell",
    "Column",
    "JaxMotions",
    "Report",
    "adapters_of_jaximpact",
    "cases",
    "frictional_cases",
    "get",
    "run",
]
