"""Compress the model of a run, compare it with its parent, and keep it if it passes its gate."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.compression import measures
from trainwright.compression.child import Candidate, make_child
from trainwright.compression.search import Search, Trial
from trainwright.datasets.base import DataBundle, Split
from trainwright.datasets.samples.arrays import Arrays
from trainwright.errors import InputError
from trainwright.evaluation.baselines import spaced
from trainwright.evaluation.gates import PARENT, Gate, judged
from trainwright.evaluation.metrics import EvaluationResult
from trainwright.frameworks.base import Compressed
from trainwright.inference.predictor import Predictor
from trainwright.records.compression import CompressionRecord, Recipe
from trainwright.records.run_dir import RunDir
from trainwright.runs.predictor import compress_model, open_predictor
from trainwright.types import SplitName

log = logging.getLogger("trainwright")
_CALIBRATION = 512  # rows
_SPLITS: tuple[SplitName, ...] = ("val", "test")


@dataclass(frozen=True)
class Request:
    """A compression that is asked for; `search` looks for the largest one that passes the gate.

    `model` is the model object, if the parent was given one.
    """

    parent: RunDir
    recipe: Recipe
    gate: Gate | None = None
    search: bool = False
    trust: bool = False
    model: Any = None


@dataclass(frozen=True)
class Outcome:
    """The child run, and how it compares with its parent."""

    child: RunDir
    table: Mapping[str, Any]


def compress_run(request: Request, bundle: DataBundle | None = None) -> Outcome:
    """Compress the model of a run; see `api.compressing.compress`.

    Args:
        request: What is asked.
        bundle: The data, if the parent was given them as objects.

    Raises:
        InputError: The model cannot be compressed so, or the gate asks for what is not there.
        GateError: The compressed model does not pass its gate.
    """
    with tempfile.TemporaryDirectory(prefix="trainwright-") as folder:
        work = _Work(request, Path(folder), bundle)
        return work.run()


def digest_of(run: RunDir) -> str | None:
    """Return the digest of the weights that stand for a run."""
    result = run.result()
    if result is None:
        return None
    return result.best.digest if result.best else result.digest


class _Work:
    """A compression under way."""

    def __init__(self, request: Request, folder: Path, bundle: DataBundle | None) -> None:
        self._request, self._folder = request, folder
        self._began = time.monotonic()
        self._parent = open_predictor(request.parent, request.model, pinned=True)
        self._bundle = bundle or self._parent.load_data()
        self._check_rows()
        self._own = {split: self._evaluate(self._parent, split) for split in self._splits}
        self._rows = self._calibration()
        self._made = 0

    @property
    def _splits(self) -> list[SplitName]:
        return [split for split in _SPLITS if split in self._bundle.splits]

    def _check_rows(self) -> None:
        """Check that the gate's metrics will be there, and that there are rows to compare on.

        Raises:
            InputError: They will not.
        """
        request = self._request
        if not self._splits:
            raise InputError(
                f"run {request.parent.id} has no validation and no test split: nothing could be compared"
            )
        if request.search and request.gate is None:
            raise InputError(
                "--search looks for the largest compression that passes a gate: give --gate, too"
            )

    def _evaluate(self, predictor: Predictor, split: SplitName) -> EvaluationResult:
        return predictor.evaluate(split, bundle=self._bundle)

    def _calibration(self) -> Arrays:
        """Return evenly spaced rows of the training split, as they are without augmentation."""
        train = self._bundle.splits["train"]
        return Arrays(train.take(spaced(len(train), _CALIBRATION)))

    def run(self) -> Outcome:
        """Compress, compare, and keep what passes."""
        gate, searched = self._request.gate, None
        references = _values(self._own)
        if gate is not None:
            gate.check_names({*references, *measures.NAMES}, [PARENT])
        recipe = self._request.recipe
        if self._request.search:
            assert gate is not None
            searched = Search(gate, PARENT, references, self._trial)
            recipe = searched.largest(recipe)
        folder, compressed = self._compressed(recipe)
        predictor = self._opened(folder)
        found = {split: self._evaluate(predictor, split) for split in self._splits}
        rows = self._bundle.splits[self._splits[-1]]
        table = side_by_side((self._parent, predictor), (self._own, found), rows, trust=self._request.trust)
        table["layers"] = [layer.to_json() for layer in compressed.layers]
        if searched is not None:
            table["search"] = searched.trials_json()
        table["recipe"] = recipe.to_json()
        error = judged(gate, table, "the gate is not passed, so no run is kept")
        if error is not None:
            raise error
        record = CompressionRecord(
            recipe=recipe,
            parent_digest=digest_of(self._request.parent),
            gate=None if gate is None else gate.text,
            searched=searched is not None,
            calibration_rows=len(self._rows),
            layers=list(compressed.layers),
        )
        seconds = time.monotonic() - self._began
        made = Candidate(folder, compressed, record, found, table, seconds)
        return Outcome(make_child(self._request.parent, predictor, self._bundle, made), table)

    def _compressed(self, recipe: Recipe) -> tuple[Path, Compressed]:
        self._made += 1
        folder = self._folder / f"{self._made:04d}"
        folder.mkdir()
        request = self._request
        return folder, compress_model(request.parent, request.model, recipe, self._rows, folder)

    def _opened(self, folder: Path) -> Predictor:
        return open_predictor(self._request.parent, self._request.model, pinned=True, folder=folder)

    def _trial(self, recipe: Recipe) -> Trial:
        """Return what a compression does to the validation metrics, and to the size."""
        folder, compressed = self._compressed(recipe)
        values = dict(self._evaluate(self._opened(folder), "val").metrics) if "val" in self._splits else {}
        return Trial(recipe, values, measures.stored_bytes(folder), compressed.layers)


def side_by_side(
    both: Sequence[Predictor],
    evaluations: Sequence[Mapping[SplitName, EvaluationResult]],
    rows: Split,
    *,
    trust: bool,
) -> dict[str, Any]:
    """Return the measures and metrics of a parent and its child.

    Args:
        both: Their models; the child may have no run of its own yet.
        evaluations: Those of their splits.
        rows: Prepared rows, for latency and memory.
        trust: Whether the user trusts the runs.
    """
    table = []
    for one, times, found in zip(both, measures.latencies(both, rows), evaluations, strict=True):
        size = measures.stored_bytes(one.stored.folder)
        table.append({**times, measures.BYTES: float(size), **_values(found)})
        memory = None
        if one.model_object is None:
            memory = measures.peak_memory(one.run, one.stored.folder, rows, trust=trust)
        if memory is not None:
            table[-1][measures.MEMORY] = float(memory)
    return {"parent": {"run_id": both[0].run.id, **table[0]}, "child": table[1]}


def _values(results: Mapping[SplitName, EvaluationResult]) -> dict[str, float]:
    return {name: value for result in results.values() for name, value in result.metrics.items()}
