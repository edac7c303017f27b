"""Decoders: from a backend's messages, in every known dialect, to events."""
