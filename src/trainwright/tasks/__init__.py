"""What a model can be asked: one file per task."""
