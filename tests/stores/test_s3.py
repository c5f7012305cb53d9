"""The contract suite for S3, against moto's server; requests that fail, are slow, or whose answer is lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from s3_server import S3Server, Trouble
from trainyard.errors import CheckpointError, InputError
from trainyard.records.remote import check_store
from trainyard.stores.s3 import S3Store
from trainyard.testing.store_suite import StoreSuite


@pytest.fixture
def store_of_errors(bucket: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], S3Store]:
    """Return a store whose library raises an error with a text."""
    import obstore

    def make(text: str) -> S3Store:
        def get(*_: Any) -> None:
            raise obstore.exceptions.GenericError(text)

        monkeypatch.setattr(obstore, "get", get)
        return S3Store("s3://bucket")

    return make


class TestS3(StoreSuite):
    @pytest.fixture(autouse=True)
    def _bucket(self, bucket: str) -> None:
        self._url = bucket

    def make(self, root: Path) -> S3Store:
        return S3Store(f"{self._url}/runs/{root.name}")

    def test_the_url_has_a_prefix_and_nothing_is_outside_of_it(self, store: S3Store, root: Path) -> None:
        self.put(store, "a/key", b"1")
        assert list(S3Store(self._url).list()) == [f"runs/{root.name}/a/key"]
        assert list(S3Store(f"{self._url}/run").list()) == []

    @pytest.mark.parametrize("kind", ["500", "lost", "slow"])
    def test_a_put_is_retried(self, kind: str, store: S3Store, s3: S3Server) -> None:
        with s3.troubled(Trouble(kind, [1, 2])):
            self.put(store, "a/key", b"content")
        assert store.get("a/key") == b"content"

    def test_a_get_and_a_list_are_retried(self, store: S3Store, s3: S3Server) -> None:
        self.put(store, "a/key", b"content")
        with s3.troubled(Trouble("500", [1, 3], "GET")):
            assert store.get("a/key") == b"content"
            assert list(store.list("a/")) == ["a/key"]

    @pytest.mark.parametrize(("kind", "created"), [("500", True), ("slow", True), ("lost", False)])
    def test_a_conditional_put_is_retried_and_a_lost_answer_is_no_success(
        self, kind: str, created: bool, store: S3Store, s3: S3Server
    ) -> None:
        with s3.troubled(Trouble(kind, [1])):
            assert store.put_if_absent("a/key", b"mine") is created
        assert store.get("a/key") == b"mine"

    def test_a_service_that_is_away_is_an_error_with_the_key(
        self, store: S3Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("trainyard.stores.s3._RETRIES", {"max_retries": 0})
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        away = S3Store(self._url)
        with pytest.raises(OSError, match=r"put s3://.*/a/key"):
            self.put(away, "a/key", b"content")
        with pytest.raises(OSError, match=r"put s3://.*/a/key"):
            away.put_if_absent("a/key", b"content")
        for read in (lambda: away.get("a/key"), lambda: list(away.list("a/"))):
            with pytest.raises(CheckpointError, match=r"s3://.*/a/"):
                read()
        with pytest.raises(InputError, match="cannot be used as a store: put s3://"):
            check_store(away, self._url)


@pytest.mark.parametrize("url", ["s3:", "s3:///runs"])
def test_a_url_without_a_bucket_is_refused(url: str) -> None:
    with pytest.raises(InputError, match=rf"{url} names no bucket; write s3://bucket/prefix"):
        S3Store(url)


def test_an_endpoint_without_a_scheme_is_refused(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "127.0.0.1:9")
    with pytest.raises(InputError, match=r"AWS_ENDPOINT_URL is not a URL; write https://host, or http://"):
        S3Store(bucket)


def test_a_bucket_that_does_not_exist_is_named(bucket: str) -> None:
    missing = S3Store(f"{bucket}x/runs")
    with pytest.raises(CheckpointError, match=r"list s3://.*x/runs/log/: there is no such bucket; create it"):
        list(missing.list("log/"))
    with pytest.raises(OSError, match=r"put s3://.*x/runs/a/key: there is no such bucket"):
        missing.put_if_absent("a/key", b"content")


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
    error: str, brief: str, store_of_errors: Callable[[str], S3Store]
) -> None:
    with pytest.raises(CheckpointError) as raised:
        store_of_errors(error).get("a/key")
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
