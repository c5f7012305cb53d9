"""Data sets: one module per format, and what they share."""
