"""The parts of ``passes.py``: exact cases, an independent event-driven reference, and the simulators that are compared."""
