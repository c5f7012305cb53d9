"""Loaded models of XGBoost, LightGBM and CatBoost: many threads, beside a training, in an unchanged process."""

import ctypes
import random
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier, Event, Lock, Thread
from typing import Any, NamedTuple

import catboost
import lightgbm
import numpy as np
import pytest
import xgboost
from threadpoolctl import threadpool_info

from trainwright.config import load
from trainwright.config.schema import RunConfig
from trainwright.datasets.base import DataBundle
from trainwright.datasets.samples.arrays import Arrays
from trainwright.digest import tensor_records
from trainwright.errors import ModelError
from trainwright.frameworks.base import Framework, Model, ModelInputs
from trainwright.frameworks.lightgbm import LightgbmFramework
from trainwright.frameworks.lightgbm.library import THREAD_NUMBER
from trainwright.runs.catalog import Catalog
from trainwright.runs.frameworks import framework_for
from trainwright.runs.objects import Objects
from trainwright.runs.wiring import Components, build
from trainwright.types import Array, DataInfo, features_spec

ROUNDS, ROWS, VAL, CALLERS = 12, 600, 400, 8
NAMES = ["a", "b", "kind", "d", "e", "f"]
KINDS = 9  # categories of the column `kind`


@dataclass(frozen=True)
class Case:
    """A model: its framework, its target (`two` classes, `three`, or `values`), and its options."""

    framework: str
    target: str
    params: Mapping[str, Any]
    categories: bool = False


_OWN = {"objective": "mine_boosters:{}_gradients", "metric": "mine_boosters:{}_errors"}


def _own(framework: str) -> dict[str, Any]:
    return {key: path.format(framework) for key, path in _OWN.items()}


DART = {"booster": "dart", "rate_drop": 0.3, "subsample": 0.8}
FOREST = {"boosting": "rf", "subsample": 0.7, "subsample_freq": 1}
CASES = {
    "xgboost": Case("xgboost", "three", {}),
    "xgboost-dart": Case("xgboost", "two", DART),
    "xgboost-categories": Case("xgboost", "values", {"subsample": 0.8}, categories=True),
    "xgboost-own": Case("xgboost", "two", _own("xgboost")),
    "lightgbm": Case("lightgbm", "three", {}),
    "lightgbm-dart": Case("lightgbm", "two", {"boosting": "dart", "drop_rate": 0.5}),
    "lightgbm-forest": Case("lightgbm", "values", FOREST),
    "lightgbm-categories": Case(
        "lightgbm", "values", {"subsample": 0.8, "subsample_freq": 1}, categories=True
    ),
    "lightgbm-own": Case("lightgbm", "two", _own("lightgbm")),
    "catboost": Case("catboost", "three", {}),
    "catboost-leafwise": Case("catboost", "values", {"grow_policy": "Lossguide"}),
    "catboost-categories": Case("catboost", "two", {}, categories=True),
    "catboost-own": Case("catboost", "two", _own("catboost")),
}
EACH = [CASES[name] for name in ("xgboost", "lightgbm", "catboost")]


# -- functions of the user's


def _gradients(raw: Array, matrix: Any) -> tuple[Array, Array]:
    shares = 1 / (1 + np.exp(-raw))
    return shares - matrix.get_label(), shares * (1 - shares)


def _error_rate(predictions: Array, matrix: Any) -> float:
    return float(((predictions > 0.5) != matrix.get_label()).mean())


class _CatboostGradients:
    def calc_ders_range(self, approxes: Any, targets: Any, weights: Any) -> list[tuple[float, float]]:
        shares = [1 / (1 + np.exp(-raw)) for raw in approxes]
        return [(targets[i] - share, -share * (1 - share)) for i, share in enumerate(shares)]


class _CatboostErrors:
    def is_max_optimal(self) -> bool:
        return False

    def evaluate(self, approxes: Any, target: Any, weight: Any) -> tuple[float, float]:
        return float(((np.asarray(approxes[0]) > 0) != np.asarray(target)).sum()), float(len(target))

    def get_final_error(self, error: float, weight: float) -> float:
        return error / weight


@pytest.fixture(scope="module", autouse=True)
def mine() -> Iterator[None]:
    """Provide a user's module that a config can name."""
    module = types.ModuleType("mine_boosters")
    module.__dict__.update(
        xgboost_gradients=_gradients,
        xgboost_errors=lambda predictions, matrix: ("errors", _error_rate(predictions, matrix)),
        lightgbm_gradients=_gradients,
        lightgbm_errors=lambda predictions, data: ("errors", _error_rate(predictions, data), False),
        catboost_gradients=_CatboostGradients,
        catboost_errors=_CatboostErrors,
    )
    sys.modules[module.__name__] = module
    yield
    del sys.modules[module.__name__]


# -- models


def bundle(case: Case) -> DataBundle:
    """Return data with gaps; the column `kind` holds numbers, or codes of categories."""
    draw = np.random.default_rng(0)
    features = draw.normal(size=(ROWS + 2 * VAL, len(NAMES))).astype(np.float32)
    features[:, 2] = draw.integers(0, KINDS, len(features))
    values = features[:, 0] + features[:, 1] * features[:, 3] + (features[:, 2] % 3 == 1)
    features[draw.random(features.shape) < 0.05] = np.nan
    targets: Array = {
        "two": (values > 0).astype(np.int64),
        "three": np.digitize(values, [0, 1]).astype(np.int64),
        "values": values.astype(np.float32),
    }[case.target]
    classes = {"two": [0, 1], "three": [0, 1, 2]}.get(case.target)
    info = DataInfo(
        "classification" if classes else "regression",
        features_spec((len(NAMES),)),
        len(classes) if classes else 1,
        classes,
        NAMES,
        categories=(0, 0, KINDS, 0, 0, 0) if case.categories else (),
    )
    train, val, test = np.split(np.arange(len(features)), [ROWS, ROWS + VAL])
    parts: Any = {"train": train, "val": val, "test": test}
    splits: Any = {
        name: Arrays({"features": features[ids], "target": targets[ids]}) for name, ids in parts.items()
    }
    return DataBundle(info, splits)


def config_of(case: Case, params: Mapping[str, Any] | None = None) -> RunConfig:
    options = dict(case.params if params is None else params)
    document = {
        "model": {"type": case.framework, "params": options},
        "training": {"max_steps": ROUNDS, "device": "cpu"},
    }
    return load(document, adapters=Catalog()).config


class Stored(NamedTuple):
    """A trained model, its weights, and what is needed to load it."""

    case: Case
    components: Components
    framework: type[Framework]
    inputs: ModelInputs
    folder: Path

    def load(self) -> Model:
        return self.framework.load(self.inputs, self.folder)

    @property
    def val(self) -> Mapping[str, Array]:
        split: Any = self.components.bundle.splits["val"]
        arrays: Mapping[str, Array] = split.arrays
        return arrays


def stored(case: Case, folder: Path) -> Stored:
    """Train a model with one thread, and write its weights."""
    made = build(config_of(case), 1, Objects(data=bundle(case)))
    for step in range(ROUNDS):
        made.learner.step(step, made.plan.learning_rate or 1)
    made.learner.snapshot(weights_only=True).write(folder)
    inputs = ModelInputs(made.config, made.bundle.info, made.config.model.params, 2)
    return Stored(case, made, framework_for(made.config, made.bundle.info), inputs, folder)


@pytest.fixture(scope="module", params=CASES)
def each(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return stored(CASES[request.param], tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def lightgbm_model(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return stored(CASES["lightgbm"], tmp_path_factory.mktemp("weights"))


def predicted(model: Model, arrays: Mapping[str, Array], rows: slice = slice(None)) -> tuple[bytes, float]:
    """Return the bits of the outputs, and the sum of the losses."""
    parts = list(model.predict(Arrays({name: array[rows] for name, array in arrays.items()})))
    return np.concatenate([part.outputs for part in parts]).tobytes(), sum(part.loss for part in parts)


def in_threads(work: Callable[[int], Any]) -> list[Any]:
    """Return what `work` returns in each of several threads, which start at one moment."""
    barrier = Barrier(CALLERS)

    def started(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(CALLERS) as pool:
        return list(pool.map(started, range(CALLERS)))


# -- outputs


def test_a_loaded_model_has_the_bits_of_the_training(each: Stored) -> None:
    made, model = each.components, each.load()
    (expected,) = made.learner.model().predict(made.bundle.splits["val"])
    assert predicted(model, each.val) == (expected.outputs.tobytes(), expected.loss)
    importance, of_learner = model.importance(), made.learner.model().importance()
    for kind, values in of_learner.items():
        np.testing.assert_array_equal(importance[kind], values)


@pytest.mark.parametrize("case", EACH, ids=lambda case: case.framework)
def test_the_view_of_a_learner_has_the_weights_of_the_moment(case: Case, tmp_path: Path) -> None:
    made = build(config_of(case), 1, Objects(data=bundle(case)))
    split: Any = made.bundle.splits["val"]
    model, outputs = made.learner.model(), []
    for step in range(2):
        made.learner.step(step, 0.1)
        outputs.append(predicted(model, split.arrays))
        if step == 0:
            made.learner.snapshot(weights_only=True).write(tmp_path)
    made.learner.restore(tmp_path, weights_only=True)
    assert made.learner.model() is model
    assert outputs[0] != outputs[1]
    assert predicted(model, split.arrays) == outputs[0]


def test_eight_threads_get_the_bits_of_one(each: Stored) -> None:
    """The models are used for the first time by all threads at once; half of these use a second model."""
    expected, first, second = each.load(), each.load(), each.load()
    slices = [slice(start, start + size) for size in (1, 37, VAL) for start in range(0, 60, 20)]
    wanted = [predicted(expected, each.val, rows) for rows in slices]

    def call(number: int) -> list[Any]:
        model = first if number % 2 else second
        return [[predicted(model, each.val, rows) for rows in slices] for _ in range(4)]

    for found in in_threads(call):
        assert found == [wanted] * 4


def _library_outputs(case: Case, path: Path, features: Array) -> Array:
    """Return the raw values or predictions of a model file, by the library alone."""
    if case.framework == "xgboost":
        types = ["c" if name == "kind" else "float" for name in NAMES] if case.categories else None
        matrix = xgboost.DMatrix(
            features, feature_names=NAMES, feature_types=types, enable_categorical=case.categories
        )
        return np.asarray(xgboost.Booster(model_file=path).predict(matrix))
    if case.framework == "lightgbm":
        return np.asarray(lightgbm.Booster(model_file=path).predict(features))
    model = catboost.CatBoost().load_model(str(path))
    rows = features.astype(object)
    if case.categories:
        rows[:, 2] = [-1 if np.isnan(code) else int(code) for code in features[:, 2]]
    return np.asarray(model.predict(rows))


def _shares(case: Case, outputs: Array) -> Array:
    """Return probabilities of classes, from what a library returns of them."""
    raw = outputs.astype(np.float64)
    if case.framework == "catboost" and raw.ndim == 2:
        return np.exp(raw) / np.exp(raw).sum(axis=1, keepdims=True)
    # The library knows no link.
    if case.framework == "catboost" or (case.framework == "lightgbm" and "objective" in case.params):
        raw = 1 / (1 + np.exp(-raw))
    return raw if raw.ndim == 2 else np.column_stack([1 - raw, raw])


def test_outputs_are_those_of_the_library_alone(each: Stored, tmp_path: Path) -> None:
    case, model = each.case, each.load()
    path = (
        tmp_path / {"xgboost": "model.ubj", "lightgbm": "model.txt", "catboost": "model.cbm"}[case.framework]
    )
    model.native.save_model(path)
    library = _library_outputs(case, path, each.val["features"])
    if case.target != "values":
        library = _shares(case, library)
    (part,) = model.predict(Arrays(dict(each.val)))
    np.testing.assert_allclose(part.outputs, library, rtol=1e-5, atol=1e-6)


def test_weights_of_other_data_are_refused(each: Stored) -> None:
    info = DataInfo(each.inputs.info.task, features_spec((3,)), each.inputs.info.outputs,
                    each.inputs.info.classes, ["a", "b", "c"])  # fmt: skip
    inputs = ModelInputs(each.inputs.config, info, each.inputs.model_params, 1)
    with pytest.raises(ModelError, match="these weights are a model of 6 features, but the data have 3"):
        each.framework.load(inputs, each.folder)


# -- the process


def thread_number() -> ctypes.c_int:
    return ctypes.c_int.in_dll(lightgbm.basic._LIB, "LGBM_DEFAULT_NUM_THREADS")


def test_neither_loading_nor_predicting_changes_the_process(
    each: Stored, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    logger = types.SimpleNamespace(info=print, warning=print)
    monkeypatch.setattr(lightgbm.basic, "_LOGGER", logger)
    thread_number().value = -1  # as it is before the first training

    def process() -> list[Any]:
        pools = sorted((pool["filepath"], pool["num_threads"]) for pool in threadpool_info())
        of_lightgbm = [thread_number().value, lightgbm.basic._LOGGER]
        return [pools, *of_lightgbm, xgboost.get_config(), random.getstate(), str(np.random.get_state())]

    with xgboost.config_context(verbosity=2):
        before = process()
        model = each.load()
        predicted(model, each.val)
        in_threads(lambda _: predicted(each.load(), each.val))
        assert process() == before
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("case", EACH, ids=lambda case: case.framework)
def test_a_training_beside_it_has_the_bits_of_one_alone(case: Case, tmp_path: Path) -> None:
    """In other threads, and between its steps in its own; with another number of threads."""
    loaded = stored(case, tmp_path)
    params = {**case.params, "subsample": 0.7, "learning_rate": 0.1}
    params |= {"bootstrap_type": "Bernoulli"} if case.framework == "catboost" else {"colsample_bytree": 0.6}

    def train(beside: Callable[[], Any]) -> Any:
        made = build(config_of(case, params), 2, Objects(data=loaded.components.bundle))
        for step in range(ROUNDS):
            made.learner.step(step, 0.1)
            beside()
        return tensor_records(made.learner.state())

    alone = train(lambda: None)
    assert train(lambda: predicted(loaded.load(), loaded.val)) == alone
    model, ended = loaded.load(), Event()
    wanted = predicted(model, loaded.val)

    def call() -> bool:
        is_right = True
        while not ended.is_set():
            is_right &= predicted(model, loaded.val) == wanted
        return is_right

    with ThreadPoolExecutor(3) as pool:
        callers = [pool.submit(call) for _ in range(3)]
        try:
            assert train(lambda: None) == alone
        finally:
            ended.set()
    assert all(caller.result() for caller in callers)


def test_metrics_of_xgboost_are_computed_in_one_thread_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its documents promise threads for predictions alone."""
    it = stored(CASES["xgboost"], tmp_path)
    inside, evaluate, overlaps = Lock(), xgboost.Booster.eval_set, []

    def watched(*args: Any) -> str:
        if not inside.acquire(blocking=False):
            overlaps.append(args)
            return evaluate(*args)
        try:
            return evaluate(*args)
        finally:
            inside.release()

    monkeypatch.setattr(xgboost.Booster, "eval_set", watched)
    model = it.load()
    in_threads(lambda _: [predicted(model, it.val) for _ in range(30)])
    assert not overlaps


def test_a_loaded_model_of_lightgbm_uses_the_threads_that_are_set(lightgbm_model: Stored) -> None:
    for number in (3, 1, -1):
        thread_number().value = number
        predicted(lightgbm_model.load(), lightgbm_model.val)
        assert thread_number().value == number
    LightgbmFramework.pin(lightgbm_model.inputs.config, 2)
    assert thread_number().value == 2


def test_lightgbm_gets_another_number_of_threads_only_between_predictions() -> None:
    thread_number().value = 1
    with THREAD_NUMBER.kept(lightgbm) as number:
        setting = Thread(target=THREAD_NUMBER.set, args=(lightgbm, 2))
        setting.start()
        while setting.is_alive() and not THREAD_NUMBER._is_wanted:
            pass
        entering = ThreadPoolExecutor(1).submit(_kept_number)
        assert (number, thread_number().value) == (1, 1)
    setting.join()
    assert entering.result() == thread_number().value == 2, "a new prediction waits for the number"


def _kept_number() -> int:
    with THREAD_NUMBER.kept(lightgbm) as number:
        return number


@pytest.mark.parametrize("name", ["lightgbm", "catboost"])
def test_what_the_user_does_to_the_native_model_does_not_reach_it(name: str, tmp_path: Path) -> None:
    it = stored(CASES[name], tmp_path)
    model = it.load()
    before = predicted(model, it.val)
    if name == "lightgbm":
        model.native.set_leaf_output(0, 0, 99.0)
        assert model.native.get_leaf_output(0, 0) != 99.0
    else:
        model.native.shrink(1)
        assert model.native.tree_count_ == ROUNDS
    assert predicted(model, it.val) == before
