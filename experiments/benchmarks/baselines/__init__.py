"""Handwritten loops of the scheme that jaximpact uses by default, for the systems of ``works``."""
