"""Data at URLs: the same rows as local files; copies that are checked, shared by processes, and limited."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows import config, csv_text, load, people

from s3_server import S3Server
from trainwright.cli.main import main
from trainwright.datasets.csv import CsvDataset
from trainwright.datasets.npy import NpyDataset
from trainwright.datasets.samples import cache
from trainwright.datasets.samples.cache import LIMIT, DataCache, data_cache
from trainwright.datasets.samples.files import existing_file, files_below, files_matching, names_in
from trainwright.datasets.text import TextDataset
from trainwright.errors import DataError, InputError
from trainwright.runs.data.identity import data_inputs
from trainwright.storage.urls import open_store
from troubled_server import Environ, Trouble, TroubledServer

_PROCESSES = 4
FETCH = "import sys; from trainwright.datasets.samples.remote import fetched; print(fetched(sys.argv[1]))"
KILLED = """
import os, signal, sys
from trainwright.datasets.samples.remote import fetched
from trainwright.stores.support.objects import ObjectStore

def half(self, key, target):
    target.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

ObjectStore.download = half
fetched(sys.argv[1])
"""


@pytest.fixture(autouse=True)
def _afresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test has a cache of its own, and no copy is in use at first."""
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_in_use", {})
    yield
    free_all()


def free_all() -> None:
    """As if the process had ended."""
    for file in cache._in_use.values():
        file.close()
    cache._in_use.clear()


@pytest.fixture
def upload(bucket: str, tmp_path: Path) -> Callable[[str, bytes], str]:
    """Return a function that stores bytes under a key and returns the URL."""

    def put(key: str, content: bytes) -> str:
        file = tmp_path / "upload"
        file.write_bytes(content)
        open_store(bucket).put(key, file)
        return f"{bucket}/{key}"

    return put


Upload = Callable[[str, bytes], str]


@contextmanager
def downloads(server: TroubledServer) -> Iterator[Callable[[], int]]:
    """Yield a function that returns how many objects were downloaded: each takes one GET, but for lists."""
    counted = Trouble("none", [], "GET", "/data/")
    with server.troubled(counted):
        yield lambda: counted.met


def copies() -> list[Path]:
    return list(Path(os.environ["TRAINWRIGHT_CACHE"]).glob("data/*/content"))


@pytest.mark.parametrize(
    "service", ["bucket", "gs_bucket", pytest.param("az_container", marks=pytest.mark.slow)]
)
def test_a_file_at_a_url_is_the_same_data(service: str, request: Any, tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_text(csv_text(people()))
    url = f"{request.getfixturevalue(service)}/data/people.csv"
    bucket, _, key = url.removesuffix("/data/people.csv"), None, "data/people.csv"
    open_store(bucket).put(key, file)
    local, remote = (load(CsvDataset, config(type="csv", path=path)) for path in (str(file), url))
    assert data_inputs(remote) == data_inputs(local)


def test_a_folder_of_texts_is_the_same_data(upload: Upload, bucket: str, tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a.txt", "a/b/c.txt", ".h.txt", "a/other.md"):
        content = name.encode() * 50
        (tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / name).write_bytes(content)
        upload(f"data/texts/{name}", content)
    upload("data/texts2/no.txt", b"beside it")
    fingerprints = [
        load(TextDataset, config(type="text", path=path, target="labels"), length=8)
        .splits["train"]
        .fingerprint()
        for path in (str(tmp_path / "texts"), f"{bucket}/data/texts", f"{bucket}/data/texts/")
    ]
    assert len(set(fingerprints)) == 1


def test_a_folder_of_arrays_is_the_same_data(upload: Upload, bucket: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    (tmp_path / "arrays").mkdir()
    for name, array in {"X": draw.normal(size=(40, 3)), "y": np.arange(40) % 2}.items():
        np.save(tmp_path / "arrays" / f"{name}.npy", array)
        upload(f"data/arrays/{name}.npy", (tmp_path / "arrays" / f"{name}.npy").read_bytes())
    local, remote = (
        load(NpyDataset, config(type="npy", path=path, target="target"))
        for path in (str(tmp_path / "arrays"), f"{bucket}/data/arrays")
    )
    assert data_inputs(remote) == data_inputs(local)
    with pytest.raises(DataError, match=f"{bucket}/data is not a folder|X.npy is missing; the folder holds"):
        load(NpyDataset, config(type="npy", path=f"{bucket}/data", target="target"))


@pytest.mark.parametrize(
    "pattern", ["*.txt", "**/*.txt", "a/*", "**/c?.txt", "[ab]/**/c1.txt", "**", "a/**", ".*"]
)
def test_a_pattern_matches_what_it_does_on_the_disk(
    pattern: str, upload: Upload, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("x.txt", "a/x.txt", "a/b/c1.txt", "b/c1.txt", ".h.txt", "a/.h/x.txt", "a/y.md")
    for name in names:
        (tmp_path / "local" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "local" / name).touch()
    monkeypatch.setattr(
        "trainwright.datasets.samples.remote.urls_below",
        lambda url: [f"{bucket}/{name}" for name in names if f"{bucket}/{name}".startswith(f"{url}/")],
    )
    on_disk = [file for file in files_matching(f"{tmp_path}/local/{pattern}") if Path(file).is_file()]
    assert [url.removeprefix(bucket) for url in files_matching(f"{bucket}/{pattern}")] == [
        file.removeprefix(f"{tmp_path}/local") for file in on_disk
    ]
    if not pattern.endswith("**"):  # `rglob` takes that for folders alone
        assert {url.removeprefix(bucket) for url in files_below(bucket, pattern) or ()} == {
            file.removeprefix(f"{tmp_path}/local") for file in files_below(f"{tmp_path}/local", pattern) or ()
        }


def test_the_names_in_a_folder(upload: Upload, bucket: str) -> None:
    for name in ("b", "a", "c/d"):
        upload(f"data/{name}", b"1")
    assert names_in(f"{bucket}/data") == ["a", "b"]
    assert names_in(f"{bucket}/dat") is None


def test_an_object_is_downloaded_once_and_again_when_it_changed(upload: Upload, s3: S3Server) -> None:
    url = upload("data/x", b"one")
    with downloads(s3) as count:
        assert [existing_file(url).read_bytes() for _ in range(3)] == [b"one"] * 3
        assert count() == 1
        free_all()
        assert existing_file(url).read_bytes() == b"one"
        assert count() == 1
    upload("data/x", b"two")
    assert existing_file(url).read_bytes() == b"two"


def test_an_object_that_changes_while_it_is_downloaded_is_refused(
    upload: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainwright.stores.support.objects import ObjectStore

    url = upload("data/x", b"one")
    download = ObjectStore.download
    monkeypatch.setattr(ObjectStore, "download", lambda *args: (upload("data/x", b"two"), download(*args))[1])
    with pytest.raises(DataError, match=f"{url} was changed while it was downloaded; try again"):
        existing_file(url)
    assert copies() == []


@pytest.mark.parametrize("damage", ["content", "record.json"])
def test_a_damaged_copy_is_downloaded_again(
    damage: str, upload: Upload, s3: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    url = upload("data/x", b"one")
    path = existing_file(url)
    (path.parent / damage).write_bytes(b"0ne")
    with downloads(s3) as count:
        assert existing_file(url).read_bytes() == b"one"
        assert count() == 1
    assert f"the local copy of {url} is damaged" in caplog.text


def test_the_least_recently_used_copies_make_room(upload: Upload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, str(3000 / 2**30))
    a, b, c, d = (upload(f"data/{name}", name.encode() * 1000) for name in "abcd")
    paths = {url: existing_file(url) for url in (a, b, c)}
    free_all()
    existing_file(a)  # b is now the one that was not used for longest
    free_all()
    existing_file(d)
    assert [url for url, path in paths.items() if not path.exists()] == [b]
    assert sum(path.stat().st_size for path in copies()) == 3000


def test_copies_in_use_are_kept(upload: Upload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, str(2500 / 2**30))
    a, b, c = (upload(f"data/{name}", name.encode() * 1000) for name in "abc")
    existing_file(a)
    free_all()
    used = existing_file(b)
    existing_file(c)
    assert used.exists()
    with pytest.raises(DataError, match=rf"{a} takes up .* GiB, and copies in use .*; set {LIMIT} to more"):
        existing_file(a)
    large = upload("data/large", b"x" * 2501)
    with pytest.raises(
        DataError, match=rf"{large} takes up .* GiB, but the local copies of data may take up"
    ):
        existing_file(large)
    assert len(copies()) == 2, "copies were deleted for nothing"


@pytest.mark.slow
def test_a_download_that_is_killed_leaves_nothing_that_counts(upload: Upload) -> None:
    url = upload("data/x", b"the whole of it")
    killed = subprocess.run([sys.executable, "-c", KILLED, url], check=False)
    assert killed.returncode == -signal.SIGKILL
    folder = Path(os.environ["TRAINWRIGHT_CACHE"]) / "data"
    assert list(folder.glob(".new-*/*/content"))
    assert copies() == []
    assert existing_file(url).read_bytes() == b"the whole of it"
    assert not list(folder.glob(".new-*")), "what the killed process left is still there"


@pytest.mark.slow
def test_of_several_processes_one_downloads(
    upload: Upload, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No download begins before all have asked for the version: each has found that there is no copy."""
    url = upload("data/x", b"x" * 1000)
    everyone, app = threading.Semaphore(0), s3._app

    def gated(environ: Environ, start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "HEAD":
            everyone.release()
        elif environ["REQUEST_METHOD"] == "GET":
            assert all(everyone.acquire(timeout=100) for _ in range(_PROCESSES))
            everyone.release(_PROCESSES)
        return app(environ, start_response)

    monkeypatch.setattr(s3, "_app", gated)
    with downloads(s3) as count:
        processes = [
            subprocess.Popen([sys.executable, "-c", FETCH, url], stdout=subprocess.PIPE, text=True)
            for _ in range(_PROCESSES)
        ]
        paths = {process.communicate(timeout=200)[0].strip() for process in processes}
        assert count() == 1
    assert [Path(path) for path in paths] == copies()


@pytest.mark.parametrize("limit", ["much", "0", "-1", "nan", "inf"])
def test_a_limit_that_is_no_number_is_refused(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, limit)
    with pytest.raises(InputError, match=rf"{LIMIT}: '{limit}' is not a number of GiB; for example, give 50"):
        data_cache()


def test_a_disk_without_room_is_an_error_with_the_remedy(
    upload: Upload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = upload("data/x", b"one")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        DataError, match=r"No space left on device; make room there, or set TRAINWRIGHT_CACHE"
    ):
        existing_file(url)
    assert copies() == []


def errors(bucket: str) -> Iterable[tuple[str, str]]:
    yield f"{bucket}/data/none.csv", f"{bucket}/data/none.csv: no such object"
    yield f"{bucket}x/none.csv", f"{bucket}x/none.csv: no such object"
    yield f"{bucket}/", "names no object; give one of those below it"
    yield (
        "nope://bucket/x.csv",
        "data cannot be read from nope://, only from files and from az://, gs://, hdfs://, s3://",
    )
    yield (
        "s3://key:secret@bucket/x.csv",
        "the URL of data must not contain credentials; set them in the environment",
    )
    yield "file:///x.csv", "give the path of a file on this machine, without file://"
    yield "s3:///x.csv", "names no bucket; write s3://bucket/prefix"


def test_a_url_that_cannot_be_read_says_why(bucket: str) -> None:
    for url, message in errors(bucket):
        with pytest.raises(InputError) as raised:
            existing_file(url)
        assert message in str(raised.value)
        assert "secret" not in str(raised.value)
    with pytest.raises(DataError, match="name the bucket; only what is in it can be a pattern"):
        files_matching("s3://b*/x.csv")


def test_without_the_service_the_command_ends_with_an_error(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trainwright.stores.support.objects._HASTY", {"max_retries": 0})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    config_file = tmp_path / "config.yaml"
    config_file.write_text(f"{{data: {{path: '{bucket}/data/x.csv'}}, model: mlp}}", encoding="utf-8")
    assert main(["train", str(config_file)]) == 2
    shown = capsys.readouterr().err
    assert f"head {bucket}/data/x.csv: " in shown
    assert "Traceback" not in shown


def test_a_cache_is_for_its_user_alone(upload: Upload) -> None:
    existing_file(upload("data/x", b"one"))
    assert Path(os.environ["TRAINWRIGHT_CACHE"], "data").stat().st_mode & 0o777 == 0o700


def test_a_copy_that_was_deleted_by_hand_is_downloaded_again(upload: Upload) -> None:
    url = upload("data/x", b"one")
    path = existing_file(url)
    for file in path.parent.iterdir():
        file.unlink()
    path.parent.rmdir()
    assert existing_file(url).read_bytes() == b"one"
    assert isinstance(data_cache(), DataCache)
