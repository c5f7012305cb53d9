"""The systems that serve models, and the folders that are laid out for them."""
