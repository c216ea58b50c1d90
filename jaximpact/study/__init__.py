"""Studies: ensembles computed chunk by chunk into a store, interruptible at any time and continued later."""

from .design import Blocks, Design
from .reading import Reading
from .report import FailedLane, Summary
from .run import Run
from .schema import Coordinate, Schema, Variable
from .spec import Spec
from .store import Damage, MemoryStore, Store
from .study import Study
from .zarr_store import ZarrStore

__all__ = [
    "Blocks",
    "Coordinate",
    "Damage",
    "Design",
    "FailedLane",
    "MemoryStore",
    "Reading",
    "Run",
    "Schema",
    "Spec",
    "Store",
    "Study",
    "Summary",
    "Variable",
    "ZarrStore",
]
