"""What several framework adapters share: definitions, estimators, options of optimizers, and state in NumPy arrays."""
