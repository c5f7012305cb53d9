"""Meanings of scikit-learn's options that a short name does not take: the run sets them.

Classes and objects keep them: `{type: sklearn.linear_model:Ridge, random_state: 3}` is Ridge(random_state=3).
"""

from __future__ import annotations

from trainwright.config.spellings import Refusal, Setting, Spellings, each, patience, threads

_ESTIMATOR = "an estimator of estimators is given in Python: trainwright.train(config, model=...)"

SPELLINGS = Spellings(
    values={  # as scikit-learn called them before
        "loss": {
            **each("deviance log", ("loss", "log_loss")),
            **each("ls squared_loss least_squares", ("loss", "squared_error")),
            **each("lad least_absolute_deviation", ("loss", "absolute_error")),
        },
        "criterion": {"mse": ("criterion", "squared_error"), "mae": ("criterion", "absolute_error")},
    },
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
        **each("multi_class presort iid", "scikit-learn has no such option any more"),
    },
    refused={
        "penalty": Refusal(
            "write l1_ratio: 1.0 for l1, a number below for elasticnet; for no penalty, C: 1.0e+12",
            ("l2", "deprecated"),
            means_null=True,
        ),
        "probability": Refusal(
            "scikit-learn has it no more: leave it out, as scores are turned into shares, or write "
            "model: calibrated_classifier_cv",
            (False,),
        ),
        "algorithm": Refusal("scikit-learn has only SAMME here: leave it out", ("SAMME", "deprecated")),
        "normalize": Refusal("write data.standardize: true", (False,)),
        **each("base_estimator estimator estimators final_estimator", Refusal(_ESTIMATOR)),
        "warm_start": Refusal("write model.init_from: RUN to start from another model", (False,)),
        "early_stopping": Refusal("write training.early_stopping: {patience: 5}", (False, "auto")),
        "tol": Refusal("write training.early_stopping: {min_delta: ...}"),
        "scoring": Refusal("write training.early_stopping: {metric: val_...}"),
        "oob_score": Refusal(
            "write evaluation.metrics; data.split.val says how many rows they need", (False,)
        ),
    },
)
