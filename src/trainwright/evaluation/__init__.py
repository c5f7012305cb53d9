"""Metrics, tables, significance tests and explanations, all computed from predictions."""
