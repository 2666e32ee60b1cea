"""One folder a strategy: its descriptor (no torch) beside its executor."""
