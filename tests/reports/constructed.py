"""Run directories as a training leaves them, made from arrays and curves without any training."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.datasets.base import DataBundle
from trainwright.datasets.samples.arrays import Arrays
from trainwright.engine.journal import Journal
from trainwright.evaluation.baselines import compared, fitted
from trainwright.evaluation.metrics import evaluate_predictions
from trainwright.evaluation.profile import profile
from trainwright.evaluation.tables import tables
from trainwright.plugins import task_for
from trainwright.records.result import AttemptRecord
from trainwright.records.run_dir import RunDir
from trainwright.types import Array, DataInfo, Predictions, features_spec
from written import write_record

NAMES = ("train", "val", "test")
Curves = tuple[Sequence[float], Sequence[float]]  # the training and validation losses


def classes(outputs: int, columns: int) -> DataInfo:
    labels = [f"class {i}" for i in range(outputs)]
    names = [f"column_{i}" for i in range(columns)]
    return DataInfo("classification", features_spec((columns,)), outputs, labels, names, "kind")


def values(columns: int) -> DataInfo:
    names = [f"column_{i}" for i in range(columns)]
    return DataInfo("regression", features_spec((columns,)), 1, None, names, "price")


def bundle(info: DataInfo, features: Array, targets: Array, rows: Sequence[int], **more: Any) -> DataBundle:
    """Data whose first `rows` train, and whose next ones validate and test."""
    ends = np.cumsum(rows)
    parts = [slice(end - count, end) for end, count in zip(ends, rows, strict=True)]
    splits = {
        name: Arrays({"features": features[part].astype(np.float32), "target": targets[part]})
        for name, part in zip(NAMES, parts, strict=True)
    }
    return DataBundle(info, splits, **more)


def run_of(
    folder: Path,
    data: DataBundle,
    outputs: Mapping[str, Array],
    curves: Curves | None = None,
    /,
    **config: Any,
) -> Path:
    """The directory of a run whose model gave `outputs` for the splits."""
    run = folder / "experiment" / "20260101-120000-abc123"
    (run / "evaluation").mkdir(parents=True)
    info, metrics = data.info, {}
    baselines, task = fitted(data), task_for(data.info)
    for name, rows in outputs.items():
        targets = data.splits[name].arrays["target"]  # type: ignore[attr-defined]
        parts = [Predictions(np.arange(len(rows)), rows.astype(np.float32), targets, 1.0)]
        result = evaluate_predictions(parts, list({*task.default_metrics, *task.judged_by}), info, name)
        table = tables(result, info)
        if name != "train":
            table |= {"compared": compared(baselines, result, data.splits[name], info)}
            metrics |= result.metrics
        write_record(run / "evaluation" / f"{name}.json", table)
    write_record(run / "evaluation" / "data.json", profile(data))
    (run / "config.yaml").write_text(json.dumps({"model": {"type": "mlp"}, **config}))
    write_record(run / "manifest.json", _manifest(run, data))
    result = {"status": "completed", "metrics": metrics, "evaluated": "best", "attempts": 1, "steps": 100}
    write_record(run / "result.json", result)
    _journal(run, curves)
    return run


def _manifest(run: Path, data: DataBundle) -> dict[str, Any]:
    info = data.info
    return {
        "run_id": run.name,
        "experiment": "experiment",
        "created": "2026-01-01T12:00:00+00:00",
        "config_hash": "c0" * 32,
        "config_sha256": RunDir(run).config_sha256(),
        "seed": 1,
        "data": {
            "task": info.task,
            "target": info.target,
            "classes": info.classes,
            "features": list(info.feature_names),
            "splits": {name: {"rows": len(split)} for name, split in data.splits.items()},
            "warnings": list(data.warnings),
            "repeated": [one.to_json() for one in data.repeated],
        },
        "environment": {"framework": {"torch": "2.13"}},
    }


def _journal(run: Path, curves: Curves | None) -> None:
    RunDir(run).write_attempt(AttemptRecord(attempt=1, status="completed"))
    journal = Journal(run / "journal", 1, 0)
    train, val = curves or ((), ())
    for step, (loss, held_out) in enumerate(zip(train, val, strict=True), 1):
        journal.values("metrics", 5 * step, {"train_loss": loss})
        journal.values("evaluation", 5 * step, {"val_loss": held_out})
    journal.end(5 * len(train), "completed")
    journal.close()
