"""The commands of `data` that keep versions: what they print, as text and as JSON, and their exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainwright.cli.main import main


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LOGNAME", "ada")


def text_of(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["data", *words]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def json_of(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    return json.loads(text_of(capsys, *words, "--json"))


def test_from_add_to_gc(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no data set yet" in text_of(capsys, "log")
    Path("churn.csv").write_text("a\n1\n")
    assert text_of(capsys, "add", "churn.csv", "-m", "first") == "added churn@v1: 1 file, 4 B\n"
    assert text_of(capsys, "add", "churn.csv") == (
        "no new version: the content is that of churn@v1: 1 file, 4 B\n"
    )
    Path("churn.csv").write_text("a\n2\n")
    assert json_of(capsys, "add", "churn.csv", "--tag", "prod")["tags"] == ["prod"]
    lines = text_of(capsys, "log", "churn").splitlines()
    assert [line.split()[0] for line in lines] == ["version", "churn@v2", "churn@v1"]
    assert lines[1].endswith("prod")
    assert lines[2].endswith("first")
    shown = text_of(capsys, "show", "churn@prod")
    assert "by ada on" in shown
    assert shown.endswith("\nchurn.csv\n")
    assert text_of(capsys, "get", "churn@v1", "-o", "old.csv") == f"wrote {Path('old.csv').absolute()}\n"
    assert Path("old.csv").read_text() == "a\n1\n"
    assert "is there already" in text_of(capsys, "get", "churn@v1", "-o", "old.csv", code=2)
    assert text_of(capsys, "gc", "--keep", "1", "--dry-run") == (
        "would delete churn@v1\nwould delete 3 objects that no version needs\n"
    )
    assert text_of(capsys, "delete", "churn@v1") == "deleted churn@v1\n"
    assert json_of(capsys, "gc") == {"versions": [], "objects": 3, "kept": {}}
    assert "churn@v1 was deleted by ada on" in text_of(capsys, "get", "churn@v1", code=2)
    assert "was deleted by ada" in text_of(capsys, "log")


def test_a_version_is_tagged_later(capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(3):
        Path("churn.csv").write_text(f"a\n{i}\n")
        text_of(capsys, "add", "churn.csv")
    assert text_of(capsys, "tag", "churn@v1", "prod") == "churn@prod is churn@v1\n"
    assert json_of(capsys, "tag", "churn@v2", "prod")["tags"] == ["prod"]
    assert json_of(capsys, "show", "churn@v1")["tags"] == []
    assert "'v9' is no tag" in text_of(capsys, "tag", "churn@v1", "v9", code=2)
    assert "has no version 'v9'" in text_of(capsys, "tag", "churn@v9", "good", code=2)
    text_of(capsys, "delete", "churn@v2")
    assert "churn@v2 was deleted" in text_of(capsys, "tag", "churn@v2", "good", code=2)
    assert "there are: v1, v3, latest\n" in text_of(capsys, "show", "churn@gut", code=2)
    assert "churn@v2 was deleted" in text_of(capsys, "show", "churn@prod", code=2)
    assert "churn is a data set; name a version as churn@VERSION: there are: v1, v3, latest\n" in text_of(
        capsys, "show", "churn", code=2
    )
    assert "'chrun' names no version of data" in text_of(capsys, "show", "chrun", code=2)


def test_many_data_sets_are_listed_in_part(capsys: pytest.CaptureFixture[str]) -> None:
    Path("churn.csv").write_text("a\n1\n")
    for i in range(12):
        text_of(capsys, "add", "churn.csv", "--name", f"set{i:02d}")
    assert "there are: set00, set01, set02, set03, ..., set07, set08" in text_of(
        capsys, "show", "x@v1", code=2
    )


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        *((word, "log") for word in ("ls", "list", "versions")),
        ("checkout", "get"),
        *((word, "delete") for word in ("rm", "remove")),
        ("push", "add"),
        ("tags", "tag"),
    ],
)
def test_words_of_other_tools_are_answered(word: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"Did you mean 'data {meant}'?" in text_of(capsys, word, code=2)


def test_force_without_keep_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--keep N" in text_of(capsys, "gc", "--force", code=2)


def test_another_folder_of_runs_has_other_versions(capsys: pytest.CaptureFixture[str]) -> None:
    Path("churn.csv").write_text("a\n1\n")
    text_of(capsys, "add", "churn.csv", "--runs-dir", "team")
    assert "there is no data set 'churn'" in text_of(capsys, "show", "churn@v1", code=2)
    assert json_of(capsys, "show", "churn@v1", "--runs-dir", "team")["runs"] == []
