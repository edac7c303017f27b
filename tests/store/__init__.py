"""Tests of what the server remembers."""
