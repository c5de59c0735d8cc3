"""Protocols other than `free_running` and `synchronous`, one file each; and `trace`, which replays any of them."""
