"""Systems, references and tables that tests share; pytest's `pythonpath` finds it. No test module imports another."""
