"""Samplers propose the parameters of a study's trials: one file for each engine."""
