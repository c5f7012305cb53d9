"""Callbacks that record the trainings of other trainers: manifest, journal, checkpoints, report.

`transformers.py` and `lightning.py` hold what is specific to one trainer; the rest is shared:

    trainer_run.py  finds or creates the run, and keeps failures of the recording from ending the training
    attempt.py      one process life: journal, trackers, checkpoints, result
    checkpoints.py  hashes of the checkpoints that the trainer writes, which stay where it puts them
    description.py  a trainer's arguments as config and manifest
    foreign.py      refuses such runs in the commands that work on our own runs only
    fingerprints.py identifies the data and the weights
"""
