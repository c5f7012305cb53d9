"""The LightGBM framework: it trains LightGBM's own models, and every option resumes bit-identically."""

import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest

import trainwright
from small_runs import Crash, CrashAt
from trainwright import plugins
from trainwright.config import load
from trainwright.datasets.base import DataBundle
from trainwright.digest import tensor_records
from trainwright.errors import ConfigError, InputError, ModelError
from trainwright.frameworks.lightgbm import learner as adapter
from trainwright.frameworks.lightgbm.data import safe_names
from trainwright.frameworks.lightgbm.learner import faster_layout
from trainwright.runs.catalog import Catalog
from trainwright.runs.wiring import Components, Objects, build
from trainwright.types import Array, Batch, DataInfo, Ids, SplitName, features_spec

ROUNDS = 34
COUNTS = {"two": 2, "three": 3, "values": 1, "amounts": 1}
SAMPLED = {
    "subsample": 0.7,
    "subsample_freq": 1,
    "colsample_bytree": 0.6,
    "colsample_bynode": 0.7,
    "extra_trees": True,
}
GOSS = {"data_sample_strategy": "goss", "learning_rate": 0.2}


class Taken:
    """A split that does not expose its arrays."""

    def __init__(self, features: Array, targets: Array) -> None:
        self._features, self._targets = features, targets

    def __len__(self) -> int:
        return len(self._features)

    def take(self, ids: Ids) -> Batch:
        return {"features": self._features[ids], "target": self._targets[ids]}

    def fingerprint(self) -> str:
        return "-"


class Shown(Taken):
    """A split in memory."""

    def __init__(self, features: Array, targets: Array) -> None:
        super().__init__(features, targets)
        self.arrays = {"features": features, "target": targets}


def rows(kind: str) -> tuple[Array, Array]:
    """Return 900 rows of six features, with gaps, and targets; the third has twelve categories."""
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
    targets = {
        "two": (values > 0).astype(np.int64),
        "three": np.digitize(values, [0, 1]).astype(np.int64),
        "values": values.astype(np.float32),
        "amounts": np.exp(values).astype(np.float32),
    }
    return features, targets[kind]


def bundle(kind: str, split: type[Taken] = Shown) -> DataBundle:
    features, targets = rows(kind)
    task, count = ("classification" if kind in ("two", "three") else "regression"), COUNTS[kind]
    classes = list(range(count)) if task == "classification" else None
    names = [f"x{i}" for i in range(6)]
    info = DataInfo(task, features_spec((6,)), count, classes, names, categories=(0, 0, 12, 0, 0, 0))  # type: ignore[arg-type]
    cuts: dict[SplitName, slice] = {"train": slice(0, 600), "val": slice(600, 750), "test": slice(750, 900)}
    return DataBundle(info, {name: split(features[cut], targets[cut]) for name, cut in cuts.items()})


def components(data: DataBundle, params: Mapping[str, Any], threads: int = 1, **training: Any) -> Components:
    config = {
        "model": {"type": "lightgbm", "params": dict(params)},
        "training": {"max_steps": ROUNDS, **training},
    }
    return build(load(config, adapters=Catalog()).config, threads, Objects(data=data))


def trained(data: DataBundle, params: Mapping[str, Any], threads: int = 1, **training: Any) -> Components:
    made = components(data, params, threads, **training)
    for step in range(ROUNDS):
        made.learner.step(step, made.plan.learning_rate)
    return made


def trees(text: str) -> str:
    return text[text.index("Tree=0") : text.index("end of trees")]


def gradients(raw: Array, dataset: Any) -> tuple[Array, Array]:
    """Return gradients and hessians of the cross entropy for two classes."""
    shares = 1 / (1 + np.exp(-raw))
    return shares - dataset.get_label(), shares * (1 - shares)


def error_rate(predictions: Array, dataset: Any) -> tuple[str, float, bool]:
    return "error", float(((predictions > 0.5) != dataset.get_label()).mean()), False


@pytest.fixture(autouse=True)
def mine() -> Iterator[None]:
    """Provide a user's module that a config can name."""
    module = types.ModuleType("mine_lightgbm")
    module.__dict__.update({"gradients": gradients, "error_rate": error_rate, "number": 3})
    sys.modules[module.__name__] = module
    yield
    del sys.modules[module.__name__]


# -- exactness

WAYS: list[tuple[str, dict[str, Any]]] = [
    ("two", {}),
    ("two", SAMPLED),
    ("three", SAMPLED | {"subsample_freq": 3}),
    ("values", {"subsample": 0.5, "subsample_freq": 1}),
    ("values", SAMPLED | {"objective": "quantile", "alpha": 0.3}),
    ("amounts", SAMPLED | {"objective": "tweedie"}),
    ("three", SAMPLED | {"objective": "multiclassova", "class_weight": "balanced"}),
    ("values", SAMPLED | {"monotone_constraints": {"x0": 1}}),
    ("two", GOSS),
    # It starts to sample rows between two boundaries
    (
        "two",
        GOSS | {"learning_rate": 0.08, "colsample_bytree": 0.6},
    ),
    ("three", GOSS | {"top_rate": 0.4, "other_rate": 0.3, "colsample_bytree": 0.6}),
    ("values", GOSS | {"objective": "regression_l1", "learning_rate": 1 / 3}),
    ("two", SAMPLED | {"boosting": "dart"}),
    ("three", SAMPLED | {"boosting": "rf"}),
    ("two", SAMPLED | {"objective": "mine_lightgbm:gradients"}),
    ("two", GOSS | {"objective": "mine_lightgbm:gradients"}),
    ("values", GOSS | {"monotone_constraints": {"x0": 1}, "path_smooth": 1.0, "min_child_samples": 100}),
    (
        "two",
        SAMPLED
        | {
            "subsample_freq": 4,
            "monotone_constraints": {"x0": 1},
            "path_smooth": 1.0,
            "min_child_samples": 150,
        },
    ),
    # Rounds without any split, the first one included.
    ("two", {"min_child_samples": 280, "subsample": 0.95, "subsample_freq": 3, "colsample_bytree": 0.4}),
    (
        "three",
        {
            "min_child_samples": 275,
            "subsample": 0.95,
            "subsample_freq": 1,
            "colsample_bytree": 0.3,
            "colsample_bynode": 0.5,
        },
    ),
    ("two", GOSS | {"min_split_gain": 8.0, "colsample_bytree": 0.3, "learning_rate": 0.5}),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("kind", "params"), WAYS, ids=[f"{kind}-{'-'.join(params) or 'plain'}" for kind, params in WAYS]
)
def test_every_way_resumes_to_the_same_bits(
    kind: str, params: dict[str, Any], threads: int, tmp_path: Path
) -> None:
    data = bundle(kind)
    whole = components(data, params, threads)
    rate, losses = whole.plan.learning_rate, []
    stops = [step for step in (0, 1, 4, 7, 10, 20, 30) if step % whole.plan.boundary == 0]
    for step in range(ROUNDS):
        if step in stops:
            (tmp_path / str(step)).mkdir()
            whole.learner.snapshot().write(tmp_path / str(step))
        losses += whole.learner.read([whole.learner.step(step, rate).loss])
    expected = tensor_records(whole.learner.state())
    predicted = [found.loss for found in whole.learner.model().predict(data.splits["val"])]
    for stop in stops:
        resumed = components(data, params, threads)
        resumed.learner.restore(tmp_path / str(stop))
        unread = [resumed.learner.step(step, rate).loss for step in range(stop, ROUNDS)]
        assert resumed.learner.read(unread) == losses[stop:], f"resumed after {stop}"
        assert tensor_records(resumed.learner.state()) == expected, f"resumed after {stop}"
        assert [found.loss for found in resumed.learner.model().predict(data.splits["val"])] == predicted


def test_the_learning_rate_may_change_in_every_round(tmp_path: Path) -> None:
    data = bundle("two")
    whole, resumed = components(data, SAMPLED), components(data, SAMPLED)
    for step in range(ROUNDS):
        if step == 10:
            whole.learner.snapshot().write(tmp_path)
        whole.learner.step(step, 0.3 / (1 + step // 3))
    resumed.learner.restore(tmp_path)
    for step in range(10, ROUNDS):
        resumed.learner.step(step, 0.3 / (1 + step // 3))
    assert tensor_records(resumed.learner.state()) == tensor_records(whole.learner.state())
    assert tensor_records(whole.learner.state()) != tensor_records(trained(data, SAMPLED).learner.state())


def test_the_seed_decides_what_is_drawn() -> None:
    data = bundle("two")
    for params in (SAMPLED, GOSS, SAMPLED | {"boosting": "dart"}):
        config = {"model": {"type": "lightgbm", "params": params}, "training": {"max_steps": ROUNDS}}
        found = set()
        for seed in (0, 1):
            made = build(
                load(config | {"experiment": {"seed": seed}}, adapters=Catalog()).config,
                1,
                Objects(data=data),
            )
            for step in range(ROUNDS):
                made.learner.step(step, 0.1)
            found.add(str(tensor_records(made.learner.state(weights_only=True))))
        assert len(found) == 2, params


def test_rounds_differ_in_what_they_draw() -> None:
    made = trained(
        bundle("two"),
        {
            "subsample": 0.5,
            "subsample_freq": 1,
            "colsample_bytree": 0.5,
            "num_leaves": 2,
            "learning_rate": 1e-6,
        },
    )
    features = {
        tree["tree_structure"]["split_feature"]
        for tree in made.learner.model().native.dump_model()["tree_info"]
    }
    counts = {
        tree["tree_structure"]["internal_count"]
        for tree in made.learner.model().native.dump_model()["tree_info"]
    }
    assert len(features) > 1
    assert len(counts) > 4, "the same rows are drawn again and again"


# -- the library's own results


@pytest.mark.parametrize("kind", ["two", "three", "values"])
def test_without_sampling_the_trees_are_those_of_lightgbm_train(kind: str) -> None:
    data = bundle(kind)
    made = trained(data, {"num_leaves": 9})
    objective = {"two": "binary", "three": "multiclass", "values": "regression"}[kind]
    params = {
        "objective": objective,
        "num_leaves": 9,
        "num_threads": 1,
        "verbosity": -1,
        "force_col_wise": True,
    }
    params |= {"num_class": 3} if kind == "three" else {}
    train = data.splits["train"]
    dataset = lightgbm.Dataset(train.arrays["features"], train.arrays["target"], categorical_feature=[2])  # type: ignore[attr-defined]
    assert trees(made.learner.model().native.model_to_string()) == trees(
        lightgbm.train(params, dataset, ROUNDS).model_to_string()
    )


# -- the layout of histograms


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count all data as large enough for a measurement."""
    monkeypatch.setattr(adapter, "_MEASURED_VALUES", 0)


@pytest.fixture(scope="module")
def wide() -> DataBundle:
    """Return rows of which the sums of histograms depend on their order."""
    random = np.random.default_rng(0)
    features = random.normal(size=(3000, 8)).astype(np.float32)
    targets = (features[:, 0] + random.normal(0, 1, 3000)).astype(np.float32)
    info = DataInfo("regression", features_spec((8,)), 1, None, [f"x{i}" for i in range(8)])
    cuts: dict[SplitName, slice] = {
        "train": slice(0, 2000),
        "val": slice(2000, 2500),
        "test": slice(2500, 3000),
    }
    return DataBundle(info, {name: Shown(features[cut], targets[cut]) for name, cut in cuts.items()})


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("layout", ["row_wise", "col_wise"])
def test_trees_are_built_in_the_layout_that_was_chosen(wide: DataBundle, layout: str) -> None:
    config = load({"model": "lightgbm", "training": {"max_steps": ROUNDS}}, adapters=Catalog()).config
    made = build(config, 1, Objects(data=wide), {"histograms": layout})
    for step in range(ROUNDS):
        made.learner.step(step, 0.1)
    params = {"objective": "regression", "num_threads": 1, "verbosity": -1, f"force_{layout}": True}
    train = wide.splits["train"]
    dataset = lightgbm.Dataset(train.arrays["features"], train.arrays["target"])  # type: ignore[attr-defined]
    expected = lightgbm.train(params, dataset, ROUNDS).model_to_string()
    assert trees(made.learner.model().native.model_to_string()) == trees(expected)
    assert made.learner.choices() == {"histograms": layout}


def test_little_data_needs_no_measurement(wide: DataBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(adapter, "faster_layout")
    made = components(wide, {})
    assert made.learner.choices() == {}


@pytest.mark.parametrize("layout", ["row_wise", "col_wise"])
def test_the_layout_is_the_one_that_lightgbm_says_it_has_chosen(layout: str) -> None:
    class Library:
        def register_logger(self, logger: Any) -> None:
            self.logger = logger

        def Booster(self, params: Mapping[str, Any], dataset: Any) -> None:
            assert params == {"num_leaves": 9, "verbosity": 1}
            self.logger.info(f"Auto-choosing {layout.replace('_', '-')} multi-threading, the overhead ...")

    assert faster_layout(Library(), None, {"num_leaves": 9, "verbosity": -1}) == layout


def test_lightgbm_still_says_what_it_has_chosen(
    wide: DataBundle, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Our test reads its log; a later version may phrase it in another way."""
    said: list[str] = []
    monkeypatch.setattr(adapter._Messages, "info", lambda self, message: said.append(message))
    train = wide.splits["train"].arrays  # type: ignore[attr-defined]
    dataset = lightgbm.Dataset(train["features"], train["target"])
    faster_layout(lightgbm, dataset.construct(), {"objective": "regression", "verbosity": -1})
    assert [text for text in said if "Auto-choosing row-wise" in text or "Auto-choosing col-wise" in text]
    assert capfd.readouterr().out == ""


@pytest.mark.usefixtures("large")
def test_the_layout_is_chosen_once_in_the_life_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["row_wise"])  # a second question finds none
    monkeypatch.setattr(adapter, "faster_layout", lambda *_: next(answers))
    config = {
        "data": "wine",
        "model": "lightgbm",
        "training": {"max_steps": 20},
        "logging": {"every_n_steps": 1},
    }
    with pytest.raises(Crash):
        trainwright.train(config, runs_dir=tmp_path, callbacks=[CrashAt(12)])
    run = trainwright.resume("last", runs_dir=tmp_path)
    assert run.decisions == [{"step": 0, "kind": "choice", "detail": {"histograms": "row_wise"}}]
    assert trainwright.reproduce(run).verdict == "identical"


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("two", SAMPLED),
        ("three", SAMPLED),
        ("values", SAMPLED),
        ("amounts", {"objective": "poisson"}),
        ("three", {"boosting": "rf", **SAMPLED}),
        ("two", {"boosting": "dart"}),
    ],
    ids=str,
)
def test_outputs_are_the_librarys_however_they_came_about(kind: str, params: dict[str, Any]) -> None:
    data = bundle(kind)
    made = components(data, params)
    for step in range(ROUNDS):
        made.learner.step(step, made.plan.learning_rate)
        # As after each round: new trees are added to the scores
        (found,) = made.learner.model().predict(data.splits["val"])
    val = data.splits["val"]
    library = made.learner.model().native.predict(val.arrays["features"], num_threads=1)  # type: ignore[attr-defined]
    library = np.column_stack([1 - library, library]) if kind == "two" else library
    np.testing.assert_allclose(found.outputs, library, rtol=1e-6, atol=1e-7)
    (afresh,) = made.learner.model().predict(Shown(val.arrays["features"], val.arrays["target"]))  # type: ignore[attr-defined]
    assert np.array_equal(found.outputs, afresh.outputs)
    assert found.loss == afresh.loss


def test_losses_are_those_that_other_frameworks_report() -> None:
    for kind in ("two", "values"):
        data = bundle(kind)
        made = trained(data, {})
        (found,) = made.learner.model().predict(data.splits["val"])
        picked = (
            found.outputs[np.arange(150), found.targets] if kind == "two" else found.outputs - found.targets
        )
        expected = -np.log(picked).sum() if kind == "two" else np.square(picked).sum()
        assert found.loss == pytest.approx(float(expected), rel=1e-5)


def test_the_loss_of_a_round_is_that_of_the_training_rows() -> None:
    data = bundle("two")
    made = components(data, SAMPLED)
    for step in range(4):
        (loss,) = made.learner.read([made.learner.step(step, 0.1).loss])
        (found,) = made.learner.model().predict(data.splits["train"])
        assert loss == pytest.approx(found.loss / 600, rel=1e-12)


def test_of_many_rows_a_sample_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainwright.frameworks.support.inputs.LOSS_SAMPLE", (100, 200))
    data = bundle("two")
    made = components(data, {})
    (loss,) = made.learner.read([made.learner.step(0, 0.1).loss])
    (found,) = made.learner.model().predict(data.splits["train"])
    assert loss != found.loss / 600
    assert loss == pytest.approx(found.loss / 600, rel=0.05)


def test_importance_counts_splits_and_sums_gains() -> None:
    made = trained(bundle("two"), {})
    found, library = made.learner.model().importance(), made.learner.model().native.feature_importance
    assert set(found) == {"gain", "split"}
    assert found["split"].sum() > ROUNDS
    assert np.array_equal(found["gain"], library("gain"))


# -- data


def test_rows_that_are_not_in_memory_give_a_model_of_the_same_worth(tmp_path: Path) -> None:
    models = {split: trained(bundle("two", split), SAMPLED) for split in (Shown, Taken)}
    losses = [
        next(iter(made.learner.model().predict(made.bundle.splits["val"]))).loss for made in models.values()
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    streamed = models[Taken]
    streamed.learner.snapshot().write(tmp_path)
    again = components(bundle("two", Taken), SAMPLED)
    again.learner.restore(tmp_path)
    assert tensor_records(again.learner.state()) == tensor_records(streamed.learner.state())


def test_categories_are_split_as_sets() -> None:
    made = trained(bundle("two"), {"min_data_per_group": 5, "cat_smooth": 1.0})
    assert "num_cat=1" in made.learner.model().native.model_to_string()


def test_names_that_lightgbm_refuses_are_changed() -> None:
    assert safe_names(["a b", 'c"{x}', "d"]) == ["a_b", "c__x_", "d"]
    assert safe_names(["a b", "a_b"]) == ["feature_0", "feature_1"]


def test_a_csv_with_categories_and_gaps_trains_as_it_is(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    colors = random.choice(["red", "green", "blue"], 300)
    lines = [
        f"{i % 7 if i % 9 else ''},{color},{'yes' if color == 'red' else 'no'}"
        for i, color in enumerate(colors)
    ]
    (tmp_path / "data.csv").write_text("n,color of it,answer\n" + "\n".join(lines), encoding="utf-8")
    data = {"path": str(tmp_path / "data.csv"), "target": "answer"}
    config = {"data": data, "model": {"type": "lightgbm"}, "training": {"epochs": 20}}
    run = trainwright.train(config, runs_dir=tmp_path / "runs")
    assert run.metrics["test_accuracy"] == 1.0
    assert run.manifest["determinism"]["tier"] == "bitwise"


# -- options


def test_n_estimators_wins_over_epochs() -> None:
    assert components(bundle("two"), {"n_estimators": 7}).plan.total_steps == 7
    assert components(bundle("two"), {}).plan.total_steps == ROUNDS


def test_a_metric_of_ones_own_is_the_loss() -> None:
    data = bundle("two")
    made = trained(data, {"metric": "mine_lightgbm:error_rate"})
    (found,) = made.learner.model().predict(data.splits["val"])
    assert found.loss == pytest.approx(150 * float((found.outputs.argmax(axis=1) != found.targets).mean()))


def test_a_metric_of_which_more_is_better_is_no_loss() -> None:
    sys.modules["mine_lightgbm"].__dict__["hits"] = lambda predictions, dataset: ("hits", 1.0, True)
    made = components(bundle("two"), {"metric": "mine_lightgbm:hits"})
    made.learner.step(0, 0.1)
    with pytest.raises(ModelError, match=r"higher is better, but it is the loss"):
        made.learner.read([1])


def test_an_objective_of_ones_own_learns_as_the_one_it_copies() -> None:
    data = bundle("two")
    own = trained(data, {"objective": "mine_lightgbm:gradients"})
    usual = trained(data, {"boost_from_average": False})
    outputs = [next(iter(made.learner.model().predict(data.splits["val"]))).outputs for made in (own, usual)]
    np.testing.assert_allclose(*outputs, atol=0.02)


def test_an_objective_that_takes_the_targets_first_gets_arrays() -> None:
    def first(y_true: Array, y_pred: Array) -> tuple[Array, Array]:
        shares = 1 / (1 + np.exp(-y_pred))
        return shares - y_true, shares * (1 - shares)

    sys.modules["mine_lightgbm"].__dict__["first"] = first
    states = [
        tensor_records(trained(bundle("two"), {"objective": path}).learner.state(weights_only=True))
        for path in ("mine_lightgbm:first", "mine_lightgbm:gradients")
    ]
    assert states[0] == states[1]


def test_a_model_goes_on_from_another(tmp_path: Path) -> None:
    data = bundle("two")
    first = trained(data, SAMPLED)
    first.learner.snapshot(weights_only=True).write(tmp_path)
    for params in (SAMPLED, GOSS, {"boosting": "dart"}):
        onward = components(data, params)
        onward.learner.restore(tmp_path, weights_only=True)
        for step in range(10):
            onward.learner.step(step, onward.plan.learning_rate)
        (tmp_path / str(params)).mkdir()
        onward.learner.snapshot().write(tmp_path / str(params))
        onward.learner.step(10, onward.plan.learning_rate)
        assert onward.learner.model().native.num_trees() == ROUNDS + 11
        resumed = components(data, params)
        resumed.learner.restore(tmp_path / str(params))
        resumed.learner.step(10, onward.plan.learning_rate)
        assert tensor_records(resumed.learner.state()) == tensor_records(onward.learner.state())


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        ("values", SAMPLED, "objective regression, the run|objective binary"),
        ("three", SAMPLED, "another number of classes"),
    ],
)
def test_a_model_that_does_not_fit_is_not_gone_on_from(
    kind: str, params: dict[str, Any], message: str, tmp_path: Path
) -> None:
    trained(bundle("two"), {}).learner.snapshot(weights_only=True).write(tmp_path)
    with pytest.raises(ModelError, match=message):
        components(bundle(kind), params).learner.restore(tmp_path, weights_only=True)


def test_a_forest_does_not_go_on_from_another_model() -> None:
    config = {"model": {"type": "lightgbm", "params": {"boosting": "rf", **SAMPLED}, "init_from": "last"}}
    with pytest.raises(InputError, match="averages its trees"):
        build(load(config, adapters=Catalog()).config, 1, Objects(data=bundle("two")))


def test_a_share_of_rows_that_nothing_draws_is_named(caplog: pytest.LogCaptureFixture) -> None:
    trained(bundle("two"), {"subsample": 0.5, "subsample_freq": 1})
    assert not caplog.messages
    trained(bundle("two"), {"subsample": 0.5})
    assert caplog.messages == [
        "model.subsample has no effect without model.subsample_freq: 1, as in LightGBM"
    ]


def test_the_best_model_is_evaluated_after_the_training(tmp_path: Path) -> None:
    for params in (SAMPLED, {"boosting": "dart"}, {"boosting": "rf", **SAMPLED}):
        made = trained(bundle("three"), params)
        expected = next(iter(made.learner.model().predict(made.bundle.splits["val"]))).loss
        (folder := tmp_path / str(params)).mkdir()
        made.learner.snapshot(weights_only=True).write(folder)
        made.learner.step(ROUNDS, made.plan.learning_rate)
        made.learner.restore(folder, weights_only=True)
        assert next(iter(made.learner.model().predict(made.bundle.splits["val"]))).loss == expected


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        ("two", {"objective": "regression"}, "regression does not fit targets of 2 classes; allowed: binary"),
        ("values", {"objective": "binary"}, "does not fit targets of values; allowed: regression, "),
        ("two", {"objective": "mine_lightgbm:number"}, "is not a function but of type int; give a function"),
        ("two", {"objective": "nowhere:at_all"}, "no module 'nowhere'"),
        ("two", {"metric": "ndcg"}, "is not of the form package.module:function; use evaluation.metrics"),
        ("two", {"metric": "mine_lightgbm:absent"}, "has no 'absent'"),
        ("two", {"data_sample_strategy": "goss", "subsample": 0.5}, "goss draws the rows itself"),
        ("two", {"data_sample_strategy": "goss", "boosting": "rf"}, "cannot be combined with boosting: rf"),
        (
            "two",
            {"data_sample_strategy": "goss", "top_rate": 0.8, "other_rate": 0.3},
            "must be at most 1, not 1.1",
        ),
        ("two", {"boosting": "rf"}, "rf needs colsample_bytree below 1"),
        ("two", {"is_unbalance": True, "scale_pos_weight": 2.0}, "exclude each other"),
        ("two", {"monotone_constraints": [1, 0]}, "2 entries for 6 features"),
        ("two", {"monotone_constraints": {"y": 1}}, "no feature 'y'; allowed: x0, x1"),
        ("values", {"objective": "quantile", "alpha": 1.5}, "this model cannot be trained: .*alpha"),
        ("two", {"device_type": "cuda"}, "was not enabled in this build; use training.device: cpu"),
    ],
)
def test_what_cannot_be_trained_is_said(kind: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        components(bundle(kind), params)


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(ConfigError, match="did you mean 'num_leaves'"):
        components(bundle("two"), {"num_leafs": 3})


@pytest.mark.parametrize("params", [GOSS, {"boosting": "dart"}], ids=str)
def test_where_the_learning_rate_cannot_change_a_scheduler_is_refused(params: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="the learning rate must stay constant"):
        components(bundle("two"), params, scheduler={"type": "cosine"})


def test_an_objective_that_fails_is_named() -> None:
    sys.modules["mine_lightgbm"].__dict__["gradients"] = lambda raw, dataset: (raw[:3], raw[:3])
    made = components(bundle("two"), {"objective": "mine_lightgbm:gradients"})
    with pytest.raises(ModelError, match="round 1 failed: ValueError: Lengths of gradient"):
        made.learner.step(0, 0.1)


def test_on_another_device_it_claims_no_exactness() -> None:
    config = load(
        {"model": {"type": "lightgbm"}, "training": {"device": "cuda:1"}}, adapters=Catalog()
    ).config
    assert plugins.adapter("framework", "lightgbm").determinism(config).tier == "order"


# -- estimators


def test_an_estimator_gives_its_options(tmp_path: Path) -> None:
    estimator = lightgbm.LGBMClassifier(
        n_estimators=12, num_leaves=5, subsample=0.8, subsample_freq=1, random_state=4
    )
    config = {"data": {"type": "iris", "standardize": False}, "training": {"threads": 1}}
    run = trainwright.train(config, model=estimator, runs_dir=tmp_path)
    config |= {"experiment": {"seed": 4}}
    assert run.result["steps"] == 12
    options = {"n_estimators": 12, "num_leaves": 5, "subsample": 0.8, "subsample_freq": 1}
    by_name = trainwright.train(
        config | {"model": {"type": "lightgbm", "params": options}}, runs_dir=tmp_path
    )
    by_path = {"type": "lightgbm:LGBMClassifier", "params": options}
    assert (
        run.digest
        == by_name.digest
        == trainwright.train(config | {"model": by_path}, runs_dir=tmp_path).digest
    )


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (lightgbm.LGBMRegressor(), "is for regression, but the data are for classification"),
        (lightgbm.LGBMRanker(), "LGBMRanker is not supported"),
        (lightgbm.LGBMClassifier(linear_tree=True), "trees with linear leaves are not offered"),
        (lightgbm.LGBMClassifier(num_leaves=1), "num_leaves: Input should be greater than 1"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_estimator_that_cannot_be_followed_is_refused(
    estimator: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        trainwright.train({"data": {"type": "iris"}}, model=estimator, runs_dir=tmp_path)


def test_an_estimators_own_objective_gets_the_targets_first() -> None:
    def swapped(targets: Array, raw: Array) -> tuple[Array, Array]:
        shares = 1 / (1 + np.exp(-raw))
        return shares - targets, shares * (1 - shares)

    data = bundle("two")
    config = load({"model": {"type": "lightgbm:LGBMClassifier"}}, adapters=Catalog()).config
    estimator = lightgbm.LGBMClassifier(objective=swapped, n_estimators=ROUNDS)
    made = build(config, 1, Objects(data=data, model=estimator))
    for step in range(ROUNDS):
        made.learner.step(step, 0.1)
    by_path = trained(data, {"objective": "mine_lightgbm:gradients"})
    assert tensor_records(made.learner.state(weights_only=True)) == tensor_records(
        by_path.learner.state(weights_only=True)
    )


def test_too_few_rows_for_any_split_are_said() -> None:
    info = DataInfo("classification", features_spec((1,)), 2, [0, 1], ["a"])
    rows = Shown(np.arange(30, dtype=np.float32).reshape(30, 1), np.arange(30) % 2)
    made = components(DataBundle(info, {"train": rows, "val": rows, "test": rows}), {"min_child_samples": 20})
    with pytest.raises(
        ModelError,
        match=r"no feature can be split; give more rows, or lower model\.params\.min_child_samples",
    ):
        made.learner.step(0, 0.1)
