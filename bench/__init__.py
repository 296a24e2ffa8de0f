"""Load generator, comparisons and reports (floor 7). Each module is a command: `python -m callboard.bench.<name>`."""
