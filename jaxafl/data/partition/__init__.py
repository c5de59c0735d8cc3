"""Partitions of pooled samples over clients; `jaxafl.data` lists them."""
