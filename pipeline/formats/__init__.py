"""The shapes that both ends share: calls, images, transcripts, recordings, schemas."""
