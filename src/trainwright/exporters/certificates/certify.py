"""Write an artifact, compare it with its run in a process of its own, and certify it; or show no artifact."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.errors import DataError, DifferentArtifactError, InputError, TrainwrightError
from trainwright.exporters.base import Exporter, Input, names_classes
from trainwright.exporters.certificates import reader
from trainwright.exporters.certificates.samples import Sample, edge_rows, real_rows
from trainwright.inference.predictor import Predictor
from trainwright.inference.whole_files import write_whole
from trainwright.plugins import adapter, task_for
from trainwright.records.certificate import Certificate
from trainwright.safe_files import read_regular
from trainwright.types import Array
from trainwright.version import VERSION

TOLERANCE = 1e-5
BATCHES = (1, 7, 1000)  # rows that are predicted together
TIMED = (1, 64)
_SHOWN = 3  # rows that differ
_SECONDS = 600
_OURS = re.compile(r"^from (trainwright\.\S+) import (?:\([^)]*\)|[^(\n]*)\n", re.MULTILINE)


@dataclass(frozen=True)
class _Differences:
    """The differences between an artifact's outputs and the run's."""

    largest: float
    mean: float
    equal_labels: float
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
    exporter.check_framework(form, predictor)
    predictor.unusual()  # which silences warnings of the edge rows
    inputs = exporter.inputs(predictor)
    with tempfile.TemporaryDirectory(prefix="trainwright-export-") as folder:
        made = Path(folder, path.name)
        about = _about(predictor)
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
                "options": exporter.options,
                "needs": exporter.needs(),
            }
        )
        text = json.dumps(certificate.to_json(), indent=1, ensure_ascii=False)
        certificate_of(made).write_text(text, encoding="utf-8")
        _place(made, path)
    return certificate


def verify(path: Path, rows: Path | None = None) -> str:
    """Verify an artifact against its certificate, in a process of its own; return what was verified.

    The reader beside it is not executed, as it may come from someone else.

    Raises:
        InputError: There is no such artifact, certificate or file, or its rows cannot be read.
        DifferentArtifactError: It is not as certified.
    """
    certificate = read_certificate(path)
    exporter: type[Exporter] = adapter("exporter", certificate.format)
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


def read_certificate(path: Path) -> Certificate:
    """Return the certificate of an artifact.

    Raises:
        InputError: There is none, or it is damaged.
    """
    file = certificate_of(path)
    if not path.exists():
        raise InputError(f"{path}: there is no such file")
    try:
        return Certificate.model_validate_json(read_regular(file))
    except FileNotFoundError:
        raise InputError(f"{path} has no certificate: there is no {file.name} with it") from None
    except ValidationError as error:
        raise InputError(f"{file} is no certificate: {error.errors()[0]['msg']}") from error


def certificate_of(path: Path) -> Path:
    """Return the path of an artifact's certificate: inside a folder, beside a file."""
    return path / "certificate.json" if path.is_dir() else path.with_name(f"{path.name}.certificate.json")


def reader_of(path: Path) -> Path:
    """Return the path of the script that opens an artifact: inside a folder, beside a file."""
    return path / "reader.py" if path.is_dir() else path.with_name(f"{path.name}.reader.py")


def _place(made: Path, path: Path) -> None:
    """Put the artifact and what is beside it in their place, the certificate last."""
    copy = shutil.copytree if made.is_dir() else shutil.copyfile
    write_whole(path, lambda target: copy(made, target))
    if made.is_file():
        for beside in (reader_of, certificate_of):
            write_whole(beside(path), partial(shutil.copyfile, beside(made)))


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
    edges = _possible(predictor, edge_rows(predictor, inputs))
    real = real_rows(predictor.load_data(), predictor, inputs)
    samples = {"edge": edges} | ({} if real is None else {"test": real})
    expected = {name: outputs_of(predictor, sample) for name, sample in samples.items()}
    found = {
        name: _measured(made, sample.feeds(inputs), TIMED if name == list(samples)[-1] else ())
        for name, sample in samples.items()
    }
    differences = {
        name: _differences(found[name], expected[name], samples[name].names, tolerance) for name in samples
    }
    for name, one in differences.items():
        if one.lines:
            raise _different(exporter, predictor, made, inputs, samples[name], one)
    timed = next(reversed(found.values()))
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
            "batches": list(BATCHES),
            "largest_difference": max(one.largest for one in differences.values()),
            "mean_difference": float(np.mean([one.mean for one in differences.values()])),
            "equal_labels": min(one.equal_labels for one in differences.values()),
        },
        latency_seconds={str(size): float(timed[f"/latency/{size}"]) for size in TIMED}
        | {"open": float(timed["/open"])},
        edge_rows=_kept(edges, inputs, expected["edge"]) | {"rows": list(edges.names)},
        test_rows={"keys": [], "outputs": {}} if real is None else _keyed(real, inputs, expected["test"]),
    )


def _possible(predictor: Predictor, sample: Sample) -> Sample:
    """Return the rows that the run's predictor takes: it refuses a value that is too large, say."""
    kept = [i for i in range(len(sample)) if _is_possible(predictor, _taken(sample, [i]))]
    return _taken(sample, kept)


def _is_possible(predictor: Predictor, sample: Sample) -> bool:
    try:
        return bool(np.isfinite(predictor.outputs(sample.rows)).all())
    except DataError:
        return False


def _taken(sample: Sample, ids: Sequence[int]) -> Sample:
    rows = sample.rows
    positions = np.array(ids, dtype=np.int64)
    taken = rows.take(positions) if hasattr(rows, "take") else {n: v[positions] for n, v in rows.items()}
    return Sample(taken, [sample.names[i] for i in ids])


def outputs_of(predictor: Predictor, sample: Sample) -> dict[str, Array]:
    """Return what the run predicts, by the names that artifacts give their outputs."""
    outputs = predictor.outputs(sample.rows)
    if names_classes(predictor.info):
        return {"label": np.array(predictor.table(outputs)["prediction"]), "probabilities": outputs}
    if task_for(predictor.info).gives_probabilities:
        return {"probabilities": outputs}
    return {"prediction": outputs.reshape(len(outputs), -1)}


def _measured(made: Path, feeds: Mapping[str, Array], times: Sequence[int]) -> dict[str, Array]:
    """Return the outputs of an artifact in batches of several sizes, from a process of its own, and times.

    Raises:
        DifferentArtifactError: Its runtime cannot open it or predict.
    """
    rows = len(next(iter(feeds.values())))
    # The largest batch is full: rows are repeated.
    whole = np.resize(np.arange(rows), max(rows, *BATCHES))
    with tempfile.TemporaryDirectory(prefix="trainwright-certify-") as folder:
        given, outputs = Path(folder, "inputs.npz"), Path(folder, "outputs.npz")
        columns = {f":{name}": _portable(value[whole]) for name, value in feeds.items()}
        with open(given, "wb") as target:
            sizes = {"/sizes": np.array(BATCHES), "/times": np.array(times, np.int64)}
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
    found: Mapping[str, Array], expected: Mapping[str, Array], names: Sequence[str], tolerance: float
) -> _Differences:
    """Compare what an artifact predicts in each size of batches with what the run predicts."""
    largest, equal = 0.0, 1.0
    means: list[float] = []
    lines: list[str] = []
    for size in BATCHES:
        for name, wanted in expected.items():
            given = found.get(f"{size}/{name}")
            count = min(len(wanted), 64) if size == 1 else len(wanted)
            if given is None or given[:count].shape != wanted[:count].shape:
                shape = "nothing" if given is None else f"shape {given.shape[1:]}"
                lines.append(f"{name}: {shape} instead of shape {wanted.shape[1:]}")
                continue
            given, own = given[:count], wanted[:count]
            same = reader.equal(given, own, tolerance).reshape(count, -1).all(axis=1)
            if own.dtype.kind == "f":
                apart = np.abs(given.astype(np.float64) - own)
                largest, means = max(largest, float(apart.max(initial=0))), [*means, float(apart.mean())]
            else:
                same |= _are_ties(expected, tolerance)[:count]
                equal = min(equal, float(same.mean()))
            for i in np.flatnonzero(~same).tolist():
                values = f"{_short(given[i])} instead of {_short(own[i])}"
                lines.append(f"{names[i]}, in a batch of {size}: {name} {values}")
    return _Differences(largest, float(np.mean(means or [0.0])), equal, lines)


def _are_ties(expected: Mapping[str, Array], tolerance: float) -> Array:
    """Return for each row whether its two most probable classes differ by no more than the tolerance."""
    ordered = np.sort(expected["probabilities"], axis=1)
    return np.asarray(ordered[:, -1] - ordered[:, -2] <= tolerance)


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
    return DifferentArtifactError("\n".join([f"{text}; the first step that differs: {step}", *shown]))


def _first_step(
    exporter: Exporter, predictor: Predictor, made: Path, sample: Sample, feeds: Mapping[str, Array]
) -> str:
    """Return the first step inside an artifact whose values differ: a column, the model, or what follows."""
    steps = exporter.steps(made, feeds)
    last = "the model" if "model" in steps else "what follows the model"
    preparation = predictor.preparation
    if not isinstance(preparation, TabularPreparation):
        return last
    for name, given in steps.items():
        if name.startswith("column "):
            alone = next(one for one in preparation.columns if one.name == name.removeprefix("column "))
            own = np.empty(given.shape, preparation.dtype)
            alone.encode(sample.rows, own)
        elif name == "features":
            own = preparation.features(sample.rows)
        else:
            continue
        if not reader.equal(given.astype(own.dtype), own, 1e-6).all():
            return name
    return last


def _outputs(predictor: Predictor, expected: Mapping[str, Array]) -> list[dict[str, Any]]:
    """Return what there is to say of each output."""
    info = predictor.info
    labels = [str(one) for one in (info.classes or range(info.outputs))]
    found = []
    for name, values in expected.items():
        if name == "probabilities":
            columns = [f"probability_{label}" for label in labels]
        else:
            several = values.ndim > 1 and values.shape[1] > 1
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


def files_of(made: Path) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of the files of an artifact."""
    paths = sorted(one for one in made.rglob("*") if one.is_file()) if made.is_dir() else [made]
    found = {}
    for path in paths:
        name = path.relative_to(made).as_posix() if made.is_dir() else path.name
        if name != "certificate.json":
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found[name] = {"bytes": path.stat().st_size, "sha256": digest}
    return found


def _about(predictor: Predictor) -> dict[str, Any]:
    """Return where a model came from."""
    from trainwright.storage.portable import weights_digest

    return {
        "id": predictor.run.id,
        "experiment": predictor.config.experiment.name,
        "digest": weights_digest(predictor.stored.folder),
        "config_sha256": predictor.run.config_sha256(),
        "model": predictor.config.model.type,
        "task": predictor.info.task,
        "target": predictor.info.target,
    }


def _versions(exporter: Exporter) -> dict[str, str]:
    known = {"trainwright": VERSION}
    return known | {name: metadata.version(name) for name in exporter.packages}
