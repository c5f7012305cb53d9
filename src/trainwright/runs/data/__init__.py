"""The data of a run, from what identifies them to what its learner gets."""
