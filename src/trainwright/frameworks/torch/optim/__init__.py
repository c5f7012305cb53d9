"""The optimizers of models in torch, and what they update."""
