"""Meanings of XGBoost's other names of options, for configs and for its estimators."""

from __future__ import annotations

from trainwright.config.spellings import Refusal, Setting, Spellings, device, each, spelled
from trainwright.frameworks.boosting.spellings import (
    CALLBACKS,
    COLUMNS,
    FROM_DATA,
    INIT,
    PATIENCE,
    PRINTING,
    RANKING,
    SEED,
    THREADS,
)
from trainwright.frameworks.xgboost.params import METRICS

_SURVIVAL = "survival models are not offered; leave it out"
_LINEAR = "gblinear is not offered: for a linear model use logistic_regression or linear_regression"
_UPDATER = "how trees are grown follows from tree_method; set that"

SPELLINGS = Spellings(
    aliases=spelled(
        {
            "n_estimators": "num_boost_round num_round num_rounds nrounds num_trees "
            "num_iterations iterations",
            "learning_rate": "eta",
            "gamma": "min_split_loss",
            "reg_alpha": "alpha lambda_l1",
            "reg_lambda": "lambda lambda_l2 lambda_",
            "metric": "eval_metric",
        }
    ),
    values={
        "objective": {
            "reg:linear": ("objective", "reg:squarederror"),
            "multi:softmax": ("objective", "multi:softprob"),
        },
        "tree_method": {"gpu_hist": ("training.device", "cuda")},
    },
    settings={
        **each("seed random_state", SEED),
        **each("nthread n_jobs", THREADS),
        "device": Setting("training.device", device),
        "early_stopping_rounds": PATIENCE,
    },
    metrics={
        "auc": "roc_auc",
        "aucpr": "average_precision",
        "logloss": "log_loss",
        "mlogloss": "log_loss",
        "error": "accuracy",
        "merror": "accuracy",
        "rmse": "rmse",
        "mae": "mae",
        "mape": "mape",
    },
    library_metrics=METRICS,
    unused={
        **each("verbosity verbose verbose_eval silent", PRINTING),
        **each("validate_parameters", "all options are checked"),
        **each("disable_default_eval_metric", "evaluation.metrics says what is measured"),
        **each("use_label_encoder predictor n_gpus single_precision_histogram", "XGBoost no longer has it"),
        **each("num_class enable_categorical", FROM_DATA),
        "seed_per_iteration": "each round has a seed of its own in any case, so that a run can be resumed",
        "importance_type": "trainwright explain measures the importance of features",
    },
    refused={
        "missing": Refusal("missing values are NaN in all frameworks; mark them so in the data"),
        "callbacks": Refusal(CALLBACKS),
        "xgb_model": Refusal(INIT),
        "feature_types": Refusal(COLUMNS),
        "feature_weights": Refusal("features are drawn with equal weights; leave columns out: data.exclude"),
        "updater": Refusal(_UPDATER),
        "process_type": Refusal(f"trees are added; to start from others, {INIT}", ("default",)),
        "refresh_leaf": Refusal(
            "leaves are refreshed only by process_type: update, which is not offered", (1,)
        ),
        **each("feature_selector top_k", Refusal(_LINEAR)),
        **each("aft_loss_distribution aft_loss_distribution_scale", Refusal(_SURVIVAL)),
        **each(
            "lambdarank_pair_method lambdarank_num_pair_per_sample lambdarank_normalization "
            "lambdarank_score_normalization lambdarank_unbiased lambdarank_bias_norm ndcg_exp_gain",
            Refusal(RANKING),
        ),
        "extmem_single_page": Refusal("write external_memory: true for data larger than memory", (False,)),
        "maximize": Refusal(
            "early stopping knows the direction of each metric; training.early_stopping.mode"
        ),
        **each("obj custom_metric feval", Refusal("write objective or metric: package.module:function")),
        **each("dtrain evals evals_result", Refusal("the section data names the rows")),
    },
    classes=True,
)
