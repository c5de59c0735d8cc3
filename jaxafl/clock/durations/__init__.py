"""Durations of local runs; `duration` says how to write one of one's own."""
