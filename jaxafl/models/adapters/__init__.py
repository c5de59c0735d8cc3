"""Models from modules of other libraries."""
