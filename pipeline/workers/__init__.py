"""Several processes that serve the same address: the parent, its workers, and the line between."""
