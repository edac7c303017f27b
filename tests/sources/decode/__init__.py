"""Tests of sources.decode."""
