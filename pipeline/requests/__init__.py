"""OpenAI requests, structured and checked, as Turns."""
