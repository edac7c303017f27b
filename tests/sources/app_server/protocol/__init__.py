"""Tests of sources.app_server.protocol."""
