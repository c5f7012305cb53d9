"""Predictions in, metrics and tables out: the only place that computes metrics."""
