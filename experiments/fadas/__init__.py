"""FADAS: federated adaptive asynchronous optimisation (Wang et al., 2024)."""
