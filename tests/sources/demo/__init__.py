"""Tests of sources.demo."""
