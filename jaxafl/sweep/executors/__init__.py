"""Sweeps in other processes: the tasks, and executors for them."""
