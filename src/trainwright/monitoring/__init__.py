"""The watch over models in use: sketches of served rows, drift from the training rows, alerts, quality."""
