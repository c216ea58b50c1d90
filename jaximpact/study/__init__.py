"""Studies: ensembles that are computed block by block into a store on disk, and continue where they were stopped."""

from .design import Design
from .study import FailedLane, Study, Summary

__all__ = ["Design", "FailedLane", "Study", "Summary"]
