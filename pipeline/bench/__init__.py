"""Benchmarks: loads, the direct and the proxied path, and reports."""
