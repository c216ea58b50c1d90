"""Time-stepping schemes, one file each, with its citation."""

from ..scheme import Info, Scheme, State
from .event_driven import EventCorrected, EventDriven
from .maury import Maury
from .moreau_jean import MoreauJean
from .paoli_schatzman import PaoliSchatzman

__all__ = ["EventCorrected", "EventDriven", "Info", "Maury", "MoreauJean", "PaoliSchatzman", "Scheme", "State"]
