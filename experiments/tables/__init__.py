"""Studies that compare many algorithms in one setting."""
