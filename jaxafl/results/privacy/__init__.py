"""What a simulation may claim about the privacy of its clients."""
