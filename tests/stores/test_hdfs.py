"""The contract suite for HDFS, against a server that speaks WebHDFS; see there what that proves."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hdfs_server import HdfsServer
from trainwright.datasets.samples.files import existing_file, names_in
from trainwright.errors import CheckpointError, InputError
from trainwright.storage.urls import check_store
from trainwright.stores import hdfs as hdfs_module
from trainwright.stores.hdfs import HdfsStore
from trainwright.testing.store_suite import StoreSuite
from troubled_server import Trouble

pytest.importorskip("requests")


@pytest.fixture(scope="module")
def hdfs() -> Iterator[HdfsServer]:
    server = HdfsServer()
    yield server
    server.close()


class TestHdfs(StoreSuite):
    @pytest.fixture(autouse=True)
    def _url(self, hdfs: HdfsServer, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in hdfs.environment().items():
            monkeypatch.setenv(name, value)
        self.server, self.url = hdfs, hdfs.new_bucket()

    def make(self, root: Path) -> HdfsStore:
        return HdfsStore(f"{self.url}/runs/{root.name}")

    def test_staging_files_are_no_objects_and_do_not_stay(self, store: HdfsStore, hdfs: HdfsServer) -> None:
        self.put(store, "a/key", b"1")
        assert store.put_if_absent("a/other", b"2")
        assert not store.put_if_absent("a/other", b"3")
        assert not [path for path in hdfs.files if ".staging" in path]
        hdfs.files[f"/{self.url.rpartition('/')[2]}/runs/root/.staging/left"] = b"of a process that died"
        assert list(store.list()) == ["a/key", "a/other"]

    @pytest.mark.parametrize(("kind", "created"), [("503", True), ("lost 503", False)])
    def test_a_conditional_put_is_retried_and_a_lost_answer_is_no_success(
        self, kind: str, created: bool, store: HdfsStore, hdfs: HdfsServer
    ) -> None:
        # PUT requests: CREATE at either node, MKDIRS, RENAME.
        with hdfs.troubled(Trouble(kind, [4])):
            assert store.put_if_absent("a/key", b"mine") is created
        assert store.get("a/key") == b"mine"

    def test_a_conditional_put_of_which_nothing_is_known_is_an_error(
        self, store: HdfsStore, hdfs: HdfsServer
    ) -> None:
        with hdfs.troubled(Trouble("500", [4])), pytest.raises(OSError, match=r"put hdfs://.*/a/key: "):
            store.put_if_absent("a/key", b"mine")
        assert list(store.list()) == []

    def test_a_listing_that_fails_is_not_an_empty_one(self, store: HdfsStore, hdfs: HdfsServer) -> None:
        self.put(store, "a/key", b"1")
        for call in (1, 2):
            with (
                hdfs.troubled(Trouble("500", [call], "GET")),
                pytest.raises(CheckpointError, match="list hdfs"),
            ):
                list(store.list())

    def test_a_version_changes_with_each_put(self, store: HdfsStore) -> None:
        self.put(store, "a/key", b"1")
        first = store.version("a/key")
        self.put(store, "a/key", b"2")
        assert store.version("a/key") != first
        assert first.bytes == 1

    def test_data_are_read_from_it(self, store: HdfsStore, root: Path) -> None:
        self.put(store, "data/x.csv", b"content")
        url = f"{self.url}/runs/{root.name}/data"
        assert names_in(url) == ["x.csv"]
        assert existing_file(f"{url}/x.csv").read_bytes() == b"content"

    def test_a_server_that_ignores_the_condition_is_refused(self, store: HdfsStore, hdfs: HdfsServer) -> None:
        hdfs.knows_options = False
        try:
            with pytest.raises(
                InputError, match="does not know renameoptions; name the name node, not HttpFS"
            ):
                check_store(store, self.url)
        finally:
            hdfs.knows_options = True


@pytest.mark.parametrize(
    "url", ["hdfs:", "hdfs:///runs", "hdfs://namenode:8020/runs", "hdfs://namenode:web/runs"]
)
def test_a_url_without_a_web_interface_is_refused(url: str) -> None:
    with pytest.raises(
        InputError, match=rf"{url} names no web interface .*; write hdfs://namenode:9870/folder"
    ):
        HdfsStore(url)


def test_a_name_node_that_is_not_there_is_named_in_one_sentence() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(hdfs_module._RETRIES, "total", 0)
        with pytest.raises(CheckpointError) as caught:
            HdfsStore(f"hdfs://127.0.0.1:{port}/folder").get("rows.csv")
    assert f"127.0.0.1:{port} cannot be reached: connection refused; it must be" in str(caught.value)
    assert "urllib3" not in str(caught.value)
    assert "Max retries" not in str(caught.value)
