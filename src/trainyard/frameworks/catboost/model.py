"""A model as bytes that depend on nothing but the model.

CatBoost writes into a model when it was made, a random id, the version, the folder, the number of threads, and how many
rounds it was asked for. These are left out, and so is what it keeps of trees that are cut off: equal trees have equal bytes.
"""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path
from typing import Any

from trainyard.errors import ModelError

_EMPTY = {
    "model_guid": "",
    "train_finish_time": "",
    "catboost_version_info": "",
    "output_options": "{}",
    "training": "{}",
}
# A file is 4 bytes, the size of its core, the core, and parts: the statistics of categories, the only one here.
_CORE = 8
_PARTS = 3  # the number of the core's field `ModelPartIds`
_NO_STATISTICS = bytes(
    4
)  # a part with none in it: left where all were dropped, absent where there never were any


def to_bytes(model: Any, rounds: int) -> bytes:
    """Those of the first `rounds` of it, which for trees that are not symmetric must be all."""
    part = model.copy()
    if rounds < part.tree_count_:
        for _ in range(2):  # it drops the statistics of categories that the trees before the cut did not need
            part.shrink(ntree_end=rounds)
    _forget(part)
    data = _saved(part)
    core = _CORE + struct.unpack_from("<I", data, 4)[0]
    if data[core:] == _NO_STATISTICS:
        data = _saved(from_bytes(_without_parts(data[:core]), type(part)))
    return data


def _saved(model: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.cbm"
        model.save_model(str(path))
        return path.read_bytes()


def _without_parts(core: bytes) -> bytes:
    """The core of a model (a flatbuffer, whose fields have fixed places in its schema) that names no parts behind it."""
    data = bytearray(core)
    root = _CORE + struct.unpack_from("<I", data, _CORE)[0]
    fields = root - struct.unpack_from("<i", data, root)[0] + 4
    struct.pack_into("<H", data, fields + 2 * _PARTS, 0)  # a field without a place is absent
    return bytes(data)


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
