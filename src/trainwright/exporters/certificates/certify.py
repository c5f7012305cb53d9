"""Write an artifact, compare it with its run in a process of its own, and certify it; or show no artifact."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.config.schema import RunConfig
from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.errors import DifferentArtifactError, InputError, TrainwrightError
from trainwright.exporters.base import Exporter, Input, class_axis, names_classes
from trainwright.exporters.certificates import reader
from trainwright.exporters.certificates.samples import Sample, edge_rows, own_data, real_rows
from trainwright.exporters.certificates.units import unit_of, warn_of_unit
from trainwright.exporters.weights import WeightsExporter
from trainwright.inference.predictor import Predictor
from trainwright.inference.whole_files import write_all, write_whole
from trainwright.plugins import adapter, name_of_framework, task_for
from trainwright.records.artifact import certificate_of, read_certificate
from trainwright.records.certificate import Certificate
from trainwright.records.run_dir import RunDir
from trainwright.storage.portable import portable_config, weights_digest
from trainwright.tasks.support.transforms import transform_of
from trainwright.types import INPUT_IDS, Array, DataInfo
from trainwright.version import VERSION

log = logging.getLogger("trainwright")
TOLERANCE = 1e-5
_SHOWN = 3  # rows that differ
_SECONDS = 600
_ROWS = 1000  # of the test split
_PREDICTING = 20  # seconds that the run's predictor may take for a batch
_KEPT_CELLS = 1 << 21  # of outputs, which the certificate holds
_BATCH_CELLS = 1 << 24
_OURS = re.compile(r"^from (trainwright\.\S+) import (?:\([^)]*\)|[^(\n]*)\n", re.MULTILINE)


@dataclass(frozen=True)
class _Differences:
    """The differences between an artifact's outputs and the run's, relative to values above 1."""

    largest: float
    mean: float
    equal_labels: float | None  # None: there are no labels
    lines: Sequence[str]


def export_certified(
    predictor: Predictor,
    path: Path,
    form: str,
    *,
    tolerance: float | None = None,
    licence: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Certificate:
    """Write an artifact with its certificate and reader, if it predicts what the run predicts.

    Args:
        predictor: The model of a run.
        path: The file or folder to make; a file gets `PATH.certificate.json` and `PATH.reader.py` beside it.
        form: The name of an exporter.
        tolerance: The largest difference of an output, beside its size where that is above 1; default: 1e-5.
        licence: The terms of use, for the certificate.
        options: Of the exporter; see its `choices`.

    Raises:
        InputError: The format cannot hold this model, or the path cannot be written.
        DifferentArtifactError: The artifact predicts something else; it does not appear.
    """
    exporter: Exporter = adapter("exporter", form)(options)
    exporter.check_framework(form, name_of_framework(predictor.framework))
    if getattr(predictor.preparation, "steps", None) is not None:
        raise InputError(
            f"run {predictor.run.id} makes its columns by code of the user's (data.features_from), which no "
            "format can hold: predict with the run itself, or train on a file that has these columns; for "
            "PyTorch, --format safetensors writes the weights alone"
        )
    predictor.unusual()  # which silences warnings of the edge rows
    inputs = exporter.inputs(predictor)
    with tempfile.TemporaryDirectory(prefix="trainwright-export-") as folder:
        made = Path(folder, path.name)
        about = origin_of(predictor.run, predictor.config, predictor.info, predictor.stored.folder)
        exporter.write(predictor, made, {"run": json.dumps(about)})
        script = reader_of(made)
        script.write_text(reader_source(exporter.runtime), encoding="utf-8")
        certificate = _certified(
            exporter, predictor, made, inputs, TOLERANCE if tolerance is None else tolerance
        )
        certificate = certificate.model_copy(
            update={
                "format": form,
                "run": about,
                "licence": licence,
                "versions": _versions(exporter),
                "data": predictor.stored.data.to_json(),
                "config": portable_config(predictor.run),
                "options": exporter.options,
                "needs": exporter.needs(),
            }
        )
        if exporter.model_alone:
            made, certificate = _alone(predictor, made, certificate)
        text = json.dumps(certificate.to_json(), indent=1, ensure_ascii=False)
        certificate_of(made).write_text(text, encoding="utf-8")
        _place(made, path)
    if exporter.model_alone:
        warn_of_unit(predictor.info, certificate_of(path))
    return certificate


def _alone(predictor: Predictor, made: Path, certificate: Certificate) -> tuple[Path, Certificate]:
    """Return the model's file of a compared folder, and the certificate of it alone."""
    (found,) = made.glob("model.*")
    file = made / "alone" / made.name
    file.parent.mkdir()
    found.rename(file)
    inputs = [
        {"name": name, "dtype": spec.dtype, "shape": list(spec.shape), "content": "", "reads": {}}
        for name, spec in predictor.info.inputs.items()
    ]
    alone = {"inputs": inputs, "outputs": [unit_of(predictor.info)], "files": files_of(file)}
    return file, certificate.model_copy(update=alone | {"edge_rows": {}, "test_rows": {}, "data": {}})


def verify(path: Path, rows: Path | None = None) -> str:
    """Verify an artifact against its certificate, in a process of its own; return what was verified.

    The reader beside it is not executed, as it may come from someone else.

    Raises:
        InputError: There is no such artifact, certificate or file, or its rows cannot be read.
        DifferentArtifactError: It is not as certified.
    """
    certificate = read_certificate(path)
    exporter: type[Exporter] = adapter("exporter", certificate.format)
    if exporter.model_alone or issubclass(exporter, WeightsExporter):
        return _verified_alone(exporter(), path, certificate, rows)
    exporter.check_runtime()
    with tempfile.TemporaryDirectory(prefix="trainwright-verify-") as folder:
        script = Path(folder, "verify.py")
        script.write_text(reader_source(exporter.runtime), encoding="utf-8")
        words = [
            "--artifact",
            str(path.absolute()),
            "verify",
            *([] if rows is None else [str(rows)]),
        ]
        done = subprocess.run(
            [sys.executable, "-I", str(script), *words], check=False, capture_output=True, text=True
        )
    if done.returncode == DifferentArtifactError.exit_code:
        raise DifferentArtifactError(done.stderr.strip())
    if done.returncode != 0:
        raise InputError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else str(path))
    return done.stdout.strip()


def _verified_alone(exporter: Exporter, path: Path, certificate: Certificate, rows: Path | None) -> str:
    """Return what was verified of weights, or of a model's file, alone; see `verify`."""
    if rows is not None:
        raise InputError(f"{path} does not say how rows become predictions: leave {rows} out")
    problems = [*reader.changed_files(path, certificate.to_json())]
    said = f"{len(certificate.files)} {'file is' if len(certificate.files) == 1 else 'files are'} equal"
    if isinstance(exporter, WeightsExporter):
        said = f"{certificate.compared['tensors']} tensors are equal"
        try:
            difference = None if problems else exporter.difference(path, certificate.compared)
        except ValueError as error:
            difference = str(error)
        problems += [difference] if difference else []
    if problems:
        raise DifferentArtifactError("\n  ".join([f"{path.name} is not as certified:", *problems[:5]]))
    return f"{path.name} is as certified: {said}"


def reader_of(path: Path) -> Path:
    """Return the path of the script that opens an artifact: inside a folder, beside a file."""
    return path / "reader.py" if path.is_dir() else path.with_name(f"{path.name}.reader.py")


def _place(made: Path, path: Path) -> None:
    """Put the artifact and what is beside it in their places, the certificate last."""
    if made.is_dir():
        write_whole(path, lambda target: shutil.copytree(made, target))
        return
    others = [one for one in parts_of(made) if one != made]
    parts = [one for one in (made, *others, reader_of(made), certificate_of(made)) if one.exists()]
    targets = [path.with_name(path.name + one.name.removeprefix(made.name)) for one in parts]
    write_all({target: partial(shutil.copyfile, one) for target, one in zip(targets, parts, strict=True)})


def reader_source(runtime: str) -> str:
    """Return the text of the script that opens artifacts of a format: its runtime, with what that imports."""
    return _inlined(runtime, set())


def _inlined(name: str, known: set[str]) -> str:
    """Return the text of a module in which imports of ours are replaced by the texts of their modules."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).read_text(encoding="utf-8")

    def imported(line: re.Match[str]) -> str:
        if line[1] in known:
            return ""
        known.add(line[1])
        text = _inlined(line[1], known).split('"""', 2)[2]
        return text.replace("from __future__ import annotations\n", "").strip() + "\n"

    return _OURS.sub(imported, text)


def _certified(
    exporter: Exporter, predictor: Predictor, made: Path, inputs: Sequence[Input], tolerance: float
) -> Certificate:
    """Return the certificate of an artifact.

    Raises:
        DifferentArtifactError: It predicts something else, or cannot be opened.
    """
    samples, expected, batches = _samples(exporter, predictor, inputs)
    edges, real = samples["edge"], samples.get("test")
    feeds = {name: sample.feeds(inputs) for name, sample in samples.items()}
    found = _measured(made, feeds, batches, exporter.timed)
    differences = {
        name: _differences(
            {key.removeprefix(f"{name}/"): one for key, one in found.items() if key.startswith(f"{name}/")},
            expected[name],
            samples[name].names,
            tolerance,
            class_axis(predictor.info),
        )
        for name in samples
    }
    for name, one in differences.items():
        if one.lines:
            raise _different(exporter, predictor, made, inputs, samples[name], one)
    return Certificate(
        artifact=made.name,
        format="",
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        run={},
        versions={},
        inputs=[{**one._asdict(), "shape": list(one.shape)} for one in inputs],
        outputs=_outputs(predictor, expected["edge"]),
        files=files_of(made),
        tolerance=tolerance,
        compared={
            "rows": {name: len(sample) for name, sample in samples.items()},
            "batches": list(batches),
            "largest_difference": max(one.largest for one in differences.values()),
            "mean_difference": float(np.mean([one.mean for one in differences.values()])),
            "equal_labels": min(
                (one.equal_labels for one in differences.values() if one.equal_labels is not None),
                default=None,
            ),
        },
        latency_seconds={str(size): float(found[f"/latency/{size}"]) for size in exporter.timed}
        | {"open": float(found["/open"])},
        edge_rows=_kept(edges, inputs, expected["edge"]) | {"rows": list(edges.names)},
        test_rows={"keys": [], "outputs": {}} if real is None else _keyed(real, inputs, expected["test"]),
    )


def _samples(
    exporter: Exporter, predictor: Predictor, inputs: Sequence[Input]
) -> tuple[dict[str, Sample], dict[str, Mapping[str, Array]], Sequence[int]]:
    """Return the rows to compare on, by sample, the outputs that they must have, and the sizes of batches."""
    if own := exporter.own_rows(predictor):
        samples = {
            name: Sample(rows, [f"{name} row {i}" for i in range(len(next(iter(rows.values()))))])
            for name, rows in own.items()
        }
        wanted = {name: exporter.expected(predictor, rows) for name, rows in own.items()}
        return samples, wanted, exporter.batches
    edges = _possible(predictor, edge_rows(predictor, inputs))
    began = time.perf_counter()
    expected: dict[str, Mapping[str, Array]] = {"edge": outputs_of(predictor, edges)}
    seconds = (time.perf_counter() - began) / len(edges)
    most, batches = _affordable(exporter, expected["edge"], seconds)
    data = own_data(predictor)
    real = None if data is None else real_rows(data, predictor, inputs, most)
    if real is None:
        return {"edge": edges}, expected, batches
    return {"edge": edges, "test": real}, expected | {"test": outputs_of(predictor, real)}, batches


def _affordable(
    exporter: Exporter, outputs: Mapping[str, Array], seconds: float
) -> tuple[int, Sequence[int]]:
    """Return how many real rows to compare, and the sizes of batches: fewer where a row is large or slow.

    Args:
        exporter: The exporter.
        outputs: Outputs of some rows.
        seconds: The time that the run's predictor takes for a row.
    """
    cells = sum(int(np.prod(one.shape[1:])) for one in outputs.values())
    *smaller, full = exporter.batches
    most = min(_ROWS, int(_PREDICTING / seconds), _KEPT_CELLS // cells)
    largest = min(full, int(_PREDICTING / seconds), _BATCH_CELLS // cells)
    return max(most, 4), sorted({*smaller, max(largest, *smaller)})


def _possible(predictor: Predictor, sample: Sample) -> Sample:
    """Return the rows that the run's predictor takes: it refuses a value that is too large, say."""
    kept = [i for i in range(len(sample)) if _is_possible(predictor, sample.take([i]))]
    return sample.take(kept)


def _is_possible(predictor: Predictor, sample: Sample) -> bool:
    try:
        found = outputs_of(predictor, sample).values()
        return all(bool(np.isfinite(one).all()) for one in found if one.dtype.kind == "f")
    except TrainwrightError:
        return False


def outputs_of(predictor: Predictor, sample: Sample) -> dict[str, Array]:
    """Return what the run predicts, by the names that artifacts give their outputs."""
    task = task_for(predictor.info)
    if task.generates_text:
        return {"logits": predictor.trained_model.token_logits(sample.rows[INPUT_IDS])}
    outputs = predictor.outputs(sample.rows)
    if names_classes(predictor.info):
        name = "mask" if task.gives_masks else "label"
        answers = np.array(list(predictor.table(outputs)["prediction"]))
        return {name: answers, "probabilities": outputs}
    if task.gives_probabilities:
        return {"probabilities": outputs}
    return {"prediction": outputs.reshape(len(outputs), -1)}


def _measured(
    made: Path, samples: Mapping[str, Mapping[str, Array]], batches: Sequence[int], times: Sequence[int]
) -> dict[str, Array]:
    """Return the outputs of an artifact in batches of several sizes, from a process of its own, and times.

    Args:
        made: The artifact.
        samples: The inputs of each sample.
        batches: The sizes of batches.
        times: Those to be timed.

    Returns:
        `SAMPLE/SIZE/OUTPUT` arrays, and the seconds `/latency/SIZE` and `/open`.

    Raises:
        DifferentArtifactError: Its runtime cannot open it or predict.
    """
    columns: dict[str, Array] = {}
    for sample, feeds in samples.items():
        rows = len(next(iter(feeds.values())))
        # The largest batch is full: rows are repeated.
        whole = np.resize(np.arange(rows), max(rows, *batches))
        columns |= {f"{sample}:{name}": _portable(value[whole]) for name, value in feeds.items()}
        columns[f"{sample}/rows"] = np.array(rows)
    with tempfile.TemporaryDirectory(prefix="trainwright-certify-") as folder:
        given, outputs = Path(folder, "inputs.npz"), Path(folder, "outputs.npz")
        with open(given, "wb") as target:
            sizes = {"/sizes": np.array(batches), "/times": np.array(times, np.int64)}
            np.savez(target, allow_pickle=False, **sizes, **columns)
        script = reader_of(made).absolute()
        command = [sys.executable, "-I", str(script), "measure", str(given), str(outputs)]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_SECONDS, cwd=script.parent
        )
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise DifferentArtifactError(f"the exported model cannot be opened and called: {last}")
        with np.load(outputs) as file:
            return {name: file[name] for name in file.files}


def _portable(values: Array) -> Array:
    return values.astype(str) if values.dtype.kind == "O" else values


def _differences(
    found: Mapping[str, Array],
    expected: Mapping[str, Array],
    names: Sequence[str],
    tolerance: float,
    axis: int,
) -> _Differences:
    """Compare what an artifact predicts in each size of batches with what the run predicts.

    Args:
        found: What `_measured` returned.
        expected: What the run predicts.
        names: Of the rows.
        tolerance: The largest difference.
        axis: That of classes in probabilities.
    """
    largest, equal = 0.0, None
    means: list[float] = []
    lines: list[str] = []
    batches = sorted({int(name.partition("/")[0]) for name in found if name[0] != "/"})
    for size in batches:
        for name, wanted in expected.items():
            given = found.get(f"{size}/{name}")
            count = min(len(wanted), 64) if size == 1 else len(wanted)
            if given is None or given[:count].shape != wanted[:count].shape:
                shape = "nothing" if given is None else f"shape {given.shape[1:]}"
                lines.append(f"{name}: {shape} instead of shape {wanted.shape[1:]}")
                continue
            given, own = given[:count], wanted[:count]
            same = reader.equal(given, own, tolerance)
            if own.dtype.kind == "f":
                apart = np.abs(given.astype(np.float64) - own) / np.maximum(1.0, np.abs(own))
                largest, means = max(largest, float(apart.max(initial=0))), [*means, float(apart.mean())]
            else:
                same = same | reader.ties(expected["probabilities"][:count], axis, tolerance)
                equal = float(same.mean()) if equal is None else min(equal, float(same.mean()))
            for i in np.flatnonzero(~same.reshape(count, -1).all(axis=1)).tolist():
                values = f"{_short(given[i])} instead of {_short(own[i])}"
                lines.append(f"{names[i]}, in a batch of {size}: {name} {values}")
    return _Differences(largest, float(np.mean(means or [0.0])), equal, lines)


def _short(value: Any) -> str:
    return np.array2string(np.asarray(value), precision=8, threshold=6, separator=", ").replace("\n", "")


def _different(
    exporter: Exporter,
    predictor: Predictor,
    made: Path,
    inputs: Sequence[Input],
    sample: Sample,
    differences: _Differences,
) -> DifferentArtifactError:
    """Return the error about an artifact that predicts something else."""
    lines = differences.lines
    text = f"the exported model predicts something else than run {predictor.run.id}; nothing was written"
    shown = [f"  {line}" for line in lines[:_SHOWN]]
    if more := len(lines) - len(shown):
        shown[-1] += f" (and {more} more)"
    try:
        step = _first_step(exporter, predictor, made, sample, sample.feeds(inputs))
    except (TrainwrightError, ValueError, RuntimeError) as error:
        step = f"cannot be told: {error}"
    recipe = manifest.compression if (manifest := predictor.run.manifest()) else None
    precision = (recipe and recipe.recipe.quantize) or predictor.config.training.precision
    if precision in ("bf16", "fp16"):
        shown[-1] = f"  the run predicts in {precision}, the artifact in float32: give --tolerance 0.02, say"
    return DifferentArtifactError("\n".join([f"{text}; the first step that differs: {step}", *shown]))


def _first_step(
    exporter: Exporter, predictor: Predictor, made: Path, sample: Sample, feeds: Mapping[str, Array]
) -> str:
    """Return the first step inside an artifact whose values differ: a column, the model, or what follows."""
    steps = exporter.steps(made, feeds)
    preparation = predictor.preparation
    features: Array = next(iter(feeds.values()))
    if isinstance(preparation, TabularPreparation):
        features = preparation.features(sample.rows)
        for name, given in steps.items():
            if name.startswith("column "):
                alone = next(one for one in preparation.columns if one.name == name.removeprefix("column "))
                own = np.empty(given.shape, preparation.dtype)
                alone.encode(sample.rows, own)
            elif name == "features":
                own = features
            else:
                continue
            if not reader.equal(given.astype(own.dtype), own, 1e-6).all():
                return name
    if "model" not in steps:
        return "what follows the model"
    own = _before_the_end(predictor, predictor.outputs(sample.rows))
    if reader.equal(steps["model"].reshape(own.shape), own, TOLERANCE).all():
        return "what follows the model"
    return exporter.inside(made, predictor, feeds, features) or "the model"


def _before_the_end(predictor: Predictor, outputs: Array) -> Array:
    """Return what a model itself gives: probabilities, or values before offset and transformation."""
    info = predictor.info
    if task_for(info).gives_probabilities:
        return outputs
    transform = transform_of(info)
    values = outputs if transform is None else transform.forward(outputs)
    return np.asarray(values - np.reshape(info.target_offset or 0.0, (-1,) if values.ndim > 1 else ()))


def _outputs(predictor: Predictor, expected: Mapping[str, Array]) -> list[dict[str, Any]]:
    """Return what there is to say of each output."""
    info = predictor.info
    labels = [str(one) for one in (info.classes or range(info.outputs))]
    found = []
    for name, values in expected.items():
        if values.ndim > 2 and name != "mask":
            columns = [name]
        elif name == "probabilities":
            columns = [f"probability_{label}" for label in labels]
        else:
            several = name == "prediction" and values.ndim == 2 and values.shape[1] > 1
            columns = (
                [f"prediction_{one}" for one in info.target_names or labels] if several else ["prediction"]
            )
        about = {"name": name, "dtype": str(values.dtype), "shape": list(values.shape[1:])}
        found.append({**about, "columns": columns, "unit": f"that of {info.target}"})
    return found


def _kept(sample: Sample, inputs: Sequence[Input], expected: Mapping[str, Array]) -> dict[str, Any]:
    """Return rows and their outputs as the certificate holds them."""
    feeds = sample.feeds(inputs)
    return {
        "inputs": {name: reader.encoded(value) for name, value in feeds.items()},
        "outputs": {name: reader.encoded(value) for name, value in expected.items()},
    }


def _keyed(sample: Sample, inputs: Sequence[Input], expected: Mapping[str, Array]) -> dict[str, Any]:
    """Return the keys of rows and their outputs as the certificate holds them."""
    keys = reader.row_keys([one._asdict() for one in inputs], sample.feeds(inputs))
    return {"keys": keys, "outputs": {name: reader.encoded(value) for name, value in expected.items()}}


def parts_of(made: Path) -> list[Path]:
    """Return the files of an artifact: of a folder all, of a file it and those that belong to it."""
    if made.is_dir():
        return sorted(one for one in made.rglob("*") if one.is_file())
    return [made, *(one for name in reader.BESIDE if (one := reader.beside(made, name)).is_file())]


def files_of(made: Path) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of the files of an artifact."""
    found = {}
    for path in parts_of(made):
        name = path.relative_to(made).as_posix() if made.is_dir() else path.name
        if name != "certificate.json":
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found[name] = {"bytes": path.stat().st_size, "sha256": digest}
    return found


def origin_of(run: RunDir, config: RunConfig, info: DataInfo, checkpoint: Path) -> dict[str, Any]:
    """Return where a model came from: its run, and the folder of its checkpoint."""
    return {
        "id": run.id,
        "experiment": config.experiment.name,
        "digest": weights_digest(checkpoint),
        "config_sha256": run.config_sha256(),
        "model": config.model.type,
        "task": info.task,
        "target": info.target,
    }


def _versions(exporter: Exporter) -> dict[str, str]:
    known, sources = {"trainwright": VERSION}, metadata.packages_distributions()
    found = {name: sources.get(name, [name]) for name in exporter.packages}
    return known | {name: metadata.version(name if name in of else of[0]) for name, of in found.items()}
