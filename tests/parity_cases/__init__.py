"""One module a family: their model, our outputs, and what to compare (see benchmarks/parity.py)."""
