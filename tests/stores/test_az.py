"""The contract suite for Azure Blob Storage, against Microsoft's emulator Azurite."""

from collections.abc import Callable
from typing import Any

import pytest
from object_tests import ObjectTests

from az_server import AzServer
from trainwright.errors import CheckpointError, InputError
from trainwright.stores.az import AzStore
from trainwright.testing.store_suite import StoreSuite


@pytest.mark.slow
class TestAz(ObjectTests, StoreSuite):
    open = AzStore
    endpoint = "AZURE_STORAGE_ENDPOINT"

    @pytest.fixture
    def url(self, az_container: str) -> str:
        return az_container

    @pytest.fixture
    def server(self, az: AzServer) -> AzServer:
        return az


@pytest.mark.parametrize("url", ["az:", "az:///runs"])
def test_a_url_without_a_container_is_refused(url: str) -> None:
    with pytest.raises(InputError, match=rf"{url} names no container; write az://container/prefix"):
        AzStore(url)


def test_without_an_account_the_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(
        InputError, match="az://container cannot be opened: no account is named; set AZURE_STORAGE"
    ):
        AzStore("az://container")


def test_without_credentials_the_variables_are_named(
    store_of_errors: Callable[[str, str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    store = store_of_errors(
        "az://container",
        "Error performing GET http://169.254.169.254/metadata/identity/oauth2/token?api: 403",
    )
    with pytest.raises(CheckpointError, match="there are no credentials: set AZURE_STORAGE_ACCOUNT_NAME and"):
        store.get("a/key")
