"""Stores of versions that somebody has crafted: each command ends with one line, and little memory."""

import json
import resource
import shutil
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

import trainwright
from trainwright.cli.main import main
from trainwright.digest import sha256_bytes
from trainwright.errors import DataError
from trainwright.records.document import dump, parse_json
from trainwright.versions.embedded.tree import TreeFile, decode, encode

NAMES, TREES = Path("runs/.data/names"), Path("runs/.data/trees")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))
    for name in ("churn", "other"):
        Path(f"{name}.csv").write_text(f"a\n{len(name)}\n")
        trainwright.data_add(f"{name}.csv")


def craft(at: int = 1, name: str = "churn", **changes: Any) -> None:
    """Change fields of the first entry of a log, and write it with a number."""
    entry = parse_json((NAMES / "churn/000001").read_bytes()) | changes
    (NAMES / name).mkdir(exist_ok=True)
    (NAMES / f"{name}/{at:06d}").write_bytes(dump(entry))


def craft_tree(tree: Any, **changes: Any) -> None:
    """Make the first version one of a list of files that is any JSON."""
    text = json.dumps(tree).encode()
    (TREES / sha256_bytes(text)).write_bytes(zlib.compress(text))
    craft(content=sha256_bytes(text), **changes)


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["data", *words]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize(
    "changes",
    [
        {"number": -1},
        {"number": 10**5000},
        {"files": -1},
        {"bytes": 2**70},
        {"time": 1e300},
        {"time": -1.0},
        {"packs": "x"},
        {"content": 1},
    ],
)
def test_a_value_out_of_range_is_damage(changes: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    sys.set_int_max_str_digits(0)
    try:
        craft(**changes)
    finally:
        sys.set_int_max_str_digits(4300)
    for command in ("log", "show", "get", "delete"):
        said = fails(capsys, command, "churn" if command == "log" else "churn@latest")
        assert "names/churn/000001 in the store of data is damaged" in said
    assert main(["data", "log"]) == 0
    captured = capsys.readouterr()
    assert "other@v1" in captured.out
    assert "churn is left out: names/churn/000001" in captured.err


def test_an_object_that_is_no_entry_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("zzz", "1", "0" * 200, "000002x"):
        shutil.copy(NAMES / "churn/000001", NAMES / "churn" / name)
        assert f"names/churn/{name} in the store of data is no entry" in fails(capsys, "log", "churn")
        assert "is no entry" in fails(capsys, "gc")
        (NAMES / "churn" / name).unlink()


def test_a_log_without_a_version_has_no_latest(capsys: pytest.CaptureFixture[str]) -> None:
    craft(name="empty", kind="tag", tag="good", number=7)
    assert "empty has no version" in fails(capsys, "show", "empty@latest")
    assert "empty has no version 'good'; there is none" in fails(capsys, "show", "empty@good")
    craft(2, "empty", kind="delete", number=7)
    assert "empty has no version any more: v7 was deleted" in fails(capsys, "show", "empty@latest")


def test_a_number_of_many_digits_is_no_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert "churn has no version" in fails(capsys, "show", f"churn@v{'9' * 50}")
    assert len(fails(capsys, "show", f"churn@v{'9' * 5000}")) < 300


def test_lone_surrogates_are_shown_as_marks(capsys: pytest.CaptureFixture[str]) -> None:
    craft(message="a\ud800b", user="\udfff")
    for words in (["log"], ["show", "churn@v1"], ["log", "--json"]):
        assert main(["data", *words]) == 0
        assert "a?b" in capsys.readouterr().out


@pytest.mark.parametrize(
    "tree",
    [
        [["a"]],
        {"a": 1},
        {"abc": 1},
        ["abc"],
        5,
        [["a", "x", []]],
        [[5, 0, []]],
        [["a", -5, []]],
        [["a", 0.0, []]],
        [["a", True, ["0" * 64]]],
        [["a", 1, [5]]],
        [["a", 1, "0" * 64]],
        [["\ud800", 0, []]],
        [["a", 0, []], ["a/b", 0, []]],
        [["a", 0, []], ["a", 0, []]],
    ],
)
def test_a_list_of_other_types_is_damage(tree: Any, capsys: pytest.CaptureFixture[str]) -> None:
    craft_tree(tree, file="")
    for words in (["show", "churn@v1"], ["get", "churn@v1", "-o", "out"], ["gc"]):
        assert "list of files" in fails(capsys, *words)
    assert not Path("out").exists()


def test_a_file_that_its_list_does_not_have_is_damage(capsys: pytest.CaptureFixture[str]) -> None:
    craft_tree([["b.csv", 0, []]])
    assert "is not that of the file data.csv" in fails(capsys, "get", "churn@v1", "-o", "out.csv")
    assert not Path("out.csv").exists()


@pytest.mark.parametrize("sizes", [[["0" * 64, -5]], [["0" * 64, 1.5]], [[[], 1]], [[1, 2]], [1], {"a": 1}])
def test_a_crafted_index_is_damage(sizes: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for index in Path("runs/.data/index").iterdir():
        index.write_text(json.dumps(sizes))
    assert "the index of pack" in fails(capsys, "get", "churn@v1", "-o", "out.csv")


def test_a_short_list_does_not_fill_the_memory() -> None:
    text = b'["' + b"a" * (400 * 2**20) + b'"]'
    stored, content = zlib.compress(text, 9), sha256_bytes(text)
    del text
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="too large"):
        decode(content, stored)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # KiB


def test_a_list_that_shrinks_very_much_is_read_again() -> None:
    files = [TreeFile(f"{'folder/' * 500}{i:05d}", 0, ()) for i in range(3000)]
    assert decode(*encode(files)) == sorted(files)
