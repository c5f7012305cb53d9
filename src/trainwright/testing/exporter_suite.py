"""The contract suite of exporters: an artifact predicts what its run predicts, or does not appear.

    class TestMine(ExporterSuite):
        exporter = MineExporter
        form = "mine"
        models = {"xgboost": {}, "mlp": {"data.impute": "median"}}   # overrides of the config

        def damage(self, path: Path) -> None:
            ...                      # change one weight in the artifact, so that it can still be opened

The contract is in `exporters/base.py`. The data have numbers, categories and dates; some cells are empty.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from trainwright import api
from trainwright.errors import DifferentArtifactError, InputError
from trainwright.exporters.base import Exporter
from trainwright.records.artifact import certificate_of, read_certificate
from trainwright.records.run_dir import RunDir
from trainwright.runs.run import Run

ROWS = 240


def write_rows(path: Path) -> None:
    """Write rows of a number, a category, a date and two targets, of which some cells are empty."""
    draws = np.random.default_rng(5)
    ages, incomes = draws.integers(18, 80, ROWS), draws.lognormal(10, 1, ROWS).round(2)
    cities = draws.choice(["Bern", "Oslo", "Rome"], ROWS)
    days = np.datetime64("2019-12-20") + draws.integers(0, 1500, ROWS)
    moments = [f"{day}T{hour:02d}:30:00" for day, hour in zip(days, draws.integers(0, 24, ROWS), strict=True)]
    lines = ["age,city,income,joined,churn"]
    for i in range(ROWS):
        churn = "yes" if (ages[i] > 45) ^ (cities[i] == "Oslo") else "no"
        age, city = "" if i % 11 == 3 else ages[i], "" if i % 13 == 5 else cities[i]
        lines.append(f"{age},{city},{incomes[i]},{'' if i % 17 == 2 else moments[i]},{churn}")
    path.write_text("\n".join(lines) + "\n")


class ExporterSuite:
    """Tests of the contract; subclass it in a test module of the adapter."""

    exporter: ClassVar[type[Exporter]]
    form: ClassVar[str]
    models: ClassVar[Mapping[str, Mapping[str, Any]]]  # overrides of the config, by the model's short name
    needs_trainwright: ClassVar[bool] = False  # the artifact, where it is opened
    takes_rows: ClassVar[bool] = True  # as opposed to weights, or a file that takes features
    finds_damage: ClassVar[bool] = True  # also where the SHA-256 is made to fit

    def damage(self, path: Path) -> None:
        """Change a number in an artifact that its outputs depend on; it can still be opened."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        """Return a folder with the rows, which is the working directory."""
        folder = tmp_path_factory.mktemp("exports")
        write_rows(folder / "rows.csv")
        before = Path.cwd()
        os.chdir(folder)
        yield folder
        os.chdir(before)

    @pytest.fixture(scope="class")
    def run_of(self, folder: Path) -> Callable[[str], Run]:
        """Return a function to the run of a model, which is trained once."""
        runs: dict[str, Run] = {}

        def run(name: str) -> Run:
            if name not in runs:
                own = dict(self.models[name])
                model = own.pop("model", name)
                config = {"data": {"type": "csv", "path": "rows.csv", "target": "churn"}, "model": model}
                overrides = [f"{key}={json.dumps(value)}" for key, value in {**_FEW, **own}.items()]
                runs[name] = api.train(config, overrides=overrides, runs_dir=folder / "runs", quiet=True)
            return runs[name]

        return run

    @pytest.fixture(scope="class")
    def artifact_of(self, run_of: Callable[[str], Run], folder: Path) -> Callable[[str, Path], Path]:
        """Return a function to a copy of a model's artifact in a folder; it is exported once."""
        kept = folder / "artifacts"

        def artifact(name: str, into: Path) -> Path:
            if not (kept / name).is_dir():
                (kept / name).mkdir(parents=True)
                self.exported(run_of(name), kept / name, licence="MIT")
            return shutil.copytree(kept / name, into, dirs_exist_ok=True) / f"model{self.exporter.suffix}"

        return artifact

    def exported(self, run: Run, folder: Path, **options: Any) -> Path:
        """Export a run, and return the path of the artifact."""
        path = folder / f"model{self.exporter.suffix}"
        return api.export(run, path, self.form, **options)

    def test_predicts_what_the_run_predicts(
        self,
        run_of: Callable[[str], Run],
        artifact_of: Callable[[str, Path], Path],
        tmp_path: Path,
        subtests: pytest.Subtests,
    ) -> None:
        """The reader needs the runtime alone: another Python process, in which ours cannot be imported."""
        if not self.takes_rows:
            pytest.skip("the artifact takes no rows")
        for name in self.models:
            with subtests.test(model=name):
                run, path = run_of(name), artifact_of(name, tmp_path / name)
                own = api.predict(run, "rows.csv")
                found = self.read(path, "predict", "rows.csv").splitlines()
                assert found[0].split(",") == list(own.columns)
                for line, row in zip(found[1:], own.itertuples(index=False), strict=True):
                    for cell, value in zip(line.split(","), row, strict=True):
                        if isinstance(value, str):
                            assert cell == value
                        else:
                            assert float(cell) == pytest.approx(float(value), rel=1e-5, abs=1e-5)
                assert "as certified" in self.read(path, "verify", "rows.csv")

    def read(self, path: Path, *words: str) -> str:
        """Return what the reader of an artifact says in a process that has no Trainwright."""
        script = path / "reader.py" if path.is_dir() else path.with_name(f"{path.name}.reader.py")
        block = "" if self.needs_trainwright else "sys.modules['trainwright'] = None; "
        code = f"import runpy, sys; {block}sys.argv = sys.argv[1:]; "
        code += "runpy.run_path(sys.argv[0], run_name='__main__')"
        done = subprocess.run(
            [sys.executable, "-c", code, str(script), *words], check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def test_the_certificate(
        self, run_of: Callable[[str], Run], artifact_of: Callable[[str, Path], Path], tmp_path: Path
    ) -> None:
        first = next(iter(self.models))
        run, path = run_of(first), artifact_of(first, tmp_path)
        known = read_certificate(path)
        assert known.run["id"] == run.id
        best = (RunDir(run.path).result() or pytest.fail("no result")).best
        assert best is not None
        assert known.run["digest"] == best.digest
        assert (known.format, known.licence) == (self.form, "MIT")
        if not self.takes_rows:
            assert "is as certified" in api.verify_certificate(path, trust=True)
            return
        assert known.tolerance == 1e-5
        assert [one["name"] for one in known.inputs] == ["age", "city", "income", "joined"]
        assert known.compared["rows"]["test"] == 24
        assert known.compared["rows"]["edge"] > 15
        assert known.compared["largest_difference"] < 1e-5
        assert known.compared["equal_labels"] == 1
        assert 0 < known.latency_seconds["1"] < 1
        assert "24 rows of rows.csv" in api.verify_certificate(path, "rows.csv", trust=True)

    def test_a_damaged_artifact_is_found(
        self, artifact_of: Callable[[str, Path], Path], tmp_path: Path
    ) -> None:
        """Also where its SHA-256 is made to fit."""
        path = artifact_of(next(iter(self.models)), tmp_path)
        self.damage(path)
        with pytest.raises(DifferentArtifactError, match="its SHA-256 is not the certified one"):
            api.verify_certificate(path, trust=True)
        if not self.finds_damage:
            return
        from trainwright.exporters.certificates.files import files_of

        known = json.loads(certificate_of(path).read_text())
        certificate_of(path).write_text(json.dumps({**known, "files": files_of(path)}))
        with pytest.raises(DifferentArtifactError, match=r"is not as certified:\n  .*instead of"):
            api.verify_certificate(path, trust=True)

    def test_a_wrong_artifact_does_not_appear(
        self, run_of: Callable[[str], Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not self.takes_rows:
            pytest.skip("it is compared as another artifact")
        write = self.exporter.write

        def wrong(exporter: Exporter, predictor: Any, path: Path, metadata: Mapping[str, str]) -> None:
            write(exporter, predictor, path, metadata)
            self.damage(path)

        monkeypatch.setattr(self.exporter, "write", wrong)
        with pytest.raises(DifferentArtifactError, match=r"run .*; nothing was written"):
            self.exported(run_of(next(iter(self.models))), tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_the_help_has_a_line(self) -> None:
        assert self.exporter.summary
        assert self.exporter.holds

    def test_what_has_no_certificate(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="there is no such file"):
            api.verify_certificate(tmp_path / "none")
        (tmp_path / "model").write_text("x")
        with pytest.raises(InputError, match="has no certificate: there is no model"):
            api.verify_certificate(tmp_path / "model")
        (tmp_path / "model.certificate.json").write_text("{}")
        with pytest.raises(InputError, match="is no certificate"):
            api.verify_certificate(tmp_path / "model")


_FEW = {"training.max_steps": 12, "training.threads": 1}
