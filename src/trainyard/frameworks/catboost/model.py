"""A model as bytes that depend on nothing but the model.

CatBoost writes into a model when it was made, a random id, the version, the folder, the number of threads, and how many
rounds it was asked for. These are left out, so that equal trees have equal bytes.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from trainyard.errors import ModelError

_EMPTY = {"model_guid": "", "train_finish_time": "", "catboost_version_info": "", "output_options": "{}", "training": "{}"}


def to_bytes(model: Any, rounds: int) -> bytes:
    """Those of the first `rounds` of it, which for trees that are not symmetric must be all."""
    part = model.copy()
    if rounds < part.tree_count_:
        part.shrink(ntree_end=rounds)
    _forget(part)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.cbm"
        part.save_model(str(path))
        return path.read_bytes()


def _forget(model: Any) -> None:
    metadata = model.get_metadata()
    for key in list(metadata.keys()):
        if key in _EMPTY:
            metadata[key] = _EMPTY[key]
    params = json.loads(metadata["params"])
    params["boosting_options"].pop("iterations", None)
    for key in ("flat_params", "system_options", "logging_level"):
        params.pop(key, None)
    params["flat_params"] = {"loss_function": params["loss_function"]["type"]}
    metadata["params"] = json.dumps(params, sort_keys=True)


def from_bytes(data: bytes, cls: Any) -> Any:
    """A model of the class (`catboost.CatBoost` ...).

    Raises:
        ModelError: this is none.
    """
    model = cls()
    try:
        model.load_model(blob=data)
    except Exception as error:
        raise ModelError(f"these weights are no model of CatBoost: {str(error).splitlines()[0]}") from error
    return model
