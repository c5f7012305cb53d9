"""What every store in a cloud's object storage must do; tests of one of them are in a class that mixes this in."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainwright.errors import CheckpointError, InputError
from trainwright.storage.urls import check_store
from troubled_server import Trouble, TroubledServer

Make = Callable[[str], Any]


class ObjectTests:
    """The URL is a prefix; requests that fail, are slow, or whose answer is lost are made again.

    `server` and `url` are fixtures of the class: the service, and a new bucket there.
    """

    open: Make  # the store's class
    endpoint: str  # the variable that names the service
    put: Callable[[Any, str, bytes], None]  # the contract suite has it

    @pytest.fixture(autouse=True)
    def _bucket(self, url: str) -> None:
        self.url = url

    def make(self, root: Path) -> Any:
        return type(self).open(f"{self.url}/runs/{root.name}")

    def test_the_url_has_a_prefix_and_nothing_is_outside_of_it(self, store: Any, root: Path) -> None:
        self.put(store, "a/key", b"1")
        assert list(type(self).open(self.url).list()) == [f"runs/{root.name}/a/key"]
        assert list(type(self).open(f"{self.url}/run").list()) == []

    @pytest.mark.parametrize("kind", ["500", "lost", "slow"])
    def test_a_put_is_retried(self, kind: str, store: Any, server: TroubledServer) -> None:
        with server.troubled(Trouble(kind, [1, 2])):
            self.put(store, "a/key", b"content")
        assert store.get("a/key") == b"content"

    def test_a_get_and_a_list_are_retried(self, store: Any, server: TroubledServer) -> None:
        self.put(store, "a/key", b"content")
        with server.troubled(Trouble("500", [1, 3], "GET")):
            assert store.get("a/key") == b"content"
            assert list(store.list("a/")) == ["a/key"]

    @pytest.mark.parametrize(("kind", "created"), [("500", True), ("slow", True), ("lost", False)])
    def test_a_conditional_put_is_retried_and_a_lost_answer_is_no_success(
        self, kind: str, created: bool, store: Any, server: TroubledServer
    ) -> None:
        with server.troubled(Trouble(kind, [1])):
            assert store.put_if_absent("a/key", b"mine") is created
        assert store.get("a/key") == b"mine"

    def test_a_service_that_is_away_is_an_error_with_the_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("trainwright.stores.support.objects._HASTY", {"max_retries": 0})
        monkeypatch.setenv(self.endpoint, "http://127.0.0.1:9")
        away = type(self).open(self.url)
        with pytest.raises(OSError, match=rf"put {self.url}/a/key"):
            self.put(away, "a/key", b"content")
        with pytest.raises(OSError, match=rf"put {self.url}/a/key"):
            away.put_if_absent("a/key", b"content")
        for read in (lambda: away.get("a/key"), lambda: list(away.list("a/"))):
            with pytest.raises(CheckpointError, match=rf"{self.url}/a/"):
                read()
        with pytest.raises(InputError, match=f"cannot be used as a store: put {self.url}"):
            check_store(away, self.url)

    def test_an_endpoint_without_a_scheme_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(self.endpoint, "127.0.0.1:9")
        with pytest.raises(
            InputError, match=rf"{self.endpoint} is not a URL; write https://host, or http://"
        ):
            type(self).open(self.url)

    def test_a_bucket_that_does_not_exist_is_named(self) -> None:
        missing = type(self).open(f"{self.url}x/runs")
        absent = r"there is no such (bucket|container); create it"
        with pytest.raises(CheckpointError, match=rf"list {self.url}x/runs/log/: {absent}"):
            list(missing.list("log/"))
        with pytest.raises(OSError, match=rf"put {self.url}x/runs/a/key: {absent}"):
            missing.put_if_absent("a/key", b"content")
