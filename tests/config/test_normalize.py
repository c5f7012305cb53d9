"""Keys and values as other tools write them: what they mean, with one note each."""

from typing import Any

import pytest
from pydantic import create_model

from trainwright.config import load
from trainwright.config.resolved import flatten
from trainwright.errors import ConfigError
from trainwright.runs.catalog import Catalog

BASE = {"data": {"type": "wine"}, "model": "mlp"}

# name: what is added to the config, and what it means by dotted key
MEANINGS = {
    "lr at the top": ({"lr": 0.1}, {"training.learning_rate": 0.1}),
    "learning_rate at the top": ({"learning_rate": 0.1}, {"training.learning_rate": 0.1}),
    "lr": ({"training": {"lr": 0.1}}, {"training.learning_rate": 0.1}),
    "lr of the optimizer": (
        {"training": {"optimizer": {"type": "Adam", "lr": 0.1, "weight_decay": 0.2}}},
        {
            "training.optimizer.type": "adam",
            "training.learning_rate": 0.1,
            "training.weight_decay": 0.2,
        },
    ),
    "optimizer at the top": (
        {"optimizer": {"name": "torch.optim.AdamW", "lr": 0.1}},
        {"training.optimizer.type": "adamw", "training.learning_rate": 0.1},
    ),
    "num_epochs": ({"training": {"num_epochs": 3}}, {"training.epochs": 3}),
    "max_epochs": ({"trainer": {"max_epochs": 3, "accelerator": "cpu"}}, {"training.epochs": 3}),
    "num_train_epochs": ({"num_train_epochs": 3}, {"training.epochs": 3}),
    "max_steps that are not set": ({"epochs": 3, "max_steps": -1}, {"training.epochs": 3}),
    "bs": ({"training": {"bs": 8}}, {"training.batch_size": 8}),
    "batch_size at the top": ({"batch_size": 8}, {"training.batch_size": 8}),
    "per device": ({"per_device_train_batch_size": 8}, {"training.batch_size": 8}),
    "accumulation": (
        {"training": {"batch_size": 8, "accumulate_grad_batches": 2}},
        {"training.batch_size": 16, "training.microbatch_size": 8},
    ),
    "problem_type": ({"problem_type": "binary"}, {"data.task": "classification"}),
    "types of columns": (
        {"data": {"type": "wine", "columns": {"a": "numeric", "b": {"type": "datetime"}}}},
        {"data.columns.a.type": "number", "data.columns.b.type": "time"},
    ),
    "workers among the training": ({"training": {"dataloader_num_workers": 2}}, {"data.workers": 2}),
    "label_smoothing_factor": (
        {"training": {"label_smoothing_factor": 0.1}},
        {"training.label_smoothing": 0.1},
    ),
    "momentum": (
        {"training": {"optimizer": "sgd", "momentum": 0.9}},
        {"training.optimizer.type": "sgd", "training.optimizer.params.momentum": 0.9},
    ),
    "betas": ({"training": {"betas": [0.9, 0.95]}}, {"training.optimizer.params.betas": [0.9, 0.95]}),
    "no_cuda": ({"training": {"no_cuda": True}}, {"training.device": "cpu"}),
    "tf32": ({"training": {"tf32": True}}, {"training.precision": "tf32"}),
    "seed at the top": ({"seed": 7}, {"experiment.seed": 7}),
    "seed of the training": ({"training": {"seed": 7}}, {"experiment.seed": 7}),
    "random_state": ({"random_state": 7}, {"experiment.seed": 7}),
    "name": ({"name": "first"}, {"experiment.name": "first"}),
    "experiment": ({"experiment": "first"}, {"experiment.name": "first"}),
    "metrics": ({"metrics": ["auc", "acc"]}, {"evaluation.metrics": ["roc_auc", "accuracy"]}),
    "one metric": ({"evaluation": {"metrics": "auc, f1"}}, {"evaluation.metrics": ["roc_auc", "f1"]}),
    "gpu": ({"training": {"device": "gpu"}}, {"training.device": "cuda"}),
    "gpu with its number": ({"device": "gpu:1"}, {"training.device": "cuda:1"}),
    "gpus": ({"gpus": 1}, {"training.device": "cuda"}),
    "no gpus": ({"gpus": 0}, {"training.device": "cpu"}),
    "lightning": (
        {"trainer": {"accelerator": "gpu", "devices": 1, "check_val_every_n_epoch": 2}},
        {"training.device": "cuda", "evaluation.every_n_epochs": 2, "distributed.nproc": 1},
    ),
    "devices": ({"devices": 2, "distributed": {"virtual": {"data": 2}}}, {"distributed.nproc": 2}),
    "class_weight": ({"training": {"class_weight": "balanced"}}, {"training.class_weights": "balanced"}),
    "use_cuda": ({"training": {"use_cuda": False}}, {"training.device": "cpu"}),
    "warmup ratio": (
        {"max_steps": 50, "warmup_ratio": 0.1, "lr_scheduler_type": "cosine"},
        {"training.scheduler.warmup_ratio": 0.1, "training.scheduler.type": "cosine"},
    ),
    "warmup": (
        {"training": {"scheduler": {"type": "cosine_with_warmup", "warmup": 7}}},
        {"training.scheduler.warmup_steps": 7, "training.scheduler.type": "cosine"},
    ),
    "plateau": (
        {"training": {"scheduler": {"type": "ReduceLROnPlateau", "patience": 2, "monitor": "val_acc"}}},
        {
            "training.scheduler.type": "plateau",
            "training.scheduler.patience": 2,
            "training.scheduler.metric": "val_accuracy",
        },
    ),
    "OneCycleLR": (
        {"training": {"scheduler": {"type": "OneCycleLR", "max_lr": 0.5, "pct_start": 0.2}}},
        {
            "training.scheduler.type": "one_cycle",
            "training.scheduler.pct_start": 0.2,
            "training.learning_rate": 0.5,
        },
    ),
    "CosineAnnealingWarmRestarts": (
        {"training": {"scheduler": {"type": "CosineAnnealingWarmRestarts", "T_0": 9, "T_mult": 2}}},
        {
            "training.scheduler.type": "cosine_restarts",
            "training.scheduler.cycle_steps": 9,
            "training.scheduler.cycle_factor": 2,
        },
    ),
    "a schedule of the user's": (
        {"training": {"scheduler": {"type": "mine:rate", "power": 2, "warmup_steps": 3}}},
        {
            "training.scheduler.type": "custom",
            "training.scheduler.function": "mine:rate",
            "training.scheduler.params.power": 2,
            "training.scheduler.warmup_steps": 3,
        },
    ),
    "a schedule by its path alone": (
        {"lr_scheduler": "mine:rate"},
        {"training.scheduler.type": "custom", "training.scheduler.function": "mine:rate"},
    ),
    "learning_rate_scheduler": (
        {"learning_rate_scheduler": "cosine"},
        {"training.scheduler.type": "cosine"},
    ),
    "no ema": ({"use_ema": False}, {"training.ema": None}),
    "reduce_on_plateau": ({"scheduler": "reduce_on_plateau"}, {"training.scheduler.type": "plateau"}),
    "16-mixed": ({"training": {"precision": "16-mixed"}}, {"training.precision": "fp16"}),
    "16": ({"precision": 16}, {"training.precision": "fp16"}),
    "bf16-mixed": ({"training": {"precision": "bf16-mixed"}}, {"training.precision": "bf16"}),
    "bf16": ({"bf16": True}, {"training.precision": "bf16"}),
    "fp16": ({"training": {"fp16": False}}, {"training.precision": "fp32"}),
    "early stopping": ({"early_stopping": True}, {"training.early_stopping.patience": 5}),
    "no early stopping": ({"training": {"early_stopping": False}}, {"training.early_stopping": None}),
    "rounds": ({"training": {"early_stopping": 9}}, {"training.early_stopping.patience": 9}),
    "early_stopping_rounds": ({"early_stopping_rounds": 9}, {"training.early_stopping.patience": 9}),
    "patience": (
        {"training": {"early_stopping": True, "patience": 9}},
        {"training.early_stopping.patience": 9},
    ),
    "monitor": (
        {"training": {"early_stopping": {"enabled": True, "monitor": "val_acc"}}},
        {"training.early_stopping.metric": "val_accuracy"},
    ),
    "clipping": ({"training": {"gradient_clip_val": 1.0}}, {"training.max_grad_norm": 1.0}),
    "loss": ({"training": {"criterion": "nn.CrossEntropyLoss"}}, {"training.loss": "cross_entropy"}),
    "options of a loss": (
        {"training": {"loss": {"type": "focal", "gamma": 1.5, "label_smoothing": 0.1}}},
        {"training.loss": "focal", "training.focal_gamma": 1.5, "training.label_smoothing": 0.1},
    ),
    "n_jobs": ({"n_jobs": 2}, {"training.threads": 2}),
    "save_steps": ({"training": {"save_steps": 5}}, {"checkpoint.every_n_steps": 5}),
    "keep_last in the training": ({"training": {"keep_last": 5}}, {"checkpoint.keep_last": 5}),
    "eval_steps": ({"eval_steps": 5, "logging_steps": 6}, {"evaluation.every_n_steps": 5}),
    "tracker": ({"logger": "tensorboard"}, {"tracking.0.type": "tensorboard"}),
    "tracker by name": (
        {"tracking": {"mlflow": {"uri": "x"}, "tensorboard": True}},
        {"tracking.0.type": "mlflow", "tracking.0.params.uri": "x", "tracking.1.type": "tensorboard"},
    ),
    "tracker by name in a list": ({"tracking": [{"mlflow": {"uri": "x"}}]}, {"tracking.0.type": "mlflow"}),
    "dataset": ({"data": None, "dataset": "iris"}, {"data.type": "iris"}),
    "file": (
        {"data": {"file": "a.csv", "label": "y"}},
        {"data.path": "a.csv", "data.type": "csv", "data.target": "y"},
    ),
    "data is a file": ({"data": "a.csv", "target": "y"}, {"data.path": "a.csv", "data.target": "y"}),
    "train and test": (
        {"data": None, "train": "a.csv", "test": "b.csv"},
        {"data.train_path": "a.csv", "data.test_path": "b.csv"},
    ),
    "columns": (
        {"data": {"csv": "a.csv", "target_column": "y", "drop": "id", "feature_columns": ["a"]}},
        {"data.exclude": ["id"], "data.features": ["a"]},
    ),
    "split": (
        {"data": {"type": "wine", "test_size": 0.2, "val_size": 0.3, "random_state": 4}},
        {"data.split.test": 0.2, "data.split.val": 0.3, "data.split.seed": 4},
    ),
    "shares": (
        {"data": {"type": "wine", "split": [0.6, 0.3, 0.1]}},
        {"data.split.val": 0.3, "data.split.test": 0.1},
    ),
    "shares by name": (
        {"data": {"type": "wine", "split": {"train": 0.6, "valid": 0.3, "test": 0.1}}},
        {"data.split.val": 0.3, "data.split.test": 0.1},
    ),
    "the names of nanoGPT": (
        {"max_iters": 9, "training": {"warmup_iters": 3, "scheduler": "cosine"}},
        {"training.max_steps": 9, "training.scheduler.warmup_steps": 3},
    ),
    "the names of transformers": (
        {"model": "mlp", "gradient_accumulation_steps": 2, "batch_size": 8},
        {"training.batch_size": 16, "training.microbatch_size": 8},
    ),
    "task": ({"task": "classification"}, {"data.task": "classification"}),
    "model_type": ({"model": None, "model_type": "xgb"}, {"model.type": "xgboost"}),
}


def resolved(added, overrides=()):
    return load(
        {key: value for key, value in (BASE | added).items() if value is not None}, overrides, Catalog()
    )


@pytest.mark.parametrize("name", MEANINGS)
def test_what_people_write_is_understood(name):
    added, meaning = MEANINGS[name]
    loaded = resolved(added)
    flat = flatten(loaded.config)
    assert {key: flat.get(key) for key in meaning} == meaning
    silent = ("experiment", "a schedule of the user's")
    assert bool(loaded.notes) == (name not in silent)
    assert not load(loaded.config.model_dump(), adapters=Catalog()).notes


@pytest.mark.parametrize(
    ("added", "named"),
    [
        ({"lr": 0.1, "training": {"learning_rate": 0.2}}, "training.learning_rate"),
        ({"lr": 0.1, "learning_rate": 0.2}, "training.learning_rate"),
        ({"seed": 1, "experiment": {"seed": 2}}, "experiment.seed"),
        ({"data": {"type": "wine", "label": "y", "target": "z"}}, "data.target"),
        ({"fp16": True, "precision": "bf16"}, "training.precision"),
        ({"training": {"early_stopping": 3, "patience": 4}}, "training.early_stopping.patience"),
        ({"split": [0.8, 0.1, 0.1], "test_size": 0.2}, "data.split.test"),
        ({"data": {"type": "wine", "split": {"valid": 0.1}, "val_size": 0.2}}, "data.split.val"),
    ],
)
def test_two_spellings_at_once_are_an_error(added, named):
    with pytest.raises(ConfigError, match=rf"is another spelling of {named}, which is given too") as caught:
        resolved(added)
    assert len(caught.value.problems) == 1


def test_another_layer_may_use_another_spelling(tmp_path):
    base, child = tmp_path / "base.yaml", tmp_path / "c.yaml"
    base.write_text("data: wine\nmodel: mlp\nlr: 0.1\nepochs: 3\n")
    child.write_text("extends: base.yaml\ntraining: {learning_rate: 0.2}\n")
    loaded = load(child, ["num_epochs=4"], Catalog())
    assert (loaded.config.training.learning_rate, loaded.config.training.epochs) == (0.2, 4)


def test_arguments_of_a_function_of_the_user_are_left_alone(tmp_path):
    base, child = tmp_path / "base.yaml", tmp_path / "c.yaml"
    base.write_text("data: {type: 'mine:rows', label: y}\nmodel: mlp\n")
    child.write_text("extends: base.yaml\ndata: {file: a.csv}\n")
    params = load(child, ["data.test_size=0.5"], Catalog()).config.data.params
    assert params == {"label": "y", "file": "a.csv", "test_size": 0.5}


@pytest.mark.parametrize(
    ("added", "mend"),
    [
        ({"output_dir": "out"}, "--runs-dir DIR"),
        ({"training": {"pin_memory": True}}, "pinned where a GPU trains"),
        ({"data": {"type": "wine", "shuffle": True}}, "always shuffled"),
        (
            {"training": {"scheduler": {"type": "cosine", "T_max": 9}}},
            "a decay always ends with the training",
        ),
        ({"training": {"scheduler": "StepLR"}}, "step_size counts steps, not epochs"),
        ({"training": {"device": "mps"}}, "write cpu"),
        ({"training": {"precision": 64}}, "write fp32"),
        ({"warmup_ratio": 0.1, "warmup_steps": 1}, "warmup_steps and warmup_ratio are both given"),
        ({"per_device_train_batch_size": 8, "distributed": {"nproc": 2}}, "the total over all processes"),
        ({"training": {"eval_strategy": "epoch"}}, "evaluation.every_n_steps"),
        ({"training": {"early_stopping": {"restore_best_weights": True}}}, "the best model is kept"),
        ({"training": {"fast_dev_run": True}}, "training.max_steps"),
        ({"training": {"load_best_model_at_end": True}}, "the best model is kept"),
        ({"training": {"adam_beta1": 0.9}}, "training.optimizer: {type: adamw, betas: [0.9, 0.95]}"),
        ({"training": {"lr_scheduler_kwargs": {"num_cycles": 2}}}, "next to the name: training.scheduler"),
        ({"training": {"gradient_checkpointing": True}}, 'name the modules to compute again: ["blocks.*"]'),
        (
            {"training": {"loss": {"type": "focal", "alpha": 2}}},
            "no option 'alpha'; ours have gamma, label_smoothing, class_weights",
        ),
        ({"data": {"type": "wine", "augment": True}}, "data.transforms: [{type: resize"),
        ({"training": {"swa": True}}, "training.ema: 0.999"),
        ({"model": {"type": "mlp", "pretrained": True}}, "write model.init_from"),
        ({"model": {"type": "mlp", "lora": {"r": 8}}}, "models of transformers have it"),
        ({"training": {"lr": "1e-3"}}, "remove the quotes"),
        ({"training": {"batch_size": 0}}, "expected a whole number above 0"),
        ({"data": "a.xls"}, "pandas.read_excel"),
        ({"block_size": 64}, "these data are no text"),
        ({"model": {"type": "mlp", "context": 64}}, "these data are no text"),
        ({"model": {"type": "mlp", "block_size": 64}}, "these data are no text"),
        (
            {"data": {"type": "text", "path": "texts"}, "model": "gpt", "block_size": 64},
            "write data.length: ",
        ),
        (
            {"data": {"type": "text", "path": "texts"}, "model": {"type": "gpt", "context": 64}},
            "write data.length: ",
        ),
        ({"overfit_batches": 1}, "write a few rows to a file of their own"),
        ({"timeout": 60}, "timeout: unknown key; write training.max_minutes: MINUTES"),
        (
            {"timeout": 60, "tuning": {"space": {"training.learning_rate": [0.1, 0.2]}}},
            "timeout: unknown key; write tuning.max_minutes: MINUTES",
        ),
        ({"model": "xgboost", "max_depth": 3}, "write model.max_depth"),
        ({"model": "catboost", "training": {"iterations": 3}}, "write model.n_estimators"),
        ({"model": "logistic_regression", "training": {"max_iter": 3}}, "write model.max_iter"),
        ({"model": "mlp", "training": {"max_iter": 3}}, "training.max_steps: STEPS"),
        ({"training": {"sample_weight": "w"}}, "did you mean data.weight?"),
        ({"training": {"greater_is_better": True}}, "next to checkpoint.metric (metric_for_best_model)"),
        ({"training": {"use_ema": True}}, "ema: 0.999"),
        ({"ema": True}, "ema: 0.999"),
        ({"training": {"profiler": "simple"}}, "there is no profiler"),
        ({"neftune_noise_alpha": 5}, "the nearest is dropout"),
        ({"checkpoint": {"save_weights_only": True}}, "export RUN FILE.safetensors writes the weights alone"),
        ({"model": {"type": "mlp", "load_in_4bit": True}}, "models are not quantized"),
        ({"quantization_config": {"load_in_4bit": True}}, "models are not quantized"),
        ({"training": {"scheduler": "linear_warmup"}}, "write {type: linear, warmup_steps: STEPS}"),
        ({"training": {"remove_unused_columns": False}}, "remove_unused_columns: unknown key; leave it out"),
        ({"training": {"gradient_checkpointing": True}}, "as mlp, needs none"),
        (
            {"tuning": {"timeout": 60, "space": {"training.learning_rate": [0.1, 0.2]}}},
            "tuning.timeout: unknown key; write tuning.max_minutes: MINUTES; Optuna's timeout counts seconds",
        ),
        ({"n_layer": 4}, "model: {type: gpt, num_layers: 6, num_heads: 6, hidden_size: 384}"),
        ({"n_trials": 4}, "tuning.trials: NUMBER"),
        ({"dtype": "bfloat16"}, "training.precision: bf16"),
        ({"lr_decay_iters": 4}, "a decay always ends with the training"),
        ({"decay_lr": True}, "training.scheduler: cosine"),
        ({"eval_iters": 4}, "the whole validation split is evaluated"),
        ({"enable_checkpointing": True}, "checkpoint.every_n_steps"),
        ({"wandb_log": True}, "tracking: ["),
        ({"model_name_or_path": "gpt2"}, "'transformers:AutoModelForCausalLM', path: FOLDER"),
        ({"num_bag_folds": 5}, "cross-validate CONFIG --folds N"),
        ({"tokenizer": "gpt2"}, "data.tokenizer"),
        ({"presets": "best_quality"}, "init FILE --target COLUMN --model auto"),
    ],
)
def test_what_has_no_counterpart_has_a_hint(added, mend):
    with pytest.raises(ConfigError) as caught:
        resolved(added)
    assert mend in str(caught.value)
    assert len(caught.value.problems) == 1, str(caught.value)


def test_options_of_a_data_set_are_left_alone(monkeypatch):
    catalog = Catalog()
    options = create_model("Options", label=(str, "none"))
    own = lambda kind, name, framework=None: options if name == "wine" else None  # noqa: E731
    monkeypatch.setattr(catalog, "params", own)
    config = load(BASE | {"data": {"type": "wine", "label": "y"}}, adapters=catalog).config
    assert (config.data.target, config.data.params) == ("target", {"label": "y"})


def test_options_of_lora_have_the_names_of_peft() -> None:
    lora = {"rank": 4, "lora_alpha": 8, "lora_dropout": 0.1}
    text, config = {"type": "text", "path": "texts"}, {"model_type": "llama"}
    model = {"type": "transformers:AutoModelForCausalLM", "config": config, "lora": lora}
    read = load({"data": text, "model": model}, adapters=Catalog()).config.model.params["lora"]
    assert (read["r"], read["alpha"], read["dropout"]) == (4, 8, 0.1)
    assert not {*lora} & read.keys()
    own = load({"data": text, "model": {"type": "mine:Net", "lora": lora}}, adapters=Catalog()).config
    assert own.model.params == {"lora": lora}


def test_an_override_that_the_shell_has_split() -> None:
    with pytest.raises(ConfigError) as error:
        load(BASE, ["training.epochs=2", "tracking=[{type:", "mlflow,", "uri:", "x}]"], Catalog())
    assert str(error.value).splitlines()[1:] == [
        "  command line: a value with blanks needs quotes: 'tracking=[{type: mlflow, uri: x}]'"
    ]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"data": {"type": "wine", "columns": {"a": "datum"}}}, "expected one of number, boolean"),
        ({"model": {"type": "lightgbm", "is_unbalance": 1}}, "expected true or false, got 1 (write true)"),
        ({"checkpoint": {"metric": "val_nothing"}}, "known: one of"),
        ({"training": {"optimizer": "lars"}, "model": "mlp"}, "another one is named by its class"),
        (
            {"training": {"scheduler": "inverse_sqrt"}},
            "plateau; got 'inverse_sqrt'; one of your own is named",
        ),
    ],
)
def test_messages_say_what_to_write(given, says) -> None:
    with pytest.raises(ConfigError) as error:
        load(BASE | given, (), Catalog())
    assert says in str(error.value)


def test_data_given_as_objects_are_prepared_for_the_model() -> None:
    """Boosted trees get columns as they are, whether or not the config has a section `data`."""
    for more in ({}, {"data": {"task": "regression"}}):
        config = load({"model": "lightgbm", **more}, (), Catalog(), objects=True).config
        assert config.data.standardize is False
        assert config.data.encode == "category"


def test_transforms_have_the_names_of_image_libraries() -> None:
    given = [
        {"type": "torchvision.transforms.v2.RandomResizedCrop", "size": 32},
        "RandomHorizontalFlip",
        "T.ToTensor",
        {"type": "ColorJitter", "brightness": 0.4},
        {"type": "A.Normalize", "mean": [0.5], "std": [0.2]},
    ]
    config = {"data": {"type": "image_folder", "path": "x", "transforms": given}, "model": "cnn"}
    resolved = load(config, adapters=Catalog())
    names = [one.type for one in resolved.config.data.transforms]
    assert names == ["random_resized_crop", "horizontal_flip", "color_jitter", "normalize"]
    assert any("T.ToTensor is left out" in note for note in resolved.notes)
    with pytest.raises(ConfigError, match=r"got 'mine.Resize'"):  # a module of the user's own, perhaps
        load(config, {"data.transforms": [{"type": "mine.Resize", "size": 32}]}, Catalog())
    flipped = load(config, {"data.transforms": "flip"}, Catalog()).config.data.transforms
    assert [one.type for one in flipped] == ["horizontal_flip"]


def transforms_of(*given: Any) -> list[dict[str, Any]]:
    """Return the transforms of a config, as it sets them."""
    config = {"data": {"type": "image_folder", "path": "x", "transforms": list(given)}, "model": "cnn"}
    return [one.model_dump() for one in load(config, adapters=Catalog()).config.data.transforms]


# What a library's class is constructed with -> the same as ours.
SAME_TRANSFORMS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "A.Resize", "height": 32, "width": 48}, {"type": "resize", "size": [32, 48]}),
    ({"type": "A.SmallestMaxSize", "max_size": 9}, {"type": "resize", "size": 9}),
    ({"type": "T.Resize", "size": 9, "antialias": True}, {"type": "resize", "size": 9}),
    (
        {"type": "v2.Resize", "size": 9, "interpolation": "InterpolationMode.BICUBIC"},
        {"type": "resize", "size": 9, "interpolation": "bicubic"},
    ),
    (
        {"type": "A.RandomCrop", "height": 8, "width": 9, "p": 1.0, "always_apply": False},
        {"type": "random_crop", "size": [8, 9]},
    ),
    ({"type": "A.CenterCrop", "height": 8, "width": 9}, {"type": "center_crop", "size": [8, 9]}),
    (
        {"type": "A.RandomResizedCrop", "height": 8, "width": 9, "scale": [0.5, 1.0]},
        {"type": "random_resized_crop", "size": [8, 9], "scale": [0.5, 1.0]},
    ),
    ({"type": "A.RandomResizedCrop", "size": [8, 9]}, {"type": "random_resized_crop", "size": [8, 9]}),
    (
        {"type": "RandomResizedCropAndInterpolation", "size": 8},
        {"type": "random_resized_crop", "size": 8},
    ),
    ({"type": "A.HorizontalFlip", "p": 0.3}, {"type": "horizontal_flip", "p": 0.3}),
    ({"type": "T.RandomVerticalFlip", "p": 1}, {"type": "vertical_flip", "p": 1}),
    ({"type": "T.RandomRotation", "degrees": [-15, 15], "fill": 0}, {"type": "rotation", "degrees": 15}),
    (
        {"type": "A.Normalize", "mean": [0.5], "std": [0.2], "max_pixel_value": 255.0},
        {"type": "normalize", "mean": [0.5], "std": [0.2]},
    ),
    ({"type": "T.RandomErasing", "value": 0, "inplace": False}, {"type": "random_erasing"}),
    (
        {"type": "T.ColorJitter", "brightness": 0.2, "hue": 0},
        {"type": "color_jitter", "brightness": 0.2},
    ),
    ({"type": "v2.MixUp", "alpha": 0.8}, {"type": "mixup", "alpha": 0.8}),
]


@pytest.mark.parametrize(("written", "ours"), SAME_TRANSFORMS)
def test_transforms_have_the_options_of_image_libraries(
    written: dict[str, Any], ours: dict[str, Any]
) -> None:
    assert transforms_of(written) == transforms_of(ours)
    assert transforms_of("albumentations.pytorch.ToTensorV2", written) == transforms_of(ours)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("A.Flip", "A.Flip flips either way, or both: write horizontal_flip and vertical_flip"),
        (
            {"type": "A.Rotate", "limit": 30},
            r"left out at random \(p: 0.5\).*write \{type: rotation, degrees",
        ),
        ({"type": "Rotate", "limit": [-30, 30]}, "Rotate is left out at random"),
        ("A.ColorJitter", "has other defaults than ours: write {type: color_jitter"),
        ("A.Normalize", r"the mean and std of ImageNet by default: write them \(\{type: normalize, mean"),
        ("v2.MixUp", "has alpha 1.0 by default, and ours 0.2"),
        ({"type": "T.RandomRotation", "degrees": [0, 30]}, "degrees: expected a number"),
        ({"type": "T.RandomCrop", "size": 8, "padding_mode": "reflect"}, "padding_mode: unknown key"),
        ({"type": "T.ColorJitter", "brightness": 0.2, "hue": 0.1}, "hue: unknown key"),
        ({"type": "T.Resize", "max_size": 8}, "size: is missing"),
    ],
)
def test_transforms_that_differ_in_image_libraries_are_refused(written: Any, message: str) -> None:
    """With what to write instead, in one problem."""
    with pytest.raises(ConfigError, match=message) as caught:
        transforms_of(written)
    assert len(caught.value.problems) == 1 or "max_size" in written
