"""Decoding what a backend sends, in every dialect it has had, into events."""
