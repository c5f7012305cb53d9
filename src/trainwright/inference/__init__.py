"""Predict with the model of a run: rows, files and arrays in; predictions and exports out."""
