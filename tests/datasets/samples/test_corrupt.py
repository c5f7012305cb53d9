"""Samples that cannot be read: they stop the run by name, or are left out, counted, as a decision."""

from __future__ import annotations

import io
import logging
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import small_runs
import trainwright
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import PLAIN, Draw, LoadRequest, SampleSplit
from trainwright.datasets.images import decoders
from trainwright.datasets.parquet import ParquetDataset, ParquetParams
from trainwright.datasets.samples.objects import from_objects
from trainwright.datasets.webdataset import WebdatasetDataset, WebdatasetParams
from trainwright.errors import DataError
from trainwright.records.decision import Decision, journalled_decisions

SKIP = DataConfig(on_corrupt="skip")


class Faulty:
    """A map-style data set of which some items cannot be read; all draw a random number."""

    classes = (0, 1)

    def __init__(self, broken: tuple[int, ...] = (3, 17), error: Exception | None = None) -> None:
        self.broken, self.error = broken, error or ValueError("not a picture")

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> Any:
        if i in self.broken:
            raise self.error
        return np.array([i, np.random.rand()], np.float32), i % 2


def loaded(dataset: Any, config: DataConfig = SKIP, request: LoadRequest = PLAIN) -> Any:
    bundle = from_objects({"train": dataset}, config, request=request)
    assert isinstance(bundle.splits["train"], SampleSplit)
    return bundle


def test_items_that_cannot_be_read_are_left_out_and_others_stay_what_they_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "trainwright")
    bundle = loaded(Faulty())
    train = bundle.splits["train"]
    kept = [i for i in range(40) if i not in (3, 17)]
    assert len(train) == 38
    assert train.take(np.arange(38))["features"][:, 0].tolist() == kept
    assert bundle.skips == {"train": [3, 17]}
    assert bundle.skipped == ["item 3 of the train dataset", "item 17 of the train dataset"]
    assert "2 corrupt samples are left out: item 3 of the train dataset, item 17" in caplog.text
    assert "item 3 cannot be read: ValueError: not a picture" in caplog.text
    # The random numbers of an item do not depend on what else is left out.
    whole = loaded(Faulty(broken=()), DataConfig()).splits["train"]
    drawn = [split.read(np.array([at]), Draw(1, 0))["features"] for split, at in ((train, 20), (whole, 22))]
    np.testing.assert_array_equal(*drawn)
    assert train.fingerprint() != loaded(Faulty(broken=(3, 18))).splits["train"].fingerprint()


def test_without_it_the_item_is_named() -> None:
    with pytest.raises(
        DataError, match=r"item 3 cannot be read: ValueError: not a picture; data\.on_corrupt"
    ):
        loaded(Faulty(), DataConfig())  # which reads some items for what they are


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Faulty(tuple(range(40))), r"none of 40 samples can be read; the first one: .*item 0 cannot be read"),
        (Faulty(error=MemoryError("all is used")), "item 3 cannot be read: MemoryError"),
        (Faulty(error=OSError(5, "Input/output error")), "item 3 cannot be read: OSError"),
    ],
    ids=["all", "memory", "disk"],
)
def test_what_is_no_corrupt_sample_is_an_error(dataset: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        loaded(dataset)


def test_what_was_found_before_is_not_looked_for() -> None:
    bundle = loaded(Faulty(), request=LoadRequest(settle=lambda _: {"train": [3, 17, 20]}))
    assert bundle.skips == {"train": [3, 17, 20]}
    assert bundle.splits["train"].take(np.array([18]))["features"][0, 0] == 21


def test_rows_in_memory_are_refused(tmp_path: Path) -> None:
    config = {"data": {"type": "iris", "on_error": "skip"}, "model": "mlp"}
    with pytest.raises(DataError, match=r"data\.on_corrupt is for samples that are read one by one"):
        trainwright.train(config, runs_dir=tmp_path)


def picture(i: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4, 3), i, np.uint8)).save(file, "png")
    data = file.getvalue()
    return data[:50] if i == 4 else data


def write_tar(path: Path) -> str:
    with tarfile.open(path, "w") as tar:
        for i in range(8):
            for name, data in ((f"{i:03}.png", picture(i)), (f"{i:03}.cls", str(i % 2).encode())):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return str(path)


def tar_bundle(path: str, **settings: Any) -> Any:
    config = DataConfig(type="webdataset", train_path=path, **settings)
    return WebdatasetDataset(config, WebdatasetParams(images="rgb8")).load(PLAIN)


def test_a_corrupt_file_in_a_tar_shard_is_named_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))
    path = write_tar(tmp_path / "a.tar")
    with pytest.raises(DataError, match=r"a\.tar: 004\.png \(sample 4\) cannot be decoded"):
        tar_bundle(path)  # which reads some samples for what they are
    bundle = tar_bundle(path, on_corrupt="skip")
    assert bundle.skipped == [f"sample 4 of {path}"]
    pixels = bundle.splits["train"].take(np.arange(7))["features"]
    assert pixels[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 5, 6, 7]
    opened, decode = [], decoders.opened
    monkeypatch.setattr(decoders, "opened", lambda data: (opened.append(data), decode(data))[1])
    again = tar_bundle(path, on_corrupt="skip")
    assert again.skipped == bundle.skipped
    assert opened
    assert picture(4) not in opened  # the outcome was kept
    assert again.splits["train"].fingerprint() == bundle.splits["train"].fingerprint()


def test_a_corrupt_row_of_a_parquet_shard_is_named_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))
    for shard in range(2):
        rows = range(shard * 4, shard * 4 + 4)
        columns = {"image": [picture(i + (shard == 0)) for i in rows], "target": [i % 2 for i in rows]}
        pq.write_table(pa.table(columns), tmp_path / f"s-{shard}.parquet")

    def load(**settings: Any) -> Any:
        path = str(tmp_path / "s-{0..1}.parquet")
        config = DataConfig(type="parquet", train_path=path, **settings)
        return ParquetDataset(config, ParquetParams(streaming=True)).load(PLAIN)

    with pytest.raises(DataError, match=r"item 3 cannot be read: row 3 of .*s-0\.parquet: "):
        load()
    names = [f"row 3 of {tmp_path / 's-0.parquet'}", f"row 0 of {tmp_path / 's-1.parquet'}"]
    assert load(on_corrupt="skip").skipped == names


MODULE = """
from pathlib import Path

import numpy as np

from trainwright.process.observation.unobserved import unobserved


class Some:
    classes = (0, 1)

    def __init__(self, split):
        self.broken = {"train": (3, 17), "val": (0,)}[split]

    def __len__(self):
        return 60

    def __getitem__(self, i):
        with unobserved():  # a disk that mends is no input
            is_repaired = Path(__file__).with_name("repaired").exists()
        if i in self.broken and not is_repaired:
            raise ValueError("broken")
        return np.array([i % 7, i % 2], np.float32), i % 2


class ByHand(Some):
    def __len__(self):
        return 60 - len(self.broken)

    def __getitem__(self, i):
        return super().__getitem__([j for j in range(60) if j not in self.broken][i])
"""


def test_a_resume_and_a_repetition_leave_out_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "holey_set.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(small_runs.SMALL, "data", {"type": "holey_set:ByHand"})
    by_hand = trainwright.train(small_runs.SMALL, runs_dir=tmp_path / "by_hand")
    small_runs.SMALL["data"] = {"type": "holey_set:Some", "on_corrupt": "skip"}
    resume = trainwright.resume

    def after_a_repair(run: Any, **objects: Any) -> Any:
        (tmp_path / "repaired").touch()  # what was decided holds
        return resume(run, **objects)

    monkeypatch.setattr(trainwright, "resume", after_a_repair)
    whole, resumed = small_runs.whole_and_resumed(tmp_path)
    small_runs.assert_same(resumed, whole)
    assert whole.digest == by_hand.digest
    assert whole.result["skipped_samples"] == 3
    (skip,) = (one for one in journalled_decisions(resumed.path / "journal") if one.kind == "skip")
    names = [f"item {i} of the {split} dataset" for split, i in (("train", 3), ("train", 17), ("val", 0))]
    positions = {"train": [3, 17], "val": [0]}
    assert skip == Decision(0, "skip", {"count": 3, "samples": names, "positions": positions})
    assert trainwright.reproduce(whole).verdict == "identical"
