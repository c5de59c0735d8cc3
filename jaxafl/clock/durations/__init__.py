"""Durations of local runs; `duration` explains how to write one."""
