"""Remove from text what must not be shown or stored: secrets, and characters that control a terminal.

There are three kinds of secrets: values that came from `${env:NAME}`, passwords in URIs, and values of keys
such as `api_key`. The reference `${env:NAME}` itself is not a secret and stays.

Values from the environment are remembered for the life of the process (`remember`), because any message of
foreign code may contain them. A value of fewer than 4 characters is not remembered, and one of fewer than 8
is hidden only where it is a word of its own: such short texts are parts of many words.
"""

from __future__ import annotations

import logging
import os
import re
import traceback
from collections.abc import Iterator
from typing import Any

HIDDEN = "***"
SHORTEST = 4  # shorter values are not remembered
_ANYWHERE = 8  # values of this length are hidden inside longer words, too
_TOKEN = 16  # the user of a URI without a password is taken for a token from this length on
# Not the special tokens of a tokenizer: `pad_token`, `eos_token` ...
_TOKENS = "".join(rf"(?<!{name}_)" for name in ("pad", "eos", "bos", "unk", "mask", "sep", "cls")) + "token"
_KEYS = "api_?key|access_?key|private_?key"
_WORDS = rf"(?:{_TOKENS}|secret|passwd|password|pwd|{_KEYS}|signature|credentials?|authorization)"
# Of every name in `_WORDS`, and of `sig=`: a text without any is plain, which is known in a hundredth of the
# time that the expressions take. Without an i, which the expressions find in the letters of Turkish, too.
_PARTS = ("token", "secret", "passw", "pwd", "key", "gnature", "credent", "uthor", "g=")
_INDEX = re.compile(r"(?:\.\d+)+$")  # of an item of a list, in a dotted key
_FINGERPRINTED = re.compile(re.escape(HIDDEN) + r" \(sha256 [0-9a-f]{8}\)")
_REFERENCE = re.compile(r"\$\{env:\w+\}")
# A password may hold an unescaped / or @; `pathlib` turns :// into :/
_USER_INFO = re.compile(r"(?<=:/)(/?)([^\s/@'\"]*(?::[^\s'\"]*)?)@")
_PARAMETER = re.compile(rf"(?i)((?<![\w.-])[\w.-]*{_WORDS}=|[?&]sig=)(?!\$\{{env:)[^&;\s'\"]+")
_KEY = re.compile(rf"(?im)^(\s*(?:-\s+)?['\"]?[\w.-]*{_WORDS}['\"]?\s*:\s+)(?!['\"]?\$\{{env:|null\b|~)\S.*$")
# CSI; then OSC, DCS, SOS, PM and APC with their text; then all other escape sequences
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]?"
)
# C0 (but for tab and newline), DEL, C1, and what changes the direction of text
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


class _Secrets:
    """The values to hide, and what is shown instead."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None

    def add(self, value: str, shown: str) -> None:
        for spelling in _spellings(value):
            key = _normal(spelling)
            if len(key) >= SHORTEST and (shown != HIDDEN or key not in self._shown):
                self._shown[key] = shown
                self._pattern = None

    def hide(self, text: str) -> str:
        if not self._shown:
            return text
        pattern = self._pattern
        if pattern is None:
            pattern = self._pattern = self._compiled()
        return pattern.sub(lambda match: self._shown.get(_normal(match[0]), match[0]), text)

    def _compiled(self) -> re.Pattern[str]:
        """Return a pattern of all values: references first, to keep them; then the longest values first."""
        longest_first = sorted(self._shown, key=len, reverse=True)
        return re.compile("|".join([_REFERENCE.pattern, *map(_expression, longest_first)]))


_secrets = _Secrets()


def remember(value: str, shown: str = HIDDEN) -> None:
    """Hide a value in everything that this process shows or stores from now on."""
    _secrets.add(value, shown)
    remember_passwords(value)


def remember_passwords(text: str) -> None:
    """Hide the passwords of URIs wherever they appear alone, as in the errors of database drivers."""
    for match in _USER_INFO.finditer(text):
        user, _, password = match[2].partition(":")
        secret = password or (user if len(user) >= _TOKEN else "")
        if not _REFERENCE.search(secret):
            _secrets.add(secret, HIDDEN)


def redacted(text: str) -> str:
    """Return the text without secrets.

    Remembered values become their `${env:NAME}`. The users and passwords of URIs, and the values of keys such
    as `token`, become `***`.
    """
    return without_literals(_secrets.hide(text))


def without_literals(text: str) -> str:
    """Return the text without the secrets that its form shows, whatever this process remembers."""
    if "@" in text:
        text = _USER_INFO.sub(_without_user, text)
    folded = text.casefold()
    if not any(part in folded for part in _PARTS):
        return text
    return _KEY.sub(rf"\1{HIDDEN}", _PARAMETER.sub(rf"\1{HIDDEN}", text))


def redacted_value(key: str, value: Any) -> Any:
    """Return a config value as it may be shown beside its key."""
    if isinstance(value, list):
        return [redacted_value(key, item) for item in value]
    if not isinstance(value, str):
        return value
    if _has_lines(key, value):
        return HIDDEN
    return redacted(_line(key, value)).removeprefix(_line(key, ""))


def is_secret(key: str, value: Any) -> bool:
    """Return whether a config value is text that holds a secret: not the name of one in the environment."""
    return isinstance(value, str) and without_literals(_line(key, value)) != _line(key, value)


def fingerprinted(key: str, value: Any) -> Any:
    """Return a config value as it may be stored: of a secret, a fingerprint shows whether it has changed.

    A value that was fingerprinted stays as it is.
    """
    if isinstance(value, list):
        return [fingerprinted(key, item) for item in value]
    if not is_secret(key, value) or _FINGERPRINTED.fullmatch(value):
        return value
    shown = (
        HIDDEN if _has_lines(key, value) else without_literals(_line(key, value)).removeprefix(_line(key, ""))
    )
    import hashlib  # loads OpenSSL, which `--help` does without

    return f"{shown} (sha256 {hashlib.sha256(value.encode()).hexdigest()[:8]})"


def _has_lines(key: str, value: str) -> bool:
    """Return whether a value of a secret's key has several lines, of which the expressions see the first."""
    return "\n" in value.strip() and is_secret(key, "x")


def _line(key: str, value: str) -> str:
    return f"{_INDEX.sub('', key)}: {value}"


def printable(text: str) -> str:
    """Return the text without escape sequences, control characters and marks of text direction.

    Names in a run directory or a data file may come from a stranger; printed unchanged, they could rewrite
    what the terminal shows.
    """
    if text.isascii() and text.isprintable():  # at once, where a list has many thousands
        return text
    return UNPRINTABLE.sub("", _SEQUENCE.sub("", text))


def _without_user(match: re.Match[str]) -> str:
    plain, references = _REFERENCE.subn("", match[2])
    harmless = references and not plain.partition(":")[2]
    return match[0] if harmless else f"{match[1]}{HIDDEN}@"


def _spellings(value: str) -> Iterator[str]:
    """Yield the forms in which a message may hold a value."""
    import json
    from urllib.parse import quote, unquote

    yield from (value, repr(value)[1:-1], json.dumps(value)[1:-1])
    yield from (quote(value), quote(value, safe=""), unquote(value))
    if "/" in value:
        yield os.path.normpath(value)
    yield from (line for line in value.splitlines() if len(line.strip()) >= _ANYWHERE)


def _normal(text: str) -> str:
    return " ".join(text.split())


def _expression(value: str) -> str:
    """Return the regular expression of a value, in which white space matches any other white space."""
    expression = r"\s+".join(map(re.escape, value.split()))
    return expression if len(value) >= _ANYWHERE else rf"(?<![^\W_]){expression}(?![^\W_])"


class _Redaction(logging.Filter):
    """Redacts Trainwright's log records, whichever handlers a program adds."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the message and the traceback of a record."""
        record.msg, record.args = redacted(record.getMessage()), ()
        if record.exc_info and not record.exc_text:
            record.exc_text = redacted("".join(traceback.format_exception(*record.exc_info)).rstrip())
        return True


logging.getLogger("trainwright").addFilter(_Redaction())  # `errors` imports this module, so it always runs
