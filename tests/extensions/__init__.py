"""Parts of a user's own, each in a file of its own with the lines that it needs."""
