"""Models without a target, or with one of any form: the loss is the user's own, or the model's."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from tests.small_runs import SMALL, assert_same, whole_and_resumed
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import trainwright
from trainwright.config.schema import DataConfig
from trainwright.datasets.samples.objects import from_objects
from trainwright.datasets.samples.structures import STRUCTURE, flattened, restored
from trainwright.errors import DataError, InputError, ModelError
from trainwright.runs.run import Run

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(60, 6)).astype(np.float32)


class Autoencoder(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 2), nn.Dropout(0.1), nn.Linear(2, width))

    def forward(self, x: Tensor) -> Tensor:
        rebuilt: Tensor = self.layers(x)
        return rebuilt


def reconstruction(outputs: Tensor, batch: Any) -> Tensor:
    assert set(batch) == {"features"}
    return nn.functional.mse_loss(outputs, batch["features"])


class Vae(nn.Module):
    """Returns its loss, and draws in training."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(width, 4), nn.Linear(2, width)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        mean, log_var = self.encode(x).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (log_var / 2).exp() if self.training else mean
        rebuilt = self.decode(code)
        divergence = (log_var.exp() + mean**2 - 1 - log_var).sum(1).mean() / 2
        loss = nn.functional.mse_loss(rebuilt, x) + 0.1 * divergence
        return {"loss": loss, "rebuilt": rebuilt, "code": mean}


class Boxes(Dataset[Any]):
    """Images of several widths, each with one to three boxes."""

    def __init__(self, count: int = 40, first: int = 0) -> None:
        self.count, self.first = count, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        rng = np.random.default_rng(self.first + i)
        boxes = torch.from_numpy(rng.random((int(rng.integers(1, 4)), 4)).astype(np.float32))
        image = torch.zeros(1, 4, 3 + len(boxes))
        image[0, :, 0] = boxes.mean(0)
        return image, {"boxes": boxes, "labels": torch.ones(len(boxes), dtype=torch.int64), "name": f"{i}"}


def together(items: list[Any]) -> tuple[list[Tensor], list[Any]]:
    return [image for image, _ in items], [target for _, target in items]


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1))

    def forward(self, images: list[Tensor], target: list[Any] | None = None) -> Any:
        found = [self.head(image[0, :, 0]) for image in images]
        if target is None:
            return torch.stack(found)
        errors = [(box - one["boxes"].mean(0)).abs().mean() for box, one in zip(found, target, strict=True)]
        return torch.stack(errors).mean(), torch.stack(found)


class BoxesCounted:
    """A metric that adds up by itself, of targets that are mappings."""

    greater_is_better = True

    def __init__(self) -> None:
        self.count = torch.zeros(())

    def update(self, outputs: Any, batch: Any) -> None:
        self.count += sum(len(one["boxes"]) for one in batch["target"])

    def merge(self, other: Any) -> None:
        self.count += other["count"]

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]

    def compute(self) -> float:
        return float(self.count)


def own(**settings: Any) -> dict[str, Any]:
    return {"training": {"max_steps": 12, "batch_size": 8, "learning_rate": 0.05, "threads": 1}, **settings}


def test_an_autoencoder_from_a_config_is_resumed_to_the_bit_and_rebuilds_rows(tmp_path: Path) -> None:
    overrides = {
        "data.target": None,
        "data.exclude": ["target"],
        "model": f"{__name__}:Autoencoder",
        "training.loss": f"{__name__}:reconstruction",
    }
    run, resumed = whole_and_resumed(tmp_path, overrides)
    assert_same(resumed, run)
    assert trainwright.reproduce(run).verdict == "identical"
    predictor = trainwright.load(run)
    bundle = predictor.load_data()
    val = torch.from_numpy(bundle.splits["val"].take(np.arange(len(bundle.splits["val"])))["features"])
    with torch.no_grad():
        rebuilt = predictor.native.eval()(val)
    assert run.metrics["val_loss"] == pytest.approx(float(nn.functional.mse_loss(rebuilt, val)), rel=1e-5)
    frame = pd.DataFrame([[5.1, 3.5, 1.4, 0.2], [6.0, 2.9, 4.5, 1.5]], columns=bundle.info.feature_names)
    predicted = predictor.predict(frame)
    assert list(predicted.columns) == [f"prediction_{i}" for i in range(4)]
    features = torch.from_numpy(bundle.preparation.features(frame))  # type: ignore[union-attr]
    with torch.no_grad():
        expected = predictor.native(features).numpy()
    np.testing.assert_allclose(predicted.to_numpy(), expected, rtol=1e-5)
    assert set(predictor.evaluate("test", frame).metrics) == {"test_loss"}
    assert "custom_loss" in (run.path / "report.html").read_text()


def test_a_model_that_returns_its_loss_trains_on_data_of_each_form(tmp_path: Path) -> None:
    settings = own(data={"target": None})
    items = TensorDataset(torch.from_numpy(ROWS[:40])), TensorDataset(torch.from_numpy(ROWS[40:]))
    forms: list[Any] = [
        (ROWS[:40], ROWS[40:]),
        {"train": {"features": ROWS[:40]}, "val": {"features": ROWS[40:]}},
        items,
        tuple(DataLoader(one, batch_size=8) for one in items),
        {"train": [{"x": row} for row in ROWS[:40]], "val": [{"x": row} for row in ROWS[40:]]},
    ]
    digests = set()
    for data in forms:
        torch.manual_seed(0)
        run = trainwright.train(settings, data=data, model=Vae(), runs_dir=tmp_path)
        digests.add((run.digest, run.metrics["val_loss"]))
    assert len(digests) == 1
    predictor = trainwright.load(run, model=Vae())
    with torch.no_grad():
        expected = predictor.native.eval()(torch.from_numpy(ROWS))
    assert run.metrics["val_loss"] == pytest.approx(
        float(predictor.native(torch.from_numpy(ROWS[40:]))["loss"]), rel=1e-5
    )
    outputs = predictor.outputs(ROWS)
    np.testing.assert_allclose(outputs["code"], expected["code"].numpy(), rtol=1e-5, atol=1e-6)
    assert outputs.dtype.names == ("rebuilt", "code")
    assert len(predictor.predict(ROWS).columns) == 8


def test_boxes_train_by_the_collate_function_of_their_loader(tmp_path: Path) -> None:
    settings = own(data={"task": "custom_loss"}, evaluation={"metrics": [f"{__name__}:BoxesCounted"]})
    settings["training"]["microbatch_size"] = 3
    splits = {"train": Boxes(), "val": Boxes(12, 1000)}
    data = {name: DataLoader(one, batch_size=8, collate_fn=together) for name, one in splits.items()}
    torch.manual_seed(0)
    model = Detector()
    run = trainwright.train(settings, data=data, model=model, runs_dir=tmp_path)
    val = [splits["val"][i] for i in range(12)]
    with torch.no_grad():
        loss, _ = model.eval()(*together(val))
    assert run.metrics["val_loss"] == pytest.approx(float(loss), rel=1e-5)
    assert run.metrics["val_BoxesCounted"] == sum(len(target["boxes"]) for _, target in val)


def boxes() -> dict[str, Any]:
    return {"train": Boxes(), "val": Boxes(12, 1000)}


def test_boxes_are_resumed_to_the_bit(tmp_path: Path) -> None:
    overrides = {
        "data": {"type": f"{__name__}:boxes", "task": "custom_loss", "collate": f"{__name__}:together"},
        "model": f"{__name__}:Detector",
        "training.microbatch_size": 5,
        "training.loss": "model",
    }
    run, resumed = whole_and_resumed(tmp_path, overrides)
    assert_same(resumed, run)


def test_targets_of_any_form_are_stacked_where_they_can_be() -> None:
    items = [(row, {"mask": np.ones((2, 3)) * i, "at": (i, float(i))}) for i, row in enumerate(ROWS)]
    train = from_objects({"train": items}, DataConfig(task="custom_loss")).splits["train"]
    batch = restored(train.take(np.array([3, 1])), lambda _, array: array)
    np.testing.assert_array_equal(batch["features"], ROWS[[3, 1]])
    assert batch["target"]["mask"].shape == (2, 2, 3)
    assert [one.tolist() for one in batch["target"]["at"]] == [[3, 1], [3.0, 1.0]]
    odd = from_objects({"train": Boxes()}, DataConfig(task="custom_loss")).splits["train"]
    with pytest.raises(DataError, match=r"differ in what they hold; .*data\.collate: MODULE:FUNCTION"):
        odd.take(np.arange(8))


def test_structures_come_back_as_they_were() -> None:
    given = {"a": ROWS, "b": [{"x": np.arange(3), "name": "one"}, (np.ones(2), None)]}
    flat = flattened(given, lambda _, value: value)
    assert set(flat) == {"a", "b.0.x", "b.1.0", STRUCTURE}
    again = restored(flat, lambda _, array: array)
    assert again["b"][0]["name"] == "one"
    assert isinstance(again["b"][1], tuple)
    assert again["b"][1][1] is None
    np.testing.assert_array_equal(again["b"][0]["x"], np.arange(3))
    assert STRUCTURE not in flattened({"a": ROWS}, lambda _, value: value)


def train_rows(folder: Path, model: Any = None, **changes: Any) -> Run:
    return trainwright.train(
        own(data={"target": None}),
        changes,
        data=(ROWS[:40], ROWS[40:]),
        model=model or Vae(),
        runs_dir=folder,
    )


def test_what_needs_a_target_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="metric 'accuracy' is for classification, but the task is custom_loss"
    ):
        train_rows(tmp_path, **{"evaluation.metrics": ["accuracy"]})
    with pytest.raises(
        ModelError, match=r"training\.loss: mse is not a loss for custom_loss; allowed: auto, model"
    ):
        train_rows(tmp_path, **{"training.loss": "mse"})
    with pytest.raises(ModelError, match=r"the model is to return its loss, but returned a tensor of shape"):
        train_rows(tmp_path, Autoencoder(6))
    with pytest.raises(InputError, match=r"data\.target is null, but the task is regression"):
        train_rows(tmp_path, **{"data.task": "regression"})
    with pytest.raises(InputError, match="torch supports every task"):
        trainwright.train(
            {**SMALL, "model": "random_forest", "training": {}, "data": {"type": "iris", "target": None}},
            runs_dir=tmp_path,
        )


@pytest.mark.services
def test_two_processes_give_the_bits_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    config = {
        "data": {"type": f"{__name__}:boxes", "task": "custom_loss", "collate": f"{__name__}:together"},
        "model": f"{__name__}:Detector",
        "training": {"max_steps": 12, "batch_size": 8, "microbatch_size": 3, "threads": 1, "loss": "model"},
        "distributed": {"virtual": {"data": 2}},
    }
    one, two = (trainwright.train(config, {"distributed.nproc": n}, runs_dir=tmp_path) for n in (1, 2))
    assert (two.digest, two.metrics) == (one.digest, one.metrics)


class Blurred(nn.Module):
    """Returns its loss, and images."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        made: Tensor = self.layer(images)
        return nn.functional.l1_loss(made, images), made


def test_images_without_classes_become_images(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for i in range(20):
        Image.fromarray(RNG.integers(0, 255, (6, 6), dtype=np.uint8)).save(folder / f"{i:02}.png")
    data = {"type": "image_folder", "path": str(folder), "mode": "gray", "target": None}
    config = own(data=data, model=f"{__name__}:Blurred")
    run = trainwright.train(config, runs_dir=tmp_path)
    made = np.stack(trainwright.load(run).predict(str(folder))["prediction"])
    assert made.shape == (20, 1, 6, 6)
    for name in ("made.csv", "made.parquet"):
        trainwright.predict_file(run, folder, tmp_path / name)
    in_csv = np.array([json.loads(cell) for cell in pd.read_csv(tmp_path / "made.csv")["prediction"]])
    np.testing.assert_array_equal(in_csv.astype(np.float32), made)
    in_parquet = pyarrow.parquet.read_table(tmp_path / "made.parquet")["prediction"].to_pylist()
    np.testing.assert_array_equal(np.array(in_parquet, np.float32), made)


def test_the_rows_of_a_file_of_arrays_without_a_target(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", X=ROWS)
    config = own(data={"path": str(tmp_path / "rows.npz"), "target": None}, model=f"{__name__}:Vae")
    run = trainwright.train(config, runs_dir=tmp_path)
    assert set(run.metrics) == {"val_loss", "test_loss"}


class Shifted:
    """A feature step that is fitted without a target."""

    def fit(self, rows: Any, target: Any = None) -> None:
        assert target is None
        self.least = float(rows.min(axis=None))

    def transform(self, rows: Any) -> Any:
        return rows - self.least


def test_columns_of_ones_own_are_fitted_without_a_target(tmp_path: Path) -> None:
    frame = pd.DataFrame(ROWS, columns=[f"x{i}" for i in range(6)])
    frame.to_csv(tmp_path / "rows.csv", index=False)
    data = {"path": str(tmp_path / "rows.csv"), "target": None, "features_from": f"{__name__}:Shifted"}
    run = trainwright.train(own(data=data, model=f"{__name__}:Vae"), runs_dir=tmp_path)
    assert set(run.metrics) == {"val_loss", "test_loss"}
    assert len(trainwright.load(run).predict(frame.head(3))) == 3
    assert set(trainwright.load(run).evaluate("test", frame).metrics) == {"test_loss"}


def test_the_example_of_a_vae_runs_in_a_small_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    vae = importlib.import_module("vae")
    monkeypatch.setitem(vae.CONFIG["training"], "epochs", 2)
    vae.main()
    assert "nats; the rebuilt pixels differ by 0." in capsys.readouterr().out


def test_data_that_can_only_be_iterated_are_refused() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            yield from ROWS

    for data in (Stream(), {"train": Stream()}, DataLoader(Stream())):
        with pytest.raises(DataError, match="can only be iterated"):
            from_objects(data, DataConfig(target=None))
