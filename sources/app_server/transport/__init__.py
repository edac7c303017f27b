"""Transports: how messages get to and from an app-server."""
