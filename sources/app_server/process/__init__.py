"""App-server processes: started, supervised and pooled."""
