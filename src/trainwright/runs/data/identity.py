"""The identity of a run's data."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainwright.datasets.base import DataBundle, known_arrays
from trainwright.datasets.samples.corrupt import in_words
from trainwright.digest import array_buffer, digest, sha256_json, tensor_records
from trainwright.plugins import task_for
from trainwright.records.manifest import DataIdentity, SplitIdentity
from trainwright.types import SplitName

_NOTED = 16  # digits of the SHA-256 of a shard: the whole ones are in that of its split


def data_inputs(bundle: DataBundle) -> DataIdentity:
    """Return what identifies the data: a fingerprint of each split, as the model sees it."""
    info = bundle.info
    splits = {
        str(name): SplitIdentity(rows=len(split), sha256=split.fingerprint())
        for name, split in bundle.splits.items()
    }
    content: dict[str, Any] = {name: split.to_json() for name, split in splits.items()}
    if bundle.sampling is not None:
        content["sampling"] = digest(tensor_records([array_buffer("weights", bundle.sampling)]))
    return DataIdentity(
        hash=sha256_json(content),
        splits=splits,
        rows={name: same for name in bundle.splits if (same := _row_identity(bundle, name)) is not None},
        preparation=_fitted(bundle),
        task=info.task,
        target=info.target,
        features=[str(name) for name in info.feature_names],
        classes=None if info.classes is None else [str(label) for label in info.classes],
        content_hashed=bundle.content_hashed,
        files={name: sha256[:_NOTED] for name, sha256 in bundle.files.items()},
        warnings=[*bundle.warnings, *([in_words(bundle.skipped)] if bundle.skipped else [])],
        repeated=list(bundle.repeated),
        pins=dict(bundle.pins),
        keys=list(bundle.keys),
    )


def _fitted(bundle: DataBundle) -> str | None:
    """Return the SHA-256 of what was fitted to the training rows to prepare rows; None if nothing was."""
    plain = {} if bundle.preparation is None else bundle.preparation.to_json()
    fitted = plain.get("columns", plain.get("tokenizer"))
    return None if fitted is None else sha256_json(fitted)


def _row_identity(bundle: DataBundle, name: SplitName) -> str | None:
    """Return the SHA-256 of the targets of a split and of its positions in the source.

    It is equal for the same rows, however their features were prepared; None if a split does not hold its
    targets.
    """
    known = known_arrays(bundle.splits[name])
    if known is None:
        return None
    targets = known.get(task_for(bundle.info).target)
    if targets is None:
        return None
    # Some frameworks get values in float64.
    arrays = {"targets": targets.astype(np.float32) if targets.dtype == np.float64 else targets}
    if name in bundle.rows:
        arrays["positions"] = bundle.rows[name]
    return digest(tensor_records(array_buffer(key, array) for key, array in arrays.items()))
