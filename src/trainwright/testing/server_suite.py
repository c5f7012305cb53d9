"""The contract suite of servers: a package stands alone, and its files pass the checks of who reads them.

    class TestMine(ServerSuite):
        server = MineServer
        to = "mine"
        models = {"lightgbm": {}, "mlp": {"data.impute": "median"}}   # overrides of the config
        refused = "lightgbm"         # a model that it cannot take, if there is one

        def check(self, path: Path) -> None:
            ...                      # have the system's own tools read the files in the folder

The contract is in `servers/base.py`. pip finds packages in a folder of small wheels: no index is asked.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import shutil
import socket
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from trainwright import api
from trainwright.api.packaging import SUMS
from trainwright.errors import DifferentArtifactError, InputError
from trainwright.runs.run import Run
from trainwright.servers.base import Package, Server
from trainwright.testing.exporter_suite import write_rows

_SECRET = "rows-of-a-customer"  # in the path of the data, and in a variable
_FEW = {"training.max_steps": 12, "training.threads": 1}
_LIBRARIES = ("lightgbm", "catboost", "xgboost", "xgboost-cpu", "skops", "scikit-learn", "onnxruntime")
_NAME = re.compile(r"[\w.-]+")


class ServerSuite:
    """Tests of the contract; subclass it in a test module of the adapter."""

    server: ClassVar[type[Server]]
    to: ClassVar[str]
    models: ClassVar[Mapping[str, Mapping[str, Any]]]  # overrides of the config, by the model's short name
    refused: ClassVar[str] = ""  # the short name of a model that it cannot take
    packages: ClassVar[Sequence[str]] = ()  # that it lists beside those of Trainwright, or `name==version`
    trust: ClassVar[bool] = False  # whether opening its models executes code

    def check(self, path: Path) -> None:
        """Check the files of a package with the tools of who reads them."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        """Return the working directory, which holds the rows, and where pip finds packages."""
        folder = tmp_path_factory.mktemp("servers")
        (folder / _SECRET).mkdir()
        write_rows(folder / _SECRET / "rows.csv")
        house = folder / "wheels"
        write_wheels(house, self.packages)
        given = {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(house),
            "PIP_CONFIG_FILE": os.devnull,
            "TRAINWRIGHT_ROWS": str(folder / _SECRET),
        }
        with pytest.MonkeyPatch.context() as patch:
            for name, value in given.items():
                patch.setenv(name, value)
            patch.chdir(folder)
            yield folder

    @pytest.fixture(scope="class")
    def run_of(self, folder: Path) -> Callable[[str], Run]:
        """Return a function to the run of a model, which is trained once."""
        runs: dict[str, Run] = {}

        def run(name: str) -> Run:
            if name not in runs:
                own = dict(self.models.get(name, {}))
                data = {"type": "csv", "path": "${env:TRAINWRIGHT_ROWS}/rows.csv", "target": "churn"}
                config = {
                    "experiment": {"name": "Churn_of.2026"},
                    "data": data,
                    "model": own.pop("model", name),
                }
                overrides = [f"{key}={json.dumps(value)}" for key, value in {**_FEW, **own}.items()]
                runs[name] = api.train(config, overrides=overrides, runs_dir=folder / "runs", quiet=True)
            return runs[name]

        return run

    @pytest.fixture(scope="class")
    def package_of(self, run_of: Callable[[str], Run], folder: Path) -> Callable[[str, Path], Path]:
        """Return a function to a copy of a model's package; it is written once."""

        def package(name: str, into: Path) -> Path:
            kept = folder / "packages" / name
            if not kept.exists():
                kept.parent.mkdir(exist_ok=True)
                made = api.package(run_of(name), kept, self.to, replicas=2)
                assert (made.path, made.name) == (kept, "churn-of-2026")
                assert made.format in self.server.formats
                assert made.start
            return shutil.copytree(kept, into / "package")

        return package

    def test_its_files_are_valid(
        self, package_of: Callable[[str, Path], Path], tmp_path: Path, subtests: pytest.Subtests
    ) -> None:
        for name in self.models:
            with subtests.test(model=name):
                path = package_of(name, tmp_path / name)
                self.check(path)
                for line in (path / SUMS).read_text().splitlines():
                    digest, _, file = line.partition("  ")
                    assert hashlib.sha256((path / file).read_bytes()).hexdigest() == digest
                listed = {one.partition("  ")[2] for one in (path / SUMS).read_text().splitlines()}
                found = {one.relative_to(path).as_posix() for one in path.rglob("*") if one.is_file()}
                assert found - listed == {SUMS}
                assert "README.md" in found

    def test_it_names_nothing_of_the_machine(
        self, package_of: Callable[[str, Path], Path], folder: Path, tmp_path: Path
    ) -> None:
        """Neither its folders, its name, its user, nor the secrets in its variables."""
        words = [_SECRET, str(folder), str(Path.home()), sys.prefix, "file://"]
        words += [f"/{getpass.getuser()}/", str(Path(api.__file__).parents[2])]
        words += [f"{mark}{socket.gethostname()}" for mark in ("@", "//", " ")]  # it may be a short word
        for name in self.models:
            path = package_of(name, tmp_path / name)
            for file in path.rglob("*"):
                assert not file.is_symlink()
                if file.is_file() and not file.name.startswith("trainwright-"):  # the wheel is our source
                    for content in contents_of(file):
                        assert [word for word in words if word.encode() in content] == [], file

    def test_its_model_predicts_what_the_run_predicts(
        self, run_of: Callable[[str], Run], package_of: Callable[[str, Path], Path], tmp_path: Path
    ) -> None:
        """The artifact is in the package, with its certificate, and as certified."""
        for name in self.models:
            artifact = artifact_in(package_of(name, tmp_path / name))
            api.verify_certificate(artifact, trust=self.trust)
            if self.server.predicts:
                rows = Path(_SECRET, "rows.csv")
                own, found = api.predict(run_of(name), rows), api.predict(artifact, rows, trust=self.trust)
                assert list(own.columns) == list(found.columns)
                assert (own.iloc[:, 0] == found.iloc[:, 0]).all()
                np.testing.assert_allclose(own.iloc[:, 1:], found.iloc[:, 1:], atol=1e-5)

    def test_an_artifact_is_packaged_as_it_is(
        self, package_of: Callable[[str, Path], Path], tmp_path: Path
    ) -> None:
        first = package_of(next(iter(self.models)), tmp_path)
        artifact = artifact_in(first)
        again = api.package(artifact, tmp_path / "again", self.to, name="churn-of-2026", replicas=2)
        same = {one.relative_to(first): one for one in first.rglob("*") if one.is_file()}
        for relative, file in same.items():
            assert (again.path / relative).read_bytes() == file.read_bytes()

    def test_a_damaged_artifact_is_refused(
        self, package_of: Callable[[str, Path], Path], tmp_path: Path
    ) -> None:
        artifact = artifact_in(package_of(next(iter(self.models)), tmp_path))
        files = [one for one in artifact.rglob("*") if one.is_file() and one.suffix != ".json"]
        with open(files[0] if files else artifact, "ab") as file:
            file.write(b"\n")
        with pytest.raises(DifferentArtifactError, match="is not as certified"):
            api.package(artifact, tmp_path / "again", self.to)
        assert not (tmp_path / "again").exists()

    def test_what_it_cannot_take_is_refused(self, run_of: Callable[[str], Run], tmp_path: Path) -> None:
        if not self.refused:
            pytest.skip("it takes the models of all frameworks")
        with pytest.raises(InputError, match=rf"--to {self.to} takes .*there is --to \w+"):
            api.package(run_of(self.refused), tmp_path / "package", self.to)
        assert list(tmp_path.iterdir()) == []

    def test_nothing_appears_where_it_fails(
        self, run_of: Callable[[str], Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = self.server.write

        def fail(server: Server, package: Package, folder: Path) -> str:
            write(server, package, folder)
            raise InputError("no")

        monkeypatch.setattr(self.server, "write", fail)
        with pytest.raises(InputError, match=r"^no$"):
            api.package(run_of(next(iter(self.models))), tmp_path / "package", self.to)
        assert list(tmp_path.iterdir()) == []

    def test_the_help_has_a_line(self) -> None:
        assert self.server.summary


def artifact_in(package: Path) -> Path:
    """Return the path of the exported model in a package, by its certificate."""
    (found,) = [one for one in package.rglob("*certificate.json") if one.is_file()]
    own = found.name.removesuffix("certificate.json").removesuffix(".")
    return found.with_name(own) if own else found.parent


def contents_of(file: Path) -> Iterator[bytes]:
    """Yield the content of a file; of an archive, those of its files."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            yield from (archive.read(name) for name in archive.namelist())
    else:
        yield file.read_bytes()


def write_wheels(folder: Path, packages: Sequence[str] = ()) -> None:
    """Write a small wheel for each package that serving a model may need, in the version that is installed.

    Args:
        folder: The folder to make.
        packages: The names of others, or `name==version`.
    """
    folder.mkdir()
    declared = metadata.requires("trainwright") or []
    lines = [line for line in declared if ";" not in line or "'serve'" in line or "'tabular'" in line]
    for line in [*lines, *_LIBRARIES, *packages]:
        matched = _NAME.match(line)
        assert matched is not None
        name, bound, exact = matched[0], re.search(r">=([\d.]+)", line), re.search(r"==([\d.]+)$", line)
        try:
            version = exact[1] if exact else metadata.version(name)
        except metadata.PackageNotFoundError:
            version = bound[1] if bound else "1.0"
        base = f"{name.replace('-', '_')}-{version}"
        with zipfile.ZipFile(folder / f"{base}-py3-none-any.whl", "w") as archive:
            about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            archive.writestr(f"{base}.dist-info/METADATA", about)
            archive.writestr(f"{base}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(f"{base}.dist-info/RECORD", "")
