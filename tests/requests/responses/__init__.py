"""Tests of Responses requests."""
