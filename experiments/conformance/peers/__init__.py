"""Other simulators, one adapter a file; see the README beside this folder for what an adapter holds."""
