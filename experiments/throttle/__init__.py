"""THROTTLE (Otsuka et al., 2026): rates that fall with a client's further updates in a round."""
