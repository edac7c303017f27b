"""What the server remembers: responses, and the key it seals with."""
