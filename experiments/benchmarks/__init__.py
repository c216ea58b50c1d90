"""The parts of the benchmark: systems, and the baselines that jaximpact is timed against."""
