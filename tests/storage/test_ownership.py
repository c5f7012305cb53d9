"""The signature of a run: it holds for one key, one folder of runs and one config, from wherever it is read."""

from __future__ import annotations

import hashlib
import hmac
import shutil
from pathlib import Path

import pytest

from trainwright.records.creation import Creation
from trainwright.records.run_dir import RunDir
from trainwright.storage.ownership import foreign_error, foreign_reason, is_own

CONFIG = "experiment: {name: exp}\n"


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "trainwright" / "key"


@pytest.fixture
def run(tmp_path: Path, key: Path) -> Path:
    return RunDir.create(tmp_path / "runs", "exp", CONFIG).path


def test_a_run_is_own_from_every_working_directory_and_through_links(
    run: Path, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    Path("linked").symlink_to(tmp_path / "runs")
    Path("latest").symlink_to(run)
    for name in (run, Path("linked/exp") / run.name, Path("latest"), Path("../runs/exp") / run.name):
        assert is_own(name), name
    record = Creation.load(run / Creation.FILE)
    assert record is not None
    signed = f"{run.parent.parent.resolve()}\0{record.places}\0{CONFIG}".encode()
    assert record.signature == hmac.digest(key.read_bytes(), signed, hashlib.sha256).hex()
    assert key.stat().st_mode & 0o077 == 0


def test_what_was_copied_edited_or_signed_by_others_is_foreign(run: Path, tmp_path: Path) -> None:
    copied = tmp_path / "theirs" / "exp" / run.name
    shutil.copytree(run, copied)
    assert "copied, moved, edited" in str(foreign_reason(copied))
    other = RunDir.create(tmp_path / "runs", "exp", "experiment: {name: other}\n").path
    shutil.copy(run / Creation.FILE, other / Creation.FILE)
    assert not is_own(other)  # with the signature of another config
    (run / "config.yaml").write_text(CONFIG + "#")
    assert not is_own(run)


def test_the_error_says_what_is_wrong_with_the_signature(
    run: Path, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    assert "another key" in str(foreign_error(run, "data.path", "${env:X}"))
    monkeypatch.setenv("XDG_STATE_HOME", str(key.parent.parent))
    key.write_bytes(b"short")
    message = str(foreign_error(run, "data.path", "${env:X}"))
    assert message.startswith(f"data.path: ${{env:X}} is not used, because run {run.name} may")
    assert str(key) in message
    assert "5 bytes" in message
    assert message.endswith("--trust (trust=True)")
    key.unlink()
    (run / Creation.FILE).unlink()
    assert foreign_reason(run) == "it carries no signature of yours"
