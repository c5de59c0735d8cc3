"""The engine: what is run (`problem`), where a run is (`state`), and what carries it on."""
