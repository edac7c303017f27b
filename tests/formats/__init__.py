"""Tests of the shared shapes."""
