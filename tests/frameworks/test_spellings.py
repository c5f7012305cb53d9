"""The names of parameters that the boosting libraries' users know: all are known, and mean the same."""

import importlib
import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

import trainwright
from late import Late
from trainwright.config import Resolved, load
from trainwright.config.spellings import METRICS
from trainwright.datasets.base import DataBundle
from trainwright.digest import digest, tensor_records
from trainwright.errors import ConfigError, ModelError
from trainwright.frameworks.catboost import CatboostFramework
from trainwright.frameworks.keras import KerasFramework
from trainwright.frameworks.lightgbm import LightgbmFramework
from trainwright.frameworks.sklearn import SklearnFramework
from trainwright.frameworks.torch import TorchFramework
from trainwright.frameworks.xgboost import XgboostFramework
from trainwright.runs.catalog import Catalog
from trainwright.runs.wiring import Objects, build
from trainwright.types import Array, DataInfo, features_spec

catboost: Any = Late(lambda: importlib.import_module("catboost"))
lightgbm: Any = Late(lambda: importlib.import_module("lightgbm"))
xgboost: Any = Late(lambda: importlib.import_module("xgboost"))

ROUNDS = 6
NAMES = [f"x{i}" for i in range(5)]
FRAMEWORKS: dict[str, Any] = {
    "xgboost": XgboostFramework,
    "lightgbm": LightgbmFramework,
    "catboost": CatboostFramework,
}


@cache
def rows(kind: str) -> tuple[Array, Array]:
    random = np.random.default_rng(0)
    features = random.normal(size=(260, 5)).astype(np.float32)
    values = features[:, 0] + features[:, 1] * features[:, 2] + random.normal(0, 0.3, len(features))
    return features, (values > 0).astype(np.int64) if kind == "two" else values.astype(np.float32)


class Rows:
    """A split in memory."""

    def __init__(self, features: Array, targets: Array) -> None:
        self.arrays = {"features": features, "target": targets}

    def __len__(self) -> int:
        return len(self.arrays["features"])

    def take(self, ids: Any) -> dict[str, Array]:
        return {name: array[ids] for name, array in self.arrays.items()}

    def fingerprint(self) -> str:
        return "-"


def bundle(kind: str) -> DataBundle:
    features, targets = rows(kind)
    task, count, classes = ("classification", 2, [0, 1]) if kind == "two" else ("regression", 1, None)
    info = DataInfo(task, features_spec((5,)), count, classes, NAMES)  # type: ignore[arg-type]
    return DataBundle(
        info, {"train": Rows(features[:200], targets[:200]), "val": Rows(features[200:], targets[200:])}
    )


def resolved(framework: str, params: Mapping[str, Any], overrides: Any = (), **sections: Any) -> Resolved:
    config = {"model": {"type": framework, "params": dict(params)}, **sections}
    return load(config, overrides, Catalog())


def predicted(framework: str, kind: str, params: Mapping[str, Any]) -> tuple[Array, int]:
    """Return what a trained model predicts for the validation rows, and its number of rounds."""
    sections = (
        {} if any("n_estimators" in name or name in ROUND_NAMES for name in params) else {"max_steps": ROUNDS}
    )
    config = resolved(framework, params, training=sections, checkpoint={"save_top_k": 0}).config
    made = build(config, 1, Objects(data=bundle(kind)))
    for step in range(made.plan.total_steps):
        made.learner.step(step, made.plan.learning_rate)
    parts = list(made.learner.model().predict(made.learner._inputs.splits["val"]))
    outputs = np.concatenate([part.outputs for part in parts])
    return (outputs[:, 1] if kind == "two" else outputs.reshape(-1)), made.plan.total_steps


ROUND_NAMES = {"num_boost_round", "num_iterations", "nrounds", "iterations", "num_trees", "n_iter"}


def by_xgboost(kind: str, params: Mapping[str, Any], rounds: int) -> Array:
    features, targets = rows(kind)
    own = {
        "objective": "binary:logistic" if kind == "two" else "reg:squarederror",
        "seed": 0,
        "seed_per_iteration": True,
        "nthread": 1,
        "verbosity": 0,
        "eval_metric": "rmse",
    }
    given = {key: value for key, value in params.items() if key not in own and key not in ROUND_NAMES}
    train = xgboost.DMatrix(features[:200], targets[:200])
    booster = xgboost.train(own | given, train, rounds)
    return np.asarray(booster.predict(xgboost.DMatrix(features[200:])))


def by_lightgbm(kind: str, params: Mapping[str, Any], rounds: int) -> Array:
    features, targets = rows(kind)
    own = {"verbosity": -1, "num_threads": 1, "deterministic": True}
    if not any(name in params for name in ("objective", "app", "loss", "application")):
        own["objective"] = "binary" if kind == "two" else "regression"
    dropped = {"verbose", "n_jobs", "nthread", "early_stopping_rounds", *ROUND_NAMES}
    given = {key: value for key, value in params.items() if key not in dropped}
    booster = lightgbm.train(own | given, lightgbm.Dataset(features[:200], targets[:200]), rounds)
    return np.asarray(booster.predict(features[200:]))


def by_catboost(kind: str, params: Mapping[str, Any], rounds: int) -> Array:
    features, targets = rows(kind)
    own = {"random_seed": 0, "thread_count": 1, "logging_level": "Silent"}
    own |= {"allow_writing_files": False, "iterations": rounds}
    if not {"eta", "learning_rate"} & set(params):
        own["learning_rate"] = 0.1
    if not {"loss_function", "objective"} & set(params):
        own["loss_function"] = "Logloss" if kind == "two" else "RMSE"
    seeds = ("verbose", "silent", "random_state", "early_stopping_rounds", "od_wait")
    given = {key: value for key, value in params.items() if key not in (*own, *seeds, *ROUND_NAMES)}
    model = catboost.CatBoost({**own, **given})
    model.fit(catboost.Pool(features[:200], targets[:200]))
    kind_of = "Probability" if kind == "two" else "RawFormulaVal"
    values = np.asarray(model.predict(features[200:], prediction_type=kind_of))
    return values[:, 1] if kind == "two" else values


XGBOOST: list[dict[str, Any]] = [
    {"eta": 0.1},
    {"learning_rate": 0.2},
    {"min_split_loss": 1.5},
    {"gamma": 1.5},
    {"lambda": 5},
    {"alpha": 0.7},
    {"reg_alpha": 0.7},
    {"max_depth": 2},
    {"min_child_weight": 4},
    {"subsample": 0.7},
    {"colsample_bytree": 0.6},
    {"colsample_bynode": 0.6},
    {"num_boost_round": 9},
    {"n_estimators": 4},
    {"tree_method": "exact"},
    {"tree_method": "approx", "max_bin": 16},
    {"grow_policy": "lossguide", "max_leaves": 5},
    {"max_delta_step": 0.3},
    {"scale_pos_weight": 2.5},
    {"base_score": 0.3},
    {"booster": "dart", "rate_drop": 0.0},
    {"num_parallel_tree": 2},
    {"monotone_constraints": "(1,0,0,-1,0)"},
    {"interaction_constraints": "[[0, 1], [2, 3, 4]]"},
    {"max_cached_hist_node": 4, "verbosity": 0, "validate_parameters": True},
    {"eval_metric": ["auc", "logloss"], "early_stopping_rounds": 50, "n_jobs": 1},
]
LIGHTGBM: list[dict[str, Any]] = [
    {"num_iterations": 9},
    {"nrounds": 4},
    {"eta": 0.2},
    {"shrinkage_rate": 0.2},
    {"lambda_l1": 1.5},
    {"l2_regularization": 3},
    {"lambda": 3},
    {"num_leaf": 7},
    {"max_leaf_nodes": 7},
    {"min_data_in_leaf": 30},
    {"min_samples_leaf": 8},
    {"min_sum_hessian": 2.0},
    {"min_gain_to_split": 0.8},
    {"max_tree_output": 0.2},
    {"max_bins": 20},
    {"bin_construct_sample_cnt": 1000, "verbose": -1},
    {"mc": [1, 0, 0, -1, 0], "mc_method": "advanced", "monotone_penalty": 1.0},
    {"unbalance": True},
    {"application": "binary", "n_jobs": 1},
    {"boosting_type": "dart", "rate_drop": 0.0},
    {"feature_contrib": [1.0, 0.2, 1.0, 1.0, 1.0]},
    {"cegb_tradeoff": 2.0, "cegb_penalty_split": 0.002},
    {"bagging_fraction": 0.5},
    {"use_missing": False, "max_bin_by_feature": [20, 30, 40, 50, 60]},
    {"enable_bundle": False, "is_sparse": False, "feature_pre_filter": False},
]
CATBOOST: list[dict[str, Any]] = [
    {"iterations": 9},
    {"num_trees": 4},
    {"eta": 0.3},
    {"depth": 3},
    {"max_depth": 3},
    {"l2_leaf_reg": 9},
    {"reg_lambda": 9},
    {"rsm": 0.5},
    {"border_count": 20},
    {"max_bin": 20},
    {"loss_function": "Logloss", "verbose": False},
    {"grow_policy": "Depthwise", "min_data_in_leaf": 12},
    {"grow_policy": "Lossguide", "num_leaves": 6},
    {"bootstrap_type": "Bernoulli", "subsample": 0.6},
    {"bagging_temperature": 0.4, "bootstrap_type": "Bayesian"},
    {"random_strength": 3},
    {"leaf_estimation_method": "Gradient", "leaf_estimation_backtracking": "No"},
    {"class_weights": [1.0, 2.5]},
    {"model_shrink_rate": 0.2, "model_shrink_mode": "Decreasing"},
    {"boosting_type": "Ordered", "fold_len_multiplier": 3.0},
    {"feature_weights": [1.0, 0.1, 1.0, 1.0, 1.0]},
    {"early_stopping_rounds": 50, "od_type": "Iter", "silent": True},
]
ALL = [
    (name, params)
    for name, many in (("xgboost", XGBOOST), ("lightgbm", LIGHTGBM), ("catboost", CATBOOST))
    for params in many
]
LIBRARY = {"xgboost": by_xgboost, "lightgbm": by_lightgbm, "catboost": by_catboost}


@pytest.mark.parametrize(
    ("framework", "params"), ALL, ids=lambda one: one if isinstance(one, str) else "-".join(one)
)
def test_what_a_parameter_means(framework: str, params: dict[str, Any]) -> None:
    if "early_stopping_rounds" in params:
        taken = resolved(framework, params).config.training.early_stopping
        assert taken is not None
        assert taken.patience == 50
    ours, rounds = predicted(framework, "two", params)
    theirs = LIBRARY[framework]("two", params, rounds)
    assert np.abs(ours - theirs).max() < 1e-6
    assert np.std(theirs) > 0.01


@pytest.mark.parametrize(
    ("framework", "params"),
    [
        ("xgboost", {"objective": "reg:linear"}),
        ("lightgbm", {"loss": "mse"}),
        ("lightgbm", {"objective": "l1"}),
        ("catboost", {"objective": "MAE"}),
    ],
)
def test_what_an_objective_means(framework: str, params: dict[str, Any]) -> None:
    ours, rounds = predicted(framework, "values", params)
    assert np.abs(ours - LIBRARY[framework]("values", params, rounds)).max() < 1e-6


# LightGBM's samples are drawn again at fixed rounds, so that a run can be resumed: other than in LightGBM itself.
@pytest.mark.parametrize(
    ("spelled", "ours"),
    [
        ({"bagging_fraction": 0.5, "bagging_freq": 2}, {"subsample": 0.5, "subsample_freq": 2}),
        ({"sub_feature": 0.6}, {"colsample_bytree": 0.6}),
        ({"feature_fraction_bynode": 0.6}, {"colsample_bynode": 0.6}),
        ({"boosting": "goss"}, {"data_sample_strategy": "goss"}),
        ({"extra_tree": True}, {"extra_trees": True}),
    ],
)
def test_samples_of_lightgbm(spelled: dict[str, Any], ours: dict[str, Any]) -> None:
    assert resolved("lightgbm", spelled).config == resolved("lightgbm", ours).config


# -- the tables


def known(framework: str) -> set[str]:
    """Return all names that are taken or refused with a reason."""
    cls = FRAMEWORKS[framework]
    return set(cls.models[framework].model_fields) | cls.spellings.names() | set(METRICS)


def test_every_alias_of_lightgbm() -> None:
    from lightgbm.basic import _ConfigAliases

    _ConfigAliases.get("num_leaves")  # fills the table
    cls = LightgbmFramework
    fields = cls.models["lightgbm"].model_fields
    assert known("lightgbm") >= {alias for group in _ConfigAliases.aliases.values() for alias in group}
    for group in _ConfigAliases.aliases.values():
        meanings = {
            cls.spellings.settings.get(alias)
            or (cls.spellings.refused.get(alias) and "refused")
            or cls.spellings.unused.get(alias)
            or cls.spellings.aliases.get(alias, alias)
            for alias in group
        }
        assert len(meanings) == 1, group
    assert set(cls.spellings.aliases.values()) <= set(fields)


def test_every_parameter_of_catboost() -> None:
    names = set(inspect.signature(catboost.CatBoostClassifier.__init__).parameters) - {"self"}
    assert names <= known("catboost")
    source = inspect.getsource(catboost.core._process_synonyms_groups)
    groups = [
        eval(line.split("(", 1)[1].split(", params")[0]) for line in source.splitlines()[1:] if "(" in line
    ]
    spellings = CatboostFramework.spellings
    assert len(groups) > 8
    for group in groups:
        assert len({spellings.settings.get(name) or spellings.aliases.get(name, name) for name in group}) == 1


def test_every_parameter_of_xgboost() -> None:
    names = set(inspect.signature(xgboost.XGBClassifier.__init__).parameters)
    names |= set(inspect.signature(xgboost.XGBModel.__init__).parameters)
    assert names - {"self", "kwargs"} <= known("xgboost")
    # parameter.html of XGBoost 3.2
    documented = (
        "booster device verbosity validate_parameters nthread disable_default_eval_metric eta learning_rate gamma "
        "min_split_loss max_depth min_child_weight max_delta_step subsample sampling_method colsample_bytree "
        "colsample_bylevel colsample_bynode lambda reg_lambda alpha reg_alpha tree_method scale_pos_weight updater "
        "refresh_leaf process_type grow_policy max_leaves max_bin num_parallel_tree monotone_constraints "
        "interaction_constraints multi_strategy max_cached_hist_node extmem_single_page max_cat_to_onehot "
        "max_cat_threshold sample_type normalize_type rate_drop one_drop skip_drop feature_selector top_k "
        "objective base_score eval_metric seed seed_per_iteration tweedie_variance_power huber_slope "
        "quantile_alpha aft_loss_distribution lambdarank_pair_method lambdarank_num_pair_per_sample "
        "lambdarank_normalization lambdarank_score_normalization lambdarank_unbiased lambdarank_bias_norm "
        "ndcg_exp_gain num_class"
    )
    assert set(documented.split()) <= known("xgboost")


@pytest.mark.parametrize("cls", [*FRAMEWORKS.values(), SklearnFramework, TorchFramework, KerasFramework])
def test_a_name_has_one_meaning(cls: Any) -> None:
    for table in (cls.spellings, cls.optimizer_spellings):
        parts = [table.aliases, table.settings, table.unused, table.refused]
        assert sum(map(len, parts)) == len(table.names())
    for name in set(cls.models) & set(FRAMEWORKS):
        assert not set(cls.models[name].model_fields) & cls.spellings.names()


# -- what sets something of ours


def test_parameters_set_our_own_settings() -> None:
    made = resolved(
        "lightgbm", {"random_state": 7, "n_jobs": 2, "early_stopping_round": 9, "metric": ["auc", "l2"]}
    )
    assert made.config.experiment.seed == 7
    assert made.config.training.threads == 2
    assert made.config.training.early_stopping.patience == 9
    assert made.config.evaluation.metrics == ["roc_auc", "mse"]
    assert "mapping: model.params.n_jobs: 2 is read as training.threads: 2" in made.notes
    assert not {"random_state", "n_jobs", "metric_types"} & set(made.config.model.params)
    assert resolved("catboost", {"thread_count": -1}).config.training.threads is None
    assert resolved("xgboost", {"device": "gpu:1"}).config.training.device == "cuda:1"
    assert resolved("catboost", {"task_type": "GPU"}).config.training.device == "cuda"
    stopped = resolved("catboost", {"eval_metric": "AUC", "od_wait": 3}).config.training.early_stopping
    assert stopped is not None
    assert (stopped.metric, stopped.patience) == ("val_roc_auc", 3)
    assert resolved("catboost", {"use_best_model": False}).config.checkpoint.save_top_k == 0


def test_options_may_be_inline_and_on_the_command_line(tmp_path: Any) -> None:
    base = tmp_path / "base.yaml"
    base.write_text("model: {type: xgboost, eta: 0.1, n_jobs: 3}\nexperiment: {seed: 1}\n")
    top = tmp_path / "top.yaml"
    top.write_text("extends: base.yaml\nmodel: {learning_rate: 0.2, random_state: 5}\n")
    made = load(top, ["model.params.eta=0.4", "training.threads=1"], Catalog())
    assert made.config.model.params["learning_rate"] == 0.4
    assert (made.config.experiment.seed, made.config.training.threads) == (5, 1)
    again = tmp_path / "again.yaml"
    again.write_text(made.dump())
    assert load(again, (), Catalog()).config == made.config
    assert not load(again, (), Catalog()).notes


BROKEN: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    (
        "xgboost",
        {"eta": 0.1, "learning_rate": 0.1},
        {},
        "model.params.eta: is another spelling of learning_rate, which is given too",
    ),
    ("lightgbm", {"lambda_l1": 1, "l1_regularization": 1}, {}, "another spelling of reg_alpha"),
    ("catboost", {"iterations": 5, "num_trees": 5}, {}, "another spelling of n_estimators"),
    (
        "xgboost",
        {"seed": 2},
        {"experiment": {"seed": 1}},
        "seed: 2 is given, but experiment.seed .*is 1; keep one",
    ),
    ("xgboost", {"seed": 2, "random_state": 3}, {}, "random_state: 3 is given, but experiment.seed"),
    (
        "lightgbm",
        {"num_iterations": 9},
        {"training": {"epochs": 5}},
        "num_iterations: 9 is given, but training.epochs",
    ),
    ("lightgbm", {"machines": "a:1"}, {}, "one process"),
    ("lightgbm", {"linear_tree": True}, {}, "linear leaves are not offered"),
    (
        "lightgbm",
        {"boosting": "goss", "data_sample_strategy": "bagging"},
        {},
        "goss is data_sample_strategy: goss",
    ),
    ("catboost", {"od_type": "IncToDec"}, {}, "training.early_stopping"),
    ("catboost", {"text_features": ["a"]}, {}, "columns of text"),
    ("xgboost", {"xgb_model": "m.ubj"}, {}, "model.init_from"),
    ("random_forest", {"warm_start": True}, {}, "model.init_from"),
]


@pytest.mark.parametrize(("framework", "params", "sections", "message"), BROKEN)
def test_what_cannot_be_used(
    framework: str, params: dict[str, Any], sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolved(framework, params, **sections)


def test_a_problem_names_file_and_line(tmp_path: Any) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "experiment: {seed: 1}\nmodel:\n  type: lightgbm\n  eta: 0.1\n  shrinkage_rate: 0.2\n  seed: 3\n"
    )
    with pytest.raises(ConfigError) as raised:
        load(file, (), Catalog())
    text = str(raised.value)
    assert f"{file}:5:3: model.shrinkage_rate: is another spelling of learning_rate" in text
    assert f"({file}:4:3)" in text
    assert f"{file}:6:3: model.seed: 3 is given, but experiment.seed ({file}:1:14)" in text


# -- scikit-learn and optimizers


def test_short_names_of_scikit_learn() -> None:
    made = resolved("random_forest", {"n_estimators": 20, "random_state": 4, "n_jobs": -1, "verbose": 1})
    assert (made.config.experiment.seed, made.config.training.threads) == (4, None)
    assert resolved("logistic_regression", {"max_iter": 50, "C": 2}).config.model.params["max_iter"] == 50
    made = resolved("sklearn.linear_model:Ridge", {"random_state": 4})
    assert made.config.model.params == {"random_state": 4}


def test_former_names_of_scikit_learn() -> None:
    assert resolved("gbc", {"loss": "deviance"}).config.model.params["loss"] == "log_loss"
    assert resolved("logreg", {"penalty": "l2"}).config.model.params["l1_ratio"] == 0.0
    for penalty in ("l1", "none", None):  # null is no penalty, not the default one
        with pytest.raises(ConfigError, match=r"write l1_ratio: 1\.0 for l1"):
            resolved("logreg", {"penalty": penalty})
    assert resolved("sgd", {"penalty": "l1"}).config.model.params["penalty"] == "l1"


@pytest.mark.parametrize(
    ("model", "given", "meant"),
    [
        ("mlp", {"hidden_layer_sizes": [8, 4], "dropout_rate": 0.1}, {"hidden": [8, 4], "dropout": 0.1}),
        ("mlp", {"units": 8, "activation": "ReLU"}, {"hidden": [8], "activation": "relu"}),
        ("mlp", {"hidden": 8, "activation": "torch.nn.SiLU"}, {"hidden": [8], "activation": "silu"}),
        ("mlp", {"batch_norm": True, "input_dim": 3}, {"normalization": "batch"}),
        ("keras_mlp", {"layers": [8], "norm": "LayerNorm"}, {"hidden": [8], "normalization": "layer"}),
        (
            "transformer",
            {"d_model": 8, "n_layers": 1, "nhead": 2},
            {"hidden_size": 8, "num_layers": 1, "num_heads": 2},
        ),
        (
            "gpt",
            {"n_embd": 8, "n_layer": 1, "n_head": 2},
            {"hidden_size": 8, "num_layers": 1, "num_heads": 2},
        ),
    ],
)
def test_options_of_networks(model: str, given: dict[str, Any], meant: dict[str, Any]) -> None:
    made = resolved(model, given)
    assert meant.items() <= made.config.model.params.items()
    assert len(made.notes) >= len(given) - ("hidden" in given)


def test_a_perceptron_has_a_width_for_each_layer() -> None:
    with pytest.raises(ConfigError, match=r"n_layers: write hidden: \[128, 128\]") as caught:
        resolved("mlp", {"n_layers": 2})
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("model", ["mlp", "keras_mlp"])
def test_options_of_optimizers(model: str) -> None:
    options = {"type": "adam", "lr": 0.02, "beta_1": 0.8, "epsilon": 1e-6, "clipnorm": 2.0, "amsgrad": True}
    config = load({"model": model, "training": {"optimizer": options}}, (), Catalog()).config
    assert config.training.optimizer.params == {"betas": [0.8, 0.999], "eps": 1e-6, "amsgrad": True}
    assert (config.training.learning_rate, config.training.max_grad_norm) == (0.02, 2.0)
    config = load(
        {"model": model, "training": {"optimizer": {"type": "rmsprop", "rho": 0.8}}}, (), Catalog()
    ).config
    assert config.training.optimizer.params["alpha"] == 0.8


def test_two_spellings_of_an_optimizers_option() -> None:
    optimizer = {"type": "adam", "beta_1": 0.8, "betas": [0.9, 0.99], "use_ema": True}
    with pytest.raises(ConfigError, match=r"(?s)beta_1: is a part of betas.*write training.ema"):
        load({"model": "mlp", "training": {"optimizer": optimizer}}, (), Catalog())


# -- objects


def run_of(model: Any, folder: Any, **sections: Any) -> Any:
    features, targets = rows("two")
    splits = ((features[:200], targets[:200]), (features[200:], targets[200:]))
    config = {"checkpoint": {"save_top_k": 0}, **sections}
    return trainwright.train(config, model=model, data=splits, runs_dir=folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("xgboost:XGBClassifier", {"eta": 0.1, "n_estimators": 5, "random_state": 3, "n_jobs": 1}),
        (
            "lightgbm:LGBMClassifier",
            {"lambda_l1": 1, "n_estimators": 5, "num_leaves": 7, "verbose": -1, "random_state": 3},
        ),
        (
            "catboost:CatBoostClassifier",
            {"depth": 4, "iterations": 5, "verbose": False, "learning_rate": 0.2, "random_seed": 3},
        ),
    ],
)
def test_estimators(tmp_path: Any, name: str, given: dict[str, Any]) -> None:
    module, cls = name.split(":")
    model = getattr({"xgboost": xgboost, "lightgbm": lightgbm, "catboost": catboost}[module], cls)(**given)
    run = run_of(model, tmp_path, training={"threads": 1})
    assert load(run.path / "config.yaml", (), Catalog()).config.experiment.seed == 3
    features, targets = rows("two")
    own = type(model)(**given)
    if module == "catboost":
        own.set_params(allow_writing_files=False)
    own.fit(features[:200], targets[:200])
    predictor = trainwright.load(run.path, model=type(model)(**given))
    outputs = predictor.outputs(features[200:])
    assert np.abs(outputs[:, 1] - own.predict_proba(features[200:])[:, 1]).max() < 1e-6


def test_an_estimator_beside_the_config(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"random_state: 3 is given, but experiment.seed"):
        run_of(xgboost.XGBClassifier(random_state=3), tmp_path, experiment={"seed": 1})
    with pytest.raises(ModelError, match=r"eta and shrinkage_rate are the same option"):
        run_of(lightgbm.LGBMClassifier(eta=0.1, shrinkage_rate=0.2), tmp_path)


# -- resume, with options that are passed on


@pytest.mark.parametrize(
    ("framework", "params", "cut"),
    [
        ("lightgbm", {"cegb_tradeoff": 2.0, "cegb_penalty_split": 0.002, "colsample_bytree": 0.7}, 10),
        ("lightgbm", {"feature_contri": [1.0, 0.2, 1.0, 1.0, 1.0], "colsample_bytree": 0.6}, 10),
        ("xgboost", {"max_cached_hist_node": 4}, 3),
        ("catboost", {"first_feature_use_penalties": [0.1, 3.0, 3.0, 3.0, 3.0]}, 10),
        ("catboost", {"model_shrink_rate": 0.2}, 3),
        ("catboost", {"langevin": True, "diffusion_temperature": 1000.0}, 3),
    ],
)
def test_a_resume_with_options_that_are_passed_on(
    framework: str, params: dict[str, Any], cut: int, tmp_path: Any
) -> None:
    def learner() -> Any:
        config = resolved(framework, params, training={"max_steps": 14}).config
        made = build(config, 1, Objects(data=bundle("two")))
        assert cut % made.plan.boundary == 0
        return made.learner

    def steps(trained: Any, start: int, stop: int) -> Any:
        for step in range(start, stop):
            trained.step(step, 0.1)
        return trained

    steps(learner(), 0, cut).snapshot().write(tmp_path)
    resumed = learner()
    resumed.restore(tmp_path)
    whole = digest(tensor_records(steps(learner(), 0, 14).state()))
    assert digest(tensor_records(steps(resumed, cut, 14).state())) == whole
