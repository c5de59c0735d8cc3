"""Models from modules of other libraries and from files, and models with LoRA."""
