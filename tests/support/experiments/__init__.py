"""What tests take from experiments/, whose folders are on pytest's `pythonpath`: exact motions,
references and pictures' data."""
