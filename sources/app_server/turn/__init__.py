"""One turn on an app-server."""
