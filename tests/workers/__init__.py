"""Tests of the parts between the processes."""
