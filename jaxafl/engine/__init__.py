"""The engine: problems, plans, the state of runs, and the compiled programs that advance it."""
