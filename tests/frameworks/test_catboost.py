"""The CatBoost framework: it trains CatBoost's own models, and every option resumes bit-identically."""

import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import catboost
import numpy as np
import pytest

import trainwright
from trainwright import plugins
from trainwright.config import load
from trainwright.datasets.base import DataBundle
from trainwright.datasets.samples.objects import from_objects
from trainwright.digest import tensor_records
from trainwright.errors import ConfigError, InputError, ModelError, TrainingError
from trainwright.records.journal import evaluations, losses, read
from trainwright.records.run_dir import RunDir
from trainwright.runs.catalog import Catalog
from trainwright.runs.wiring import Components, Objects, build
from trainwright.types import Array, Batch, DataInfo, Ids, SplitName, features_spec

ROUNDS = 24
COUNTS = {"two": 2, "three": 3, "values": 1, "amounts": 1, "pairs": 2}
SAMPLED = {"bootstrap_type": "Bernoulli", "subsample": 0.7, "colsample_bylevel": 0.6, "max_depth": 4}


class Rows:
    """A split in memory, or one that does not expose its arrays."""

    def __init__(self, features: Array, targets: Array, *, shown: bool = True) -> None:
        self._features, self._targets = features, targets
        if shown:
            self.arrays = {"features": features, "target": targets}

    def __len__(self) -> int:
        return len(self._features)

    def take(self, ids: Ids) -> Batch:
        return {"features": self._features[ids], "target": self._targets[ids]}

    def fingerprint(self) -> str:
        return "-"


def bundle(kind: str, *, categories: bool = True, shown: bool = True) -> DataBundle:
    """Return data with 600 training rows of six features, with gaps; the third has twelve categories."""
    random = np.random.default_rng(0)
    features = random.normal(size=(900, 6)).astype(np.float32)
    features[:, 2] = random.integers(0, 12, 900)
    values = (
        features[:, 0]
        + features[:, 1] * features[:, 3]
        + (features[:, 2] % 3 == 1)
        + random.normal(0, 0.3, 900)
    )
    features[random.random(features.shape) < 0.05] = np.nan
    targets: Array = {
        "two": (values > 0).astype(np.int64),
        "three": np.digitize(values, [0, 1]).astype(np.int64),
        "values": values.astype(np.float32),
        "amounts": np.exp(values).astype(np.float32),
        "pairs": np.column_stack([values, -values]).astype(np.float32),
    }[kind]
    task, count = ("classification" if kind in ("two", "three") else "regression"), COUNTS[kind]
    classes = list(range(count)) if task == "classification" else None
    names, kinds = [f"x{i}" for i in range(6)], (0, 0, 12, 0, 0, 0) if categories else ()
    info = DataInfo(task, features_spec((6,)), count, classes, names, categories=kinds)  # type: ignore[arg-type]
    cuts: dict[SplitName, slice] = {"train": slice(0, 600), "val": slice(600, 750), "test": slice(750, 900)}
    return DataBundle(
        info, {name: Rows(features[cut], targets[cut], shown=shown) for name, cut in cuts.items()}
    )


def table() -> str:
    """Return a CSV of 300 rows: noise, numbers, two categories, and a class that depends on them."""
    random = np.random.default_rng(0)
    colors, towns = random.choice(["red", "green", "blue", "grey"], 300), random.integers(0, 25, 300)
    numbers = random.normal(size=(300, 2)).round(3)
    worth = numbers[:, 0] + (colors == "red") + (towns % 3 == 1) + random.normal(0, 0.8, 300)
    rows = [
        f"{n},{m},{color},t{town},{'yes' if w > 0.6 else 'no'}"
        for (n, m), color, town, w in zip(numbers, colors, towns, worth, strict=True)
    ]
    return "n,m,color,town,answer\n" + "\n".join(rows)


def components(data: DataBundle, params: Mapping[str, Any], threads: int = 1, **training: Any) -> Components:
    config = {
        "model": {"type": "catboost", "params": dict(params)},
        "training": {"max_steps": ROUNDS, **training},
    }
    return build(load(config, adapters=Catalog()).config, threads, Objects(data=data))


def trained(data: DataBundle, params: Mapping[str, Any], threads: int = 1) -> Components:
    made = components(data, params, threads)
    for step in range(ROUNDS):
        made.learner.step(step, made.plan.learning_rate)
    return made


class CrossEntropy:
    """A custom objective for CatBoost."""

    def calc_ders_range(self, approxes: Any, targets: Any, weights: Any) -> list[tuple[float, float]]:
        found = []
        for i in range(len(targets)):  # a loop, as CatBoost compiles it
            share = 1 / (1 + np.exp(-approxes[i]))
            found.append((targets[i] - share, -share * (1 - share)))
        return found


class Failing:
    def calc_ders_range(self, approxes: Any, targets: Any, weights: Any) -> list[tuple[float, float]]:
        raise ArithmeticError("this cannot be computed")


class ErrorRate:
    """A custom metric for CatBoost."""

    def is_max_optimal(self) -> bool:
        return False

    def evaluate(self, approxes: Any, target: Any, weight: Any) -> tuple[float, float]:
        return float(((np.asarray(approxes[0]) > 0) != np.asarray(target)).sum()), float(len(target))

    def get_final_error(self, error: float, weight: float) -> float:
        return error / weight


class HitRate(ErrorRate):
    def is_max_optimal(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def mine() -> Iterator[None]:
    """Provide a user's module that a config can name."""
    module = types.ModuleType("mine_catboost")
    module.__dict__.update({cls.__name__: cls for cls in (CrossEntropy, Failing, ErrorRate, HitRate)})
    sys.modules[module.__name__] = module
    yield
    del sys.modules[module.__name__]


# -- exactness

WAYS: list[tuple[str, dict[str, Any]]] = [
    ("two", {}),
    ("two", SAMPLED | {"boosting_type": "Ordered"}),
    ("three", SAMPLED),
    ("values", {"bootstrap_type": "MVS", "subsample": 0.6, "sampling_frequency": "PerTreeLevel"}),
    ("values", {"objective": "Quantile:alpha=0.3"}),
    ("amounts", SAMPLED | {"objective": "Tweedie:variance_power=1.5"}),
    ("pairs", SAMPLED),
    ("three", {"objective": "MultiClassOneVsAll", "one_hot_max_size": 20}),
    ("two", {"grow_policy": "Depthwise", "colsample_bylevel": 0.6}),
    ("two", SAMPLED | {"objective": "mine_catboost:CrossEntropy"}),
    ("two", {"monotone_constraints": {"x0": 1}}),
    ("values", {"objective": "MAE", "monotone_constraints": [1, 0, 0, 0, -1, 0]}),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("kind", "params"), WAYS, ids=[f"{kind}-{'-'.join(params) or 'plain'}" for kind, params in WAYS]
)
def test_every_way_resumes_to_the_same_bits(
    kind: str, params: dict[str, Any], threads: int, tmp_path: Path
) -> None:
    data = bundle(kind, categories=kind != "pairs")
    whole, losses = components(data, params, threads), []
    stops = [step for step in (0, 10, 20) if step % whole.plan.boundary == 0]
    for step in range(ROUNDS):
        if step in stops:
            (tmp_path / str(step)).mkdir()
            whole.learner.snapshot().write(tmp_path / str(step))
        losses += whole.learner.read([whole.learner.step(step, 0.1).loss])
    expected = tensor_records(whole.learner.state())
    for stop in stops:
        resumed = components(data, params, threads)
        resumed.learner.restore(tmp_path / str(stop))
        unread = [resumed.learner.step(step, 0.1).loss for step in range(stop, ROUNDS)]
        assert resumed.learner.read(unread) == losses[stop:], f"resumed after {stop}"
        assert tensor_records(resumed.learner.state()) == expected, f"resumed after {stop}"


@pytest.mark.parametrize(
    "params",
    [SAMPLED, {"boosting_type": "Ordered"}, {"grow_policy": "Lossguide"}],
    ids=lambda one: next(iter(one)),
)
def test_the_number_of_threads_changes_no_bit(params: dict[str, Any]) -> None:
    """As `neutral_changes` declares, also where there are enough rows for several threads."""
    rows = np.arange(3000)
    x = (
        np.stack([rows * 37 % 101, rows * 13 % 29, rows * 7 % 997], axis=1).astype(np.float32) / 7
    )  # (rows, 3)
    data = from_objects((x, (x[:, 0] * x[:, 1] > x[:, 2]).astype(np.int64)), None)
    one, several = (trained(data, params, threads) for threads in (1, 3))
    assert "threads" in one.framework.neutral_changes(one.config)
    assert tensor_records(one.learner.state()) == tensor_records(several.learner.state())
    first, second = (
        np.concatenate([part.outputs for part in made.learner.model().predict(data.splits["val"])])
        for made in (one, several)
    )
    assert np.array_equal(first, second)


def test_the_model_of_an_earlier_step_is_the_same_before_and_after_a_resume(tmp_path: Path) -> None:
    data = bundle("three")
    whole = components(data, SAMPLED)
    for step in range(20):
        whole.learner.step(step, 0.1)
        if step == 6:
            then = tensor_records(whole.learner.state(weights_only=True))
    whole.learner.snapshot().write(tmp_path)
    resumed = components(data, SAMPLED)
    resumed.learner.restore(tmp_path)
    for number, made in enumerate((whole, resumed)):
        (folder := tmp_path / str(number)).mkdir()
        (file,) = made.learner.snapshot(weights_only=True, step=7).write(folder)
        assert file.state() == then


# Every option that affects trees, leaves or category statistics, and each objective.
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *[
        (kind, params)
        for kind in ("two", "three", "values")
        for params in ({}, SAMPLED | {"boosting_type": "Ordered"})
    ],
    ("pairs", {}),
    ("two", {"leaf_estimation_method": "Newton", "leaf_estimation_iterations": 3, "score_function": "L2"}),
    (
        "two",
        {
            "leaf_estimation_method": "Gradient",
            "boost_from_average": True,
            "has_time": True,
            "scale_pos_weight": 3.0,
        },
    ),
    ("two", {"one_hot_max_size": 20, "auto_class_weights": "Balanced", "nan_mode": "Max"}),
    ("three", {"objective": "MultiClassOneVsAll", "max_ctr_complexity": 1, "model_size_reg": 0.0}),
    ("two", {"objective": "CrossEntropy", "bootstrap_type": "Bayesian", "bagging_temperature": 2.0}),
    ("two", {"objective": "Focal:focal_alpha=0.5;focal_gamma=2", "bootstrap_type": "No"}),
    ("values", {"bootstrap_type": "MVS", "subsample": 0.5, "sampling_frequency": "PerTreeLevel"}),
    ("values", {"objective": "MAE", "boost_from_average": True, "boosting_type": "Ordered"}),
    ("values", {"objective": "Quantile:alpha=0.3", "leaf_estimation_method": "Exact"}),
    *[
        ("values", {"objective": name})
        for name in ("Expectile:alpha=0.3", "Huber:delta=1", "LogCosh", "Lq:q=1.5")
    ],
    *[("amounts", {"objective": name}) for name in ("MAPE", "Poisson", "Tweedie:variance_power=1.5")],
]


@pytest.mark.parametrize(
    ("kind", "params"), OPTIONS, ids=[f"{kind}-{'-'.join(params) or 'plain'}" for kind, params in OPTIONS]
)
def test_a_model_that_is_cut_from_a_later_one_is_that_of_its_round(kind: str, params: dict[str, Any]) -> None:
    """Cut the model at several rounds, also before the first tree that needs category statistics."""
    data, made = bundle(kind, categories=kind != "pairs"), {}
    assert components(data, params).plan.cumulative
    for chunk in (1, 5, 9, ROUNDS - 1):
        learner: Any = components(data, params).learner
        learner._rounds._chunk = chunk
        learner.step(0, 0.1)
        made[chunk] = learner
    later = made.pop(ROUNDS - 1)
    for rounds, learner in made.items():
        own, cut = learner.model(), later.model()
        own.rounds = cut.rounds = rounds
        assert tensor_records(learner.state()) == tensor_records(later.state()), f"after {rounds}"
        ours, theirs = (next(iter(model.predict(data.splits["val"]))) for model in (own, cut))
        assert np.array_equal(ours.outputs, theirs.outputs)
        assert np.array_equal(cut.native.predict(later._sample_pool), own.native.predict(later._sample_pool))


@pytest.mark.parametrize(
    "params",
    [{}, SAMPLED, {"monotone_constraints": {"n": 1}, "max_depth": 9}],
    ids=["plain", "sampled", "monotone"],
)
def test_the_best_model_does_not_depend_on_when_the_run_saves(params: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(table(), encoding="utf-8")
    found = []
    for every in (None, 4, 10):
        config = {
            "data": {"path": str(tmp_path / "data.csv"), "target": "answer"},
            "model": {"type": "catboost", "params": {"learning_rate": 0.9, **params}},
            "training": {"max_steps": 24, "threads": 1},
            "evaluation": {"every_n_steps": 1},
            "checkpoint": {"every_n_steps": every, "save_top_k": 2},
        }
        run = trainwright.train(config, runs_dir=tmp_path / "runs")
        records = list(read(RunDir(run.path).journal))
        found.append((run.result["best"], run.digest, losses(records), evaluations(records)))
    assert found[0] == found[1] == found[2]
    assert found[0][0]["step"] < 24, "the best model is not one of those that are cut from a later one"


def test_with_constraints_a_round_changes_the_trees_before_it() -> None:
    """Check that each round runs separately and that its loss is that of its own model."""
    data, params = bundle("two"), {"monotone_constraints": {"x0": 1}}
    made, unread = components(data, params), []
    assert (made.plan.boundary, made.plan.cumulative) == (1, False)
    for step in range(ROUNDS):
        unread.append(made.learner.step(step, 0.1).loss)
        (now,) = made.learner.read(unread[-1:])
        (train,) = made.learner.model().predict(data.splits["train"])
        assert now == train.loss / 600
    assert made.learner.read(unread)[3] != made.learner.read([4])[0]
    config = load(
        {"model": {"type": "catboost", "params": params}, "training": {"device": "cuda"}}, adapters=Catalog()
    ).config
    with pytest.raises(InputError, match="cannot stop after each round"):
        plugins.adapter("framework", "catboost").plan(config, 600)


def test_it_does_not_go_on_where_it_has_no_snapshot(tmp_path: Path) -> None:
    data = bundle("two")
    made = components(data, {})
    for step in range(7):
        made.learner.step(step, 0.1)
    made.learner.snapshot().write(tmp_path)
    resumed = components(data, {})
    resumed.learner.restore(tmp_path)
    assert tensor_records(resumed.learner.state()) == tensor_records(made.learner.state())
    with pytest.raises(TrainingError, match="there is none of round 7"):
        resumed.learner.step(7, 0.1)


def test_the_bytes_say_nothing_of_the_time_or_the_place() -> None:
    found = trained(bundle("two"), {}).learner.model().native.get_metadata()
    assert found["model_guid"] == found["train_finish_time"] == found["catboost_version_info"] == ""
    assert "train_dir" not in found["params"]
    assert "thread_count" not in found["params"]


# -- the library's own results


def test_the_seed_is_that_of_the_run() -> None:
    config = {"model": "catboost", "experiment": {"seed": 42}, "training": {"max_steps": ROUNDS}}
    made = build(load(config, adapters=Catalog()).config, 1, Objects(data=bundle("two")))
    assert made.learner._rounds._options["random_seed"] == 42  # type: ignore[attr-defined]


@pytest.mark.parametrize(("kind", "rounds"), [("two", 24), ("three", 24), ("values", 24), ("two", 205)])
def test_the_trees_are_those_that_catboost_makes_at_once(kind: str, rounds: int) -> None:
    """Compare also beyond 200 rounds, where CatBoost has other defaults."""
    data = bundle(kind, categories=False)
    made = components(data, SAMPLED | {"n_estimators": rounds})
    for step in range(rounds):
        made.learner.step(step, 0.1)
    objective = {"two": "Logloss", "three": "MultiClass", "values": "RMSE"}[kind]
    seed = made.learner._rounds._options["random_seed"]  # type: ignore[attr-defined]
    options = {
        "loss_function": objective,
        "iterations": rounds,
        "random_seed": seed,
        "depth": 4,
        "learning_rate": 0.1,
    }
    options |= {
        "bootstrap_type": "Bernoulli",
        "subsample": 0.7,
        "rsm": 0.6,
        "thread_count": 1,
        "allow_writing_files": False,
    }
    train, val = data.splits["train"], data.splits["val"]
    library = catboost.CatBoost(options).fit(train.arrays["features"], train.arrays["target"], verbose=False)  # type: ignore[attr-defined]
    expected = library.predict(val.arrays["features"], prediction_type="RawFormulaVal")  # type: ignore[attr-defined]
    mine = made.learner.model().native.predict(val.arrays["features"], prediction_type="RawFormulaVal")  # type: ignore[attr-defined]
    assert np.array_equal(mine, expected)


def test_outputs_are_the_librarys() -> None:
    for kind in ("two", "three", "values"):
        data = bundle(kind, categories=False)
        made = trained(data, SAMPLED)
        (found,) = made.learner.model().predict(data.splits["val"])
        model, features = made.learner.model().native, data.splits["val"].arrays["features"]  # type: ignore[attr-defined]
        library = model.predict(features) if kind == "values" else model.predict_proba(features)
        np.testing.assert_allclose(found.outputs, library, rtol=1e-5, atol=1e-7)


def test_outputs_of_a_round_are_not_those_of_the_rounds_made_ahead() -> None:
    data = bundle("two")
    made, losses = components(data, {}), []
    for step in range(12):
        made.learner.step(step, 0.1)
        losses += [found.loss for found in made.learner.model().predict(data.splits["train"])]
    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == 12
    assert made.learner.model().native.tree_count_ == 12


def test_losses_are_those_that_other_frameworks_report() -> None:
    for kind in ("two", "three", "values", "pairs"):
        data = bundle(kind, categories=False)
        made = trained(data, {})
        (found,) = made.learner.model().predict(data.splits["val"])
        if kind in ("two", "three"):
            expected = -np.log(found.outputs[np.arange(150), found.targets]).sum()
        else:
            expected = np.square(found.outputs - found.targets).mean() * 150
        assert found.loss == pytest.approx(float(expected), rel=1e-4)
        (loss,) = made.learner.read([ROUNDS])
        (train,) = made.learner.model().predict(data.splits["train"])
        assert loss == train.loss / 600


def test_the_loss_is_that_of_the_objective() -> None:
    data = bundle("amounts", categories=False)
    expected: dict[str, Any] = {
        "MAE": lambda wanted, found: np.abs(wanted - found),
        "MAPE": lambda wanted, found: np.abs(wanted - found) / np.maximum(1, np.abs(wanted)),
        "Quantile": lambda wanted, found: np.where(wanted > found, 0.5, -0.5) * (wanted - found),
        "Quantile:alpha=5e-2": lambda wanted, found: np.where(wanted > found, 0.05, -0.95) * (wanted - found),
        "Quantile:delta=1e-6;alpha=0.9": lambda wanted, found: (
            np.where(wanted > found, 0.9, -0.1) * (wanted - found)
        ),
    }
    for objective, error in expected.items():
        (found,) = trained(data, {"objective": objective}).learner.model().predict(data.splits["val"])
        assert found.loss == pytest.approx(float(error(found.targets, found.outputs).sum()), rel=1e-4), (
            objective
        )


def test_importance() -> None:
    made = trained(bundle("two"), {})
    (importance,) = made.learner.model().importance().values()
    assert importance.shape == (6,)
    assert importance.argmax() == 0


# -- data and options


def test_rows_that_do_not_show_their_arrays_give_the_same_model() -> None:
    states = [
        tensor_records(trained(bundle("two", shown=shown), SAMPLED).learner.state())
        for shown in (True, False)
    ]
    assert states[0] == states[1]


def test_categories_are_taken_as_categories() -> None:
    states = [
        tensor_records(trained(bundle("two", categories=some), {}).learner.state()) for some in (True, False)
    ]
    assert states[0] != states[1]


def test_a_csv_with_categories_and_gaps_trains_as_it_is(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    colors = random.choice(["red", "green", "blue"], 300)
    lines = [
        f"{i % 7 if i % 9 else ''},{color},{'yes' if color == 'red' else 'no'}"
        for i, color in enumerate(colors)
    ]
    (tmp_path / "data.csv").write_text("n,color of it,answer\n" + "\n".join(lines), encoding="utf-8")
    data = {"path": str(tmp_path / "data.csv"), "target": "answer"}
    run = trainwright.train(
        {"data": data, "model": {"type": "catboost"}, "training": {"epochs": 20}}, runs_dir=tmp_path / "runs"
    )
    assert run.metrics["test_accuracy"] == 1.0
    assert run.manifest["determinism"]["tier"] == "bitwise"


def test_a_metric_of_ones_own_is_the_loss() -> None:
    data = bundle("two")
    made = trained(data, {"metric": "mine_catboost:ErrorRate"})
    (found,) = made.learner.model().predict(data.splits["val"])
    assert found.loss == pytest.approx(float((found.outputs.argmax(axis=1) != found.targets).sum()))


def test_the_seed_decides_what_is_drawn() -> None:
    data, states = bundle("two"), []
    for seed in (0, 1):
        config = {
            "experiment": {"seed": seed},
            "model": {"type": "catboost", "params": SAMPLED},
            "training": {"max_steps": 5},
        }
        made = build(load(config, adapters=Catalog()).config, 1, Objects(data=data))
        made.learner.step(0, 0.1)
        states.append(tensor_records(made.learner.state()))
    assert states[0] != states[1]


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        ("two", {"objective": "RMSE"}, "RMSE does not fit targets of 2 classes; allowed: Logloss"),
        ("values", {"objective": "Logloss"}, "does not fit targets of 1 value; allowed: RMSE, "),
        ("pairs", {"objective": "MAE"}, "does not fit targets of 2 values; allowed: MultiRMSE"),
        ("two", {"objective": "nowhere:AtAll"}, "no module 'nowhere'"),
        ("two", {"metric": "NDCG"}, "is not of the form package.module:Class; use evaluation.metrics"),
        ("two", {"metric": "mine_catboost:HitRate"}, "higher is better, but it is the loss"),
        (
            "two",
            {"objective": "mine_catboost:Failing"},
            "round 1 failed: ArithmeticError: this cannot be computed",
        ),
        ("two", {"bootstrap_type": "Bayesian", "subsample": 0.5}, "round 1 failed: .*subsample"),
        ("values", {"objective": "Quantile:beta=1"}, "round 1 failed: .*beta"),
    ],
)
def test_what_cannot_be_trained_is_said(kind: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as raised:
        components(bundle(kind, categories=kind != "pairs"), params).learner.step(0, 0.1)
    assert ".cpp" not in str(raised.value)
    assert sys.exc_info() == (None, None, None), "CatBoost leaves its error behind"


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(ConfigError, match="did you mean 'max_depth'"):
        components(bundle("two"), {"maxdepth": 3})


def test_a_run_of_few_rounds_needs_no_snapshot() -> None:
    made = components(bundle("two"), {"n_estimators": 4})
    for step in range(4):
        made.learner.step(step, 0.1)
    assert made.learner.model().native.tree_count_ == 4


def test_on_cuda_it_is_trained_at_once() -> None:
    config = load(
        {"model": {"type": "catboost"}, "training": {"device": "cuda", "max_steps": 30}}, adapters=Catalog()
    ).config
    framework = plugins.adapter("framework", "catboost")
    assert framework.plan(config, 600).boundary == 30
    assert framework.determinism(config).tier == "order"
    other = config.model_copy(
        update={"model": config.model.model_copy(update={"params": {"grow_policy": "Lossguide"}})}
    )
    with pytest.raises(InputError, match="Lossguide is not supported on CUDA"):
        framework.plan(other, 600)


def test_a_scheduler_has_no_effect_and_the_log_says_so() -> None:
    given = {"model": {"type": "catboost"}, "training": {"max_steps": 9, "scheduler": "cosine"}}
    (line,) = load(given, adapters=Catalog()).unused
    assert "training.scheduler has no effect on catboost" in line
    made = components(bundle("two"), {"learning_rate": 0.2}, scheduler={"type": "cosine"})
    assert {made.rules.learning_rate(step) for step in range(ROUNDS)} == {0.2}


def test_what_catboost_cannot_do_is_refused() -> None:
    with pytest.raises(InputError, match="learning rate is constant"):
        trainwright.train(
            {"training": {"scheduler": "cosine"}, "data": {"type": "iris"}},
            model=catboost.CatBoostClassifier(),
        )
    config = load({"model": {"type": "catboost", "init_from": "last"}}, adapters=Catalog()).config
    with pytest.raises(InputError, match="only from its own snapshots"):
        build(config, 1, Objects(data=bundle("two")))


# -- estimators


def test_an_estimator_gives_its_options(tmp_path: Path) -> None:
    estimator = catboost.CatBoostClassifier(
        iterations=12, learning_rate=0.1, depth=3, l2_leaf_reg=2, random_seed=4, verbose=False
    )
    config = {"data": {"type": "iris", "standardize": False}, "training": {"threads": 1}}
    run = trainwright.train(config, model=estimator, runs_dir=tmp_path)
    config |= {"experiment": {"seed": 4}}
    assert run.result["steps"] == 12
    options = {"n_estimators": 12, "learning_rate": 0.1, "max_depth": 3, "reg_lambda": 2.0}
    by_name = trainwright.train(
        config | {"model": {"type": "catboost", "params": options}}, runs_dir=tmp_path
    )
    by_path = {"type": "catboost:CatBoostClassifier", "params": options}
    assert (
        run.digest
        == by_name.digest
        == trainwright.train(config | {"model": by_path}, runs_dir=tmp_path).digest
    )


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (catboost.CatBoostRegressor(), "is for regression, but the data are for classification"),
        (catboost.CatBoostRanker(), "CatBoostRanker is not supported"),
        (catboost.CatBoostClassifier(text_features=[0]), "columns of text and of embeddings"),
        (catboost.CatBoostClassifier(eval_metric="NDCG"), "list it in evaluation.metrics"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_estimator_that_cannot_be_followed_is_refused(
    estimator: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        trainwright.train({"data": {"type": "iris"}}, model=estimator, runs_dir=tmp_path)
