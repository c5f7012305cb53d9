"""Hugging Face: folders that `from_pretrained` opens, with tokenizer and model card."""

from __future__ import annotations

import copy
import importlib
import json
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from trainwright.datasets.texts.preparation import TextPreparation
from trainwright.errors import InputError
from trainwright.exporters.base import Exporter, Input
from trainwright.exporters.certificates.samples import own_data
from trainwright.inference.predictor import Predictor
from trainwright.reports.card import write_card
from trainwright.require import require
from trainwright.types import ATTENTION_MASK, INPUT_IDS, SPLITS, Array

_ROWS = 16  # that are compared
_TYPES = "token_type_ids"


class _FromPretrained(Exporter):
    """An exporter of folders for `from_pretrained`, whose logits are compared."""

    holds = "model, tokenizer, model card"
    runtime = "trainwright.exporters.huggingface.runtime"
    extra = "huggingface"
    frameworks = ("torch",)
    batches: ClassVar[Sequence[int]] = (1, 7)
    timed: ClassVar[Sequence[int]] = (1,)

    @abstractmethod
    def save(self, module: Any, path: Path, source: str | None) -> None:
        """Write the folder of a model of transformers, or of peft.

        Args:
            module: The model, which may be changed.
            path: The folder.
            source: The path or the name of the model that its training began with; None: random weights.
        """

    def write(self, predictor: Predictor, path: Path, metadata: Mapping[str, str]) -> None:  # noqa: ARG002
        """Write the folder; see `Exporter.write`."""
        with _quiet():
            self.save(copy.deepcopy(predictor.native), path, _source(predictor))
            _write_tokenizer(predictor, path)
        write_card(predictor.run.path, path / "README.md")

    def inputs(self, predictor: Predictor) -> Sequence[Input]:
        """Return the arrays that the model takes: tokens and masks."""
        _check(predictor)
        names = predictor.model.input_names or predictor.info.inputs
        return [
            Input(name, spec.dtype, spec.shape, f"an array of {spec.dtype}")
            for name, spec in predictor.info.inputs.items()
            if name in names
        ]

    def own_rows(self, predictor: Predictor) -> Mapping[str, Mapping[str, Array]]:
        """Return synthetic tokens, and those of the test split."""
        vocabulary = int(getattr(_base(predictor.native).config, "vocab_size", 2))
        inputs = self.inputs(predictor)
        edges = {one.name: _edges(one, vocabulary) for one in inputs}
        if (data := own_data(predictor)) is None:
            return {"edge": edges}
        splits = data.splits
        split = splits[next(name for name in reversed(SPLITS) if name in splits)]
        batch = split.take(np.arange(min(len(split), _ROWS), dtype=np.int64))
        return {"edge": edges, "test": {one.name: batch[one.name] for one in inputs}}

    def expected(self, predictor: Predictor, rows: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the logits, (rows, classes); of language models those of the last token."""
        torch, module = importlib.import_module("torch"), predictor.native
        with torch.no_grad():
            found = [
                module(**{name: torch.from_numpy(value[i : i + 1]) for name, value in rows.items()}).logits
                for i in range(len(next(iter(rows.values()))))
            ]
        logits = torch.cat(found).float().numpy()
        return {"logits": logits[:, -1] if logits.ndim == 3 else logits}

    def steps(self, path: Path, feeds: Mapping[str, Array]) -> Mapping[str, Array]:  # noqa: ARG002
        """Return no values: there is no preparation in the folder."""
        return {}


class HuggingfaceExporter(_FromPretrained):
    """An exporter of models of transformers, with adapters merged."""

    summary = "a folder for transformers' from_pretrained; adapters are merged"
    packages = ("transformers", "torch")

    def save(self, module: Any, path: Path, source: str | None) -> None:  # noqa: ARG002
        """Write the model."""
        if module is not _base(module):
            module = module.merge_and_unload()
        if hasattr(module.config, "use_cache"):
            module.config.use_cache = True  # as by default: generation is faster with it
        module.save_pretrained(path)


class PeftExporter(_FromPretrained):
    """An exporter of adapters alone, which need the model that they were trained on."""

    summary = "a folder for peft's from_pretrained: the adapters (model.lora) alone"
    holds = "adapters, tokenizer, model card"
    packages = ("peft", "transformers", "torch")

    def save(self, module: Any, path: Path, source: str | None) -> None:
        """Write the adapters, and the configuration that their model had."""
        for adapters in module.peft_config.values():
            adapters.base_model_name_or_path = source
        module.save_pretrained(path, save_embedding_layers=False)  # they are not trained
        base = _base(module)
        about = {"class": type(base).__name__, "config": json.loads(base.config.to_json_string())}
        (path / "base.json").write_text(json.dumps(about, indent=1), encoding="utf-8")

    def inputs(self, predictor: Predictor) -> Sequence[Input]:
        """Return the arrays that the model takes: tokens and masks."""
        inputs = super().inputs(predictor)
        module = predictor.native
        if module is _base(module):
            raise InputError(
                "--format peft needs adapters (model.lora), which this run does not have; use --format "
                "huggingface"
            )
        if _source(predictor) is None:
            raise InputError(
                "--format peft is for adapters of a model that is kept elsewhere (model.path); this one "
                "began with random weights, so use --format huggingface"
            )
        return inputs


def _source(predictor: Predictor) -> str | None:
    """Return the path or the name of the model that the training began with; None: random weights."""
    source = predictor.config.model.params.get("path")
    return str(Path(source).absolute()) if source is not None and Path(source).exists() else source


def _check(predictor: Predictor) -> None:
    """Check that a model is one of transformers.

    Raises:
        InputError: It is none.
    """
    base = _base(predictor.native)
    if not isinstance(base, require("transformers", "huggingface").PreTrainedModel):
        raise InputError(
            f"run {predictor.run.id} trained no model of transformers; export its weights with --format "
            "safetensors"
        )


def _base(module: Any) -> Any:
    """Return the model of transformers that a module is, also with adapters of peft in it."""
    return module.get_base_model() if hasattr(module, "get_base_model") else module


def _edges(one: Input, vocabulary: int) -> Array:
    """Return synthetic values of an input, (8, ...)."""
    draws, shape = np.random.default_rng(0), (8, *one.shape)
    found: Array
    if one.name == INPUT_IDS:
        found = draws.integers(0, vocabulary, shape)
        found[0], found[1] = 0, vocabulary - 1
    elif one.name == ATTENTION_MASK:
        found = np.ones(shape, np.int64)
        found[2, 1:], found[3, len(found[3]) // 2 :] = 0, 0
    elif one.name == _TYPES:
        found = np.zeros(shape, np.int64)
    else:
        found = draws.standard_normal(shape)
    return found.astype(one.dtype)


def _write_tokenizer(predictor: Predictor, path: Path) -> None:
    """Write the tokenizer's files, if it is one of the library `tokenizers`."""
    if INPUT_IDS not in predictor.info.inputs:
        return
    known = predictor.tokenizer.to_json()
    if "tokenizer" not in known:
        return
    transformers, library = importlib.import_module("transformers"), require("tokenizers", "text")
    tokenizer = library.Tokenizer.from_str(json.dumps(known["tokenizer"]))
    preparation = predictor.preparation
    length = preparation.max_length if isinstance(preparation, TextPreparation) else None
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=known["end_of_text"],
        pad_token=tokenizer.id_to_token(predictor.tokenizer.padding),
        **({} if length is None else {"model_max_length": length}),
    )
    fast.save_pretrained(path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Have transformers show no progress bars and no warnings."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    was_shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of transformers, about what peft calls
            yield
    finally:
        logging.set_verbosity(level)
        if was_shown:
            logging.enable_progress_bar()
