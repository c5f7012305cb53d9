"""The run directory, read back by people: one HTML page, and a short table."""
