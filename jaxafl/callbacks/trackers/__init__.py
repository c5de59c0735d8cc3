"""Callbacks that write what happens: tables, curves for other programs, and the best model."""
