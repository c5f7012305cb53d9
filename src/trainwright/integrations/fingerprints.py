"""Hashes that identify the data and the weights of another trainer's training."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from trainwright.digest import digest, sha256_json, tensor_records
from trainwright.errors import ModelError
from trainwright.process.global_random import preserved_global_random
from trainwright.records.manifest import DataIdentity, SplitIdentity

Json = dict[str, Any]
_SHARDED = {"FullyShardedDataParallel", "DeepSpeedEngine"}


def weights_digest(model: Any) -> str | None:
    """Return the digest of a torch model's weights, as for a model of ours: by name, dtype, shape and bytes.

    Returns None if this process does not hold the weights as plain tensors: they are sharded, or quantized.
    """
    from trainwright.frameworks.torch.state.snapshot import named_buffer

    if _is_sharded(model):
        return None
    try:
        buffers = [named_buffer(f"weights.{name}", tensor) for name, tensor in model.state_dict().items()]
    except (ModelError, AttributeError):
        return None
    return digest(tensor_records(buffers))


def _is_sharded(model: Any) -> bool:
    if any(type(module).__name__ in _SHARDED for module in model.modules()):
        return True
    parameters = list(model.parameters())
    return any(hasattr(one, "ds_id") or type(one).__name__ == "DTensor" or one.is_meta for one in parameters)


def data_inputs(splits: Mapping[str, Sequence[Any]], sample: int) -> DataIdentity:
    """Identify the data as well as possible without reading all of it.

    Args:
        splits: The data sets of each split.
        sample: The number of items of each data set to hash, evenly spread over it; 0: none.
    """
    identities = {
        name: _combined([_fingerprint(one, sample) for one in sets]) for name, sets in splits.items() if sets
    }
    warnings = [f"the {name} split is identified by {split['by']} only" for name, split in identities.items()]
    return DataIdentity(
        hash=sha256_json(identities),
        splits={name: SplitIdentity.model_validate(split) for name, split in identities.items()},
        content_hashed=False,
        warnings=warnings,
    )


def _combined(parts: list[Json]) -> Json:
    if len(parts) == 1:
        return parts[0]
    rows = [part["rows"] for part in parts]
    by = "; ".join(dict.fromkeys(part["by"] for part in parts))
    return {"rows": None if None in rows else sum(rows), "sha256": sha256_json(parts), "by": by}


def _fingerprint(dataset: Any, sample: int) -> Json:
    """Return the number of rows, a hash, and in `by` what the hash covers."""
    rows = _length(dataset)
    # Hugging Face's datasets have one, which covers the source and each processing step.
    content = getattr(dataset, "_fingerprint", None)
    if isinstance(content, str):
        by = "its own fingerprint"
    elif rows is None:
        content, by = None, "its type (it is a stream)"
    else:
        indices = _spread_indices(rows, sample) if rows else []
        content = _hash_of_items(dataset, indices)
        by = "its number of rows" if content is None else f"its number of rows and {len(indices)} of them"
    kind = f"{type(dataset).__module__}:{type(dataset).__qualname__}"
    return {"rows": rows, "sha256": sha256_json([kind, rows, content]), "by": by}


def _spread_indices(rows: int, sample: int) -> list[int]:
    return sorted({index * (rows - 1) // max(1, sample - 1) for index in range(sample)})


def _length(dataset: Any) -> int | None:
    """Return the number of items; None if it is unknown, or items cannot be read by index."""
    if not hasattr(dataset, "__getitem__"):
        return None
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _hash_of_items(dataset: Any, indices: Sequence[int]) -> str | None:
    """Return a hash of some items, or None if they cannot be read; preserve the global generators."""
    hasher = hashlib.sha256()
    try:
        with _seeded():
            for index in indices:
                _hash_item(hasher, dataset[index])
    except Exception:  # the user's code, which may need something that is not set up yet
        return None
    return hasher.hexdigest() if indices else None


@contextmanager
def _seeded() -> Iterator[None]:
    """Seed the global generators, so that augmentations give the same item each time; restore them after."""
    import torch

    has_cuda = torch.cuda.is_initialized()
    cuda = torch.cuda.get_rng_state_all() if has_cuda else None
    host = torch.get_rng_state()
    with preserved_global_random():
        try:
            random.seed(0)
            np.random.seed(0)
            torch.manual_seed(0)
            yield
        finally:
            torch.set_rng_state(host)
            if cuda is not None:
                torch.cuda.set_rng_state_all(cuda)


def _hash_item(hasher: Any, value: Any) -> None:
    """Hash an item: arrays and tensors by bytes, containers by content, other objects by type."""
    if hasattr(value, "detach"):  # a tensor
        value = value.detach().to("cpu")
        value = value.float().numpy() if value.is_floating_point() else value.numpy()
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            _hash_item(hasher, [str(key), value[key]])
    elif isinstance(value, list | tuple):
        hasher.update(f"{len(value)} items\n".encode())
        for item in value:
            _hash_item(hasher, item)
    elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind != "O":
        hasher.update(f"{value.dtype} {value.shape}\n".encode())
        hasher.update(value.tobytes())
    elif isinstance(value, str | bytes | int | float | None):
        hasher.update(f"{value!r}\n".encode())
    elif hasattr(value, "tobytes"):  # an image
        hasher.update(value.tobytes())
    else:
        hasher.update(f"{type(value).__qualname__}\n".encode())
