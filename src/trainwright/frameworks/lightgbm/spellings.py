"""Meanings of LightGBM's other names of options, for configs and for its estimators."""

from __future__ import annotations

from trainwright.config.spellings import Refusal, Spellings, each, spelled
from trainwright.frameworks.boosting.spellings import (
    CALLBACKS,
    COLUMNS,
    DISTRIBUTED,
    FILES,
    FROM_DATA,
    INIT,
    MIN_DELTA,
    PATIENCE,
    PRINTING,
    RANKING,
    SEED,
    SEEDS,
    THREADS,
)

_PREDICTION = "it concerns LightGBM's own prediction; use trainwright predict"
_DATA_FILES = "the section data names the files, and how they are read"
_BOOSTING = {
    "goss": ("data_sample_strategy", "goss"),
    "gbrt": ("boosting", "gbdt"),
    "random_forest": ("boosting", "rf"),
}
_OBJECTIVES = {
    "regression": "regression_l2 l2 mean_squared_error mse l2_root root_mean_squared_error rmse",
    "regression_l1": "l1 mean_absolute_error mae",
    "mape": "mean_absolute_percentage_error",
    "multiclass": "softmax",
    "multiclassova": "multiclass_ova ova ovr",
}
_METRICS = {  # ours -> LightGBM's
    "roc_auc": "auc",
    "average_precision": "average_precision",
    "log_loss": "binary_logloss binary multi_logloss multiclass softmax multiclassova multiclass_ova ova ovr",
    "accuracy": "binary_error multi_error",
    "mse": "l2 mean_squared_error mse regression_l2 regression",
    "rmse": "rmse root_mean_squared_error l2_root",
    "mae": "l1 mean_absolute_error mae regression_l1",
    "mape": "mape mean_absolute_percentage_error",
}
_LAYOUT = "the layout of histograms is chosen once in a run, and kept"
_QUANTIZED = "quantized gradients are rounded by random numbers that a resumed run could not draw again"

SPELLINGS = Spellings(
    aliases=spelled(
        {
            "n_estimators": "num_iterations n_iter nrounds max_iter num_tree num_round num_trees num_rounds "
            "num_iteration num_boost_round iterations",
            "learning_rate": "eta shrinkage_rate",
            "objective": "app loss application objective_type",
            "metric": "metrics metric_types eval_metric",
            "boosting": "boost boosting_type",
            "num_leaves": "max_leaf num_leaf max_leaves max_leaf_nodes",
            "min_child_samples": "min_data_in_leaf min_data min_samples_leaf min_data_per_leaf",
            "min_child_weight": "min_sum_hessian_in_leaf min_hessian min_sum_hessian "
            "min_sum_hessian_per_leaf",
            "min_split_gain": "min_gain_to_split",
            "reg_alpha": "lambda_l1 l1_regularization",
            "reg_lambda": "lambda_l2 lambda l2_regularization",
            "max_delta_step": "max_leaf_output max_tree_output",
            "subsample": "bagging_fraction bagging sub_row",
            "subsample_freq": "bagging_freq",
            "colsample_bytree": "feature_fraction sub_feature",
            "colsample_bynode": "feature_fraction_bynode sub_feature_bynode",
            "extra_trees": "extra_tree",
            "max_bin": "max_bins",
            "subsample_for_bin": "bin_construct_sample_cnt",
            "is_unbalance": "unbalance unbalanced_sets",
            "monotone_constraints": "mc monotonic_cst monotone_constraint",
            "monotone_constraints_method": "mc_method monotone_constraining_method",
            "monotone_penalty": "mc_penalty ms_penalty monotone_splits_penalty",
            "feature_contri": "fc fp feature_contrib feature_penalty",
            "drop_rate": "rate_drop",
            "device_type": "device",
            "is_enable_sparse": "sparse is_sparse enable_sparse",
            "enable_bundle": "bundle is_enable_bundle",
            "histogram_pool_size": "hist_pool_size",
        }
    ),
    values={
        "boosting": _BOOSTING,
        "objective": {
            alias: ("objective", name) for name, aliases in _OBJECTIVES.items() for alias in aliases.split()
        },
    },
    settings={
        **each("seed random_seed random_state", SEED),
        **each("num_threads n_jobs nthread nthreads num_thread", THREADS),
        **each(
            "early_stopping_round early_stopping n_iter_no_change early_stopping_rounds stopping_rounds",
            PATIENCE,
        ),
        "early_stopping_min_delta": MIN_DELTA,
    },
    metrics={
        **{name: ours for ours, names in _METRICS.items() for name in names.split()},
        **each("none na null custom", None),
        "": None,
    },
    unused={
        **each("verbosity verbose verbose_eval metric_freq output_freq silent", PRINTING),
        **each(
            "bagging_seed bagging_fraction_seed feature_fraction_seed extra_seed drop_seed data_random_seed "
            "data_seed objective_seed",
            SEEDS,
        ),
        **each("num_class num_classes", FROM_DATA),
        **each(
            "is_provide_training_metric train_metric training_metric is_training_metric",
            "train_loss is always measured",
        ),
        "first_metric_only": "training.early_stopping.metric says which metric decides",
        "deterministic": "runs are deterministic in any case",
        **each("force_row_wise force_col_wise", _LAYOUT),
        **each(
            "saved_feature_importance_type importance_type", "trainwright explain measures the importance"
        ),
    },
    refused={
        **each("snapshot_freq save_period", Refusal("write checkpoint.every_n_steps", (-1, 0))),
        **each(
            "task task_type", Refusal("trainwright has commands: train, predict ...", ("train", "training"))
        ),
        **each("tree_learner tree tree_type tree_learner_type", Refusal(DISTRIBUTED, ("serial",))),
        **each("num_machines num_machine", Refusal(DISTRIBUTED, (1,))),
        **each(
            "local_listen_port port local_port time_out machines nodes workers machine_list_filename mlist "
            "machine_list machine_list_file pre_partition is_pre_partition top_k topk",
            Refusal(DISTRIBUTED),
        ),
        **each(
            "data train train_data data_filename train_data_file valid test test_data valid_data "
            "test_data_file valid_data_file valid_filenames header has_header label_column label two_round "
            "two_round_loading use_two_round_loading precise_float_parser parser_config_file save_binary "
            "is_save_binary is_save_binary_file",
            Refusal(_DATA_FILES),
        ),
        **each("weight_column weight", Refusal("rows are weighted in the section data")),
        **each(
            "ignore_column blacklist ignore_feature categorical_feature cat_column cat_feature "
            "categorical_column categorical_features cat_features",
            Refusal(COLUMNS),
        ),
        **each("group_column group query group_id query_id query_column", Refusal(RANKING)),
        **each(
            "lambdarank_truncation_level lambdarank_norm lambdarank_position_bias_regularization label_gain "
            "eval_at map_at ndcg_at map_eval_at ndcg_eval_at bagging_by_query",
            Refusal(RANKING),
        ),
        **each("auc_mu_weights multi_error_top_k", Refusal("choose metrics in evaluation.metrics")),
        **each("input_model model_in model_input init_model", Refusal(INIT)),
        **each("output_model model_out model_output", Refusal(FILES)),
        **each(
            "config config_file", Refusal("write the options into this config; extends names another one")
        ),
        **each(
            "output_result name_pred pred_name predict_name predict_result prediction_name prediction_result "
            "start_iteration_predict num_iteration_predict predict_raw_score raw_score predict_rawscore "
            "is_predict_raw_score predict_leaf_index leaf_index is_predict_leaf_index predict_contrib "
            "contrib is_predict_contrib predict_disable_shape_check pred_early_stop pred_early_stop_freq "
            "pred_early_stop_margin convert_model convert_model_file convert_model_language",
            Refusal(_PREDICTION),
        ),
        **each("refit_decay_rate", Refusal("models are trained, not refitted; leave it out")),
        **each(
            "forcedsplits_filename fs forced_splits forced_splits_file forced_splits_filename "
            "forcedbins_filename",
            Refusal("a file that is not hashed with the run's inputs cannot be used; leave it out", ("",)),
        ),
        **each("gpu_device_id gpu_platform_id gpu_device_id_list", Refusal("write training.device: cuda:0")),
        "num_gpu": Refusal("one GPU trains a run; leave it out", (1,)),
        **each(
            "pos_bagging_fraction pos_sub_row pos_subsample pos_bagging neg_bagging_fraction neg_sub_row "
            "neg_subsample neg_bagging",
            Refusal(
                "a resumed run could not draw the same rows again; write subsample, and is_unbalance",
                (1, 1.0),
            ),
        ),
        **each("linear_tree linear_trees", Refusal("trees with linear leaves are not offered", (False,))),
        "linear_lambda": Refusal("trees with linear leaves are not offered", (0, 0.0)),
        "use_quantized_grad": Refusal(_QUANTIZED, (False,)),
        **each("num_grad_quant_bins quant_train_renew_leaf stochastic_rounding", Refusal(_QUANTIZED)),
        **each(
            "cegb_penalty_feature_lazy cegb_penalty_feature_coupled",
            Refusal("it counts the features of earlier trees, which a resumed run would not know"),
        ),
        "sigmoid": Refusal("losses and predictions are read with sigmoid: 1; leave it out", (1, 1.0)),
        "reg_sqrt": Refusal("transform the target in the data instead", (False,)),
        **each("callbacks fobj feval", Refusal(CALLBACKS)),
    },
    classes=True,
)
