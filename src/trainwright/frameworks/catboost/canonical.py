"""The canonical serialization of a CatBoost model: equal trees have equal bytes.

CatBoost writes into a model the time of training, a random id, its version, the folder, the number of threads
and the number of rounds that was set. These are left out, as are the remains of trees that were cut off.
"""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path
from typing import Any

from trainwright.errors import ModelError

_EMPTY = {
    "model_guid": "",
    "train_finish_time": "",
    "catboost_version_info": "",
    "output_options": "{}",
    "training": "{}",
}
# The format of a file: 4 bytes, the size of the core (4 bytes), the core (a flatbuffer), and parts. The only
# part here holds the statistics of categories.
_CORE = 8  # offset of the core
_PARTS = 3  # number of the core's field `ModelPartIds`
# An empty part: present where all statistics were dropped, absent where there were none.
_NO_STATISTICS = bytes(4)


def to_bytes(model: Any, rounds: int) -> bytes:
    """Serialize the first `rounds` rounds of a model; trees that are not symmetric cannot be cut off."""
    part = model.copy()
    if rounds < part.tree_count_:
        for _ in range(2):  # the second call drops statistics of categories that no remaining tree needs
            part.shrink(ntree_end=rounds)
    _clear_metadata(part)
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
    """Return a file whose core lists no parts; `core` is the file up to the end of its core, a flatbuffer."""
    data = bytearray(core)
    root = _CORE + struct.unpack_from("<I", data, _CORE)[0]
    fields = root - struct.unpack_from("<i", data, root)[0] + 4
    struct.pack_into("<H", data, fields + 2 * _PARTS, 0)  # a field with offset 0 is absent
    return bytes(data)


def _clear_metadata(model: Any) -> None:
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
    """Load a model of class `cls`, `catboost.CatBoost` or a subclass.

    Raises:
        ModelError: The data are not a CatBoost model.
    """
    model = cls()
    try:
        model.load_model(blob=data)
    except Exception as error:
        raise ModelError(
            f"these are not the weights of a CatBoost model: {str(error).splitlines()[0]}"
        ) from error
    return model
