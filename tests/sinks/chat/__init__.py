"""Tests of the Chat Completions sinks."""
