"""Sinks: nouns that turn a turn's event stream into what a client reads."""
