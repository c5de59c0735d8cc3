"""DeFedAvg: linear speed-up in asynchronous federated learning (Wang et al., 2024)."""
