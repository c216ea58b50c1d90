"""Coulomb's law at contacts: the cones, solvers of their equations, and static friction."""
