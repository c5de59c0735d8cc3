"""Partitions of pooled samples over clients, which `jaxafl.data` lists."""
