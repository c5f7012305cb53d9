"""Code that the adapters of stores share."""
