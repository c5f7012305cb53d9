"""Meanings of options that several boosting libraries have; readable without any library."""

from __future__ import annotations

from trainwright.config.spellings import Setting, patience, threads

# The settings of ours that options of a library mean.
SEED = Setting("experiment.seed")
THREADS = Setting("training.threads", threads)
PATIENCE = Setting("training.early_stopping.patience", patience)
MIN_DELTA = Setting("training.early_stopping.min_delta", lambda value: value or None)
# Why an option is refused, or has no effect, and what to do instead.
PRINTING = "the run prints its progress; logging.every_n_steps says how often"
SEEDS = "all random numbers follow from experiment.seed"
FILES = "a run writes its own files, to --runs-dir"
FROM_DATA = "the data say so"
CALLBACKS = "give callbacks in Python: trainwright.train(callbacks=...)"
INIT = "write model.init_from: RUN to start from another model"
DISTRIBUTED = "the boosters train in one process, on all its threads; leave it out"
RANKING = "ranking is not offered; leave it out"
COLUMNS = "columns are chosen in the section data: features, exclude; categories by data.encode: category"
