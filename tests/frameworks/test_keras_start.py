"""What TensorFlow logs while it is imported is kept back; all else is shown."""

import logging
import os

import pytest

from trainwright.frameworks.keras.backend import _without_chatter

CHATTER = (
    b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    b"I0000 00:00:1.1 1 port.cc:153] oneDNN custom operations are on.\n"
    b"I0000 00:00:1.1 1 cpu_feature_guard.cc:227] This TensorFlow binary is optimized ...\n"
    b"To enable the following instructions: AVX2, in other operations, rebuild TensorFlow.\n"
)


def test_only_what_matters_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with _without_chatter():
        os.write(2, CHATTER + b"E0000 a failure\n")
    os.write(2, b"later\n")
    assert capfd.readouterr().err == "E0000 a failure\nlater\n"


def test_an_error_passes(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ImportError), _without_chatter():  # noqa: PT012
        os.write(2, CHATTER + b"why\n")
        raise ImportError
    assert capfd.readouterr().err == "why\n"


def test_debugging_shows_all(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "trainwright"), _without_chatter():
        os.write(2, CHATTER)
    assert capfd.readouterr().err == CHATTER.decode()
