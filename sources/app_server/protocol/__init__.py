"""JSON-RPC with an app-server, and what is asked of it."""
