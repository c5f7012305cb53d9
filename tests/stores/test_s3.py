"""The contract suite for S3, against moto's server; what errors say; the probe of a store that is opened."""

from collections.abc import Callable
from typing import Any

import pytest
from object_tests import ObjectTests

from s3_server import S3Server
from trainwright.errors import CheckpointError, InputError
from trainwright.storage.urls import check_store
from trainwright.stores.s3 import S3Store
from trainwright.testing.store_suite import StoreSuite


class TestS3(ObjectTests, StoreSuite):
    open = S3Store
    endpoint = "AWS_ENDPOINT_URL"

    @pytest.fixture
    def url(self, bucket: str) -> str:
        return bucket

    @pytest.fixture
    def server(self, s3: S3Server) -> S3Server:
        return s3


@pytest.mark.parametrize("url", ["s3:", "s3:///runs"])
def test_a_url_without_a_bucket_is_refused(url: str) -> None:
    with pytest.raises(InputError, match=rf"{url} names no bucket; write s3://bucket/prefix"):
        S3Store(url)


@pytest.mark.parametrize(
    ("error", "brief"),
    [
        (
            "Generic S3 error: PUT http://169.254.169.254/latest/api/token: 403\nDebug source: ...",
            "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ),
        (
            "403 Forbidden: <?xml?>\n<Error><Code>AccessDenied</Code><Message>Not yours</Message></Error>",
            "the service answers AccessDenied: Not yours",
        ),
        ("Generic error: no connection\nDebug source: ...", "Generic error: no connection"),
    ],
)
def test_an_error_is_said_in_a_line(
    error: str, brief: str, store_of_errors: Callable[[str, str], Any]
) -> None:
    with pytest.raises(CheckpointError) as raised:
        store_of_errors("s3://bucket", error).get("a/key")
    assert str(raised.value).startswith(f"get s3://bucket/a/key: {brief}")
    assert "\n" not in str(raised.value)


class Forgetful:
    """A store that lets the second conditional put win, as some services do."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.objects[key] = data
        return True

    def get(self, key: str) -> bytes:
        return self.objects[key]

    def delete(self, key: str) -> None:
        del self.objects[key]


def test_a_store_that_lets_two_conditional_puts_win_is_refused() -> None:
    store = Forgetful()
    with pytest.raises(InputError, match="mine://x lets a second conditional put win"):
        check_store(store, "mine://x")  # type: ignore[arg-type]
    assert store.objects == {}, "the probe is left behind"
