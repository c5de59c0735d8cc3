"""The tables and figures of five papers, a short file each: `python -m experiments --list`."""
