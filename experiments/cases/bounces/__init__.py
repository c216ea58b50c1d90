"""The parts of ``measured_bounces.py``: data, simulation, matching, fit, report and figure."""
