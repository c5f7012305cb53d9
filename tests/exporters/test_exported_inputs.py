"""Exported models where a run could be named: predictions, metrics, comparisons, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainwright
from trainwright.cli.main import main
from trainwright.errors import CheckpointError, DifferentArtifactError, InputError, OtherFormatError
from trainwright.exporters.certificates.files import files_of
from trainwright.exporters.certificates.reader import changed_files, read_rows
from trainwright.exporters.onnx import OnnxExporter
from trainwright.records.artifact import certificate_of, exports_of, read_certificate
from trainwright.records.run_dir import RunDir
from trainwright.runs.run import Run
from trainwright.testing.exporter_suite import write_rows


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Return a run whose working directory is the current one, with its artifact `model.onnx`."""
    folder = tmp_path_factory.mktemp("inputs")
    write_rows(folder / "rows.csv")
    before = Path.cwd()
    environment = pytest.MonkeyPatch()  # as `own_cache` sets it for each test: it holds the key
    environment.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
    os.chdir(folder)
    config = {"data": {"type": "csv", "path": "rows.csv", "target": "churn"}, "model": "lightgbm"}
    overrides = ["training.max_steps=12", "training.threads=1"]
    made = trainwright.train(config, overrides=overrides, runs_dir=folder / "runs", quiet=True)
    trainwright.export(made, "model.onnx")
    yield made
    os.chdir(before)
    environment.undo()


@pytest.fixture
def path(run: Run, tmp_path: Path) -> Path:
    """Return a copy of the artifact."""
    for name in ("model.onnx", "model.onnx.certificate.json"):
        shutil.copy(run.path.parents[2] / name, tmp_path)
    return tmp_path / "model.onnx"


def _edit(path: Path, **fields: object) -> None:
    file = certificate_of(path)
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def test_predictions_and_metrics_are_those_of_the_run(run: Run, path: Path, tmp_path: Path) -> None:
    """Nothing of the run is needed; a row with a cell that is no number has no prediction."""
    lines = Path("rows.csv").read_text().replace(",", ";").splitlines()
    lines[5] = "old;Bern;12;;yes"
    (tmp_path / "new.csv").write_text("\r\n".join(lines))
    own = trainwright.predict(run, tmp_path / "new.csv", keep=["city"])
    found = trainwright.predict(path, tmp_path / "new.csv", keep=["city"], runs_dir=tmp_path / "none")
    assert list(found.columns) == list(own.columns)
    assert "error" in found.columns
    assert found["error"].notna().tolist() == own["error"].notna().tolist()
    assert found["prediction"].fillna("").tolist() == own["prediction"].fillna("").tolist()
    assert (found["probability_yes"] - own["probability_yes"]).abs().max() < 1e-5
    metrics = trainwright.evaluate(run, data="rows.csv")
    ours = trainwright.evaluate(path, data="rows.csv", runs_dir=tmp_path / "none")
    assert ours == pytest.approx({name: metrics[name] for name in ours})
    assert set(ours) == {"test_accuracy", "test_f1"}


def test_a_comparison_with_the_run(run: Run, path: Path) -> None:
    found = trainwright.compare(run, path)
    assert (found.rows, found.equal_labels, list(found.worst)) == (24, 1.0, [])
    assert found.largest_difference < 1e-5
    numbers = {one.name: one for one in found.numbers}
    own = trainwright.evaluate(run)
    assert numbers["test_accuracy"].first == own["test_accuracy"]
    assert numbers["test_accuracy"].second == own["test_accuracy"]
    assert numbers["bytes"].second == path.stat().st_size


def test_a_comparison_of_models_that_differ(run: Run, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rows that differ most come first; the differences are computed anew from the predictions."""
    config = {"data": {"type": "csv", "path": "rows.csv", "target": "churn"}, "model": "lightgbm"}
    other = trainwright.train(
        config,
        overrides=["training.max_steps=2", "training.threads=1"],
        runs_dir=run.path.parents[1],
        quiet=True,
    )
    found = trainwright.compare(path, other, data="rows.csv", runs_dir=run.path.parents[1])
    first, second = (trainwright.predict(one, "rows.csv") for one in (run, other))
    apart = (first["probability_yes"] - second["probability_yes"]).abs()
    assert found.largest_difference == pytest.approx(apart.max(), abs=1e-6)
    assert found.mean_difference == pytest.approx(apart.mean(), abs=1e-6)
    assert found.equal_labels == (first["prediction"] == second["prediction"]).mean() < 1
    assert found.worst[0].row == f"row {apart.argmax() + 1}"
    main(["runs", "compare", str(path), other.id, "--runs-dir", str(run.path.parents[1])])
    assert "rows that differ most" in capsys.readouterr().out


def test_what_needs_a_run_names_it(run: Run, path: Path) -> None:
    for verb in (trainwright.resume, trainwright.reproduce, trainwright.get):
        with pytest.raises(InputError, match=f"exported model, and no run: .* came from run {run.id}"):
            verb(path)
    with pytest.raises(InputError, match=f"or name its run, {run.id}"):
        trainwright.explain(path)


def test_a_run_lists_its_exports(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    main(["runs", "show", str(run.path)])
    assert f"{run.path.parents[2] / 'model.onnx'} (onnx, " in capsys.readouterr().out
    assert [one["format"] for one in exports_of(RunDir(run.path))] == ["onnx"]


def test_code_is_executed_only_for_own_exports(
    run: Run, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export is known wherever it lies; one whose certificate was edited is not, nor a forged record."""
    monkeypatch.setattr(OnnxExporter, "executes_code", True)
    runs = run.path.parents[1]
    assert len(trainwright.predict(path, "rows.csv", runs_dir=runs)) == 240
    with pytest.raises(InputError, match="executes code when it is opened"):
        trainwright.predict(path, "rows.csv", runs_dir=tmp_path / "none")
    _edit(path, licence="changed")
    for use in (
        lambda **how: trainwright.predict(path, "rows.csv", **how),
        lambda **how: trainwright.evaluate(path, data="rows.csv", **how),
        lambda **how: trainwright.compare(run, path, **how),
        lambda **how: trainwright.verify_certificate(path, **how),
    ):
        with pytest.raises(InputError, match="executes code when it is opened"):
            use(runs_dir=runs)
        use(runs_dir=runs, trust=True)
    from trainwright.digest import sha256_bytes

    directory = RunDir(run.path)
    kept = exports_of(directory)
    forged = {**kept[0], "certificate": sha256_bytes(certificate_of(path).read_bytes())}
    directory.write_json("exports.json", {"exports": [*kept, forged]})
    with pytest.raises(InputError, match="executes code when it is opened"):
        trainwright.predict(path, "rows.csv", runs_dir=runs)
    directory.write_json("exports.json", {"exports": kept})


def test_certificates_that_were_edited(path: Path) -> None:
    _edit(path, format_version=2)
    with pytest.raises(OtherFormatError, match="format 2"):
        trainwright.verify_certificate(path)
    _edit(path, format_version=1, files={})
    with pytest.raises(DifferentArtifactError, match="the certificate is of other files: none"):
        trainwright.verify_certificate(path)
    known = read_certificate(path)
    _edit(path, files=files_of(path), edge_rows={**known.edge_rows, "rows": []})
    with pytest.raises(InputError, match="its edge rows are not complete"):
        trainwright.verify_certificate(path)
    _edit(path, edge_rows=known.edge_rows, tolerance=float("inf"))
    with pytest.raises(InputError, match="is no certificate"):
        trainwright.verify_certificate(path)
    _edit(path, tolerance=1e-5, outputs=[one for one in known.outputs if one["name"] == "label"])
    with pytest.raises(DifferentArtifactError, match="says nothing of the outputs probabilities"):
        trainwright.verify_certificate(path)


def test_swapped_classes_are_found(path: Path) -> None:
    known = read_certificate(path)
    label, probabilities = known.outputs
    swapped = {**probabilities, "columns": probabilities["columns"][::-1]}
    _edit(path, outputs=[label, swapped])
    with pytest.raises(DifferentArtifactError, match="are not those of the labels"):
        trainwright.verify_certificate(path)
    info = {**known.data["info"], "classes": known.data["info"]["classes"][::-1]}
    _edit(path, outputs=known.outputs, data={**known.data, "info": info})
    with pytest.raises(CheckpointError, match="its classes are probability_yes, probability_no and"):
        trainwright.predict(path, "rows.csv")


def test_an_edited_certificate_of_an_own_run(run: Run, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    runs = run.path.parents[1]
    trainwright.verify_certificate(path, runs_dir=runs)
    assert "has recorded no export" not in caplog.text
    _edit(path, licence="changed")
    trainwright.verify_certificate(path, runs_dir=runs)
    assert f"run {run.id} is yours, and has recorded no export with this certificate" in caplog.text


def test_files_of_a_folder(tmp_path: Path) -> None:
    """Files outside are not read, whatever names them."""
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_text("x")
    (folder / "weights").write_text("x")
    known = {"files": files_of(folder)}
    assert list(changed_files(folder, known)) == []
    record = known["files"]["weights"]
    for name in ("../secret", str(tmp_path / "secret")):
        found = list(changed_files(folder, {"files": {**known["files"], name: record}}))
        assert found == [f"{name}: it is outside of the folder, or a link to outside"]
    (folder / "more").write_text("")
    assert list(changed_files(folder, known)) == ["more: the certificate knows no such file"]
    (folder / "more").unlink()
    (folder / "weights").unlink()
    assert list(changed_files(folder, known)) == ["weights: there is no such file"]
    (folder / "weights").symlink_to(tmp_path / "secret")
    assert list(changed_files(folder, known)) == [
        "weights: it is outside of the folder, or a link to outside"
    ]
    (folder / "weights").unlink()
    os.mkfifo(folder / "weights")
    assert list(changed_files(folder, known)) == ["weights: there is no such file"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize(
    ("encoding", "end"), [("utf-8", "\r\n"), ("utf-8-sig", "\n"), ("utf-16", "\r\n"), ("cp1252", "\r")]
)
def test_files_of_rows_in_other_forms(tmp_path: Path, delimiter: str, encoding: str, end: str) -> None:
    rows = [["name", "age"], ['"Zürich; a, b\t| ""c"""', "3"], ["Genève", "4"]]
    text = end.join(delimiter.join(row) for row in rows) + end
    (tmp_path / "rows.csv").write_bytes(text.encode(encoding))
    inputs = [
        {"name": "age", "dtype": "float64", "reads": {}},
        {"name": "name", "dtype": "string", "reads": {}},
    ]
    feeds, _ = read_rows({"inputs": inputs}, str(tmp_path / "rows.csv"))
    assert feeds["age"][:, 0].tolist() == [3, 4]
    assert feeds["name"][:, 0].tolist() == ['Zürich; a, b\t| "c"', "Genève"]


def test_rows_that_cannot_be_read(tmp_path: Path) -> None:
    inputs = [{"name": "age", "dtype": "float64", "reads": {}}]
    for content, message in {
        "name\nx\n": "has no column 'age'; its columns: name",
        "age,name\n3\n": "line 2 has 1 cells, and the header 2",
        "age\n": "there are columns, but no rows",
        "age\nold\n": "'old' is no number",
    }.items():
        (tmp_path / "rows.csv").write_text(content)
        with pytest.raises(SystemExit, match=message):
            read_rows({"inputs": inputs}, str(tmp_path / "rows.csv"))


def test_metrics_of_a_foreign_certificate_import_nothing(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its config names a module that would write a line; neither command imports it."""
    config = read_certificate(path).config
    evaluation = {**config.get("evaluation", {}), "metrics": ["this:c"]}
    _edit(path, config={**config, "evaluation": evaluation})
    sys.modules.pop("this", None)
    with pytest.raises(InputError):
        trainwright.evaluate(path, data="rows.csv", runs_dir=tmp_path)
    with pytest.raises(InputError):
        trainwright.compare(path, path, data="rows.csv", runs_dir=tmp_path)
    assert "this" not in sys.modules
    assert "Zen" not in capsys.readouterr().out
