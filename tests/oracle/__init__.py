"""Slow, independent NumPy references: the executable form of the published algorithms and of the simulator's clocks."""
