"""The contract suite of stores: objects are complete, one of several writers wins, deleted objects are gone.

    class TestMine(StoreSuite):
        def make(self, root: Path) -> Store:
            return MineStore(f"mine://{root.name}")

The contract is in `stores/base.py`. A new store object with the same `root` stands in for a process that
died: the adapter must keep no state in memory that a new object would lack.
"""

from __future__ import annotations

import random
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainwright.errors import CheckpointError
from trainwright.storage.urls import check_store
from trainwright.stores.base import Store

LARGE = 12_000_001  # bytes of an object that stores send in several parts
_WRITERS = 8


class StoreSuite:
    """Tests of the contract; subclass it in a test module of the adapter."""

    def make(self, root: Path) -> Store:
        """Return a new store object for `root`, a folder that is empty at first and has a unique name.

        A store that keeps its objects elsewhere must keep those of different roots apart.
        """
        raise NotImplementedError

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """Make an empty folder."""
        folder = tmp_path / "root"
        folder.mkdir()
        return folder

    @pytest.fixture
    def store(self, root: Path) -> Store:
        """Open the store."""
        return self.make(root)

    @pytest.fixture(autouse=True)
    def aside(self, tmp_path: Path) -> None:
        """Make a folder for the files to put."""
        self._aside = tmp_path / "aside"
        self._aside.mkdir()

    def put(self, store: Store, key: str, data: bytes) -> None:
        """Put `data` as an object."""
        with tempfile.NamedTemporaryFile(dir=self._aside) as file:
            file.write(data)
            file.flush()
            store.put(key, Path(file.name))

    def test_what_was_put_is_there_for_a_new_process(self, store: Store, root: Path) -> None:
        """A new store object reads and lists what another one put."""
        self.put(store, "checkpoints/a/weights", b"\x00\xff" * 1000)
        again = self.make(root)
        assert again.get("checkpoints/a/weights") == b"\x00\xff" * 1000
        assert list(again.list()) == ["checkpoints/a/weights"]

    def test_put_leaves_the_file_and_replaces_the_object(self, store: Store) -> None:
        """`put` copies the file and replaces an earlier object."""
        source = self._aside / "file"
        source.write_bytes(b"first")
        store.put("a/key", source)
        assert source.read_bytes() == b"first"
        self.put(store, "a/key", b"second")
        assert store.get("a/key") == b"second"

    def test_a_large_object_comes_back_whole(self, store: Store) -> None:
        """An object that takes several requests is stored and downloaded with all its bytes."""
        content = random.Random(1).randbytes(LARGE)
        self.put(store, "a/large", content)
        store.download("a/large", self._aside / "copy")
        assert (self._aside / "copy").read_bytes() == content
        assert store.get("a/large") == content

    def test_a_download_makes_a_new_file(self, store: Store) -> None:
        """`download` writes the content of an object, be it empty, and no other file."""
        for content in (b"", b"x" * 1000):
            self.put(store, "a/key", content)
            target = self._aside / f"copy of {len(content)}"
            store.download("a/key", target)
            assert target.read_bytes() == content
        with pytest.raises(CheckpointError, match="a/missing"):
            store.download("a/missing", self._aside / "missing")
        assert not (self._aside / "missing").exists()

    def test_an_empty_object_is_an_object(self, store: Store) -> None:
        """Empty objects are kept and listed."""
        self.put(store, "a/empty", b"")
        assert store.put_if_absent("a/nothing", b"")
        assert (store.get("a/empty"), store.get("a/nothing")) == (b"", b"")
        assert list(store.list("a/")) == ["a/empty", "a/nothing"]

    def test_put_if_absent_leaves_what_is_there(self, store: Store) -> None:
        """`put_if_absent` never replaces an object."""
        assert store.put_if_absent("a/key", b"first")
        assert not store.put_if_absent("a/key", b"second")
        self.put(store, "b/key", b"put")
        assert not store.put_if_absent("b/key", b"second")
        assert (store.get("a/key"), store.get("b/key")) == (b"first", b"put")

    def test_of_several_writers_exactly_one_wins(self, store: Store, root: Path) -> None:
        """Of concurrent conditional puts exactly one succeeds."""
        together = threading.Barrier(_WRITERS)

        def write(i: int) -> bool:
            mine = self.make(root)
            together.wait()
            return mine.put_if_absent("race/manifest", str(i).encode())

        with ThreadPoolExecutor(_WRITERS) as pool:
            won = list(pool.map(write, range(_WRITERS)))
        assert sum(won) == 1
        assert store.get("race/manifest") == str(won.index(True)).encode()

    def test_it_passes_the_probe(self, store: Store) -> None:
        """A store that lets two conditional puts win is refused when it is opened for writing."""
        check_store(store, "the store")
        assert list(store.list()) == []

    def test_a_missing_object_is_reported(self, store: Store) -> None:
        """Reading a missing object is an error; deleting one is not."""
        with pytest.raises(CheckpointError, match="a/missing"):
            store.get("a/missing")
        store.delete("a/missing")
        assert list(store.list("a/")) == []

    def test_keys_are_listed_by_prefix_and_sorted(self, store: Store) -> None:
        """`list` filters by prefix and sorts by path components."""
        for key in (
            "best/b/x",
            "checkpoints-old/w",
            "checkpoints/step-2/w",
            "checkpoints/step-10/w",
            "checkpoints/step-1/w",
            "other",
        ):
            self.put(store, key, b"1")
        steps = ["checkpoints/step-1/w", "checkpoints/step-10/w", "checkpoints/step-2/w"]
        assert list(store.list()) == ["best/b/x", *steps, "checkpoints-old/w", "other"]
        assert list(store.list("checkpoints/")) == steps
        assert list(store.list("checkpoints/step-1")) == ["checkpoints/step-1/w", "checkpoints/step-10/w"]
        assert list(store.list("nothing/")) == []

    def test_what_is_deleted_is_gone_and_the_rest_is_not(self, store: Store) -> None:
        """`delete` removes one object and no other."""
        for key in ("a/one", "a/two", "b/three"):
            self.put(store, key, key.encode())
        store.delete("a/one")
        assert list(store.list()) == ["a/two", "b/three"]
        store.delete("a/two")
        assert list(store.list()) == ["b/three"]
        self.put(store, "a/one", b"again")
        assert store.get("a/one") == b"again"

    def test_threads_may_write_at_the_same_time(self, store: Store) -> None:
        """`put` is safe to call from several threads."""
        keys = [f"checkpoints/step-{i % 3}/{i}" for i in range(30)]
        with ThreadPoolExecutor(_WRITERS) as pool:
            list(pool.map(lambda key: self.put(store, key, key.encode()), keys))
        assert {key: store.get(key) for key in store.list()} == {key: key.encode() for key in keys}
