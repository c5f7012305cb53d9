"""The tasks, which say what a model is asked: one file per task."""
