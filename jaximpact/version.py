"""Version of the package, for modules that record it."""

__version__ = "0.6.0"
