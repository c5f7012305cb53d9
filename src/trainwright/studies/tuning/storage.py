"""The storage that `tuning.storage` names: its URL, and the password in it."""

from __future__ import annotations

from urllib.parse import urlsplit

from trainwright.config.tuning import SQLITE, TuningConfig
from trainwright.errors import ConfigError, Problem
from trainwright.redact import HIDDEN, is_secret, redacted, without_literals
from trainwright.studies.trials import StudyConfig

_KEY = "tuning.storage"
_SCHEMES = ("postgresql", "postgresql+psycopg")


def check_storage(tuning: TuningConfig) -> None:
    """Check the URL of the storage; no library is imported, and nothing is connected.

    Raises:
        ConfigError: It is no URL of a PostgreSQL database, or its password was not kept.
    """
    url = tuning.storage
    if url == SQLITE:
        return
    parts = urlsplit(url)
    if lacks_password(url):
        what = "is without its password, which a study does not keep; give it again, as tuning.storage=URL"
        raise ConfigError([Problem(what, _KEY)])
    if parts.scheme not in _SCHEMES or not parts.path.strip("/"):
        what = (
            "expected sqlite (optuna.db in the study's folder), or "
            f"postgresql://USER:${{env:PASSWORD}}@HOST/DATABASE; got {redacted(url)!r}"
        )
        raise ConfigError([Problem(what, _KEY)])


def lacks_password(text: str) -> bool:
    """Return whether a text has a URL whose password was left out when it was stored."""
    return f"//{HIDDEN}@" in text


def storable(base: StudyConfig) -> str:
    """Return the text of a search's config, as its folder keeps it: without a password in clear text."""
    storage = base.resolved.flat().get(_KEY)
    if isinstance(storage, str) and is_secret(_KEY, storage):
        base = base.with_overrides({_KEY: without_literals(storage)})
    return base.resolved.dump()
