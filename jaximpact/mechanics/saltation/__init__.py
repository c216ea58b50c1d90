"""Derivatives across impacts, jumps and changes of slip, for schemes of fixed steps."""
