"""Tests of what both kinds of requests share."""
