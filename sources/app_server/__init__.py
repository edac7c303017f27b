"""A live `codex app-server` as a source: transports, JSON-RPC, supervision and turns."""
