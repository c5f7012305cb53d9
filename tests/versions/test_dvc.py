"""Versions of DVC: the contract, over a local remote and over S3, and a run that is pinned to a commit."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

import pytest

import trainwright
from trainwright.digest import sha256_bytes
from trainwright.errors import ConfigError, DataError
from trainwright.records.pins import Pin
from trainwright.testing.version_suite import FIRST, VersionSuite, read, written
from trainwright.versions.base import Reference
from trainwright.versions.dvc import DvcVersion

pytestmark = [
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


def run(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def dvc(*words: str, cwd: Path) -> None:
    run("dvc", "-q", *words, cwd=cwd)


def repository(folder: Path, remote: str) -> Path:
    """Make a repository of Git and DVC with a remote."""
    folder.mkdir()
    run("git", "init", "-q", "-b", "main", cwd=folder)
    for key, value in (("user.email", "ada@example.com"), ("user.name", "Ada")):
        run("git", "config", key, value, cwd=folder)
    dvc("init", cwd=folder)
    dvc("remote", "add", "-d", "store", remote, cwd=folder)
    return folder


def commit(repo: Path, *tracked: str) -> None:
    """Push what is tracked, and commit; the cache is emptied, so that all comes from the remote."""
    dvc("add", *tracked, cwd=repo)
    dvc("push", cwd=repo)
    run("git", "add", ".", cwd=repo)
    run("git", "commit", "-q", "--allow-empty", "-m", "data", cwd=repo)
    shutil.rmtree(repo / ".dvc/cache")


@pytest.fixture(scope="session")
def dvc_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment of its own, as DVC asks for older packages than ours; for all workers."""
    folder = tmp_path_factory.getbasetemp()
    made = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "dvc"
    with open(made.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made / "ready").exists():
            run(sys.executable, "-m", "venv", str(made), cwd=made.parent)
            run(str(made / "bin" / "pip"), "install", "-q", "dvc[s3]>=3.60,<4", cwd=made.parent)
            (made / "ready").touch()
    return made / "bin"


@pytest.fixture(autouse=True)
def dvc_on_the_path(dvc_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{dvc_folder}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(autouse=True)
def own_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))


class TestDvc(VersionSuite):
    moving = "main"

    def make(self, root: Path) -> DvcVersion:
        return DvcVersion((root / "runs").as_uri())

    def repo(self, root: Path) -> Path:
        return root / "repo" if (root / "repo").exists() else repository(root / "repo", str(root / "remote"))

    def commit(self, root: Path, files: Mapping[str, bytes]) -> None:
        repo = self.repo(root)
        (repo / "rows").mkdir(exist_ok=True)
        written(repo / "rows", files)
        commit(repo, "rows")

    def commit_file(self, root: Path, content: bytes) -> None:
        (self.repo(root) / "one.csv").write_bytes(content)
        commit(self.repo(root), "one.csv")

    def reference(self, root: Path, name: str, revision: str) -> Reference:
        return {"repo": str(self.repo(root)), "path": name, "rev": revision}

    def stored(self, root: Path, content: bytes) -> Path:
        files = (path for path in (root / "remote").rglob("*") if path.is_file())
        return next(path for path in files if sha256_bytes(path.read_bytes()) == sha256_bytes(content))

    def damage(self, root: Path, content: bytes) -> None:
        path = self.stored(root, content)
        path.chmod(0o644)
        path.write_bytes(content[:-1] + b"?")

    def lose(self, root: Path, content: bytes) -> None:
        self.stored(root, content).unlink()

    def pin_with_password(self, root: Path, password: str) -> Pin:
        found = {"commit": "0" * 40, "md5": None, "is_file": False}
        with patch("trainwright.versions.dvc._ask", return_value=found):  # no such server is here
            reference = {"repo": f"https://me:{password}@example.com/x.git", "path": "rows"}
            return self.make(root).resolve(reference)


TABLE = "a,b,target\n" + "".join(f"{i % 17},{i % 5},{i % 2}\n" for i in range(120))


@pytest.fixture(params=["local", "s3"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "remote")
    return f"{request.getfixturevalue('bucket')}/data"


def test_a_run_is_repeated_after_the_branch_has_moved_on(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))
    repo = repository(tmp_path / "repo", remote)
    (repo / "churn.csv").write_text(TABLE)
    commit(repo, "churn.csv")
    config = {
        "data": {"dvc": {"repo": "repo", "path": "churn.csv", "rev": "main"}},
        "model": "logistic_regression",
    }
    first = trainwright.train(config, quiet=True)
    pin = first.manifest["data"]["pins"]["data.dvc"]
    assert len(pin["revision"]) == 40
    assert pin["revision"] in (first.path / "config.yaml").read_text()
    (repo / "churn.csv").write_text(TABLE.replace("\n3,", "\n4,"))
    commit(repo, "churn.csv")
    shutil.rmtree("cache")
    assert trainwright.reproduce(first).verdict == "identical"
    second = trainwright.train(config, quiet=True)
    assert second.manifest["data"]["pins"]["data.dvc"]["content"] != pin["content"]
    differing = [one.what for one in trainwright.compare(first, second).inputs]
    assert "version of data.dvc" in differing
    shutil.rmtree("cache")
    shutil.rmtree("site")
    if remote.startswith("s3:"):
        dvc("remote", "modify", "store", "url", f"{remote}-gone", cwd=repo)
    else:
        shutil.rmtree("remote")
    with pytest.raises(DataError) as caught:
        trainwright.reproduce(second)
    assert "churn.csv is neither in the cache nor in the remote of DVC" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_reference_is_a_problem_of_the_config(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", str(tmp_path / "remote"))
    (repo / "churn.csv").write_text(TABLE)
    commit(repo, "churn.csv")

    def check(**section: str) -> None:
        trainwright.check({"data": {"dvc": {"repo": str(repo), **section}}, "model": "logistic_regression"})

    check(path="churn.csv")
    with pytest.raises(ConfigError, match="unknown Git revision 'v9'"):
        check(path="churn.csv", rev="v9")
    with pytest.raises(ConfigError, match="there is no such file or folder"):
        check(path="rows.csv")
    with pytest.raises(ConfigError, match=r"data\.dvc\.repo must not hold credentials"):
        check(path="churn.csv", repo="https://me:secret@example.com/x.git")


def test_a_damaged_list_of_a_folder_is_found(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", str(tmp_path / "remote"))
    (repo / "rows").mkdir()
    written(repo / "rows", FIRST)
    commit(repo, "rows")
    pin = DvcVersion("").resolve({"repo": str(repo), "path": "rows"})
    shutil.rmtree(tmp_path / "site")
    (listing,) = (tmp_path / "remote").rglob("*.dir")
    listing.chmod(0o644)
    for change in ((b"more/empty", b"more/other"), (b"more/empty", b"../../empty")):
        (tmp_path / "out").mkdir(exist_ok=True)
        whole = listing.read_bytes()
        listing.write_bytes(whole.replace(*change))
        with pytest.raises(DataError, match=r"damaged|leads out|Corrupted|corrupted"):
            DvcVersion("").materialise(pin, tmp_path / "out")
        listing.write_bytes(whole)
        for name in ("out", "site", "repo/.dvc/cache"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
    assert read(DvcVersion("").materialise(pin, tmp_path)) == FIRST
