"""Training in several processes: how they start, find each other, sum gradients and share a checkpoint.

Each process holds the whole model (data parallelism). Sharded models (FSDP, tensor and pipeline parallelism)
would come here, too, with their own gradient exchange and a learner whose snapshots hold parts of tensors.
"""
