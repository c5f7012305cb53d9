"""Callbacks that give other trainers' trainings our record: run directory, manifest, journal, verified checkpoints, report.

`transformers.py` and `lightning.py` hold what each trainer says of itself; the rest is shared:

    guest.py        which run it is, and that no failure of the record ends the training
    attempt.py      one process life: journal, trackers, checkpoints, result
    checkpoints.py  what is known of the checkpoints that the trainer writes, which stay where it puts them
    description.py  a trainer's arguments as config and manifest
    owner.py        what our own commands say of such a run
    fingerprints.py what identifies its data and weights
"""
