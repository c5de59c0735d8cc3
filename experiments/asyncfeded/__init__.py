"""AsyncFedED: asynchronous federated learning with weights by Euclidean distance (Wang et al., 2022)."""
