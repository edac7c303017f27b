"""What it takes to find tool calls: an aggregator of structured pieces, a scanner for text."""
