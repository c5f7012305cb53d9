"""Observers of a run: progress, histograms, use of resources."""
