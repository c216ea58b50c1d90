"""Substeps of `EventDriven`: trials of any length, which find the events that end them; and forces piece by piece,
for both event schemes."""
