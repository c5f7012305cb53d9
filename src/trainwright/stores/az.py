"""A store in a container of Azure Blob Storage."""

from __future__ import annotations

from typing import Any

from trainwright.require import require
from trainwright.stores.support.objects import ObjectStore, Service

_SERVICE = Service(
    url="az://container/prefix",
    bucket="container",
    no_bucket="ContainerNotFound",
    credentials="AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    endpoints=("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
)


class AzStore(ObjectStore):
    """Objects in a container, under the prefix that the URL names: `az://container/prefix`.

    The account is `AZURE_STORAGE_ACCOUNT_NAME`. Credentials come from `AZURE_STORAGE_ACCOUNT_KEY`,
    `AZURE_STORAGE_SAS_TOKEN`, or `AZURE_CLIENT_ID`, `AZURE_CLIENT_SECRET` and `AZURE_TENANT_ID`; without
    them, from the machine's identity. `AZURE_STORAGE_ENDPOINT` names another endpoint, such as an
    emulator's. A conditional put is one with `If-None-Match: *`.

    Args:
        url: The URL.

    Raises:
        InputError: The URL names no container, no account is named, or a key or the endpoint is malformed.
        MissingExtraError: obstore is not installed.
    """

    def __init__(self, url: str) -> None:
        api: Any = require("obstore", "az")
        super().__init__(url, _SERVICE, api, api.store.AzureStore)

    def _brief(self, error: Exception) -> str:
        if "Account must be specified" in str(error):
            return "no account is named; set AZURE_STORAGE_ACCOUNT_NAME"
        return super()._brief(error)
