"""Tests of the Responses sinks."""
