"""The state of a model and its optimizer: as tensors, in files, and restored."""
