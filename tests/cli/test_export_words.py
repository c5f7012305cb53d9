"""What users of other tools write of exports and compression, and what they are told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commandline import Command, lines_of_error

import trainwright
from trainwright.errors import InputError
from trainwright.runs.run import Run

COMMANDS = {
    "a format by another option": (["export", "torch", "--to", "onnx"], "write --format NAME"),
    "a file of PyTorch": (["export", "torch", "model.pt"], "  --format safetensors: "),
    "a program of PyTorch": (["export", "torch", "model.pt2"], "  --format pt2: a folder"),
    "a file of ExecuTorch": (
        ["export", "torch", "model.pte"],
        "  --format executorch: a folder: a .pte file",
    ),
    "a file of LiteRT": (["export", "torch", "model.tflite"], "  --format litert: a folder: a .tflite file"),
    "a file of LiteRT for trees": (
        ["export", "trees", "model.tflite"],
        "--format litert takes models of torch, and one of sklearn can be exported with --format mlflow or",
    ),
    "a pickle of trees": (["export", "trees", "model.pkl"], "  --format skops: a scikit-learn estimator"),
    "a pickle of a network": (["export", "torch", "model.pickle"], "  --format safetensors: "),
    "joblib": (["export", "trees", "model.joblib"], "opening a pickle executes the code in it"),
    "TensorRT": (["export", "torch", "model.engine"], "TensorRT builds its files from ONNX"),
    "TensorFlow": (["export", "trees", "model.pb"], "--format savedmodel takes models of keras"),
    "Core ML": (["export", "torch", "model.mlmodel"], "  --format torchscript: "),
    "a name of Core ML": (["export", "torch", "m", "--format", "CoreML"], "no format for Core ML"),
    "a suffix as a format": (["export", "torch", "m", "--format", ".pte"], "  --format executorch: "),
    "a file that is none": (
        ["export", "torch", "model.what"],
        "its suffix is not one of this model's formats",
    ),
    "int8": (
        ["compress", "torch", "--quantize", "int8"],
        "'int8' given; give int8-dynamic or int8-static or int8-weight-only; docs/compress.md says",
    ),
    "int4": (["compress", "torch", "--quantize", "nf4"], "give int4-weight-only\n"),
    "a half": (["compress", "torch", "--quantize", "float16"], "give fp16\n"),
    "an underscore": (["compress", "torch", "--quantize", "int8_dynamc"], "did you mean 'int8-dynamic'?"),
    "bits": (["compress", "torch", "--bits", "8"], "write --quantize WAY"),
    "percents": (["compress", "torch", "--prune", "50"], "expected, 0.5 for 50%\n"),
    "too many percents": (
        ["compress", "torch", "--prune", "100%"],
        "prune: 1 given; a share from 0 to below 1",
    ),
    "a share in words": (
        ["compress", "torch", "--prune", "half"],
        "'half' is no share; write, for example, 0.5",
    ),
    "another word for it": (["compress", "torch", "--sparsity", "0.5"], "write --prune SHARE"),
    "a folder over a file": (
        ["export", "trees", "rows.csv", "--format", "sklearn", "--force"],
        "rows.csv is a file, and --format sklearn writes a folder: give another path\n",
    ),
    "a file over a folder": (
        ["export", "trees", "plain", "--format", "onnx", "--force"],
        "plain is a folder, and --format onnx writes a file: give another path\n",
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with rows and two runs: `torch` and `trees` are links to them."""
    folder = tmp_path_factory.mktemp("words")
    lines = [f"{i % 7},{i % 5},{'yes' if i % 7 > 3 else 'no'}" for i in range(60)]
    (folder / "plain").mkdir()
    (folder / "rows.csv").write_text("\n".join(["a,b,y", *lines]) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, model in (("torch", "mlp"), ("trees", "DecisionTreeClassifier")):
            config = {"data": {"path": "rows.csv", "target": "y"}, "model": model}
            overrides = ["training.max_steps=2"] if name == "torch" else []
            run = trainwright.train(config, overrides, runs_dir="runs", quiet=True)
            (folder / name).symlink_to(run.path)
        yield folder


@pytest.mark.parametrize("mistake", COMMANDS)
def test_a_word_of_other_tools(mistake: str, folder: Path, command: Command) -> None:
    arguments, mend = COMMANDS[mistake]
    before = sorted(folder.rglob("*"))
    done = command(*arguments)
    lines = lines_of_error(done.err)
    assert done.code == 2, done.err
    assert mend in "\n".join([*lines, ""])
    assert len(lines) <= 4, done.err
    assert sorted(folder.rglob("*")) == before


def test_a_run_is_never_exported_over(folder: Path, command: Command) -> None:
    """Inside a run's directory, at it, around it, by a link, and at another run."""
    run, other = (folder / name for name in ("trees", "torch"))
    for path in (run / "m", run, run.resolve().parent, folder / "runs", other / "checkpoints" / "m"):
        for form in ("onnx", "sklearn"):
            done = command("export", run, path, "--format", form, "--force")
            assert done.code == 2, path
            assert f"{path} would change the directory of a run, {(folder / 'runs').resolve()}" in done.err
    assert not (run / "m").exists()
    assert command("runs", "show", run).code == 0


@pytest.mark.parametrize(("text", "share"), [("50%", 0.5), ("0.25", 0.25), (None, 0.0)])
def test_a_share_in_percent(
    text: str | None, share: float, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def compress(run: str, **how: Any) -> Run:
        raise InputError(f"{run}: {given.update(how)}")

    monkeypatch.setattr(trainwright, "compress", compress)
    assert command("compress", "torch", *([] if text is None else ["--prune", text])).code == 2
    assert given["prune"] == share


@pytest.mark.parametrize(
    ("before", "after", "wrong"),
    [
        ('"format": "skops"', '"fromat": "skops"', "`format` is missing"),
        (
            '"tolerance": 1e-05',
            '"tolerance": "much"',
            "`tolerance` has the value 'much', which is none of its",
        ),
        ('"inputs": [', '"inputs": ["age",', "`inputs.0` has the value 'age', which"),
        ('"artifact"', "artifact", "it is not JSON"),
    ],
)
def test_a_certificate_that_was_edited(
    before: str, after: str, wrong: str, folder: Path, command: Command, tmp_path: Path
) -> None:
    model = folder / "model.skops"
    if not model.exists():
        assert command("export", "trees", model).code == 0
    copy = tmp_path / model.name
    copy.write_bytes(model.read_bytes())
    text = model.with_name("model.skops.certificate.json").read_text()
    assert before in text
    certificate = tmp_path / "model.skops.certificate.json"
    certificate.write_text(text.replace(before, after, 1))
    for words in (("certificate", "verify", copy), ("evaluate", copy, "rows.csv")):
        done = command(*words)
        assert (done.code, done.err.count("\n")) == (2, 1), done.err
        assert f"{certificate} is no certificate: {wrong}" in done.err
        assert done.err.endswith("take the one that came with the model, or export its run again\n")
