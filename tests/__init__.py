"""The tests, as a package: what several of them need is imported from here."""
