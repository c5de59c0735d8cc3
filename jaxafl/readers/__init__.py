"""File formats and where files lie: what datasets, models and clocks read; this package imports none of them."""
