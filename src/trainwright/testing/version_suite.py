"""The contract suite of versions of data: a pin is exact, its files are verified, damage is named.

    class TestMine(VersionSuite):
        def make(self, root: Path) -> Version:
            return MineVersion(root.as_uri())

The contract is in `versions/base.py`. A new object of the same `root` stands in for another process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from trainwright.errors import DataError, InputError
from trainwright.records.pins import Pin
from trainwright.versions.base import Reference, Version

FIRST = {"rows.csv": b"a,b\n1,2\n", "more/rows.csv": b"a,b\n3,4\n", "more/empty": b""}
SECOND = FIRST | {"rows.csv": b"a,b\n1,9\n"}


def written(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Make a folder hold these files and no others."""
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def read(folder: Path) -> dict[str, bytes]:
    """Return the files in a folder, by their paths there."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


class VersionSuite:
    """Tests of the contract; subclass it in a test module of the adapter."""

    moving = "latest"  # what a reference of the newest version names

    def make(self, root: Path) -> Version:
        """Return a new adapter that keeps its versions below `root`, a folder that is empty at first."""
        raise NotImplementedError

    def commit(self, root: Path, files: Mapping[str, bytes]) -> None:
        """Make files the newest version of the folder `rows`."""
        raise NotImplementedError

    def commit_file(self, root: Path, content: bytes) -> None:
        """Make a content the newest version of the file `one.csv`."""
        raise NotImplementedError

    def reference(self, root: Path, name: str, revision: str) -> Reference:
        """Return the reference of a revision of `rows` or `one.csv`."""
        raise NotImplementedError

    def damage(self, root: Path, content: bytes) -> None:
        """Change a byte of what is stored of the file with this content."""
        raise NotImplementedError

    def lose(self, root: Path, content: bytes) -> None:
        """Delete what is stored of the file with this content."""
        raise NotImplementedError

    def pin_with_password(self, root: Path, password: str) -> Pin:
        """Return the pin of the newest version of `rows`, named by an address that holds a password.

        Raises:
            InputError: Such an address is refused.
        """
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def own_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Keep what an adapter remembers apart from other tests."""
        monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """Make an empty folder."""
        (tmp_path / "root").mkdir()
        return tmp_path / "root"

    @pytest.fixture
    def target(self, tmp_path: Path) -> Path:
        """Make an empty folder for the files of a version."""
        (tmp_path / "target").mkdir()
        return tmp_path / "target"

    def latest(self, root: Path, name: str = "rows") -> Pin:
        """Return the pin of the newest version."""
        return self.make(root).resolve(self.reference(root, name, self.moving))

    def test_a_folder_comes_back_as_it_was(self, root: Path, target: Path) -> None:
        """The files of a folder are written with their contents, in their folders."""
        self.commit(root, FIRST)
        pin = self.latest(root)
        path = self.make(root).materialise(pin, target)
        assert (pin.file, path.parent) == ("", target)
        assert read(path) == FIRST

    def test_a_file_comes_back_as_it_was(self, root: Path, target: Path) -> None:
        """A version of one file is a file, whose name has its ending."""
        self.commit_file(root, FIRST["rows.csv"])
        pin = self.latest(root, "one.csv")
        path = self.make(root).materialise(pin, target)
        assert path == target / pin.file
        assert (path.suffix, path.read_bytes()) == (".csv", FIRST["rows.csv"])

    def test_a_pin_is_exact_after_the_source_has_moved_on(self, root: Path, target: Path) -> None:
        """The pin of a moving name stays what it was, also through JSON, and what it says resolves to it."""
        self.commit(root, FIRST)
        pin = self.latest(root)
        self.commit(root, SECOND)
        assert self.latest(root).identity != pin.identity
        assert self.make(root).resolve(pin.reference) == pin
        again = Pin.model_validate(json.loads(json.dumps(pin.to_json())))
        assert again == pin
        assert read(self.make(root).materialise(again, target)) == FIRST

    def test_the_same_content_has_the_same_hash(self, root: Path) -> None:
        """Two versions with the same files have the same hash, if the content has one."""
        pins = []
        for files in (FIRST, SECOND, FIRST):
            self.commit(root, files)
            pins.append(self.latest(root))
        if all(pin.content is None for pin in pins):
            pytest.skip("the system knows no hash of the content")
        assert pins[0].content == pins[2].content != pins[1].content

    def test_a_description_counts_the_files(self, root: Path) -> None:
        """Files, bytes and names are those of the version, not of the newest one."""
        self.commit(root, FIRST)
        pin = self.latest(root)
        self.commit(root, SECOND | {"new.csv": b"new"})
        found = self.make(root).describe(pin)
        assert (found.files, found.bytes) == (len(FIRST), sum(map(len, FIRST.values())))
        assert sorted(found.names) == sorted(FIRST)

    def test_what_is_not_there_is_one_line(self, root: Path) -> None:
        """A revision that does not exist is refused in one line that repeats it."""
        self.commit(root, FIRST)
        with pytest.raises(DataError) as caught:
            self.make(root).resolve(self.reference(root, "rows", "v99"))
        assert "v99" in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_damaged_content_is_named_and_not_returned(self, root: Path, target: Path) -> None:
        """A changed byte is found, and the file that has it is named."""
        self.commit(root, SECOND)
        pin = self.latest(root)
        self.damage(root, SECOND["rows.csv"])
        with pytest.raises(DataError, match=r"rows\.csv"):
            self.make(root).materialise(pin, target)

    def test_lost_content_is_named(self, root: Path, target: Path) -> None:
        """Content that is gone is an error of one line, which names the file."""
        self.commit(root, SECOND)
        pin = self.latest(root)
        self.lose(root, SECOND["rows.csv"])
        with pytest.raises(DataError, match=r"rows\.csv") as caught:
            self.make(root).materialise(pin, target)
        assert "\n" not in str(caught.value)

    def test_a_pin_holds_no_credentials(self, root: Path) -> None:
        """A password of an address is refused, or left out: the pin goes into the manifest."""
        self.commit(root, FIRST)
        try:
            said = json.dumps(self.pin_with_password(root, "open-sesame").to_json())
        except InputError as error:
            said = str(error)
        assert said
        assert "open-sesame" not in said
