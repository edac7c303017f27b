"""Tests of the frame: the recipe, the chain that runs it, and the laws of both."""
