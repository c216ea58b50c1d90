"""Switches: the kinks and jumps of a function, found in its jaxpr; this package knows no mechanics."""
