"""Tests of sources.app_server.process."""
