"""Partitions of pooled samples over clients."""
