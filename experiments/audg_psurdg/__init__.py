"""The impact analysis of delays in asynchronous federated learning (Hao et al., 2025): AUDG and PSURDG."""
