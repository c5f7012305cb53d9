"""TFRecord files, and tf.data.Dataset objects."""

import contextlib
import gzip
import importlib.util
import io
import json
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows import config, load, people

from late import keras_in_one_thread
from trainwright.datasets.base import PLAIN, DataBundle, Dataset
from trainwright.datasets.samples.loaders import from_tf_dataset, is_tf_dataset
from trainwright.datasets.tfrecord import TfrecordDataset, examples
from trainwright.datasets.tfrecord.examples import read_examples
from trainwright.datasets.tfrecord.records import _masked, _scalar, crc32c, read_records
from trainwright.errors import DataError
from trainwright.testing.dataset_suite import DatasetSuite

pytest.importorskip("google.protobuf")


def framed(records: Iterable[bytes]) -> bytes:
    """Records as TensorFlow writes them."""
    parts = []
    for record in records:
        length = struct.pack("<Q", len(record))
        sums = [struct.pack("<I", int(_masked(_scalar(part)))) for part in (length, record)]
        parts += [length, sums[0], record, sums[1]]
    return b"".join(parts)


def example(row: Mapping[str, Any]) -> bytes:
    """One tf.train.Example; features that are None are left out."""
    made = examples._example()()
    for name, value in row.items():
        values = value if isinstance(value, list) else [value]
        if value is None:
            continue
        if isinstance(values[0], bytes | str):
            made.features.feature[name].bytes_list.value.extend(
                v if isinstance(v, bytes) else v.encode() for v in values
            )
        elif isinstance(values[0], float):
            made.features.feature[name].float_list.value.extend(values)
        else:
            made.features.feature[name].int64_list.value.extend(int(v) for v in values)
    data: bytes = made.SerializeToString(deterministic=True)
    return data


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_bytes(framed(map(example, rows)))
    return str(path)


class TestTfrecord(DatasetSuite):
    def make(self, folder: Path) -> Dataset:
        path = write(folder / "people.tfrecord", people())
        return TfrecordDataset(config(type="tfrecord", path=path), TfrecordDataset.Params())

    def raw_rows(self, folder: Path) -> Any:
        return [
            {**row, "height": float(np.float32(row["height"])), "member": int(row["member"])}
            for row in people()
        ]


# -- the framing


@pytest.mark.parametrize(
    ("message", "checksum"),
    [
        (b"123456789", 0xE3069283),
        (b"", 0),
        (b"a", 0xC1D04330),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
    ],
)
def test_checksums_are_those_that_are_published(message: bytes, checksum: int) -> None:
    """RFC 3720, appendix B.4, and the usual check value."""
    data = np.frombuffer(message, dtype=np.uint8)
    assert crc32c(data, np.array([0]), np.array([len(message)])).tolist() == [checksum] == [_scalar(message)]


def test_checksums_of_many_messages_of_any_length() -> None:
    draw = np.random.default_rng(0)
    lengths = np.concatenate([np.arange(0, 12), [255, 256, 257, 511, 512, 513, 5000, 3]])
    data = draw.integers(0, 256, lengths.sum()).astype(np.uint8)
    starts = np.cumsum(lengths) - lengths
    found = crc32c(data, starts, lengths)
    assert found.tolist() == [
        _scalar(data[s : s + n].tobytes()) for s, n in zip(starts, lengths, strict=True)
    ]


def test_checksums_of_more_than_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainwright.datasets.tfrecord.records._BLOCK_LANES", 3)
    test_checksums_of_many_messages_of_any_length()


WRITING = """
import tensorflow as tf
for name, option in (("plain", None), ("packed", "GZIP")):
    with tf.io.TFRecordWriter(f"{folder}/{name}.tfrecord", option) as writer:
        for i in range(40):
            feature = {
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=[i / 7])),
                "v": tf.train.Feature(int64_list=tf.train.Int64List(value=[i, -i])),
                "bought": tf.train.Feature(bytes_list=tf.train.BytesList(value=[("yes" if i % 3 else "no").encode()])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
"""
CONVERTING = """
import numpy as np
from trainwright.datasets.samples.loaders import from_tf_dataset, is_tf_dataset
x, y = np.arange(12, dtype=np.float32).reshape(6, 2), np.array([0, 1, 2] * 2)
plain = tf.data.Dataset.from_tensor_slices((x, y))
for dataset in (plain, plain.batch(4), plain.batch(3, drop_remainder=True)):
    assert is_tf_dataset(dataset)
    features, targets = from_tf_dataset(dataset, "train")
    np.testing.assert_array_equal(features, x)
    np.testing.assert_array_equal(targets, y)
try:
    from_tf_dataset(plain.repeat(), "train")
except Exception as error:
    print(error)
"""


@pytest.fixture(scope="module")
def by_tensorflow(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The files that TensorFlow wrote, and what converting its data sets printed."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("tensorflow is not installed")
    keras_in_one_thread()
    folder, printed = tmp_path_factory.mktemp("tensorflow"), io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(WRITING + CONVERTING, {"folder": str(folder)})
    return folder, printed.getvalue()


@pytest.mark.slow
def test_what_tensorflow_writes_is_read(by_tensorflow: tuple[Path, str]) -> None:
    folder, _ = by_tensorflow
    for name in ("plain", "packed"):
        table = TfrecordDataset(config(), TfrecordDataset.Params()).read(str(folder / f"{name}.tfrecord"))
        np.testing.assert_array_equal(
            table.columns["x"].astype(np.float32), np.array([i / 7 for i in range(40)], dtype=np.float32)
        )
        assert table.columns["v_1"].tolist() == [-i for i in range(40)]
        assert table.columns["bought"].tolist()[:3] == ["no", "yes", "yes"]


@pytest.mark.slow
def test_what_tensorflow_writes_is_read_record_by_record(
    by_tensorflow: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path))
    streaming = TfrecordDataset.Params(streaming=True)

    def streamed(name: str) -> DataBundle:
        settings = config(type="tfrecord", train_path=str(by_tensorflow[0] / f"{name}.tfrecord"))
        return TfrecordDataset(settings, streaming).load(PLAIN)

    bundle = streamed("plain")
    batch = bundle.splits["train"].take(np.array([38, 0]))
    np.testing.assert_array_equal(batch["x"], np.array([38 / 7, 0], dtype=np.float32))
    assert batch["v"].tolist() == [[38, -38], [0, 0]]
    assert [(bundle.info.classes or [])[code] for code in batch["target"]] == ["yes", "no"]
    with pytest.raises(DataError, match="is compressed"):
        streamed("packed")


ROWS = [{"x": float(i), "bought": i % 2} for i in range(40)]


@pytest.mark.parametrize("at", [3, 9, 20, 200])
def test_a_flipped_bit_is_found(at: int, tmp_path: Path) -> None:
    data = bytearray(framed(map(example, ROWS)))
    data[at] ^= 4
    (tmp_path / "a.tfrecord").write_bytes(data)
    with pytest.raises(DataError, match=r"is damaged|it does not begin with a record|cut short, or damaged"):
        read_records(str(tmp_path / "a.tfrecord"))


def test_damage_is_placed(tmp_path: Path) -> None:
    size = len(framed([example(ROWS[0])]))
    data = bytearray(framed(map(example, ROWS)))
    data[5 * size + 15] ^= 1
    (tmp_path / "a.tfrecord").write_bytes(data)
    with pytest.raises(DataError, match=rf"record 6 \(at byte {5 * size + 12}\) is damaged: its checksum"):
        read_records(str(tmp_path / "a.tfrecord"))


@pytest.mark.parametrize("cut", [1, 5, 17, 30])
def test_a_truncated_file_is_refused(cut: int, tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(framed(map(example, ROWS))[:-cut])
    with pytest.raises(DataError, match=r"ends within record 40, after byte \d+: it is cut short"):
        load(TfrecordDataset, config(path=str(tmp_path / "a.tfrecord")))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"x,y\n1,2\n3,4\n5,6\n7,8\n", "is not a TFRecord file"),
        (b"", "holds no records"),
        (gzip.compress(framed(map(example, ROWS)))[:-20], "is compressed, but cannot be unpacked"),
        (framed([b"\xff\xff"]), "record 1 is not a tf.train.Example"),
        (framed([b""]), "hold no features"),
        (framed([b"\x12\x02ab"]), "is a tf.train.SequenceExample"),
    ],
)
def test_other_files_are_refused(content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(content)
    with pytest.raises(DataError, match=says):
        load(TfrecordDataset, config(path=str(tmp_path / "a.tfrecord")))


# -- what the records hold


def test_missing_values_are_filled_as_in_other_files(tmp_path: Path) -> None:
    rows = [
        {**row, "height": row["height"] if i % 5 else None, "city": row["city"] if i % 7 else None}
        for i, row in enumerate(people())
    ]
    path = write(tmp_path / "a.tfrecord", rows)
    with pytest.raises(DataError, match=r"impute"):
        load(TfrecordDataset, config(path=path))
    bundle = load(TfrecordDataset, config(path=path, impute="most_frequent"))
    assert bundle.info.classes == ["no", "yes"]
    assert "city=Oslo" in bundle.info.feature_names


def test_features_of_several_values_are_columns(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    rows = [
        {
            "v": draw.normal(size=3).tolist(),
            "w": draw.normal(size=2).tolist(),
            "a": 1.0 * i * i,
            "bought": i % 2,
        }
        for i in range(60)
    ]
    path = write(tmp_path / "a.tfrecord", rows)
    bundle = load(TfrecordDataset, config(path=path, exclude=["w"]))
    assert list(bundle.info.feature_names) == ["a", "v_0", "v_1", "v_2"]
    chosen = load(TfrecordDataset, config(path=path, features=["v"]))
    assert list(chosen.info.feature_names) == ["v_0", "v_1", "v_2"]


def images(count: int = 60) -> list[dict[str, Any]]:
    draw = np.random.default_rng(0)
    return [
        {
            "image": draw.integers(0, 256, 12).astype(np.uint8).tobytes(),
            "name": f"n{i}",
            "bought": f"c{i % 3}",
        }
        for i in range(count)
    ]


def test_images_keep_their_shape(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", images())
    image = {"dtype": "uint8", "shape": [3, 4]}
    bundle = load(
        TfrecordDataset, config(path=path), features={"image": image, "bought": {"dtype": "string"}}
    )
    assert (bundle.info.input_shape, bundle.info.classes, bundle.preparation) == (
        (3, 4),
        ["c0", "c1", "c2"],
        None,
    )
    batch = bundle.splits["train"].take(np.arange(5))
    assert batch["features"].dtype == np.uint8
    for row, features in zip(bundle.rows["train"][:5], batch["features"], strict=True):
        np.testing.assert_array_equal(
            features.reshape(-1), np.frombuffer(images()[row]["image"], dtype=np.uint8)
        )


@pytest.mark.parametrize(
    ("features", "exclude", "says"),
    [
        (None, [], r"feature 'image' of record \d+ holds bytes that are not text; .*data.params.features"),
        (
            {"image": {"dtype": "float64", "shape": [3]}},
            [],
            r"byte strings of 12 bytes, which are not float64 numbers",
        ),
        (
            {"image": {"dtype": "uint8", "shape": [3, 3]}, "bought": {"dtype": "string"}},
            [],
            r"has 12 values, but shape \[3, 3\]",
        ),
        ({"imagee": {"dtype": "uint8"}}, [], r"no record has 'imagee'; did you mean 'image'\?"),
        ({"image": {"dtype": "uint8", "shape": [3, 4]}}, [], "data.target: no record has 'bought'"),
        (
            {
                "image": {"dtype": "uint8", "shape": [3, 4]},
                "name": {"dtype": "string"},
                "bought": {"dtype": "string"},
            },
            [],
            "the features image, name cannot be combined: one of them has several dimensions",
        ),
    ],
)
def test_records_that_hold_something_else(
    features: Any, exclude: list[str], says: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.tfrecord", images())
    with pytest.raises(DataError, match=says):
        load(TfrecordDataset, config(path=path, exclude=exclude), features=features)


def test_what_is_left_out_may_be_anything(tmp_path: Path) -> None:
    rows = [{**row, "photo": b"\xff\xd8\xff"} for row in people()]
    path = write(tmp_path / "a.tfrecord", rows)
    assert "photo" not in load(TfrecordDataset, config(path=path, exclude=["photo"])).info.feature_names


def test_values_of_different_counts_are_placed(tmp_path: Path) -> None:
    rows = [{"v": [1.0] * (3 if i != 7 else 2), "bought": i % 2} for i in range(20)]
    with pytest.raises(DataError, match=r"feature 'v' of record 8 has 2 values, but shape \[3\] is expected"):
        load(TfrecordDataset, config(path=write(tmp_path / "a.tfrecord", rows)))
    rows = [{"v": [1.0, 2.0] if i != 7 else None, "bought": i % 2} for i in range(20)]
    with pytest.raises(DataError, match=r"feature 'v' is missing in record 8; only single values may be"):
        load(TfrecordDataset, config(path=write(tmp_path / "a.tfrecord", rows)))


def test_records_without_features_are_counted(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"x": 1.0, "bought": 1}, {}, {"x": 2.0, "bought": 0}, {}, {}]
    path = write(tmp_path / "a.tfrecord", rows)
    assert {name: len(column) for name, column in read_examples(path).items()} == {"x": 5, "bought": 5}
    table = TfrecordDataset(config(), TfrecordDataset.Params()).read(path)
    np.testing.assert_array_equal(table.columns["x"], [1, np.nan, 2, np.nan, np.nan])
    with pytest.raises(DataError, match="no value in rows 2, 4, 5"):
        load(TfrecordDataset, config(path=path))


@pytest.mark.parametrize(
    ("value", "dtype", "told"),
    [
        (300, "uint8", "300"),
        (-1, "uint8", "-1"),
        (2**40, "int32", "1099511627776"),
        (2**24 + 1, "float32", "16777217"),
        (0.7, "int64", "0.699"),
        (1e30, "int64", "1.*e.30"),
        (float("nan"), "int64", "nan"),
        ([1, 256], "uint8", "256"),
    ],
)
def test_a_declared_type_changes_no_value(value: Any, dtype: str, told: str, tmp_path: Path) -> None:
    good = [0, 255] if isinstance(value, list) else type(value)(7)
    rows = [{"v": value if i == 7 else good, "bought": i % 2} for i in range(20)]
    shape = [2] if isinstance(value, list) else []
    features = {"v": {"dtype": dtype, "shape": shape}, "bought": {"dtype": "int64"}}
    with pytest.raises(
        DataError,
        match=rf"feature 'v' of record 8 holds {told}\S*, which is not a {dtype}; set data.params.features",
    ):
        load(TfrecordDataset, config(path=write(tmp_path / "a.tfrecord", rows)), features=features)
    rows[7]["v"] = good
    load(TfrecordDataset, config(path=write(tmp_path / "a.tfrecord", rows)), features=features)


def test_several_files_make_one(tmp_path: Path) -> None:
    rows = people()
    whole = load(TfrecordDataset, config(path=write(tmp_path / "whole.tfrecord", rows)))
    for i in range(3):
        write(tmp_path / f"part-{i}.tfrecord", rows[40 * i : 40 * (i + 1)])
    parts = load(TfrecordDataset, config(path=str(tmp_path / "part-*.tfrecord")))
    assert {n: s.fingerprint() for n, s in parts.splits.items()} == {
        n: s.fingerprint() for n, s in whole.splits.items()
    }
    with pytest.raises(DataError, match="no file matches this pattern"):
        load(TfrecordDataset, config(path=str(tmp_path / "shard-*.tfrecord")))


def test_a_file_for_each_split(tmp_path: Path) -> None:
    paths = {
        f"{name}_path": write(tmp_path / f"{name}.tfrecord", people(60, seed))
        for seed, name in enumerate(("train", "val", "test"))
    }
    bundle = load(TfrecordDataset, config(**paths))
    assert {name: len(split) for name, split in bundle.splits.items()} == {"train": 60, "val": 60, "test": 60}


def test_a_run_trains_on_it_without_tensorflow(tmp_path: Path) -> None:
    write(tmp_path / "a.tfrecord", people())
    model = {"type": "mlp", "hidden": [4]}
    data = {"type": "tfrecord", "path": "a.tfrecord", "target": "bought"}
    code = (
        "import json, sys, trainwright; trainwright.train(json.loads(sys.argv[1]), runs_dir='r'); "
        "print('tensorflow' in sys.modules)"
    )
    run = json.dumps({"data": data, "model": model, "training": {"epochs": 1}})
    done = subprocess.run(
        [sys.executable, "-c", code, run], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "False"


# -- tf.data


class Shape:
    def __init__(self, shape: tuple[int | None, ...]) -> None:
        self.rank = len(shape)
        self._shape = shape

    def as_list(self) -> list[int | None]:
        return list(self._shape)


class Spec:
    def __init__(self, *shape: int | None) -> None:
        self.shape = Shape(shape)


class FakeDataset:
    """What is used of a tf.data.Dataset."""

    def __init__(self, elements: list[Any], *spec: Spec, infinite: bool = False) -> None:
        self.elements = elements
        self.element_spec = spec
        self._infinite = infinite

    def cardinality(self) -> int:
        return -1 if self._infinite else len(self.elements)

    def as_numpy_iterator(self) -> Any:
        return iter(self.elements)


X, Y = np.arange(12, dtype=np.float32).reshape(6, 2), np.array([b"a", b"b"] * 3, dtype=object)


@pytest.mark.parametrize(
    "dataset",
    [
        FakeDataset(list(zip(X, Y, strict=True)), Spec(2), Spec()),
        FakeDataset([(X[:4], Y[:4]), (X[4:], Y[4:])], Spec(None, 2), Spec(None)),
        FakeDataset([(X[:3], Y[:3]), (X[3:], Y[3:])], Spec(3, 2), Spec(3)),
    ],
)
def test_a_dataset_becomes_arrays(dataset: FakeDataset) -> None:
    assert is_tf_dataset(dataset)
    assert not is_tf_dataset((X, Y))
    features, targets = from_tf_dataset(dataset, "the train split")
    np.testing.assert_array_equal(features, X)
    assert targets.tolist() == ["a", "b"] * 3


@pytest.mark.parametrize(
    ("dataset", "says"),
    [
        (FakeDataset([X], Spec(2)), r"must yield \(features, target\) pairs"),
        (FakeDataset([], Spec(2), Spec()), "is empty"),
        (FakeDataset([(X[0], Y[0])], Spec(2), Spec(), infinite=True), r"remove its repeat\(\)"),
        (FakeDataset([(X[0], Y[0]), (X[:2, 0][:1], Y[0])], Spec(None), Spec()), "differ in shape"),
    ],
)
def test_a_dataset_that_cannot_be_read(dataset: FakeDataset, says: str) -> None:
    with pytest.raises(DataError, match=says):
        from_tf_dataset(dataset, "the train split")


@pytest.mark.slow
def test_a_real_dataset(by_tensorflow: tuple[Path, str]) -> None:
    _, printed = by_tensorflow
    assert "never ends" in printed
