"""What both kinds of requests share: checks, content, tools and options."""
