import os

import pytest

from trainwright.process.environ import temporary_environment


def test_variables_are_set_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWRIGHT_TEST_OLD", "old")
    monkeypatch.setenv("TRAINWRIGHT_TEST_KEPT", "kept")
    monkeypatch.delenv("TRAINWRIGHT_TEST_NEW", raising=False)
    before = dict(os.environ)
    variables = {"TRAINWRIGHT_TEST_OLD": "1", "TRAINWRIGHT_TEST_NEW": "2", "TRAINWRIGHT_TEST_KEPT": None}
    with temporary_environment(variables):
        assert dict(os.environ) == before | {"TRAINWRIGHT_TEST_OLD": "1", "TRAINWRIGHT_TEST_NEW": "2"}
    assert dict(os.environ) == before


def test_variables_are_restored_after_an_error() -> None:
    before = dict(os.environ)
    with pytest.raises(KeyError), temporary_environment({"TRAINWRIGHT_TEST_NEW": "2"}):
        raise KeyError
    assert dict(os.environ) == before
