"""Data loaders, classes of data sets and dict samples, as people bring them along from their own loops."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

import trainwright
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import Draw, SampleSplit
from trainwright.datasets.samples.objects import from_objects
from trainwright.errors import DataError

RNG = np.random.default_rng(0)
X = torch.from_numpy(RNG.normal(3, 2, size=(120, 4)))
Y = (X[:, 0] > 3).long()
PAIRS = TensorDataset(X[:90], Y[:90]), TensorDataset(X[90:], Y[90:])


class Images(Dataset[Any]):
    """A map-style data set with dict samples."""

    classes = ("left", "right")

    def __init__(self, split: str = "train", count: int = 40) -> None:
        if split == "test":
            raise ValueError("there is no test split")
        self.count, self.offset = (count, 0) if split == "train" else (8, 1000)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> dict[str, Any]:
        image = np.zeros((1, 4, 4), np.float32)
        image[0, :, 2 * (i % 2)] = 1 + (i + self.offset) / 1000
        return {"image": torch.from_numpy(image), "label": i % 2}


def config(**settings: Any) -> DataConfig:
    return DataConfig.model_validate(settings)


def prints(bundle: Any) -> list[str]:
    return [split.fingerprint() for split in bundle.splits.values()]


def test_loaders_give_their_data_sets_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trainwright")
    loaders = tuple(DataLoader(pair, batch_size=16, shuffle=True) for pair in PAIRS)
    assert prints(from_objects(loaders)) == prints(from_objects(PAIRS))
    assert "the train split is a data loader: its data set is used, shuffled by the run's seed" in caplog.text
    assert from_objects({"train": DataLoader(Images()), "validation": Images("val")}, config(target="label"))


def test_subsets_of_tensors_have_columns_as_their_tensors(tmp_path: Path) -> None:
    whole = TensorDataset(X, Y)
    halves = Subset(whole, range(90)), Subset(whole, range(90, 120))
    assert prints(from_objects(halves)) == prints(from_objects(PAIRS))


@pytest.mark.parametrize(
    ("loader", "says"),
    [
        (lambda: DataLoader(Stream()), "Stream can only be iterated; a run that resumes needs a map-style"),
        (
            lambda: DataLoader(PAIRS[0], sampler=WeightedRandomSampler([1.0] * 90, 90)),
            "WeightedRandomSampler decides which rows a batch has.*data.weight",
        ),
    ],
)
def test_loaders_that_cannot_be_followed_are_refused(loader: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        from_objects({"train": loader()})


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


def test_a_collate_function_gets_each_row_alone() -> None:
    def collate(items: list[Any]) -> tuple[Any, Any]:
        return torch.stack([item["image"] * 2 for item in items]), torch.tensor(
            [item["label"] for item in items]
        )

    bundle = from_objects({"train": DataLoader(Images(), batch_size=8, collate_fn=collate)})
    batch = bundle.splits["train"].take(np.arange(4))
    expected = np.stack([Images()[i]["image"].numpy() * 2 for i in range(4)])
    np.testing.assert_array_equal(batch["features"], expected)
    assert batch["target"].tolist() == [0, 1, 0, 1]
    assert bundle.info.classes == ["left", "right"]


class Texts(Dataset[Any]):
    """Sequences of several lengths; the first four are of one length if `late`."""

    def __init__(self, late: bool = False) -> None:
        self.late = late

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> Any:
        length = 5 if self.late and i < 4 else 3 + i % 4
        return torch.arange(1, length + 1), i % 2


def padded(items: list[Any]) -> tuple[Any, Any]:
    tokens = torch.nn.utils.rnn.pad_sequence([tokens for tokens, _ in items], batch_first=True)
    return tokens, torch.tensor([label for _, label in items])


def centered(items: list[Any]) -> tuple[Any, Any]:
    features = torch.stack([item[0] for item in items])
    return features - features.mean(0), torch.stack([item[1] for item in items])


def noisy(items: list[Any]) -> tuple[Any, Any]:
    features = torch.stack([item[0] + torch.rand(4) for item in items])
    return features, torch.stack([item[1] for item in items])


def mixed(items: list[Any]) -> tuple[Any, Any]:
    features = torch.stack([item[0] for item in items])
    partner = (torch.randperm(len(items)) + 1) % len(items)
    return (features + features[partner]) / 2, torch.stack([item[1] for item in items])


def test_a_collate_function_of_a_loader_gets_the_whole_batch() -> None:
    train = from_objects({"train": DataLoader(Texts(), batch_size=8, collate_fn=padded)}).splits["train"]
    batch, expected = train.take(np.arange(3, 9)), padded([Texts()[i] for i in range(3, 9)])
    np.testing.assert_array_equal(batch["features"], expected[0].numpy())
    assert batch["features"].shape == (6, 6)
    pairs: Any = list(zip(X, Y, strict=True))
    train = from_objects({"train": DataLoader(pairs, batch_size=8, collate_fn=centered)}).splits["train"]
    np.testing.assert_allclose(train.take(np.arange(20))["features"].mean(0), np.zeros(4), atol=1e-6)
    named = from_objects(
        {"train": DataLoader(Texts(), batch_size=8, collate_fn=len)}, config(collate=f"{__name__}:padded")
    )
    assert named.splits["train"].take(np.arange(8))["features"].shape == (8, 6)


def test_random_numbers_of_a_collate_function_follow_from_the_batch() -> None:
    pairs: Any = list(zip(X, Y, strict=True))
    for collate in (noisy, mixed):
        train = from_objects({"train": DataLoader(pairs, batch_size=8, collate_fn=collate)}).splits["train"]
        assert isinstance(train, SampleSplit)
        some, again, other = (train.read(np.arange(8), Draw(1, epoch))["features"] for epoch in (0, 0, 1))
        np.testing.assert_array_equal(some, again)
        assert not np.array_equal(some, other)


def test_the_batch_size_is_the_loaders_unless_the_config_has_one(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": "mlp", "training": {"max_steps": 4, "threads": 1}}
    loaders = tuple(DataLoader(pair, batch_size=15) for pair in PAIRS)
    run = trainwright.train(settings, data=loaders, runs_dir=tmp_path)
    assert run.manifest["computation"]["training.batch_size"] == 15
    own = trainwright.train(settings, {"training.batch_size": 20}, data=loaders, runs_dir=tmp_path)
    assert own.manifest["computation"]["training.batch_size"] == 20
    assert trainwright.reproduce(run, data=loaders).verdict == "identical"


LOADERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def loaders(count=90):
    x = torch.randn(count + 30, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    parts = TensorDataset(x[:count], y[:count]), TensorDataset(x[count:], y[count:])
    return tuple(DataLoader(part, batch_size=15) for part in parts)
"""


def test_the_batch_size_of_loaders_that_a_function_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "my_loaders.py").write_text(LOADERS)
    monkeypatch.chdir(tmp_path)
    settings: dict[str, Any] = {
        "model": "mlp",
        "data": "my_loaders:loaders",
        "training": {"max_steps": 4, "threads": 1},
    }
    caplog.set_level(logging.INFO)
    run = trainwright.train(settings)
    assert run.manifest["computation"]["training.batch_size"] == 15
    assert caplog.text.count("data: the train split is a data loader") == 1
    assert len(trainwright.list_runs()) == 1
    assert trainwright.reproduce(run).verdict == "identical"
    count = len(trainwright.list_runs())
    trainwright.train(settings, reuse=True)
    assert len(trainwright.list_runs()) == count
    caplog.clear()
    own = trainwright.train(settings, {"training.batch_size": 32})
    assert own.manifest["computation"]["training.batch_size"] == 32
    assert "training.batch_size: 32, as the config says; the data loaders have 15" in caplog.text


MODULE = Path(__file__).read_text().partition("class Images")[2].partition("\n\n\n")[0]


def test_a_class_of_data_sets_with_dict_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heading = "from typing import Any\nimport numpy as np\nimport torch\nfrom torch import nn\n"
    heading += "from torch.utils.data import Dataset\n\n\nclass Images"
    model = (
        "\n\n\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.head = nn.Linear(16, 2)\n    def forward(self, image):\n"
        "        return self.head(image.flatten(1))\n"
    )
    (tmp_path / "own_images.py").write_text(heading + MODULE + model)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    caplog.set_level(logging.INFO, "trainwright")
    data = {"type": "own_images:Images", "target": "label", "params": {"count": 64}}
    settings: dict[str, Any] = {
        "data": data,
        "model": "own_images:Net",
        "training": {"max_steps": 40, "batch_size": 16, "learning_rate": 0.05, "threads": 1},
    }
    run = trainwright.train(settings, runs_dir=tmp_path / "runs")
    rows = {name: split["rows"] for name, split in run.manifest["data"]["splits"].items()}
    assert rows == {"train": 64, "val": 8}
    assert "own_images:Images has no test split: there is no test split" in caplog.text
    assert run.metrics["val_accuracy"] == 1.0
    assert "own_images" in run.manifest["code"]["modules"]


def test_tables_of_other_libraries_are_frames() -> None:
    class Column:
        """Stands for Hugging Face's `Value`."""

    Column.__name__ = "Value"

    class Table:
        """Stands for its `Dataset` of columns."""

        def __init__(self, frame: pd.DataFrame) -> None:
            self._frame = frame
            self.features = {name: Column() for name in frame.columns}

        def __len__(self) -> int:
            return len(self._frame)

        def __getitem__(self, i: int) -> Any:
            raise AssertionError("the columns are read at once")

        def to_pandas(self) -> pd.DataFrame:
            return self._frame

    frame = pd.DataFrame(X.numpy(), columns=list("abcd")).assign(target=Y.numpy())
    assert prints(from_objects(Table(frame))) == prints(from_objects(frame))
    parts = {"train": Table(frame[:90]), "validation": Table(frame[90:])}
    assert list(from_objects(parts).splits) == ["train", "val"]
