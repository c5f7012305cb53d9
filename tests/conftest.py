"""Fast tests run first, so that a mistake is seen at once."""

import os

import pytest

from trainyard import redact

# Tests run side by side: threads that wait for each other must not keep the processors from those that work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


@pytest.fixture(autouse=True)
def no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test gave as a secret must not be hidden in the messages of the next one."""
    monkeypatch.setattr(redact, "_secrets", redact._Secrets())
