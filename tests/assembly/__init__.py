"""Tests of the settings and recipes."""
