"""Studies of what happens between clients and server: bytes, privacy and attacks."""
