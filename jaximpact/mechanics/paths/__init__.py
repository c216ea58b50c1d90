"""Paths of `EventCorrected` between events, and the times at which they end."""
