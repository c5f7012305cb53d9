"""Secrets are taken out, references and innocent words stay."""

from __future__ import annotations

import random

import pytest

from trainwright import redact
from trainwright.redact import is_secret, redacted, without_literals


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ada:hunter2@db.example.com:5432/x", "postgresql://***@db.example.com:5432/x"),
        ("https://ghp_abc@github.com/a/b", "https://***@github.com/a/b"),
        ("https://u:p/w@host/x", "https://***@host/x"),
        ("https://host/x?token=abc&page=2", "https://host/x?token=***&page=2"),
        ("https://acc.blob.example/x?sv=1&sig=abc%3D", "https://acc.blob.example/x?sv=1&sig=***"),
        ("trainwright train c.yaml tracker.api_key=abc", "trainwright train c.yaml tracker.api_key=***"),
        ("headers:\n  Authorization: Bearer abc", "headers:\n  Authorization: ***"),
        ("params:\n  api_key: abc\n  - password: x y", "params:\n  api_key: ***\n  - password: ***"),
    ],
)
def test_secrets(text, shown):
    assert redacted(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "token: ${env:TOKEN}",
        "https://${env:USER}:${env:PASSWORD}@host/x",
        "https://host/x?token=${env:TOKEN}",
        "tokenizer: bpe\nmax_tokens: 5\ntoken: null",
        "https://mlflow.example.com:5000/api",
        "sqlite:///mlflow.db",
        "s3://bucket/key",
        "mail ada@example.com",
    ],
)
def test_what_is_no_secret_stays(text):
    assert redacted(text) == text


def test_the_special_tokens_of_a_tokenizer_are_no_secrets() -> None:
    for key in ("pad_token", "model.params.eos_token", "mask_token", "tokens"):
        assert not is_secret(key, "[A-SPECIAL-TOKEN]")
    for key in ("hf_token", "token", "params.access_token", "api_key"):
        assert is_secret(key, "[A-SPECIAL-TOKEN]")


def test_no_secret_is_overlooked_to_save_time() -> None:
    """Most texts are known to be plain without the expressions, which decide here; letters fold as theirs do."""
    draw = random.Random(0)
    words = [
        "token",
        "pad_token",
        "ſecret",
        "api_Key",
        "api-key",
        "passwd",
        "pwd",
        "password",
        "apikey",
        "ACCESS_KEY",
        "privatekey",
        "x",
    ]
    words += [
        "s\u0131gnature",
        "C\u0130",
        "credentials",
        "sig",
        "s\u0131g",
        "?",
        "&",
        "=",
        ":",
        "@",
        "://",
        "\n",
    ]
    words += [" ", "- ", "'", '"', "${env:A}", "null", "value", "."]
    hidden = 0
    for _ in range(5000):
        text = "".join(draw.choice(words) for _ in range(draw.randrange(1, 9)))
        shown = redact._USER_INFO.sub(redact._without_user, text)
        shown = redact._KEY.sub(r"\1***", redact._PARAMETER.sub(r"\1***", shown))
        assert without_literals(text) == shown
        hidden += shown != text
    assert hidden > 100
