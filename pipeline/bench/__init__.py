"""What the server costs: loads, the arms they are put on, and what is made of the figures."""
