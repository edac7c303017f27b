"""Formats that several parts share: tool calls, transcripts, recordings, schemas, images."""
