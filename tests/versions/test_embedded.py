"""Versions beside the runs: the contract, damage, two adds at once, deletion, and kills at every write."""

import os
import random
import shutil
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import trainwright
from trainwright.api import data
from trainwright.digest import sha256_bytes
from trainwright.errors import DataError, InputError
from trainwright.process import file_stamps
from trainwright.records.pins import Pin
from trainwright.testing.version_suite import VersionSuite, read, written
from trainwright.versions.base import Reference
from trainwright.versions.embedded import EmbeddedVersion, sweep
from trainwright.versions.embedded import add as adding
from trainwright.versions.embedded.history import Entry
from trainwright.versions.embedded.tree import CHUNK_BYTES, SourceFile, TreeFile, decode, encode


class TestEmbedded(VersionSuite):
    def make(self, root: Path) -> EmbeddedVersion:
        return EmbeddedVersion((root / "runs").as_uri())

    def commit(self, root: Path, files: Mapping[str, bytes]) -> None:
        source = root / "source"
        source.mkdir(exist_ok=True)
        self.make(root).add(written(source, files), "rows")

    def commit_file(self, root: Path, content: bytes) -> None:
        (root / "one.csv").write_bytes(content)
        self.make(root).add(root / "one.csv", "one")

    def reference(self, root: Path, name: str, revision: str) -> Reference:
        return {"path": f"{Path(name).stem}@{revision}"}

    def pack_of(self, root: Path, content: bytes) -> Path:
        packs = (root / "runs/.data/packs").iterdir()
        return next(path for path in packs if content in path.read_bytes())

    def damage(self, root: Path, content: bytes) -> None:
        pack = self.pack_of(root, content)
        pack.write_bytes(pack.read_bytes().replace(content, content[:-1] + b"?"))

    def lose(self, root: Path, content: bytes) -> None:
        self.pack_of(root, content).unlink()

    def pin_with_password(self, root: Path, password: str) -> Pin:
        adapter = self.make(root)
        adapter.url = f"s3://me:{password}@bucket/runs"
        return adapter.resolve(self.reference(root, "rows", "latest"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path


TABLE = "a,b,target\n" + "".join(f"{i % 17},{i % 5},{i % 2}\n" for i in range(120))


def add(path: Path | str, **options: str) -> str:
    return str(trainwright.data_add(path, **options)["version"])


def objects(kind: str) -> list[Path]:
    return [path for path in Path("runs/.data", kind).rglob("*") if path.is_file()]


def test_the_same_content_makes_no_new_version(here: Path) -> None:
    Path("churn.csv").write_text("a\n1\n")
    assert trainwright.data_add("churn.csv")["new"]
    again = trainwright.data_add("churn.csv")
    assert (again["version"], again["new"]) == ("churn@v1", False)
    Path("churn.csv").write_text("a\n2\n")
    assert add("churn.csv") == "churn@v2"
    Path("churn.csv").write_text("a\n1\n")
    assert add("churn.csv") == "churn@v3", "`latest` is what was added last"
    assert [one["version"] for one in trainwright.data_log("churn")] == ["churn@v3", "churn@v2", "churn@v1"]


def test_what_cannot_be_added_is_refused(here: Path) -> None:
    Path("churn.csv").write_text(TABLE)
    for path, name, said in (
        (".", "all", "holds the folder of runs"),
        ("s3://bucket/churn.csv", None, "only files of this machine"),
        ("gone.csv", None, r"gone\.csv cannot be read: No such file"),
        ("churn.csv", "a/b", "'a/b' is no name for data"),
        ("churn.csv", "config.yaml", "is no name for data"),
    ):
        with pytest.raises(InputError, match=said):
            trainwright.data_add(path, name)
    Path("empty").mkdir()
    with pytest.raises(InputError, match="has no files"):
        add("empty")
    for tag in ("v3", "latest", "a/b", ""):
        with pytest.raises(InputError, match="is no tag"):
            add("churn.csv", tag=tag)
    assert trainwright.data_log() == []


def test_content_is_stored_once(here: Path) -> None:
    data = random.Random(1).randbytes(2 * CHUNK_BYTES + 5)
    Path("one").mkdir()
    Path("one/a.bin").write_bytes(data)
    Path("one/b.bin").write_bytes(data[:CHUNK_BYTES] + b"other" * 300_000)
    add("one")
    assert len(objects("chunks")) == 4
    Path("one/a.bin").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    add("one")
    assert len(objects("chunks")) == 5
    stored = b"".join(path.read_bytes() for path in objects("chunks"))
    assert stored.count(data[:CHUNK_BYTES]) == 1
    trainwright.data_delete("one@v1")
    assert trainwright.data_gc().objects == 2, "the list, and the chunk that no other version has"
    assert read(trainwright.data_get("one@v2", "out")) == read(Path("one"))


def test_a_file_that_changes_while_it_is_added_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("churn.csv").write_text(TABLE)
    reading = adding._bytes_of

    def changed(file: SourceFile, start: int) -> bytes:
        content = reading(file, start)
        Path(file.place).write_text(TABLE[::-1])
        return content

    monkeypatch.setattr(adding, "_bytes_of", changed)
    with pytest.raises(DataError, match=r"churn\.csv was changed while it was added"):
        add("churn.csv")
    assert trainwright.data_log() == []


def test_small_files_share_packs(here: Path) -> None:
    files = {f"{i % 7}/{i}.txt": f"file {i}".encode() for i in range(500)}
    Path("many").mkdir()
    written(Path("many"), files)
    add("many")
    assert len(objects("packs")) == 1
    Path("many/3/3.txt").write_bytes(b"changed")
    add("many")
    assert sorted(path.stat().st_size for path in objects("packs"))[0] == len(b"changed")
    assert read(trainwright.data_get("many@v1", "old")) == files
    assert read(trainwright.data_get("many@v2", "new")) == files | {"3/3.txt": b"changed"}


def test_a_damaged_chunk_is_named_and_nothing_is_written(here: Path) -> None:
    Path("big").mkdir()
    Path("big/rows.bin").write_bytes(random.Random(2).randbytes(CHUNK_BYTES + 1000))
    add("big")
    chunk = max(objects("chunks"), key=lambda path: path.stat().st_size)
    content = bytearray(chunk.read_bytes())
    content[1000] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(DataError, match=rf"rows\.bin: the chunk {chunk.name[:12]} is damaged"):
        trainwright.data_get("big@v1", "out")
    chunk.unlink()
    with pytest.raises(DataError, match=rf"rows\.bin: a chunk is missing.*{chunk.name}"):
        trainwright.data_get("big@v1", "out")
    assert sorted(path.name for path in here.iterdir()) == ["big", "runs"]


def test_a_crafted_list_writes_nothing_outside_of_its_folder(here: Path) -> None:
    for path in ("../x", "/x", "a/../../x", "a//x", "./x", "x\0y", ""):
        content, stored = encode([TreeFile(path, 1, (sha256_bytes(b"x"),))])
        with pytest.raises(DataError, match="leads out of its folder"):
            decode(content, stored)
    for chunks, size in (((), 1), (("x",), 1), ((sha256_bytes(b"x"),) * 2, 1)):
        with pytest.raises(DataError, match="do not fit its size"):
            decode(*encode([TreeFile("x", size, chunks)]))


def test_links_are_followed_inside_the_folder_alone(here: Path) -> None:
    written(here / "source" if not (here / "source").mkdir() else here, {"in.txt": b"in"})
    Path("out.txt").write_bytes(b"out")
    Path("source/link.txt").symlink_to("in.txt")
    add("source")
    assert read(trainwright.data_get("source@v1", "copy")) == {"in.txt": b"in", "link.txt": b"in"}
    Path("source/link.txt").unlink()
    for target in ("../out.txt", "gone.txt", "."):
        Path("source/link.txt").symlink_to(target)
        with pytest.raises(DataError, match="is no file in the folder"):
            add("source")
        Path("source/link.txt").unlink()
    os.mkfifo("source/pipe")
    with pytest.raises(DataError, match="no regular file"):
        add("source")


def test_two_adds_at_once_get_two_numbers(here: Path) -> None:
    for i in range(12):
        Path(f"{i}.csv").write_text(f"a\n{i}\n")
    with ThreadPoolExecutor(6) as pool:
        names = [*pool.map(lambda i: add(f"{i}.csv", name="rows"), range(12))]
    assert sorted(names) == sorted(f"rows@v{i}" for i in range(1, 13))
    for i, name in enumerate(names):
        assert trainwright.data_get(name, f"out{i}").read_text() == f"a\n{i}\n"


def test_a_typo_names_what_there_is(here: Path) -> None:
    for i in range(3):
        Path("churn.csv").write_text(f"a\n{i}\n")
        add("churn.csv", tag=("first", "second", "prod")[i])
    with pytest.raises(InputError, match=r"no data set 'chrun'; there are: churn; did you mean 'churn'\?"):
        trainwright.data_get("chrun@v1")
    with pytest.raises(
        InputError, match=r"no version 'v4'; there are: v1, v2, v3, first, second, prod, latest"
    ):
        trainwright.data_show("churn@v4")
    assert trainwright.data_show("churn@prod")["version"] == "churn@v3"
    add("churn.csv", tag="first")
    assert trainwright.data_show("churn@first")["version"] == "churn@v3"


def test_a_deleted_version_says_who_deleted_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    Path("churn.csv").write_text("a\n1\n")
    add("churn.csv")
    Path("churn.csv").write_text("a\n2\n")
    add("churn.csv")
    trainwright.data_delete("churn@v1")
    with pytest.raises(DataError, match=r"churn@v1 was deleted by ada on \S+, \d{4}-.* \(data delete\)$"):
        trainwright.data_get("churn@v1")
    assert trainwright.data_gc().objects == 3  # a list of files, a pack and its index
    assert trainwright.data_gc().objects == 0
    assert trainwright.data_get("churn@v2", "two.csv").read_text() == "a\n2\n"
    Path("churn.csv").write_text("a\n1\n")
    add("churn.csv")
    assert trainwright.data_get("churn@v3", "back.csv").read_text() == "a\n1\n"


def test_gc_keeps_what_runs_and_tags_hold(here: Path) -> None:
    for i in range(5):
        Path("churn.csv").write_text("a,target\n" + "".join(f"{j + i},{j % 2}\n" for j in range(60)))
        add("churn.csv", **({"tag": "kept"} if i == 1 else {}))
    config = {"data": {"path": "churn@v1"}, "model": "logistic_regression"}
    run = trainwright.train(config, quiet=True)
    with pytest.raises(InputError, match=f"churn@v1 is the data of run {run.id}"):
        trainwright.data_delete("churn@v1")
    planned = trainwright.data_gc(keep=2, dry_run=True)
    swept = trainwright.data_gc(keep=2)
    assert planned == swept
    assert (swept.versions, swept.kept) == (["churn@v3"], {"churn@v1": [run.id]})
    assert [one["deleted"] is None for one in trainwright.data_log()] == [True, True, False, True, True]
    shutil.rmtree("cache")
    assert trainwright.reproduce(run).verdict == "identical"
    assert run.id in trainwright.data_delete("churn@v1", force=True)["runs"]
    with pytest.raises(DataError, match="churn@v1 was deleted by"):
        trainwright.reproduce(run)


def test_an_unchanged_file_is_not_read_again(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_stamps, "_SETTLED_NS", -(10**18))
    monkeypatch.setattr(file_stamps, "_is_in_memory", lambda device: False)
    Path("many").mkdir()
    written(Path("many"), {f"{i}": f"{i}".encode() for i in range(20)} | {"big": bytes(CHUNK_BYTES + 1)})
    add("many")
    known = next(Path("cache/hashes").glob("chunks-*.json"))
    seen: list[str] = []
    reading = adding._bytes_of
    monkeypatch.setattr(
        adding, "_bytes_of", lambda file, start: (seen.append(file.path), reading(file, start))[1]
    )
    add("many")
    assert seen == []
    Path("many/7").write_bytes(b"changed")
    assert add("many") == "many@v2"
    assert seen == ["7"]
    known.write_bytes(known.read_bytes().replace(b'/7":', b'/8":'))
    assert add("many") == "many@v2"
    assert len(seen) == 1 + 20 + 2, "a record that was changed is not believed"
    shutil.rmtree("runs")
    assert add("many") == "many@v1"
    assert read(trainwright.data_get("many@v1", "out")) == read(Path("many"))


def test_a_version_that_is_damaged_is_mended_by_adding_it_again(here: Path) -> None:
    Path("rows").mkdir()
    files = {"large.bin": random.Random(3).randbytes(CHUNK_BYTES + 7), "small.txt": b"small"}
    add(written(Path("rows"), files))
    chunk, pack = max(objects("chunks"), key=lambda path: path.stat().st_size), objects("packs")[0]
    for path in (chunk, pack):
        path.write_bytes(b"?" + path.read_bytes()[1:])
        with pytest.raises(DataError, match="is damaged"):
            trainwright.data_get("rows@v1", "out")
        path.unlink()
        again = trainwright.data_add("rows")
        assert (again["version"], again["new"]) == ("rows@v1", False)
        assert read(trainwright.data_get("rows@v1", "out")) == files
        shutil.rmtree("out")


def test_a_lost_pack_is_mended_by_one_of_other_chunks(here: Path) -> None:
    Path("rows").mkdir()
    add(written(Path("rows"), {"a.txt": b"first"}))
    (lost,) = objects("packs")
    Path("rows/b.txt").write_text("second")
    add("rows")
    lost.unlink()
    with pytest.raises(DataError, match=r"a\.txt"):
        trainwright.data_get("rows@v2", "out")
    Path("other").mkdir()
    Path("other/c.txt").write_text("third")
    Path("rows/a.txt").rename("other/a.txt")
    add("other")  # which packs the lost file with another one
    Path("other/a.txt").rename("rows/a.txt")
    again = trainwright.data_add("rows")
    assert (again["version"], again["new"]) == ("rows@v3", True)
    trainwright.data_gc()
    for version in ("rows@v2", "rows@v3"):
        assert read(trainwright.data_get(version, f"out-{version}")) == {
            "a.txt": b"first",
            "b.txt": b"second",
        }


def test_versions_are_kept_in_a_store_of_objects(
    here: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINWRIGHT_RUNS", f"{bucket}/runs")
    Path("rows").mkdir()
    files = {"large.bin": random.Random(4).randbytes(CHUNK_BYTES + 7), "table.csv": TABLE.encode()}
    add(written(Path("rows"), files))
    assert not trainwright.data_add("rows")["new"]
    assert read(trainwright.data_get("rows@latest", "out")) == files
    Path("churn.csv").write_text(TABLE)
    add("churn.csv")
    run = trainwright.train({"data": "churn@latest", "model": "logistic_regression"}, quiet=True)
    assert run.manifest["data"]["pins"]["data.path"]["source"] == f"{bucket}/runs"
    assert trainwright.data_show("churn@v1")["runs"] == [run.id]
    Path("churn.csv").write_text(TABLE.replace("1", "2"))
    add("churn.csv")
    shutil.rmtree("cache")
    assert trainwright.reproduce(f"{bucket}/runs/run/{run.id}").verdict == "identical"
    trainwright.data_delete("rows@v1")
    assert trainwright.data_gc().objects == 3  # a list and two chunks; churn@v1 needs the pack
    assert [one.id for one in trainwright.list_runs()][-1] == run.id


def test_what_a_killed_get_left_is_deleted_by_the_next_one(here: Path) -> None:
    Path("churn.csv").write_text(TABLE)
    add("churn.csv")
    left = here / ".out.csv.0123abcd.trainwright-get"
    others = [here / name for name in (".out.csv.0123abcd.tmp", ".out2csv.0123abcd.trainwright-get", "x.csv")]
    for folder in (left, *others):
        folder.mkdir()
        (folder / "out.csv").touch()
    link = here / ".out.csv.89abcdef.trainwright-get"
    link.symlink_to(others[-1])
    busy = here / ".out.csv.76543210.trainwright-get"
    busy.mkdir()
    with data._locked(busy):
        trainwright.data_get("churn@v1", "out.csv")
    assert not left.exists()
    assert busy.exists(), "another process writes to it"
    assert all((folder / "out.csv").exists() for folder in others)
    Path("out.csv").unlink()
    trainwright.data_get("churn@v1", "out.csv")
    assert not busy.exists()


def test_nobody_deletes_while_somebody_adds(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("churn.csv").write_text(TABLE)
    add("churn.csv")
    store = EmbeddedVersion((here / "runs").as_uri()).store
    with sweep.adding(store):
        with pytest.raises(InputError, match=rf"data are added or deleted on \S+ \(process {os.getpid()}\)"):
            trainwright.data_gc()
        assert not trainwright.data_add("churn.csv")["new"], "several may add at once"
    with sweep.sweeping(store), pytest.raises(InputError, match="`data gc` deletes what no version needs on"):
        add("churn.csv")
    ended = subprocess.Popen(["true"])
    ended.wait()
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: ended.pid)
        patched.setattr(store, "delete", lambda key: None)  # as if it had been killed
        with sweep.adding(store):
            pass
    assert len(objects("busy")) == 1
    assert trainwright.data_gc().objects == 0
    assert objects("busy") == []


def test_what_the_files_of_a_version_need_must_be_known_to_delete(here: Path) -> None:
    Path("churn.csv").write_text(TABLE)
    add("churn.csv")
    (tree,) = objects("trees")
    tree.unlink()
    before = objects("")
    with pytest.raises(InputError, match=r"churn@v1: the list of files.*nothing is deleted"):
        trainwright.data_gc()
    assert objects("") == before


@pytest.mark.parametrize(
    "change",
    [{"file": "data/../../../out"}, {"content": "../../x"}, {"packs": ["../../x"]}, {"file": "x"}],
)
def test_a_crafted_entry_of_a_log_names_no_path(change: dict[str, Any], here: Path) -> None:
    Path("churn.csv").write_text(TABLE)
    add("churn.csv")
    (file,) = objects("names")
    entry = Entry.parse(file.read_bytes())
    file.write_bytes(entry.model_copy(update=change).encoded())
    with pytest.raises(DataError, match=r"names/churn/000001 in the store of data is damaged"):
        trainwright.data_get("churn@v1", "got.csv")
    assert not Path("got.csv").exists()
