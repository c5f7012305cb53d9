"""Pipeline parallel training: the blocks of a model are divided into stages, which processes own.

The bits depend on the number of stages alone. A run on fewer processes, down to one, computes each stage by
itself, too: its random numbers, its gradients, and their sums over microbatches.
"""
