"""Training in many processes: who they are, how they start, how their gradients add up.

Data parallelism is here: each process holds the whole model. What shards the model (FSDP, tensor and pipeline
parallelism) belongs here, too: as other ways to add up gradients (`reducer.py`), and as a learner whose
snapshots hold a part of each tensor.
"""
