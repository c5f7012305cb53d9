"""Training in several processes: how they start, find each other, sum gradients and share a checkpoint.

A strategy says which parts of the state each process holds and saves; data parallel training is the first.
"""
