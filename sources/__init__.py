"""Sources: nouns that turn what a backend wrote into a turn's event stream."""
