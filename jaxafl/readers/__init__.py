"""File formats and paths of the files that datasets, models and clocks read; this package imports none of them."""
