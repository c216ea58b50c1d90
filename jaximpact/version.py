"""Version of the package, for modules that record it."""

__version__ = "0.7.0"
