"""Answers about modules that may be models of transformers; nothing is imported for them."""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from torch import nn

from trainwright.datasets.base import Split, known_arrays
from trainwright.digest import sha256_json
from trainwright.errors import ModelError
from trainwright.types import INPUT_IDS

_UNSTABLE = ("transformers_version", "_name_or_path", "dtype")  # of a configuration; they change no bits


def base_of(module: nn.Module) -> Any | None:
    """Return the model of transformers that a module is, also with adapters of peft in it, or None."""
    if _is_adapted(module):
        module = module.get_base_model()  # type: ignore[operator]
    library: Any = sys.modules.get("transformers.modeling_utils")
    return module if library is not None and isinstance(module, library.PreTrainedModel) else None


def architecture_of(module: nn.Module) -> dict[str, Any]:
    """Return the whole configuration of a model of transformers, as JSON."""
    base = base_of(module)
    assert base is not None, "it is a model of transformers"
    values: dict[str, Any] = json.loads(base.config.to_json_string(use_diff=False))
    return {key: value for key, value in values.items() if key not in _UNSTABLE}


def definition_of(module: nn.Module) -> dict[str, str]:
    """Return what defines a model besides its options: the hash of its architecture, a commit of the hub."""
    base = base_of(module)
    assert base is not None, "it is a model of transformers"
    commit = getattr(base.config, "_commit_hash", None)
    return {"architecture": sha256_json(architecture_of(module)), **({"commit": commit} if commit else {})}


def versions_of(module: nn.Module) -> dict[str, str]:
    """Return the versions of the libraries that compute a model; empty for others."""
    if base_of(module) is None:
        return {}
    return {name: version(name) for name in ("transformers", *(["peft"] if _is_adapted(module) else []))}


def check_tokens(module: nn.Module, splits: Mapping[Any, Split]) -> None:
    """Check that a model of transformers knows all tokens of the data, as far as these are in memory.

    Raises:
        ModelError: It has fewer tokens.
    """
    base = base_of(module)
    size = getattr(base.config, "vocab_size", None) if base is not None else None
    if size is None:
        return
    for name, split in splits.items():
        arrays = known_arrays(split)
        if arrays is None or INPUT_IDS not in arrays or not arrays[INPUT_IDS].size:
            continue
        if (largest := int(arrays[INPUT_IDS].max())) >= size:
            raise ModelError(
                f"the model has {size} tokens (vocab_size), but {INPUT_IDS} of {name} has token {largest}; "
                "use the model's own tokenizer; of a model with random weights, set model.config.vocab_size"
            )


@contextmanager
def quiet() -> Iterator[None]:
    """Have transformers show no progress bars, and say nothing of what we report ourselves."""
    logging: Any = importlib.import_module("transformers.utils.logging")

    was_shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of transformers, about what peft calls
            warnings.filterwarnings("ignore", "fan_in_fan_out")  # of peft, which finds out by itself
            yield
    finally:
        logging.set_verbosity(level)
        if was_shown:
            logging.enable_progress_bar()


def _is_adapted(module: nn.Module) -> bool:
    peft: Any = sys.modules.get("peft.peft_model")
    return peft is not None and isinstance(module, peft.PeftModel)
