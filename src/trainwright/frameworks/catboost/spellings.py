"""Meanings of CatBoost's other names of options, for configs and for its estimators."""

from __future__ import annotations

from typing import Any

from trainwright.config.spellings import Refusal, Setting, Spellings, device, each, spelled
from trainwright.frameworks.boosting.spellings import (
    CALLBACKS,
    COLUMNS,
    FILES,
    FROM_DATA,
    PATIENCE,
    PRINTING,
    SEED,
    THREADS,
)

_TEXT = "columns of text and of embeddings are not given to CatBoost as such; leave it out"
_BORDERS = "the borders of bins follow from the training rows; leave it out"
_METRICS = {  # CatBoost's, in lower case -> ours
    "auc": "roc_auc",
    "prauc": "average_precision",
    "logloss": "log_loss",
    "crossentropy": "log_loss",
    "multiclass": "log_loss",
    "accuracy": "accuracy",
    "balancedaccuracy": "balanced_accuracy",
    "brierscore": "brier",
    "mcc": "mcc",
    "kappa": "kappa",
    "totalf1": "f1_weighted",
    "totalf1:average=macro": "f1_macro",
    "totalf1:average=micro": "f1_micro",
    "totalf1:average=weighted": "f1_weighted",
    "precision": "precision",
    "recall": "recall",
    "f1": "f1",
    "rmse": "rmse",
    "mae": "mae",
    "mape": "mape",
    "r2": "r2",
    "medianabsoluteerror": "medae",
}


def _number_of_device(value: Any) -> Any:
    """Return `cuda:NUMBER` of one of CatBoost's devices; others are no valid value of the setting."""
    text = str(value[0]) if isinstance(value, list) and len(value) == 1 else str(value)
    return f"cuda:{text}"


SPELLINGS = Spellings(
    aliases=spelled(
        {
            "n_estimators": "iterations num_boost_round num_trees num_iterations",
            "learning_rate": "eta",
            "max_depth": "depth",
            "reg_lambda": "l2_leaf_reg l2_leaf_regularizer",
            "colsample_bylevel": "rsm",
            "max_bin": "border_count",
            "objective": "loss_function",
            "metric": "eval_metric",
            "custom_metric": "custom_loss",
            "min_child_samples": "min_data_in_leaf",
            "max_leaves": "num_leaves",
        }
    ),
    settings={
        **each("random_seed random_state", SEED),
        **each("thread_count n_jobs", THREADS),
        "task_type": Setting("training.device", device),
        "devices": Setting("training.device", _number_of_device),
        **each("od_wait early_stopping_rounds", PATIENCE),
        "use_best_model": Setting("checkpoint.save_top_k", lambda value: 1 if value else 0),
    },
    metrics=_METRICS,
    unused={
        **each("verbose silent logging_level verbose_eval metric_period", PRINTING),
        **each("train_dir allow_writing_files name metadata", FILES),
        **each("save_snapshot snapshot_file snapshot_interval", "runs save checkpoints; see checkpoint"),
        "classes_count": FROM_DATA,
        **each("gpu_ram_part pinned_memory_size", "it concerns the memory of a GPU, which CatBoost chooses"),
    },
    refused={
        "od_type": Refusal("write training.early_stopping, which counts evaluations as Iter does", ("Iter",)),
        "od_pval": Refusal("write training.early_stopping", (0, 0.0)),
        "best_model_min_trees": Refusal("the best model may have any number of trees; leave it out"),
        **each("text_features tokenizers dictionaries feature_calcers text_processing", Refusal(_TEXT)),
        "embedding_features": Refusal(_TEXT),
        **each("cat_features ignored_features", Refusal(COLUMNS)),
        **each("input_borders output_borders per_float_feature_quantization", Refusal(_BORDERS)),
        "feature_border_type": Refusal(_BORDERS, ("GreedyLogSum",)),
        "target_border": Refusal("prepare the target in the data: two classes"),
        "class_names": Refusal("the data name the classes; leave it out"),
        "eval_fraction": Refusal("write data.split.val, a share of the rows"),
        "sampling_unit": Refusal("rows are sampled, as ranking is not offered", ("Object",)),
        "callback": Refusal(CALLBACKS),
        **each("ctr_description device_config", Refusal("CatBoost no longer uses it; leave it out")),
        "allow_const_label": Refusal("a target of one value has nothing to learn", (False,)),
    },
    classes=True,
)
