"""What the tests of stores share."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from trainwright import plugins


@pytest.fixture
def store_of_errors(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Any]:
    """Return a function that opens a store (its URL) whose library raises an error with a text."""
    import obstore

    def make(url: str, text: str) -> Any:
        def get(*_: Any) -> None:
            raise obstore.exceptions.GenericError(text)

        monkeypatch.setattr(obstore, "get", get)
        return plugins.adapter("store", urlsplit(url).scheme)(url)

    return make
