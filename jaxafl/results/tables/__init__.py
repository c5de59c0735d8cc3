"""Tables of results, and names of their members."""
