"""Models of the transformers library, with their weights, and with the adapters of peft."""
