"""Takes secrets out of what is shown to people.

`${env:NAME}` is never expanded on disk and stays as it is; what is left are the secrets that a user wrote out.
"""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "***"
_WORDS = r"(?:token|secret|passwd|password|pwd|api_?key|access_?key|private_?key|signature|credentials?)"
_REFERENCE = re.compile(r"\$\{env:\w+\}")
_USER_INFO = re.compile(r"(?<=://)[^\s/@'\"]*(?::[^\s'\"]*)?@")  # a password may hold an unescaped / or @
_PARAMETER = re.compile(rf"(?i)((?<![\w.-])[\w.-]*{_WORDS}=|[?&]sig=)(?!\$\{{env:)[^&;\s'\"]+")
_KEY = re.compile(rf"(?im)^(\s*(?:-\s+)?['\"]?[\w.-]*{_WORDS}['\"]?\s*:\s+)(?!['\"]?\$\{{env:|null\b|~)\S.*$")


def redacted(text: str) -> str:
    """The text without the users and passwords in its URIs, and without the values of keys such as `token` and `api_key`."""
    without = _USER_INFO.sub(_user_info, text)
    return _KEY.sub(rf"\1{HIDDEN}", _PARAMETER.sub(rf"\1{HIDDEN}", without))


def _user_info(match: re.Match[str]) -> str:
    plain, references = _REFERENCE.subn("", match.group(0)[:-1])
    harmless = references and not plain.partition(":")[2]
    return match.group(0) if harmless else f"{HIDDEN}@"


def redacted_value(key: str, value: Any) -> Any:
    """A config value as it may be shown under its key."""
    return redacted(f"{key}: {value}").removeprefix(f"{key}: ") if isinstance(value, str) else value
