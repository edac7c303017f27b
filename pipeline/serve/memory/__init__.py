"""What outlives a request: stored responses, sealed conversations, background jobs."""
