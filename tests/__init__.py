"""The tests, as a package: what several of them need is in `support`."""
