"""Models of images, texts and several arrays in ONNX predict what their runs predict."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import trainwright
from trainwright import api
from trainwright.errors import DifferentArtifactError, InputError
from trainwright.records.artifact import read_certificate
from trainwright.runs.run import Run

onnx = pytest.importorskip("onnx")
pytest.importorskip("torch")
RUNS = "runs"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with images, texts and arrays, which is the working directory."""
    folder = tmp_path_factory.mktemp("arrays")
    draws = np.random.default_rng(3)
    for i in range(40):
        path = folder / "pictures" / ("dark" if i % 2 else "light") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = draws.integers(0, 128, (12 + i % 3, 14, 3)) + (0 if i % 2 else 127)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    words = ["good", "fast", "bad", "slow", "never", "Straße", "\N{SNOWMAN}"]
    with open(folder / "said.csv", "w", encoding="utf-8", newline="") as file:
        rows = [[" ".join(draws.choice(words, i % 9)), "yes" if i % 2 else "no"] for i in range(80)]
        csv.writer(file).writerows([["said", "likes"], *rows])
    np.savez(
        folder / "orders.npz",
        numbers=draws.normal(size=(60, 4)).astype(np.float32),
        words=draws.integers(0, 50, (60, 6)),
        cost=draws.normal(size=60).astype(np.float32),
        target=draws.integers(0, 2, 60),
    )
    (folder / "text.txt").write_text("a line of text\n" * 200)
    before = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.fixture(scope="module")
def trained(folder: Path) -> Callable[..., Run]:
    """Return a function that trains a model for a few steps."""

    def train(data: dict[str, Any], model: Any, **training: Any) -> Run:
        fixed = {"max_steps": 3, "batch_size": 8, "threads": 1}
        config = {"data": data, "model": model, "training": {**fixed, **training}}
        return api.train(config, runs_dir=folder / RUNS, quiet=True)

    return train


def read(path: Path, *words: str) -> list[str]:
    """Return the lines that an artifact's reader writes in a process that has no Trainwright."""
    code = (
        "import runpy, sys; sys.modules['trainwright'] = None; sys.argv = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    script = str(path.with_name(f"{path.name}.reader.py"))
    done = subprocess.run(
        [sys.executable, "-c", code, script, *words], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def check_table(lines: list[str], own: Any) -> None:
    """Check that lines of CSV are the predictions of a run."""
    rows = list(csv.DictReader(lines))
    assert [row["prediction"] for row in rows] == [str(one) for one in own["prediction"]]
    for name in own.columns:
        if name.startswith("probability_"):
            assert [float(row[name]) for row in rows] == pytest.approx(list(own[name]), abs=1e-5)


RESIZES = [
    [{"type": "resize", "size": [8, 10], "interpolation": "bicubic"}, "normalize"],
    [{"type": "random_resized_crop", "size": [7, 9]}],
    [{"type": "resize", "size": 9}, {"type": "random_crop", "size": [10, 8], "padding": 1}, "normalize"],
]


@pytest.mark.parametrize(
    "transforms",
    [RESIZES[0], *(pytest.param(one, marks=pytest.mark.services) for one in RESIZES[1:])],
    ids=["resize", "random_resized_crop", "crop"],
)
def test_images(trained: Callable[..., Run], tmp_path: Path, folder: Path, transforms: list[Any]) -> None:
    """The reader reads files of several sizes as the run does; the graph has the normalization."""
    mode = "gray" if len(transforms) > 2 else "rgb"
    data = {"type": "image_folder", "path": "pictures", "mode": mode, "transforms": transforms}
    run = trained(data, {"type": "cnn", "filters": [4], "hidden": []})
    path = api.export(run, tmp_path / "model.onnx", "onnx")
    files = sorted((folder / "pictures").rglob("*.png"))[:7]
    (folder / "rows.csv").write_text("\n".join(["image", *(str(one) for one in files)]))
    check_table(read(path, "predict", "rows.csv"), api.load(run).predict([str(one) for one in files]))
    check_table(read(path, "predict", str(files[0])), api.load(run).predict([str(files[0])]))
    known = read_certificate(path)
    assert known.compared["rows"] == {"edge": 6, "test": 4}
    assert known.inputs[0]["dtype"] == "uint8"
    assert "edge rows and 1 rows" in _verified_test_rows(path, run, folder)


def _verified_test_rows(path: Path, run: Run, folder: Path) -> str:
    """Return what `verify` says of the first image of the test split."""
    bundle = api.load(run).load_data()
    name = bundle.identifiers["test"].values[0]
    (folder / "rows.csv").write_text(f"image\n{Path(name).absolute()}\n")
    return api.verify_certificate(path, folder / "rows.csv")


def test_another_mean_is_found(
    trained: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainwright.datasets.images.preparation import ImagePreparation

    data = {"type": "image_folder", "path": "pictures", "transforms": RESIZES[0]}
    run = trained(data, {"type": "cnn", "filters": [4], "hidden": []})
    monkeypatch.setattr(ImagePreparation, "scaling", ([0.5, 0.5, 0.5], [0.2, 0.2, 0.2]))
    with pytest.raises(DifferentArtifactError, match=r"run .*; nothing was written"):
        api.export(run, tmp_path / "model.onnx", "onnx")
    assert list(tmp_path.iterdir()) == []


LSTM = {"type": "lstm", "embedding_dim": 6, "hidden_size": 8, "num_layers": 2}
TEXT_MODELS: dict[str, dict[str, Any]] = {
    "text_transformer": {"type": "text_transformer", "hidden_size": 8, "num_layers": 1, "num_heads": 2},
    "lstm": LSTM,
    "lstm both ways": {**LSTM, "bidirectional": True},
    "lstm mean": {**LSTM, "bidirectional": True, "pooling": "mean"},
    "bert": {
        "type": "transformers:AutoModelForSequenceClassification",
        "config": {
            "model_type": "bert",
            "hidden_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 8,
            "max_position_embeddings": 16,
        },
    },
}


@pytest.mark.parametrize(
    ("model", "tokenizer"),
    [
        ("text_transformer", "bpe"),
        ("lstm both ways", "bytes"),
        pytest.param("lstm", "bytes", marks=pytest.mark.services),
        pytest.param("lstm mean", "bytes", marks=pytest.mark.services),
        pytest.param("bert", "bytes", marks=pytest.mark.services),
    ],
)
def test_texts(trained: Callable[..., Run], tmp_path: Path, folder: Path, model: str, tokenizer: str) -> None:
    """From texts by the reader, cut or padded as in training; and from shorter rows of tokens."""
    if model == "bert":
        pytest.importorskip("transformers")
    data = {
        "type": "text_table",
        "path": "said.csv",
        "text": "said",
        "target": "likes",
        "max_length": 16,
        "tokenizer": tokenizer,
    }
    run = trained(data, TEXT_MODELS[model])
    path = api.export(run, tmp_path / "model.onnx", "onnx")
    texts = ["", "good", "bad " * 40, "\N{CRAB} unseen", "slow, never\nfast"]
    with open(folder / "rows.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["said"], *([one] for one in texts)])
    own = api.load(run).predict(texts)
    check_table(read(path, "predict", "rows.csv"), own)
    beside = path.with_name("model.onnx.tokenizer.json")
    assert beside.is_file() == (tokenizer == "bpe")
    assert ("model.onnx.tokenizer.json" in read_certificate(path).files) == (tokenizer == "bpe")
    if model.startswith("lstm"):  # torch exports one of a fixed length
        return
    import onnxruntime

    ids = api.load(run).preparation.arrays(["good"])
    length = int(ids["attention_mask"].sum())
    session = onnxruntime.InferenceSession(path)
    short = {name: array[:, :length] for name, array in ids.items()}
    (found,) = session.run(["probabilities"], short)
    np.testing.assert_allclose(
        found[0], own.iloc[1][["probability_no", "probability_yes"]].astype(float), atol=1e-5
    )


def test_a_changed_tokenizer_is_found(trained: Callable[..., Run], tmp_path: Path) -> None:
    data = {"type": "text_table", "path": "said.csv", "text": "said", "target": "likes", "max_length": 8}
    run = trained({**data, "tokenizer": "bpe"}, TEXT_MODELS["text_transformer"])
    path = api.export(run, tmp_path / "model.onnx", "onnx")
    beside = path.with_name("model.onnx.tokenizer.json")
    kept = json.loads(beside.read_text(encoding="utf-8"))
    beside.write_text(json.dumps(kept))
    with pytest.raises(DifferentArtifactError, match=r"tokenizer.json: its SHA-256"):
        api.verify_certificate(path)


def test_tokens_with_labels(trained: Callable[..., Run], tmp_path: Path) -> None:
    """From lists of words; the artifact has a label for each token, padding included."""
    words = [["Ada", "is", "in", "Rome"][: 2 + i % 3] for i in range(40)]
    tags = [["B-PER", "O", "O", "B-LOC"][: len(one)] for one in words]
    pd.DataFrame({"words": words, "tags": tags}).to_parquet("words.parquet")
    data = {
        "type": "text_table",
        "path": "words.parquet",
        "text": "words",
        "target": "tags",
        "max_length": 24,
    }
    run = trained(data, TEXT_MODELS["text_transformer"])
    path = api.export(run, tmp_path / "model.onnx", "onnx")
    rows = [["Rome", "Ada"], [], ["no"] * 30]
    with open("rows.csv", "w", newline="") as file:
        csv.writer(file).writerows([["words"], *([json.dumps(one)] for one in rows)])
    found = list(csv.DictReader(read(path, "predict", "rows.csv")))
    model = api.load(run)
    outputs = model.outputs(rows)
    for line, labels, probabilities in zip(found, model.table(outputs)["prediction"], outputs, strict=True):
        assert json.loads(line["prediction"]) == list(labels)
        np.testing.assert_allclose(json.loads(line["probabilities"]), probabilities, atol=1e-5)


def test_a_language_model(trained: Callable[..., Run], tmp_path: Path, folder: Path) -> None:
    """Its logits, of any length up to that of training."""
    gpt = {"type": "gpt", "hidden_size": 8, "num_layers": 1, "num_heads": 1}
    data = {"type": "text", "path": "text.txt", "length": 16, "tokenizer": "bytes"}
    run = trained(data, gpt, batch_size=4)
    path = api.export(run, tmp_path / "model.onnx", "onnx")
    import onnxruntime
    import torch

    ids = np.random.default_rng(0).integers(0, 256, (3, 5))
    (found,) = onnxruntime.InferenceSession(path).run(["logits"], {"input_ids": ids})
    with torch.no_grad():
        own = api.load(run).native(torch.from_numpy(ids))
    np.testing.assert_allclose(found, own.numpy(), atol=1e-5)
    np.savez(folder / "ids.npz", input_ids=np.tile(ids, 4)[:, :16])
    lines = list(csv.DictReader(read(path, "predict", "ids.npz")))
    assert np.array(json.loads(lines[2]["logits"])).shape == (16, 256)
    for use in (
        lambda: api.predict(path, "text.txt"),
        lambda: api.evaluate(path, data="text.txt"),
        lambda: api.compare(run, path),
        lambda: api.generate(path, "a line"),
    ):
        with pytest.raises(InputError, match=rf"model.onnx gives logits.* or name run {run.id} itself"):
            use()


def test_several_arrays(
    trained: Callable[..., Run], tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = Path(__file__).parents[2] / "examples"
    monkeypatch.syspath_prepend(str(examples))
    heads = {"cost": {"loss": "mse", "weight": 0.5}}
    data = {"type": "npz", "path": "orders.npz"}
    run = trained(data, "two_heads:TwoHeads", heads=heads)
    path = trainwright.export(run, tmp_path / "model.onnx", "onnx")
    assert [one["name"] for one in read_certificate(path).inputs] == ["numbers", "words"]
    arrays = np.load("orders.npz")
    own = api.load(run).predict({name: arrays[name] for name in ("numbers", "words")})
    check_table(read(path, "predict", "orders.npz"), own)


def test_masks(trained: Callable[..., Run], tmp_path: Path, folder: Path) -> None:
    for i in range(12):
        for name in ("scenes", "masks"):
            (folder / name).mkdir(exist_ok=True)
        mask = np.zeros((8, 8), np.uint8)
        mask[: i % 7 + 1, 2:6] = 3
        Image.fromarray(mask).save(folder / "masks" / f"{i}.png")
        Image.fromarray(mask * 60 + 10).save(folder / "scenes" / f"{i}.png")
    data = {"type": "image_folder", "path": "scenes", "masks": "masks", "mode": "gray"}
    run = trained(data, {"type": "unet", "depth": 1, "base_width": 2})
    path = api.export(run, tmp_path / "model.onnx", "onnx")
    lines = list(csv.DictReader(read(path, "predict", "scenes/3.png")))
    own = api.load(run).predict(["scenes/3.png"])["prediction"][0]
    np.testing.assert_array_equal(json.loads(lines[0]["prediction"]), own)
    assert set(np.unique(own)) <= {0, 3}
    found, wanted = (api.predict(one, "scenes") for one in (path, run))
    assert found["image"].tolist() == wanted["image"].tolist()
    assert len(found) == 12
    np.testing.assert_array_equal(list(found["prediction"]), list(wanted["prediction"]))
    compared = api.compare(run, path, runs_dir=folder / RUNS)
    assert (compared.rows, compared.equal_labels) == (1, 1.0)
    assert compared.largest_difference < 1e-5
    with pytest.raises(InputError, match="leave --data out"):
        api.compare(run, path, data="scenes")
