"""The commands of `python -m pipeline`, one module each."""
