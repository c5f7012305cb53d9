"""Shards: tar, Arrow and Parquet files whose samples are read in any order, against their own libraries."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from s3_server import S3Server
from small_runs import SMALL, assert_same, whole_and_resumed
from trainwright.config import load
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import PLAIN
from trainwright.datasets.huggingface import HuggingfaceDataset, HuggingfaceParams
from trainwright.datasets.parquet import ParquetDataset, ParquetParams
from trainwright.datasets.samples import arrow_rows
from trainwright.datasets.samples.shards import expanded
from trainwright.datasets.webdataset import WebdatasetDataset, WebdatasetParams
from trainwright.errors import DataError
from trainwright.process import file_stamps
from trainwright.records.manifest import DataIdentity
from trainwright.records.run_dir import RunDir
from trainwright.runs.catalog import Catalog
from trainwright.runs.data.identity import data_inputs
from trainwright.runs.wiring import load_data
from trainwright.storage.urls import open_store
from trainwright.testing.dataset_suite import DatasetSuite
from troubled_server import Trouble

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (12, 4, 5, 3), dtype=np.uint8)
ROWS = RNG.normal(size=(2500, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))


def png(image: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "png")
    return file.getvalue()


def write_tars(folder: Path, form: int = tarfile.PAX_FORMAT, prefix: str = "") -> str:
    for shard in range(2):
        with tarfile.open(folder / f"t-{shard:02}.tar", "w", format=form) as tar:
            for i in range(shard * 6, shard * 6 + 6):
                parts = {
                    "png": png(IMAGES[i]),
                    "cls": str(i % 3).encode(),
                    "json": json.dumps({"deep": {"label": i}}).encode(),
                }
                for extension, data in parts.items():
                    info = tarfile.TarInfo(f"{prefix}{i:04}.{extension}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return str(folder / "t-{00..01}.tar")


def tars(path: str, images: Any = "torchrgb", **settings: Any) -> Any:
    config = DataConfig(type="webdataset", train_path=path, **settings)
    return WebdatasetDataset(config, WebdatasetParams(images=images)).load(PLAIN)


def parquet_inputs(data: dict[str, Any]) -> DataIdentity:
    return data_inputs(load_data(load({"data": data, "model": {"type": "mlp"}}, adapters=Catalog()).config))


def write_saved(folder: Path) -> str:
    with pa.ipc.new_stream(folder / "data-0.arrow", table(0, 1).schema) as writer:
        for start in range(0, 2500, 1000):
            writer.write_table(table(start, min(start + 1000, 2500)))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-0.arrow"}]}))
    return str(folder)


class TestWebdataset(DatasetSuite):
    def make(self, folder: Path) -> WebdatasetDataset:
        config = DataConfig(type="webdataset", train_path=write_tars(folder))
        return WebdatasetDataset(config, WebdatasetParams())


class TestHuggingface(DatasetSuite):
    def make(self, folder: Path) -> HuggingfaceDataset:
        config = DataConfig(type="huggingface", train_path=write_saved(folder), target="label")
        return HuggingfaceDataset(config, HuggingfaceParams())


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_samples_of_tar_files_are_those_that_were_written(tmp_path: Path, form: int) -> None:
    prefix = "folder/" if form == tarfile.USTAR_FORMAT else "a" * 120 + "/"
    path = write_tars(tmp_path, form, prefix)
    ids = np.array([11, 0, 7])
    for _ in range(2):  # the second time with the index that was kept
        bundle = tars(path)
        batch = bundle.splits["train"].take(ids)
        wanted = IMAGES[ids].transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
        np.testing.assert_array_equal(batch["features"], wanted)
        assert batch["target"].tolist() == (ids % 3).tolist()
        assert bundle.info.classes == [0, 1, 2]
    raw = tars(path, "rgb8", features=["png"], target="json.deep.label", task="regression")
    batch = raw.splits["train"].take(ids)
    np.testing.assert_array_equal(batch["features"], IMAGES[ids])
    assert batch["target"].tolist() == ids.tolist()


@pytest.mark.parametrize(
    "settings",
    [
        {"weight": "w"},
        {"target_transform": "log1p"},
        {"missing_values": [3]},
        {"missing_target": "drop"},
        {"impute": "mean"},
        {"encode": "target"},
        {"split": {"val": 0.2}},
    ],
)
def test_settings_that_shards_cannot_follow_are_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    (key,) = settings
    with pytest.raises(DataError, match=rf"data\.{key}"):
        tars(write_tars(tmp_path), **settings)
    config = DataConfig(type="huggingface", train_path=write_saved(tmp_path), target="label", **settings)
    saved = HuggingfaceDataset(config, HuggingfaceParams())
    with pytest.raises(DataError, match=rf"data\.{key}"):
        saved.load(PLAIN)


OWN = """
import numpy as np

GENERATOR = np.random.default_rng(0)


def own(sample):
    return np.float32([GENERATOR.normal()]), int(sample["cls"])


def seeded(sample):
    return np.float32([np.random.normal()]), int(sample["cls"])


def collate(samples):
    images = np.stack([image for image, _ in samples])
    return images + np.float32(GENERATOR.normal()), np.array([label for _, label in samples])
"""


@pytest.mark.parametrize(
    ("transform", "collate", "is_repeatable"),
    [("own", None, False), ("seeded", None, True), (None, "collate", False), (None, None, True)],
)
def test_functions_with_a_generator_of_their_own_are_found(
    transform: str | None, collate: str | None, is_repeatable: bool,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What shards hold is pinned, and what a function makes of it is not."""
    (tmp_path / "own_draws.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    transform, collate = (name and f"own_draws:{name}" for name in (transform, collate))
    config = DataConfig(type="webdataset", train_path=write_tars(tmp_path), collate=collate)
    params = WebdatasetParams(images="torchrgb", transform=transform, classes=3 if transform else None)
    bundle = WebdatasetDataset(config, params).load(PLAIN)
    expected = "" if is_repeatable else "the train dataset returns different items when it is read again"
    assert bundle.unrepeatable == expected
    warnings = [one for one in bundle.warnings if "returns different items" in one]
    assert [one.partition(";")[0] for one in warnings] == [expected] * (not is_repeatable)
    assert bundle.content_hashed


def test_fields_of_tar_files_are_chosen_not_excluded(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"name the fields to learn from in data\.features"):
        tars(write_tars(tmp_path), exclude=["json"])


def test_a_shard_that_is_damaged_or_compressed_is_named(tmp_path: Path) -> None:
    path = write_tars(tmp_path)
    shard = tmp_path / "t-01.tar"
    whole = shard.read_bytes()
    for content, message in (
        (whole[:700], r"t-01\.tar is cut short"),
        (whole[:600] + b"x" + whole[601:1600] + b"y" * 100, r"t-01\.tar: at byte|t-01\.tar is"),
        (b"\x1f\x8b" + whole, r"t-01\.tar is compressed"),
    ):
        shard.write_bytes(content)
        with pytest.raises(DataError, match=message):
            tars(path)


def test_what_is_damaged_in_the_cache_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_stamps, "_SETTLED_NS", -(10**18))
    monkeypatch.setattr(file_stamps, "_is_in_memory", lambda device: False)
    path = write_tars(tmp_path)
    wanted = tars(path).splits["train"].fingerprint()
    kept = [file for file in (tmp_path / "cache").rglob("*") if file.suffix in (".npz", ".json")]
    assert {file.suffix for file in kept} == {".npz", ".json"}
    whole = {file: file.read_bytes() for file in kept}
    damages: list[Callable[[bytes], bytes]] = [
        lambda data: data[: len(data) // 2],
        lambda data: data[:99] + bytes([data[99] ^ 255]) + data[100:],
        lambda data: b"",
        lambda data: b"[" * 100_000,
    ]
    for damage in damages:
        for file, data in whole.items():
            file.write_bytes(damage(data))
        assert tars(path).splits["train"].fingerprint() == wanted
        assert all(file.read_bytes() == data for file, data in whole.items() if file.suffix == ".npz")


def header(name: bytes, size: bytes, kind: bytes) -> bytes:
    """Return the header of a file in a tar file, with the right checksum."""
    fields = {0: name, 100: b"0000644\0", 124: size, 148: b" " * 8, 156: kind, 257: b"ustar\x0000"}
    made = bytearray(512)
    for start, field in fields.items():
        made[start : start + len(field)] = field
    made[148:156] = b"%06o\0 " % sum(made)
    return bytes(made)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("size", "record", "message"),
    [
        (b"-0000001000\0", None, r"t-01\.tar is not a tar file, or it is damaged"),
        *((None, record, r"t-01\.tar: an extended header .* is damaged") for record in (
            b"0 path=x\n", b"-9 path=x\n", b"99999 path=x\n", b"path=abc", b"\xff\xfe", b"12 path=ab\n\0\0\0"
        )),
    ],
)  # fmt: skip
def test_damaged_headers_of_a_shard_are_named(
    size: bytes | None, record: bytes | None, message: str, tmp_path: Path
) -> None:
    path = write_tars(tmp_path)
    shard = tmp_path / "t-01.tar"
    added = header(b"a.npy", size, b"0") if size else b""
    if record is not None:
        added = header(b"p", b"%011o\0" % len(record), b"x") + record.ljust(512, b"\0")
    shard.write_bytes(added + shard.read_bytes())
    with pytest.raises(DataError, match=message):
        tars(path)


def test_a_class_that_64_bits_do_not_hold_is_named(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "c.tar", "w") as tar:
        for i, label in enumerate((b"1", b"9" * 30)):
            for extension, data in (("png", png(IMAGES[i])), ("cls", label)):
                info = tarfile.TarInfo(f"{i}.{extension}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    with pytest.raises(DataError, match=r"c\.tar: the class of sample 1 is 9{30}, which does not fit"):
        tars(str(tmp_path / "c.tar"))


def test_a_changed_shard_has_another_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tars(tmp_path)
    shard = tmp_path / "t-01.tar"
    status = shard.stat()
    before = tars(path).splits["train"].fingerprint()
    shard.write_bytes(shard.read_bytes().replace(b'"label": 7', b'"label": 8'))
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    real = Path.stat  # the clock of a file system may be too coarse to tell both apart
    monkeypatch.setattr(Path, "stat", lambda path, **how: status if path == shard else real(path, **how))
    assert tars(path).splits["train"].fingerprint() != before


def test_braces_stand_for_ranges_and_alternatives() -> None:
    assert list(expanded("a-{08..10}-{x,y}")) == [f"a-{n}-{x}" for n in ("08", "09", "10") for x in "xy"]


def table(start: int, stop: int) -> Any:
    columns = {"x": pa.array(list(ROWS[start:stop])), "label": pa.array([i % 2 for i in range(start, stop)])}
    return pa.table(columns)


def test_rows_of_parquet_shards_and_of_saved_data_sets_are_those_that_were_written(tmp_path: Path) -> None:
    for shard in range(2):
        pq.write_table(table(shard * 1250, shard * 1250 + 1250), tmp_path / f"p-{shard}.parquet")
    folder = tmp_path / "saved"
    folder.mkdir()
    write_saved(folder)
    streaming, shards = ParquetParams(streaming=True), str(tmp_path / "p-*.parquet")
    bundles = [
        ParquetDataset(DataConfig(type="parquet", train_path=shards, target="label"), streaming).load(PLAIN),
        HuggingfaceDataset(
            DataConfig(type="huggingface", train_path=str(folder), target="label"), HuggingfaceParams()
        ).load(PLAIN),
    ]
    ids = RNG.permutation(2500)[:300]
    for bundle in bundles:
        batch = bundle.splits["train"].take(ids)
        np.testing.assert_array_equal(batch["features"], ROWS[ids])
        assert batch["target"].tolist() == (ids % 2).tolist()


def write_columns(path: Path, **columns: Any) -> DataConfig:
    pq.write_table(pa.table({"y": pa.array(range(100)), **columns}), path, row_group_size=30)
    return DataConfig(type="parquet", train_path=str(path), target="y", params={"streaming": True})


def fixed(values: Any) -> Any:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


@pytest.mark.parametrize(
    "columns",
    [
        {"a": pa.array(ROWS[:100, 0]), "b": pa.array([i % 3 == 0 for i in range(100)])},
        {"a": fixed(ROWS[:100].astype(np.float64))},
        {"a": pa.array(list(ROWS[:100]))},
        {"a": fixed(ROWS[:100]), "b": fixed(np.arange(200).reshape(100, 2)), "c": pa.array(range(100))},
    ],
    ids=["numbers", "one list", "of any length", "lists"],
)
def test_a_batch_of_numbers_is_that_of_its_rows(columns: dict[str, Any], tmp_path: Path) -> None:
    config = write_columns(tmp_path / "t.parquet", **columns)
    split = ParquetDataset(config, ParquetParams(streaming=True)).load(PLAIN).splits["train"]
    ids = np.array([99, 0, 31, 31, 62], np.int64)
    batch = split.take(ids)
    rows = [split._dataset[i] for i in ids.tolist()]
    if not isinstance(rows[0], tuple):
        for name in ("a", "b", "c"):
            assert np.array_equal(batch[name], np.stack([row[name] for row in rows]))
            assert batch[name].dtype == (np.float32 if name == "a" else np.int64)
    else:
        assert np.array_equal(batch["features"], np.stack([row[0] for row in rows]).astype(np.float32))
        assert batch["features"].dtype == np.float32
    assert np.array_equal(batch["target"], ids)
    assert isinstance(split._dataset.whole_batch([1]), dict)


def test_a_row_that_has_no_number_is_named(tmp_path: Path) -> None:
    values = ROWS[:100].copy()
    values[47, 1] = np.nan
    config = write_columns(tmp_path / "t.parquet", a=fixed(values))
    dataset = ParquetDataset(config, ParquetParams(streaming=True))
    with pytest.raises(DataError, match=r"item 47.*NaN"):
        dataset.load(PLAIN).splits["train"].take(np.array([3, 47, 5]))


def test_images_that_a_saved_data_set_names_by_path_are_part_of_its_identity(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    outside = tmp_path / "1.png"
    cells = [{"bytes": png(IMAGES[0]), "path": "nowhere"}, {"bytes": None, "path": str(outside)}]
    for name, images in (("inside", cells[:1] * 2), ("outside", cells)):
        (tmp_path / name).mkdir()
        rows = pa.table({"image": pa.array(images, kind), "label": [0, 1]})
        with pa.ipc.new_stream(tmp_path / name / "data-0.arrow", rows.schema) as writer:
            writer.write_table(rows)
        (tmp_path / name / "state.json").write_text('{"_data_files": [{"filename": "data-0.arrow"}]}')
    found = []
    for image in IMAGES[1:3]:
        outside.write_bytes(png(image))
        for name in ("inside", "outside"):
            config = DataConfig(type="huggingface", train_path=str(tmp_path / name), target="label")
            bundle = HuggingfaceDataset(config, HuggingfaceParams(images="rgb8")).load(PLAIN)
            split = bundle.splits["train"]
            found.append(split.fingerprint())
            assert bundle.files_read == list(bundle.files)
        np.testing.assert_array_equal(split.take(np.array([1]))["features"][0], image)
    assert found[0] == found[2]
    assert found[1] != found[3]


def test_the_copy_of_a_parquet_shard_is_verified_and_made_again_when_it_is_damaged(tmp_path: Path) -> None:
    pq.write_table(table(0, 1250), tmp_path / "p.parquet")
    config = DataConfig(type="parquet", train_path=str(tmp_path / "p.parquet"), target="label")
    dataset = ParquetDataset(config, ParquetParams(streaming=True))
    assert dataset.load(PLAIN).files_read == []  # so the file may change while a run trains on its copy
    (copy,) = (tmp_path / "cache").rglob("content")
    content = copy.read_bytes()
    copy.write_bytes(content.replace(ROWS[7].tobytes(), ROWS[8].tobytes()))
    batch = dataset.load(PLAIN).splits["train"].take(np.arange(20))
    np.testing.assert_array_equal(batch["features"], ROWS[:20])
    assert copy.read_bytes() == content


def test_a_parquet_shard_that_changes_while_it_is_copied_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.parquet"
    pq.write_table(table(0, 50), path)
    hashed = arrow_rows.hashes_of
    monkeypatch.setattr(
        arrow_rows, "hashes_of", lambda files: (hashed(files), pq.write_table(table(50, 100), path))[0]
    )
    with pytest.raises(DataError, match="was changed while its rows were copied"):
        arrow_rows.parquet_as_arrow(str(path))
    assert not [*(tmp_path / "cache").rglob("content")]


@pytest.mark.slow
def test_a_run_on_shards_in_a_store_is_resumed_exactly(bucket: str, s3: S3Server, tmp_path: Path) -> None:
    """Reads that fail, and one whose connection breaks within the content, are done again."""

    def put(rows: Any) -> None:
        pq.write_table(rows, tmp_path / "t.parquet")
        open_store(bucket).put("data/t.parquet", tmp_path / "t.parquet")

    put(table(0, 120))
    data = {"type": "parquet", "streaming": True, "target": "label", "workers": 1}
    url = f"{bucket}/data/t.parquet"
    cut, failed = Trouble("cut", [1], "GET", "t.parquet"), Trouble("500", [2], "GET", "t.parquet")
    with s3.troubled(cut, failed):
        whole, resumed = whole_and_resumed(tmp_path, {"data": {**data, "train_path": url}})
    assert (cut.met, failed.met) == (3, 3)
    assert_same(resumed, whole)
    assert SMALL["training"]["max_steps"] == whole.result["steps"]
    before = RunDir(whole.path).require_manifest()
    assert parquet_inputs({**data, "train_path": str(tmp_path / "t.parquet")}).hash == before.data.hash
    put(table(120, 240))
    now = before.model_copy(update={"data": parquet_inputs({**data, "train_path": url})})
    assert f"data: file {url} was {before.data.files[url]}, is " in "\n".join(
        map(str, before.differences(now))
    )
