"""Name the rows of tables as their owner knows them: by their position and identifier in the own file."""

from __future__ import annotations

from typing import Any

from trainwright.config.schema import DataConfig
from trainwright.datasets.base import DataBundle
from trainwright.redact import redacted
from trainwright.tasks.support.columns import as_json
from trainwright.types import SplitName

Json = dict[str, Any]


def with_origin(table: Json, bundle: DataBundle, config: DataConfig | None, split: SplitName) -> Json:
    """Return the tables of a split with the origin of the rows of `worst`.

    Each gets `number`, its position in the source counted from 1 without a header, and `id`, its value in
    the column of identifiers, where these are known. `origin` has the `file` of the rows and the `id` column.
    """
    positions, own = bundle.rows.get(split), bundle.identifiers.get(split)
    file = _file(config, split)
    worst = []
    for row in table["worst"]:
        at = row["row"]
        number = int(positions[at]) + 1 if positions is not None else at + 1 if _is_whole(config) else None
        known = {} if number is None else {"number": number}
        worst.append({**row, **known, **({} if own is None else {"id": as_json(own.values[at])})})
    origin = {"file": file and redacted(file), "id": own and own.column}
    return {**table, "worst": worst, "origin": {key: value for key, value in origin.items() if value}}


def _file(config: DataConfig | None, split: SplitName) -> str | None:
    if config is None:
        return None
    files = {"train": config.train_path, "val": config.val_path, "test": config.test_path}
    return files[split] or config.path


def _is_whole(config: DataConfig | None) -> bool:
    """Return whether each split is a file of its own with all its rows, whose order it keeps."""
    return config is not None and config.train_path is not None and config.missing_target != "drop"
