"""Tests of the requests."""
