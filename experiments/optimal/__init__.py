"""Times that theory predicts, beside simulated ones."""
