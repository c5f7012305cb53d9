"""What scikit-learn's names of options mean that a short name does not take: the run sets them.

Classes and objects keep them: `{type: sklearn.linear_model:Ridge, random_state: 3}` is Ridge(random_state=3).
"""

from __future__ import annotations

from trainyard.config.spellings import Refusal, Setting, Spellings, each, patience, threads

SPELLINGS = Spellings(
    settings={
        **each("random_state seed random_seed", Setting("experiment.seed")),
        **each("n_jobs nthread num_threads thread_count", Setting("training.threads", threads)),
        "max_iter": Setting("training.epochs"),
        "batch_size": Setting("training.batch_size"),
        "n_iter_no_change": Setting("training.early_stopping.patience", patience),
        "validation_fraction": Setting("data.split.val"),
    },
    unused={
        "verbose": "the run prints its progress; logging.every_n_steps says how often",
        "shuffle": "the rows of each epoch are shuffled, by experiment.seed",
        **each("copy copy_X copy_X_train", "the rows are never overwritten"),
    },
    refused={
        "warm_start": Refusal("write model.init_from: RUN to start from another model", (False,)),
        "early_stopping": Refusal("write training.early_stopping: {patience: 5}", (False, "auto")),
        "tol": Refusal("write training.early_stopping: {min_delta: ...}"),
        "scoring": Refusal("write training.early_stopping: {metric: val_...}"),
        "oob_score": Refusal(
            "write evaluation.metrics; data.split.val says how many rows they need", (False,)
        ),
    },
)
