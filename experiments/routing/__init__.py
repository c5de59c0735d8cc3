"""Generalized AsyncSGD (Leconte et al., 2024): tasks that queue at the clients they are sent to."""
