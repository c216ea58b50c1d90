"""The parts of ``bounces_by_gradient.py``: model, fit, trends, report and figure."""
