"""Compare what an artifact predicts, in a process of its own, with what its run predicts."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.errors import DifferentArtifactError, TrainwrightError
from trainwright.exporters.base import Exporter, Input, names_classes
from trainwright.exporters.certificates import reader
from trainwright.exporters.certificates.samples import Sample, edge_rows, own_data, real_rows
from trainwright.exporters.certificates.script import reader_of
from trainwright.inference.predictor import Predictor
from trainwright.plugins import task_for
from trainwright.types import INPUT_IDS, Array

TOLERANCE = 1e-5
_SECONDS = 600
_ROWS = 1000  # of the test split
_PREDICTING = 20  # seconds that the run's predictor may take for a batch
_KEPT_CELLS = 1 << 21  # of outputs, which the certificate holds
_BATCH_CELLS = 1 << 24


@dataclass(frozen=True)
class Differences:
    """The differences between an artifact's outputs and the run's, relative to values above 1."""

    largest: float
    mean: float
    equal_labels: float | None  # None: there are no labels
    lines: Sequence[str]


def samples_of(
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
    edges = _possible(predictor, edge_rows(predictor, inputs, within=exporter.rounds))
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


def measured(
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


def differences_of(
    found: Mapping[str, Array],
    expected: Mapping[str, Array],
    names: Sequence[str],
    tolerance: float,
    axis: int,
) -> Differences:
    """Compare what an artifact predicts in each size of batches with what the run predicts.

    Args:
        found: What `measured` returned.
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
                equal = float(same.mean()) if equal is None else min(equal, float(same.mean()))
                same = same | reader.ties(expected["probabilities"][:count], axis, tolerance)
            for i in np.flatnonzero(~same.reshape(count, -1).all(axis=1)).tolist():
                values = f"{_short(given[i])} instead of {_short(own[i])}"
                lines.append(f"{names[i]}, in a batch of {size}: {name} {values}")
    return Differences(largest, float(np.mean(means or [0.0])), equal, lines)


def _short(value: Any) -> str:
    return np.array2string(np.asarray(value), precision=8, threshold=6, separator=", ").replace("\n", "")
