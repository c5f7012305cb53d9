"""TFRecord shards whose records are read when they are needed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from test_tfrecord import example, framed, write

import small_runs
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import PLAIN
from trainwright.datasets.tfrecord import TfrecordDataset, TfrecordParams
from trainwright.errors import DataError
from trainwright.testing.dataset_suite import DatasetSuite

ROWS: list[dict[str, Any]] = [
    {"v": [i / 4, -float(i)], "n": i, "label": i % 3, "note": f"row {i}"} for i in range(70)
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))


def write_shards(folder: Path) -> str:
    for shard in range(2):
        write(folder / f"r-{shard:02}.tfrecord", ROWS[shard * 35 : shard * 35 + 35])
    return str(folder / "r-{00..01}.tfrecord")


def streamed(path: str, params: dict[str, Any] | None = None, **settings: Any) -> Any:
    config = DataConfig(type="tfrecord", train_path=path, **{"target": "label", **settings})
    return TfrecordDataset(config, TfrecordParams(streaming=True, **(params or {}))).load(PLAIN)


class TestStreamed(DatasetSuite):
    def make(self, folder: Path) -> TfrecordDataset:
        config = DataConfig(type="tfrecord", train_path=write_shards(folder), target="label")
        return TfrecordDataset(config, TfrecordParams(streaming=True))


def test_records_are_read_in_any_order(tmp_path: Path) -> None:
    path, ids = write_shards(tmp_path), np.array([69, 0, 36, 34])
    for _ in range(2):  # the second time with the index that was kept
        bundle = streamed(path)
        batch = bundle.splits["train"].take(ids)
        np.testing.assert_array_equal(batch["v"], [ROWS[i]["v"] for i in ids])
        assert batch["n"].tolist() == ids.tolist()
        assert batch["target"].tolist() == (ids % 3).tolist()
        assert bundle.info.classes == [0, 1, 2]
    chosen = streamed(path, {"classes": 3}, features=["n"]).splits["train"].take(ids)
    assert chosen["features"].tolist() == [[i] for i in ids.tolist()]
    typed = {"v": {"dtype": "float32", "shape": [2, 1]}, "label": {"dtype": "int64"}}
    assert streamed(path, {"features": typed}).splits["train"].take(ids)["features"].shape == (4, 2, 1)


def test_a_damaged_record_is_named_or_left_out(tmp_path: Path) -> None:
    path = write_shards(tmp_path)
    shard = tmp_path / "r-01.tfrecord"
    damaged = bytearray(shard.read_bytes())
    damaged[len(framed(map(example, ROWS[35:39]))) + 20] ^= 1  # within the content of the fifth record
    shard.write_bytes(bytes(damaged))
    with pytest.raises(DataError, match=r"record 5 of .*r-01\.tfrecord is damaged: its checksum"):
        streamed(path)
    bundle = streamed(path, on_corrupt="skip")
    assert bundle.skipped == [f"record 5 of {shard}"]
    kept = [i for i in range(70) if i != 39]
    assert bundle.splits["train"].take(np.arange(69))["n"].tolist() == kept


def test_an_image_that_cannot_be_decoded_is_named_or_left_out(tmp_path: Path) -> None:
    pictures = []
    for i in range(6):
        file = io.BytesIO()
        Image.fromarray(np.full((3, 3, 3), i, np.uint8)).save(file, "png")
        pictures.append(file.getvalue()[: 40 if i == 4 else None])
    path = write(tmp_path / "a.tfrecord", [{"image": one, "label": i % 2} for i, one in enumerate(pictures)])
    with pytest.raises(DataError, match=r"feature 'image' of record 5 of .*a\.tfrecord cannot be decoded"):
        streamed(path)
    bundle = streamed(path, {"images": "rgb8"}, on_corrupt="skip")
    assert bundle.skipped == [f"record 5 of {path}"]
    assert bundle.splits["train"].take(np.arange(5))["features"][:, 0, 0, 0].tolist() == [0, 1, 2, 3, 5]


def test_settings_of_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.weight is for rows in memory"):
        streamed(write_shards(tmp_path), weight="n")


def test_what_is_no_shard_of_records_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    write(path, ROWS[:5])
    whole = path.read_bytes()
    for content, message in (
        (whole[:-10], "ends within record 5"),
        (b"\x1f\x8b" + whole, "is compressed, so its records cannot be read one by one"),
        (whole[:9] + b"x" + whole[10:], r"is damaged|is not a TFRecord file"),
        (b"", "holds no records"),
        (framed([b"\xff\xff"]), "record 1 of .* is not a tf.train.Example"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            streamed(str(path))
    config = DataConfig(type="tfrecord", path=str(path))
    with pytest.raises(DataError, match=r"data\.classes is for records that are read one by one"):
        TfrecordDataset(config, TfrecordParams(classes=2)).load(PLAIN)


@pytest.mark.soak
def test_a_resume_in_the_middle_of_shards_comes_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_shards(tmp_path)
    typed = {"v": {"dtype": "float32", "shape": [2]}, "label": {"dtype": "int64"}}
    params = {"streaming": True, "features": typed}
    data = {"type": "tfrecord", "train_path": path, "target": "label", "workers": 1, "params": params}
    monkeypatch.setitem(small_runs.SMALL, "data", data)
    whole, resumed = small_runs.whole_and_resumed(tmp_path)
    small_runs.assert_same(resumed, whole)
