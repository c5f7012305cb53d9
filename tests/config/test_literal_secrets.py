"""Secrets in clear text: the config keeps them, nothing else does."""

import errno
import logging
import os
import stat
from pathlib import Path

import pytest

from trainwright.config import load
from trainwright.records import run_dir
from trainwright.records.manifest import Manifest
from trainwright.records.run_dir import RunDir
from trainwright.redact import fingerprinted, redacted
from trainwright.storage.index import facts

SECRETS = {
    "api_key": "LITERALSECRET99",
    "url": "http://bob:pa55w0rdX@host/x",
    "tokens": ["https://u:pw1234@h"],
}
CONFIG = {"data": "digits", "model": {"type": "net:Net", "width": 4, **SECRETS}}


def manifest(key: str = "LITERALSECRET99") -> Manifest:
    resolved = load(CONFIG, {"model.params.api_key": key})
    return Manifest(run_id="r", experiment="e", computation=resolved.computation(), model={"api_key": key})


def test_a_manifest_holds_no_secret_and_shows_that_one_has_changed():
    text = str(manifest().to_json())
    assert not [secret for secret in ("LITERALSECRET99", "pa55w0rdX", "pw1234") if secret in text]
    changed = manifest().differences(manifest("ANOTHERSECRET00"))
    assert [difference.what for difference in changed] == ["model.params.api_key", "api_key"]
    assert changed[0].before.startswith("*** (sha256 ")


def test_a_manifest_of_an_earlier_version_compares_equal():
    earlier = Manifest(run_id="r", experiment="e", computation=load(CONFIG).computation())
    earlier = earlier.model_validate(earlier.to_json())
    assert not earlier.differences(manifest().model_copy(update={"model": {}}))


@pytest.mark.parametrize("value", ["${env:NAME}", "plain", 5, None, True, ""])
def test_other_values_are_kept(value):
    key = "model.params.api_key" if value != "plain" else "model.params.name"
    assert fingerprinted(key, value) == value


def test_a_warning_names_each_key(caplog):
    with caplog.at_level(logging.WARNING):
        load(CONFIG).log_notes()
    keys = [line.split()[1] for line in caplog.messages]
    assert keys == ["model.params.api_key", "model.params.url", "model.params.tokens"]
    assert all("use ${env:NAME}" in line and "LITERAL" not in line for line in caplog.messages)


def test_messages_hide_the_secret_from_then_on():
    load(CONFIG)
    assert redacted("server refused LITERALSECRET99 of bob, pa55w0rdX") == "server refused *** of bob, ***"


@pytest.mark.parametrize(("config", "mode"), [(CONFIG, 0o600), ({"data": "digits", "model": "mlp"}, 0o644)])
def test_a_config_file_with_a_secret_is_for_its_owner_only(tmp_path, config, mode):
    run = RunDir.create(tmp_path, "e", load(config).dump())
    assert stat.S_IMODE(run.config_file.stat().st_mode) == mode
    assert load(run.config_file).config == load(config).config
    assert stat.S_IMODE((run.path / "created.json").stat().st_mode) == 0o644, "it holds no secret"


def test_others_see_a_run_whose_config_they_may_not_read(tmp_path, monkeypatch):
    run = RunDir.create(tmp_path, "e", load(CONFIG).dump())
    read_text = Path.read_text

    def refused(path, *args, **how):
        if Path(path) == run.config_file:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read_text(path, *args, **how)

    monkeypatch.setattr(Path, "read_text", refused)
    monkeypatch.setattr(run_dir, "open_regular", refused)
    assert facts(run)["data"] is None
