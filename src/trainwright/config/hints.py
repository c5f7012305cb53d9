"""Hints for keys and options of other tools that have no counterpart, or more than one.

A key is looked up by its dotted name first (`tuning.timeout`), then by its last word. Names are compared as
in `synonyms.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trainwright.config.synonyms import fold

# The option of the model, or of the data, that a name means in the config at hand, as a dotted key.
Options = Callable[[str, str], str | None]

_OPTIMIZER = "write options next to the name: training.optimizer: {type: adamw, betas: [0.9, 0.95]}"
_SCHEDULER = "write options next to the name: training.scheduler: {type: cosine, warmup_steps: 100}"
_WARMUP = "write training.scheduler.warmup_steps: EPOCHS x (training rows / batch_size)"
_FOLDS = "write trainwright cross-validate CONFIG --folds N"
_RUN_MINUTES = "write training.max_minutes: MINUTES"
_STUDY_MINUTES = "write tuning.max_minutes: MINUTES"
_QUANTIZED = (
    "models are not quantized, weights are float32; the nearest is training.precision: bf16, and model.lora: "
    "{r: 8, alpha: 16}, which trains few of them"
)
_LORA = "write model.lora: {r: 8, alpha: 16}; models of transformers have it (docs/huggingface.md)"


def _hints(groups: Mapping[str, str]) -> dict[str, str]:
    """Return folded name -> hint, of names that are divided by blanks -> hint."""
    return {fold(name): hint for names, hint in groups.items() for name in names.split()}


_KEYS = _hints(
    {
        # where files are
        "dir dirpath output_dir save_dir log_dir checkpoint_dir out_dir default_root_dir work_dir runs_dir "
        "logging_dir": (
            "where runs are kept is not in the config: give --runs-dir DIR, or set TRAINWRIGHT_RUNS"
        ),
        "overwrite_output_dir overwrite exist_ok": "leave it out: each run has a folder of its own",
        "sep": "write data.delimiter",
        # optimizer and schedule
        "adam_beta1 adam_beta2 beta1 beta2 optim_args optimizer_kwargs optimizer_params": _OPTIMIZER,
        "training.optimizer.momentum training.optimizer.nesterov": "momentum is an option of sgd: "
        "training.optimizer: {type: sgd, momentum: 0.9}",
        "reduce_lr_on_plateau": "write training.scheduler: {type: plateau, factor: 0.1, patience: 10}",
        "lr_scheduler_kwargs scheduler_kwargs scheduler_params step_size gamma milestones": _SCHEDULER,
        "T_max lr_decay_iters lr_decay_steps": "leave it out: a decay always ends with the training",
        "eta_min min_lr end_lr final_lr": "give it as a share of the learning rate: "
        "training.scheduler.final_lr_ratio",
        "warmup_epochs num_warmup_epochs": _WARMUP,
        "decay_lr": "write training.scheduler: cosine, or constant",
        "gradient_clip_algorithm": "write training.max_grad_norm, or training.max_grad_value",
        "swa use_swa": "write training.ema: 0.999, a moving average of the weights",
        "l2 l2_regularization": "write training.weight_decay, or the model's own option",
        # length and cadence
        "steps max_iter n_iter iterations num_boost_round n_estimators nrounds num_round num_iterations": (
            "write training.max_steps: STEPS, or training.epochs"
        ),
        "time_limit max_time timeout train_timeout": _RUN_MINUTES,
        "tuning.timeout": f"{_STUDY_MINUTES}; Optuna's timeout counts seconds",
        "tuning.time_limit tuning.max_time tuning.time_budget_s time_budget_s": _STUDY_MINUTES,
        "data.time_limit data.max_time": "write data.timeout: SECONDS, for one sample",
        "steps_per_epoch initial_epoch": "leave it out: an epoch is one pass over the training rows, and "
        "trainwright resume RUN goes on where a run was",
        "min_epochs min_steps": "leave it out: a run ends before its length only by training.early_stopping",
        "fast_dev_run": "write training.max_steps: STEPS",
        "overfit_batches": "write a few rows to a file of their own, data.path: FEW.csv, and see "
        "whether train_loss falls to nearly 0",
        "limit_train_batches": "write training.max_steps: STEPS; for fewer rows, write them to a file",
        "limit_val_batches limit_test_batches num_sanity_val_steps eval_iters validation_steps": (
            "leave it out: the whole validation split is evaluated; evaluation.every_n_steps says how often"
        ),
        "val_check_interval eval_strategy evaluation_strategy": (
            "write evaluation.every_n_steps: STEPS; by default, each epoch is evaluated"
        ),
        "checkpoint.filename": "leave it out: checkpoints are named by their steps; trainwright export RUN "
        "PATH writes the model",
        "save_last": "leave it out: the newest checkpoints are kept; checkpoint.keep_last says how many",
        "save_strategy save_freq": (
            "write checkpoint.every_n_steps: STEPS, or checkpoint.every_n_epochs: EPOCHS"
        ),
        "logging_strategy log_freq": "write logging.every_n_steps: STEPS",
        "save_weights_only": "leave it out: checkpoints hold all that a resume needs; trainwright export RUN "
        "FILE.safetensors writes the weights alone",
        "always_save_checkpoint enable_checkpointing save_only_model": "leave it out: each run keeps "
        "checkpoints; checkpoint.every_n_steps says how often",
        "resume resume_from_checkpoint ckpt_path": "write trainwright resume RUN, or train --resume",
        "do_train do_eval do_predict do_test": "leave it out: trainwright train CONFIG trains, evaluates and "
        "tests; trainwright predict RUN FILE predicts",
        # what decides
        "monitor": "write training.early_stopping.metric or checkpoint.metric",
        "greater_is_better": "write checkpoint.mode: max or min, next to checkpoint.metric "
        "(metric_for_best_model); auto knows those of our metrics",
        "restore_best_weights load_best_model_at_end save_best_only": (
            "leave it out: the best model is kept; see checkpoint.save_top_k"
        ),
        "weighted_metrics": "leave it out: metrics are weighted by data.weight",
        "eval_accumulation_steps": "write evaluation.batch_size: ROWS",
        # data
        "augment augmentation augmentations augmenter mixup cutmix image_size img_size": (
            "images are resized and augmented by data.transforms: [{type: resize, size: [64, 64]}, ...] "
            "(docs/images.md)"
        ),
        "pin_memory persistent_workers": (
            "memory is pinned where a GPU trains, and workers (data.workers) persist: leave it out"
        ),
        "use_multiprocessing max_queue_size": "write data.workers: NUMBER, and data.prefetch",
        "shuffle": "the training rows are always shuffled, by experiment.seed; data.split.time keeps the "
        "oldest rows for training",
        "data_seed": (
            "leave it out: the order of the rows follows experiment.seed, and a split data.split.seed"
        ),
        "data.split.column data.split.columns data.split.on data.split.id": (
            "write key: COLUMN (with by: hash), group: COLUMN or time: COLUMN"
        ),
        "train_size train_split train_fraction data.split.train": (
            "leave it out: data.split.val and data.split.test are shares, and the rest trains"
        ),
        "cat_features categorical_features categorical_columns cat_columns cat_cols categorical "
        "categorical_feature": (
            "write data.columns: {COLUMN: category}; columns of text are categories anyway"
        ),
        "data.fillna fill_na imputer imputation fill_missing": (
            "write data.impute: mean, median, most_frequent or keep"
        ),
        "dataset dataset_name": (
            "write data.path: FILE, or data.type: NAME (trainwright config names dataset)"
        ),
        "remove_unused_columns": "leave it out: a model gets the columns that it can take; data.exclude: "
        "[COLUMN, ...] leaves others out",
        "num_classes num_labels n_classes num_class": "leave it out: it is taken from the data",
        "scale normalize scaler normalization": "write data.standardize: true or false",
        "tokenizer tokenizer_name": "write data.tokenizer",
        "group_by_length": "leave it out: rows come in the order that experiment.seed gives",
        "loss_weights": "weights of heads: training.heads: {COLUMN: {weight: 0.5}}",
        # the machine
        "deterministic": "write training.determinism: bitwise to refuse operations that may differ",
        "benchmark cudnn_benchmark": "leave it out: kernels that are chosen by measuring change bits",
        "run_eagerly jit_compile steps_per_execution": "leave it out; under torch, training.compile: true "
        "compiles the step",
        "fp16 bf16 half": "write training.precision: fp16, bf16 or mixed",
        "devices gpus num_gpus n_gpus gpu cuda use_cuda": (
            "write training.device: cuda; for several GPUs, distributed.nproc: NUMBER"
        ),
        "use_mps_device": "leave it out: Trainwright trains on CPU and CUDA",
        "fsdp fsdp_config deepspeed zero_stage": "write distributed.strategy: fsdp, in which the processes "
        "share the parameters out",
        "fsdp_auto_wrap_policy auto_wrap_policy fsdp_transformer_layer_cls_to_wrap "
        "transformer_layer_cls_to_wrap size_based_auto_wrap_policy": "write distributed.wrap: names of "
        "modules, such as [layers.*], or distributed.min_num_params: NUMBER; without, the members of each "
        "ModuleList are wrapped",
        "offload_optimizer offload_param": "write distributed.offload: true, for the optimizer's state; more "
        "shards (distributed.nproc) make those of the parameters smaller",
        "tensor_parallel tensor_parallel_size tensor_parallel_degree tensor_model_parallel_size tp_size tp": (
            "write distributed.tensor: PROCESSES"
        ),
        "pipeline_parallel pipeline_parallel_size pipeline_parallel_degree pipeline_model_parallel_size "
        "pp_size pp": "write distributed.pipeline: STAGES",
        "data_parallel data_parallel_size data_parallel_degree data_parallel_replicate_degree dp_size dp "
        "distributed.data": "leave it out: the processes that distributed.tensor and distributed.pipeline do "
        "not take (nproc / (tensor x pipeline)) divide the batch",
        "data_parallel_shard_degree dp_shard distributed.sharding_strategy fsdp_sharding_strategy": (
            "write distributed.strategy: fsdp, in which all share the parameters out, or hsdp, in which "
            "groups of distributed.shard: PROCESSES do"
        ),
        "virtual_ranks": "write distributed.virtual: {data: NUMBER}",
        "tensor_plan tp_plan parallelize_plan": "write distributed.plan: {colwise: [MODULES], rowwise: "
        "[MODULES]} (docs/mesh.md); most models of transformers bring one",
        "sequence_parallel": "leave it out: distributed.plan.sequence: [MODULES] names what computes a part "
        "of the tokens at a time, in slices",
        "context_parallel context_parallel_size context_parallel_degree cp_size cp expert_parallel "
        "expert_parallel_size expert_parallel_degree expert_model_parallel_size ep_size ep": "leave it out: "
        "there are no such axes; distributed.tensor splits layers, distributed.pipeline the model",
        "num_microbatches pipeline_parallel_microbatch_size micro_batches": (
            "write training.microbatch_size: SAMPLES, of a step's training.batch_size"
        ),
        "distributed.mixed_precision param_dtype mixed_precision_param": "write training.precision: bf16, "
        "fp16 or fp32",
        "sync_batchnorm sync_bn": "leave it out: processes share the statistics of batch normalization",
        "local_rank node_rank": "leave it out: the launcher says it (docs/distributed.md)",
        "auto_find_batch_size auto_scale_batch_size auto_lr_find": (
            "trainwright tune CONFIG searches for values; training.microbatch_size: SAMPLES takes less memory"
        ),
        "dtype torch_dtype": "write training.precision: bf16, fp16 or fp32",
        "load_in_4bit load_in_8bit quantization_config bnb_config": _QUANTIZED,
        "neftune_noise_alpha": "noise is not added to embeddings: leave it out; the nearest is dropout, an "
        "option of models, and of model.lora",
        "profiler": "leave it out: there is no profiler; py-spy and nsys can watch trainwright train CONFIG",
        # what is said, and where
        "verbose verbosity": "write logging.every_n_steps, or give --quiet",
        "enable_progress_bar disable_tqdm progress_bar show_progress_bar": "leave it out; --quiet shows no "
        "progress",
        "wandb wandb_log mlflow tensorboard comet neptune clearml aim report_to use_wandb tracker logger": (
            "trackers are listed: tracking: [{type: mlflow, uri: URI}], or tracking: [tensorboard]"
        ),
        "push_to_hub hub_model_id hub_token hub_strategy": "leave it out: trainwright export RUN PATH writes "
        "the model, and trainwright report RUN --card its card",
        "callbacks": "callbacks are given in Python: trainwright.train(config, callbacks=[...])",
        # the model
        "lora peft lora_config": _LORA,
        "pretrained checkpoint_path init_weights from_pretrained": "write model.init_from: RUN, "
        "FILE or FOLDER (of weights)",
        "model_name model_name_or_path pretrained_model_name_or_path": "write model: {type: "
        "'transformers:AutoModelForCausalLM', path: FOLDER} (docs/huggingface.md)",
        "n_layer n_head n_embd num_layers": "options of a model stand in its section: model: {type: gpt, "
        "num_layers: 6, num_heads: 6, hidden_size: 384}",
        "dropout hidden_size hidden_sizes units layers activation": "options of a model stand in its "
        "section; `trainwright config show CONFIG` lists those of yours",
        # studies
        "direction directions": "write tuning.mode: max or min; auto knows those of our metrics",
        "n_trials num_trials max_trials num_samples": "write tuning.trials: NUMBER, beside tuning.space",
        "tuning.search search_alg searcher": "write tuning.sampler: grid, random or tpe",
        "study_name": "write experiment.name: NAME",
        "method parameters early_terminate param_grid": (
            "a search is the section tuning: {metric: val_loss, trials: 50, space: {training.learning_rate: "
            "[1e-3, 1e-2]}} (docs/tuning.md)"
        ),
        "grace_period min_iter": "write min_steps: STEPS for asha, min_resource: EPOCHS for the others",
        "max_t tuning.max_iter tuning.pruner.max_iter": (
            "leave it out: training.epochs is the length of a trial"
        ),
        "load_if_exists": "give --resume, or in Python resume=True",
        "cv n_splits k_folds kfold num_folds num_bag_folds num_bag_sets auto_stack num_stack_levels": _FOLDS,
        "presets": "trainwright init FILE --target COLUMN --model auto compares a few models",
    }
)
# The same for options of `model`, where our own models lack them.
_MODEL = _hints(
    {
        "pretrained weights from_pretrained": "write model.init_from: RUN, FILE or FOLDER (of weights)",
        "lora peft": _LORA,
        "load_in_4bit load_in_8bit quantization_config bnb_config": _QUANTIZED,
        "num_classes num_labels n_classes num_class": "leave it out: it is taken from the data",
    }
)
# The same for what is expected of a column, in the words of Great Expectations, dbt and pandera.
_EXPECT = _hints(
    {
        "not_null notnull nullable required expect_column_values_to_not_be_null": "write missing: 0",
        "gt lt greater_than less_than expect_column_values_to_be_between expect_column_min_to_be_between "
        "expect_column_max_to_be_between": "write between: [LEAST, GREATEST], both of which may occur; of "
        "times also after, before",
        "expect_column_values_to_be_in_set expect_column_distinct_values_to_be_in_set": "write in: [VALUES]",
        "expect_column_values_to_not_be_in_set": "write not_in: [VALUES]",
        "expect_column_values_to_be_unique expect_column_values_to_be_distinct": "write unique: true",
        "expect_column_values_to_match_regex str_startswith str_endswith str_contains str_length "
        "expect_column_value_lengths_to_be_between": "write matches: a regular expression such as ^.{5}$",
        "expect_column_values_to_be_of_type": "write type: number, integer, boolean, time or text",
        "expect_column_mean_to_be_between": "write mean: [LEAST, GREATEST]",
        "expect_column_stdev_to_be_between": "write std: [LEAST, GREATEST]",
        "median quantile sum checks coerce expect_column_median_to_be_between": "leave it out; of numbers, "
        "between, mean and std can be expected",
    }
)
# Words for the tokens of a sample: the option of the data that says it depends on their type.
_LENGTHS = {
    *map(fold, ("block_size", "context_length", "max_seq_len", "max_seq_length", "seq_len")),
    *map(fold, ("sequence_length", "max_length", "context", "context_size")),
}


def key_hint(path: str, option: Options | None = None, *, searches: bool = False) -> str | None:
    """Return what to write instead of a key that is not known; None if nothing is known of it.

    Args:
        path: The dotted key, as it was given.
        option: Tells the option of the model, or of the data, that a name means; None: that is not known.
        searches: The config is one of a search, whose length a key without a section may mean.
    """
    section, _, name = path.rpartition(".")
    word = fold(name)
    if word in _LENGTHS:
        return _length(option)
    if section.startswith(("model", "data.expect")):
        return (_MODEL if section.startswith("model") else _EXPECT).get(word)
    if (hint := _KEYS.get(fold(path))) is not None and section:
        return hint
    if option is not None and section in ("", "training") and (meant := option("model", name)) is not None:
        return f"write {meant}"
    if searches and not section and (hint := _KEYS.get(fold(f"tuning.{name}"))) is not None:
        return hint
    return _KEYS.get(word)


def _length(option: Options | None) -> str:
    """Return how to say of how many tokens a sample is."""
    if option is None:
        return "the tokens of a sample are data.length, of a table of texts data.max_length"
    for key in ("length", "max_length"):
        if (meant := option("data", key)) is not None:
            return f"write {meant}: TOKENS"
    return "leave it out: it is the length of a sample of text, and these data are no text"
