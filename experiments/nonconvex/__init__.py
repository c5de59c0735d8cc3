"""AFL: asynchronous federated learning with non-convex client objective functions (Forootani and Iervolino, 2025)."""
