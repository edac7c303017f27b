"""What the server reports of itself: logs, metrics, and the facts of each request."""
