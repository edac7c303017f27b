"""App-servers as processes: started, supervised, and pooled."""
