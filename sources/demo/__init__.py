"""A model and a backend that need no login: for demonstrations and for tests."""
