"""What the adapters of stores share."""
