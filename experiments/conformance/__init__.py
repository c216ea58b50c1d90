"""What the conformance suite is checked with, and the simulators that are compared by it."""
