"""jaxafl: a JAX-accelerated, vectorised simulator of asynchronous federated learning."""
