"""Networks of published experiments."""
