"""Sweeps: one simulation under many seeds and options, in as few programs as possible."""

from jaxafl.sweep.run import sweep

__all__ = ["sweep"]
