"""Tests with the clients that people use, on the real server with the real Codex behind it."""
