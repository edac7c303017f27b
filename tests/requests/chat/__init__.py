"""Tests of chat requests."""
