"""The version of the package, for those modules that record it."""

__version__ = "0.2.0"
