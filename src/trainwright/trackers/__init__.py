"""Trackers: outside places, such as MLflow, that the journal is forwarded to."""
