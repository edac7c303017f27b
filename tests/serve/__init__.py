"""Tests of the HTTP endpoint."""
