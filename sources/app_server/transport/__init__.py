"""How messages travel to and from an app-server."""
