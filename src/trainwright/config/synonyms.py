"""Words that people bring along from other tools: what they mean here, or what to write instead.

A key or a value in these tables is read as ours, with a note. What may mean several things, or nothing here,
has a hint instead, which the message for the unknown key shows (`hints.py`). Names are compared without case,
dashes and underscores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping


def fold(name: str) -> str:
    """Return a name without case, dashes, underscores and spaces."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def table(others: Mapping[str, str]) -> dict[str, str]:
    """Return folded name -> ours, of our name -> the others."""
    return {fold(other): ours for ours, names in others.items() for other in names.split()}


# Keys that mean the same at the top, in `training`, and in the section of the key that they mean.
KEYS = table(
    {
        "experiment.name": "experiment_name run_name project project_name",
        "experiment.seed": "random_state random_seed global_seed seed_everything",
        "training.learning_rate": "lr learn_rate learningrate initial_lr base_lr peak_lr max_lr",
        "training.weight_decay": "wd",
        "training.epochs": "num_epochs n_epochs max_epochs num_train_epochs nb_epochs nb_epoch",
        "training.max_steps": "num_steps n_steps train_steps num_train_steps total_steps num_training_steps "
        "max_iters",
        "training.batch_size": "bs batchsize train_batch_size global_batch_size total_batch_size",
        "training.per_device_batch_size": "per_device_train_batch_size per_gpu_train_batch_size",
        "training.microbatch_size": "micro_batch_size",
        "training.gradient_accumulation_steps": "gradient_accumulation_steps accumulate_grad_batches "
        "grad_accum_steps grad_accum accumulation_steps accum_steps gradient_accumulation",
        "training.max_grad_norm": "gradient_clip_val max_norm clip_norm grad_clip gradient_clip "
        "grad_clip_norm clip_grad_norm gradient_clipping gradient_clip_norm global_clipnorm clip_gradients",
        "training.max_grad_value": "clip_value clipvalue grad_clip_value clip_grad_value",
        "training.layer_decay": "layerwise_lr_decay layer_wise_lr_decay llrd lr_layer_decay",
        "training.ema": "ema_decay use_ema",
        "training.compile": "torch_compile compile_model",
        "training.activation_checkpointing": "gradient_checkpointing activation_checkpoint",
        "training.parameter_groups": "param_groups optimizer_grouped_parameters",
        "data.workers": "num_workers dataloader_num_workers n_workers",
        "data.prefetch": "prefetch_factor dataloader_prefetch_factor",
        "data.collate": "collate_fn",
        "data.weight": "sample_weight sample_weights weight_column weight_col",
        "training.drop_last": "dataloader_drop_last drop_remainder",
        "distributed.backend": "ddp_backend",
        "distributed.offload": "fsdp_offload_params offload_params cpu_offload",
        "distributed.min_num_params": "fsdp_min_num_params",
        "distributed.reshard_after_forward": "fsdp_reshard_after_forward",
        "distributed.schedule": "pipeline_schedule pipeline_parallel_schedule",
        "distributed.pipeline_split": "split_points pipeline_split_points pipeline_parallel_split_points",
        "training.optimizer": "optim optimiser",
        "training.scheduler": "lr_scheduler lr_scheduler_type lr_schedule learning_rate_schedule "
        "learning_rate_scheduler",
        "training.loss": "criterion loss_fn loss_func loss_function",
        "training.mixed_precision": "amp use_amp",
        "training.threads": "n_jobs nthread nthreads num_threads n_threads thread_count",
        "training.class_weights": "class_weight",
        "training.early_stopping": "early_stop earlystopping early_stopping_rounds",
        "training.early_stopping.patience": "patience early_stopping_patience",
        "training.max_minutes": "max_time_minutes time_limit_minutes",
        "training.scheduler.warmup_steps": "warmup_steps num_warmup_steps n_warmup_steps warmup_iters",
        "training.scheduler.warmup": "warmup",
        "training.scheduler.warmup_ratio": "warmup_ratio warmup_fraction warmup_proportion",
        "evaluation.metrics": "metrics metric_names eval_metric eval_metrics",
        "evaluation.positive": "pos_label positive_class positive_label",
        "evaluation.batch_size": "eval_batch_size val_batch_size per_device_eval_batch_size test_batch_size",
        "evaluation.every_n_steps": "eval_steps eval_every eval_every_n_steps eval_interval",
        "evaluation.every_n_epochs": "check_val_every_n_epoch eval_every_n_epochs eval_every_n_epoch "
        "validation_freq",
        "checkpoint.every_n_steps": "save_steps save_every save_every_n_steps save_interval checkpoint_every "
        "every_n_train_steps",
        "checkpoint.keep_last": "save_total_limit keep_checkpoints max_to_keep",
        "checkpoint.metric": "metric_for_best_model",
        "logging.every_n_steps": "logging_steps log_every log_every_n_steps log_interval",
        "distributed.nproc": "nproc_per_node num_processes world_size",
        "distributed.nnodes": "num_nodes num_machines",
        "data": "dataset datasets",
        "data.target": "target label label_column label_col label_names target_column target_col target_name "
        "y_column response outcome",
        "data.path": "data_path data_file file csv filename file_name file_path filepath csv_path csv_file",
        "data.train_path": "train_file train_csv train_data training_data train_data_path",
        "data.val_path": "val_file val_csv valid_path valid_file validation_path validation_file "
        "validation_data val_data eval_path dev_path",
        "data.test_path": "test_file test_csv test_data",
        "data.exclude": "drop drop_columns drop_cols columns_to_drop exclude_columns ignore ignore_columns "
        "ignored_columns",
        "data.features": "feature_columns feature_cols feature_names input_columns input_features",
        "data.split.test": "test_size test_split test_fraction test_ratio test_share",
        "data.split.val": "val_size val_split val_fraction val_ratio valid_size validation_size "
        "validation_split validation_fraction",
        "data.split.stratify": "stratify stratified",
        "data.split.group": "group_column group_col groups",
        "data.split.time": "time_column time_col date_column",
        "data.split.key": "hash_column hash_col hash_key split_key",
        "data.task": "task task_type problem_type",
        "model.type": "model_type model_name",
        "model.params": "model_params hyperparameters hyperparams model_kwargs",
        "model.framework": "framework backend_framework",
        "model.init_from": "init_from",
    }
)
# Keys that mean something only in one section.
INSIDE = {
    "training.optimizer": table(
        {
            "training.learning_rate": "lr learning_rate learn_rate",
            "training.weight_decay": "weight_decay wd",
            "training.optimizer.type": "name class",
        }
    ),
    "training.scheduler": table(
        {
            "training.scheduler.type": "name class",
            "training.scheduler.metric": "monitor",
            "training.scheduler.final_lr_ratio": "min_lr_ratio min_lr_rate",
            "training.scheduler.cycles": "num_cycles n_cycles",
            "training.scheduler.cycle_steps": "T_0 first_cycle_steps first_decay_steps",
            "training.scheduler.cycle_factor": "T_mult t_mul",
            "training.scheduler.gamma": "decay_rate",
            "training.learning_rate": "max_lr",
        }
    ),
    "training.early_stopping": table(
        {
            "training.early_stopping.metric": "monitor",
            "training.early_stopping.patience": "rounds stopping_rounds early_stopping_rounds",
            "training.early_stopping.min_delta": "delta threshold",
        }
    ),
    "checkpoint": table({"checkpoint.metric": "monitor"}),
    "training.optimizer.params": table(
        {"training.learning_rate": "lr learning_rate", "training.weight_decay": "weight_decay wd"}
    ),
    "training": table(
        {
            "experiment.seed": "seed",
            "data.workers": "num_workers dataloader_num_workers",
            "data.prefetch": "dataloader_prefetch_factor",
            "data.collate": "collate_fn data_collator",
            "training.label_smoothing": "label_smoothing_factor",
            "training.optimizer.betas": "betas",
            "training.optimizer.eps": "eps epsilon adam_epsilon",
            "training.optimizer.momentum": "momentum",
            "training.optimizer.nesterov": "nesterov",
            "model.init_from": "init_from",
        }
    ),
    # peft's LoraConfig
    "model.lora": table(
        {"model.lora.alpha": "lora_alpha", "model.lora.dropout": "lora_dropout", "model.lora.r": "rank"}
    ),
    "model.init_from": table({"model.init_from.source": "path run file folder"}),
    "data": table(
        {
            "data.target": "y",
            "data.split.seed": "random_state seed",
            "data.split.group": "group",
            "data.on_corrupt": "on_error on_bad_sample",
            "data.sampling": "sampler sampling_strategy weighted_sampler weighted_sampling",
        }
    ),
    "data.sampling": table({"data.sampling.weight": "weights column by type"}),
    "data.split": table(
        {
            "data.split.seed": "random_state random_seed salt",
            "data.split.by": "method strategy mode",
            "data.split.key": "id_column id_col key_column key_columns keys hash_on",
            "data.split.val": "val_size",
            "data.split.test": "test_size",
        }
    ),
    "tuning": table(
        {
            "tuning.trials": "n_trials num_trials max_trials num_samples n_iter run_cap",
            "tuning.parallel": "n_jobs jobs n_workers num_workers workers concurrency max_concurrent_trials",
            "tuning.space": "search_space param_space param_distributions param_grid parameters params",
            "tuning.metric": "scoring objective monitor",
            "tuning.mode": "direction directions goal",
            "tuning.sampler": "method search_alg algorithm",
            "tuning.pruner": "early_terminate scheduler",
            "experiment.name": "study_name",
            "experiment.seed": "random_state random_seed seed",
            "tuning.folds": "cv n_folds n_splits k_folds kfold num_folds",
        }
    ),
    "tuning.pruner": table({"tuning.pruner.reduction_factor": "eta"}),
    "": table({"experiment.seed": "seed", "experiment.name": "name"}),
}
# Sections by other names; what they hold is then read as that of ours.
SECTIONS = {
    "training": ("train", "trainer", "training_args", "training_arguments"),
    "data": ("dataset", "datasets"),
    "evaluation": ("eval", "validation"),
    "checkpoint": ("checkpoints",),
    "tuning": ("tune", "sweep", "search", "hpo", "hyperparameter_search"),
    "tracking": ("tracker", "trackers", "logger", "loggers"),
}

OPTIMIZERS = table(
    {
        "adamw": "adamw adam_w adamw_torch adamw_hf",
        "adam": "adam",
        "sgd": "sgd",
        "rmsprop": "rmsprop rms_prop",
        "adagrad": "adagrad ada_grad",
        "nadam": "nadam",
        "radam": "radam",
        "adamax": "adamax",
        "lion": "lion lion_32bit",
        "adafactor": "adafactor",
        "muon": "muon",
    }
)
SCHEDULERS = table(
    {
        "constant": "constant none constantlr constant_with_warmup constant_schedule_with_warmup fixed",
        "linear": "linear linearlr linear_decay linear_with_warmup linear_schedule_with_warmup "
        "linear_warmup_decay",
        "cosine": "cosine cosine_with_warmup cosine_schedule_with_warmup cosine_annealing cosineannealinglr "
        "cosine_decay cosinedecay linear_warmup_cosine_annealing warmup_cosine",
        "cosine_restarts": "cosine_restarts cosine_with_restarts cosine_with_hard_restarts sgdr "
        "cosine_with_hard_restarts_schedule_with_warmup cosine_annealing_warm_restarts "
        "cosineannealingwarmrestarts cosine_decay_restarts",
        "one_cycle": "one_cycle one_cycle_lr",
        "step": "step step_decay",
        "multistep": "multistep",
        "exponential": "exponential exponential_decay",
        "polynomial": "polynomial polynomial_lr polynomial_decay poly polynomial_decay_schedule_with_warmup "
        "polynomial_with_warmup",
        "wsd": "wsd warmup_stable_decay wsd_schedule get_wsd_schedule trapezoidal",
        "plateau": "plateau reduce_on_plateau reduce_lr_on_plateau",
    }
)
LOSSES = table(
    {
        "cross_entropy": "ce crossentropy cross_entropy_loss categorical_crossentropy "
        "sparse_categorical_crossentropy softmax_cross_entropy",
        "focal": "focal_loss focalloss sigmoid_focal_loss",
        "dice": "dice_loss diceloss soft_dice",
        "binary_cross_entropy": "bce bce_with_logits bcewithlogitsloss bce_loss binary_crossentropy",
        "mse": "mse mse_loss mean_squared_error l2 l2_loss squared_error",
        "mae": "mae l1 l1_loss mean_absolute_error absolute_error",
        "huber": "huber huber_loss",
    }
)
# Schedules of a pipeline, as torch and torchtitan call them.
SCHEDULES = table(
    {
        "1f1b": "1f1b schedule_1f1b",
        "gpipe": "gpipe schedule_gpipe",
        "interleaved": "interleaved interleaved_1f1b schedule_interleaved_1f1b",
        "zero_bubble": "zero_bubble zbh1 zb1p interleaved_zero_bubble schedule_interleaved_zero_bubble",
    }
)
PRUNERS = table(
    {
        "none": "none nop_pruner fifo fifo_scheduler",
        "median": "median median_pruner median_stopping median_stopping_rule",
        "percentile": "percentile percentile_pruner",
        "asha": "asha asha_scheduler async_hyperband async_hyperband_scheduler successive_halving_pruner",
        "halving": "halving successive_halving halving_grid_search_cv halving_random_search_cv",
        "hyperband": "hyperband hyperband_pruner hyperband_scheduler",
        "patient": "patient patient_pruner",
    }
)
COLUMN_TYPES = table(
    {
        "number": "numeric numerical float float64 int int64 integer",
        "category": "categorical cat nominal",
        "time": "datetime timestamp datetime64",
        "boolean": "bool",
        "text": "free_text",
        "ignore": "drop",
    }
)
TASKS = {
    fold(word): task
    for task, words in (
        (
            "classification",
            "binary multiclass multi_class binary_classification multiclass_classification classifier",
        ),
        ("regression", "regressor"),
        ("multilabel", "multi_label multilabel_classification multi_label_classification"),
        ("segmentation", "semantic_segmentation"),
        ("language_modeling", "lm causal_lm causal_language_modeling"),
        ("token_classification", "ner token_tagging sequence_tagging"),
    )
    for word in words.split()
}
ON_CORRUPT = table({"error": "error stop raise fail", "skip": "skip ignore"})
PRECISIONS = table(
    {
        "fp32": "32 32-true float32 fp32 full single",
        "tf32": "tf32 tfloat32 tensorfloat32",
        "fp16": "16 16-mixed fp16-mixed float16 fp16 half",
        "bf16": "bf16-mixed bfloat16 bf16",
        "mixed": "mixed auto_mixed amp",
    }
)
VALUES = {
    "training.optimizer": OPTIMIZERS,
    "training.scheduler": SCHEDULERS,
    "training.loss": LOSSES,
    "training.precision": PRECISIONS,
    "data.on_corrupt": ON_CORRUPT,
    "data.task": TASKS,
    "data.split.by": table({"hash": "hashed hashing sha256 md5 deterministic", "random": "shuffle shuffled"}),
    "tuning.pruner": PRUNERS,
    "distributed.schedule": SCHEDULES,
}
DEVICES = {"gpu": "cuda", "cuda": "cuda", "cpu": "cpu", "auto": "auto"}
# Import paths of which only the last word counts: `torch.optim.AdamW`, `nn.CrossEntropyLoss`.
LIBRARY = re.compile(r"(torch|keras|tf|tensorflow|nn|optim|optimizers|losses|lr_scheduler)(\.\w+)*\.(?=\w+$)")

# What to write instead of values that have no counterpart, or another meaning.
VALUE_HINTS = {
    "training.scheduler": {
        "steplr": "write {type: step, step_size: STEPS, gamma: 0.1}; step_size counts steps, not epochs",
        "multisteplr": "write {type: multistep, milestones: [STEPS, ...], gamma: 0.1}; they count "
        "steps, not epochs",
        **dict.fromkeys(
            ("linearwarmup", "warmuplinear", "warmup"),
            "write {type: linear, warmup_steps: STEPS}, or constant, which stays at its height",
        ),
        "exponentiallr": "write {type: exponential, gamma: 0.9, decay_steps: STEPS PER EPOCH}",
    },
    "data.split.by": {
        "time": "write data.split.time: COLUMN",
        **dict.fromkeys(("group", "groups"), "write data.split.group: COLUMN"),
        **dict.fromkeys(
            ("stratify", "stratified", "class"),
            "splits are stratified by class unless data.split.stratify says false",
        ),
    },
    "training.device": {
        "mps": "Trainwright trains on CPU and CUDA: write cpu",
        "tpu": "Trainwright trains on CPU and CUDA: write cpu",
        "rocm": "PyTorch calls AMD GPUs cuda: write cuda",
    },
    "training.precision": {
        "64": "weights are float32: write fp32",
        "64true": "weights are float32: write fp32",
        "float64": "weights are float32: write fp32",
        "16true": "weights stay float32: write fp16",
        "bf16true": "weights stay float32: write bf16",
        "int8": "weights stay float32: write bf16",
    },
}
_BINARY = "auto takes the binary cross entropy where it applies: for two classes, and for labels"
# Losses as other libraries call them, in lower case and without separators, and what to write instead.
LOSS_HINTS = {
    "focal": "torch has it as 'focal'; elsewhere write a function of your own, loss: mine:focal",
    "dice": "torch has it as 'dice', for multilabel",
    **dict.fromkeys(("bce", "bcewithlogits", "binarycrossentropy"), _BINARY),
    **dict.fromkeys(
        ("ce", "crossentropy", "nll", "log", "categoricalcrossentropy", "sparsecategoricalcrossentropy"),
        "did you mean 'cross_entropy'?",
    ),
    **dict.fromkeys(("l2", "mse", "meansquarederror", "squarederror"), "did you mean 'mse'?"),
    **dict.fromkeys(("mae", "meanabsoluteerror", "absoluteerror"), "did you mean 'mae'?"),
    "rmse": "mse has the same minimum; list rmse in evaluation.metrics",
    "labelsmoothing": "write loss: cross_entropy, and next to it label_smoothing: 0.1",
}
# Modules under the names that they are usually imported as: `xgb.XGBClassifier`, `svm.SVC`.
IMPORTED_AS = (
    *("xgb", "lgb", "lgbm", "cb", "ensemble", "linear_model", "svm", "tree", "neighbors", "naive_bayes"),
    *("neural_network", "gaussian_process", "discriminant_analysis", "kernel_ridge", "dummy"),
)
# What to do with files that are not read, by their endings.
_CONVERT = "write it as CSV or Parquet first: pandas.{}(FILE).to_parquet(...)"
_ARRAYS = "save the arrays{} in one file first: numpy.savez('data.npz', X=..., y=...)"
OTHER_FILES = {
    ".xls": _CONVERT.format("read_excel"),
    ".json": _CONVERT.format("read_json"),
    ".feather": _CONVERT.format("read_feather"),
    ".arrow": _CONVERT.format("read_feather"),
    ".pkl": _CONVERT.format("read_pickle"),
    ".pickle": _CONVERT.format("read_pickle"),
    ".h5": _CONVERT.format("read_hdf"),
    ".bin": "of tokens (nanoGPT's train.bin), give data: {type: text, train_path: train.bin, val_path: "
    "val.bin, dtype: uint16}; of text, give a .txt file",
    ".npy": _ARRAYS.format("") + "; or give the folder of X.npy and y.npy, with data.type: npy",
    ".mat": _ARRAYS.format(" of scipy.io.loadmat(FILE)"),
    ".joblib": _ARRAYS.format(" of joblib.load(FILE)"),
    ".pt": _ARRAYS.format(" of torch.load(FILE)"),
    ".pth": _ARRAYS.format(" of torch.load(FILE)"),
}
