"""Every model name of every framework: whichever way a config is trained, the same bits.

A run keeps its config as text. So what a default is in memory must be what that text gives when it is read
again, in type too, or resume, reproduce, reuse and create + work train something else than `train` did.
"""

import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainwright
from small_runs import ImageAt, every_save_on_disk
from trainwright.config import load
from trainwright.frameworks.keras.backend import _pin_tensorflow
from trainwright.frameworks.sklearn.params import entry, table
from trainwright.plugins import BUILT_IN
from trainwright.runs.catalog import Catalog

SMALL_TRANSFORMER = {"hidden_size": 12, "num_heads": 2, "num_layers": 1}
SIZES = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 12, "intermediate_size": 16}
BERT = {"model_type": "bert", "vocab_size": 40, "max_position_embeddings": 12, **SIZES}
LLAMA = {"model_type": "llama", "num_key_value_heads": 1, "max_position_embeddings": 16, **SIZES}
# The data of a model and what makes it small, where rows of numbers and the defaults do not do.
DATA: Mapping[str, tuple[str, dict[str, Any]]] = {
    "cnn": ("images", {"filters": [4], "hidden": [8]}),
    "gpt": ("text", SMALL_TRANSFORMER),
    "keras": ("classification", {}),
    "keras_cnn": ("images", {"filters": [4], "hidden": [8], "image_shape": [8, 8, 1]}),
    "isotonic_regression": ("one column", {}),
    "lstm": ("tokens", {"hidden_size": 8}),
    "resnet": ("images", {}),
    "resnet18": ("images", {}),
    "resnet34": ("images", {}),
    "resnet50": ("images", {}),
    "text_transformer": ("tokens", SMALL_TRANSFORMER),
    "transformer": ("sequences", SMALL_TRANSFORMER),
    "unet": ("masks", {"depth": 1, "base_width": 3}),
    "transformers:AutoModelForSequenceClassification": ("tokens", {"config": BERT}),
    "transformers:AutoModelForCausalLM": ("text", {"config": LLAMA}),
}
LARGE = ("resnet", "resnet18", "resnet34", "resnet50")
SEVERAL_TARGETS = ("cca", "pls_canonical", "multi_task")
GROWS = ("n_estimators", "max_iter")
TASKS = ("classification", "regression")


@cache
def folder() -> Path:
    """Write the data, small and positive, and return their folder."""
    draws = np.random.default_rng(5)
    folder = Path(tempfile.mkdtemp(prefix="trainwright-models-"))
    rows = draws.integers(0, 4, (90, 2)).astype(np.float64)
    amounts = 1 + rows @ draws.random((2, 2)) + draws.random((90, 2))
    ids = draws.integers(3, 40, (40, 8))
    images = draws.random((40, 8, 8, 1), dtype=np.float32)
    arrays: dict[str, dict[str, np.ndarray]] = {
        "classification": {"X": rows, "y": np.digitize(rows.sum(1) + 2 * draws.random(90), [3, 5])},
        "regression": {"X": rows, "y": amounts[:, 0]},
        "one column": {"X": rows[:, :1], "y": amounts[:, 0]},
        "several targets": {"X": rows, "y": amounts},
        "images": {"X": images, "y": np.arange(40) % 2},
        "masks": {"X": images, "y": (images[..., 0] > 0.5).astype(np.int64)},
        "sequences": {"X": draws.random((40, 5, 3), dtype=np.float32), "y": np.arange(40) % 2},
        "tokens": {"input_ids": ids, "attention_mask": np.ones_like(ids), "target": ids[:, 0] % 3},
    }
    for name, content in arrays.items():
        np.savez(folder / f"{name}.npz", **content)
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog.\n" * 30, encoding="utf-8")
    return folder


def data_of(name: str) -> dict[str, Any]:
    """The `data` section of one of the data sets."""
    if name == "text":
        return {"type": "text", "path": str(folder() / "text.txt"), "length": 8}
    if name in ("several targets", "regression", "one column"):
        return {"path": str(folder() / f"{name}.npz"), "task": "regression"}
    return {"path": str(folder() / f"{name}.npz")}


@cache
def write_keras_file() -> None:
    """Write a model file of Keras."""
    import keras

    _pin_tensorflow(1, deterministic=True, seed=0)  # as the runs here: it cannot change once it has begun
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    model.save(folder() / "model.keras")


def required(model: str) -> dict[str, Any]:
    """The options of a model that have no default."""
    if model == "keras":
        return {"file": str(folder() / "model.keras")}
    return DATA[model][1] if model.startswith("transformers:") else {}


def small(framework: str, model: str) -> dict[str, Any]:
    """Options that make a model small."""
    if framework == "sklearn":
        known = entry(model) or {}
        return {key: 3 for key in GROWS if key in known["params"]} if known["steps"] == "growth" else {}
    if framework in ("xgboost", "lightgbm", "catboost"):
        return {"n_estimators": 3}
    return DATA.get(model, ("", {}))[1] | required(model)


def config(model: str, framework: str, task: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """A config of a few steps."""
    several = framework == "sklearn" and model.startswith(SEVERAL_TARGETS)
    return {
        "data": data_of("several targets" if several else DATA.get(model, (task,))[0]),
        "model": {"type": model, "framework": framework, "params": params},
        "training": {"max_steps": 3, "batch_size": 16, "threads": 1},
        "checkpoint": {"every_n_steps": 2},
        "logging": {"every_n_steps": 1},
    }


def models(*marks_of_costly: pytest.MarkDecorator) -> list[Any]:
    """Return (model, framework, task) for each name that a config can have, and what it can be asked.

    Large models are costly, and so is the second task of a name.
    """
    found = []
    for framework, adapter in BUILT_IN["framework"].items():
        for model in table()["models"] if adapter.serves is None else adapter.serves:
            does = entry(model) if adapter.serves is None else DATA.get(model)
            tasks = [task for task in TASKS if does is None or task in does] or ["classification"]
            for task in tasks:
                marks = marks_of_costly if model in LARGE or task != tasks[0] else ()
                found.append(pytest.param(model, framework, task, id=f"{model}-{task}", marks=marks))
    return found


@pytest.mark.parametrize(("model", "framework", "task"), models())
def test_a_config_is_the_same_when_it_is_read_again(
    model: str, framework: str, task: str, tmp_path: Path
) -> None:
    written = load(config(model, framework, task, required(model)), adapters=Catalog())
    path = tmp_path / "config.yaml"
    path.write_text(written.dump(), encoding="utf-8")
    read = load(path, adapters=Catalog())
    # repr tells 1 from 1.0, as == does not.
    assert repr(read.config.model_dump()) == repr(written.config.model_dump())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of fits that do not converge in three iterations
@pytest.mark.parametrize(("model", "framework", "task"), models(pytest.mark.soak))
def test_resumed_worked_reused_and_reproduced_it_is_the_same(
    model: str, framework: str, task: str, tmp_path: Path
) -> None:
    if model == "keras":
        write_keras_file()
    given = config(model, framework, task, small(framework, model))
    runs, cut = tmp_path / "runs", tmp_path / "cut"
    with every_save_on_disk():
        whole = trainwright.train(given, runs_dir=runs, callbacks=[ImageAt(1, runs, cut)])
    assert whole.digest is not None

    assert trainwright.train(given, runs_dir=runs, reuse=True).id == whole.id
    resumed = trainwright.resume(trainwright.get("last", runs_dir=cut))
    assert (resumed.status, resumed.digest) == ("completed", whole.digest)
    worked = trainwright.work(trainwright.create(given, runs_dir=tmp_path / "created"))
    assert (worked.digest, worked.metrics) == (whole.digest, whole.metrics)
    assert trainwright.reproduce(whole).verdict == "identical"
