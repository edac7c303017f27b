"""The HTTP endpoint: Quart-Trio on hypercorn, with a pipeline behind every request."""
