"""Splits by the hash of a key: no row changes its split while the table grows, whatever its columns become."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image

import trainwright
from trainwright.config.schema import DataConfig
from trainwright.config.splits import SplitConfig
from trainwright.datasets.base import DataBundle, LoadRequest
from trainwright.datasets.tables.key_forms import SharedKeys, key_forms
from trainwright.datasets.tables.split_keys import texts_of
from trainwright.datasets.tables.table import Table, tidy
from trainwright.errors import ConfigError, DataError
from trainwright.plugins import adapter
from trainwright.types import FeatureForm

Row = dict[str, Any]
Split = dict[str, list[int]]


def expected(text: str, seed: int = 0, val: float = 0.1, test: float = 0.1) -> str:
    """Return the split of a key, computed from what docs/splits.md says."""
    number = int(hashlib.sha256(f"{seed}\x1f{text}".encode()).hexdigest()[:16], 16) / 2**64
    return "test" if number < test else "val" if number < val + test else "train"


def load(path: Path | str, **settings: Any) -> DataBundle:
    given = {"type": "csv", "path": str(path), "target": "y", **settings}
    params = {key: given.pop(key) for key in ("image", "text", "max_length") if key in given}
    config = DataConfig.model_validate(given)
    reader = adapter("dataset", config.type)
    return reader(config, reader.Params(**params)).load(LoadRequest(FeatureForm()))


def split_of(bundle: DataBundle) -> dict[int, str]:
    return {int(row): name for name, rows in bundle.rows.items() for row in rows}


def month_of(count: int, month: int) -> list[Row]:
    """Return rows of keys that look like numbers, codes, and dates, each month some more."""
    draw = np.random.default_rng(month)
    return [
        {
            "customer_id": 1000 * month + i,
            "x": round(float(draw.normal()), 3),
            "when": f"2025-{month:02d}-{i % 28 + 1:02d}",
            "member": bool(i % 3),
            "z": i % 7,
            "y": int(draw.integers(2)),
        }
        for i in range(count)
    ]


def written(path: Path, rows: Sequence[Row], how: str) -> str:
    """Write the rows in one of the forms that tables have, and return the type of the file."""
    frame = pd.DataFrame(rows)
    if how in ("floats", "texts", "parquet"):
        frame["customer_id"] = frame["customer_id"].astype(
            {"floats": float, "texts": str, "parquet": int}[how]
        )
        frame.to_parquet(path)
        return "parquet"
    if how == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return "jsonl"
    if how == "excel":
        frame.to_excel(path, index=False)
        return "excel"
    frame.to_csv(path, index=False, float_format="%.3f")
    return "csv"


@pytest.mark.parametrize("key", ["customer_id", ["when", "customer_id"], None])
def test_no_row_of_a_growing_table_changes_its_split(tmp_path: Path, key: Any) -> None:
    rows: list[Row] = []
    known: dict[int, str] = {}
    order = np.random.default_rng(0)
    forms = ["csv", "floats", "texts", "jsonl", "excel", "parquet"] if key else ["csv", "jsonl"]
    for month in range(1, 13):
        rows += month_of(40, month)
        shuffled = [rows[i] for i in order.permutation(len(rows))]
        if key is None and month % 4 > 1:  # one stray row makes columns of numbers, dates and booleans texts
            stray = {"customer_id": "odd", "x": "much", "when": "never", "member": "perhaps", "z": 1, "y": 1}
            shuffled.append(stray)
        path = tmp_path / f"{month}.xlsx"
        kind = written(path, shuffled, forms[month % len(forms)])
        options = {"split": {"by": "hash", "key": key}, "features": ["z"]}
        split = split_of(load(path, type=kind, **options))
        found = {row["customer_id"]: split[i] for i, row in enumerate(shuffled)}
        if key == "customer_id":
            assert found == {one: expected(str(one)) for one in found}
        moved = {one: (known[one], found[one]) for one in known if known[one] != found[one]}
        assert not moved, f"month {month} ({kind})"
        known = {one: name for one, name in found.items() if isinstance(one, int)}
    assert len(known) == 480


@pytest.mark.parametrize(
    "forms",
    [
        [7, 7.0, "7", "7.0", " 7 ", "+7", np.int8(7), "7e0"],
        ["007", " 007"],
        [True, 1, 1.0, "true", "True"],
        [np.datetime64("2026-01-31"), "2026-01-31", "2026-01-31T00:00:00", "2026-01-31 01:00:00+01:00"],
        [None, float("nan"), "", " ", np.datetime64("NaT")],
        ["0.5", 0.5, "00.5", ".5"],
        [2**53 + 1, float(2**53), str(2**53)],
        ["Käse "],
    ],
)
def test_a_value_has_one_text_in_all_its_forms(forms: Sequence[Any]) -> None:
    texts = [texts_of(tidy([one], "key"))[0] for one in forms]
    assert set(texts) == {str(texts[0])}
    assert texts_of(tidy(["007"], "key")) == ["007"] != texts_of(tidy([7], "key"))


def test_the_digits_of_codes_stay_as_they_are_written(tmp_path: Path) -> None:
    """One decimal number makes pandas, and Arrow, read a column of codes as numbers."""
    codes = [f"{i:03d}" for i in range(200)]
    for more in ([], ["1.5"], ["none"]):
        path = tmp_path / "codes.csv"
        path.write_text(
            "id,x,y\n" + "".join(f"{code},{i},{i % 2}\n" for i, code in enumerate([*codes, *more]))
        )
        split = split_of(load(path, split={"by": "hash", "key": "id"}))
        assert [split[i] for i in range(200)] == [
            expected(str(int(c)) if len(str(int(c))) == 3 else c) for c in codes
        ]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_name_that_reads_like_a_missing_value_is_a_key(tmp_path: Path, kind: str) -> None:
    missing = ["NA", "null", "NaN", "nan"]  # in files without types
    names = ["Nan", "NAN", "Null", "n/a", *(f"Ann{i}" for i in range(61))]
    names[-4:] = missing if kind == "parquet" else names[-4:]
    rows = pd.DataFrame({"name": names, "x": range(65), "y": [i % 2 for i in range(65)]})
    path = tmp_path / f"t.{kind}"
    rows.to_csv(path, index=False) if kind == "csv" else rows.to_parquet(path)
    split = split_of(load(path, type=kind, split={"by": "hash", "key": "name", "val": 0.3, "test": 0.3}))
    assert [split[i] for i in range(65)] == [expected(name, 0, 0.3, 0.3) for name in names]


def test_the_content_of_a_row_has_the_form_that_is_documented(tmp_path: Path) -> None:
    rows = [{"b": i / 4, "a": None if i % 3 else f"w{i}", "y": i % 2} for i in range(90)]
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", index=False)
    split = split_of(load(tmp_path / "t.csv", split={"by": "hash", "seed": 4}, impute="most_frequent"))
    for i, row in enumerate(rows):
        texts = {"a": row["a"], "b": str(i // 4) if i % 4 == 0 else repr(row["b"]), "y": str(row["y"])}
        text = "\x1f".join(f"{name}={cell}" for name, cell in texts.items() if cell is not None)
        assert split[i] == expected(text, seed=4)


def test_codes_in_the_content_of_a_row_are_numbers(tmp_path: Path) -> None:
    """One decimal number makes a column of codes one of numbers, and one word makes it texts again."""
    rows = [f"{i:03d},{i % 7},{i % 2}\n" for i in range(200)]
    splits = []
    for more in ([], ["1.5,1,0\n"], ["1.5,1,0\n", "none,1,1\n"]):
        path = tmp_path / "codes.csv"
        path.write_text("".join(["x,z,y\n", *rows, *more]))
        split = split_of(load(path, split={"by": "hash"}, features=["z"]))
        splits.append([split[i] for i in range(200)])
    assert splits[0] == splits[1] == splits[2]


def test_shares_are_kept_on_average_and_depend_on_the_seed(tmp_path: Path) -> None:
    path = tmp_path / "many.csv"
    path.write_text("id,x,y\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(20_000)))
    splits = []
    for seed in (0, 1):
        bundle = load(path, split={"by": "hash", "key": "id", "val": 0.2, "test": 0.1, "seed": seed})
        for name, share in (("val", 0.2), ("test", 0.1)):
            assert abs(len(bundle.splits[name]) - 20_000 * share) < 3 * np.sqrt(20_000 * share * (1 - share))
        splits.append(split_of(bundle))
        assert splits[-1] == {i: expected(str(i), seed, 0.2, 0.1) for i in range(20_000)}
    assert splits[0] != splits[1]


def test_a_larger_share_keeps_the_old_test_rows(tmp_path: Path) -> None:
    written(tmp_path / "a.csv", month_of(300, 1), "csv")
    small, large = (
        set(
            load(tmp_path / "a.csv", split={"by": "hash", "key": "customer_id", "test": test})
            .rows["test"]
            .tolist()
        )
        for test in (0.1, 0.3)
    )
    assert small < large


def test_folds_are_intervals_and_stay(tmp_path: Path) -> None:
    rows = month_of(300, 1)
    seen: list[int] = []
    for fold in range(4):
        options = {"by": "hash", "key": "customer_id", "folds": 4, "fold": fold, "val": 0.2}
        split = {}
        for count in (200, 300):
            written(tmp_path / "a.csv", rows[:count], "csv")
            split = split | {count: split_of(load(tmp_path / "a.csv", split=options))}
        assert split[200].items() <= split[300].items()
        seen += [row for row, name in split[300].items() if name == "test"]
        rest = [name for name in split[300].values() if name != "test"]
        assert 0.1 < rest.count("val") / len(rest) < 0.3
    assert sorted(seen) == list(range(300))


def test_folds_of_the_rows_that_do_not_test(tmp_path: Path) -> None:
    written(tmp_path / "a.csv", month_of(300, 1), "csv")
    tests = {row for row in range(300) if expected(str(1000 + row)) == "test"}
    seen: list[int] = []
    for fold in range(3):
        options = {"by": "hash", "key": "customer_id", "val_folds": 3, "val_fold": fold}
        split = split_of(load(tmp_path / "a.csv", split=options))
        assert not tests & split.keys()
        seen += [row for row, name in split.items() if name == "val"]
    assert sorted([*seen, *tests]) == list(range(300))


def test_missing_keys_are_named(tmp_path: Path) -> None:
    rows = month_of(30, 1)
    rows[4]["customer_id"] = rows[7]["customer_id"] = None
    for how in ("csv", "jsonl"):
        path = tmp_path / f"a.{how}"
        kind = written(path, rows, how)
        with pytest.raises(
            DataError, match=r"column 'customer_id' \(data.split.key\) has no value in rows 5, 8"
        ):
            load(path, type=kind, split={"by": "hash", "key": "customer_id"})
    with pytest.raises(DataError, match=r"data.split.key: there is no column 'customer'; did you mean"):
        load(tmp_path / "a.csv", split={"by": "hash", "key": "customer"})


def test_rows_without_target_need_no_key(tmp_path: Path) -> None:
    rows = month_of(60, 1)
    rows[4] |= {"customer_id": None, "y": None}
    written(tmp_path / "a.csv", rows, "csv")
    split = split_of(
        load(tmp_path / "a.csv", missing_target="drop", split={"by": "hash", "key": "customer_id"})
    )
    assert split == {i: expected(str(1000 + i)) for i in range(60) if i != 4}


def test_a_key_is_learned_from_only_if_features_name_it(tmp_path: Path) -> None:
    written(tmp_path / "a.csv", month_of(60, 1), "csv")
    options = {"by": "hash", "key": "customer_id"}
    named = load(tmp_path / "a.csv", split=options, features=["customer_id", "x"])
    assert list(named.info.feature_names) == ["customer_id", "x"]
    assert split_of(named) == split_of(load(tmp_path / "a.csv", split=options))
    both = load(tmp_path / "a.csv", split={"by": "hash", "key": ["customer_id", "z"]})
    assert not {"customer_id", "z"} & set(both.info.feature_names)


def test_empty_splits_are_refused(tmp_path: Path) -> None:
    rows = [{**row, "customer_id": 3} for row in month_of(30, 1)]
    written(tmp_path / "a.csv", rows, "csv")
    with pytest.raises(DataError, match=r"the val split would be empty.*'customer_id' stay together"):
        load(tmp_path / "a.csv", split={"by": "hash", "key": "customer_id"})


def test_a_folder_of_files_is_one_table(tmp_path: Path) -> None:
    folder = tmp_path / "months"
    folder.mkdir()
    rows = month_of(40, 1) + month_of(40, 2)
    written(folder / "1.csv", rows[:40], "csv")
    written(folder / "2.csv", rows[40:], "csv")
    split = split_of(load(folder, split={"by": "hash", "key": "customer_id"}))
    assert split == {i: expected(str(row["customer_id"])) for i, row in enumerate(rows)}


def test_rows_of_texts(tmp_path: Path) -> None:
    rows = [{"review": f"word {i} of {i % 5}", "id": i, "y": "ab"[i % 2]} for i in range(100)]
    pd.DataFrame(rows).to_csv(tmp_path / "a.csv", index=False)
    split = split_of(
        load(
            tmp_path / "a.csv",
            type="text_table",
            text="review",
            max_length=8,
            split={"by": "hash", "key": "id"},
        )
    )
    assert split == {i: expected(str(i)) for i in range(100)}
    by_content = {"by": "hash"}
    first, again = [], []
    for listed, found in ((rows, first), (rows[::-1], again)):
        pd.DataFrame(listed).to_csv(tmp_path / "a.csv", index=False)
        split = split_of(
            load(tmp_path / "a.csv", type="text_table", text="review", max_length=8, split=by_content)
        )
        found += [split[i] for i in range(100)]
    assert first == again[::-1]


@pytest.mark.parametrize("as_bytes", [False, True])
def test_rows_of_images(tmp_path: Path, as_bytes: bool) -> None:
    names = []
    for i in range(60):
        Image.new("RGB", (4, 4), (i, 2 * i, 3 * i)).save(tmp_path / f"{i}.png")
        names.append(f"{i}.png")
    frame = pd.DataFrame({"image": names, "id": range(60), "y": [i % 2 for i in range(60)]})
    path = tmp_path / "a.csv"
    if as_bytes:
        path = tmp_path / "a.parquet"
        frame["image"] = [(tmp_path / name).read_bytes() for name in names]
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    split = split_of(load(path, type="image_table", image="image", split={"by": "hash", "key": "id"}))
    assert split == {i: expected(str(i)) for i in range(60)}
    frame = frame.drop(columns="id")
    frame.to_parquet(path) if as_bytes else frame.to_csv(path, index=False)
    split = split_of(load(path, type="image_table", image="image", split={"by": "hash"}))
    assert set(split.values()) == {"train", "val", "test"}  # by the images, not by the few labels alone


def test_rows_of_arrow_files(tmp_path: Path) -> None:
    """A saved data set of Hugging Face's library has one file, which is divided by the keys."""
    table = pa.table(
        {
            "id": [str(i) for i in range(80)],
            "x": [float(i) for i in range(80)],
            "y": [i % 2 for i in range(80)],
        }
    )
    with (
        pa.OSFile(str(tmp_path / "data-0.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as out,
    ):
        out.write_table(table, max_chunksize=7)
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "data-0.arrow"}]}')
    bundle = load(tmp_path, type="huggingface", split={"by": "hash", "key": "id"})
    for name, rows in bundle.splits.items():
        batch = rows.take(np.arange(len(rows)))
        own = [i for i in range(80) if expected(str(i)) == name]
        assert batch["features"].reshape(-1).tolist() == own
        assert batch["target"].tolist() == [i % 2 for i in own]
    assert sum(map(len, bundle.splits.values())) == 80
    assert len({rows.fingerprint() for rows in bundle.splits.values()}) == 3
    with pytest.raises(DataError, match="there is no column 'ide'; did you mean 'id'"):
        load(tmp_path, type="huggingface", split={"by": "hash", "key": "ide"})


REFUSED: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "group": ({"by": "hash", "group": "g"}, "write key: g"),
    "time": ({"by": "hash", "time": "t"}, "a hash knows no older rows"),
    "stratify": ({"by": "hash", "stratify": True}, "leave stratify out"),
    "a key alone": ({"key": "k"}, "key also needs by: hash"),
    "another way": ({"by": "time"}, "write data.split.time: COLUMN"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused(case: str) -> None:
    split, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        trainwright.check({"data": {"path": "a.csv", "split": split}, "model": "mlp"})


def arrays(folder: Path) -> Row:
    np.savez(folder / "a.npz", X=np.zeros((40, 2, 2)), y=np.arange(40) % 2)
    return {"type": "npz", "path": folder / "a.npz"}


def texts(folder: Path) -> Row:
    (folder / "a.txt").write_text("words " * 300)
    return {"type": "text", "path": folder / "a.txt"}


@pytest.mark.parametrize("made", [arrays, texts])
def test_data_without_columns_are_refused(tmp_path: Path, made: Callable[[Path], Row]) -> None:
    with pytest.raises(DataError, match=r"data.split.by"):
        load(**made(tmp_path), split={"by": "hash"})


@pytest.mark.parametrize(
    "split", [{"method": "hash", "id_column": "customer_id"}, {"by": "hashed", "hash_column": "customer_id"}]
)
def test_words_of_others_are_read_as_ours(tmp_path: Path, split: Row) -> None:
    written(tmp_path / "a.csv", month_of(40, 1), "csv")
    config = {"data": {"path": str(tmp_path / "a.csv"), "target": "y", "split": split}, "model": "mlp"}
    section = trainwright.check(config).config.data.split
    assert (section.by, section.keys) == ("hash", ["customer_id"])
    config["data"]["split"] = "hash"
    section = trainwright.check(config).config.data.split
    assert (section.by, section.keys) == ("hash", [])


def test_a_run_predicts_and_evaluates_its_own_rows(tmp_path: Path) -> None:
    rows = month_of(200, 1)
    written(tmp_path / "a.csv", rows, "csv")
    config = {
        "data": {
            "path": str(tmp_path / "a.csv"),
            "target": "y",
            "split": {"by": "hash", "key": "customer_id"},
        },
        "model": "logistic_regression",
    }
    run = trainwright.train(config, runs_dir=tmp_path / "runs")
    own = [i for i, row in enumerate(rows) if expected(str(row["customer_id"])) == "test"]
    pd.DataFrame([rows[i] for i in own]).to_csv(tmp_path / "own.csv", index=False)
    again = [trainwright.evaluate(run, data=data) for data in (None, tmp_path / "own.csv")]
    assert [one["test_accuracy"] for one in again] == [run.metrics["test_accuracy"]] * 2, again


def test_keys_are_known_again_in_other_spellings() -> None:
    def forms(keys: list[str]) -> list[str]:
        return key_forms(
            Table({"id": np.array(keys, dtype=object)}, "t.csv"), SplitConfig(by="hash", key="id")
        )

    before = forms([f"{i:06}" for i in range(300)])
    assert SharedKeys.of(before, before) == (64, 64, 0)
    assert len(before) == 64
    spellings = {"AB-{:03}": "ab{}", "{:05}-X": "{}/x", "K{:04}": "K {}"}
    for one, other in spellings.items():
        shared = SharedKeys.of(*(forms([text.format(i) for i in range(300)]) for text in (one, other)))
        assert shared == (64, 64, 64)
        assert shared.are_written_otherwise
    grown = SharedKeys.of(before, forms([f"{i:06}" for i in range(900)]))
    assert grown.there == grown.expected > 10
    assert grown.changed == 0
    few = SharedKeys.of(before, forms([*(f"{i:06}" for i in range(1, 300)), "0"]))
    assert not few.are_written_otherwise
    others = SharedKeys.of(before, forms([f"{i:06}" for i in range(1000, 1300)]))
    assert (others.there, others.are_few, others.are_written_otherwise) == (0, True, False)
    assert SharedKeys.of([], before) == (0, 0, 0)
