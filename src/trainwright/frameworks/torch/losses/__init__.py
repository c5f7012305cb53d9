"""Losses and metrics of models in torch."""
