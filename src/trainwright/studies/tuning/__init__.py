"""Hyperparameter tuning: a study whose trials are a function of its config, however often it is killed."""
