"""What a schedule costs its clients: privacy, energy and carbon."""
