"""The contract suite for Google Cloud Storage, against a server that speaks its XML interface."""

import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from object_tests import ObjectTests

from gs_server import TOKEN, GsServer
from trainwright.errors import CheckpointError, InputError
from trainwright.stores.gs import GsStore
from trainwright.testing.store_suite import StoreSuite


class TestGs(ObjectTests, StoreSuite):
    open = GsStore
    endpoint = "GOOGLE_BASE_URL"

    @pytest.fixture
    def url(self, gs_bucket: str) -> str:
        return gs_bucket

    @pytest.fixture
    def server(self, gs: GsServer) -> GsServer:
        return gs


@pytest.mark.parametrize("url", ["gs:", "gs:///runs"])
def test_a_url_without_a_bucket_is_refused(url: str) -> None:
    with pytest.raises(InputError, match=rf"{url} names no bucket; write gs://bucket/prefix"):
        GsStore(url)


def test_without_credentials_the_variable_is_named(store_of_errors: Callable[[str, str], Any]) -> None:
    store = store_of_errors(
        "gs://bucket",
        "Error performing GET http://169.254.169.254/computeMetadata/v1/instance: 403 Forbidden",
    )
    with pytest.raises(CheckpointError, match="there are no credentials: set GOOGLE_APPLICATION_CREDENTIALS"):
        store.get("a/key")


def test_a_file_of_credentials_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    with pytest.raises(InputError, match=r"gs://bucket cannot be opened: .*/nowhere/key.json: No such file"):
        GsStore("gs://bucket")


def test_the_server_keeps_the_condition_as_the_service_does(gs: GsServer, gs_bucket: str) -> None:
    """Asked without the library: generation 0 means that there is no object; each put gives a new one."""
    url = f"{gs.url}/{gs_bucket.removeprefix('gs://')}/a%2Fkey"

    def put(**headers: str) -> str:
        headers["Authorization"] = f"Bearer {TOKEN}"
        request = urllib.request.Request(url, data=b"1", method="PUT", headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.headers["x-goog-generation"])

    first = put(**{"x-goog-if-generation-match": "0"})
    with pytest.raises(urllib.error.HTTPError, match="412"):
        put(**{"x-goog-if-generation-match": "0"})
    assert put() > first
