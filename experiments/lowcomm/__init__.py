"""Low-communication training of a language model: DiLoCo's family, asynchronous and in regions."""
