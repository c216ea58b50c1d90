"""What of a test's parameters is breadth, and stands in the slow suite."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """A set of parameters for the slow suite."""
    return pytest.param(*values, marks=pytest.mark.slow)


def slow_but(kept: Iterable, values: Iterable) -> list:
    """Parameters, those that are not among ``kept`` for the slow suite."""
    kept = list(kept)
    return [x if x in kept else slow(x) for x in values]
